//! Slurm's lists of hosts, as in `gpu[04-07,9],login1`, written out.

/// A list with more hosts than this is a mistake, or an attack.
const MOST_HOSTS: usize = 65_536;
/// The longest list that is read.
const MOST_BYTES: usize = 1 << 20;

/// Why a list of hosts cannot be written out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{list:?} is not a list of hosts: {problem}")]
pub struct HostListError {
    /// The list, or its beginning.
    pub list: String,
    /// What is wrong with it.
    pub problem: String,
}

/// The hosts of a list, in its order: what `scontrol show hostnames` prints, without asking it.
///
/// ```
/// let hosts = quelea_net::launcher::expand_hosts("gpu[08-10],rack[1-2]n[1,3]").unwrap();
/// assert_eq!(hosts, ["gpu08", "gpu09", "gpu10", "rack1n1", "rack1n3", "rack2n1", "rack2n3"]);
/// ```
pub fn expand_hosts(list: &str) -> Result<Vec<String>, HostListError> {
    let refuse = |problem: String| HostListError { list: list.chars().take(80).collect(), problem };
    if list.len() > MOST_BYTES {
        return Err(refuse(format!("it has more than {MOST_BYTES} bytes")));
    }
    let mut hosts = Vec::new();
    for pattern in patterns(list).map_err(refuse)? {
        let room = MOST_HOSTS - hosts.len();
        hosts.extend(expand_pattern(pattern, room).map_err(refuse)?);
    }
    Ok(hosts)
}

/// The patterns between the commas that are not in brackets.
fn patterns(list: &str) -> Result<Vec<&str>, String> {
    let (mut found, mut begin, mut inside) = (Vec::new(), 0, false);
    for (place, letter) in list.char_indices() {
        match letter {
            '[' if inside => return Err("a bracket in brackets".into()),
            ']' if !inside => return Err("a bracket is closed that was not opened".into()),
            '[' => inside = true,
            ']' => inside = false,
            ',' if !inside => {
                found.push(&list[begin..place]);
                begin = place + 1;
            }
            _ => {}
        }
    }
    if inside {
        return Err("a bracket is not closed".into());
    }
    found.push(&list[begin..]);
    if found.iter().any(|pattern| pattern.trim().is_empty()) {
        return Err("a name is empty".into());
    }
    Ok(found.into_iter().map(str::trim).collect())
}

/// All names of one pattern; brackets on the right vary fastest.
fn expand_pattern(pattern: &str, room: usize) -> Result<Vec<String>, String> {
    let mut names = vec![String::new()];
    let mut rest = pattern;
    while let Some((before, after)) = rest.split_once('[') {
        let (ranges, behind) = after.split_once(']').expect("brackets were matched");
        let numbers = expand_ranges(ranges, room)?;
        if names.len().saturating_mul(numbers.len()) > room {
            return Err(format!("it has more than {MOST_HOSTS} hosts"));
        }
        let longer = |name: &String| {
            let stem = format!("{name}{before}");
            numbers.iter().map(move |number| format!("{stem}{number}")).collect::<Vec<_>>()
        };
        names = names.iter().flat_map(longer).collect();
        rest = behind;
    }
    names.iter_mut().for_each(|name| name.push_str(rest));
    if names.len() > room {
        return Err(format!("it has more than {MOST_HOSTS} hosts"));
    }
    Ok(names)
}

/// `04-06,9` → 04, 05, 06, 9: numbers keep the width of the first of their range.
fn expand_ranges(ranges: &str, room: usize) -> Result<Vec<String>, String> {
    let mut numbers = Vec::new();
    for range in ranges.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let number = |text: &str| {
            let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
            let parsed = text.parse::<u64>().ok().filter(|_| is_number);
            parsed.ok_or_else(|| format!("[{range}] is not a number or a range of numbers"))
        };
        let (from, to) = (number(first)?, number(last)?);
        if to < from {
            return Err(format!("[{range}] ends before it begins"));
        }
        if to - from >= room.saturating_sub(numbers.len()) as u64 {
            return Err(format!("it has more than {MOST_HOSTS} hosts"));
        }
        let width = first.len();
        numbers.extend((from..=to).map(|number| format!("{number:0width$}")));
    }
    Ok(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expanded(list: &str) -> Vec<String> {
        expand_hosts(list).expect("a good list")
    }

    #[test]
    fn a_list_is_written_out_in_its_order_and_numbers_keep_their_width() {
        assert_eq!(expanded("n1"), ["n1"]);
        assert_eq!(expanded("gpu[04-05,9],x1"), ["gpu04", "gpu05", "gpu9", "x1"]);
        assert_eq!(expanded("a1,a2[1-3]"), ["a1", "a21", "a22", "a23"]);
        assert_eq!(expanded("n[098-101]"), ["n098", "n099", "n100", "n101"]);
        assert_eq!(
            expanded("r[1-2]n[0,7]-ib.example"),
            ["r1n0-ib.example", "r1n7-ib.example", "r2n0-ib.example", "r2n7-ib.example"]
        );
        assert_eq!(expanded("n[0-65535]").len(), MOST_HOSTS);
    }

    #[test]
    fn what_is_no_list_is_refused_with_the_reason() {
        let cases = [
            ("", "a name is empty"),
            ("a,,b", "a name is empty"),
            ("a[1-2", "a bracket is not closed"),
            ("a]1", "a bracket is closed that was not opened"),
            ("a[[1]]", "a bracket in brackets"),
            ("a[1-x]", "[1-x] is not a number or a range of numbers"),
            ("a[]", "[] is not a number"),
            ("a[+1]", "[+1] is not a number"),
            ("a[5-4]", "[5-4] ends before it begins"),
            ("a[0-65536]", "it has more than 65536 hosts"),
            ("a[0-18446744073709551615]", "it has more than 65536 hosts"),
            ("a[0-999][0-999]", "it has more than 65536 hosts"),
            ("b,a[0-65535]", "it has more than 65536 hosts"),
        ];
        for (list, expected) in cases {
            let problem = expand_hosts(list).expect_err(list).problem;
            assert!(problem.starts_with(expected), "{list}: {problem}");
        }
    }
}

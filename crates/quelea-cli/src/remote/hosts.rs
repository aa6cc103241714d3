//! Lists of hosts with the number of processes on each, as in `a:4,b:4` or `n[1-8]:2`.

use std::collections::BTreeSet;

use quelea_run::drive::expand_hosts;
use quelea_run::error::RequestError;

/// One host of a launch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteHost {
    /// As `ssh` knows it.
    pub name: String,
    /// How many processes it gets.
    pub slots: u32,
    /// The rank of the first of them.
    pub first_rank: u32,
}

/// The most processes of one launch.
const MOST_PROCESSES: u32 = 65_536;

/// The hosts of a list, in its order; their ranks follow each other.
pub fn parse(field: &str, list: &str) -> Result<Vec<RemoteHost>, RequestError> {
    let refuse = |problem: String| RequestError::field(field, list, problem);
    let mut hosts: Vec<RemoteHost> = Vec::new();
    let mut seen = BTreeSet::new();
    let mut first_rank = 0u32;
    for entry in entries(list) {
        let (pattern, slots) = split_slots(entry).map_err(refuse)?;
        for name in expand(pattern).map_err(refuse)? {
            // What `ssh` would take for an option, or a shell for something else.
            let is_good = |c: char| c.is_ascii_alphanumeric() || "-_.@:%".contains(c);
            if name.starts_with('-') || !name.chars().all(is_good) {
                return Err(refuse(format!("{name:?} is not the name of a host")));
            }
            if !seen.insert(name.clone()) {
                return Err(refuse(format!(
                    "{name} is named twice; give it more processes instead"
                )));
            }
            hosts.push(RemoteHost { name, slots, first_rank });
            first_rank = first_rank.saturating_add(slots);
            if first_rank > MOST_PROCESSES {
                return Err(refuse(format!("has more than {MOST_PROCESSES} processes")));
            }
        }
    }
    Ok(hosts)
}

/// How many processes there are in all.
pub fn total(hosts: &[RemoteHost]) -> usize {
    hosts.iter().map(|host| host.slots as usize).sum()
}

/// What is between commas that are not in brackets.
fn entries(list: &str) -> Vec<&str> {
    let mut depth = 0;
    let parts = list.split(|c| {
        match c {
            '[' => depth += 1,
            ']' => depth -= 1,
            _ => {}
        }
        c == ',' && depth <= 0
    });
    parts.map(str::trim).collect()
}

/// `a:4` → `a` and 4; one process where no number is given.
fn split_slots(entry: &str) -> Result<(&str, u32), String> {
    let is_bare_six = entry.matches(':').count() > 1 && !entry.contains(']');
    match entry.rsplit_once(':') {
        Some((pattern, slots)) if !is_bare_six && !slots.contains(']') => {
            let number = slots.parse::<u32>().ok().filter(|slots| (1..=1024).contains(slots));
            let number = number.ok_or_else(|| {
                format!("{entry}: after the colon is how many processes the host gets, 1 to 1024")
            })?;
            Ok((pattern, number))
        }
        _ => Ok((entry, 1)),
    }
}

/// An address in brackets is one host; everything else may be a list as Slurm writes it.
fn expand(pattern: &str) -> Result<Vec<String>, String> {
    let inside = pattern.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    match inside {
        Some(address) if address.contains(':') => Ok(vec![address.to_string()]),
        _ if pattern.contains(':') => Ok(vec![pattern.to_string()]),
        _ => expand_hosts(pattern).map_err(|error| error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_get_their_processes_in_order() {
        let host =
            |name: &str, slots, first_rank| RemoteHost { name: name.into(), slots, first_rank };
        let hosts = |list| parse("--hosts", list).expect("good");
        assert_eq!(hosts("a:4,b:2,c"), [host("a", 4, 0), host("b", 2, 4), host("c", 1, 6)]);
        assert_eq!(
            hosts("n[1-2]:3, me@x"),
            [host("n1", 3, 0), host("n2", 3, 3), host("me@x", 1, 6)]
        );
        assert_eq!(hosts("[fd00::1]:2,fd00::2"), [host("fd00::1", 2, 0), host("fd00::2", 1, 2)]);
        assert_eq!(total(&hosts("a:4,b:2,c")), 7);
    }

    #[test]
    fn what_is_no_list_is_refused_by_its_part() {
        let cases = [
            ("", "a name is empty"),
            ("a:0", "a:0: after the colon"),
            ("a:x", "a:x: after the colon"),
            ("a,a:2", "a is named twice"),
            ("-oProxyCommand=x", "\"-oProxyCommand=x\" is not the name"),
            ("a b", "\"a b\" is not the name"),
            ("n[1-70000]", "more than 65536"),
            ("n[1-4000]:1024", "has more than 65536 processes"),
        ];
        for (list, expected) in cases {
            let told = parse("--hosts", list).expect_err(list).to_string();
            assert!(told.contains(expected), "{list}: {told}");
        }
    }
}

//! Names that people type: finding them in a table, and saying which one they may have meant.

/// The entry of this name in a table, or the nearest name if there is one.
pub fn find<T>(
    rows: &'static [T],
    name_of: fn(&T) -> &'static str,
    name: &str,
) -> Result<&'static T, Option<&'static str>> {
    let found = rows.iter().find(|row| name_of(row) == name);
    found.ok_or_else(|| nearest(name, rows.iter().map(name_of)))
}

/// The entry of `valid` nearest to `given`, if it is near enough to be a slip.
pub fn nearest<'a>(given: &str, valid: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let given = given.to_ascii_lowercase().replace('_', "-");
    valid
        .into_iter()
        .map(|name| (distance(&given, name), name))
        .min()
        .filter(|(distance, name)| *distance <= 1 + name.len() / 3)
        .map(|(_, name)| name)
}

/// Insertions, deletions, substitutions and swaps of neighbours between two words.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut rows = vec![(0..=b.len()).collect::<Vec<usize>>()];
    for i in 1..=a.len() {
        let mut row = vec![i];
        for j in 1..=b.len() {
            let substitution = rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut best = substitution.min(rows[i - 1][j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                best = best.min(rows[i - 2][j - 2] + 1);
            }
            row.push(best);
        }
        rows.push(row);
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use super::nearest;

    #[test]
    fn slips_are_recognised_and_strangers_are_not() {
        let valid = ["aladdin", "allreduce", "d-psgd", "ad-psgd"];
        assert_eq!(nearest("aladin", valid), Some("aladdin"));
        assert_eq!(nearest("D_PSGD", valid), Some("d-psgd"));
        assert_eq!(nearest("allredcue", valid), Some("allreduce"));
        assert_eq!(nearest("transformer", valid), None);
    }
}

//! Text: nothing that is committed names a private place.

/// Absolute paths of somebody's machine; written in two halves so that this file may be checked.
const PLACES: [&str; 2] = [concat!("/wo", "rk/"), concat!("/ro", "ot/")];

/// The complaints about one text file of any kind.
pub fn check(path: &str, content: &str) -> Vec<String> {
    let mut complaints = Vec::new();
    for (index, line) in content.lines().enumerate() {
        for place in PLACES.into_iter().filter(|place| names(line, place)) {
            complaints.push(format!("{path}:{}: names the private path '{place}'", index + 1));
        }
    }
    complaints
}

/// Whether an absolute path in `line` begins with `place`.
fn names(line: &str, place: &str) -> bool {
    line.match_indices(place).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        !before.is_some_and(|c| c.is_alphanumeric() || "._-/$}*".contains(c))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn private_paths_are_noticed_and_relative_ones_are_not() {
        for place in PLACES {
            assert_eq!(check("a.md", &format!("see {place}data")).len(), 1);
            assert_eq!(check("a.md", &format!("`{place}`")).len(), 1);
            assert_eq!(check("a.md", &format!("see some{place}data and ..{place}x")).len(), 0);
        }
    }
}

//! Files: their length, their first line, their name.

const LINES_MAX: usize = 800;
const NAMES_FORBIDDEN: [&str; 4] = ["base.rs", "utils.rs", "common.rs", "helpers.rs"];

/// The complaints about one Rust file.
pub fn check(path: &str, content: &str) -> Vec<String> {
    let mut complaints = Vec::new();
    let lines = content.lines().count();
    if lines > LINES_MAX {
        complaints.push(format!("{path}: {lines} lines, expected at most {LINES_MAX}"));
    }
    if !content.starts_with("//! ") {
        complaints.push(format!("{path}:1: no `//!` line that says what the file is"));
    }
    let name = path.rsplit('/').next().unwrap_or(path);
    if NAMES_FORBIDDEN.contains(&name) {
        complaints.push(format!("{path}: a file is named after its concept, not '{name}'"));
    }
    complaints
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_short_and_says_what_it_is() {
        assert_eq!(check("crates/wire/src/tag.rs", "//! A tag.\n").len(), 0);
        assert_eq!(check("crates/wire/src/tag.rs", "use std::fmt;\n").len(), 1);
        assert_eq!(check("a.rs", &format!("//! A.\n{}", "\n".repeat(799))).len(), 0);
        assert_eq!(check("a.rs", &format!("//! A.\n{}", "\n".repeat(800))).len(), 1);
    }

    #[test]
    fn a_file_has_a_name_of_its_own() {
        assert_eq!(check("crates/wire/src/utils.rs", "//! Things.\n").len(), 1);
        assert_eq!(check("crates/wire/src/database.rs", "//! Things.\n").len(), 0);
    }
}

//! Files: their length, their first line, their name.

const LINES_MAX: usize = 800;
const NAMES_FORBIDDEN: [&str; 4] = ["base", "utils", "common", "helpers"];

/// The complaints about one file; about Rust and Python alone are there any.
pub fn check(path: &str, content: &str) -> Vec<String> {
    let name = path.rsplit('/').next().unwrap_or(path);
    let Some((stem, opening)) = opening(name) else { return Vec::new() };
    let mut complaints = Vec::new();
    let lines = content.lines().count();
    // A stub lists the signatures of one compiled module, which cannot be divided.
    if lines > LINES_MAX && !name.ends_with(".pyi") {
        complaints.push(format!("{path}: {lines} lines, expected at most {LINES_MAX}"));
    }
    if !content.lines().find(|line| !line.starts_with("#!")).unwrap_or("").starts_with(opening) {
        let opening = opening.trim_end();
        complaints.push(format!("{path}:1: no `{opening}` line that says what the file is"));
    }
    if NAMES_FORBIDDEN.contains(&stem) {
        complaints.push(format!("{path}: a file is named after its concept, not '{name}'"));
    }
    complaints
}

/// A source file's name without its extension, and how its first line begins.
fn opening(name: &str) -> Option<(&str, &'static str)> {
    match name.rsplit_once('.')? {
        (stem, "rs") => Some((stem, "//! ")),
        (stem, "py" | "pyi") => Some((stem, "\"\"\"")),
        _ => None,
    }
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
    fn python_files_say_it_in_a_docstring() {
        assert_eq!(check("python/thinwire/group.py", "\"\"\"A group.\"\"\"\n").len(), 0);
        assert_eq!(
            check("bench/table.py", "#!/usr/bin/env python3\n\"\"\"A table.\"\"\"\n").len(),
            0
        );
        assert_eq!(check("python/thinwire/group.py", "import numpy\n").len(), 1);
        assert_eq!(check("python/thinwire/__init__.py", "").len(), 1);
        assert_eq!(check("a.py", &format!("\"\"\"A.\"\"\"\n{}", "\n".repeat(800))).len(), 1);
    }

    #[test]
    fn a_file_has_a_name_of_its_own() {
        assert_eq!(check("crates/wire/src/utils.rs", "//! Things.\n").len(), 1);
        assert_eq!(check("python/thinwire/utils.py", "\"\"\"Things.\"\"\"\n").len(), 1);
        assert_eq!(check("crates/wire/src/database.rs", "//! Things.\n").len(), 0);
    }

    #[test]
    fn other_files_are_free() {
        assert_eq!(check("docs/base.md", "").len(), 0);
    }
}

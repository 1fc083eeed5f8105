//! Source: what Rust code here does without.
//!
//! A reader of lines, not of syntax: it relies on rustfmt's layout and errs on the quiet side.

/// The only places where `unsafe` may stand: kernels, the driver of a device, the crossing into Python, the
/// allocator's settings, the mapping of files, and memory that ranks share.
const UNSAFE_ALLOWED: [&str; 12] = [
    "crates/cli/src/memory.rs",
    "crates/codec/src/kernel",
    "crates/device/src/cuda",
    "crates/device/tests",
    "crates/graph/src/store/map.rs",
    "crates/link/src/shm/memory.rs",
    "crates/py/src/device.rs",
    "crates/py/src/memory.rs",
    "crates/py/src/operator.rs",
    "crates/py/src/xla",
    "crates/thinwire/examples/cuda.rs",
    "crates/train/src/spmd/kernel/multiply.rs",
];

/// The complaints about one Rust file.
pub fn check(path: &str, content: &str) -> Vec<String> {
    let mut complaints = Vec::new();
    let mut complain = |line: usize, what: &str| complaints.push(format!("{path}:{line}: {what}"));
    if crate_root(path) && !content.contains("(unsafe_code)]") {
        complain(1, "no `#![forbid(unsafe_code)]` in the root of a crate");
    }
    for (line, code) in code_lines(content) {
        let code = without_strings(code);
        if code.trim_start().starts_with("pub use ") && code.contains("::*") {
            complain(line, "glob re-export, name what is public");
        }
        if has_word(&code, "unsafe") && !UNSAFE_ALLOWED.iter().any(|place| path.starts_with(place))
        {
            complain(line, "`unsafe` outside of the few places that may have it");
        }
    }
    if path.starts_with("crates/") && !is_test_file(path) {
        for (line, code) in outside_tests(code_lines(content)) {
            if without_strings(code).contains(".unwrap()") {
                complain(line, "`unwrap()` outside of tests, use `?` or `expect(\"why\")`");
            }
        }
    }
    complaints
}

/// Splits the path of a crate's Rust source at its `src` folder.
pub fn source_of(path: &str) -> Option<(&str, &str)> {
    let (folder, name) = path.split_once("/src/")?;
    let is_crate =
        folder == "xtask" || folder.strip_prefix("crates/").is_some_and(|c| !c.contains('/'));
    (is_crate && name.ends_with(".rs")).then_some((folder, name))
}

/// The lines that hold code, numbered from 1, without comments.
pub fn code_lines(content: &str) -> impl Iterator<Item = (usize, &str)> {
    let numbered = content.lines().enumerate().map(|(index, line)| (index + 1, line));
    numbered
        .filter(|(_, line)| !line.trim_start().starts_with("//"))
        .map(|(number, line)| (number, line.split(" // ").next().unwrap_or(line)))
}

/// `line` without what stands between double quotes.
fn without_strings(line: &str) -> String {
    let mut code = String::with_capacity(line.len());
    let (mut inside, mut escaped) = (false, false);
    for character in line.chars() {
        let quote = character == '"' && !escaped;
        escaped = inside && character == '\\' && !escaped;
        if !inside || quote {
            code.push(character);
        }
        inside ^= quote;
    }
    code
}

/// `lines` without the items under `#[cfg(test)]`: up to the brace that closes at their own indent.
pub fn outside_tests<'a>(
    lines: impl Iterator<Item = (usize, &'a str)>,
) -> impl Iterator<Item = (usize, &'a str)> {
    let mut closing: Option<String> = None;
    lines.filter(move |(_, line)| {
        if let Some(end) = &closing {
            let over = *line == end.as_str() || (line.ends_with(';') && starts_below(line, end));
            if over {
                closing = None;
            }
            return false;
        }
        if line.trim_start().starts_with("#[cfg(test)]") {
            let indent = line.len() - line.trim_start().len();
            closing = Some(format!("{}}}", " ".repeat(indent)));
            return false;
        }
        true
    })
}

/// Whether `line` stands at the indent at which `end` closes.
fn starts_below(line: &str, end: &str) -> bool {
    line.len() - line.trim_start().len() == end.len() - 1
}

fn has_word(line: &str, word: &str) -> bool {
    line.split(|c: char| !c.is_alphanumeric() && c != '_').any(|found| found == word)
}

fn crate_root(path: &str) -> bool {
    let parts: Vec<&str> = path.split('/').collect();
    matches!(parts[..], ["crates", _, "src", "lib.rs" | "main.rs"])
}

pub fn is_test_file(path: &str) -> bool {
    let folders = ["/tests/", "/benches/", "/examples/"];
    folders.iter().any(|folder| path.contains(folder))
        || path.ends_with("/tests.rs")
        || path.ends_with("/testing.rs")
        || path.starts_with("crates/testkit/")
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "crates/link/src/tcp.rs";

    fn lines(content: &str) -> Vec<String> {
        check(FILE, content)
    }

    #[test]
    fn unwrap_is_for_tests_and_examples() {
        let code = "fn f() {\n    g().unwrap();\n}\n";
        let test = "#[cfg(test)]\nmod tests {\n    fn f() {\n        g().unwrap();\n    }\n}\n";
        assert_eq!(lines(code).len(), 1);
        assert_eq!(lines(test).len(), 0);
        assert_eq!(lines(&format!("{test}{code}")).len(), 1);
        assert_eq!(lines("/// g().unwrap();\n// g().unwrap();\n").len(), 0);
        assert_eq!(check("crates/link/tests/tcp.rs", code).len(), 0);
        assert_eq!(check("xtask/src/main.rs", code).len(), 0);
    }

    #[test]
    fn a_test_item_of_one_line_ends_at_its_semicolon() {
        let file = "#[cfg(test)]\nuse proptest as p;\nfn f() {\n    g().unwrap();\n}\n";
        assert_eq!(
            lines(file),
            [format!("{FILE}:4: `unwrap()` outside of tests, use `?` or `expect(\"why\")`")]
        );
    }

    #[test]
    fn unsafe_stays_in_the_kernels() {
        let code = "fn f() {\n    unsafe { g() }\n}\n";
        assert_eq!(lines(code).len(), 1);
        assert_eq!(check("crates/codec/src/kernel/avx2.rs", code).len(), 0);
        assert_eq!(lines("#![forbid(unsafe_code)]\n// unsafe\n").len(), 0);
    }

    #[test]
    fn strings_are_no_code() {
        assert_eq!(without_strings(r#"f("a \" b", 'c') // "d"#), r#"f("", 'c') // ""#);
        assert_eq!(lines("const TEXT: &str = \"unsafe { x.unwrap() }\";\n").len(), 0);
    }

    #[test]
    fn crate_roots_forbid_unsafe_code() {
        assert_eq!(check("crates/link/src/lib.rs", "//! Links.\n").len(), 1);
        let root = "//! Links.\n#![forbid(unsafe_code)]\n";
        assert_eq!(check("crates/link/src/lib.rs", root).len(), 0);
    }

    #[test]
    fn re_exports_are_explicit() {
        assert_eq!(lines("pub use header::*;\n").len(), 1);
        assert_eq!(lines("pub use header::{Header, Kind};\nuse super::*;\n").len(), 0);
    }
}

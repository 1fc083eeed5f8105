//! Shapes: what the parameters of functions and the lengths of files look like.
//!
//! A tuple hides what its values mean, and a bool what `true` does, where the function is called: a struct
//! with named fields, or an enum of two, says it. Functions of traits are checked where the trait is defined.

use anyhow::{Result, anyhow};
use proc_macro2::{Delimiter, Group, TokenStream, TokenTree};

use super::imports::{attribute, end_of_item, is_test, is_word};
use super::source::{is_test_file, source_of};

/// The package in Python: its parameters are keyword arguments.
const KEYWORD_ARGUMENTS: &str = "crates/py/";

/// Lines that a file has at least.
const LINES_MIN: usize = 40;
/// Sets that grow by a file each: one for an operator, an optimiser rule, a pipeline order, an algorithm of
/// a collective, a subcommand or a law of the fuzzer.
const OPEN_SETS: [&str; 8] = [
    "crates/cli/src/command/",
    "crates/model/src/operator/",
    "crates/onnx/src/operator/",
    "crates/outside/src/",
    "crates/program/src/pipeline/",
    "crates/schedule/src/",
    "crates/train/src/spmd/kernel/",
    "crates/update/src/",
];

/// Returns the complaints about one Rust file.
///
/// # Errors
/// Returns an error if the file is no sequence of Rust tokens.
pub fn check(path: &str, content: &str) -> Result<Vec<String>> {
    let is_checked = path.starts_with("crates/") && source_of(path).is_some();
    if !is_checked || is_test_file(path) {
        return Ok(Vec::new());
    }
    let mut complaints: Vec<String> = length(path, content).into_iter().collect();
    if path.starts_with(KEYWORD_ARGUMENTS) {
        return Ok(complaints);
    }
    let stream: TokenStream =
        content.parse().map_err(|error| anyhow!("{path} cannot be split into tokens: {error}"))?;
    let mut found = Vec::new();
    scan(stream, &mut found);
    let complain = |Shape { line, function, what }| {
        format!("{path}:{line}: {what} as parameter of {function}")
    };
    complaints.extend(found.into_iter().map(complain));
    Ok(complaints)
}

/// Returns the complaint about a file that is too short for a concept of its own.
fn length(path: &str, content: &str) -> Option<String> {
    let lines = content.lines().count();
    let name = path.rsplit('/').next().unwrap_or(path);
    let is_exempt = ["lib.rs", "main.rs", "mod.rs"].contains(&name)
        || OPEN_SETS.iter().any(|set| path.starts_with(set))
        || is_list_of_modules(content);
    (lines < LINES_MIN && !is_exempt)
        .then(|| format!("{path}: {lines} lines, expected at least {LINES_MIN}, or a part of the file that uses it"))
}

/// Returns whether a file only declares modules and re-exports their names.
fn is_list_of_modules(content: &str) -> bool {
    let mut items = super::source::code_lines(content).map(|(_, line)| line);
    items.all(|line| {
        let word = line.split_whitespace().find(|word| !word.starts_with("pub"));
        word.is_none_or(|word| ["mod", "use"].contains(&word) || line.starts_with([' ', '}', '#']))
    })
}

/// A parameter that a caller cannot read.
struct Shape {
    line: usize,
    function: String,
    what: &'static str,
}

/// Looks for functions in a sequence of tokens, and in the groups of it.
fn scan(stream: TokenStream, found: &mut Vec<Shape>) {
    let tokens: Vec<TokenTree> = stream.into_iter().collect();
    let mut at = 0;
    while at < tokens.len() {
        if attribute(&tokens, at).is_some_and(is_test) || is_implementation(&tokens[at..]) {
            at = end_of_item(&tokens, at);
            continue;
        }
        match &tokens[at] {
            TokenTree::Ident(word) if word == "fn" => {
                if let Some((name, parameters)) = signature(&tokens[at + 1..]) {
                    found.extend(shapes(&name, parameters));
                }
            }
            TokenTree::Group(group) => scan(group.stream(), found),
            _ => {}
        }
        at += 1;
    }
}

/// Returns whether the tokens begin with `impl Trait for Type {`, as opposed to `impl Type {`.
fn is_implementation(tokens: &[TokenTree]) -> bool {
    // `for<'a>` in a bound is part of a type.
    let implements = |pair: &[TokenTree]| is_word(&pair[0], "for") && pair[1].to_string() != "<";
    is_word(&tokens[0], "impl") && tokens[..end_of_item(tokens, 0)].windows(2).any(implements)
}

/// Returns name and parameters of the function whose `fn` stands before the tokens; none for `fn(…)` types.
fn signature(tokens: &[TokenTree]) -> Option<(String, &Group)> {
    let [TokenTree::Ident(name), rest @ ..] = tokens else { return None };
    let parameters = rest.iter().find_map(|token| match token {
        TokenTree::Group(group) if group.delimiter() == Delimiter::Parenthesis => Some(group),
        _ => None,
    })?;
    Some((name.to_string(), parameters))
}

fn shapes(function: &str, parameters: &Group) -> Vec<Shape> {
    let tokens: Vec<TokenTree> = parameters.stream().into_iter().collect();
    let is_colon = |token: &TokenTree| matches!(token, TokenTree::Punct(it) if it.as_char() == ':');
    let shape = |window: &[TokenTree]| {
        let what = match &window[2] {
            TokenTree::Group(it)
                if it.delimiter() == Delimiter::Parenthesis && !it.stream().is_empty() =>
            {
                "a tuple"
            }
            TokenTree::Ident(word) if word == "bool" => "a bool",
            _ => return None,
        };
        // The second colon of a path stands before no type.
        (is_colon(&window[1]) && !is_colon(&window[0])).then(|| Shape {
            line: window[1].span().start().line,
            function: function.to_owned(),
            what,
        })
    };
    tokens.windows(3).filter_map(shape).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complaints(code: &str) -> usize {
        let lines = "// line\n".repeat(LINES_MIN);
        check("crates/job/src/place.rs", &format!("{lines}{code}")).unwrap().len()
    }

    #[test]
    fn tuples_and_bools_are_no_parameters_but_in_implementations_and_tests() {
        assert_eq!(complaints("fn f(a: (u8, u8), b: u8, c: bool) {}"), 2);
        assert_eq!(complaints("impl A { pub fn f((a, b): (u8, u8)) {} }"), 1);
        assert_eq!(complaints("trait T { fn f(&self, of: bool); }"), 1);
        for fine in [
            "impl T for A { fn f(&self, of: bool) {} }",
            "fn f(a: &[(u8, u8)], b: Option<bool>, c: std::path::Path, d: impl Fn(bool)) -> bool {}",
            "#[cfg(test)] mod tests { fn f(a: bool) {} }",
            "struct A { a: (u8, u8), b: bool }",
        ] {
            assert_eq!(complaints(fine), 0, "{fine}");
        }
        assert!(
            check("crates/py/src/group.rs", &"fn f(a: bool) {}\n".repeat(40)).unwrap().is_empty()
        );
    }

    #[test]
    fn a_file_has_enough_lines_for_a_concept() {
        let of = |path: &str, content: &str| check(path, content).unwrap().len();
        let short = "//! Names.\n\nfn name() {}\n";
        assert_eq!(of("crates/job/src/names.rs", short), 1);
        assert_eq!(of("crates/job/src/lib.rs", short), 0);
        assert_eq!(of("crates/update/src/sgd.rs", short), 0);
        assert_eq!(
            of("crates/job/src/store.rs", "//! Stores.\n\nmod file;\n\npub use file::File;\n"),
            0
        );
    }
}

//! Imports of a Rust file: the names that its modules bring in and the paths that their code spells.
//!
//! A reader of tokens, not of syntax: paths inside of macro calls count, documentation does not.
//! Items under `#[cfg(test)]` are passed over.

use std::collections::BTreeSet;

use anyhow::{Result, anyhow};
use proc_macro2::{Delimiter, Group, TokenStream, TokenTree};

/// The segments of a path, such as `["crate", "error", "Error"]`.
pub type Path = Vec<String>;

/// A module's names and paths.
#[derive(Debug, Default)]
pub struct Module {
    /// The module's own path below the root of its crate.
    pub path: Path,
    /// Names that `use` brings in, each with the path that it stands for.
    pub uses: Vec<(String, Path)>,
    /// Names that `pub use` brings in.
    pub shown: BTreeSet<String>,
    /// Words of the code outside of imports.
    pub words: BTreeSet<String>,
    /// Paths of two or more segments in code.
    pub paths: Vec<Path>,
    /// Submodules that exist in tests alone.
    pub tests: Vec<String>,
}

/// Reads the module at `path` from its file, followed by the modules written inside of it.
///
/// # Errors
/// Returns an error if the file is no sequence of Rust tokens.
pub fn read(path: Path, content: &str) -> Result<Vec<Module>> {
    let stream =
        content.parse().map_err(|error| anyhow!("cannot be split into tokens: {error}"))?;
    let mut modules = Vec::new();
    module(path, stream, &mut modules);
    Ok(modules)
}

fn module(path: Path, stream: TokenStream, modules: &mut Vec<Module>) {
    let mut found = Module { path, ..Module::default() };
    let at = modules.len();
    scan(stream, &mut found, modules);
    modules.insert(at, found);
}

fn scan(stream: TokenStream, found: &mut Module, modules: &mut Vec<Module>) {
    let tokens: Vec<TokenTree> = stream.into_iter().collect();
    let mut at = 0;
    while at < tokens.len() {
        if let Some(attribute) = attribute(&tokens, at) {
            at += 2;
            if is_test(attribute) {
                at = skip_item(&tokens, at, found);
            }
            continue;
        }
        match &tokens[at] {
            TokenTree::Ident(word) if word == "mod" => at = submodule(&tokens, at, found, modules),
            TokenTree::Ident(word) if word == "use" => {
                let (end, known) = (end_of_use(&tokens, at), found.uses.len());
                import(&tokens[at + 1..end], &[], &mut found.uses);
                if is_public(&tokens[..at]) {
                    found.shown.extend(found.uses[known..].iter().map(|(name, _)| name.clone()));
                }
                at = end + 1;
            }
            TokenTree::Ident(_) => {
                let (path, end) = path_at(&tokens, at);
                found.words.extend(path.iter().cloned());
                // A path that follows `::` continues from a type in angle brackets.
                if path.len() > 1 && !(at >= 2 && is_separator(&tokens, at - 2)) {
                    found.paths.push(path);
                }
                at = end;
            }
            TokenTree::Group(group) => {
                scan(group.stream(), found, modules);
                at += 1;
            }
            _ => at += 1,
        }
    }
}

/// The brackets of the attribute that begins at `at`.
pub fn attribute(tokens: &[TokenTree], at: usize) -> Option<&Group> {
    match (&tokens[at], tokens.get(at + 1)?) {
        (TokenTree::Punct(hash), TokenTree::Group(group))
            if hash.as_char() == '#' && group.delimiter() == Delimiter::Bracket =>
        {
            Some(group)
        }
        _ => None,
    }
}

pub fn is_test(attribute: &Group) -> bool {
    attribute.stream().to_string().replace(' ', "").starts_with("cfg(test)")
}

/// The place after the item at `at`, whose name is noted if it is a module.
fn skip_item(tokens: &[TokenTree], at: usize, found: &mut Module) -> usize {
    let end = end_of_item(tokens, at);
    for pair in tokens[at..end].windows(2) {
        if is_word(&pair[0], "mod") {
            found.tests.push(pair[1].to_string());
        }
    }
    end
}

/// The place after the item at `at`.
pub fn end_of_item(tokens: &[TokenTree], at: usize) -> usize {
    let mut imports = false;
    let ends = |token: &TokenTree| {
        imports |= is_word(token, "use");
        match token {
            TokenTree::Punct(stop) => stop.as_char() == ';',
            // The braces of an import are followed by its semicolon.
            TokenTree::Group(group) => group.delimiter() == Delimiter::Brace && !imports,
            _ => false,
        }
    };
    tokens[at..].iter().position(ends).map_or(tokens.len(), |end| at + end + 1)
}

pub fn is_word(token: &TokenTree, word: &str) -> bool {
    matches!(token, TokenTree::Ident(found) if found == word)
}

/// Reads `mod name { .. }`; a module in a file of its own is read with that file.
fn submodule(tokens: &[TokenTree], at: usize, found: &Module, modules: &mut Vec<Module>) -> usize {
    if let (Some(TokenTree::Ident(name)), Some(TokenTree::Group(body))) =
        (tokens.get(at + 1), tokens.get(at + 2))
    {
        let path = found.path.iter().cloned().chain([name.to_string()]).collect();
        module(path, body.stream(), modules);
        return at + 3;
    }
    at + 1
}

/// Whether `before`, the tokens before an item, end with a visibility.
fn is_public(before: &[TokenTree]) -> bool {
    let mut visibility = before.iter().rev().skip_while(|t| matches!(t, TokenTree::Group(_)));
    matches!(visibility.next(), Some(TokenTree::Ident(word)) if word == "pub")
}

fn end_of_use(tokens: &[TokenTree], at: usize) -> usize {
    let is_end = |token: &TokenTree| matches!(token, TokenTree::Punct(p) if p.as_char() == ';');
    tokens[at..].iter().position(is_end).map_or(tokens.len(), |length| at + length)
}

/// Adds the names of one branch of an import, whose path so far is `prefix`.
fn import(tokens: &[TokenTree], prefix: &[String], uses: &mut Vec<(String, Path)>) {
    let (mut path, mut name) = (prefix.to_vec(), None);
    for token in tokens {
        match token {
            TokenTree::Ident(word) if word == "as" => name = Some(String::new()),
            TokenTree::Ident(word) if name.is_some() => name = Some(word.to_string()),
            TokenTree::Ident(word) if word == "self" && !path.is_empty() => {}
            TokenTree::Ident(word) => path.push(word.to_string()),
            TokenTree::Group(group) => {
                let branches: Vec<TokenTree> = group.stream().into_iter().collect();
                let is_comma =
                    |t: &TokenTree| matches!(t, TokenTree::Punct(p) if p.as_char() == ',');
                for branch in branches.split(is_comma) {
                    import(branch, &path, uses);
                }
                return;
            }
            _ => {}
        }
    }
    if path.len() > prefix.len() || tokens.iter().any(|token| token.to_string() == "self") {
        let last = path.last().cloned().unwrap_or_default();
        uses.push((name.unwrap_or(last), path));
    }
}

/// The segments that begin at `at`, and the place after them.
fn path_at(tokens: &[TokenTree], at: usize) -> (Path, usize) {
    let (mut path, mut end) = (vec![tokens[at].to_string()], at + 1);
    while is_separator(tokens, end) {
        let Some(TokenTree::Ident(segment)) = tokens.get(end + 2) else { break };
        path.push(segment.to_string());
        end += 3;
    }
    (path, end)
}

fn is_separator(tokens: &[TokenTree], at: usize) -> bool {
    let is_colon =
        |at: usize| matches!(tokens.get(at), Some(TokenTree::Punct(p)) if p.as_char() == ':');
    is_colon(at) && is_colon(at + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn only(content: &str) -> Module {
        read(vec![], content).unwrap().remove(0)
    }

    fn pair(name: &str, path: &str) -> (String, Path) {
        (name.to_owned(), path.split("::").map(str::to_owned).collect())
    }

    #[test]
    fn imports_are_taken_apart() {
        let module = only("use crate::{a::{self, B as C}, d}; pub use super::e::F;");
        let expected = [
            pair("a", "crate::a"),
            pair("C", "crate::a::B"),
            pair("d", "crate::d"),
            pair("F", "super::e::F"),
        ];
        assert_eq!(module.uses, expected);
        assert_eq!(module.shown, BTreeSet::from(["F".to_owned()]));
    }

    #[test]
    fn paths_in_code_and_macros_are_read_and_documentation_is_not() {
        let module = only("/// crate::no::no\nfn f() { vec![super::a::b::<u8>()]; <T>::c::d() }");
        assert_eq!(module.paths, [["super", "a", "b"]]);
    }

    #[test]
    fn tests_are_passed_over() {
        let module =
            only("#[cfg(test)] use super::{a, b}; #[cfg(test)] mod tests; fn f() { c::d() }");
        assert_eq!(module.uses, []);
        assert_eq!(module.tests, ["tests"]);
        assert_eq!(module.paths, [["c", "d"]]);
    }

    #[test]
    fn a_module_in_its_parents_file_is_a_module() {
        let modules = read(vec!["a".to_owned()], "mod b { use super::C; } fn f() {}").unwrap();
        assert_eq!(modules[1].path, ["a", "b"]);
        assert_eq!(modules[1].uses, [pair("C", "super::C")]);
    }
}

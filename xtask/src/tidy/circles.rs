//! Circles: files of a crate that need each other.
//!
//! An edge goes from the file that uses a name to the file that defines it; re-exports are followed,
//! so `use crate::Error` is an edge to `error.rs` and not to `lib.rs`. Declaring a module is no edge,
//! nor is re-exporting a name that the file itself does not use. Files of one circle can only be understood together:
//! a strongly connected component of the graph has at most two of them.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result};

use super::imports::{self, Module, Path};

/// The number of files from which a circle is shown.
pub const FILES_SHOWN: usize = 3;

/// The most files that a circle may have.
pub const FILES_MAX: usize = 2;

/// Imports that are followed at most from a name to the file that defines it.
const REDIRECTS_MAX: usize = 16;

/// The uses of one file by another: for each target the names that are used.
type Edges = BTreeMap<usize, BTreeSet<String>>;

/// The files of one crate and which of them uses which.
#[derive(Debug)]
pub struct Graph {
    files: Vec<String>,
    edges: Vec<Edges>,
}

/// A file's modules by their paths, each with the index of the file.
type Modules = BTreeMap<Path, (usize, Module)>;

/// Target of a path.
enum Target {
    Module(Path),
    Item(Path, String),
}

impl Graph {
    /// Reads the graph of one crate from its sources: pairs of a path below `src/` and the content.
    ///
    /// # Errors
    /// Returns an error if a file is no sequence of Rust tokens.
    pub fn read(sources: &[(String, String)]) -> Result<Graph> {
        let mut modules = Modules::new();
        for (file, (name, content)) in sources.iter().enumerate() {
            let read = imports::read(module_path(name), content).with_context(|| name.clone())?;
            modules.extend(read.into_iter().map(|module| (module.path.clone(), (file, module))));
        }
        let tests: Vec<Path> =
            modules.values().flat_map(|(_, module)| test_paths(module)).collect();
        modules.retain(|path, _| !tests.iter().any(|test| path.starts_with(test)));

        let mut edges = vec![Edges::new(); sources.len()];
        for (file, module) in modules.values() {
            for path in used(module).chain(&module.paths) {
                if let Some(Target::Item(target, name)) = resolve(&modules, &module.path, path, 0) {
                    let target = modules[&target].0;
                    if target != *file {
                        edges[*file].entry(target).or_default().insert(name);
                    }
                }
            }
        }
        Ok(Graph { files: sources.iter().map(|(name, _)| name.clone()).collect(), edges })
    }

    /// Returns the circles of at least [`FILES_SHOWN`] files, largest first.
    pub fn circles(&self) -> Vec<Vec<usize>> {
        let mut circles = components(&self.edges);
        circles.retain(|circle| circle.len() >= FILES_SHOWN);
        circles.sort_by_key(|circle| std::cmp::Reverse(circle.len()));
        circles
    }

    /// Describes `circle`: the files, then edges without which no circle this large would be left.
    pub fn describe(&self, circle: &[usize]) -> String {
        let names: Vec<&str> = circle.iter().map(|&file| self.files[file].as_str()).collect();
        let mut text = format!("{} files: {}\n", circle.len(), names.join(" "));
        for (from, to) in self.cuts(circle) {
            let uses: Vec<&str> = self.edges[from][&to].iter().map(String::as_str).collect();
            let (from, to) = (&self.files[from], &self.files[to]);
            text += &format!("    {from} -> {to} for {}\n", uses.join(", "));
        }
        text
    }

    /// Edges of `circle` to remove until nothing of [`FILES_SHOWN`] files is left, each time the one
    /// that leaves the smallest circle, then the one of the fewest names.
    fn cuts(&self, circle: &[usize]) -> Vec<(usize, usize)> {
        let mut left = vec![Edges::new(); self.edges.len()];
        for &from in circle {
            left[from] = self.edges[from].clone();
            left[from].retain(|to, _| circle.contains(to));
        }
        let mut cuts = Vec::new();
        while largest(&left) >= FILES_SHOWN {
            let edges: Vec<(usize, usize)> = left
                .iter()
                .enumerate()
                .flat_map(|(from, edges)| edges.keys().map(move |&to| (from, to)))
                .collect();
            let cost = |&(from, to): &(usize, usize)| {
                let mut without = left.clone();
                let names = without[from].remove(&to).map_or(0, |names| names.len());
                (largest(&without), names)
            };
            let Some((from, to)) = edges.into_iter().min_by_key(cost) else { break };
            left[from].remove(&to);
            cuts.push((from, to));
        }
        cuts
    }
}

/// The module that a file holds, from its path below `src/`.
fn module_path(name: &str) -> Path {
    let stem = name.strip_suffix(".rs").unwrap_or(name);
    let mut path: Path = stem.split('/').map(str::to_owned).collect();
    let is_root = path.len() == 1 && ["lib", "main"].contains(&path[0].as_str());
    if is_root || path.last().is_some_and(|last| last == "mod") {
        path.pop();
    }
    path
}

fn test_paths(module: &Module) -> impl Iterator<Item = Path> {
    let below = |name: &String| module.path.iter().cloned().chain([name.clone()]).collect();
    module.tests.iter().map(below)
}

/// The paths of the imports that the module itself needs.
fn used(module: &Module) -> impl Iterator<Item = &Path> {
    let is_needed = |name: &String| !module.shown.contains(name) || module.words.contains(name);
    module.uses.iter().filter(move |(name, _)| is_needed(name)).map(|(_, path)| path)
}

/// Follows `path`, spelled in the module `from`, to the module that defines its item.
fn resolve(modules: &Modules, from: &Path, path: &Path, redirects: usize) -> Option<Target> {
    if redirects > REDIRECTS_MAX {
        return None;
    }
    let (mut at, mut relative) = (from.clone(), true);
    for (index, segment) in path.iter().enumerate() {
        match segment.as_str() {
            "crate" => at.clear(),
            "self" => {}
            "super" => drop(at.pop()),
            name => {
                let relative = relative && index == 0;
                let child: Path = at.iter().cloned().chain([name.to_owned()]).collect();
                if modules.contains_key(&child) {
                    at = child;
                    continue;
                }
                let (_, module) = modules.get(&at)?;
                let Some((_, target)) = module.uses.iter().find(|(used, _)| used == name) else {
                    // Unknown at the start of a path: another crate, the prelude, a local type.
                    return (!relative).then(|| Target::Item(at, name.to_owned()));
                };
                match resolve(modules, &at, target, redirects + 1)? {
                    Target::Module(module) => at = module,
                    item => return Some(item),
                }
                continue;
            }
        }
        relative = false;
    }
    Some(Target::Module(at))
}

fn largest(edges: &[Edges]) -> usize {
    components(edges).iter().map(Vec::len).max().unwrap_or(0)
}

/// The strongly connected components, by the files that each file reaches.
fn components(edges: &[Edges]) -> Vec<Vec<usize>> {
    let reached: Vec<BTreeSet<usize>> = (0..edges.len()).map(|file| reach(edges, file)).collect();
    let mut seen = BTreeSet::new();
    let mut components = Vec::new();
    for file in 0..edges.len() {
        if seen.contains(&file) {
            continue;
        }
        let back = |other: &usize| *other == file || reached[*other].contains(&file);
        let component: Vec<usize> = reached[file]
            .iter()
            .copied()
            .chain([file])
            .filter(back)
            .collect::<BTreeSet<_>>()
            .into_iter()
            .collect();
        seen.extend(component.iter().copied());
        components.push(component);
    }
    components
}

fn reach(edges: &[Edges], start: usize) -> BTreeSet<usize> {
    let (mut reached, mut open) = (BTreeSet::new(), vec![start]);
    while let Some(file) = open.pop() {
        open.extend(edges[file].keys().filter(|&&target| reached.insert(target)));
    }
    reached
}

#[cfg(test)]
mod tests {
    use super::*;

    fn graph(sources: &[(&str, &str)]) -> Graph {
        let owned: Vec<_> = sources.iter().map(|(n, c)| (n.to_string(), c.to_string())).collect();
        Graph::read(&owned).unwrap()
    }

    fn edges(graph: &Graph) -> Vec<String> {
        let name = |file: usize| graph.files[file].trim_end_matches(".rs");
        let pairs = graph.edges.iter().enumerate().flat_map(|(from, edges)| {
            edges.keys().map(move |&to| format!("{} -> {}", name(from), name(to)))
        });
        pairs.collect()
    }

    #[test]
    fn a_name_is_followed_to_the_file_that_defines_it() {
        let found = graph(&[
            ("lib.rs", "mod a; mod error; pub use error::Error; pub const LIMIT: u8 = 1;"),
            ("error.rs", "pub enum Error {}"),
            ("a/mod.rs", "mod b; use crate::Error as E;"),
            ("a/b.rs", "use super::E; fn f() { crate::LIMIT; }"),
        ]);
        assert_eq!(edges(&found), ["a/mod -> error", "a/b -> lib", "a/b -> error"]);
    }

    #[test]
    fn a_path_through_an_imported_module_leads_to_its_item() {
        let found = graph(&[
            ("lib.rs", "mod a; mod b;"),
            ("a.rs", "use crate::b; fn f() { b::c::g(); b::h(); std::mem::drop(1) }"),
            ("b.rs", "pub mod c; pub fn h() {}"),
            ("b/c.rs", "pub fn g() {}"),
        ]);
        assert_eq!(edges(&found), ["a -> b", "a -> b/c"]);
    }

    #[test]
    fn tests_make_no_edges() {
        let found = graph(&[
            ("lib.rs", "#[cfg(test)] mod laws; mod a; pub fn f() {}"),
            ("laws.rs", "use crate::f;"),
            ("a.rs", "#[cfg(test)] mod tests { use crate::f; }"),
        ]);
        assert_eq!(edges(&found), [""; 0]);
    }

    #[test]
    fn a_circle_is_shown_with_the_edge_that_closes_it() {
        let sources = [
            ("lib.rs", "mod a; mod b; mod c; mod d;"),
            ("a.rs", "use crate::b::B; pub struct A;"),
            ("b.rs", "use crate::c::{C, D}; pub struct B;"),
            ("c.rs", "use crate::d::{E, F}; pub struct C; pub struct D;"),
            ("d.rs", "use crate::a::{A, G}; use crate::a::H;"),
        ];
        let found = graph(&sources);
        let circles = found.circles();
        assert_eq!(circles, [[1, 2, 3, 4]]);
        let shown = "4 files: a.rs b.rs c.rs d.rs\n    a.rs -> b.rs for B\n";
        assert_eq!(found.describe(&circles[0]), shown);
        assert_eq!(graph(&sources[..4]).circles().len(), 0);
    }
}

//! Public items of the crate, read from the sources of the crates that they are defined in.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use quote::ToTokens;
use syn::{Attribute, Fields, ImplItem, Item, TraitItem, Type, UseTree, Visibility};

/// Everything that is public.
#[derive(Default)]
pub struct Listing {
    /// A line per item, field and function, in order.
    pub lines: Vec<String>,
    /// The last segments of all paths.
    pub names: BTreeSet<String>,
    /// The types of fields and signatures, each with a line that has it.
    pub types: BTreeMap<String, String>,
    /// The first names of links in documentation, each with the item that has it.
    pub links: BTreeMap<String, String>,
}

/// The items of one module.
struct Module {
    crate_name: String,
    path: Vec<String>,
    items: Vec<Item>,
}

/// Lists the items that the crate `thinwire` in the folder of all crates re-exports.
pub fn list(crates: &Path) -> Listing {
    let mut modules = Vec::new();
    for name in ["wire", "codec", "schedule", "link", "collective", "job", "sync", "thinwire"] {
        let root = crates.join(name).join("src/lib.rs");
        let crate_name = if name == "thinwire" { name.into() } else { format!("thinwire_{name}") };
        read(&mut modules, &crate_name, Vec::new(), (parse(&root), root.with_file_name("")));
    }
    let mut walk = Walk { modules, listing: Listing::default() };
    walk.module("thinwire", &[], "");
    walk.listing.lines.sort();
    walk.listing
}

fn parse(path: &Path) -> Vec<Item> {
    let text = fs::read_to_string(path).unwrap_or_else(|error| panic!("{path:?}: {error}"));
    syn::parse_file(&text).unwrap().items
}

/// Reads a module and those within it, whose files are in `folder`.
fn read(
    all: &mut Vec<Module>,
    crate_name: &str,
    path: Vec<String>,
    (items, folder): (Vec<Item>, PathBuf),
) {
    for item in &items {
        let Item::Mod(inner) = item else { continue };
        if is_test(&inner.attrs) {
            continue;
        }
        let name = inner.ident.to_string();
        let file = folder.join(&name).with_extension("rs");
        let within = match &inner.content {
            Some((_, items)) => items.clone(),
            None if file.exists() => parse(&file),
            None => parse(&folder.join(&name).join("mod.rs")),
        };
        let path = path.iter().cloned().chain([name.clone()]).collect();
        read(all, crate_name, path, (within, folder.join(&name)));
    }
    all.push(Module { crate_name: crate_name.to_owned(), path, items });
}

fn is_test(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| attribute.to_token_stream().to_string().contains("(test)"))
}

fn is_hidden(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| attribute.to_token_stream().to_string().contains("(hidden)"))
}

struct Walk {
    modules: Vec<Module>,
    listing: Listing,
}

impl Walk {
    fn find(&self, crate_name: &str, path: &[String]) -> Option<&Module> {
        self.modules.iter().find(|module| module.crate_name == crate_name && module.path == path)
    }

    /// Lists all that is public in a module, under the prefix that users write.
    fn module(&mut self, crate_name: &str, path: &[String], prefix: &str) {
        let module = self.find(crate_name, path).unwrap_or_else(|| panic!("{crate_name} {path:?}"));
        let mut uses = Vec::new();
        let mut own = Vec::new();
        for item in &module.items {
            match item {
                Item::Use(it) if is_public(&it.vis) && !is_hidden(&it.attrs) => {
                    targets(&it.tree, &mut Vec::new(), &mut uses);
                }
                Item::Use(_) => {}
                other => own.extend(public_name(other)),
            }
        }
        for name in own {
            let target: Vec<_> = path.iter().cloned().chain([name.clone()]).collect();
            self.item(crate_name, &target, &format!("{prefix}{name}"));
        }
        for (target, name) in uses {
            let (crate_name, target) = absolute(crate_name, path, target);
            self.item(&crate_name, &target, &format!("{prefix}{name}"));
        }
    }

    /// Lists the item at a path, which may itself be a re-export.
    fn item(&mut self, crate_name: &str, path: &[String], shown: &str) {
        let (name, within) = path.split_last().expect("a path has a name");
        self.listing.names.insert(shown.rsplit("::").next().unwrap_or(shown).to_owned());
        if self.find(crate_name, path).is_some() {
            self.listing.lines.push(format!("{shown}: pub mod"));
            return self.module(crate_name, path, &format!("{shown}::"));
        }
        let Some(module) = self.find(crate_name, within) else {
            return self.listing.lines.push(format!("{shown}: {crate_name}::{}", path.join("::")));
        };
        let mut uses = Vec::new();
        for item in &module.items {
            if let Item::Use(it) = item {
                targets(&it.tree, &mut Vec::new(), &mut uses);
            }
        }
        let found: Vec<Item> = module
            .items
            .iter()
            .filter(|item| public_name(item).is_some_and(|found| found == *name))
            .cloned()
            .collect();
        for item in &found {
            self.describe(item, shown);
            self.implementations(crate_name, name, shown);
        }
        let target = uses.into_iter().find(|(_, used)| used == name);
        if let (true, Some((target, _))) = (found.is_empty(), target) {
            let (crate_name, target) = absolute(crate_name, within, target);
            self.item(&crate_name, &target, shown);
        }
    }

    fn line(&mut self, shown: &str, what: &impl ToTokens) {
        let text = tidy(&what.to_token_stream().to_string());
        self.listing.lines.push(format!("{shown}: {text}"));
    }

    fn describe(&mut self, item: &Item, shown: &str) {
        let mut item = item.clone();
        match &mut item {
            Item::Struct(it) => {
                self.documented(&it.attrs, shown);
                self.fields(&mut it.fields);
                keep_derives(&mut it.attrs);
            }
            Item::Enum(it) => {
                self.documented(&it.attrs, shown);
                for variant in &mut it.variants {
                    self.documented(&variant.attrs, shown);
                    variant.attrs.clear();
                    for field in &mut variant.fields {
                        field.attrs.clear();
                        self.mention(&field.ty, shown);
                    }
                }
                keep_derives(&mut it.attrs);
            }
            Item::Trait(it) => {
                self.documented(&it.attrs, shown);
                it.attrs.clear();
                for inner in &mut it.items {
                    if let TraitItem::Fn(function) = inner {
                        self.documented(&function.attrs, shown);
                        function.attrs.clear();
                        function.default = None;
                        self.signature(&function.sig, shown);
                    }
                }
            }
            Item::Fn(it) => {
                self.documented(&it.attrs, shown);
                self.signature(&it.sig, shown);
                return self.line(shown, &it.sig);
            }
            Item::Const(it) => {
                self.documented(&it.attrs, shown);
                let ty = &it.ty;
                return self.line(shown, &quote::quote!(pub const #ty));
            }
            Item::Type(it) => {
                self.documented(&it.attrs, shown);
                it.attrs.clear();
            }
            _ => {}
        }
        self.line(shown, &item);
    }

    fn fields(&mut self, fields: &mut Fields) {
        for field in fields.iter_mut() {
            self.documented(&field.attrs, "a field");
            field.attrs.clear();
        }
        let is_shown = |field: &&syn::Field| is_public(&field.vis);
        for field in fields.iter().filter(is_shown) {
            let line = field.to_token_stream().to_string();
            self.mention(&field.ty, &tidy(&line));
        }
        if let Fields::Named(named) = fields {
            named.named = named.named.iter().filter(is_shown).cloned().collect();
        }
    }

    fn signature(&mut self, signature: &syn::Signature, shown: &str) {
        let line = format!("{shown}: {}", tidy(&signature.to_token_stream().to_string()));
        let generics: Vec<String> =
            signature.generics.type_params().map(|it| it.ident.to_string()).collect();
        for input in &signature.inputs {
            if let syn::FnArg::Typed(input) = input {
                self.mention_but(&input.ty, &line, &generics);
            }
        }
        if let syn::ReturnType::Type(_, output) = &signature.output {
            self.mention_but(output, &line, &generics);
        }
    }

    fn mention(&mut self, ty: &Type, line: &str) {
        self.mention_but(ty, line, &[]);
    }

    /// Notes the types that a type is made of.
    fn mention_but(&mut self, ty: &Type, line: &str, generics: &[String]) {
        let text = ty.to_token_stream().to_string();
        let words = text.split(|c: char| !c.is_alphanumeric() && c != '_');
        let types = words.filter(|word| word.starts_with(char::is_uppercase));
        for word in types.filter(|word| !generics.iter().any(|name| name == word)) {
            self.listing.types.entry(word.to_owned()).or_insert_with(|| line.to_owned());
        }
    }

    /// Notes the links in documentation: [`Name`], [`Name::function`].
    fn documented(&mut self, attributes: &[Attribute], shown: &str) {
        for attribute in attributes {
            let syn::Meta::NameValue(pair) = &attribute.meta else { continue };
            let text = pair.value.to_token_stream().to_string();
            for link in text.split("[`").skip(1).filter_map(|rest| rest.split_once("`]")) {
                let (label, rest) = link;
                let target = rest.strip_prefix('(').and_then(|rest| rest.split(')').next());
                let path = target.unwrap_or(label).trim_matches('`');
                let is_crate = |part: &&str| {
                    ["crate", "super", "self"].contains(part) || part.starts_with("thinwire_")
                };
                let first = path.split("::").find(|part| !is_crate(part)).unwrap_or(path);
                let first = first.trim_end_matches("()");
                self.listing.links.entry(first.to_owned()).or_insert_with(|| shown.to_owned());
            }
        }
    }

    /// Lists the functions and the traits of a type, wherever its crate implements them.
    fn implementations(&mut self, crate_name: &str, name: &str, shown: &str) {
        let modules = self.modules.iter().filter(|module| module.crate_name == crate_name);
        let all = modules.flat_map(|module| &module.items);
        let blocks: Vec<syn::ItemImpl> = all
            .filter_map(|item| match item {
                Item::Impl(block) if self_name(&block.self_ty) == name => Some(block.clone()),
                _ => None,
            })
            .collect();
        for block in blocks {
            if let Some((_, path, _)) = &block.trait_ {
                self.line(shown, &quote::quote!(impl #path));
                continue;
            }
            for inner in block.items {
                match inner {
                    ImplItem::Fn(function)
                        if is_public(&function.vis) && !is_hidden(&function.attrs) =>
                    {
                        let shown = format!("{shown}::{}", function.sig.ident);
                        self.documented(&function.attrs, &shown);
                        self.signature(&function.sig, &shown);
                        self.line(&shown, &function.sig);
                    }
                    ImplItem::Const(it) if is_public(&it.vis) => {
                        let ty = &it.ty;
                        self.line(&format!("{shown}::{}", it.ident), &quote::quote!(pub const #ty));
                    }
                    _ => {}
                }
            }
        }
    }
}

fn is_public(visibility: &Visibility) -> bool {
    matches!(visibility, Visibility::Public(_))
}

fn self_name(ty: &Type) -> String {
    match ty {
        Type::Path(path) => path.path.segments.last().map(|it| it.ident.to_string()),
        _ => None,
    }
    .unwrap_or_default()
}

/// The name of an item that is public and shown.
fn public_name(item: &Item) -> Option<String> {
    let (visibility, attributes, name) = match item {
        Item::Struct(it) => (&it.vis, &it.attrs, &it.ident),
        Item::Enum(it) => (&it.vis, &it.attrs, &it.ident),
        Item::Trait(it) => (&it.vis, &it.attrs, &it.ident),
        Item::Fn(it) => (&it.vis, &it.attrs, &it.sig.ident),
        Item::Const(it) => (&it.vis, &it.attrs, &it.ident),
        Item::Type(it) => (&it.vis, &it.attrs, &it.ident),
        Item::Mod(it) => (&it.vis, &it.attrs, &it.ident),
        _ => return None,
    };
    (is_public(visibility) && !is_hidden(attributes)).then(|| name.to_string())
}

/// The paths that a tree brings into scope, each with its name there.
fn targets(tree: &UseTree, path: &mut Vec<String>, all: &mut Vec<(Vec<String>, String)>) {
    let mut add = |name: String, used: String, path: &[String]| {
        all.push((path.iter().cloned().chain([name]).collect(), used));
    };
    match tree {
        UseTree::Path(it) => {
            path.push(it.ident.to_string());
            targets(&it.tree, path, all);
            path.pop();
        }
        UseTree::Name(it) => add(it.ident.to_string(), it.ident.to_string(), path),
        UseTree::Rename(it) => add(it.ident.to_string(), it.rename.to_string(), path),
        UseTree::Group(it) => it.items.iter().for_each(|tree| targets(tree, path, all)),
        UseTree::Glob(_) => {}
    }
}

/// The crate and the path in it that a path within a module means.
fn absolute(crate_name: &str, module: &[String], path: Vec<String>) -> (String, Vec<String>) {
    let (first, rest) = path.split_first().expect("a path has a name");
    let within = |depth: usize| module[..depth].iter().chain(rest).cloned().collect();
    match first.as_str() {
        "crate" => (crate_name.to_owned(), rest.to_vec()),
        "self" => (crate_name.to_owned(), within(module.len())),
        "super" => (crate_name.to_owned(), within(module.len() - 1)),
        other if other.starts_with("thinwire") || ["half", "std"].contains(&other) => {
            (other.to_owned(), rest.to_vec())
        }
        _ => (crate_name.to_owned(), module.iter().chain(&path).cloned().collect()),
    }
}

fn keep_derives(attributes: &mut Vec<Attribute>) {
    attributes.retain(|attribute| {
        ["derive", "non_exhaustive"].iter().any(|it| attribute.path().is_ident(it))
    });
}

/// The text of tokens with fewer spaces.
fn tidy(tokens: &str) -> String {
    let text = tokens.split_whitespace().collect::<Vec<_>>().join(" ");
    let closer = [
        (" :: ", "::"),
        (" ,", ","),
        ("& ", "&"),
        (" < ", "<"),
        (" >", ">"),
        (" (", "("),
        ("( ", "("),
        (" )", ")"),
        (" :", ":"),
        ("# [", "#["),
        ("[ ", "["),
        (" ]", "]"),
        ("' ", "'"),
        (" ;", ";"),
        ("- >", "->"),
        (" ?", "?"),
        ("? ", "?"),
        (" <", "<"),
    ];
    closer.iter().fold(text, |text, (from, to)| text.replace(from, to))
}

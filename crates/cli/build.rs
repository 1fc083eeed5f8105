//! Gathers the text that `thinwire train` learns from when nobody gives it any, this repository, and the version
//! that `thinwire --version` tells.

use std::path::{Path, PathBuf};
use std::{env, fs};

/// More than this takes longer to read than a short training can use.
const BYTES_MAX: usize = 800 << 10;

/// Features of the command, as variables that cargo sets.
const FEATURES: [&str; 3] = ["etcd", "s3", "tls"];

fn main() {
    let package = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    let root = package.join("../..");
    let folders = [root.join("docs"), root.join("crates"), package.join("src")];
    let folders = match root.join("crates").is_dir() {
        true => &folders[..2],
        false => &folders[2..],
    };
    let mut files = Vec::new();
    for folder in folders {
        println!("cargo::rerun-if-changed={}", folder.display());
        collect(folder, &mut files);
    }
    files.sort();
    let mut text = String::new();
    for file in files {
        let content = fs::read_to_string(&file).unwrap_or_default();
        if text.len() + content.len() <= BYTES_MAX {
            text += &content;
            text.push('\n');
        }
    }
    let output = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    fs::write(output.join("corpus.txt"), text).expect("the build folder is writable");
    println!("cargo::rustc-env=THINWIRE_VERSION={}", version(&root));
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            collect(&path, files);
        } else if path.extension().is_some_and(|name| name == "rs" || name == "md") {
            files.push(path);
        }
    }
}

/// Returns the version with commit and features.
fn version(root: &Path) -> String {
    println!("cargo::rerun-if-env-changed=THINWIRE_COMMIT");
    let given = env::var("THINWIRE_COMMIT").ok();
    // A build that is not for users does not ask for a commit, so that none compiles this crate anew.
    let is_debug = env::var("PROFILE").is_ok_and(|profile| profile == "debug");
    let found = match is_debug {
        true => Some("debug build".to_owned()),
        false => commit(&root.join(".git")).map(|commit| format!("commit {commit}")),
    };
    let commit = given.map(|commit| format!("commit {commit}")).or(found);
    let is_on = |feature: &&&str| {
        env::var_os(format!("CARGO_FEATURE_{}", feature.to_uppercase())).is_some()
    };
    let features: Vec<&str> = FEATURES.iter().filter(is_on).copied().collect();
    let features = match features.is_empty() {
        true => "no features".to_owned(),
        false => format!("features {}", features.join(" ")),
    };
    let about: Vec<String> = commit.into_iter().chain([features]).collect();
    format!("{} ({})", env::var("CARGO_PKG_VERSION").expect("cargo sets it"), about.join(", "))
}

/// Returns the commit that is checked out, if this is a checkout, and lets cargo watch it.
fn commit(git: &Path) -> Option<String> {
    // In a linked working tree, .git is a file that names its folder, which names the one that has the refs.
    let folder = match fs::read_to_string(git) {
        Ok(text) => git.parent()?.join(text.strip_prefix("gitdir:")?.trim()),
        Err(_) => git.to_owned(),
    };
    let shared = fs::read_to_string(folder.join("commondir")).map(|text| folder.join(text.trim()));
    let shared = shared.unwrap_or_else(|_| folder.clone());
    let read = |path: PathBuf| {
        let text = fs::read_to_string(&path).ok()?;
        println!("cargo::rerun-if-changed={}", path.display());
        Some(text)
    };
    let head = read(folder.join("HEAD"))?;
    let id = match head.trim().strip_prefix("ref: ") {
        None => head.trim().to_owned(),
        Some(name) => read(shared.join(name)).or_else(|| {
            let packed = read(shared.join("packed-refs"))?;
            packed.lines().find_map(|line| Some(line.strip_suffix(name)?.to_owned()))
        })?,
    };
    id.get(..12).map(str::to_owned)
}

//! Gathers the text that `thinwire train` learns from when nobody gives it any: this repository.

use std::path::{Path, PathBuf};
use std::{env, fs};

/// More than this takes longer to read than a short training can use.
const BYTES_MAX: usize = 800 << 10;

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

//! The virtual environments with the pinned frameworks, built once per machine.
//!
//! There are two, since MindSpore and JAX want different versions of NumPy. They are gigabytes, so they lie in
//! the user's cache folder, each named after the hash of all that it is made from. An environment cannot be moved: it is made in its place, under a lock, and
//! the marker `complete` comes last; one without it is made again.

use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::interpreter::Interpreter;
use super::missing::Missing;
use crate::process::{as_by_hand, root};

/// Frameworks that live in one environment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frameworks {
    /// PyTorch and MindSpore, and the tools that build and check the package.
    Torch,
    /// JAX, Keras and TensorFlow.
    Jax,
}

impl Frameworks {
    /// Files in `python/tests` that the environment is made from: requirements, then the program that makes it.
    fn sources(self) -> &'static [&'static str] {
        match self {
            Frameworks::Torch => {
                &["requirements.txt", "environment/make.py", "environment/stand_ins.py"]
            }
            Frameworks::Jax => {
                &["requirements-jax.txt", "environment/make_jax.py", "environment/make.py"]
            }
        }
    }

    /// The beginning of the name of the environment's folder.
    fn folder(self) -> &'static str {
        match self {
            Frameworks::Torch => "python",
            Frameworks::Jax => "python-jax",
        }
    }
}

/// `make.py` ends with it where no registry answers.
const UNREACHABLE: i32 = 75;

/// A complete virtual environment.
#[derive(Debug)]
pub struct Environment {
    programs: PathBuf,
}

impl Environment {
    /// A program of the environment, run as if it were activated, at the repository's root.
    pub fn tool(&self, name: &str) -> Command {
        let mut command = as_by_hand(Command::new(self.programs.join(name)));
        let inherited = std::env::var_os("PATH").unwrap_or_default();
        let folders = [self.programs.clone()].into_iter().chain(std::env::split_paths(&inherited));
        let path = std::env::join_paths(folders).unwrap_or(inherited);
        command.current_dir(root()).env("PATH", path).env_remove("PYTHONHOME");
        command.env("PYTHONDONTWRITEBYTECODE", "1");
        command
    }

    /// The folder of the packages of the environment.
    pub fn site_packages(&self) -> Result<PathBuf> {
        let libraries = self.programs.with_file_name("lib");
        let found = fs::read_dir(&libraries)
            .with_context(|| format!("reading {}", libraries.display()))?
            .filter_map(|entry| Some(entry.ok()?.path().join("site-packages")))
            .find(|folder| folder.is_dir());
        found.with_context(|| format!("no packages in {}", libraries.display()))
    }

    /// Returns a folder for `PYTHONPATH` with the packages of a complete list of requirements, which are
    /// installed there if this machine does not have them.
    pub fn packages(&self, requirements: &Path) -> Result<PathBuf> {
        let content = fs::read(requirements)
            .with_context(|| format!("reading {}", requirements.display()))?;
        let mut hasher = DefaultHasher::new();
        (&self.programs, content).hash(&mut hasher);
        let name = format!("packages-{:016x}", hasher.finish());
        let cache = cache()?;
        let folder = cache.join(&name);
        let _alone = lock(&cache.join(name + ".lock"))?;
        if !folder.join("complete").is_file() {
            let mut pip = self.tool("python");
            pip.args(["-m", "pip", "install", "--quiet", "--no-deps", "--upgrade", "--target"]);
            // The list is complete and pinned, so nothing but the registry can be in the way.
            if !pip.arg(&folder).arg("-r").arg(requirements).status()?.success() {
                return Err(
                    Missing("the Python package registry cannot be reached".to_owned()).into()
                );
            }
            File::create(folder.join("complete")).context("marking the packages as complete")?;
        }
        Ok(folder)
    }
}

/// The environment of some frameworks for `python`, which is made if this machine does not have it.
pub fn ready(python: &Interpreter, frameworks: Frameworks) -> Result<Environment> {
    let sources = frameworks.sources();
    let name = format!("{}-{}-{:016x}", frameworks.folder(), python.version, key(python, sources)?);
    let cache = cache()?;
    let folder = cache.join(&name);
    let _alone = lock(&cache.join(name + ".lock"))?;
    if !folder.join("complete").is_file() {
        make(python, &tests().join(sources[1]), &folder)?;
    }
    Ok(Environment { programs: folder.join("bin") })
}

/// Waits until nobody else holds the lock; it is released with the file, whatever happens.
pub fn lock(path: &Path) -> Result<File> {
    let file = File::create(path).with_context(|| format!("creating {}", path.display()))?;
    if file.try_lock().is_err() {
        eprintln!("waiting for another run, which holds {}", path.display());
        file.lock().with_context(|| format!("locking {}", path.display()))?;
    }
    Ok(file)
}

fn make(python: &Interpreter, script: &Path, folder: &Path) -> Result<()> {
    let mut command = Command::new(&python.program);
    let status = command.arg(script).arg(folder).status().context("starting Python")?;
    match status.code() {
        Some(0) => Ok(()),
        Some(UNREACHABLE) => {
            Err(Missing("the Python package registry cannot be reached".to_owned()).into())
        }
        _ => bail!("making the Python environment in {} ended with {status}", folder.display()),
    }
}

/// Returns the folder of this user's caches, which is made if it is missing.
fn cache() -> Result<PathBuf> {
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let parent = set("XDG_CACHE_HOME").or_else(|| Some(set("HOME")?.join(".cache")));
    let folder = parent.context("neither XDG_CACHE_HOME nor HOME is set")?.join("thinwire");
    fs::create_dir_all(&folder).with_context(|| format!("creating {}", folder.display()))?;
    Ok(folder)
}

/// The hash of everything that an environment is made from.
fn key(python: &Interpreter, sources: &[&str]) -> Result<u64> {
    let mut hasher = DefaultHasher::new();
    python.identity.hash(&mut hasher);
    for source in sources {
        let path = tests().join(source);
        let content = fs::read(&path).with_context(|| format!("reading {}", path.display()))?;
        content.hash(&mut hasher);
    }
    Ok(hasher.finish())
}

fn tests() -> PathBuf {
    root().join("python/tests")
}

//! The package under test: the wheel that users get, unpacked into a folder of the build directory.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use super::environment::{Environment, lock};
use crate::process::{metadata, succeed};

/// A wheel and the folder in which it is installed, for nobody else as long as this lives.
#[derive(Debug)]
pub struct Package {
    /// The wheel.
    pub wheel: PathBuf,
    /// The folder for `PYTHONPATH`.
    pub site: PathBuf,
    _alone: File,
}

/// Builds the wheel with the profile of the other tests, and a simulated device, and installs it aside.
pub fn build(environment: &Environment) -> Result<Package> {
    let metadata = metadata()?;
    let target = metadata["target_directory"].as_str().context("cargo names no target folder")?;
    let folder = Path::new(target).join("python");
    fs::create_dir_all(&folder).with_context(|| format!("creating {}", folder.display()))?;
    let _alone = lock(&folder.join("lock"))?;
    let [wheels, site] = ["wheels", "site"].map(|name| folder.join(name));
    for old in [&wheels, &site].into_iter().filter(|old| old.exists()) {
        fs::remove_dir_all(old).with_context(|| format!("removing {}", old.display()))?;
    }
    let wheel = compile(environment, &wheels)?;
    install(environment, &wheel, &site)?;
    Ok(Package { wheel, site, _alone })
}

/// Puts the wheel into `folder` and returns its path.
fn compile(environment: &Environment, folder: &Path) -> Result<PathBuf> {
    let mut maturin = environment.tool("maturin");
    maturin.args(["build", "--quiet", "--locked", "--profile=dev", "--compatibility=linux"]);
    succeed(maturin.arg("--features=simulated").arg("--out").arg(folder))?;
    only_file(folder)
}

fn install(environment: &Environment, wheel: &Path, site: &Path) -> Result<()> {
    let mut python = environment.tool("python");
    python.args(["-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]);
    succeed(python.arg("--target").arg(site).arg(wheel))
}

fn only_file(folder: &Path) -> Result<PathBuf> {
    let found: Vec<PathBuf> =
        fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
    match <[PathBuf; 1]>::try_from(found) {
        Ok([file]) => Ok(file),
        Err(found) => bail!("{} files in {}, expected 1", found.len(), folder.display()),
    }
}

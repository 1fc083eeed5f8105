//! Where a whole checkpoint goes, among what lies there already.
//!
//! A folder `step-000123` may hold an earlier checkpoint, which is replaced, and files of the user,
//! which are nobody's to remove. Law: what is removed was written by a [`super::Draft`].

use std::fs;
use std::path::Path;
use std::time::Duration;

use thinwire_server::Location;

use super::bucket;
use super::names::{MANIFEST, MODEL, OPTIMIZER};
use crate::error::Error;

/// Age of a probe that no process waits for.
const PROBE: Duration = Duration::from_secs(60);
const PARTIAL: [&str; 2] = [".step-", ".partial"];

/// Gives a sealed checkpoint its name.
pub(super) fn place(sealed: &Path, target: &Path) -> Result<(), Error> {
    let replaced = |e| Error::io("replace", target, e);
    if target.is_dir() {
        // The manifest goes first and comes last: whoever looks meanwhile sees no checkpoint.
        let mut ours = names(target).map_err(replaced)?;
        ours.retain(|name| is_ours(name));
        ours.sort_by_key(|name| name != MANIFEST);
        ours.iter().try_for_each(|name| fs::remove_file(target.join(name))).map_err(replaced)?;
        if fs::remove_dir(target).is_err() {
            return fill(sealed, target);
        }
    }
    fs::rename(sealed, target).map_err(|e| Error::io("rename", sealed, e))
}

/// Brings all files to a folder that holds others.
fn fill(sealed: &Path, target: &Path) -> Result<(), Error> {
    let failed = |e| Error::io("write", target, e);
    let mut all = names(sealed).map_err(failed)?;
    all.sort_by_key(|name| name == MANIFEST);
    let bring = |name: &String| fs::rename(sealed.join(name), target.join(name));
    all.iter().try_for_each(bring).map_err(failed)?;
    fs::remove_dir(sealed).map_err(failed)
}

/// Whether a checkpoint has such a file.
pub(super) fn is_ours(name: &str) -> bool {
    let of_rank = |start: &str| {
        let number = name.strip_prefix(start).and_then(|rest| rest.strip_suffix(".safetensors"));
        number.is_some_and(|number| number.parse::<u32>().is_ok())
    };
    [MANIFEST, MODEL, OPTIMIZER].contains(&name) || of_rank("exchange-") || of_rank("shard-")
}

/// Removes the checkpoints in a place that were begun and not completed, where nobody writes now, and probes of
/// processes that were killed.
///
/// # Errors
/// If the folder or bucket cannot be read, or one cannot be removed.
pub fn clean(place: &Path) -> Result<(), Error> {
    match Location::from(place) {
        Location::Folder(folder) => clean_folder(&folder),
        place @ Location::Bucket(_) => bucket::clean(&*place.store()?),
    }
}

fn clean_folder(folder: &Path) -> Result<(), Error> {
    let failed = |e| Error::io("list", folder, e);
    for name in names(folder).map_err(failed)? {
        let step = name.strip_prefix(PARTIAL[0]).and_then(|rest| rest.strip_suffix(PARTIAL[1]));
        if step.is_some_and(|step| step.parse::<u64>().is_ok()) {
            let path = folder.join(&name);
            fs::remove_dir_all(&path).map_err(|e| Error::io("remove", &path, e))?;
        }
        if is_old_probe(&folder.join(&name)) {
            fs::remove_file(folder.join(&name)).map_err(failed)?;
        }
    }
    Ok(())
}

/// Returns whether a file only checked that its folder takes files, and was left by a process that was killed.
fn is_old_probe(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let token = name.strip_prefix(".probe-").unwrap_or_default();
    let age = || path.metadata().ok()?.modified().ok()?.elapsed().ok();
    let is_probe = token.len() >= 32 && token.bytes().all(|letter| letter.is_ascii_hexdigit());
    is_probe && age().is_some_and(|age| age > PROBE)
}

/// The names in a folder, those that are text.
fn names(folder: &Path) -> std::io::Result<Vec<String>> {
    let names = fs::read_dir(folder)?.map(|entry| Ok(entry?.file_name().into_string().ok()));
    names.filter_map(std::io::Result::transpose).collect()
}

//! Steps that all ranks take alike with the folder of checkpoints.
//!
//! A folder that ranks do not share would be noticed only at the first checkpoint, which by default
//! comes after the last step. Law: if ranks write to different folders, no step is taken.

use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context, Error, Result, anyhow};
use thinwire_checkpoint::Location;
use thinwire_collective::{Group, all_gather, all_gather_bytes};
use thinwire_train::checkpoint::{Draft, seal};
use thinwire_wire::Rank;

use super::folder::{FolderLock, is_away};
use super::rescue::Saved;
use super::settings::CheckpointPolicy;
use crate::failure::{echo, hinted, lost_rank};

/// What each rank does for a checkpoint.
const PART: &str = "write its part of the checkpoint";
/// What rank 0 does for it in the end.
const COMMIT: &str = "complete the checkpoint";

const HINT: &str = "--checkpoint-dir must be a folder that all ranks share, or none";

/// Makes sure that all ranks see what rank 0 writes to the folder; all ranks call this.
///
/// # Errors
/// If some rank does not, or a rank is lost.
pub fn check_folder(policy: Option<&CheckpointPolicy>, rank: u32, group: &mut Group) -> Result<()> {
    let Some(CheckpointPolicy { folder, .. }) = policy else { return Ok(()) };
    let store = Location::from(folder.as_path()).store()?;
    let name = format!(".probe-{}", thinwire_link::Token::random()?);
    let written = if rank == 0 { store.write("", &name, &[b"."]) } else { Ok(()) };
    let all = all_gather_bytes(group, name.as_bytes()).and_then(|names| {
        let first = names.first().map(|first| String::from_utf8_lossy(first).into_owned());
        let sees = store.length("", &first.unwrap_or_default()).is_ok();
        all_gather(group, &[f32::from(u8::from(sees))])
    });
    // Also where a rank was lost meanwhile.
    if rank == 0 {
        let _ = store.remove("", &name);
    }
    written.with_context(|| format!("cannot write checkpoints to {}", folder.display()))?;
    missed(folder, &all?)
}

/// Fails with the error of the first rank that has not seen the file.
fn missed(folder: &Path, all: &[f32]) -> Result<()> {
    let folder = folder.display();
    let message = match all.iter().position(|sees| *sees == 0.0) {
        None => return Ok(()),
        Some(0) => return Err(echo(format!("rank 0 cannot write checkpoints to {folder}"))),
        Some(rank) => format!("rank {rank} does not see in {folder} what rank 0 writes there"),
    };
    Err(hinted(anyhow!(message), HINT))
}

/// Writes the checkpoint of a step; all ranks call this. Returns its path on rank 0. What has been written of one that
/// cannot be completed is removed.
///
/// # Errors
/// If a rank cannot write its part, or is lost.
pub fn save(
    rank: &mut impl Saved,
    place: (&CheckpointPolicy, &FolderLock),
    step: u64,
) -> Result<Option<PathBuf>> {
    let draft = begin(rank, place, step)?;
    let written = write(rank, &draft, place.1, step);
    written.inspect_err(|error| place.1.note_failure(error)).map_err(|error| {
        match place.1.discard(draft) {
            // What could not be written is then only a consequence.
            Err(away) if is_away(&away) && lost_rank(&error).is_none() => away,
            _ => error,
        }
    })
}

fn write(
    rank: &mut impl Saved,
    draft: &Draft,
    lock: &FolderLock,
    step: u64,
) -> Result<Option<PathBuf>> {
    let written = rank.write(draft);
    let plan = all_done(written, PART, |mine| rank.gather(mine))?;
    if rank.world().rank() != Rank(0) {
        return all_done(Ok(None), COMMIT, |mine| rank.gather(mine));
    }
    // Writing takes long, and others may have gone on meanwhile.
    let sealed = rank.progress(plan).and_then(|progress| Ok(seal(draft, progress)?));
    let committed = sealed.and_then(|manifest| {
        lock.check()?;
        Ok(draft.publish(step, manifest)?.unwrap_or_default())
    });
    if let Ok(path) = &committed {
        lock.remember(path);
    }
    let _ = rank.gather(&[f32::from(u8::from(committed.is_ok()))]);
    // A checkpoint that is whole is one, whoever was lost since.
    committed.map(Some)
}

/// Returns the draft of a step's checkpoint, once rank 0 has begun it; all ranks call this.
///
/// # Errors
/// If rank 0 cannot begin it, its folder was moved, or a rank is lost.
fn begin(
    rank: &mut impl Saved,
    (policy, lock): (&CheckpointPolicy, &FolderLock),
    step: u64,
) -> Result<Draft> {
    let is_in_bucket = policy.is_in_bucket();
    let draft = match rank.world().rank() == Rank(0) {
        true => lock.check().and_then(|()| Ok(Draft::create(&policy.folder, step)?)),
        false => Draft::open(&policy.folder, step, "").map_err(Error::from),
    };
    let draft = all_done(draft, PART, |mine| rank.gather(mine))?;
    if !is_in_bucket {
        return Ok(draft);
    }
    // Of a draft in a bucket, rank 0 alone knows the name.
    let tokens = rank.gather_bytes(draft.token().as_bytes().to_vec())?;
    let token = tokens.first().map(|token| String::from_utf8_lossy(token).into_owned());
    Ok(Draft::open(&policy.folder, step, &token.unwrap_or_default())?)
}

/// Returns this rank's result of doing `what`, once all ranks have theirs; all ranks call this.
///
/// # Errors
/// If this rank or another one failed, or a rank is lost.
pub fn all_done<T>(
    mine: Result<T>,
    what: &str,
    mut gather: impl FnMut(&[f32]) -> Result<Vec<f32>>,
) -> Result<T> {
    let all = gather(&[f32::from(u8::from(mine.is_ok()))]);
    // A missing file only follows from the loss: rank 0 has given up the checkpoint and removed its folder.
    let removed = mine.as_ref().err().is_some_and(is_gone);
    let (mine, all) = match (mine, all) {
        (Err(_), Err(lost)) if removed => return Err(lost),
        (mine, all) => (mine?, all?),
    };
    match all.iter().position(|done| *done == 0.0) {
        None => Ok(mine),
        Some(rank) => Err(echo(format!("rank {rank} cannot {what}"))),
    }
}

/// Returns whether a folder or file was missing.
fn is_gone(error: &Error) -> bool {
    let io = error.chain().find_map(|cause| cause.downcast_ref::<io::Error>());
    io.is_some_and(|io| io.kind() == io::ErrorKind::NotFound)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use thinwire_train::checkpoint::Progress;
    use thinwire_wire::World;

    use super::*;

    #[test]
    fn the_first_rank_that_sees_nothing_is_named() {
        let folder = Path::new("there");
        assert!(missed(folder, &[1.0, 1.0]).is_ok());
        let error = missed(folder, &[1.0, 1.0, 0.0, 0.0]).unwrap_err();
        let (message, hint) = crate::failure::lines(&error);
        assert_eq!(message, "rank 2 does not see in there what rank 0 writes there");
        assert_eq!(hint.as_deref(), Some(HINT));
    }

    #[test]
    fn a_checkpoint_that_cannot_be_begun_is_begun_by_no_rank() {
        let taken = std::env::temp_dir().join(format!("thinwire-begin-{}", std::process::id()));
        fs::write(&taken, "a file").unwrap();
        let begin = |folder: &Path, rank| {
            let policy = CheckpointPolicy { folder: folder.to_owned(), every: None };
            let mut rank = Other { world: World::new(rank, 2).unwrap(), has: folder.is_dir() };
            begin(&mut rank, (&policy, &FolderLock::default()), 7)
        };
        assert!(begin(&taken, 0).unwrap_err().to_string().contains("cannot create"));
        assert!(crate::failure::is_echo(&begin(&taken, 1).unwrap_err()));
        assert!(begin(&std::env::temp_dir(), 1).is_ok());
        fs::remove_file(&taken).unwrap();
    }

    /// Rank beside another one that does as well as this one, unless it has no folder.
    struct Other {
        world: World,
        has: bool,
    }

    impl Saved for Other {
        fn world(&self) -> World {
            self.world
        }

        fn gather(&mut self, mine: &[f32]) -> Result<Vec<f32>> {
            Ok(vec![mine[0].min(f32::from(self.has)); 2])
        }

        fn gather_bytes(&mut self, mine: Vec<u8>) -> Result<Vec<Vec<u8>>> {
            Ok(vec![mine; 2])
        }

        fn write(&mut self, _draft: &Draft) -> Result<String> {
            Ok(String::new())
        }

        fn progress(&mut self, _plan: String) -> Result<Progress> {
            Err(anyhow!("no progress"))
        }
    }

    #[test]
    fn a_part_that_fails_fails_in_all_ranks() {
        let all = |flags: &'static [f32]| move |_: &[f32]| Ok(flags.to_vec());
        assert_eq!(all_done(Ok(7), PART, all(&[1.0, 1.0])).unwrap(), 7);
        let own = all_done::<()>(Err(anyhow!("disk full")), PART, all(&[1.0, 0.0])).unwrap_err();
        assert_eq!(own.to_string(), "disk full");
        let gone =
            || Err(Error::new(io::Error::from(io::ErrorKind::NotFound)).context("cannot write"));
        let lost = all_done::<()>(gone(), PART, |_| Err(anyhow!("lost rank 3"))).unwrap_err();
        assert_eq!(lost.to_string(), "lost rank 3");
        let own = all_done::<()>(gone(), PART, all(&[1.0, 0.0])).unwrap_err();
        assert_eq!(own.to_string(), "cannot write");
        let other = all_done(Ok(7), PART, all(&[1.0, 0.0])).unwrap_err();
        assert!(crate::failure::is_echo(&other));
        assert_eq!(other.to_string(), "rank 1 cannot write its part of the checkpoint");
    }
}

//! Steps that all ranks take together to save a checkpoint.
//!
//! Without [`check_folder`], ranks would notice only at the first checkpoint, by default after the last
//! step, that they do not share the folder. Law: if ranks write to different folders, no step is taken.

use std::path::{Path, PathBuf};

use thinwire_wire::{Rank, World};

use crate::draft::Draft;
use crate::error::{Error, Kind};
use crate::location::Location;
use crate::lock::{FolderLock, Policy};
use crate::manifest::{Manifest, Record, new_token};
use crate::sealed::Sealed;

/// Operation of each rank for a checkpoint, as errors name it.
const PART: &str = "write its part of the checkpoint";
/// Last operation of rank 0 for it, as errors name it.
const COMMIT: &str = "complete the checkpoint";

const HINT: &str = "--checkpoint-dir must be a folder that all ranks share, or none";

/// Rank whose state is saved in a checkpoint.
pub trait Saved {
    /// The record in the manifest.
    type Record: Record;

    /// Returns this rank among those that write the checkpoint.
    fn world(&self) -> World;

    /// Gathers the numbers of all ranks, in the order of ranks.
    ///
    /// # Errors
    /// If a rank is lost.
    fn gather(&mut self, mine: &[f32]) -> Result<Vec<f32>, Error>;

    /// Gathers the bytes of all ranks, in the order of ranks.
    ///
    /// # Errors
    /// If a rank is lost.
    fn gather_bytes(&mut self, mine: Vec<u8>) -> Result<Vec<Vec<u8>>, Error>;

    /// Writes this rank's files. Returns the plan of its exchange.
    ///
    /// # Errors
    /// If a file cannot be written.
    fn write(&mut self, draft: &Draft) -> Result<String, Error>;

    /// Returns the manifest of all ranks' files, on rank 0.
    ///
    /// # Errors
    /// If a file is missing, or the training cannot be recorded.
    fn seal(&mut self, draft: &Draft, plan: String) -> Result<Manifest<Self::Record>, Error>;
}

/// Checks that all ranks see what rank 0 writes to the folder; all ranks call this.
///
/// # Errors
/// If some rank does not see it, or a rank is lost.
pub fn check_folder(
    folder: &Path,
    rank: u32,
    mut gather: impl FnMut(Vec<u8>) -> Result<Vec<Vec<u8>>, Error>,
) -> Result<(), Error> {
    let store = Location::from(folder).store()?;
    let token = new_token()?;
    let name = format!(".probe-{token}");
    let written = if rank == 0 { store.write("", &name, &[b"."]) } else { Ok(()) };
    let all = gather(name.clone().into_bytes()).and_then(|names| {
        let first = names.first().map(|first| String::from_utf8_lossy(first).into_owned());
        let sees = store.length("", &first.unwrap_or_default());
        let sees = sees.is_ok_and(|length| length.is_some());
        gather(vec![u8::from(sees)])
    });
    // Also where a rank was lost meanwhile.
    if rank == 0 {
        let _ = store.remove("", &name);
    }
    let doing = format!("cannot write checkpoints to {}", folder.display());
    written.map_err(|error| error.context(&doing))?;
    missed(folder, &all?)
}

/// Returns the error of the first rank that has not seen the file, if there is one.
fn missed(folder: &Path, all: &[Vec<u8>]) -> Result<(), Error> {
    let folder = folder.display();
    match all.iter().position(|sees| sees[..] != [1]) {
        None => Ok(()),
        Some(0) => {
            let message = format!("rank 0 cannot write checkpoints to {folder}");
            Err(Error::new(Kind::Echo, message))
        }
        Some(rank) => {
            let message = format!("rank {rank} does not see in {folder} what rank 0 writes there");
            Err(Error::new(Kind::Invalid, message).with_hint(HINT))
        }
    }
}

/// Checks that ranks continue from the same checkpoint, or all from the start; all ranks call this.
///
/// # Errors
/// If ranks continue from different checkpoints, or a rank is lost.
pub fn check_origin<T: Record>(
    resumed: Option<&Sealed<T>>,
    gather: impl FnOnce(&[f32]) -> Result<Vec<f32>, Error>,
) -> Result<(), Error> {
    // Halves, since a number of 32 bits is none of f32.
    let halves = |sum: u32| [1.0, (sum >> 16) as f32, (sum & 0xffff) as f32];
    let mine = resumed.map_or([0.0; 3], |found| halves(found.crc32()));
    let all = gather(&mine)?;
    let (ranks, _) = all.as_chunks::<3>();
    let Some(rank) = ranks.iter().position(|other| *other != mine) else { return Ok(()) };
    let other = if ranks[rank][0] == 0.0 { "the beginning" } else { "another checkpoint" };
    let path = |found: &Sealed<T>| found.path("").display().to_string();
    let mine = resumed.map_or("the beginning".to_owned(), path);
    let message = format!("this rank continues from {mine}, but rank {rank} from {other}");
    Err(Error::new(Kind::Invalid, message).with_hint("give every rank the same --resume"))
}

/// Writes the checkpoint of a step; all ranks call this. Returns its path on rank 0. The files of a
/// checkpoint that cannot be completed are removed.
///
/// # Errors
/// If a rank cannot write its part, or is lost.
pub fn save(
    rank: &mut impl Saved,
    policy: &Policy,
    lock: &FolderLock,
    step: u64,
) -> Result<Option<PathBuf>, Error> {
    let draft = begin(rank, policy, lock, step)?;
    let written = write(rank, &draft, lock, step);
    written.inspect_err(|error| lock.note_failure(error)).map_err(|error| {
        match lock.discard(draft) {
            // What could not be written is then only a consequence.
            Err(away) if away.kind() == Kind::Away && error.kind() != Kind::Lost => away,
            _ => error,
        }
    })
}

fn write(
    rank: &mut impl Saved,
    draft: &Draft,
    lock: &FolderLock,
    step: u64,
) -> Result<Option<PathBuf>, Error> {
    let written = rank.write(draft);
    let plan = all_done(written, PART, |mine| rank.gather(mine))?;
    if rank.world().rank() != Rank(0) {
        return all_done(Ok(None), COMMIT, |mine| rank.gather(mine));
    }
    // Writing takes long, and others may have gone on meanwhile.
    let committed = rank.seal(draft, plan).and_then(|manifest| {
        lock.check()?;
        draft.publish(step, manifest)
    });
    if let Ok(Some(path)) = &committed {
        lock.remember(path);
    }
    let _ = rank.gather(&[f32::from(u8::from(committed.is_ok()))]);
    // A checkpoint that is whole is one, whoever was lost since.
    committed
}

/// Returns the draft of a step's checkpoint, once rank 0 has begun it; all ranks call this.
///
/// # Errors
/// If rank 0 cannot begin it, its folder was moved, or a rank is lost.
fn begin(
    rank: &mut impl Saved,
    policy: &Policy,
    lock: &FolderLock,
    step: u64,
) -> Result<Draft, Error> {
    let draft = match rank.world().rank() == Rank(0) {
        true => lock.check().and_then(|()| Draft::create(&policy.folder, step)),
        false => Draft::open(&policy.folder, step, ""),
    };
    let draft = all_done(draft, PART, |mine| rank.gather(mine))?;
    if !policy.is_in_bucket() {
        return Ok(draft);
    }
    // Of a draft in a bucket, rank 0 alone knows the name.
    let tokens = rank.gather_bytes(draft.token().as_bytes().to_vec())?;
    let token = tokens.first().map(|token| String::from_utf8_lossy(token).into_owned());
    Draft::open(&policy.folder, step, &token.unwrap_or_default())
}

/// Returns this rank's result of the operation `what`, once all ranks have finished the operation; all
/// ranks call this.
///
/// # Errors
/// If this rank or another one failed, or a rank is lost.
pub fn all_done<T>(
    mine: Result<T, Error>,
    what: &str,
    mut gather: impl FnMut(&[f32]) -> Result<Vec<f32>, Error>,
) -> Result<T, Error> {
    let all = gather(&[f32::from(u8::from(mine.is_ok()))]);
    // A missing file only follows from the loss: rank 0 has given up the checkpoint and removed its folder.
    let removed = mine.as_ref().err().is_some_and(Error::is_of_missing_file);
    let (mine, all) = match (mine, all) {
        (Err(_), Err(lost)) if removed => return Err(lost),
        (mine, all) => (mine?, all?),
    };
    match all.iter().position(|done| *done == 0.0) {
        None => Ok(mine),
        Some(rank) => Err(Error::new(Kind::Echo, format!("rank {rank} cannot {what}"))),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::testing::{Note, policy};

    #[test]
    fn the_first_rank_that_sees_nothing_is_named() {
        let folder = Path::new("there");
        let all = |sees: &[u8]| sees.iter().map(|it| vec![*it]).collect::<Vec<_>>();
        assert!(missed(folder, &all(&[1, 1])).is_ok());
        let error = missed(folder, &all(&[1, 1, 0, 0])).unwrap_err();
        assert_eq!(error.to_string(), "rank 2 does not see in there what rank 0 writes there");
        assert_eq!(thinwire_wire::Hint::hint(&error), Some(HINT));
    }

    #[test]
    fn a_checkpoint_that_cannot_be_begun_is_begun_by_no_rank() {
        let taken = std::env::temp_dir().join(format!("thinwire-begin-{}", std::process::id()));
        fs::write(&taken, "a file").unwrap();
        let begin = |folder: &Path, rank| {
            let mut rank = Other { world: World::new(rank, 2).unwrap(), has: folder.is_dir() };
            begin(&mut rank, &policy(folder), &FolderLock::default(), 7)
        };
        assert!(begin(&taken, 0).unwrap_err().to_string().contains("cannot create"));
        assert_eq!(begin(&taken, 1).unwrap_err().kind(), Kind::Echo);
        assert!(begin(&std::env::temp_dir(), 1).is_ok());
        fs::remove_file(&taken).unwrap();
    }

    /// Another rank that has the same results as this one, unless it has no folder.
    struct Other {
        world: World,
        has: bool,
    }

    impl Saved for Other {
        type Record = Note;

        fn world(&self) -> World {
            self.world
        }

        fn gather(&mut self, mine: &[f32]) -> Result<Vec<f32>, Error> {
            Ok(vec![mine[0].min(f32::from(self.has)); 2])
        }

        fn gather_bytes(&mut self, mine: Vec<u8>) -> Result<Vec<Vec<u8>>, Error> {
            Ok(vec![mine; 2])
        }

        fn write(&mut self, _draft: &Draft) -> Result<String, Error> {
            Ok(String::new())
        }

        fn seal(&mut self, _draft: &Draft, _plan: String) -> Result<Manifest<Note>, Error> {
            Err(Error::new(Kind::Failed, "no progress"))
        }
    }

    #[test]
    fn a_part_that_fails_fails_in_all_ranks() {
        let all = |flags: &'static [f32]| move |_: &[f32]| Ok(flags.to_vec());
        let full = || Err(Error::new(Kind::Io, "disk full"));
        assert_eq!(all_done(Ok(7), PART, all(&[1.0, 1.0])).unwrap(), 7);
        let own = all_done::<()>(full(), PART, all(&[1.0, 0.0])).unwrap_err();
        assert_eq!(own.to_string(), "disk full");
        let missing = || std::io::Error::from(std::io::ErrorKind::NotFound);
        let gone = || Err(Error::new(Kind::Failed, "cannot write").with_source(missing()));
        let lost = |_: &[f32]| Err(Error::new(Kind::Lost, "lost rank 3"));
        let error = all_done::<()>(gone(), PART, lost).unwrap_err();
        assert_eq!(error.to_string(), "lost rank 3");
        let own = all_done::<()>(gone(), PART, all(&[1.0, 0.0])).unwrap_err();
        assert_eq!(own.to_string(), "cannot write");
        let other = all_done(Ok(7), PART, all(&[1.0, 0.0])).unwrap_err();
        assert_eq!(other.kind(), Kind::Echo);
        assert_eq!(other.to_string(), "rank 1 cannot write its part of the checkpoint");
    }
}

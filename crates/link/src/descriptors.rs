//! Limit on the open files of this process, sockets among them.
//!
//! A process that runs out of descriptors accepts no connection, and its peers only see that it does
//! not answer. So code that is about to open many files reserves descriptors first. The soft limit is
//! raised as far as needed; if the hard limit is too low, an error reports that before anything is
//! opened.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::{Error, Kind};

/// Files that a process opens in addition to those that it reserves, such as pipes and files that it
/// reads.
const SPARE: u64 = 8;

/// The number of open files that is assumed where the operating system does not list them.
const OPEN_USUAL: u64 = 16;

/// Raises the limit so that `needed` more files can be opened. `user` names, in errors, the code that
/// needs them.
///
/// # Errors
/// [`Kind::Limit`] if the limit cannot be raised that far; it is then as high as it can be.
pub fn reserve(user: &str, needed: u64) -> Result<(), Error> {
    let (open, limit) = (open(), getrlimit(Resource::Nofile));
    let needed = needed.saturating_add(SPARE);
    let (raised, fits) = raised(&limit, needed.saturating_add(open));
    if raised != limit {
        setrlimit(Resource::Nofile, raised)
            .map_err(|error| Error::io("cannot raise the limit on open files", error.into()))?;
    }
    if fits {
        return Ok(());
    }
    let most = raised.current.unwrap_or(u64::MAX);
    let context = format!(
        "{user} needs {needed} open files in addition to the {open} that this process has, but at most {most} are allowed"
    );
    Err(Error::new(Kind::Limit, context))
}

/// Raises the limit so that up to `wanted` more files can be opened. Returns this number, or the smaller
/// one that the hard limit allows.
pub fn reserve_up_to(wanted: u64) -> u64 {
    // If they do not fit, the limit is now as high as it can be.
    let _ = reserve("a part of them", wanted);
    left(&getrlimit(Resource::Nofile), open()).min(wanted)
}

/// Returns the number of files that a process may still open.
fn left(limit: &Rlimit, open: u64) -> u64 {
    limit.current.map_or(u64::MAX, |current| current.saturating_sub(open + SPARE))
}

/// Returns the limits for `wanted` open files, or the highest possible ones, and whether they suffice.
fn raised(limit: &Rlimit, wanted: u64) -> (Rlimit, bool) {
    if limit.current.is_none_or(|current| wanted <= current) {
        return (*limit, true);
    }
    let most = limit.maximum.unwrap_or(u64::MAX);
    (Rlimit { current: Some(wanted.min(most)), maximum: limit.maximum }, wanted <= most)
}

/// Returns the number of files that this process has open.
fn open() -> u64 {
    std::fs::read_dir("/dev/fd").map_or(OPEN_USUAL, |files| files.count() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_soft_limit_is_raised_as_far_as_needed_and_the_hard_one_is_the_end() {
        let limit = |current, maximum| Rlimit { current, maximum };
        let soft = limit(Some(64), Some(1024));
        assert_eq!(raised(&soft, 64), (soft, true));
        assert_eq!(raised(&soft, 65), (limit(Some(65), Some(1024)), true));
        assert_eq!(raised(&soft, 1025), (limit(Some(1024), Some(1024)), false));
        assert_eq!(raised(&limit(Some(64), None), 4000), (limit(Some(4000), None), true));
        assert_eq!(raised(&limit(None, None), u64::MAX), (limit(None, None), true));
    }

    #[test]
    fn what_is_left_is_what_can_be_reserved() {
        for (current, open, expected) in [(64, 16, 64 - 16 - SPARE), (64, 64, 0), (8, 16, 0)] {
            let limit = Rlimit { current: Some(current), maximum: Some(current) };
            let found = left(&limit, open);
            assert_eq!(found, expected);
            assert_eq!(raised(&limit, found + SPARE + open).1, found > 0);
        }
        assert_eq!(left(&Rlimit { current: None, maximum: None }, 9), u64::MAX);
    }
}

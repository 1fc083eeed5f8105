//! Error messages of a job's ranks.
//!
//! A failed rank writes its error to a file named by the launcher, so that the job prints one error line and
//! not one per rank. Programs that do not use the file print their own errors.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Error, Result, anyhow};
use serde::{Deserialize, Serialize};
use thinwire_job::supervisor::End;

use crate::failure::{self, hinted};

/// The variable with the path of a rank's file.
pub const VARIABLE: &str = "THINWIRE_ERROR_FILE";

/// A private folder with a file per rank that failed. It is removed when dropped.
pub struct Errors {
    folder: PathBuf,
    word: &'static str,
}

impl Errors {
    /// Creates an empty folder. `word` is the word for a process in messages.
    ///
    /// # Errors
    /// If the temporary folder is not writable.
    pub fn create(word: &'static str) -> Result<Errors> {
        let name = format!("thinwire-{}", thinwire_link::Token::random()?);
        let folder = std::env::temp_dir().join(name);
        fs::create_dir(&folder).with_context(|| format!("creating {}", folder.display()))?;
        Ok(Errors { folder, word })
    }

    /// Returns the path of the file for a rank's error.
    pub fn path(&self, rank: u32) -> PathBuf {
        self.folder.join(format!("rank-{rank}"))
    }

    /// Returns the exit code of a job of `processes` processes that a signal has ended.
    ///
    /// # Errors
    /// If a process failed before it ended, for instance while writing the last checkpoint.
    pub fn interrupted(&self, signal: i32, processes: u32) -> Result<u8> {
        let failed = (0..processes).find(|process| self.said(*process).is_some_and(|it| !it.echo));
        match failed {
            Some(process) => Err(self.failure(process, End::Code(2), processes)),
            None => Ok(128 + signal.clamp(0, 127) as u8),
        }
    }

    /// Returns the error of a job of `processes` processes, of which `first` failed first.
    pub fn failure(&self, first: u32, end: End, processes: u32) -> Error {
        let said: Vec<Option<Said>> = (0..processes).map(|process| self.said(process)).collect();
        compose(self.word, first, end, &said)
    }

    /// Returns the error that a process has written, in one line.
    pub fn message(&self, process: u32) -> Option<String> {
        self.said(process).map(|said| said.message)
    }

    /// Removes the error of a process whose failure did not end the job.
    pub fn forget(&self, process: u32) {
        let _ = fs::remove_file(self.path(process));
    }

    fn said(&self, rank: u32) -> Option<Said> {
        serde_json::from_str(&fs::read_to_string(self.path(rank)).ok()?).ok()
    }
}

impl Drop for Errors {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Returns whether a launcher reads and reports the errors of this rank.
pub fn is_launched() -> bool {
    std::env::var_os(VARIABLE).is_some()
}

/// Writes this rank's error to the launcher's file. Returns false if this is not possible.
pub fn leave(error: &Error) -> bool {
    let Some(path) = std::env::var_os(VARIABLE) else { return false };
    let (message, hint) = failure::lines(error);
    let said = Said { message, hint, echo: failure::is_echo(error) };
    serde_json::to_vec(&said).is_ok_and(|text| fs::write(path, text).is_ok())
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Said {
    message: String,
    hint: Option<String>,
    /// Whether this error only reports that another rank has failed.
    echo: bool,
}

/// Returns the error in one line: the message of a rank that knows the cause, or else the message of a
/// rank that lost another rank. The exit of the first failed rank is put in front, unless that rank
/// wrote the message itself, or ended with an exit code and the cause is known.
fn compose(word: &str, rank: u32, end: End, said: &[Option<Said>]) -> Error {
    let told = || said.iter().enumerate().filter_map(|(rank, said)| Some((rank, said.as_ref()?)));
    let causes = || told().filter(|(_, said)| !said.echo);
    let first = causes().find(|(teller, _)| *teller == rank as usize).or_else(|| causes().next());
    let (message, hints) = match first.or_else(|| told().next()) {
        Some((teller, told)) => {
            let unanimous = causes().count() == said.len()
                && causes().all(|(_, other)| other.message == told.message);
            let who = if unanimous { String::new() } else { format!("{word} {teller}: ") };
            let is_known = matches!(end, End::Code(_)) && !told.echo;
            let how = match is_known || teller == rank as usize {
                true => String::new(),
                false => format!("{word} {rank} {end}; "),
            };
            // What others say of a rank that is stopped misleads: they only wait for it.
            let advice = told.hint.as_deref().filter(|_| end != End::Stopped);
            (format!("{how}{who}{}", told.message), [end.hint(), advice])
        }
        None => (format!("{word} {rank} {end}"), [end.hint(), None]),
    };
    advised(message, hints.into_iter().flatten().map(str::to_owned).collect())
}

/// Returns an error with the given hints, if there are any.
pub fn advised(message: String, hints: Vec<String>) -> Error {
    let error = anyhow!(message);
    if hints.is_empty() { error } else { hinted(error, hints.join("; ")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(message: &str) -> Option<Said> {
        Some(Said { message: message.to_owned(), hint: None, echo: message.starts_with("lost") })
    }

    #[test]
    fn one_line_says_who_failed_and_what_was_said() {
        let table = [
            (1, End::Signal(9), vec![None, None], "rank 1 was killed by signal 9 (SIGKILL)"),
            (
                1,
                End::Signal(9),
                vec![said("lost rank 1: step 7"), None],
                "rank 1 was killed by signal 9 (SIGKILL); rank 0: lost rank 1: step 7",
            ),
            (0, End::Code(2), vec![said("no data"), said("no data")], "no data"),
            (1, End::Code(2), vec![None, said("disk full")], "rank 1: disk full"),
            (1, End::Code(3), vec![None, None], "rank 1 exited with code 3"),
            (
                1,
                End::Stopped,
                vec![said("nothing came from rank 2"), None, None],
                "rank 1 is stopped; rank 0: nothing came from rank 2",
            ),
            (
                1,
                End::Signal(9),
                vec![said("disk full"), None],
                "rank 1 was killed by signal 9 (SIGKILL); rank 0: disk full",
            ),
            // Rank 0 was faster to end, but rank 1 knows why.
            (0, End::Code(2), vec![said("lost rank 1"), said("disk full")], "rank 1: disk full"),
            (0, End::Code(2), vec![said("lost rank 1"), None], "rank 0: lost rank 1"),
        ];
        for (rank, end, said, expected) in table {
            assert_eq!(compose("rank", rank, end, &said).to_string(), expected);
        }
    }
}

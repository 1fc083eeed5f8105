//! Messages of a failed command.
//!
//! An error is one line, `error: …`, with the whole chain of causes. If there is a hint, a second line,
//! `hint: …`, tells the user how to solve the problem.

use std::io;

use anyhow::Error;
use thinwire_report::escaping;
use thinwire_wire::Hint;

/// Attaches a hint to an error.
pub trait OrHint<T> {
    /// Attaches a hint about how to solve the problem.
    ///
    /// # Errors
    /// The original error, with the hint.
    fn or_hint(self, hint: impl Into<String>) -> Result<T, Error>;
}

impl<T, E: Into<Error>> OrHint<T> for Result<T, E> {
    fn or_hint(self, hint: impl Into<String>) -> Result<T, Error> {
        self.map_err(|error| hinted(error, hint))
    }
}

/// Returns an error with a hint.
pub fn hinted(error: impl Into<Error>, hint: impl Into<String>) -> Error {
    let note = Note { hint: Some(hint.into()), ..Note::of(error.into()) };
    Error::new(note)
}

/// Returns an error about a text, with the lines of the text to show.
pub fn excerpted(error: impl Into<Error>, excerpt: impl Into<String>) -> Error {
    let note = Note { excerpt: Some(excerpt.into()), ..Note::of(error.into()) };
    Error::new(note)
}

/// Returns the line of a text that the error is about, with a caret below it, if the error is about a text.
pub fn excerpt<'a>(cause: &'a (dyn std::error::Error + 'static)) -> Option<&'a str> {
    let note = cause.downcast_ref::<Note>().and_then(|note| note.excerpt.as_deref());
    let codec = cause.downcast_ref().and_then(thinwire_codec::Error::excerpt);
    let policy = cause.downcast_ref().and_then(thinwire_sync::UnknownPolicy::excerpt);
    note.or(codec).or(policy)
}

/// The longest message in letters. A limit is needed because a message may quote a name from a file.
const LETTERS_MAX: usize = 2000;

/// Returns an error's message, and its hint if it has one.
pub fn lines(error: &Error) -> (String, Option<String>) {
    let own = error.downcast_ref::<Note>().and_then(|note| note.hint.clone());
    let known = || error.chain().find_map(library_hint);
    let hint = own.or_else(known).or_else(|| links_of(error).find_map(loss_hint));
    (
        escaping::text(&escaping::shortened(&one_line(error), LETTERS_MAX)),
        hint.as_deref().map(escaping::text),
    )
}

/// Returns whether another rank's error caused this one, so that the other rank's message names the cause.
pub fn is_echo(error: &Error) -> bool {
    let echoes = |cause: &(dyn std::error::Error + 'static)| {
        let error = cause.downcast_ref::<thinwire_checkpoint::Error>();
        error.is_some_and(|error| error.kind() == thinwire_checkpoint::Kind::Echo)
    };
    let of_another = |kind| is_loss(kind) || kind == thinwire_link::Kind::Absent;
    error.chain().any(echoes) || links_of(error).any(|error| of_another(error.kind))
}

/// Adds a way to resume, if there is one, to the error of a lost rank.
pub fn or_resume_hint(error: Error, way: impl FnOnce() -> Option<String>) -> Error {
    let known = error.chain().any(|cause| library_hint(cause).is_some());
    let look = links_of(&error).find_map(loss_hint).filter(|_| !known);
    match look.and_then(|look| Some((look, way()?))) {
        Some((look, way)) => hinted(error, format!("{look}; {way}")),
        None => error,
    }
}

/// Returns the hint of an error of the libraries.
fn library_hint(cause: &(dyn std::error::Error + 'static)) -> Option<String> {
    if cause.downcast_ref::<io::Error>().is_some_and(is_full) {
        return Some("free some space there, or write to another place".to_owned());
    }
    let found = hint_of::<Note>(cause)
        .or_else(|| hint_of::<thinwire_train::Error>(cause))
        .or_else(|| hint_of::<thinwire_job::Error>(cause))
        .or_else(|| hint_of::<thinwire_model::Error>(cause))
        .or_else(|| hint_of::<thinwire_plan::Error>(cause))
        .or_else(|| hint_of::<thinwire_program::Error>(cause))
        .or_else(|| hint_of::<thinwire_link::Error>(cause))
        .or_else(|| hint_of::<thinwire_collective::Error>(cause))
        .or_else(|| hint_of::<thinwire_sync::Error>(cause))
        .or_else(|| hint_of::<thinwire_server::Error>(cause))
        .or_else(|| hint_of::<thinwire_checkpoint::Error>(cause))
        .or_else(|| hint_of::<thinwire_graph::Error>(cause));
    found.map(str::to_owned)
}

fn hint_of<'a, E: Hint + 'static>(cause: &'a (dyn std::error::Error + 'static)) -> Option<&'a str> {
    cause.downcast_ref::<E>()?.hint()
}

/// Returns whether a file could not be written because its disk is full.
pub fn is_of_full_disk(error: &Error) -> bool {
    error.chain().filter_map(|cause| cause.downcast_ref::<io::Error>()).any(is_full)
}

fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// Returns a hint for a lost rank if the reason of the loss is not known.
fn loss_hint(error: &thinwire_link::Error) -> Option<String> {
    let rank = error.rank.filter(|_| is_loss(error.kind))?;
    Some(format!("look at {rank}'s own output"))
}

fn is_loss(kind: thinwire_link::Kind) -> bool {
    use thinwire_link::Kind;
    matches!(kind, Kind::PeerLost | Kind::Left | Kind::Poisoned { .. })
}

fn links_of(error: &Error) -> impl Iterator<Item = &thinwire_link::Error> {
    error.chain().filter_map(|cause| cause.downcast_ref())
}

/// Returns whether the reader of standard output has closed it, which is not an error.
pub fn is_broken_pipe(error: &Error) -> bool {
    error
        .chain()
        .filter_map(|cause| cause.downcast_ref::<io::Error>())
        .any(|cause| cause.kind() == io::ErrorKind::BrokenPipe)
}

/// Returns the chain of causes on one line. A cause that its effect already quotes is not repeated.
fn one_line(error: &Error) -> String {
    let mut line = String::new();
    for cause in error.chain() {
        let text = cause.to_string().split_whitespace().collect::<Vec<_>>().join(" ");
        let text = without_number(&text);
        if line.is_empty() {
            line = text;
        } else if !line.to_lowercase().contains(&text.to_lowercase()) {
            line = format!("{line}: {text}");
        }
    }
    line
}

/// Removes the operating system's error number, which only repeats the words before it.
fn without_number(text: &str) -> String {
    match text.find(" (os error ").map(|at| (at, text[at..].find(')'))) {
        Some((at, Some(length))) => format!("{}{}", &text[..at], &text[at + length + 1..]),
        _ => text.to_owned(),
    }
}

/// An error with a hint and an excerpt.
#[derive(Debug, thiserror::Error)]
#[error("{}", one_line(.error))]
struct Note {
    #[source]
    error: Error,
    hint: Option<String>,
    excerpt: Option<String>,
}

impl Note {
    fn of(error: Error) -> Note {
        Note { error, hint: None, excerpt: None }
    }
}

impl Hint for Note {
    fn hint(&self) -> Option<&str> {
        self.hint.as_deref()
    }
}

#[cfg(test)]
mod tests {
    use anyhow::{Context, anyhow};

    use super::*;

    #[test]
    fn an_error_is_one_line_and_says_nothing_twice() {
        let inner = anyhow!("No such file\n  or directory (os error 2)");
        let error = Err::<(), _>(inner)
            .context("cannot read a.txt: no such file or directory")
            .context("loading data")
            .unwrap_err();
        let (message, hint) = lines(&error);
        assert_eq!(message, "loading data: cannot read a.txt: no such file or directory");
        assert_eq!(hint, None);
    }

    #[test]
    fn an_error_cannot_drive_the_terminal() {
        let error = hinted(anyhow!("node 'a\u{1b}[2J'"), "rename a\u{7}");
        let (message, hint) = lines(&error);
        assert_eq!((&message[..], hint.as_deref()), ("node 'a\\u{1b}[2J'", Some("rename a\\u{7}")));
    }

    #[test]
    fn an_error_is_no_longer_than_a_page() {
        let (line, _) = lines(&anyhow!("no codec '{}'", "ü".repeat(1 << 20)));
        assert_eq!(line.chars().count(), LETTERS_MAX + 1);
    }

    #[test]
    fn a_lost_rank_is_where_to_look() {
        let lost = thinwire_link::Error::lost(thinwire_wire::Rank(3), "connection closed");
        let error = Error::new(lost).context("ending step 7");
        assert_eq!(lines(&error).1.as_deref(), Some("look at rank 3's own output"));
        let error = or_resume_hint(error, || Some("continue with: it".to_owned()));
        let expected = "look at rank 3's own output; continue with: it";
        assert_eq!(
            lines(&error),
            ("ending step 7: lost rank 3: connection closed".to_owned(), Some(expected.to_owned()))
        );
        assert!(is_echo(&error));
        let other = or_resume_hint(anyhow!("no data"), || Some("continue with: it".to_owned()));
        assert_eq!(lines(&other).1, None);
    }

    #[test]
    fn a_full_disk_has_a_hint() {
        let full = io::Error::from(io::ErrorKind::StorageFull);
        let (_, hint) = lines(&Error::new(full).context("cannot write report.html"));
        assert_eq!(hint.as_deref(), Some("free some space there, or write to another place"));
    }

    #[test]
    fn a_hint_survives_further_context() {
        let error = Err::<(), _>(anyhow!("port 80 is in use"))
            .or_hint("choose another port")
            .context("starting the coordinator")
            .unwrap_err();
        let (message, hint) = lines(&error);
        assert_eq!(message, "starting the coordinator: port 80 is in use");
        assert_eq!(hint.as_deref(), Some("choose another port"));
    }
}

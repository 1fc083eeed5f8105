//! Machine and date of a report, and checks of output locations.

use std::fs;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Result;
use thinwire_checkpoint::Location;
use thinwire_wire::Hint;

use crate::failure::hinted;
use crate::invocation;

/// Returns the processor's name and its number of cores.
pub fn describe() -> String {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info.lines().find(|line| line.starts_with("model name"));
    let model = model.and_then(|line| Some(line.split_once(':')?.1.trim().to_owned()));
    let model = model.unwrap_or_else(|| std::env::consts::ARCH.to_owned());
    format!("{cores} cores, {model}")
}

/// Returns the command line without the path of the program and without the token.
pub fn command_line() -> String {
    shown(arguments())
}

/// Returns the command that resumes this training from a checkpoint. The user must give the token again.
pub fn go_on(checkpoint: &Path) -> String {
    let command = shown(resuming(arguments(), &checkpoint.to_string_lossy()));
    format!("continue with: {command}")
}

fn arguments() -> impl Iterator<Item = String> {
    invocation::arguments().into_iter().map(|argument| argument.to_string_lossy().into_owned())
}

fn shown(arguments: impl IntoIterator<Item = String>) -> String {
    let mut words = vec!["thinwire".to_owned()];
    let mut secret = false;
    for word in arguments {
        words.push(match word.split_once('=') {
            _ if secret => "…".to_owned(),
            Some(("--token", _)) => "--token=…".to_owned(),
            _ => quoted(&word),
        });
        secret = word == "--token";
    }
    words.join(" ")
}

/// Returns the arguments with this checkpoint to resume from, in place of any other.
fn resuming(arguments: impl IntoIterator<Item = String>, checkpoint: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut of_resume = false;
    for word in arguments {
        if !of_resume && word != "--resume" && !word.starts_with("--resume=") {
            words.push(word.clone());
        }
        of_resume = !of_resume && word == "--resume";
    }
    words.extend(["--resume".to_owned(), checkpoint.to_owned()]);
    words
}

/// Returns a word quoted for a shell.
pub fn quoted(word: &str) -> String {
    let plain = |letter: char| letter.is_ascii_alphanumeric() || "-_=:,./@%+".contains(letter);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', "'\\''"))
}

/// Returns the current time, such as "2026-11-21 14:05 UTC".
pub fn date() -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let (year, month, day) = civil(now / 86_400);
    let (hour, minute) = (now / 3600 % 24, now / 60 % 60);
    format!("{year}-{month:02}-{day:02} {hour:02}:{minute:02} UTC")
}

/// Returns the date of a day counted from 1 January 1970. See "chrono-Compatible Low-Level Date Algorithms"
/// (Hinnant).
fn civil(day: u64) -> (u64, u64, u64) {
    // Years begin with March there, so that a leap day is a year's last, in eras of 400 years.
    let days = day + 719_468;
    let (era, in_era) = (days / 146_097, days % 146_097);
    let year = (in_era - in_era / 1460 + in_era / 36_524 - in_era / 146_096) / 365;
    let in_year = in_era - (365 * year + year / 4 - year / 100);
    let month = (5 * in_year + 2) / 153;
    let day = in_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (400 * era + year + u64::from(month <= 2), month, day)
}

/// Checks that files can be written to the folder or bucket of `what`, which `flag` has given. Creates the
/// folder if it is missing.
///
/// # Errors
/// If the path is not a writable folder, or the bucket cannot be reached or written.
pub fn ensure_writable(place: &Path, what: &str, flag: &str) -> Result<()> {
    let place = Location::from(place);
    let hint = match place {
        Location::Folder(_) => format!("give a writable folder with {flag}, or none"),
        Location::Bucket(_) => format!("give a bucket that can be written with {flag}, or none"),
    };
    place.check(what).map_err(|error| match error.hint() {
        Some(_) => error.into(),
        None => hinted(error, hint),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_have_dates() {
        for (day, date) in [
            (0, (1970, 1, 1)),
            (59, (1970, 3, 1)),
            (11_016, (2000, 2, 29)),
            (20_778, (2026, 11, 21)),
        ] {
            assert_eq!(civil(day), date);
        }
    }

    #[test]
    fn a_command_that_goes_on_resumes_once_and_keeps_the_token_to_itself() {
        let words = |line: &str| line.split(' ').map(str::to_owned).collect::<Vec<_>>();
        for line in [
            "train --steps 8 --token t --codec int8",
            "train --resume --resume --steps 8 --token t --codec int8",
            "train --steps 8 --resume=old --token t --codec int8 --resume older",
        ] {
            let command = shown(resuming(words(line), "a b"));
            assert_eq!(
                command, "thinwire train --steps 8 --token … --codec int8 --resume 'a b'",
                "{line}"
            );
        }
    }

    #[test]
    fn words_are_quoted_where_a_shell_needs_it() {
        assert_eq!(quoted("topk:0.01"), "topk:0.01");
        assert_eq!(quoted("it's"), "'it'\\''s'");
        assert_eq!(quoted(""), "''");
    }
}

//! Output of the command: data on standard output, talk on standard error, and the exit code.

use std::fmt::Display;
use std::io::{IsTerminal, Write};
use std::sync::OnceLock;

use anyhow::{Context, Error, Result, anyhow};
use clap::error::ErrorKind;
use serde::Serialize;
use thinwire_report::Table;
use thinwire_report::escaping;

use crate::failure::{self, excerpted, hinted};
use crate::launch;

/// Form of a command's data.
#[derive(Clone, Copy)]
pub enum Format {
    /// Tables and text.
    Text,
    /// Objects of JSON, one per line.
    Json,
}

impl From<bool> for Format {
    fn from(json: bool) -> Format {
        if json { Format::Json } else { Format::Text }
    }
}

/// Flags of how much a command says on standard error.
#[derive(clap::Args, Clone, Copy, Debug, Default)]
#[command(next_help_heading = "Output")]
pub struct Talk {
    /// Print only warnings and errors
    #[arg(short, long, conflicts_with = "verbose")]
    quiet: bool,
    /// Print more, such as every step
    ///
    /// Prints a line for every step, and for every process that starts.
    #[arg(short, long)]
    verbose: bool,
}

static TALK: OnceLock<Talk> = OnceLock::new();

impl Talk {
    /// Lets this process say so much; the first one counts.
    pub fn set(self) {
        let _ = TALK.set(self);
    }
}

/// Whether only warnings and errors are said.
pub fn is_quiet() -> bool {
    TALK.get().is_some_and(|talk| talk.quiet)
}

/// Whether details are said, too.
pub fn is_verbose() -> bool {
    TALK.get().is_some_and(|talk| talk.verbose)
}

/// The exit code of an error.
const ERROR: u8 = 2;

/// Prints text for people, in which names of files may stand.
///
/// # Errors
/// If standard output is closed.
pub fn print(text: impl Display) -> Result<()> {
    write_out(escaping::text(&text.to_string()))
}

/// Prints text as it is.
///
/// # Errors
/// If standard output is closed.
pub fn write_out(text: impl Display) -> Result<()> {
    let mut output = std::io::stdout().lock();
    let written = write!(output, "{text}").and_then(|()| output.flush());
    written.context("cannot write to standard output")
}

/// Draws text on the terminal in the place of what was drawn before.
///
/// # Errors
/// If standard output is closed.
pub fn draw(text: impl Display) -> Result<()> {
    // To the upper left; then every line is cleared behind its end, and the screen below the last one.
    let [home, line_end, below] = ["\x1b[H", "\x1b[K\n", "\x1b[J"];
    let lines = escaping::text(&text.to_string()).replace('\n', line_end);
    write_out(format!("{home}{lines}{below}"))
}

/// Prints a value as JSON on one line.
///
/// # Errors
/// If standard output is closed.
pub fn print_json(value: &impl Serialize) -> Result<()> {
    write_out(format!("{}\n", serde_json::to_string(value)?))
}

/// Prints measurements, as an object of JSON each or as the rows of a table.
///
/// # Errors
/// If standard output is closed.
pub fn print_lines<const N: usize, L: Serialize>(
    lines: &[L],
    format: Format,
    header: [&str; N],
    row: impl Fn(&L) -> [String; N],
) -> Result<()> {
    if let Format::Json = format {
        return lines.iter().try_for_each(print_json);
    }
    let mut table = Table::new(header);
    lines.iter().for_each(|line| table.row(row(line)));
    print(table)
}

/// Text that a model wrote, harmless on a terminal: what moves the cursor becomes a dot.
pub fn harmless(bytes: &[u8]) -> String {
    let shown = |letter: char| !escaping::drives(letter) || letter == '\n' || letter == '\t';
    let text = String::from_utf8_lossy(bytes);
    text.chars().map(|letter| if shown(letter) { letter } else { '·' }).collect()
}

/// Says a line to whoever watches, unless they want warnings only.
pub fn say(line: impl Display) {
    let line = line.to_string();
    if !is_quiet() || line.starts_with("warning:") {
        tell(line);
    }
}

/// Says a line, however little is to be said; if nobody listens, that is fine.
fn tell(line: impl Display) {
    let _ = writeln!(std::io::stderr().lock(), "{}", escaping::line(&line.to_string()));
}

/// Whether to draw: standard error is a terminal, and nobody asked for plain text.
pub fn is_lively() -> bool {
    std::io::stderr().is_terminal()
        && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
        && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
}

/// Ends the process's work: the exit code, and the error's lines.
pub fn exit(result: Result<u8>) -> u8 {
    match result {
        Ok(code) => code,
        Err(error) if failure::is_broken_pipe(&error) => 0,
        Err(error) if launch::leave(&error) => ERROR,
        Err(error) => {
            let (message, hint) = failure::lines(&error);
            tell(format!("error: {message}"));
            let excerpt = error.chain().find_map(failure::excerpt);
            excerpt.into_iter().flat_map(str::lines).for_each(tell);
            if let Some(hint) = hint {
                tell(format!("hint: {hint}"));
            }
            ERROR
        }
    }
}

/// Writes help and version as data, and any other parse error as an error of `command`.
///
/// # Errors
/// The mistake in one line.
pub fn usage(error: &clap::Error, command: &str) -> Result<u8> {
    if !error.use_stderr() {
        error.print()?;
        return Ok(0);
    }
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        error.render().to_string().lines().for_each(say);
        return Ok(ERROR);
    }
    let usage = usage_error(&error.render().to_string(), command);
    let about = std::error::Error::source(error).and_then(failure::excerpt);
    Err(match about {
        Some(lines) => excerpted(usage, lines),
        None => usage,
    })
}

/// The first paragraph of clap's message; a tip becomes the hint, else where to look.
fn usage_error(text: &str, command: &str) -> Error {
    let paragraph = |text: &str| text.split_whitespace().map(short).collect::<Vec<_>>().join(" ");
    let mut paragraphs = text.split("\n\n").map(paragraph);
    let first = paragraphs.next().unwrap_or_default();
    let message = first.strip_prefix("error: ").unwrap_or(&first);
    let message =
        message.replace("invalid digit found in string", "expected a whole number of 0 or more");
    let tip = paragraphs.find_map(|text| text.strip_prefix("tip: ").map(str::to_owned));
    hinted(anyhow!(message), tip.unwrap_or_else(|| format!("see {command} --help")))
}

/// Letters of a word that an error repeats.
const WORD_MAX: usize = 200;

/// Returns a typed word, cut off where nobody reads on.
pub fn short(word: &str) -> String {
    escaping::shortened(word, WORD_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_cannot_drive_the_terminal() {
        assert_eq!(harmless(b"a\x1b[2Jb\tc\n\xff\r"), "a·[2Jb\tc\n\u{fffd}·");
    }

    #[test]
    fn a_usage_error_is_short_however_much_was_typed() {
        let text = format!("error: invalid value '{}' for '--codec <CODEC>'", "x".repeat(100_000));
        let (message, _) = failure::lines(&usage_error(&text, "thinwire"));
        assert!(message.len() < 300 && message.ends_with("x… for '--codec <CODEC>'"), "{message}");
    }
}

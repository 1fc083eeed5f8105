//! This module prepares the typed words for the parser: it renames former flags and adds the flags of a file.
//!
//! Law: a typed flag overrides the same flag of a file.

use std::ffi::{OsStr, OsString};
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow};
use clap::{Arg, ArgAction, ArgMatches};
use strsim::levenshtein as distance;
use toml::de::{DeTable, DeValue};

use crate::failure::{OrHint, hinted};
use crate::file::{self, Sort};
use crate::launch::is_launched;
use crate::output::say;

/// A flag that had another name in the last version.
struct Renamed {
    commands: &'static [&'static str],
    before: &'static str,
    now: &'static str,
}

const RENAMED: [Renamed; 2] = [
    Renamed { commands: &["train", "compare"], before: "warmup", now: "lr-warmup-steps" },
    Renamed { commands: &["train", "compare"], before: "warmup-steps", now: "codec-warmup-steps" },
];

/// The command whose flags a file may have.
const COMMAND: &str = "train";
/// Flag that names the file to read.
const CONFIG: &str = "config";
/// Flag that names the file to write.
const SAVE: &str = "save-config";
/// Flags that a file cannot set.
const NOT_IN_FILES: [&str; 3] = [CONFIG, SAVE, "help"];
/// Flags that are not written: the secret, and the rank, which differs between processes.
const NOT_WRITTEN: [&str; 2] = ["token", "rank"];

/// A file of flags.
const FLAGS: Sort = Sort {
    name: "a file of flags",
    bytes_max: 1 << 20,
    hint: "thinwire train --save-config FILE writes one; it has lines such as steps = 400",
};

/// Returns the words to parse: the typed ones, and the flags of the file that they name.
///
/// # Errors
/// If the file cannot be read, or has a key that is not a flag.
pub fn resolve(command: &clap::Command, mut words: Vec<OsString>) -> Result<Vec<OsString>> {
    with_new_names(&mut words);
    let Some(path) = config(&words) else { return Ok(words) };
    let train = command.find_subcommand(COMMAND).expect("there is a command of trainings");
    let letters = words.iter().flat_map(|word| by_letters(train, word));
    let typed: Vec<&str> = words.iter().filter_map(name).chain(letters).collect();
    let flags = read(&path, train, &typed)?;
    // A flag of the file that the parser refuses is then named as if it were typed.
    words.splice(1..1, flags);
    Ok(words)
}

/// Returns the name of a flag without its value, if the word is a flag.
fn name(word: &OsString) -> Option<&str> {
    parts(word).map(|(name, _)| name)
}

/// Returns the name of the flag, and its value if the word contains one. The value need not be valid UTF-8.
fn parts(word: &OsString) -> Option<(&str, Option<&OsStr>)> {
    let flag = word.as_bytes().strip_prefix(b"--")?;
    let end = flag.iter().position(|byte| *byte == b'=').unwrap_or(flag.len());
    let value = flag.get(end + 1..).map(OsStr::from_bytes);
    Some((str::from_utf8(&flag[..end]).ok()?, value))
}

/// Returns the names of the flags that a word gives as letters, such as `-qv`. None of them takes a value.
fn by_letters<'a>(command: &'a clap::Command, word: &OsString) -> impl Iterator<Item = &'a str> {
    let word = word.to_str().unwrap_or_default();
    let letters = word.strip_prefix('-').filter(|rest| !rest.starts_with('-')).unwrap_or_default();
    let letters: Vec<_> = letters.chars().map(Some).collect();
    let is_given = move |flag: &&Arg| letters.contains(&flag.get_short());
    command.get_arguments().filter(is_given).filter_map(Arg::get_long)
}

/// Replaces former names of flags by the current names, and prints one notice about this.
fn with_new_names(words: &mut [OsString]) {
    let Some((command, words)) = words.split_first_mut() else { return };
    for renamed in RENAMED.iter().filter(|it| it.commands.iter().any(|name| command == name)) {
        let Renamed { before, now, .. } = renamed;
        let mut found = words.iter_mut().filter(|word| name(word) == Some(before)).peekable();
        if found.peek().is_some() && !is_launched() {
            say(format!(
                "warning: --{before} is now called --{now}; the next version has only --{now}"
            ));
        }
        for word in found {
            let text = word.to_string_lossy().replacen(before, now, 1);
            *word = text.into();
        }
    }
}

/// Returns the file of flags that these words name.
fn config(words: &[OsString]) -> Option<PathBuf> {
    let words = words.split_first().filter(|(command, _)| *command == COMMAND)?.1;
    let at = words.iter().position(|word| name(word) == Some(CONFIG))?;
    match parts(&words[at])?.1 {
        Some(path) => Some(path.into()),
        None => words.get(at + 1).map(PathBuf::from),
    }
}

/// Returns the flags of a file as words, except those that were also typed.
fn read(path: &Path, command: &clap::Command, typed: &[&str]) -> Result<Vec<OsString>> {
    let text = file::text(path, &FLAGS)?;
    let at = |span: Range<usize>| {
        let line = text[..span.start].matches('\n').count() + 1;
        format!("{}, line {line}", path.display())
    };
    let table = DeTable::parse(&text).map_err(|error| {
        let place = error.span().map_or_else(|| path.display().to_string(), at);
        hinted(anyhow!("{place}: {}", error.message()), FLAGS.hint)
    })?;
    let mut words = Vec::new();
    for (key, value) in table.get_ref() {
        let (key, place) = (key.get_ref().as_ref(), at(key.span()));
        let flag = flag(command, key).ok_or_else(|| unknown(command, key, &place))?;
        let long = flag.get_long().unwrap_or_default();
        if typed.contains(&long) {
            continue;
        }
        let values = values(value.get_ref(), flag).map_err(|expected| {
            let found = value.get_ref().type_str();
            hinted(anyhow!("{place}: {key} is of type {found}, expected {expected}"), FLAGS.hint)
        })?;
        words.extend(values.into_iter().map(OsString::from));
    }
    Ok(words)
}

/// Returns the flag for a key, which may be a former name.
fn flag<'a>(command: &'a clap::Command, key: &str) -> Option<&'a Arg> {
    let renamed = RENAMED.iter().find(|renamed| renamed.before == key);
    let key = renamed.map_or(key, |renamed| renamed.now);
    flags(command).find(|flag| flag.get_long() == Some(key))
}

/// Returns the flags that a file may have.
fn flags(command: &clap::Command) -> impl Iterator<Item = &Arg> {
    let may = |flag: &&Arg| flag.get_long().is_some_and(|name| !NOT_IN_FILES.contains(&name));
    command.get_arguments().filter(may)
}

fn unknown(command: &clap::Command, key: &str, place: &str) -> anyhow::Error {
    let error = anyhow!("{place}: unknown flag '{key}'");
    let names = flags(command).filter_map(Arg::get_long);
    let nearest = names.map(|name| (distance(key, name), name)).min();
    // Beyond half of its letters, another name is no typing mistake.
    match nearest.filter(|(distance, name)| 2 * distance <= name.len()) {
        Some((_, name)) => hinted(error, format!("the nearest one is {name}")),
        None => hinted(error, format!("its keys are flags of thinwire {COMMAND}, without --")),
    }
}

/// Returns the words for a flag with the value from a file, or an error with the type that the flag needs.
fn values(value: &DeValue<'_>, flag: &Arg) -> Result<Vec<String>, &'static str> {
    let name = flag.get_long().unwrap_or_default();
    let one = |text: &str| format!("--{name}={text}");
    let takes_value = flag.get_action().takes_values();
    match value {
        DeValue::Boolean(given) if !takes_value => {
            Ok(given.then(|| format!("--{name}")).into_iter().collect())
        }
        _ if !takes_value => Err("true or false"),
        DeValue::Array(all) if is_list(flag) => {
            all.iter().map(|value| text(value.get_ref()).map(|text| one(&text))).collect()
        }
        value => Ok(vec![one(&text(value)?)]),
    }
}

fn is_list(flag: &Arg) -> bool {
    matches!(flag.get_action(), ArgAction::Append)
}

fn text(value: &DeValue<'_>) -> Result<String, &'static str> {
    match value {
        DeValue::String(text) => Ok(text.to_string()),
        DeValue::Integer(number) if number.radix() == 10 => Ok(number.as_str().to_owned()),
        DeValue::Float(number) => Ok(number.as_str().to_owned()),
        _ => Err("a text or a number, and a list of these where a flag may be repeated"),
    }
}

/// Writes the given flags to a file if the words request it, including those read from a file.
///
/// # Errors
/// If the file cannot be written.
pub fn save(command: &clap::Command, matches: &ArgMatches) -> Result<()> {
    let Some((COMMAND, matches)) = matches.subcommand() else { return Ok(()) };
    let path = matches.get_one::<PathBuf>("save_config");
    // Each of its ranks has the same words.
    let Some(path) = path.filter(|_| !is_launched()) else { return Ok(()) };
    let train = command.find_subcommand(COMMAND).expect("it was parsed");
    file::ensure_place(Some(path), "the flags", "--save-config")?;
    let text = written(train, matches)?;
    file::write(path, &text).or_hint("give the path of a writable file with --save-config")
}

/// Returns the text of a file with the given flags.
///
/// # Errors
/// If a value is not valid UTF-8, as some paths are.
fn written(command: &clap::Command, matches: &ArgMatches) -> Result<String> {
    let mut text = format!("# Flags of thinwire {COMMAND}: thinwire {COMMAND} --{CONFIG} FILE\n");
    for flag in flags(command) {
        let (id, name) = (flag.get_id().as_str(), flag.get_long().unwrap_or_default());
        let is_given = matches.value_source(id) == Some(clap::parser::ValueSource::CommandLine);
        if !is_given || NOT_WRITTEN.contains(&name) {
            continue;
        }
        let raw = matches.get_raw(id).into_iter().flatten();
        let texts = raw.map(|value| utf_8(name, value).map(literal));
        let values: Vec<_> = texts.collect::<Result<_>>()?;
        let value = match &values[..] {
            _ if !flag.get_action().takes_values() => "true".to_owned(),
            [value] if !is_list(flag) => value.clone(),
            values => format!("[{}]", values.join(", ")),
        };
        text += &format!("{name} = {value}\n");
    }
    Ok(text)
}

/// Returns the value of a flag as text for a file.
fn utf_8<'a>(name: &str, value: &'a OsStr) -> Result<&'a str> {
    value.to_str().ok_or_else(|| {
        let shown = Path::new(value).display();
        let error = anyhow!("--{name} is {shown}, expected UTF-8 for --{SAVE}");
        hinted(error, format!("leave --{SAVE} out, or give a path of another name"))
    })
}

/// Returns a value as TOML: as a number if that number is read back as the same text, otherwise as a string.
fn literal(value: &str) -> String {
    let is_number = value.parse::<i64>().is_ok_and(|number| number.to_string() == value)
        || value.parse::<f64>().is_ok_and(|number| format!("{number:?}") == value);
    match is_number && value.starts_with(|letter: char| letter.is_ascii_digit()) {
        true => value.to_owned(),
        false => toml::Value::from(value).to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_distance_of_words_counts_letters() {
        for (this, other, expected) in
            [("steps", "steps", 0), ("step", "steps", 1), ("stpes", "steps", 2), ("", "lr", 2)]
        {
            assert_eq!(distance(this, other), expected, "{this} {other}");
            assert_eq!(distance(other, this), expected, "{other} {this}");
        }
    }

    #[test]
    fn numbers_are_literals_and_other_values_texts() {
        for (value, expected) in [
            ("400", "400"),
            ("0.01", "0.01"),
            ("007", r#""007""#),
            ("topk:0.01", r#""topk:0.01""#),
            ("2:4", r#""2:4""#),
        ] {
            assert_eq!(literal(value), expected);
        }
    }
}

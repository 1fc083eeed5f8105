//! The `thinwire` command, which is a program of its own, and in Python packages a script.
//!
//! This file is the table of contents: what can be typed, and which file does it. Data goes to
//! standard output, talk to standard error. Exit code 0: done; 1: the answer is no; 2: an error, in
//! one line, perhaps with a hint; 128 + n: ended by signal n.
#![deny(unsafe_code)]

mod arguments;
mod codings;
mod command;
mod failure;
mod file;
mod invocation;
mod launch;
mod link;
mod memory;
pub mod metrics;
mod operator;
mod output;
mod patience;
mod place;
mod ranks;
mod size;
mod source;
mod training;
mod units;
mod word_wrap;

use std::ffi::OsString;
use std::iter;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

pub use invocation::Script;

const NAME: &str = "thinwire";

/// Trains deep-learning models over slow networks
#[derive(Parser)]
#[command(name = NAME, version, long_version = env!("THINWIRE_VERSION"))]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Train a model of text or images
    Train(Box<command::train::Args>),
    /// Train under several codecs and show the results side by side
    Compare(Box<command::compare::Args>),
    /// Compare finished trainings
    Report(command::report::Args),
    /// Generate text with a checkpoint's model
    Sample(command::sample::Args),
    /// Measure codecs, links and collectives against their limits
    #[command(subcommand)]
    Bench(command::bench::What),
    /// Plan what runs where, or explain why gradients travel as they do
    #[command(subcommand)]
    Plan(command::plan::What),
    /// Look at a model that a plan can be made for
    #[command(subcommand)]
    Model(command::model::What),
    /// Prepare graphs, partition them, and train on them
    #[command(subcommand)]
    Graph(command::graph::What),
    /// Try a codec of your own, written as text
    #[command(subcommand)]
    Codec(command::codec::What),
    /// Start any program N times, as the ranks of one job
    Run(command::run::Args),
    /// Coordinate an elastic job whose ranks are started elsewhere
    Coordinator(command::coordinator::Args),
    /// Keep a part of a job's parameters, as one of its servers
    Server(command::server::Args),
    /// Write the parameters on a job's servers into files
    Snapshot(command::snapshot::Args),
    /// Set how many ranks an elastic job should have
    Resize(command::resize::Args),
    /// Show the ranks of an elastic job, and what they are doing
    Top(command::top::Args),
    /// Check this machine, and show what a job would choose
    Doctor(command::doctor::Args),
    /// Print the completions of a shell
    Completions(command::completions::Args),
    /// Print manual pages
    Man(command::man::Args),
    /// Become the program of one rank
    #[command(name = launch::child::NAME, hide = true)]
    Rank(launch::child::Args),
}

/// Runs the command that this process was started with, and returns its exit code.
pub fn main() -> u8 {
    output::exit(run_words(invocation::arguments()))
}

/// Parses words and runs the command that they are.
fn run_words(words: Vec<OsString>) -> anyhow::Result<u8> {
    let mut command = command_line();
    let words = arguments::resolve(&command, words)?;
    let all = iter::once(NAME.into()).chain(words.iter().cloned());
    let parsed = command.try_get_matches_from_mut(all);
    match parsed.and_then(|matches| Ok((Cli::from_arg_matches(&matches)?, matches))) {
        Ok((cli, matches)) => {
            arguments::save(&command, &matches)?;
            run(cli.command)
        }
        Err(error) => output::usage(&error, &typed(&command, &words)),
    }
}

/// Returns the commands and their flags.
fn command_line() -> clap::Command {
    with_negative_numbers(Cli::command())
}

/// Runs the command for a script that this process runs, and returns its exit code.
pub fn main_of(script: Script) -> u8 {
    invocation::set(script);
    main()
}

/// The subcommand that was typed, as far as it is one.
fn typed(command: &clap::Command, words: &[OsString]) -> String {
    let mut names = vec![command.get_name()];
    let mut command = command;
    for word in words {
        match command.find_subcommand(word) {
            Some(found) => command = found,
            None => break,
        }
        names.push(command.get_name());
    }
    names.join(" ")
}

/// In `--lr -1`, -1 is the value of --lr, so that its range can answer.
fn with_negative_numbers(command: clap::Command) -> clap::Command {
    let takes_value = |arg: &clap::Arg| arg.get_long().is_some() && arg.get_action().takes_values();
    command
        .mut_args(|arg| if takes_value(&arg) { arg.allow_negative_numbers(true) } else { arg })
        .mut_subcommands(with_negative_numbers)
}

fn run(command: Command) -> anyhow::Result<u8> {
    match command {
        Command::Train(args) => command::train::run(&args),
        Command::Compare(args) => command::compare::run(&args),
        Command::Report(args) => command::report::run(&args),
        Command::Sample(args) => command::sample::run(&args),
        Command::Bench(args) => command::bench::run(&args),
        Command::Plan(args) => command::plan::run(&args),
        Command::Model(args) => command::model::run(&args),
        Command::Graph(args) => command::graph::run(&args),
        Command::Codec(args) => command::codec::run(&args),
        Command::Run(args) => command::run::run(&args),
        Command::Coordinator(args) => command::coordinator::run(&args),
        Command::Server(args) => command::server::run(&args),
        Command::Snapshot(args) => command::snapshot::run(&args),
        Command::Resize(args) => command::resize::run(&args),
        Command::Top(args) => command::top::run(&args),
        Command::Doctor(args) => command::doctor::run(&args),
        Command::Completions(args) => command::completions::run(&args),
        Command::Man(args) => command::man::run(&args),
        Command::Rank(args) => launch::child::run(&args),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;

    /// Lines of a tall terminal.
    const LINES: usize = 80;

    /// Flags that take other values in some command: arrays or shapes of a graph, bounds, and a switch.
    const OTHERS: [&str; 4] = ["columns", "features", "ranks", "servers"];

    fn each(
        command: &mut clap::Command,
        words: &str,
        visit: &mut impl FnMut(&mut clap::Command, &str),
    ) {
        let words = format!("{words} {}", command.get_name());
        visit(command, &words);
        for command in command.get_subcommands_mut().filter(|it| it.get_name() != "help") {
            each(command, &words, visit);
        }
    }

    #[test]
    fn short_help_of_every_command_fits_on_a_screen() {
        for width in [80, 100] {
            let mut command = command_line().term_width(width);
            command.build();
            each(&mut command, "", &mut |command, words| {
                let help = command.render_help().to_string();
                let lines = help.lines().count();
                assert!(lines <= LINES, "{lines} lines of{words} -h in {width} columns:\n{help}");
            });
        }
    }

    #[test]
    fn a_flag_takes_the_same_sort_of_value_in_all_commands() {
        let mut names: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        each(&mut command_line(), "", &mut |command, words| {
            for flag in command.get_arguments().filter(|flag| !flag.is_hide_set()) {
                let value =
                    flag.get_value_names().map_or_else(String::new, |names| names.join(" "));
                let units = ["SECONDS", "MIB", "MB", "MS", "RATE_MBIT"];
                assert!(
                    !units.contains(&&value[..]),
                    "{words} {flag}: a unit belongs to the value"
                );
                if let Some(name) = flag.get_long().filter(|name| !OTHERS.contains(name)) {
                    names.entry(name.to_owned()).or_default().insert(value);
                }
            }
        });
        for (name, values) in names {
            assert_eq!(values.len(), 1, "--{name} takes {values:?}");
        }
    }
}

//! The `thinwire` command, which is a program of its own, and in Python packages a script.
//!
//! This file is the table of contents: what can be typed, and which file does it. Data goes to
//! standard output, talk to standard error. Exit code 0: done; 1: the answer is no; 2: an error, in
//! one line, perhaps with a hint; 128 + n: ended by signal n.
#![deny(unsafe_code)]

mod codings;
mod command;
mod failure;
mod file;
mod invocation;
mod launch;
mod link;
mod memory;
mod metrics;
mod operator;
mod output;
mod patience;
mod place;
mod ranks;
mod size;
mod source;
mod training;
mod word_wrap;

use std::ffi::OsString;
use std::iter;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

pub use invocation::Script;

const NAME: &str = "thinwire";

/// Trains deep-learning models over slow networks
#[derive(Parser)]
#[command(name = NAME, version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Train a model of text or images, and see where the time of a step goes
    Train(Box<command::train::Args>),
    /// Train under several codecs and show the results side by side
    Compare(Box<command::compare::Args>),
    /// Let a checkpoint's model write
    Sample(command::sample::Args),
    /// Measure what is fast and what is not, beside its limit
    #[command(subcommand)]
    Bench(command::bench::What),
    /// Plan what runs where, or explain why gradients travel as they do
    #[command(subcommand)]
    Plan(command::plan::What),
    /// Look at a model that a plan can be made for
    #[command(subcommand)]
    Model(command::model::What),
    /// Prepare graphs for graph neural networks, partition them, and train on them
    #[command(subcommand)]
    Graph(command::graph::What),
    /// Try a codec of your own, written as text
    #[command(subcommand)]
    Codec(command::codec::What),
    /// Start any program N times, as the ranks of one job
    Run(command::run::Args),
    /// Coordinate an elastic job whose ranks are started elsewhere
    Coordinator(command::coordinator::Args),
    /// Keep a part of a job's parameters, as one server of a parameter server
    Server(command::server::Args),
    /// Write the parameters on a job's servers into files
    Snapshot(command::snapshot::Args),
    /// Set how many ranks an elastic job should have
    Resize(command::resize::Args),
    /// Show the ranks of an elastic job, and what they are doing
    Top(command::top::Args),
    /// Become the program of one rank
    #[command(name = launch::child::NAME, hide = true)]
    Rank(launch::child::Args),
}

/// Runs the command that this process was started with, and returns its exit code.
pub fn main() -> u8 {
    let arguments = invocation::arguments();
    let words = iter::once(NAME.into()).chain(arguments.iter().cloned());
    let parsed = with_negative_numbers(Cli::command()).try_get_matches_from(words);
    let result = match parsed.and_then(|matches| Cli::from_arg_matches(&matches)) {
        Ok(cli) => run(cli.command),
        Err(error) => output::usage(&error, &typed(&Cli::command(), &arguments)),
    };
    output::exit(result)
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
        Command::Rank(args) => launch::child::run(&args),
    }
}

//! The developer's commands: `cargo xtask check`, `cargo xtask test`, `cargo xtask tidy`.
#![forbid(unsafe_code)]

mod section;
mod test;
mod tidy;

use std::process::ExitCode;

use anyhow::{Result, bail};

const USAGE: &str = "\
usage: cargo xtask COMMAND

  check [SECTION ...]   what CI runs, cheapest first: fmt tidy clippy test doc (all by default)
  test [ARGUMENT ...]   every test of the workspace; arguments go to `cargo test`
  tidy                  the rules that no compiler checks: layers, files, text
";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &[String]) -> Result<()> {
    let Some((command, rest)) = arguments.split_first() else { bail!("no command\n\n{USAGE}") };
    match command.as_str() {
        "check" => section::check(rest),
        "test" => test::run(rest),
        "tidy" => tidy::run(),
        "help" | "--help" | "-h" => {
            print!("{USAGE}");
            Ok(())
        }
        other => bail!("unknown command '{other}'\n\n{USAGE}"),
    }
}

//! The developer's commands: `cargo xtask check`, `test`, `python`, `site`, `tidy` and `licenses`.
#![forbid(unsafe_code)]

mod licenses;
mod process;
mod python;
mod section;
mod summary;
mod test;
mod tidy;

use std::process::ExitCode;

use anyhow::{Result, bail};

const USAGE: &str = "\
usage: cargo xtask COMMAND

  check [SECTION ...]   what CI runs, cheapest first: fmt tidy clippy ruff test doc site (all by default)
  test [ARGUMENT ...]   every test, Rust and Python; with arguments, which go to `cargo test`, Rust alone
  python [ARGUMENT ...] builds the Python package and tests it; arguments go to pytest
  site                  builds the pages of docs, with a reference of the package, into target/html
  tidy [--list [PATH]]  the rules that no compiler checks: layers, circles, files, text, prose;
                        with --list the sentences that prose counts
  licenses              prints the licence texts of everything that wheels of this machine link
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
        "python" => python::run(rest),
        "site" => python::site(),
        "tidy" => tidy::command(rest),
        "licenses" => licenses::run(rest),
        "help" | "--help" | "-h" => {
            print!("{USAGE}");
            Ok(())
        }
        other => bail!("unknown command '{other}'\n\n{USAGE}"),
    }
}

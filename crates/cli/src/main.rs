//! The `thinwire` command as a program of its own.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::from(thinwire_cli::main())
}

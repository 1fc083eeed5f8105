//! Executable of the `thinwire` command.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::from(thinwire_cli::main())
}

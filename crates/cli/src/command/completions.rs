//! `thinwire completions`: prints a script with which a shell completes commands and flags.

use anyhow::Result;
use clap_complete::Shell;

use crate::output::write_out;
use crate::{NAME, command_line};

/// Print the completions of a shell: `source <(thinwire completions bash)`.
#[derive(clap::Args)]
pub struct Args {
    /// The shell
    #[arg(value_enum)]
    shell: Shell,
}

/// Prints the script.
///
/// # Errors
/// If standard output is closed.
pub fn run(args: &Args) -> Result<u8> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command_line(), NAME, &mut script);
    write_out(String::from_utf8_lossy(&script))?;
    Ok(0)
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum;

    use super::*;

    #[test]
    fn every_shell_completes_flags_of_trainings() {
        for shell in Shell::value_variants() {
            let mut script = Vec::new();
            clap_complete::generate(*shell, &mut command_line(), NAME, &mut script);
            let script = String::from_utf8(script).unwrap();
            assert!(script.contains("lr-warmup-steps"), "{shell}");
        }
    }
}

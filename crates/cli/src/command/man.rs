//! `thinwire man`: makes manual pages from the help of commands.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow};
use clap_mangen::Man;

use crate::failure::hinted;
use crate::file;
use crate::output::write_out;
use crate::{NAME, command_line};

/// Print a manual page: `thinwire man train | man -l -`.
#[derive(clap::Args)]
pub struct Args {
    /// The command, such as plan make [default: all of thinwire]
    command: Vec<String>,
    /// Folder for the pages of all commands, such as ~/.local/share/man/man1
    #[arg(long, value_name = "DIR", conflicts_with = "command")]
    out: Option<PathBuf>,
}

/// Prints a page, or writes all pages.
///
/// # Errors
/// If there is no such command, or a page cannot be written.
pub fn run(args: &Args) -> Result<u8> {
    let mut command = command_line();
    command.build();
    if let Some(folder) = &args.out {
        std::fs::create_dir_all(folder)
            .with_context(|| format!("cannot make {}", folder.display()))?;
        write_all(&command, folder)?;
        return Ok(0);
    }
    let mut command = &command;
    for name in &args.command {
        command = command.find_subcommand(name).ok_or_else(|| {
            let error = anyhow!("no command '{}'", args.command.join(" "));
            hinted(error, format!("{NAME} help lists the commands"))
        })?;
    }
    write_out(page(command)?)?;
    Ok(0)
}

/// Writes the pages of a command and its subcommands.
fn write_all(command: &clap::Command, folder: &Path) -> Result<()> {
    let name = command.get_display_name().unwrap_or(command.get_name());
    file::replace(&folder.join(format!("{name}.1")), page(command)?.as_bytes())?;
    let shown = |command: &&clap::Command| !command.is_hide_set() && command.get_name() != "help";
    command.get_subcommands().filter(shown).try_for_each(|command| write_all(command, folder))
}

/// Returns a page as roff.
fn page(command: &clap::Command) -> Result<String> {
    let mut page = Vec::new();
    Man::new(command.clone()).render(&mut page)?;
    Ok(String::from_utf8_lossy(&page).into_owned())
}

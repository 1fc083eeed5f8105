//! The start of this process: its arguments, and the words that start the command again.
//!
//! Ranks and servers are processes of this command. If Python runs the command, the program file of the
//! process is the interpreter, so the command is the script or module that called it.

use std::ffi::OsString;
use std::sync::OnceLock;

use anyhow::{Context, Result};

/// Script or module that runs the command in the process of an interpreter.
#[derive(Debug)]
pub struct Script {
    /// The words that start the script; the first is the interpreter's program file.
    pub words: Vec<OsString>,
    /// The arguments typed after these words.
    pub arguments: Vec<OsString>,
}

static SCRIPT: OnceLock<Script> = OnceLock::new();

/// Sets the script that this process runs. Later calls have no effect.
pub fn set(script: Script) {
    let _ = SCRIPT.set(script);
}

/// Returns the interpreter that runs this process, if there is one.
pub fn interpreter() -> Option<OsString> {
    SCRIPT.get()?.words.first().cloned()
}

/// Returns the arguments typed after the command's name.
pub fn arguments() -> Vec<OsString> {
    match SCRIPT.get() {
        Some(script) => script.arguments.clone(),
        None => std::env::args_os().skip(1).collect(),
    }
}

/// Returns the words that start this command.
///
/// # Errors
/// If the path of this program's file is unknown.
pub fn program() -> Result<Vec<OsString>> {
    if let Some(script) = SCRIPT.get() {
        return Ok(script.words.clone());
    }
    let me = std::env::current_exe().context("finding thinwire's own program file")?;
    Ok(vec![me.into_os_string()])
}

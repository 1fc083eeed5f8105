//! How this process was started: what was typed, and the words that start the command once more.
//!
//! Ranks and servers are processes of this command. Where Python runs it, the program file of the process is the
//! interpreter, so the script or the module that called is the command.

use std::ffi::OsString;
use std::sync::OnceLock;

use anyhow::{Context, Result};

/// Script or module of an interpreter that runs the command in the interpreter's process.
#[derive(Debug)]
pub struct Script {
    /// The words that start it, first the interpreter's program file.
    pub words: Vec<OsString>,
    /// What was typed after it.
    pub arguments: Vec<OsString>,
}

static SCRIPT: OnceLock<Script> = OnceLock::new();

/// Sets the script that this process runs; the first one counts.
pub fn set(script: Script) {
    let _ = SCRIPT.set(script);
}

/// Returns the interpreter that runs this process, if one does.
pub fn interpreter() -> Option<OsString> {
    SCRIPT.get()?.words.first().cloned()
}

/// Returns what was typed after the command's name.
pub fn arguments() -> Vec<OsString> {
    match SCRIPT.get() {
        Some(script) => script.arguments.clone(),
        None => std::env::args_os().skip(1).collect(),
    }
}

/// Returns the words that start this command.
///
/// # Errors
/// If this program does not know its own file.
pub fn program() -> Result<Vec<OsString>> {
    if let Some(script) = SCRIPT.get() {
        return Ok(script.words.clone());
    }
    let me = std::env::current_exe().context("finding thinwire's own program file")?;
    Ok(vec![me.into_os_string()])
}

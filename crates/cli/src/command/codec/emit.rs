//! `thinwire codec emit`: what a text becomes for a device.

use anyhow::{Result, anyhow};

use super::check::{bytes, parsed};
use crate::failure::hinted;
use crate::output::{print, say, short};

/// Print the source code that a codec becomes on a device.
#[derive(clap::Args)]
pub struct Args {
    /// File, optionally with parameters: mine.codec:tau=0.02
    #[arg(value_name = "FILE")]
    codec: String,
    /// Kernels in CUDA C, which a training compiles when it starts
    #[arg(long, required = true)]
    cuda: bool,
}

/// Prints the source, and answers no if the text is refused or there are no kernels for it.
///
/// # Errors
/// If there is no such codec, or it is no text, or standard output is closed.
pub fn run(args: &Args) -> Result<u8> {
    let Some(choice) = parsed(&args.codec)? else { return Ok(1) };
    let Some(emitted) = bytes(&choice)?.cuda() else {
        let error = anyhow!("{} is built in, no text", short(&args.codec));
        return Err(hinted(error, "thinwire codec emit --cuda ./mine.codec prints that of a file"));
    };
    match emitted {
        Ok(cuda) => print(cuda.text).map(|()| 0),
        Err(why) => {
            say(format!("no kernels, runs on the host: {why}"));
            Ok(1)
        }
    }
}

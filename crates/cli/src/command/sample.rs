//! `thinwire sample`: generates text with a checkpoint's model.

use std::io::{IsTerminal, Write};
use std::path::PathBuf;

use anyhow::{Result, ensure};
use serde::Serialize;
use thinwire_train::checkpoint;
use thinwire_train::spmd::Sampled;

use crate::output::{harmless, print_json};
use crate::training::Model;
use crate::units;

/// Generate text with a checkpoint's model.
#[derive(clap::Args)]
pub struct Args {
    /// A checkpoint, or a folder with checkpoints
    ///
    /// In a folder, or at s3://BUCKET/PREFIX, the newest checkpoint is used.
    #[arg(default_value = "thinwire-checkpoints")]
    checkpoint: PathBuf,
    /// Beginning of the text
    #[arg(long, default_value = "")]
    prompt: String,
    /// Length of the text
    #[arg(long, default_value = "400", value_name = "BYTES", value_parser = units::bytes(0..=1_u32 << 20))]
    length: u32,
    /// 0 takes the likeliest byte, 1 samples from the model's distribution
    #[arg(long, default_value_t = 0.7, value_name = "T")]
    temperature: f32,
    /// Seed of the text; equal seeds give equal texts
    #[arg(long, default_value_t = 1, value_name = "N")]
    seed: u64,
    /// One JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Line {
    checkpoint: String,
    step: u64,
    prompt: String,
    text: String,
}

/// Prints the prompt and the generated text.
///
/// # Errors
/// If the checkpoint is missing or damaged.
pub fn run(args: &Args) -> Result<u8> {
    let temperature = args.temperature;
    ensure!(
        temperature.is_finite() && temperature >= 0.0,
        "temperature {temperature}, expected 0 or more"
    );
    let checkpoint = checkpoint::resolve(&args.checkpoint)?;
    let options = Sampled { bytes: args.length as usize, temperature, seed: args.seed };
    let model = Model::kept(&checkpoint)?.writer(args.prompt.len() + options.bytes)?;
    let values = checkpoint.values(model.parameters())?;
    let text = model.sample(&values, args.prompt.as_bytes(), &options)?;
    if args.json {
        print_json(&Line {
            checkpoint: checkpoint.path().display().to_string(),
            step: checkpoint.progress().step,
            prompt: args.prompt.clone(),
            text: String::from_utf8_lossy(&text).into_owned(),
        })?;
        return Ok(0);
    }
    let mut output = std::io::stdout().lock();
    output.write_all(args.prompt.as_bytes())?;
    if output.is_terminal() {
        output.write_all(harmless(&text).as_bytes())?;
    } else {
        output.write_all(&text)?;
    }
    output.write_all(b"\n")?;
    output.flush()?;
    Ok(0)
}

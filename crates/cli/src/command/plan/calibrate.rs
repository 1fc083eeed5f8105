//! `thinwire plan calibrate`: a cluster file of the ranks that are there.

use std::path::PathBuf;

use anyhow::Result;
use thinwire_collective::Group;

use crate::failure::{self, hinted};
use crate::output::print;
use crate::place::Flags;
use crate::ranks::{self, Start};
use crate::training::plan;
use crate::{file, link};

/// Measures ranks and links, and writes them as a cluster file.
#[derive(clap::Args)]
pub struct Args {
    /// Ranks to start here [default: 2]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=256), help_heading = "Ranks")]
    ranks: Option<u32>,
    /// File for the cluster [default: standard output]
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    #[command(flatten)]
    link: link::Settings,
    #[command(flatten)]
    place: Flags,
}

/// Measures in all ranks; rank 0 writes.
///
/// # Errors
/// If a rank is lost, or the file cannot be written.
pub fn run(args: &Args) -> Result<u8> {
    let output = args.output.as_deref();
    let writable = || file::ensure_place(output, "the cluster", "--output");
    ranks::prepared(&args.place, writable)?;
    let place = match ranks::start(&args.place, args.ranks, 2)? {
        Start::Rank(place) => place,
        Start::Done(code) => return Ok(code),
    };
    let meeting = args.link.meet(&place, &args.place, args.link.limit())?;
    let group = Group::new(meeting.link()?).with_timeout(args.link.timeout);
    let measured = thinwire_train::with_threads(ranks::threads(&place), || plan::calibrate(group));
    let (text, _group) = measured?.map_err(|error| match failure::is_echo(&error) {
        true => hinted(error, "look at that rank's own output, and calibrate again"),
        false => error,
    })?;
    match output {
        _ if place.rank > 0 => {}
        Some(path) => file::write(path, &text)?,
        None => print(text)?,
    }
    Ok(0)
}

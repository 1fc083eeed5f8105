//! `thinwire resize`: another number of ranks for an elastic job.

use anyhow::Result;
use thinwire_plan::report::counted;

use crate::operator::Flags;
use crate::output::say;

/// Set how many ranks an elastic job should have; its launcher starts the missing ranks.
#[derive(clap::Args)]
pub struct Args {
    /// Number of ranks, within the job's own MIN:MAX
    #[arg(value_name = "N", value_parser = ranks)]
    ranks: u32,
    #[command(flatten)]
    operator: Flags,
}

/// Reads a number of ranks.
///
/// # Errors
/// If the text is no number, or 0.
fn ranks(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(0) => Err("a job of no ranks would train nothing, expected at least 1; \
                      a signal to the launcher ends the job"
            .to_owned()),
        Ok(ranks) => Ok(ranks),
        Err(_) => Err("expected a number of ranks within the job's own MIN:MAX".to_owned()),
    }
}

/// Tells the coordinator.
///
/// # Errors
/// If the coordinator cannot be reached, or the job's limits exclude the number.
pub fn run(args: &Args) -> Result<u8> {
    args.operator.connect()?.resize(args.ranks)?;
    say(format!("the job is to have {} now", counted(args.ranks as usize, "rank")));
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_has_at_least_one_rank() {
        assert_eq!(ranks("3"), Ok(3));
        assert!(ranks("0").unwrap_err().starts_with("a job of no ranks"));
        for text in ["", "-1", "two", "4294967296"] {
            let said = "expected a number of ranks within the job's own MIN:MAX";
            assert_eq!(ranks(text), Err(said.to_owned()));
        }
    }
}

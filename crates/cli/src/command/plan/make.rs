//! `thinwire plan make`: decides which part of a model runs on which device.

use std::path::PathBuf;

use anyhow::{Result, anyhow};
use serde::Serialize;
use thinwire_plan::report::{PlanFile, Traffic, explain, plan_file, report, traffic};
use thinwire_report::plan;

use super::choices::Choices;
use super::subject::Subject;
use crate::codings;
use crate::failure::OrHint;
use crate::file;
use crate::output::{print, print_json};
use crate::training::command_line;
use crate::word_wrap::wrapped;

/// Decide which part of a model runs on which device.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    subject: Subject,
    #[command(flatten)]
    choices: Choices,
    /// Show every strategy of a node, and why one was chosen
    #[arg(long, value_name = "NODE", conflicts_with = "json")]
    explain: Option<String>,
    /// File for a page about the plan
    ///
    /// It shows the pipeline's timeline, mesh, memory, links and expert plans.
    #[arg(long, value_name = "FILE")]
    page: Option<PathBuf>,
}

/// A plan with the traffic of every tensor.
#[derive(Serialize)]
struct Planned<'a> {
    #[serde(flatten)]
    plan: &'a PlanFile,
    moved: Traffic,
}

/// Makes a plan and prints the reasons for it.
///
/// # Errors
/// If the cluster or the model cannot be read, no plan fits in memory, or the plan cannot be written.
pub fn run(args: &Args) -> Result<u8> {
    let subject = &args.subject;
    check_outputs(args)?;
    let cluster = subject.cluster()?;
    let source = subject.source()?;
    let settings = args.choices.settings()?;
    codings::tell(&settings);
    let mut planner = subject.planner(&source, settings);
    let found = planner.plan(&cluster)?;
    let plan = plan_file(&subject.model, source.1, &planner, &cluster, &found)?;
    subject.write(&plan)?;
    if let Some(path) = &args.page {
        let command = command_line();
        file::write(path, &plan::page(&plan, &planner, &cluster, &found, &command)?)?;
    }
    if subject.json {
        let moved = traffic(&planner, &cluster, &found)?;
        print_json(&Planned { plan: &plan, moved })?;
    } else if let Some(node) = &args.explain {
        print(wrapped(&explain(&planner, &cluster, &found, node)?))?;
    } else {
        print(wrapped(&report(&planner, &cluster, &found)?))?;
    }
    Ok(0)
}

/// Checks before planning that all outputs can be written.
fn check_outputs(args: &Args) -> Result<()> {
    let output = args.subject.output.as_deref();
    file::ensure_place(output, "the plan", "--output")?;
    file::ensure_place(args.page.as_deref(), "the page", "--page")?;
    if let Some(path) = output.filter(|path| args.page.as_deref() == Some(*path)) {
        let error = anyhow!("--output and --page are both {}", path.display());
        return Err(error).or_hint("give two different files");
    }
    Ok(())
}

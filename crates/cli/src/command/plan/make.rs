//! `thinwire plan make`: which part of a model runs where.

use std::path::PathBuf;

use anyhow::{Result, anyhow};
use serde::Serialize;
use thinwire_plan::Cluster;
use thinwire_plan::output::{Moved, PlanFile, compare, explain, moved, report, robust_report};
use thinwire_plan::search::{Found, Measure, Planner, Robust, Scenario, Settings, robust};

use super::choices::Choices;
use super::subject::Subject;
use crate::codings;
use crate::failure::OrHint;
use crate::file;
use crate::output::{print, print_json, say};
use crate::plan_page;
use crate::training::command_line;
use crate::wrap::wrapped;

/// Decides which part of a model runs on which device.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    subject: Subject,
    #[command(flatten)]
    choices: Choices,
    /// Shows also what codecs would save if they were chosen after everything else
    #[arg(long, requires = "codecs", conflicts_with_all = ["json", "explain"])]
    compare: bool,
    /// Prefers the plan that does best whatever befalls: 'worst' case, or 'tail:PART' of them
    #[arg(long, value_name = "MEASURE", num_args = 0..=1, default_missing_value = "worst", value_parser = measure)]
    robust: Option<Measure>,
    /// Scenarios as a TOML file [default: half the bandwidth, a slow device, a lost node]
    #[arg(long, value_name = "FILE", requires = "robust")]
    scenarios: Option<PathBuf>,
    /// Shows every strategy of a node, what it takes and why one was chosen
    #[arg(long, value_name = "NODE", conflicts_with = "json")]
    explain: Option<String>,
    /// Writes a page here: the pipeline's timeline, mesh, memory, links, expert plans
    #[arg(long, value_name = "FILE")]
    page: Option<PathBuf>,
}

/// A plan with what it sends of every tensor.
#[derive(Serialize)]
struct Planned<'a> {
    #[serde(flatten)]
    plan: &'a PlanFile,
    moved: Moved,
}

/// Makes a plan and says why.
///
/// # Errors
/// If the cluster or the model cannot be read, nothing fits, or the plan cannot be written.
pub fn run(args: &Args) -> Result<u8> {
    let subject = &args.subject;
    check_outputs(args)?;
    let cluster = subject.cluster()?;
    let source = subject.source()?;
    let settings = args.choices.settings()?;
    codings::tell(&settings);
    let mut planner = subject.planner(&source, settings.clone());
    let robust = robust_plan(args, &mut planner, &cluster)?;
    let (cluster, found) = match &robust {
        Some(robust) => (robust.cluster.clone(), robust.found.clone()),
        None => planner.placed(&cluster)?,
    };
    let plan = PlanFile::new(&subject.model, source.1, &planner, &cluster, &found)?;
    subject.write(&plan)?;
    if let Some(path) = &args.page {
        let command = command_line();
        let page = plan_page::page(&plan, &planner, &cluster, (&found, robust.as_ref()), &command)?;
        file::replace(path, page.as_bytes())?;
        say(format!("wrote {}", path.display()));
    }
    if subject.json {
        let moved = moved(&planner, &cluster, &found)?;
        print_json(&Planned { plan: &plan, moved })?;
        robust.iter().for_each(|robust| robust_report(robust).trim_end().lines().for_each(say));
    } else if let Some(node) = &args.explain {
        print(wrapped(&explain(&planner, &cluster, &found, node)?))?;
    } else {
        print(wrapped(&report(&planner, &cluster, &found)?))?;
        let robust = robust.iter().map(|robust| format!("\n{}", wrapped(&robust_report(robust))));
        robust.into_iter().try_for_each(print)?;
        if args.compare {
            let (codings, activation_codings) = (Vec::new(), Vec::new());
            let raw = Settings { codings, activation_codings, ..settings };
            let raw = subject.planner(&source, raw);
            print(wrapped(&compared(&planner, &cluster, &found, raw)?))?;
        }
    }
    Ok(0)
}

/// Finds what cannot be written before anything is planned.
fn check_outputs(args: &Args) -> Result<()> {
    let output = args.subject.output.as_deref();
    output.map_or(Ok(()), |path| file::ensure_place(path, "the plan", "--output"))?;
    args.page.as_deref().map_or(Ok(()), |path| file::ensure_place(path, "the page", "--page"))?;
    if let Some(path) = output.filter(|path| args.page.as_deref() == Some(*path)) {
        let error = anyhow!("--output and --page are both {}", path.display());
        return Err(error).or_hint("give two files");
    }
    Ok(())
}

fn robust_plan(args: &Args, planner: &mut Planner, cluster: &Cluster) -> Result<Option<Robust>> {
    let Some(measure) = args.robust else { return Ok(None) };
    let scenarios = match &args.scenarios {
        None => Scenario::usual(cluster),
        Some(path) => {
            let text = file::text(path, &file::SCENARIOS)?;
            file::parsed(path, &file::SCENARIOS, Scenario::parse(&text, cluster))?
        }
    };
    Ok(Some(robust(planner, cluster, &scenarios, measure)?))
}

fn measure(text: &str) -> Result<Measure, String> {
    let part = text.strip_prefix("tail:").and_then(|part| part.parse::<f64>().ok());
    match (text, part) {
        ("worst", _) => Ok(Measure::Worst),
        (_, Some(part)) if part > 0.0 && part <= 1.0 => Ok(Measure::Tail(part)),
        _ => Err(format!("'{text}' is no measure, expected worst or tail:PART, as in tail:0.2")),
    }
}

/// The plan beside the one without codecs, and the one whose codecs come after everything else.
fn compared(
    planner: &Planner,
    cluster: &Cluster,
    found: &Found,
    mut raw: Planner,
) -> Result<String> {
    let raw = raw.plan(cluster)?.best;
    Ok(compare(planner, cluster, &raw, &found.best)?)
}

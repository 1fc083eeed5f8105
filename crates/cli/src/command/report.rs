//! `thinwire report`: trainings that are over, side by side.

use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow};
use thinwire_report::training::{self, Record};

use crate::failure::{OrHint, hinted};
use crate::file::{self, Sort};
use crate::output::{print, print_json, say};
use crate::training::{OUTPUT, PathFlag};

/// Records of trainings, which are as long as their losses.
const RECORD: Sort = Sort {
    name: "a record of trainings",
    bytes_max: 1 << 30,
    hint: "thinwire train --json > FILE writes one",
};

/// Compare finished trainings in one table and one page.
///
/// Each file holds the output of `thinwire train --json` or of `thinwire compare --json`.
#[derive(clap::Args)]
pub struct Args {
    /// Records of trainings
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// Page with the comparison, or none
    #[arg(long, default_value = "report.html", value_name = "PATH", help_heading = OUTPUT)]
    report: PathFlag,
    /// One JSON object per training on standard output
    #[arg(long, help_heading = OUTPUT)]
    json: bool,
}

/// Reads all files, writes the page and prints the table.
///
/// # Errors
/// If a file has no records, or the page cannot be written.
pub fn run(args: &Args) -> Result<u8> {
    let page = args.report.0.as_deref();
    file::ensure_place(page, "the report", "--report, or none")?;
    if let Some(page) = page {
        file::ensure_other("--report", page, args.files.iter().map(PathBuf::as_path))?;
    }
    let records: Vec<Record> = args.files.iter().map(|path| read(path)).collect::<Result<_>>()?;
    if args.json {
        let trainings = records.iter().flat_map(|record| &record.trainings);
        trainings.flat_map(training::lines).try_for_each(|line| print_json(&line))?;
    }
    let report = training::compared(records);
    if let Some(path) = page {
        file::replace(path, training::page(&report).as_bytes())?;
        say(format!("report: {}", path.display()));
    }
    if !args.json {
        print(training::summary(&report))?;
    }
    Ok(0)
}

fn read(path: &Path) -> Result<Record> {
    let shown = path.display();
    let trainings = training::read(&file::text(path, &RECORD)?).map_err(|(line, error)| {
        anyhow!("{shown}, line {line}, is no record of a training: {error}")
    });
    let trainings = trainings.or_hint(RECORD.hint)?;
    if trainings.is_empty() {
        return Err(hinted(anyhow!("{shown} is empty, expected a record per line"), RECORD.hint));
    }
    let name =
        path.file_stem().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
    Ok(Record { name, trainings })
}

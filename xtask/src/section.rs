//! The sections of `check`, and how a section runs: announced, timed, stopped at the first failure.

use std::time::Instant;

use anyhow::{Context, Result, bail};

use crate::process::{cargo, cargo_of_all, succeed};
use crate::{python, test, tidy};

/// A section of the checks.
struct Section {
    name: &'static str,
    run: fn() -> Result<()>,
}

/// Every section, cheapest first.
const SECTIONS: [Section; 8] = [
    Section { name: "fmt", run: fmt },
    Section { name: "tidy", run: tidy::run },
    Section { name: "clippy", run: clippy },
    Section { name: "ruff", run: python::lint },
    Section { name: "types", run: python::check_types },
    Section { name: "test", run: || test::run(&[]) },
    Section { name: "doc", run: doc },
    Section { name: "site", run: python::site },
];

/// Runs the named sections in the table's order, or all of them, up to the first that fails.
pub fn check(names: &[String]) -> Result<()> {
    let chosen = choose(names)?;
    let start = Instant::now();
    for section in &chosen {
        eprintln!("== {} ...", section.name);
        let start = Instant::now();
        (section.run)().with_context(|| format!("section '{}' failed", section.name))?;
        eprintln!("== {} ok in {:.1} s", section.name, start.elapsed().as_secs_f64());
    }
    eprintln!("== {} sections ok in {:.1} s", chosen.len(), start.elapsed().as_secs_f64());
    Ok(())
}

fn choose(names: &[String]) -> Result<Vec<&'static Section>> {
    let known: Vec<&str> = SECTIONS.iter().map(|section| section.name).collect();
    if let Some(unknown) = names.iter().find(|name| !known.contains(&name.as_str())) {
        bail!("unknown section '{unknown}', expected one of {}", known.join(", "));
    }
    let wanted = |section: &&Section| names.is_empty() || names.iter().any(|n| n == section.name);
    Ok(SECTIONS.iter().filter(wanted).collect())
}

fn fmt() -> Result<()> {
    succeed(&mut cargo(&["fmt", "--all", "--check"]))?;
    let alone = ["fuzz/Cargo.toml", "integrations/burn/Cargo.toml"];
    let check = |manifest| succeed(&mut cargo(&["fmt", "--manifest-path", manifest, "--check"]));
    alone.into_iter().try_for_each(check)
}

fn clippy() -> Result<()> {
    succeed(cargo_of_all("clippy").args(["--all-targets", "--", "-D", "warnings"]))
}

fn doc() -> Result<()> {
    // A feature of the Python package brings its dependencies those that tests turn on: they are clippy's then.
    let arguments = ["--no-deps", "--features", "thinwire-py/simulated"];
    succeed(cargo_of_all("doc").args(arguments).env("RUSTDOCFLAGS", "-D warnings"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(chosen: &[&Section]) -> Vec<&'static str> {
        chosen.iter().map(|section| section.name).collect()
    }

    #[test]
    fn sections_run_in_the_order_of_the_table() {
        let asked = ["clippy".to_owned(), "fmt".to_owned()];
        assert_eq!(names(&choose(&asked).unwrap()), ["fmt", "clippy"]);
        assert_eq!(choose(&[]).unwrap().len(), SECTIONS.len());
    }

    #[test]
    fn an_unknown_section_is_refused() {
        let error = choose(&["tests".to_owned()]).err().unwrap().to_string();
        assert_eq!(
            error,
            "unknown section 'tests', expected one of fmt, tidy, clippy, ruff, types, test, doc, site"
        );
    }
}

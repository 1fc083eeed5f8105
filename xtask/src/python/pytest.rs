//! The run of pytest, and what its lines say.

use std::fs;

use anyhow::{Context, Result, bail};

use super::environment::Environment;
use super::package::Package;
use crate::process::{follow, print, root};
use crate::summary::Summary;

/// Every failure, skipped test and expected failure with its reason, each on a line of its own.
const FLAGS: [&str; 5] = ["-m", "pytest", "-rfEsx", "--no-fold-skipped", "--color=no"];

/// Two files at a time, in the order of `conftest.py`, beside two test programs in Rust: with three, programs of other
/// frameworks run into their own timeouts on two cores.
const IN_PARALLEL: [&str; 5] = ["-n", "2", "--dist", "loadfile", "--no-loadscope-reorder"];

/// The beginnings of names of files that run in the environment of JAX.
const OF_JAX: [&str; 3] = ["test_jax_", "test_keras_", "test_tensorflow_"];

/// The exit code of pytest where the arguments select no test, as `-k` may in one of two environments.
const NOTHING_SELECTED: i32 = 5;

/// Returns arguments for the environment of PyTorch; none if they name files of the other alone.
pub fn of_torch(arguments: &[String]) -> Option<Vec<String>> {
    let others = || OF_JAX.map(|start| format!("--ignore-glob=*/{start}*")).into_iter();
    if !arguments.iter().any(|each| is_file(each)) {
        let parallel = IN_PARALLEL.iter().filter(|_| arguments.is_empty());
        let parallel = parallel.map(|&each| each.to_owned());
        return Some(arguments.iter().cloned().chain(others()).chain(parallel).collect());
    }
    let own: Vec<_> = arguments.iter().filter(|each| !is_of_jax(each)).cloned().collect();
    own.iter().any(|each| is_file(each)).then_some(own)
}

/// Returns arguments for the environment of JAX; none if no file is meant that runs there. Its files are few, so they
/// run one after the other.
pub fn of_jax(arguments: &[String]) -> Result<Option<Vec<String>>> {
    let named = arguments.iter().any(|each| is_file(each));
    let mut own: Vec<String> =
        arguments.iter().filter(|each| !is_file(each) || is_of_jax(each)).cloned().collect();
    if !named {
        // A folder would bring the files of the other environment.
        own.retain(|each| !root().join(each).is_dir());
        let tests = root().join("python/tests");
        let mut files = Vec::new();
        for entry in fs::read_dir(&tests).with_context(|| format!("reading {}", tests.display()))? {
            files.push(format!("python/tests/{}", entry?.file_name().display()));
        }
        files.retain(|each| is_file(each) && is_of_jax(each));
        files.sort();
        own.extend(files);
    }
    Ok(own.iter().any(|each| is_file(each)).then_some(own))
}

/// Whether an argument of pytest names a test, not an option.
fn is_file(argument: &str) -> bool {
    argument.contains(".py") && !argument.starts_with('-')
}

fn is_of_jax(argument: &str) -> bool {
    let file = argument.split("::").next().unwrap_or(argument);
    let name = file.rsplit('/').next().unwrap_or(file);
    OF_JAX.iter().any(|start| name.starts_with(start))
}

/// Runs the tests against the installed package; its time is bounded in `conftest.py`. Tests of Keras take torch
/// from the environment `torch`.
pub fn run(
    environment: &Environment,
    torch: &Environment,
    package: &Package,
    arguments: &[String],
) -> Result<Summary> {
    let mut command = environment.tool("python");
    command.args(FLAGS).args(arguments);
    command.env("PYTHONPATH", &package.site).env("THINWIRE_WHEEL", &package.wheel);
    command.env("TORCH_PACKAGES", torch.site_packages()?);
    let mut lines = Vec::new();
    let status = follow(&mut command, |line| {
        lines.push(line.to_owned());
        print(line)
    })?;
    let Some(status) = status else { bail!("pytest hung") };
    let mut summary = summarize(&lines);
    let selects = arguments.iter().any(|each| each.starts_with("-k") || each.starts_with("-m"));
    let ended = status.success() || selects && status.code() == Some(NOTHING_SELECTED);
    if !ended && summary.failed.is_empty() {
        summary.failed.push(format!("pytest ended with {status}"));
    }
    Ok(summary)
}

/// Reads the closing lines of pytest; whatever stands above them, tests may have printed.
fn summarize<S: AsRef<str>>(lines: &[S]) -> Summary {
    let mut summary = Summary::default();
    let lines: Vec<&str> = lines.iter().map(AsRef::as_ref).collect();
    summary.passed = lines.last().and_then(|line| count(line, "passed")).unwrap_or(0);
    let heading = lines.iter().rposition(|line| line.contains(" short test summary info "));
    for line in heading.map_or(&[][..], |at| &lines[at..]) {
        let (name, reason) = line.split_once(" - ").unwrap_or((line, "no reason given"));
        if let Some(name) = name.strip_prefix("FAILED ").or_else(|| name.strip_prefix("ERROR ")) {
            summary.failed.push(name.to_owned());
        } else if let Some(name) = name.strip_prefix("SKIPPED ") {
            let reason = reason.strip_prefix("Skipped: ").unwrap_or(reason);
            summary.add(Summary::skipped(name, reason));
        } else if let Some(name) = name.strip_prefix("XFAIL ") {
            summary.add(Summary::skipped(name, reason));
        }
    }
    summary
}

/// The number before `word` in the last line of pytest, "== 1 failed, 4 passed in 8.54s ==".
fn count(line: &str, word: &str) -> Option<usize> {
    let words: Vec<&str> = line.split([' ', ',']).filter(|word| !word.is_empty()).collect();
    let at = words.iter().position(|found| *found == word)?;
    words.get(at.checked_sub(1)?)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_runs_in_one_environment() {
        let given = |arguments: &[&str]| arguments.iter().map(|&each| each.to_owned()).collect();
        let torch: Vec<String> = given(&["python/tests/test_numpy.py", "-x"]);
        let jax: Vec<String> = given(&["python/tests/test_jax_exchange.py::test_x", "-x"]);
        let (both, option): (Vec<_>, Vec<_>) = ([&torch[..], &jax[..]].concat(), given(&["-x"]));
        assert_eq!(of_torch(&torch), Some(torch.clone()));
        assert_eq!(of_torch(&jax), None);
        assert_eq!(of_torch(&both).map(|own| own.len()), Some(3));
        assert_eq!(of_torch(&option).map(|own| own.len()), Some(1 + OF_JAX.len()));
        assert_eq!(of_jax(&torch).unwrap(), None);
        let all = of_jax(&given(&[])).unwrap().unwrap();
        assert!(
            all.len() > 3 && all.iter().all(|each| is_file(each) && is_of_jax(each)),
            "{all:?}"
        );
        assert_eq!(of_jax(&jax).unwrap(), Some(jax.clone()));
        assert_eq!(of_jax(&both).unwrap().map(|own| own.len()), Some(3));
    }

    #[test]
    fn results_are_read_from_the_lines() {
        let summary = summarize(&[
            "============================= test session starts ==============================",
            "python/tests/test_hook.py ..Fs.                                          [100%]",
            "ERROR   root:backend.py:7 a rank was lost",
            "=========================== short test summary info ============================",
            "SKIPPED python/tests/test_hook.py::test_fsdp - Skipped: torch is not installed",
            "XFAIL python/tests/test_hook.py::test_joins - known to hang in torch",
            "FAILED python/tests/test_hook.py::test_ranks_agree - assert 1 == 2",
            "ERROR python/tests/test_old.py",
            "============== 1 failed, 13 passed, 1 skipped, 1 xfailed, 1 error in 13.86s =============",
        ]);
        assert_eq!(
            summary.report(),
            "tests: 13 passed, 2 failed, 2 skipped\n  \
             failed  python/tests/test_hook.py::test_ranks_agree\n  \
             failed  python/tests/test_old.py\n  \
             skipped python/tests/test_hook.py::test_fsdp: torch is not installed\n  \
             skipped python/tests/test_hook.py::test_joins: known to hang in torch\n"
        );
    }

    #[test]
    fn short_output_is_read_as_well() {
        let summary = summarize(&["..", "2 passed in 0.02s"]);
        assert_eq!(summary, Summary { passed: 2, ..Summary::default() });
        assert_eq!(summarize(&["no tests ran in 0.00s"]), Summary::default());
    }
}

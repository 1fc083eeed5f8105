//! The Python that the tests run on: 3.11 or 3.12, the versions that both frameworks support.

use std::process::Command;

use anyhow::{Result, bail};

use super::missing::Missing;

const VARIABLE: &str = "THINWIRE_PYTHON";
const PROGRAMS: [&str; 3] = ["python3.11", "python3.12", "python3"];
const VERSIONS: [&str; 2] = ["3.11", "3.12"];

/// Prints the version on one line, and on the next what else an environment depends on.
const QUESTION: &str = "import sys, venv, ensurepip\n\
    print('%d.%d' % sys.version_info[:2])\n\
    print(sys.version.split()[0], sys.base_prefix)";

/// A Python that can make virtual environments.
#[derive(Debug, PartialEq, Eq)]
pub struct Interpreter {
    /// The program, a name or a path.
    pub program: String,
    /// "3.11".
    pub version: String,
    /// The whole version and where it is installed: an environment made from another is another.
    pub identity: String,
}

/// The program that `THINWIRE_PYTHON` names, or else the first suitable one on the path.
pub fn find() -> Result<Interpreter> {
    if let Some(program) = std::env::var(VARIABLE).ok().filter(|program| !program.is_empty()) {
        return match ask(&program) {
            Some(python) if suits(&python) => Ok(python),
            Some(python) => bail!(
                "{VARIABLE}={program} is Python {}, expected {}",
                python.version,
                VERSIONS.join(" or ")
            ),
            None => bail!("{VARIABLE}={program} is no Python with venv and ensurepip"),
        };
    }
    PROGRAMS.iter().filter_map(|program| ask(program)).find(suits).ok_or_else(|| {
        let missing = "no Python 3.11 or 3.12 with venv on the path";
        Missing(format!("{missing}; set {VARIABLE} to one elsewhere")).into()
    })
}

fn suits(python: &Interpreter) -> bool {
    VERSIONS.contains(&python.version.as_str())
}

/// Asks `program` about itself; none if it is no Python with all its parts.
fn ask(program: &str) -> Option<Interpreter> {
    let output = Command::new(program).args(["-c", QUESTION]).output().ok()?;
    let answer = String::from_utf8(output.stdout).ok()?;
    let (version, identity) = answer.trim_end().split_once('\n')?;
    let [program, version, identity] = [program, version, identity].map(str::to_owned);
    output.status.success().then_some(Interpreter { program, version, identity })
}

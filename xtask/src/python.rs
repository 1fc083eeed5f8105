//! The Python package: built as users get it, installed beside the source tree, linted and tested.
//!
//! Nothing of it is written into the source tree. Without a Python that the frameworks run on, or
//! without a package registry, it is skipped with a reason; in CI (`CI=true`) that is a failure, so
//! that nobody believes in tests that never ran.

mod environment;
mod interpreter;
mod missing;
mod package;
mod pytest;
mod site;

use anyhow::{Context, Result, bail};

use crate::process::{root, succeed};
use crate::summary::Summary;
use environment::{Environment, Frameworks};
use missing::Missing;

/// Builds and tests the package; `arguments` go to pytest.
pub fn run(arguments: &[String]) -> Result<()> {
    let summary = test(arguments)?;
    eprint!("{}", summary.report());
    if !summary.failed.is_empty() {
        bail!("{} Python tests failed", summary.failed.len());
    }
    Ok(())
}

/// Builds and tests the package, and returns what the tests said.
pub fn test(arguments: &[String]) -> Result<Summary> {
    let environment = match environment(Frameworks::Torch)? {
        Ok(environment) => environment,
        Err(Missing(what)) => return Ok(Summary::skipped("every Python test", &what)),
    };
    let package = package::build(&environment).context("building the Python package")?;
    let mut summary = Summary::default();
    if let Some(arguments) = pytest::of_torch(arguments) {
        summary.add(pytest::run(&environment, &environment, &package, &arguments)?);
    }
    if let Some(arguments) = pytest::of_jax(arguments)? {
        summary.add(match self::environment(Frameworks::Jax)? {
            Ok(jax) => pytest::run(&jax, &environment, &package, &arguments)?,
            Err(Missing(what)) => {
                Summary::skipped("every test of JAX, Keras and TensorFlow", &what)
            }
        });
    }
    if summary == Summary::default() {
        summary.failed.push(format!("no test has run of {}", arguments.join(" ")));
    }
    Ok(summary)
}

/// Checks the style of every Python file.
pub fn lint() -> Result<()> {
    let Some(environment) = tools("ruff")? else { return Ok(()) };
    succeed(environment.tool("ruff").args(["check", "--no-cache"]))?;
    succeed(environment.tool("ruff").args(["format", "--check", "--no-cache"]))
}

/// Checks the types of the package; `pyproject.toml` says how.
pub fn check_types() -> Result<()> {
    match tools("mypy")? {
        Some(environment) => succeed(&mut environment.tool("mypy")),
        None => Ok(()),
    }
}

/// The environment that has the tools; none, and that is said, where this machine cannot have it.
fn tools(tool: &str) -> Result<Option<Environment>> {
    match environment(Frameworks::Torch)? {
        Ok(environment) => Ok(Some(environment)),
        Err(Missing(what)) => {
            eprintln!("skipped {tool}: {what}");
            Ok(None)
        }
    }
}

/// Builds the site of the docs, with the reference of the package that the tests use.
pub fn site() -> Result<()> {
    let made = interpreter::find().and_then(|python| {
        let environment = environment::ready(&python, Frameworks::Torch)?;
        let sphinx = environment.packages(&root().join("docs/requirements.txt"))?;
        Ok((python, environment, sphinx))
    });
    let (python, environment, sphinx) = match unless_missing(made)? {
        Ok(made) => made,
        Err(Missing(what)) => {
            eprintln!("skipped the site: {what}");
            return Ok(());
        }
    };
    let package = package::build(&environment).context("building the Python package")?;
    site::build(&python, &package, &sphinx)
}

/// An environment, or what keeps this machine from having it, which CI does not put up with.
fn environment(frameworks: Frameworks) -> Result<Result<Environment, Missing>> {
    unless_missing(interpreter::find().and_then(|python| environment::ready(&python, frameworks)))
}

/// Parts what this machine lacks from other errors; in CI it is an error like them.
fn unless_missing<T>(made: Result<T>) -> Result<Result<T, Missing>> {
    let in_ci = std::env::var("CI").is_ok_and(|value| value == "true");
    match made.map_err(|error| error.downcast::<Missing>()) {
        Ok(made) => Ok(Ok(made)),
        Err(Ok(missing)) if !in_ci => Ok(Err(missing)),
        Err(Ok(missing)) => Err(missing).context("nothing is skipped in CI"),
        Err(Err(error)) => Err(error),
    }
}

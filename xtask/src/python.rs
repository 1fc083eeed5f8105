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
pub use missing::Missing;
use package::Package;

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
    let built = match build()? {
        Ok(built) => built,
        Err(missing) => return Ok(skipped(&missing)),
    };
    let mut summary = built.test_torch(arguments)?;
    summary.add(built.test_jax(arguments)?);
    if summary == Summary::default() {
        summary.failed.push(format!("no test has run of {}", arguments.join(" ")));
    }
    Ok(summary)
}

/// What a run without any Python says.
pub fn skipped(Missing(what): &Missing) -> Summary {
    Summary::skipped("every Python test", what)
}

/// The package, and the environment of PyTorch that has built it.
pub struct Built {
    environment: Environment,
    package: Package,
}

/// Builds the package, where this machine has what that takes.
pub fn build() -> Result<Result<Built, Missing>> {
    let environment = match environment(Frameworks::Torch)? {
        Ok(environment) => environment,
        Err(missing) => return Ok(Err(missing)),
    };
    let package = package::build(&environment).context("building the Python package")?;
    Ok(Ok(Built { environment, package }))
}

impl Built {
    /// Runs the tests of PyTorch, MindSpore and the package itself that the arguments select.
    pub fn test_torch(&self, arguments: &[String]) -> Result<Summary> {
        match pytest::of_torch(arguments) {
            Some(arguments) => {
                pytest::run(&self.environment, &self.environment, &self.package, &arguments)
            }
            None => Ok(Summary::default()),
        }
    }

    /// Runs the tests of JAX, Keras and TensorFlow that the arguments select.
    pub fn test_jax(&self, arguments: &[String]) -> Result<Summary> {
        let Some(arguments) = pytest::of_jax(arguments)? else { return Ok(Summary::default()) };
        match self::environment(Frameworks::Jax)? {
            Ok(jax) => pytest::run(&jax, &self.environment, &self.package, &arguments),
            Err(Missing(what)) => {
                Ok(Summary::skipped("every test of JAX, Keras and TensorFlow", &what))
            }
        }
    }
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

//! Flags of commands that connect to the coordinator of an elastic job.

use std::time::Duration;

use anyhow::{Result, anyhow};
use thinwire_job::elastic::{JobAddress, Operator, Store};
use thinwire_job::{Form, Kind, Overrides, process};
use thinwire_link as link;

use crate::failure::hinted;
use crate::output::say;
use crate::patience::Patience;

/// Time after which a waiting user is told the reason.
const EXPLAINED_AFTER: Duration = Duration::from_secs(2);
/// Time in which a coordinator must answer.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The coordinator of a job that runs.
#[derive(clap::Args, Clone, Debug)]
#[group(skip)]
pub struct Flags {
    /// The job's coordinator [default: THINWIRE_COORDINATOR]
    ///
    /// Address of the coordinator, as printed by the job's launcher.
    #[arg(long, value_name = "HOST:PORT")]
    coordinator: Option<String>,
    /// The store of the job's coordinator
    ///
    /// This is the store that the job's launchers were given.
    #[arg(long, value_name = "etcd://HOST:PORT/JOB", conflicts_with = "coordinator")]
    store: Option<Store>,
    /// Secret of the job; better as THINWIRE_TOKEN
    #[arg(long, env = "THINWIRE_TOKEN", hide_env = true, value_name = "SECRET")]
    token: Option<String>,
}

impl Flags {
    /// Connects to the coordinator.
    ///
    /// # Errors
    /// If its address is unknown, it does not answer, or the token is wrong or missing.
    pub fn connect(&self) -> Result<Operator> {
        let JobAddress { coordinator, token, .. } = self.job_address()?;
        let line = format!("no answer yet from the coordinator at {coordinator}: still trying");
        let _patience = Patience::new(EXPLAINED_AFTER, move || say(line));
        let operator = Operator::connect(&coordinator, &token, TIMEOUT);
        operator.map_err(|error| match error.kind {
            // Somebody answers, so that the address is right.
            Kind::Link(link::Kind::TokenMismatch | link::Kind::VersionMismatch) => error.into(),
            _ => {
                hinted(error, "check the address, and that the job's launcher or coordinator runs")
            }
        })
    }

    /// Returns the job address of a process that connects to the coordinator without a place in the job.
    ///
    /// # Errors
    /// If its address is unknown, or the token is missing.
    pub fn job_address(&self) -> Result<JobAddress> {
        let given = self.store.as_ref().map(Store::to_string).or_else(|| self.coordinator.clone());
        let given = given.or_else(|| process("THINWIRE_COORDINATOR"));
        let address = given.ok_or_else(|| {
            let hint = "give --coordinator HOST:PORT as the job's launcher printed it, \
                        or set THINWIRE_COORDINATOR";
            hinted(anyhow!("the address of the coordinator is missing"), hint)
        })?;
        let given =
            Overrides { token: self.token.clone(), form: Form::Flags, ..Overrides::default() };
        let token = thinwire_job::token(&given, &address, &process)?;
        Ok(JobAddress::new(address, token)?)
    }
}

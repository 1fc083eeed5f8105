//! Policies of a training as given by flags, and the connection with which they change the number of ranks.

use std::cell::RefCell;
use std::ops::RangeInclusive;
use std::time::Duration;

use anyhow::{Result, anyhow};
use serde_json::Value;
use thinwire_job::elastic::{JobAddress, Operator};
use thinwire_sync::Policy;
use thinwire_train::Error;
use thinwire_train::session::Resizer;

use super::job::TrainingJob;
use super::recipe::Recipe;
use crate::failure::hinted;
use crate::ranks;

/// Time in which a coordinator must answer rank 0; a step waits for the answer.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Whether ranks may join and leave a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobKind {
    /// The number of ranks is fixed.
    Fixed,
    /// Ranks may join and leave.
    Elastic,
}

/// Refuses policies that have no effect in a training, or are not possible.
///
/// # Errors
/// The first such policy.
pub fn check(job: &TrainingJob, codec: Option<&Policy>, kind: JobKind) -> Result<()> {
    for policy in &job.policies {
        let refuse =
            |why: String, hint: &str| Err(hinted(anyhow!("--policy {policy} {why}"), hint));
        if job.parallelism.is_planned() {
            return refuse(
                "cannot be used with a plan: a plan is made for one batch and one number of ranks"
                    .to_owned(),
                "leave --policy out, or leave --plan and --parallel out",
            );
        }
        if policy.is_for_elastic() && kind == JobKind::Fixed {
            return refuse(
                "cannot be used in a job with a fixed number of ranks".to_owned(),
                "let ranks come and go: --ranks 1:4",
            );
        }
        let mode = job.exchange.mode;
        if policy.is_for_auto() && mode.timetable().is_some() {
            return refuse(
                format!(
                    "cannot be used with --mode {mode}: this mode has a named codec, which has no error budget"
                ),
                "leave --policy out, or give --mode all-reduce --codec auto",
            );
        }
        if policy.is_for_auto() && !codec.is_some_and(Policy::keeps_a_budget) {
            let codec = codec.map_or("none".to_owned(), Policy::to_string);
            return refuse(
                format!("cannot be used with codec {codec}, which has no error budget"),
                "give --codec auto",
            );
        }
        if let Some(most) = policy.max_batch() {
            let context = job.parallelism.model()?.context();
            Recipe { batch: most, ..job.recipe.clone() }.check_tokens(context)?;
        }
        if let Some(most) = policy.max_batch().filter(|most| *most < 2 * job.recipe.batch) {
            let batch = job.recipe.batch;
            return refuse(
                format!(
                    "has no effect on a batch of {batch} rows: it doubles the batch, to at most {most} rows"
                ),
                "give the policy a max of twice --batch or more, or give a smaller --batch",
            );
        }
        // Only rank 0 reads the file, and members may be on other machines.
        if let Some(error) = policy.check().err().filter(|_| !ranks::is_member()) {
            return refuse(
                format!("cannot be followed: {error}"),
                "before the training starts, write the present price to the file, as a number",
            );
        }
    }
    Ok(())
}

/// Changes the number of ranks through the coordinator of this process's job.
pub struct JobResizer<'a> {
    address: &'a JobAddress,
    /// Connection to the coordinator, once it is needed.
    operator: RefCell<Option<Operator>>,
}

impl<'a> JobResizer<'a> {
    /// Returns a resizer that connects on the first request.
    pub fn new(address: &'a JobAddress) -> JobResizer<'a> {
        JobResizer { address, operator: RefCell::default() }
    }

    /// Sends a request to the coordinator. The next request connects again if the connection has failed.
    fn ask<T>(
        &self,
        ask: impl Fn(&mut Operator) -> Result<T, thinwire_job::Error>,
    ) -> Result<T, Error> {
        let JobAddress { coordinator, token, .. } = self.address;
        let connect = || Operator::connect(coordinator, token, TIMEOUT);
        let mut operator = self.operator.take().map_or_else(connect, Ok).map_err(Error::caller)?;
        let answer = ask(&mut operator).map_err(Error::caller)?;
        self.operator.replace(Some(operator));
        Ok(answer)
    }
}

impl Resizer for JobResizer<'_> {
    fn bounds(&self) -> Result<RangeInclusive<u32>, Error> {
        let status = self.ask(Operator::status)?;
        let status: Value = serde_json::from_str(&status).map_err(Error::caller)?;
        let number = |key: &str| status[key].as_u64().and_then(|it| u32::try_from(it).ok());
        match (number("min"), number("max")) {
            (Some(min), Some(max)) => Ok(min..=max),
            _ => Err(Error::caller(anyhow!("the coordinator does not tell the bounds of its job"))),
        }
    }

    fn resize(&self, ranks: u32) -> Result<(), Error> {
        self.ask(|operator| operator.resize(ranks))
    }
}

//! The plan of a state, as JSON: the plan in force, the options of its training, and with `auto` everything
//! that decides on the next plan.
//!
//! It may come from a file, so all of it is checked before any of it is used.

use serde::{Deserialize, Serialize};

use crate::auto::plan::Plan;
use crate::auto::planner::saved::Saved;
use crate::checkpoint::State;
use crate::{Error, Options, Parameter, Policy, Synchronizer};

/// The plan of a state as it is written.
#[derive(Serialize)]
struct Written<'a> {
    #[serde(flatten)]
    plan: &'a Plan,
    options: Named,
    #[serde(skip_serializing_if = "Option::is_none")]
    auto: Option<Saved>,
}

/// The plan of a state as it was read; a state of an older version has only the plan.
#[derive(Deserialize)]
struct Rest {
    options: Option<Named>,
    auto: Option<Saved>,
}

/// The options without which tensors of a state mean something else.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Named {
    codec: String,
    feedback: Option<String>,
    momentum: Option<String>,
}

impl Named {
    fn of(options: &Options) -> Named {
        let momentum = options.momentum.as_ref();
        Named {
            codec: options.policy.to_string(),
            feedback: Some(options.feedback.to_string()),
            momentum: Some(momentum.map_or("none".to_owned(), |it| it.factor.to_string())),
        }
    }

    /// Returns the codec at the beginning of the fingerprint of an older version, if it has one.
    fn of_fingerprint(fingerprint: &str) -> Option<Named> {
        let ends = [", None, ", ", Some("].map(|end| fingerprint.find(end));
        let codec = fingerprint[..ends.into_iter().flatten().min()?].to_owned();
        Some(Named { codec, feedback: None, momentum: None })
    }

    /// Refuses the options of another training.
    fn check(&self, options: &Options) -> Result<(), Error> {
        let here = Named::of(options);
        let is_auto = |codec: &str| codec == "auto" || codec.starts_with("auto:");
        let alike = self.codec == here.codec || is_auto(&self.codec) && is_auto(&here.codec);
        let codec = (!alike).then_some(("codec", Some(&self.codec), Some(&here.codec)));
        let feedback = ("feedback", self.feedback.as_ref(), here.feedback.as_ref());
        let momentum = ("momentum correction", self.momentum.as_ref(), here.momentum.as_ref());
        let all = codec.into_iter().chain([feedback, momentum]);
        match all.into_iter().find(|(_, saved, here)| saved.is_some_and(|it| Some(it) != *here)) {
            Some((name, Some(saved), Some(here))) => Err(Error::Invalid(format!(
                "the state is of a training with {name} {saved}, this one has {name} {here} \
                 (hint: continue with {saved}, or begin without the state)"
            ))),
            _ => Ok(()),
        }
    }
}

/// The plan of a state whose options agree with those of this job.
pub(super) struct Kept {
    pub(super) plan: Plan,
    pub(super) auto: Option<Saved>,
}

impl State {
    /// Refuses a state of a training with another codec, feedback or momentum correction, since the
    /// tensors of such a state have another meaning. The codecs from which `auto` chooses may differ.
    ///
    /// # Errors
    /// If the state is of such a training, or its plan cannot be read.
    pub fn check(&self, options: &Options) -> Result<(), Error> {
        self.kept(options).map(drop)
    }

    /// Returns the plan, after [`State::check`].
    pub(super) fn kept(&self, options: &Options) -> Result<Kept, Error> {
        let said =
            |error| Error::Invalid(format!("cannot read the plan in the checkpoint: {error}"));
        let plan: Plan = serde_json::from_str(&self.plan).map_err(said)?;
        let Rest { options: named, auto } = serde_json::from_str(&self.plan).map_err(said)?;
        let named = named.or_else(|| Named::of_fingerprint(&plan.fingerprint));
        named.map_or(Ok(()), |named| named.check(options))?;
        Ok(Kept { plan, auto })
    }
}

impl Synchronizer {
    /// Returns the plan of a state, with all that the next one depends on.
    pub(super) fn plan_text(&self) -> String {
        let plan = Plan { fingerprint: self.fingerprint(), ..self.plan.clone() };
        let planner = self.planner.as_ref();
        let auto = planner.and_then(|planner| planner.saved(self.buckets_hash(), self.next_age()));
        let written = Written { plan: &plan, options: Named::of(&self.options), auto };
        serde_json::to_string(&written).expect("a plan has only finite numbers and strings")
    }

    /// Returns everything that the plan in force depends on, as text.
    fn fingerprint(&self) -> String {
        self.options.fingerprint() + if self.warm_up.is_in_force() { ", warming up" } else { "" }
    }

    /// Returns the hash of which gradients travel together.
    fn buckets_hash(&self) -> u32 {
        let names = |index: usize| {
            let Parameter { name, shape, dtype, .. } = &self.parameters[index];
            (name, shape, dtype.to_string())
        };
        let members = |indices: Vec<usize>| indices.into_iter().map(names).collect::<Vec<_>>();
        let buckets: Vec<_> = self.buckets().map(members).collect();
        let text = serde_json::to_string(&buckets).expect("numbers and strings");
        thinwire_wire::checksum(text.as_bytes())
    }

    /// Returns the age of the next step, if its number is the next one.
    fn next_age(&self) -> u64 {
        self.age().saturating_add(u64::from(self.first.is_some()))
    }

    /// Returns whether the plan of a state was made for the current options, by the same number of
    /// ranks. A state of an older version does not contain the number of ranks.
    pub(super) fn follows(&self, kept: &Kept) -> bool {
        let fingerprint = &kept.plan.fingerprint;
        let alike = fingerprint.is_empty() || *fingerprint == self.fingerprint();
        let is_auto = matches!(self.options.policy, Policy::Auto(_));
        let here = |auto: &Saved| !is_auto || self.is_of_here(auto);
        alike && kept.auto.as_ref().is_none_or(here)
    }

    /// Returns whether a planner has planned for this number of ranks and these buckets.
    fn is_of_here(&self, auto: &Saved) -> bool {
        let ranks = self.worker.channel.peers(&self.parameters).world().size();
        auto.ranks == ranks && auto.buckets == self.buckets_hash()
    }

    /// Returns the planner's part of a state to continue from, under its plan; `None` if too much has
    /// changed since, so that the planner starts from scratch.
    pub(super) fn planner_of(&self, kept: &Kept) -> Result<Option<Saved>, Error> {
        let (Some(planner), Some(auto)) = (&self.planner, &kept.auto) else { return Ok(None) };
        if !self.follows(kept) || !planner.takes(auto) {
            return Ok(None);
        }
        let tried = auto.trials.plans().iter();
        let flaw = match tried.clone().any(|plan| plan.assignments.len() != self.buckets.len()) {
            true => Some("it has plans of other buckets".to_owned()),
            false => planner.flaw(auto, &kept.plan).map(str::to_owned),
        };
        let flaw = flaw.or_else(|| tried.map(|plan| self.check_plan(plan)).find_map(Result::err));
        match flaw {
            None => Ok(Some(auto.clone())),
            Some(flaw) => Err(Error::Invalid(format!(
                "the state of auto in the checkpoint is damaged: {flaw}"
            ))),
        }
    }
}

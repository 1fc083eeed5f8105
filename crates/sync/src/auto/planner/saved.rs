//! The part of a planner that a state contains: its measurements and the progress of its trials.
//!
//! Everything in it is equal on all ranks, so ranks that load it make equal decisions. Times of steps
//! that ranks have not reported to each other yet differ between ranks, so the state contains only the
//! number of these steps. The first report after loading repeats the last step this many times; plans
//! then take turns in the same steps as without the stop.
//!
//! Law: a planner that was loaded decides as the saved one does, from the same times.

use serde::{Deserialize, Serialize};

use crate::auto::backward::Backward;
use crate::auto::plan::Plan;
use crate::auto::planner::{FIGURES, Planner};
use crate::auto::timeline::Measured;
use crate::auto::trials::{FAR, Trials};
use crate::auto::watch::{Usual, Watch};
use crate::measure::codecs::{CodecSpeed, Times};
use crate::measure::link::LinkSpeed;

/// The measurements and the trials of a job.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Saved {
    /// The number of ranks, and the hash of the buckets that they exchanged.
    pub(crate) ranks: usize,
    pub(crate) buckets: u32,
    /// Steps since the buckets were laid out.
    pub(crate) age: u64,
    link: LinkSpeed,
    codecs: Vec<Figures>,
    errors: Vec<Vec<f32>>,
    measured: Measured,
    usual: Usual,
    pub(crate) trials: Trials,
    /// Number of steps whose times ranks have not reported to each other.
    untold: usize,
}

/// The figures of one codec.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Figures {
    codec: String,
    encode: Times,
    decode: Times,
    merge: Times,
    error: f64,
}

impl Figures {
    fn of(speed: &CodecSpeed) -> Figures {
        let CodecSpeed { choice, encode, decode, merge, error } = speed;
        let (encode, decode, merge, error) = (*encode, *decode, *merge, *error);
        Figures { codec: choice.to_string(), encode, decode, merge, error }
    }
}

impl Planner {
    /// Returns the planner's part of a state, before a step of this age; `None` for a single rank,
    /// which has nothing to decide.
    pub(crate) fn saved(&self, buckets: u32, age: u64) -> Option<Saved> {
        (self.world.size() > 1).then(|| Saved {
            ranks: self.world.size(),
            buckets,
            age,
            link: self.link(),
            codecs: self.candidates.calibration().codecs.iter().map(Figures::of).collect(),
            errors: self.errors.clone(),
            measured: self.measured.clone(),
            usual: self.watch.usual(),
            trials: self.trials.clone(),
            untold: self.untold + self.reports.len() / FIGURES,
        })
    }

    /// Returns whether what was measured and tried holds for this job: for its codecs, and over a link that is
    /// about as fast as this one.
    pub(crate) fn takes(&self, saved: &Saved) -> bool {
        let codecs = &self.candidates.calibration().codecs;
        let names = codecs.iter().map(|speed| speed.choice.to_string());
        names.eq(saved.codecs.iter().map(|figures| figures.codec.clone()))
            && !saved.link.is_far(&self.link(), FAR)
    }

    /// Returns the reason why no planner of these buckets can have saved this under `plan`, if there is
    /// one.
    pub(crate) fn flaw(&self, saved: &Saved, plan: &Plan) -> Option<&'static str> {
        let (buckets, codecs) = (self.measured.buckets.len(), saved.codecs.len());
        let is_whole = |errors: &Vec<f32>| errors.is_empty() || errors.len() == 2 * codecs;
        match saved {
            _ if !saved.link.is_possible(self.world.size()) => {
                Some("the figures of the link are impossible")
            }
            _ if saved.measured.buckets.len() != buckets => Some("it has times of other buckets"),
            _ if !saved.errors.is_empty() && saved.errors.len() != buckets
                || !saved.errors.iter().all(is_whole) =>
            {
                Some("it has errors of other codecs or buckets")
            }
            _ if !saved.trials.go_on_under(plan) => Some("it has a trial of other plans"),
            _ => None,
        }
    }

    /// Continues from a saved planner under `plan`.
    pub(crate) fn resume(&mut self, saved: Saved, plan: &Plan) {
        let of_codec = |figures: &Figures, choice| {
            let Figures { encode, decode, merge, error, .. } = *figures;
            CodecSpeed { choice, encode, decode, merge, error }
        };
        let choices = self.candidates.calibration().codecs.iter().map(|it| it.choice.clone());
        let codecs = saved.codecs.iter().zip(choices).map(|(it, choice)| of_codec(it, choice));
        let codecs = codecs.collect();
        self.candidates.recalibrate(saved.link, codecs);
        self.errors = saved.errors;
        self.measured = Measured { shares_cores: self.limits.shares_cores, ..saved.measured };
        self.backward = Backward::like(&self.measured);
        self.watch = Watch::resumed(plan.in_force(), saved.usual);
        self.trials = saved.trials;
        self.untold = saved.untold;
        self.reports.clear();
    }

    /// Adds figures for steps before the state, which no rank has: those of the last step.
    pub(super) fn repeat_last(&mut self) {
        if let Some(first) = self.reports.len().checked_sub(FIGURES) {
            let last = self.reports[first..].to_vec();
            self.reports.extend(last.repeat(std::mem::take(&mut self.untold).min(UNTOLD_MAX)));
        }
    }
}

/// More steps than lie between two reports, skipped ones aside.
const UNTOLD_MAX: usize = 1 << 10;

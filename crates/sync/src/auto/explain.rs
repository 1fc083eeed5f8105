//! The record of one planning: why each bucket travels as it does.
//!
//! Rank 0 alone writes it, into the record of the step after which all ranks planned. It lists the
//! alternatives of every bucket: their prices, the iteration that each would lead to, and the reason why it
//! was not taken.

use serde::{Deserialize, Serialize};

use crate::auto::candidates::Candidate;
use crate::auto::plan::{Assignment, Plan};
use crate::auto::timeline::{self, Measured};
use crate::measure::link::LinkSpeed;

/// The record of one planning.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Planning {
    /// The plan and what it saves, in a line.
    #[serde(default)]
    pub line: String,
    /// The number of trials that were decided so far.
    #[serde(default)]
    pub trials: usize,
    /// The codecs of the plans that are tried against this one from now on; empty if there is no trial.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub trying: Vec<String>,
    /// The reason for planning.
    pub reason: String,
    /// The slowest link; `None` if there is no link.
    pub link: Option<LinkSpeed>,
    /// The weighted error that a bucket may have.
    pub error_budget: f64,
    /// The expected time of an iteration under the plan, in seconds.
    pub iteration_s: f64,
    /// The expected time of an iteration in which everything travels raw, in seconds.
    pub raw_iteration_s: f64,
    /// The time that rank 0 took to decide, in seconds.
    pub took_s: f64,
    /// Every bucket, in the order in which they become ready.
    pub buckets: Vec<Decision>,
}

/// The decision for one bucket.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Decision {
    /// The name of the bucket: its first and last parameter.
    pub name: String,
    /// The number of elements.
    pub elements: usize,
    /// The time from the beginning of the step until the bucket is ready, in seconds.
    pub ready_s: f64,
    /// The assignment that the plan gives to the bucket.
    pub chosen: Option<Assignment>,
    /// The reason for this assignment, in a few words.
    pub because: String,
    /// The candidates for the bucket: for every codec and algorithm, the one with the best number of
    /// partitions. The chosen candidate is among them.
    pub alternatives: Vec<Alternative>,
}

/// One candidate for a bucket.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Alternative {
    /// The codec, the algorithm and the partitions.
    #[serde(flatten)]
    pub assignment: Assignment,
    /// The weighted error of one encoding; for a gather, a third of it. Until it has been measured on the
    /// gradients, this is an upper bound.
    pub error: f64,
    /// The time from ready to done if no other bucket uses the network, in seconds.
    pub alone_s: f64,
    /// The time from ready to done if the bucket also waits for the buckets before it, in seconds.
    pub exchange_s: f64,
    /// The time of an iteration in which this bucket travels by this candidate and all others as planned,
    /// in seconds.
    pub iteration_s: f64,
    /// The reason why the candidate was taken or not.
    pub verdict: Verdict,
}

/// The verdict on an alternative.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// The candidate is in the plan.
    Chosen,
    /// Its error exceeds the error budget.
    OverBudget,
    /// With it, the iteration would take longer.
    Slower,
    /// It saves too little time for its larger error.
    LosesMore,
    /// It makes neither the iteration shorter nor the error smaller.
    NoBetter,
}

/// Returns a line such as `auto: int8 for 14 of 20 buckets, 22 % faster than raw`. `saved` is the share of a
/// raw step that the plan was measured to save; without it the prediction counts.
pub(crate) fn line(plan: &Plan, all: &[Vec<Candidate>], saved: Option<f64>) -> String {
    let encoded = encoded(plan, all);
    let buckets = plan.assignments.len();
    if encoded.is_empty() {
        return format!("auto: raw for all {buckets} buckets");
    }
    let codecs: Vec<String> =
        encoded.iter().map(|(codec, count)| format!("{codec} for {count}")).collect();
    let predicted = || 1.0 - plan.iteration_s / plan.raw_iteration_s;
    let (share, source) = match saved {
        Some(saved) => (saved, ""),
        None if plan.raw_iteration_s > 0.0 => (predicted(), " by prediction"),
        None => (0.0, " by prediction"),
    };
    let than = if share < 0.0 { "slower" } else { "faster" };
    let codecs = codecs.join(" and ");
    format!(
        "auto: {codecs} of {buckets} buckets, {:.0} % {than} than raw{source}",
        100.0 * share.abs()
    )
}

/// Returns the codecs of the plans that are tried against the first one: "int8+bf16", and "another int8" of a
/// plan with the codecs of the first one.
pub(crate) fn rivals(plans: &[Plan], all: &[Vec<Candidate>]) -> Vec<String> {
    let codecs = |plan: &Plan| match encoded(plan, all).as_slice() {
        [] => "raw".to_owned(),
        some => some.iter().map(|(codec, _)| *codec).collect::<Vec<_>>().join("+"),
    };
    let mut names: Vec<String> = Vec::new();
    for plan in &plans[1..] {
        let name = match codecs(plan) {
            name if name == codecs(&plans[0]) => format!("another {name}"),
            name => name,
        };
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names
}

/// Returns the number of trials that were decided, and what is tried now: "3 trials, comparing it with raw
/// and int8".
pub(crate) fn progress(decided: usize, trying: &[String]) -> String {
    let decided = match (decided, trying) {
        (0, []) => Some("not tried yet".to_owned()),
        (0, _) => None,
        (1, _) => Some("1 trial".to_owned()),
        (more, _) => Some(format!("{more} trials")),
    };
    let trying = trying.split_last().map(|(last, others)| match others {
        [] => format!("comparing it with {last}"),
        others => format!("comparing it with {} and {last}", others.join(", ")),
    });
    decided.into_iter().chain(trying).collect::<Vec<_>>().join(", ")
}

/// Returns the codecs of buckets that do not travel raw and how many have each, the most frequent first.
fn encoded<'a>(plan: &'a Plan, all: &[Vec<Candidate>]) -> Vec<(&'a str, usize)> {
    let mut counts: Vec<(&str, usize)> = Vec::new();
    for (assignment, of_bucket) in plan.assignments.iter().zip(all) {
        if of_bucket.first().is_some_and(|raw| raw.assignment.codec == assignment.codec) {
            continue;
        }
        match counts.iter_mut().find(|(codec, _)| *codec == assignment.codec) {
            Some((_, count)) => *count += 1,
            None => counts.push((&assignment.codec, 1)),
        }
    }
    counts.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    counts
}

/// Returns the decisions of `plan`; `all[bucket]` are the candidates of a bucket, also those over the budget.
pub(crate) fn decisions(
    measured: &Measured,
    plan: &Plan,
    all: &[Vec<Candidate>],
    budget: f64,
) -> Vec<Decision> {
    let mut prices = plan.prices.clone();
    let buckets = all.iter().zip(&plan.assignments).zip(&measured.buckets);
    let decide = |(bucket, ((of_bucket, chosen), ready)): (usize, ((&Vec<Candidate>, _), &_))| {
        let (chosen, ready): (&Assignment, &timeline::Readiness) = (chosen, ready);
        // What is no candidate any more counts as raw, as in `choose::priced`.
        let mine = of_bucket.iter().find(|candidate| candidate.assignment == *chosen);
        let current = Current {
            assignment: chosen,
            error: mine.map_or(0.0, |candidate| candidate.error),
            alone_s: prices[bucket].alone_s,
            iteration_s: plan.iteration_s,
        };
        let mut judge = |candidate: &Candidate| {
            let kept = std::mem::replace(&mut prices[bucket], candidate.price);
            let prediction = timeline::predict(measured, &prices);
            prices[bucket] = kept;
            let (ready, done) = prediction.spans[bucket];
            Alternative {
                assignment: candidate.assignment.clone(),
                error: candidate.error,
                alone_s: candidate.price.alone_s,
                exchange_s: done - ready,
                iteration_s: prediction.seconds,
                verdict: current.verdict(candidate, prediction.seconds, budget),
            }
        };
        let alternatives: Vec<Alternative> =
            best_of_each(of_bucket, chosen).map(&mut judge).collect();
        Decision {
            ready_s: ready.ready_s,
            chosen: Some(chosen.clone()),
            because: because(&alternatives, plan),
            alternatives,
            ..Decision::default()
        }
    };
    buckets.enumerate().map(decide).collect()
}

/// Choice for a bucket under the plan, and its figures.
struct Current<'a> {
    assignment: &'a Assignment,
    error: f64,
    alone_s: f64,
    iteration_s: f64,
}

impl Current<'_> {
    /// Returns why `candidate`, which would lead to this iteration, was not taken in its place.
    fn verdict(&self, candidate: &Candidate, iteration_s: f64, budget: f64) -> Verdict {
        if candidate.assignment == *self.assignment {
            Verdict::Chosen
        } else if candidate.error > budget {
            Verdict::OverBudget
        } else if candidate.error > self.error {
            Verdict::LosesMore
        } else if iteration_s > self.iteration_s || candidate.price.alone_s > self.alone_s {
            Verdict::Slower
        } else {
            Verdict::NoBetter
        }
    }
}

/// Returns the chosen candidate and, of every other codec and algorithm, the fastest one.
fn best_of_each<'a>(
    candidates: &'a [Candidate],
    chosen: &'a Assignment,
) -> impl Iterator<Item = &'a Candidate> {
    let way = |a: &Assignment| (a.codec.clone(), a.algorithm.clone());
    candidates.iter().filter(move |candidate| {
        let assignment = &candidate.assignment;
        if way(assignment) == way(chosen) {
            return assignment == chosen;
        }
        let alike = candidates.iter().filter(|other| way(&other.assignment) == way(assignment));
        let best = alike.min_by(|a, b| a.price.alone_s.total_cmp(&b.price.alone_s));
        best.is_some_and(|best| best.assignment == *assignment)
    })
}

/// Returns why the chosen alternative was chosen.
fn because(alternatives: &[Alternative], plan: &Plan) -> String {
    let chosen = alternatives.iter().find(|one| one.verdict == Verdict::Chosen);
    let Some(chosen) = chosen else { return "it is no longer a candidate".to_owned() };
    if alternatives.iter().all(|one| one.error == 0.0) {
        return "vectors travel raw".to_owned();
    }
    let saved_s = |one: &Alternative| plan.iteration_s - one.iteration_s;
    let most = |over: bool| {
        let others = alternatives.iter().filter(|one| (one.verdict == Verdict::OverBudget) == over);
        others.map(saved_s).fold(0.0, f64::max)
    };
    let raw = alternatives.first().map_or(0.0, |raw| -saved_s(raw));
    let own = match (chosen.error == 0.0, raw > TELLING_S) {
        (true, _) => "raw".to_owned(),
        (false, true) => format!("raw here would take {} more", ms(raw)),
        (false, false) => {
            "sending only this bucket raw would take no longer, but sending the others raw too would".to_owned()
        }
    };
    let (within, over) = (most(false), most(true));
    let limit = match (within > TELLING_S, over > within.max(TELLING_S)) {
        (_, true) => format!("; alternatives that save {} more exceed the error budget", ms(over)),
        (true, false) => {
            format!(
                "; alternatives that save {} more are not worth their loss or a change",
                ms(within)
            )
        }
        (false, false) => "; no alternative saves more".to_owned(),
    };
    own + &limit
}

/// Difference in seconds below which times count as equal.
const TELLING_S: f64 = 5e-5;

fn ms(seconds: f64) -> String {
    format!("{:.1} ms", seconds * 1e3)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auto::timeline::Price;

    #[test]
    fn progress_counts_decided_trials_and_names_what_is_tried() {
        let names =
            |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        for (decided, trying, said) in [
            (0, &[][..], "not tried yet"),
            (0, &["raw"], "comparing it with raw"),
            (1, &[], "1 trial"),
            (
                3,
                &["raw", "int8+bf16", "ecsq:1"],
                "3 trials, comparing it with raw, int8+bf16 and ecsq:1",
            ),
        ] {
            assert_eq!(progress(decided, &names(trying)), said);
        }
    }

    #[test]
    fn rivals_are_named_by_their_codecs() {
        let plan = |codecs: [&str; 3], partitions| {
            let assign = |codec: &&str| Assignment {
                codec: (*codec).to_owned(),
                algorithm: "gather".to_owned(),
                partitions,
            };
            Plan { assignments: codecs.iter().map(assign).collect(), ..Plan::default() }
        };
        let raw = |one: &Assignment| Candidate {
            assignment: one.clone(),
            codec: 0,
            error: 0.0,
            elements: 1,
            price: Price::default(),
        };
        let all: Vec<Vec<Candidate>> =
            plan(["none"; 3], 1).assignments.iter().map(|one| vec![raw(one)]).collect();
        let (mixed, none) = (["int8", "bf16", "int8"], ["none"; 3]);
        let plans =
            [plan(mixed, 1), plan(none, 1), plan(mixed, 2), plan(["none", "int4", "none"], 1)];
        assert_eq!(rivals(&plans, &all), ["raw", "another int8+bf16", "int4"]);
        assert_eq!(rivals(&plans[1..2], &all), [""; 0]);
        assert_eq!(line(&plans[1], &all, None), "auto: raw for all 3 buckets");
        let line = line(&plans[0], &all, Some(0.221));
        assert_eq!(line, "auto: int8 for 2 and bf16 for 1 of 3 buckets, 22 % faster than raw");
    }
}

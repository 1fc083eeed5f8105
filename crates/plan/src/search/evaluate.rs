//! Candidates judged: a bound for each, and its best plan.

use super::candidate::Candidate;
use super::chain::Chain;
use super::evaluation::Evaluation;
use super::outcome::Outcome;
use super::prepare::Prepared;
use super::settings::{Recompute, Settings, costs};
use super::spread::Spread;
use crate::cluster::Cluster;
use crate::cost::Costs;

/// The least seconds that any plan of a candidate takes.
pub fn bound_s(
    cluster: &Cluster,
    prepared: &Prepared,
    candidate: &Candidate,
    settings: &Settings,
) -> f64 {
    let costs = costs(cluster, candidate, settings);
    let forwards = if settings.recompute == Recompute::Always { 2.0 } else { 1.0 };
    let of_class: Vec<f64> =
        prepared.classes.iter().map(|class| costs.bound_s(&class.work, forwards)).collect();
    let once: f64 = prepared.of_block.iter().map(|class| of_class[*class]).sum();
    once * candidate.micro_batches as f64 / candidate.stages as f64
}

/// What a candidate came to.
pub enum Verdict {
    /// Its best plan.
    Found(Box<Outcome>),
    /// Nothing fits: the least bytes found of a device's memory.
    TooLarge(f64),
    /// None of its plans takes less than these seconds, which was not enough.
    TooSlow(f64),
    /// The candidate contradicts itself.
    Impossible,
}

/// The best plan of a candidate, if it takes less than `enough_s()` seconds.
pub fn evaluate(
    cluster: &Cluster,
    prepared: &Prepared,
    candidate: &Candidate,
    settings: &Settings,
    enough_s: &dyn Fn() -> f64,
) -> Verdict {
    let costs = costs(cluster, candidate, settings);
    match Chain::new(prepared, &costs, candidate.rule) {
        Ok(chain) => best_of(&chain, &costs, candidate, settings, enough_s),
        Err(_) => Verdict::Impossible,
    }
}

/// The best plan of a candidate on a chain that is worked out, if it takes less than `enough_s()`
/// seconds.
pub fn best_of(
    chain: &Chain<'_>,
    costs: &Costs<'_>,
    candidate: &Candidate,
    settings: &Settings,
    enough_s: &dyn Fn() -> f64,
) -> Verdict {
    let options: &[bool] = match settings.recompute {
        Recompute::Never => &[false],
        Recompute::Free => &[false, true],
        Recompute::Always => &[true],
    };
    let Ok(spread) = Spread::new(chain, costs, candidate) else { return Verdict::Impossible };
    let spread = spread.as_ref();
    let mut best = Verdict::Impossible;
    for recompute in options {
        let recompute = *recompute;
        let one = Evaluation { candidate, settings, costs, chain, spread, recompute, enough_s };
        best = better(best, one.run());
    }
    best
}

/// The one that is faster, or nearer to a plan.
pub(super) fn better(one: Verdict, other: Verdict) -> Verdict {
    use Verdict::{Found, Impossible, TooLarge, TooSlow};
    match (one, other) {
        (Found(a), Found(b)) => Found(if a.seconds <= b.seconds { a } else { b }),
        (Found(a), _) | (_, Found(a)) => Found(a),
        (TooSlow(a), TooSlow(b)) => TooSlow(a.min(b)),
        (TooSlow(a), _) | (_, TooSlow(a)) => TooSlow(a),
        (TooLarge(a), TooLarge(b)) => TooLarge(a.min(b)),
        (TooLarge(a), Impossible) | (Impossible, TooLarge(a)) => TooLarge(a),
        (Impossible, Impossible) => Impossible,
    }
}

//! Candidates judged: the best plan of each.

use super::candidate::Candidate;
use super::chain::Chain;
use super::evaluation::Evaluation;
use super::load_balance::LoadBalance;
use super::outcome::Outcome;
use super::prepare::Prepared;
use super::rule::Rule;
use super::settings::{Recompute, Settings, costs};
use crate::cluster::Cluster;
use crate::cost::{Costs, Division, Sharding};
use crate::error::TooLarge;

/// By which part of its time a plan may become faster where what it gives up for memory is given up by
/// all blocks or parameters alike.
const GAIN: f64 = 0.1;

/// What a candidate came to.
pub enum Evaluated {
    /// Its best plan.
    Found(Box<Outcome>),
    /// Nothing was found that fits.
    TooLarge(TooLarge),
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
) -> Evaluated {
    let mut best = once(cluster, prepared, candidate, settings, enough_s);
    let each = candidate.division == Division::Each && !candidate.is_deep();
    let more = each && worth(&mut best, enough_s(), settings);
    let bounds = bounds_of(&best);
    if more {
        let alike = settings.alike().chain([Sharding::Gradients]);
        for division in alike.map(Division::Alike) {
            let candidate = Candidate { division, ..candidate.clone() };
            let fastest_s = seconds(&best);
            let enough_s = || enough_s().min(fastest_s);
            best = better(best, once(cluster, prepared, &candidate, settings, &enough_s));
        }
    }
    bounded(best, bounds)
}

/// Whether memory binds, so that giving up alike may be faster, and fast enough, or may fit at all.
/// With codecs it may be anyway: block by block what is given up is chosen before what is encoded,
/// alike both are chosen at once.
fn worth(verdict: &mut Evaluated, enough_s: f64, settings: &Settings) -> bool {
    match verdict {
        Evaluated::Found(_) if !settings.codings.is_empty() => true,
        Evaluated::Found(outcome) if !outcome.binds() => false,
        Evaluated::Found(outcome) => {
            let gained_s = outcome.seconds * (1.0 - GAIN);
            if gained_s < enough_s {
                return true;
            }
            outcome.pruned_bound_s = outcome.pruned_bound_s.min(gained_s);
            false
        }
        Evaluated::TooLarge(all) => all.may_fit(),
        Evaluated::TooSlow(_) | Evaluated::Impossible => false,
    }
}

/// The same with parameters divided only as the candidate says.
fn once(
    cluster: &Cluster,
    prepared: &Prepared,
    candidate: &Candidate,
    settings: &Settings,
    enough_s: &dyn Fn() -> f64,
) -> Evaluated {
    let costs = costs(cluster, candidate, settings);
    match Chain::new(prepared, &costs, candidate.rule) {
        Ok(chain) => best_of(&chain, &costs, candidate, settings, enough_s),
        Err(_) => Evaluated::Impossible,
    }
}

/// What no plan goes below that fits, what those do not that were given up, and what those do not that
/// were not found to fit.
type Bounds = [f64; 3];

/// What is known of all plans of which this is the best.
fn bounds_of(verdict: &Evaluated) -> Option<Bounds> {
    match verdict {
        Evaluated::Found(outcome) => {
            Some([outcome.bound_s, outcome.pruned_bound_s, outcome.infeasible_bound_s])
        }
        Evaluated::TooLarge(all) => Some([all.bound_s; 3]),
        Evaluated::TooSlow(_) | Evaluated::Impossible => None,
    }
}

/// The same with other bounds, if there are any.
fn bounded(verdict: Evaluated, bounds: Option<Bounds>) -> Evaluated {
    match (verdict, bounds) {
        (Evaluated::Found(outcome), Some([bound_s, pruned_bound_s, infeasible_bound_s])) => {
            Evaluated::Found(Box::new(Outcome {
                bound_s,
                pruned_bound_s,
                infeasible_bound_s,
                ..*outcome
            }))
        }
        (other, _) => other,
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
) -> Evaluated {
    let Ok(load_balance) = LoadBalance::new(chain, costs, candidate) else {
        return Evaluated::Impossible;
    };
    let load_balance = load_balance.as_ref();
    let mut best = Evaluated::Impossible;
    let mut bounds = None;
    for recompute in modes(candidate, settings).iter().copied() {
        let fastest_s = seconds(&best);
        let faster_s = &|| enough_s().min(fastest_s);
        let evaluation = Evaluation {
            candidate,
            settings,
            costs,
            chain,
            load_balance,
            recompute,
            enough_s: faster_s,
        };
        best = better(best, evaluation.run());
        let free = recompute == Recompute::Free;
        if free {
            bounds = bounds_of(&best);
        }
        let more = match &best {
            Evaluated::Found(_) => worth(&mut best, enough_s(), settings),
            // What is free to do either is as fast as both, and as small.
            Evaluated::TooSlow(_) => !free,
            Evaluated::TooLarge(all) => !free || all.may_fit(),
            Evaluated::Impossible => true,
        };
        if !more {
            break;
        }
    }
    bounded(best, bounds)
}

/// What is tried. Expert plans do all blocks alike; others may as well, where memory binds, but for
/// those on three dimensions, which are one more step from the best of them.
fn modes(candidate: &Candidate, settings: &Settings) -> &'static [Recompute] {
    match (settings.recompute, candidate.rule) {
        (Recompute::Free, Rule::Free) if candidate.is_deep() => &[Recompute::Free],
        (Recompute::Never, _) => &[Recompute::Never],
        (Recompute::Always, _) => &[Recompute::Always],
        (Recompute::Free, Rule::Free) => &[Recompute::Free, Recompute::Never, Recompute::Always],
        (Recompute::Free, _) => &[Recompute::Never, Recompute::Always],
    }
}

fn seconds(verdict: &Evaluated) -> f64 {
    match verdict {
        Evaluated::Found(outcome) => outcome.seconds,
        _ => f64::INFINITY,
    }
}

/// The one that is faster, or nearer to a plan.
pub(super) fn better(one: Evaluated, other: Evaluated) -> Evaluated {
    use Evaluated::{Found, Impossible, TooLarge, TooSlow};
    match (one, other) {
        (Found(a), Found(b)) => {
            let (pruned_bound_s, infeasible_bound_s) = (
                a.pruned_bound_s.min(b.pruned_bound_s),
                a.infeasible_bound_s.min(b.infeasible_bound_s),
            );
            let (faster, other) = if a.seconds <= b.seconds { (a, b) } else { (b, a) };
            Found(Box::new(Outcome { pruned_bound_s, infeasible_bound_s, ..faster.beside(*other) }))
        }
        (Impossible, any) | (any, Impossible) => any,
        (Found(a), TooSlow(b)) | (TooSlow(b), Found(a)) => {
            Found(Box::new(Outcome { pruned_bound_s: a.pruned_bound_s.min(b), ..*a }))
        }
        (Found(a), TooLarge(b)) | (TooLarge(b), Found(a)) => {
            let (pruned_bound_s, infeasible_bound_s) =
                (a.pruned_bound_s.min(b.bound_s), a.infeasible_bound_s.min(b.bound_s));
            Found(Box::new(Outcome { pruned_bound_s, infeasible_bound_s, ..*a }))
        }
        (TooSlow(a), TooSlow(b)) => TooSlow(a.min(b)),
        (TooLarge(a), TooLarge(b)) => TooLarge(a.and(b)),
        // What may fit and be fast enough counts for more than what is too slow.
        (TooSlow(a), TooLarge(b)) | (TooLarge(b), TooSlow(a)) => match b.may_fit() {
            true => TooLarge(crate::error::TooLarge { bound_s: a.min(b.bound_s), ..b }),
            false => TooSlow(a),
        },
    }
}

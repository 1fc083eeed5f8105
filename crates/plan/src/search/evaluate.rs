//! Verdicts on candidates: the best plan of each, or why there is none.

use super::evaluation::Evaluation;
use super::load_balance::LoadBalance;
use super::{Candidate, Chain, Outcome, Prepared, Recompute, Rule, Settings, costs};
use crate::cost::{Costs, Division, Sharding};
use crate::{Cluster, TooLarge};

/// Result of evaluating a candidate.
pub enum Evaluated {
    /// Best plan.
    Found(Box<Outcome>),
    /// No plan that fits was found.
    TooLarge(TooLarge),
    /// Lower bound in seconds on all plans, which is not fast enough.
    TooSlow(f64),
    /// Contradictory candidate.
    Impossible,
}

/// Returns the best plan of a candidate, if it takes less than `enough_s()` seconds.
pub fn evaluate(
    cluster: &Cluster,
    prepared: &Prepared,
    candidate: &Candidate,
    settings: &Settings,
    enough_s: &dyn Fn() -> f64,
) -> Evaluated {
    let mut best = once(cluster, prepared, candidate, settings, enough_s);
    let each = candidate.division == Division::Each && !candidate.is_deep();
    let more = each && worth(&best, enough_s(), settings);
    let bounds = bounds_of(&best);
    if more {
        // ZeRO 2 as well: it needs less memory than ZeRO 1, and gathers no parameters as ZeRO 3 does.
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

/// Returns whether sharding or recomputing all alike may give a plan that fits, or a faster one
/// where memory binds. With codecs it always may: per block, memory is fitted before codecs are
/// chosen, alike both are chosen at once.
fn worth(verdict: &Evaluated, enough_s: f64, settings: &Settings) -> bool {
    match verdict {
        Evaluated::Found(_) if !settings.codings.is_empty() => true,
        Evaluated::Found(outcome) if !outcome.binds() => false,
        Evaluated::Found(outcome) => outcome.least_s() < enough_s,
        Evaluated::TooLarge(all) => all.may_fit(),
        Evaluated::TooSlow(_) | Evaluated::Impossible => false,
    }
}

/// Returns the best plan with parameters sharded only as the candidate says.
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

/// Lower bounds in seconds: of all plans that fit, and of infeasible plans.
type Bounds = [f64; 2];

/// Returns the bounds of a candidate whose best plan is this one.
fn bounds_of(verdict: &Evaluated) -> Option<Bounds> {
    match verdict {
        Evaluated::Found(outcome) => Some([outcome.bound_s, outcome.infeasible_bound_s]),
        Evaluated::TooLarge(all) => Some([all.bound_s; 2]),
        Evaluated::TooSlow(_) | Evaluated::Impossible => None,
    }
}

/// Returns a result with other bounds, if there are any.
fn bounded(verdict: Evaluated, bounds: Option<Bounds>) -> Evaluated {
    match (verdict, bounds) {
        (Evaluated::Found(outcome), Some([bound_s, infeasible_bound_s])) => {
            Evaluated::Found(Box::new(Outcome { bound_s, infeasible_bound_s, ..*outcome }))
        }
        (other, _) => other,
    }
}

/// Returns the best plan of a candidate on a chain, if it takes less than `enough_s()` seconds.
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
        // Free recomputation bounds the other modes, whose own bounds would be weaker.
        if free {
            bounds = bounds_of(&best);
        }
        let more = match &best {
            Evaluated::Found(_) => worth(&best, enough_s(), settings),
            // Free recomputation includes both other modes, so their bounds are no lower.
            Evaluated::TooSlow(_) => !free,
            Evaluated::TooLarge(all) => !free || all.may_fit(),
            // Without a plan or a bound nothing rules out the other modes.
            Evaluated::Impossible => true,
        };
        if !more {
            break;
        }
    }
    bounded(best, bounds)
}

/// Returns the modes of recomputation to try. Expert plans treat all blocks alike. Other plans may
/// as well where memory binds, except on three dimensions, which are themselves a refinement of the
/// best plan.
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

/// Returns the faster plan, or the result that is nearer to a plan, with the bounds of both.
pub(super) fn better(one: Evaluated, other: Evaluated) -> Evaluated {
    use Evaluated::{Found, Impossible, TooLarge, TooSlow};
    match (one, other) {
        (Found(a), Found(b)) => {
            let infeasible_bound_s = a.infeasible_bound_s.min(b.infeasible_bound_s);
            let (faster, other) = if a.seconds <= b.seconds { (a, b) } else { (b, a) };
            Found(Box::new(Outcome { infeasible_bound_s, ..faster.beside(*other) }))
        }
        (Impossible, any) | (any, Impossible) => any,
        // What is too slow is no faster than a plan that is known, so its bound does not count.
        (Found(a), TooSlow(_)) | (TooSlow(_), Found(a)) => Found(a),
        (Found(a), TooLarge(b)) | (TooLarge(b), Found(a)) => {
            let infeasible_bound_s = a.infeasible_bound_s.min(b.bound_s);
            Found(Box::new(Outcome { infeasible_bound_s, ..*a }))
        }
        (TooSlow(a), TooSlow(b)) => TooSlow(a.min(b)),
        (TooLarge(a), TooLarge(b)) => TooLarge(a.and(b)),
        // A plan that may fit and be fast enough counts for more than one that is too slow.
        (TooSlow(a), TooLarge(b)) | (TooLarge(b), TooSlow(a)) => match b.may_fit() {
            true => TooLarge(crate::error::TooLarge { bound_s: a.min(b.bound_s), ..b }),
            false => TooSlow(a),
        },
    }
}

//! Placement: which member of a level stands where in the mesh and the pipeline, where links differ.
//!
//! A plan's ranks are laid over neighbouring devices; who is whose neighbour may be chosen. First
//! members are ordered so that neighbours, and groups of them, have the best links; then so that the
//! plan that was found takes least. Orders of few members are all tried; of more, two change places
//! while that helps.
//!
//! Laws: a plan is never slower than the one for members as the file has them, and its bound holds
//! for every order. Where links are alike nothing is done.

use super::{Chain, Found, Outcome, Planner, Verdict, best_of, costs};
use crate::Error;
use crate::cluster::{Cluster, Links};

/// So many members are ordered in all ways where that takes no plan, and so many where it does.
const ALL: [usize; 2] = [7, 5];
/// How often a plan is looked for in an order that suits the last one.
const ROUNDS: usize = 3;
/// What differs by less is equal.
const NEAR: f64 = 1e-9;

impl Planner {
    /// The best plan for a cluster whose links differ, and the cluster with its members in the order
    /// that the plan wants.
    ///
    /// # Errors
    /// As [`Planner::plan`].
    pub fn placed(&mut self, cluster: &Cluster) -> Result<(Cluster, Found), Error> {
        let mut best = (cluster.clone(), self.plan(cluster)?);
        if cluster.levels.iter().all(|level| level.links.is_none()) {
            return Ok(best);
        }
        let bound_s = self.plan(&cluster.with_best_links())?.bound_s;
        let mut order = neighbours(cluster);
        for _ in 0..ROUNDS {
            let found = self.plan(&order)?;
            let next = self.suiting(&order, &found.best);
            if found.best.seconds < best.1.best.seconds {
                best = (order.clone(), found);
            }
            if next == order {
                break;
            }
            order = next;
        }
        best.1.bound_s = best.1.bound_s.min(bound_s);
        Ok(best)
    }

    /// The cluster in the order in which a plan takes least.
    fn suiting(&self, cluster: &Cluster, outcome: &Outcome) -> Cluster {
        arranged(cluster, ALL[1], &mut |tried| self.again_s(tried, outcome))
    }

    /// Seconds of the same strategies on another cluster.
    fn again_s(&self, cluster: &Cluster, outcome: &Outcome) -> f64 {
        let candidate = &outcome.candidate;
        let Some(prepared) = self.prepared(candidate) else { return f64::INFINITY };
        let here = costs(cluster, candidate, self.settings());
        let given = Chain::new(prepared, &here, candidate.rule);
        let given = given.map(|chain| chain.given(&outcome.choice));
        let chain =
            given.and_then(|given| Chain::given_by(prepared, &here, candidate.rule, &given));
        let Ok(chain) = chain else { return f64::INFINITY };
        match best_of(&chain, &here, candidate, self.settings(), &|| f64::INFINITY) {
            Verdict::Found(outcome) => outcome.seconds,
            _ => f64::INFINITY,
        }
    }
}

/// The cluster in an order in which neighbours have the best links, whatever is planned: groups of
/// every size that divides a level exchange as fast as can be, all together.
fn neighbours(cluster: &Cluster) -> Cluster {
    arranged(cluster, ALL[0], &mut |tried| {
        tried.levels.iter().filter_map(|level| level.links.as_ref()).map(apart_s).sum()
    })
}

/// Seconds in which groups of all sizes exchange a byte of each member.
fn apart_s(links: &Links) -> f64 {
    let members = links.members();
    let sizes = (2..=members).filter(|size| members.is_multiple_of(*size));
    let slowest = |size: usize| {
        let groups = (0..members).step_by(size).map(|first| (first..first + size).collect());
        let seconds = |group: Vec<usize>| {
            let lane = links.direct(&group);
            lane.latency_s + 1.0 / lane.bytes_per_s
        };
        groups.map(seconds).fold(0.0, f64::max)
    };
    sizes.map(slowest).sum()
}

/// The cluster with the members of every level that has links of its own in the best order, level
/// by level.
fn arranged(cluster: &Cluster, all: usize, seconds: &mut dyn FnMut(&Cluster) -> f64) -> Cluster {
    let mut best = cluster.clone();
    for level in 0..cluster.levels.len() {
        let Some(links) = best.levels[level].links.clone() else { continue };
        let base = best.clone();
        let mut of = |places: &[usize]| seconds(&base.arranged(level, places));
        let places = order(&links, all, &mut of);
        best = base.arranged(level, &places);
    }
    best
}

/// The order of members that takes least.
fn order(links: &Links, all: usize, seconds: &mut dyn FnMut(&[usize]) -> f64) -> Vec<usize> {
    if links.members() <= all {
        return of_all(links, seconds);
    }
    let mut best: Vec<usize> = (0..links.members()).collect();
    let mut least = seconds(&best);
    let pairs = || (1..links.members()).flat_map(|b| (0..b).map(move |a| (a, b)));
    let mut again = true;
    while again {
        again = false;
        for (a, b) in pairs() {
            best.swap(a, b);
            let found = seconds(&best);
            if found < least * (1.0 - NEAR) {
                (least, again) = (found, true);
            } else {
                best.swap(a, b);
            }
        }
    }
    best
}

/// The order that takes least of all; of equal ones the one to which any numbering of the members
/// would lead.
fn of_all(links: &Links, seconds: &mut dyn FnMut(&[usize]) -> f64) -> Vec<usize> {
    let mut best: Vec<usize> = (0..links.members()).collect();
    let mut least = seconds(&best);
    let mut tried = best.clone();
    while next_order(&mut tried) {
        let found = seconds(&tried);
        let equal = (found - least).abs() <= NEAR * least;
        if if equal { flat(links, &tried) < flat(links, &best) } else { found < least } {
            (best, least) = (tried.clone(), found);
        }
    }
    best
}

/// All links in an order, as one list.
fn flat(links: &Links, places: &[usize]) -> Vec<f64> {
    let Links { latency_s, bytes_per_s, .. } = links.arranged(places);
    bytes_per_s.into_iter().chain(latency_s).flatten().collect()
}

/// The next order by the alphabet; whether there is one.
fn next_order(places: &mut [usize]) -> bool {
    let Some(at) = places.windows(2).rposition(|pair| pair[0] < pair[1]) else { return false };
    let next = places.iter().rposition(|place| *place > places[at]).unwrap_or(at + 1);
    places.swap(at, next);
    places[at + 1..].reverse();
    true
}

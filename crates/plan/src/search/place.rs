//! Placement: which member of a level stands where in the mesh and the pipeline, where links differ.
//!
//! A plan's ranks are laid over neighbouring devices; who is whose neighbour may be chosen. First
//! members are ordered so that neighbours, groups of them, and stages of some width have the best
//! links; from each such order on, or of many members from the best of them, so that the plan that
//! was found takes least. Orders of few members are all tried; of more, two change places while that
//! helps, and so often at most that it takes seconds.
//!
//! Laws: a plan is never slower than the one for members as the file has them, and its bound holds
//! for every order. Where links are alike nothing is done.

use super::{Candidate, Chain, Found, Given, Outcome, Planner, Settings, Verdict, best_of, costs};
use crate::Error;
use crate::cluster::{Cluster, Links};

/// So many members are ordered in all ways, and of more so many orders are tried, where that takes no
/// plan.
const UNPLANNED: [usize; 2] = [7, 1 << 13];
/// The same where every order takes one.
const PLANNED: [usize; 2] = [5, 1 << 9];
/// How often a plan is looked for in an order that suits the last one.
const ROUNDS: usize = 3;
/// With so many members every first order leads on to others; with more, the best alone.
const FEW: usize = 8;
/// With more members than this fewer orders are tried, as each takes as much longer as there are
/// links; and the first order is the one for groups of all sizes alone.
const MANY: usize = 32;
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
        let bound_s = self.bound_of_orders_s(cluster, best.1.bound_s)?;
        let mut tried: Vec<Cluster> = Vec::new();
        let mut found: Vec<(Cluster, Found)> = Vec::new();
        for order in starts(cluster) {
            if !tried.contains(&order) {
                tried.push(order.clone());
                found.push((order.clone(), self.plan(&order)?));
            }
        }
        found.sort_by(|a, b| a.1.best.seconds.total_cmp(&b.1.best.seconds));
        let lead = if most_members(cluster) > FEW { 1 } else { found.len() };
        for (place, start) in found.into_iter().enumerate() {
            let last = if place < lead { self.improved(start.clone(), &mut tried)? } else { start };
            if last.1.best.seconds < best.1.best.seconds {
                best = last;
            }
        }
        best.1.bound_s = best.1.bound_s.min(bound_s);
        Ok(best)
    }

    /// The seconds below which there is no plan, in whatever order members stand; `bound_s` are
    /// those for their order here.
    pub(super) fn bound_of_orders_s(
        &mut self,
        cluster: &Cluster,
        bound_s: f64,
    ) -> Result<f64, Error> {
        match cluster.levels.iter().all(|level| level.links.is_none()) {
            true => Ok(bound_s),
            false => Ok(self.plan(&cluster.with_best_links())?.bound_s.min(bound_s)),
        }
    }

    /// The best of an order and of those that suit the plan of the one before.
    fn improved(
        &mut self,
        start: (Cluster, Found),
        tried: &mut Vec<Cluster>,
    ) -> Result<(Cluster, Found), Error> {
        let mut best = start.clone();
        let mut last = start;
        for _ in 1..ROUNDS {
            let order = self.suiting(&last.0, &last.1.best);
            if tried.contains(&order) {
                break;
            }
            tried.push(order.clone());
            let found = self.plan(&order)?;
            last = (order, found);
            if last.1.best.seconds < best.1.best.seconds {
                best = last.clone();
            }
        }
        Ok(best)
    }

    /// The cluster in the order in which a plan takes least.
    fn suiting(&self, cluster: &Cluster, outcome: &Outcome) -> Cluster {
        let candidate = &outcome.candidate;
        let Some(prepared) = self.prepared(candidate) else { return cluster.clone() };
        let settings = self.settings_of(outcome);
        let here = costs(cluster, candidate, &settings);
        let Ok(chain) = Chain::new(prepared, &here, candidate.rule) else { return cluster.clone() };
        let given = chain.given(&outcome.choice);
        arranged(cluster, &mut |tried| self.again_s((tried, &settings), candidate, &given))
    }

    /// Seconds of the same strategies on another cluster.
    fn again_s(
        &self,
        (cluster, settings): (&Cluster, &Settings),
        candidate: &Candidate,
        given: &Given,
    ) -> f64 {
        let Some(prepared) = self.prepared(candidate) else { return f64::INFINITY };
        let here = costs(cluster, candidate, settings);
        let chain = Chain::given_by(prepared, &here, candidate.rule, given);
        let Ok(chain) = chain else { return f64::INFINITY };
        match best_of(&chain, &here, candidate, settings, &|| f64::INFINITY) {
            Verdict::Found(outcome) => outcome.seconds,
            _ => f64::INFINITY,
        }
    }
}

/// Orders that are good whatever is planned: for groups of all sizes at once, and for stages of so
/// many members each, which exchange within themselves and send on to the next.
fn starts(cluster: &Cluster) -> Vec<Cluster> {
    let linked = || cluster.levels.iter().filter_map(|level| level.links.as_ref());
    let most = most_members(cluster);
    let whole = |links: &Links| (2..=links.members()).map(|size| apart_s(links, size)).sum();
    let staged = |width: usize| move |links: &Links| apart_s(links, width) + onward_s(links, width);
    let best = |seconds: &dyn Fn(&Links) -> f64| {
        let mut best = cluster.clone();
        for (level, links) in cluster.levels.iter().enumerate() {
            let Some(links) = &links.links else { continue };
            let seeds = || widths_of(links.members()).map(|width| grown(links, width));
            let mut of = |places: &[usize]| seconds(&links.arranged(places));
            let places = order(links, seeds().collect(), UNPLANNED, &mut of);
            best = best.arranged(level, &places);
        }
        best
    };
    let most = if most > MANY { 0 } else { most };
    let widths = (1..most).filter(|width| linked().any(|one| one.members() % width == 0));
    let widths: Vec<Cluster> = widths.map(|width| best(&staged(width))).collect();
    std::iter::once(best(&whole)).chain(widths).collect()
}

/// Members of the largest level whose links differ.
fn most_members(cluster: &Cluster) -> usize {
    let linked = cluster.levels.iter().filter_map(|level| level.links.as_ref());
    linked.map(Links::members).max().unwrap_or(0)
}

/// Seconds in which groups of so many neighbours exchange a byte of each member; nothing where there
/// are no such groups.
fn apart_s(links: &Links, size: usize) -> f64 {
    let members = links.members();
    if size < 2 || !members.is_multiple_of(size) {
        return 0.0;
    }
    let groups = (0..members).step_by(size).map(|first| (first..first + size).collect());
    let seconds = |group: Vec<usize>| {
        let lane = links.direct(&group);
        lane.latency_s + 1.0 / lane.bytes_per_s
    };
    groups.map(seconds).fold(0.0, f64::max)
}

/// Seconds in which every member sends a byte to the one so many places further, and back.
fn onward_s(links: &Links, width: usize) -> f64 {
    let seconds = |from: usize| {
        let lane = links.between(from, from + width);
        lane.latency_s + 1.0 / lane.bytes_per_s
    };
    (0..links.members().saturating_sub(width)).map(seconds).fold(0.0, f64::max)
}

/// The cluster with the members of every level that has links of its own in the best order, level
/// by level.
fn arranged(cluster: &Cluster, seconds: &mut dyn FnMut(&Cluster) -> f64) -> Cluster {
    let mut best = cluster.clone();
    for level in 0..cluster.levels.len() {
        let Some(links) = best.levels[level].links.clone() else { continue };
        let base = best.clone();
        let mut of = |places: &[usize]| seconds(&base.arranged(level, places));
        let places = order(&links, Vec::new(), PLANNED, &mut of);
        best = base.arranged(level, &places);
    }
    best
}

/// Widths of groups that so many members can be cut into.
fn widths_of(members: usize) -> impl Iterator<Item = usize> {
    (2..=members).filter(move |width| members.is_multiple_of(*width))
}

/// An order whose groups are grown one by one: who joins next has the best links to those who are in
/// the group, or to the last member where a group begins.
fn grown(links: &Links, width: usize) -> Vec<usize> {
    let mut places = vec![0];
    let mut left: Vec<usize> = (1..links.members()).collect();
    while !left.is_empty() {
        let begun = places.len() / width * width;
        let near = &places[begun.min(places.len() - 1)..];
        let seconds = |member: usize| -> f64 {
            let lanes = near.iter().map(|one| links.between(*one, member));
            lanes.map(|lane| lane.latency_s + 1.0 / lane.bytes_per_s).sum()
        };
        let next = (0..left.len()).min_by(|a, b| seconds(left[*a]).total_cmp(&seconds(left[*b])));
        let next = left.remove(next.expect("a member is left"));
        places.push(next);
    }
    places
}

/// The order of members that takes least of all, if they are few, or else of those that are tried.
fn order(
    links: &Links,
    seeds: Vec<Vec<usize>>,
    [all, most]: [usize; 2],
    seconds: &mut dyn FnMut(&[usize]) -> f64,
) -> Vec<usize> {
    if links.members() <= all {
        return of_all(links, seconds);
    }
    let most = most / links.members().div_ceil(MANY).pow(2);
    let mut best: Vec<usize> = (0..links.members()).collect();
    let mut least = seconds(&best);
    for seed in seeds {
        let found = seconds(&seed);
        if found < least * (1.0 - NEAR) {
            (best, least) = (seed, found);
        }
    }
    let pairs = || (1..links.members()).flat_map(|b| (0..b).map(move |a| (a, b)));
    let (mut again, mut tried) = (true, 0);
    while again {
        again = false;
        for (a, b) in pairs() {
            tried += 1;
            if tried > most {
                return best;
            }
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

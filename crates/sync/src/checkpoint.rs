//! Checkpoints: the state of a synchroniser across a restart, and its conversion to another number of ranks.
//!
//! Law of the conversion: the sum over ranks of every residual is the same before and after, up to the
//! rounding of a sum of f32. Tensors that are equal on all ranks (factors, means) stay equal.

mod file;
mod plan;

use std::collections::BTreeMap;

use thinwire_wire::{Rank, World};

use crate::auto::plan::Plan;
use crate::auto::planner::Planner;
use crate::bucket::momentum::MOMENTUM;
use crate::checkpoint::plan::Kept;
use crate::{Error, Policy, Synchronizer};

/// Named f32 tensors: shape and values.
pub type Tensors = BTreeMap<String, (Vec<usize>, Vec<f32>)>;

/// Number of bits of a whole number that an f32 holds exactly.
const COUNT_BITS: u32 = 24;

/// Returns a count of at most 48 bits as a tensor of two f32, each of which holds 24 of them exactly.
pub fn tensor_of_count(count: u64) -> (Vec<usize>, Vec<f32>) {
    let parts = [count >> COUNT_BITS, count & ((1 << COUNT_BITS) - 1)];
    (vec![2], parts.map(|part| part as f32).to_vec())
}

/// Returns the count that [`tensor_of_count`] has put in a tensor with these values; `None` if they are
/// not two whole numbers below 2^24.
pub fn count_of(values: &[f32]) -> Option<u64> {
    let limit = (1_u64 << COUNT_BITS) as f32;
    let is_part = |part: &f32| part.fract() == 0.0 && (0.0..limit).contains(part);
    match values {
        [high, low] if is_part(high) && is_part(low) => {
            Some(((*high as u64) << COUNT_BITS) + *low as u64)
        }
        _ => None,
    }
}

/// Residuals, factors, scales, the count of a warm-up and the plan of one rank. A run that loads it
/// continues bit for bit, under `auto` until a decision depends on times that were measured after the
/// save.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct State {
    /// Named f32 tensors: shape and values. `residual.PARAMETER` has the parameter's shape.
    pub tensors: Tensors,
    /// The plan in force, as JSON, and what it depends on; the same on all ranks.
    pub plan: String,
}

impl State {
    /// The name of the tensor that counts the steps of a warm-up. Names of a parameter's tensors
    /// have a dot, so this one has none.
    pub const WARM_UP: &str = "warm_up";

    /// Returns the part that is equal on all ranks (factors, scales, the count of a warm-up). A rank
    /// that joins continues from it by [`Synchronizer::load_tensors`], without residuals.
    pub fn shared(&self) -> State {
        let alike = self.tensors.iter().filter(|(name, _)| !is_summed(name));
        let tensors = alike.map(|(name, tensor)| (name.clone(), tensor.clone())).collect();
        State { tensors, plan: self.plan.clone() }
    }

    /// Returns the part that this rank alone has: residuals, momenta, and its share of means.
    pub(crate) fn owed(&self) -> State {
        let own = self.tensors.iter().filter(|(name, _)| is_summed(name));
        let tensors = own.map(|(name, tensor)| (name.clone(), tensor.clone())).collect();
        State { tensors, plan: String::new() }
    }

    /// Adds the part that another rank alone has.
    pub(crate) fn add_owed(&mut self, owed: State) -> Result<(), Error> {
        add_all(&mut self.tensors, owed.tensors, "the rank that leaves")
    }

    /// Returns a state with the residuals of this state and everything else from `shared`, the [shared
    /// part](State::shared) of another rank's state.
    #[must_use]
    pub fn with_shared(self, shared: State) -> State {
        let own = self.tensors.into_iter().filter(|(name, _)| is_summed(name));
        let tensors = shared.tensors.into_iter().chain(own).collect();
        State { tensors, plan: shared.plan }
    }
}

impl Synchronizer {
    /// Returns the state from which a restart continues.
    pub fn state(&self) -> State {
        State { plan: self.plan_text(), tensors: self.tensors() }
    }

    /// Returns the tensors of a state.
    pub(crate) fn tensors(&self) -> Tensors {
        let mut tensors = Tensors::new();
        self.buckets.iter().for_each(|bucket| bucket.save(&self.parameters, &mut tensors));
        if let Some(count) = self.warm_up.saved() {
            tensors.insert(State::WARM_UP.to_owned(), (vec![1], vec![count]));
        }
        tensors
    }

    /// Loads `state`; a collective call between steps. The next step may have any number. `auto`
    /// continues with the decision, the trial and the measurements of the state. If the link is three
    /// times as fast or slow as it was, `auto` begins with the plan of the state, measures again and
    /// makes new trials. If the number of ranks, the buckets or the options have changed, it makes a
    /// new plan.
    ///
    /// # Errors
    /// On all ranks, if the state of any rank belongs to another model, to other buckets for the same
    /// codec, or to another codec, feedback or momentum correction ([`State::check`]), if its plan cannot
    /// be read, or if the states of the ranks were not saved together.
    pub fn load(&mut self, state: &State) -> Result<(), Error> {
        let momentum = self.check_momentum(&state.tensors);
        let kept = momentum.and_then(|()| state.kept(&self.options));
        let facts = kept.as_ref().map_or(Vec::new(), |kept| self.facts(kept));
        let taken = kept.and_then(|kept| self.take_up(kept, state));
        self.agree_on_states(taken, &facts)
    }

    /// Returns the facts of a state that are the same on all ranks.
    fn facts(&self, kept: &Kept) -> Vec<(String, String)> {
        if self.planner.is_none() {
            return Vec::new();
        }
        let auto = serde_json::to_vec(&kept.auto).expect("finite numbers and strings");
        let hashes = [kept.plan.hash(), thinwire_wire::checksum(&auto)];
        vec![(
            "the decisions of auto".to_owned(),
            format!("hash {:08x}{:08x}", hashes[0], hashes[1]),
        )]
    }

    /// Takes up a state on this rank.
    fn take_up(&mut self, kept: Kept, state: &State) -> Result<(), Error> {
        let count = state.tensors.get(State::WARM_UP);
        self.resume_warm_up(count.map(|(_, values)| &values[..]))?;
        let planner = self.planner_of(&kept)?;
        if self.follows(&kept) {
            self.go_on(kept.plan)?;
        }
        self.load_tensors(state)?;
        if let Some(saved) = planner {
            self.aged = saved.age;
            let plan = self.plan.clone();
            self.planner_mut().resume(saved, &plan);
            if self.world.rank() == Rank(0) {
                self.explain_plan("a state was loaded");
            }
        }
        Ok(())
    }

    /// Refuses momentum that was summed before encoding if this job sums none: it would be lost.
    fn check_momentum(&self, tensors: &Tensors) -> Result<(), Error> {
        let has_momentum =
            |name: &&String| name.strip_prefix(MOMENTUM).is_some_and(|rest| rest.starts_with('.'));
        match tensors.keys().find(has_momentum) {
            Some(name) if self.options.momentum.is_none() => Err(Error::Invalid(format!(
                "the state is of a training with momentum correction ({name}), this one is without"
            ))),
            _ => Ok(()),
        }
    }

    /// Continues with the plan of a state that was made for the present options.
    fn go_on(&mut self, plan: Plan) -> Result<(), Error> {
        if plan.assignments.len() != self.buckets.len() {
            let (found, expected) = (plan.assignments.len(), self.buckets.len());
            return Err(Error::Invalid(format!(
                "the checkpoint has {found} buckets of gradients, these --bucket-bytes make {expected}"
            )));
        }
        match self.options.policy {
            Policy::Auto(_) => {
                self.check_plan(&plan).map_err(Error::Invalid)?;
                self.follow(Plan { fingerprint: String::new(), ..plan })
            }
            Policy::Fixed(_) | Policy::Named(_) => Ok(()),
        }
    }

    /// Loads residuals, factors and the count of a warm-up, whatever plan and buckets they come from. The
    /// next step may have any number.
    ///
    /// # Errors
    /// If they belong to another model, or contain momentum and this job has no momentum correction.
    pub fn load_tensors(&mut self, state: &State) -> Result<(), Error> {
        self.check_momentum(&state.tensors)?;
        let count = state.tensors.get(State::WARM_UP);
        self.resume_warm_up(count.map(|(_, values)| &values[..]))?;
        (self.last, self.first, self.aged) = (None, None, 0);
        self.planner.iter_mut().for_each(Planner::restart);
        self.buckets.iter_mut().try_for_each(|bucket| bucket.load(&self.parameters, &state.tensors))
    }

    /// Rescales residuals after a change of the learning rate, because they come from gradients at the
    /// previous rate. If parameters move by rate times average, the sum of all steps is then the same as
    /// without codec errors, whatever the rates.
    ///
    /// # Errors
    /// If a rate is not a number of 0 or more. A rate of 0 is not an error; it changes nothing.
    pub fn rescale(&mut self, previous_rate: f32, rate: f32) -> Result<(), Error> {
        if ![previous_rate, rate].iter().all(|rate| rate.is_finite() && *rate >= 0.0) {
            return Err(Error::Invalid(format!(
                "learning rates {previous_rate} and {rate}, expected 0 or more"
            )));
        }
        if previous_rate > 0.0 && rate > 0.0 {
            self.buckets.iter_mut().for_each(|bucket| bucket.rescale(previous_rate / rate));
        }
        Ok(())
    }
}

/// Returns the tensors from which rank r of a world of n ranks continues: the sums of the residuals of
/// the old ranks r, r + n, r + 2n, …. In a larger world, the additional ranks begin without residuals.
/// Tensors that are equal on all ranks are taken from rank 0. `read` returns the tensors of one of the
/// `saved` old ranks.
///
/// # Errors
/// The error of `read`; [`Error::Invalid`] if tensors to be summed differ in length, or tensors that
/// should be equal on all ranks are not. Each rank reads some of the old states, and all ranks together
/// read all of them.
pub fn reshard<E: From<Error>>(
    world: World,
    saved: usize,
    mut read: impl FnMut(usize) -> Result<Tensors, E>,
) -> Result<Tensors, E> {
    let mine = world.rank().index();
    let mut tensors = if saved > 0 { read(0)? } else { Tensors::new() };
    if mine > 0 {
        tensors.retain(|name, _| !is_summed(name));
    }
    for rank in (mine..saved).step_by(world.size()).filter(|rank| *rank > 0) {
        let (owed, alike) = read(rank)?.into_iter().partition(|(name, _)| is_summed(name));
        check_alike(&tensors, &alike, rank)?;
        add_all(&mut tensors, owed, &format!("rank {rank}"))?;
    }
    Ok(tensors)
}

/// Refuses tensors that should be equal on all ranks, but differ on this one.
fn check_alike(tensors: &Tensors, alike: &Tensors, rank: usize) -> Result<(), Error> {
    let first: Vec<_> = tensors.iter().filter(|(name, _)| !is_summed(name)).collect();
    let differing = alike.iter().find(|(name, theirs)| tensors.get(*name) != Some(*theirs));
    let missing = first.iter().find(|(name, _)| !alike.contains_key(*name));
    match differing.or(missing.copied()) {
        None => Ok(()),
        Some((name, _)) => Err(Error::Invalid(format!(
            "{name} is not the same in the states of rank 0 and rank {rank}: they were not saved together"
        ))),
    }
}

/// Adds the residuals and momenta of a rank.
fn add_all(tensors: &mut Tensors, owed: Tensors, of: &str) -> Result<(), Error> {
    for (name, theirs) in owed {
        match tensors.get_mut(&name) {
            None => drop(tensors.insert(name, theirs)),
            Some((_, sum)) if sum.len() == theirs.1.len() => add(sum, &theirs.1),
            Some((_, sum)) => {
                let (found, expected) = (theirs.1.len(), sum.len());
                return Err(Error::Invalid(format!(
                    "{name} of {of} in the state has {found} elements, expected {expected}"
                )));
            }
        }
    }
    Ok(())
}

/// Returns whether ranks hold parts of a sum under this name.
fn is_summed(name: &str) -> bool {
    SUMMED.iter().any(|prefix| name.starts_with(prefix))
}

const SUMMED: [&str; 3] = ["residual.", "shift.", "momentum."];

fn add(sum: &mut [f32], values: &[f32]) {
    sum.iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_count_is_read_as_it_was_put() {
        for count in [0, 1, (1 << 24) - 1, 1 << 24, (1 << 48) - 1] {
            assert_eq!(count_of(&tensor_of_count(count).1), Some(count));
        }
        for values in [&[1.0][..], &[0.0, 0.5], &[0.0, -1.0], &[16_777_216.0, 0.0], &[0.0; 3]] {
            assert_eq!(count_of(values), None, "{values:?}");
        }
    }

    /// Whole numbers, so that sums are exact.
    fn old(rank: usize) -> Tensors {
        let values = |seed: usize| (0..7).map(|i| ((i * 5 + seed * 3) % 11) as f32).collect();
        let mut tensors = BTreeMap::from([
            ("residual.a".to_owned(), (vec![7], values(rank))),
            ("factor.a".to_owned(), (vec![7], values(100))),
        ]);
        if rank % 3 == 1 {
            tensors.insert("residual.b".to_owned(), (vec![7], values(rank + 50)));
        }
        tensors
    }

    fn sums(ranks: &[Tensors]) -> BTreeMap<String, Vec<f32>> {
        let mut sums = BTreeMap::new();
        for (name, (_, values)) in ranks.iter().flatten().filter(|(name, _)| is_summed(name)) {
            add(sums.entry(name.clone()).or_insert(vec![0.0; values.len()]), values);
        }
        sums
    }

    proptest! {
        #[test]
        fn what_all_ranks_owe_together_stays(before in 1_usize..12, after in 1_usize..12) {
            let ranks: Vec<Tensors> = (0..before).map(old).collect();
            let read = |rank: usize| Ok::<_, Error>(ranks[rank].clone());
            let new: Vec<Tensors> = (0..after as u32)
                .map(|rank| reshard(World::new(rank, after as u32).unwrap(), before, read).unwrap())
                .collect();
            prop_assert_eq!(sums(&ranks), sums(&new));
            for (rank, tensors) in new.iter().enumerate() {
                prop_assert_eq!(&tensors["factor.a"], &old(0)["factor.a"]);
                prop_assert_eq!(tensors.contains_key("residual.a"), rank < before);
            }
            if before == after {
                prop_assert_eq!(ranks, new);
            }
        }
    }

    #[test]
    fn an_error_of_reading_is_passed_on() {
        let world = World::new(0, 2).unwrap();
        let gone = || Error::Invalid("gone".to_owned());
        let read = |rank: usize| if rank == 2 { Err(gone()) } else { Ok(old(rank)) };
        assert_eq!(reshard(world, 4, read).unwrap_err().to_string(), "gone");
        assert!(reshard(World::new(1, 2).unwrap(), 4, read).is_ok());
    }

    /// Returns the errors on each of two new ranks if rank 3 of four has these values under a name, or
    /// none.
    fn changed(name: &str, values: Option<Vec<f32>>) -> [Option<String>; 2] {
        let read = |rank: usize| {
            let mut tensors = old(rank);
            if rank == 3 {
                tensors.remove(name);
                let new = values.clone().map(|values| (name.to_owned(), (vec![7], values)));
                tensors.extend(new);
            }
            Ok::<_, Error>(tensors)
        };
        let new = |rank| reshard(World::new(rank, 2).unwrap(), 4, read);
        [0, 1].map(|rank| new(rank).err().map(|error| error.to_string()))
    }

    #[test]
    fn states_of_two_moments_are_refused_by_who_reads_them() {
        let alike = "factor.a is not the same in the states of rank 0 and rank 3: they were not saved together";
        assert_eq!(changed("factor.a", Some(vec![0.5; 7])), [None, Some(alike.to_owned())]);
        assert_eq!(changed("factor.a", None), [None, Some(alike.to_owned())]);
        let short = "residual.a of rank 3 in the state has 6 elements, expected 7";
        assert_eq!(changed("residual.a", Some(vec![0.5; 6])), [None, Some(short.to_owned())]);
        assert_eq!(changed("residual.a", None), [None, None]);
    }
}

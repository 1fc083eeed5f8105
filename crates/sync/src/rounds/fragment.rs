//! A fragment: some of the parameters, what all ranks have of them in common, and how they are exchanged.

use std::ops::Range;
use std::time::Instant;

use thinwire_update::{Optimizer, Step};

use super::mode::{DiLoCo, MEAN};
use super::replica::{Replica, checksum};
use crate::channel::Channel;
use crate::{Error, Options, Outcome, Parameter, Synchronizer, Tensors};

/// Names of tensors in a state: the common parameters, and the slots of the outer optimiser.
const COMMON: &str = "common";
const OUTER: &str = "outer";

/// Some rows of a parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    /// The number of the parameter.
    pub parameter: usize,
    /// Its elements.
    pub elements: Range<usize>,
}

/// What all fragments of a training have in common.
#[derive(Clone, Copy, Debug)]
pub(super) struct Among<'a> {
    /// The ranks.
    pub channel: &'a Channel,
    /// All parameters.
    pub parameters: &'a [Parameter],
    /// The options of the exchange.
    pub options: &'a Options,
    /// The settings of the mode.
    pub settings: DiLoCo,
}

/// What the end of a round is part of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// A training that continues: the outer optimiser makes a step, and ranks keep their part.
    Training,
    /// The end of a training: the average is added as it is, and ranks keep nothing of their own.
    Last,
}

/// One fragment of the parameters.
#[derive(Debug)]
pub(super) struct Fragment {
    number: u32,
    /// The number of all fragments, which share a channel.
    fragments: u32,
    settings: DiLoCo,
    pieces: Vec<Piece>,
    /// Where each piece begins in the common parameters, and their end.
    starts: Vec<usize>,
    sync: Synchronizer,
    /// The parameters that all ranks have in common.
    common: Vec<f32>,
    /// What the outer optimiser keeps of them.
    outer: Vec<f32>,
    /// The updates of the outer optimiser.
    updates: u64,
    /// Rounds that have begun, skipped ones too.
    rounds: u64,
    /// Whether a round is on its way.
    is_underway: bool,
    /// The steps after which the last round ended.
    ended_at: Option<u64>,
}

/// Cuts parameters into fragments of about as many elements each, between rows.
pub(super) fn cut(parameters: &[Parameter], fragments: u32) -> Vec<Vec<Piece>> {
    let total: usize = parameters.iter().map(Parameter::elements).sum();
    let end_of =
        |fragment: usize| (total as u128 * (fragment as u128 + 1) / u128::from(fragments)) as usize;
    let mut all = vec![Vec::new(); fragments as usize];
    let (mut fragment, mut before) = (0, 0);
    for (parameter, description) in parameters.iter().enumerate() {
        let (elements, row) = (description.elements(), row_of(description));
        let mut start = 0;
        while start < elements {
            let room = end_of(fragment).saturating_sub(before + start);
            let rows = (room + row / 2) / row * row;
            if rows == 0 && fragment + 1 < all.len() {
                fragment += 1;
                continue;
            }
            let is_last = fragment + 1 == all.len();
            let end = if is_last { elements } else { elements.min(start + rows) };
            all[fragment].push(Piece { parameter, elements: start..end });
            start = end;
        }
        before += elements;
    }
    all
}

/// Returns the number of all parts that [`cut`] leaves whole.
pub(super) fn rows(parameters: &[Parameter]) -> usize {
    parameters.iter().map(|it| it.elements() / row_of(it)).sum()
}

/// Returns the number of elements that are not parted: a row of a matrix, one element of a vector.
fn row_of(parameter: &Parameter) -> usize {
    let rows = parameter.shape.first().copied().unwrap_or(1).max(1);
    (parameter.elements() / rows).max(1)
}

/// Describes a piece as its synchroniser takes it.
fn described(piece: &Piece, parameters: &[Parameter]) -> Parameter {
    let Piece { parameter, elements } = piece;
    let whole = &parameters[*parameter];
    if elements.len() == whole.elements() {
        return Parameter { bucket: 0, ..whole.clone() };
    }
    let row = row_of(whole);
    Parameter { bucket: 0, ..whole.of_rows(elements.start / row..elements.end / row) }
}

impl Fragment {
    /// Starts the exchange of a fragment, whose common parameters are those of this rank; a collective call.
    ///
    /// # Errors
    /// As [`Synchronizer::over`].
    pub(super) fn start(
        among: &Among<'_>,
        number: u32,
        pieces: Vec<Piece>,
        replica: &impl Replica,
    ) -> Result<Fragment, Error> {
        let Among { channel, parameters, options, settings } = *among;
        let described = pieces.iter().map(|piece| described(piece, parameters)).collect();
        let sync = Synchronizer::over(channel.clone(), described, options.clone())?.overlapping();
        let mut starts = vec![0];
        for piece in &pieces {
            starts.push(starts[starts.len() - 1] + piece.elements.len());
        }
        let elements = starts[pieces.len()];
        let mut fragment = Fragment {
            number,
            fragments: settings.fragments,
            pieces,
            starts,
            sync,
            common: vec![0.0; elements],
            outer: vec![0.0; settings.outer.rule.slots() * elements],
            updates: 0,
            rounds: 0,
            is_underway: false,
            ended_at: None,
            settings,
        };
        fragment.common = fragment.read(replica);
        Ok(fragment)
    }

    /// Returns the fragment's parameters of this rank.
    fn read(&self, replica: &impl Replica) -> Vec<f32> {
        let mut values = vec![0.0; self.common.len()];
        for (piece, start) in self.pieces.iter().zip(&self.starts) {
            let end = start + piece.elements.len();
            replica.read(piece.parameter, piece.elements.start, &mut values[*start..end]);
        }
        values
    }

    fn write(&self, values: &[f32], replica: &mut impl Replica) {
        for (piece, start) in self.pieces.iter().zip(&self.starts) {
            let end = start + piece.elements.len();
            replica.write(piece.parameter, piece.elements.start, &values[*start..end]);
        }
    }

    /// Begins a round: sends how far this rank's parameters are from the common ones.
    pub(super) fn begin(&mut self, replica: &impl Replica, begun: Instant) -> Result<(), Error> {
        let mut delta = self.read(replica);
        delta.iter_mut().zip(&self.common).for_each(|(value, common)| *value = common - *value);
        // Rounds of all fragments have numbers of their own on the channel.
        let number = self.rounds * u64::from(self.fragments) + u64::from(self.number);
        self.sync.begin_since(number, begun)?;
        (self.rounds, self.is_underway) = (self.rounds + 1, true);
        for (index, start) in self.starts[..self.pieces.len()].iter().enumerate() {
            self.sync.ready(index, &delta[*start..self.starts[index + 1]])?;
        }
        Ok(())
    }

    /// Whether a round is on its way.
    pub(super) fn is_underway(&self) -> bool {
        self.is_underway
    }

    /// Ends a round: lets the outer optimiser make a step with the average, and draws this rank's parameters towards
    /// the result, after so many steps. After a round that is skipped, all ranks go back to the common parameters.
    pub(super) fn end(
        &mut self,
        replica: &mut impl Replica,
        stage: Stage,
        steps: u64,
    ) -> Result<Outcome, Error> {
        let outcome = self.sync.finish()?;
        (self.is_underway, self.ended_at) = (false, Some(steps));
        if outcome == Outcome::Skipped {
            self.draw(None, replica);
            return Ok(outcome);
        }
        let kept = match stage {
            Stage::Training => {
                self.updates += 1;
                self.update(self.settings.outer);
                Some(self.alpha())
            }
            Stage::Last => {
                self.update(MEAN);
                None
            }
        };
        self.draw(kept, replica);
        Ok(outcome)
    }

    /// Part of its own parameters that a rank keeps at the end of a round.
    pub(super) fn alpha(&self) -> f32 {
        self.settings.alpha
    }

    /// Draws this rank's parameters to the common ones; it keeps a part of its own, or none.
    pub(super) fn draw(&self, kept: Option<f32>, replica: &mut impl Replica) {
        let Some(alpha) = kept.filter(|alpha| *alpha > 0.0) else {
            return self.write(&self.common, replica);
        };
        let mut values = self.read(replica);
        for (value, common) in values.iter_mut().zip(&self.common) {
            *value = alpha * *value + (1.0 - alpha) * common;
        }
        self.write(&values, replica);
    }

    /// Continues among the ranks of another channel; a round under way is dropped.
    ///
    /// # Errors
    /// As [`Synchronizer::reform_over`].
    pub(super) fn reform(&mut self, channel: &Channel) -> Result<(), Error> {
        self.sync.reform_over(channel.clone())?;
        self.rounds -= u64::from(self.is_underway);
        (self.is_underway, self.ended_at) = (false, None);
        Ok(())
    }

    /// Lets go of the other ranks between rounds.
    pub(super) fn release(&mut self) {
        self.sync.release();
    }

    /// Takes over what another rank has in common; what this rank owes was sent in a round whose end it has missed.
    ///
    /// # Errors
    /// As [`Fragment::load`].
    pub(super) fn take_over(&mut self, counts: [u64; 2], tensors: &Tensors) -> Result<(), Error> {
        let owed = self.sync.state().owed().tensors.into_iter();
        let nothing = owed.map(|(name, (shape, owed))| (name, (shape, vec![0.0; owed.len()])));
        let tensors = tensors.clone().into_iter().chain(nothing).collect();
        self.load(counts, &tensors)
    }

    /// Whether all ranks have the common parameters after so many steps, since a round has just ended.
    pub(super) fn is_united(&self, steps: u64) -> bool {
        self.settings.alpha == 0.0 && self.ended_at == Some(steps)
    }

    /// Lets an optimiser make a step with the averages.
    fn update(&mut self, Optimizer { rule, learning_rate }: Optimizer) {
        let slots = rule.slots();
        let step = Step { number: self.updates, learning_rate, gradient_scale: 1.0 };
        for (index, start) in self.starts[..self.pieces.len()].iter().enumerate() {
            let range = *start..self.starts[index + 1];
            // The slots of a piece lie together.
            let state = &mut self.outer[slots * range.start..slots * range.end];
            let average = self.sync.gradient(index);
            rule.update(&mut self.common[range], average, state, step);
        }
    }

    /// The exchange of the fragment.
    pub(super) fn sync(&self) -> &Synchronizer {
        &self.sync
    }

    /// Returns the hash of what all ranks have in common.
    pub(super) fn checksum(&self) -> u64 {
        u64::from(checksum(&self.common)) << 32 | u64::from(checksum(&self.outer))
    }

    /// Returns the parameters that all ranks have in common, piece by piece.
    pub(super) fn common(&self) -> impl Iterator<Item = (&Piece, &[f32])> {
        let ends = self.starts.windows(2).map(|ends| &self.common[ends[0]..ends[1]]);
        self.pieces.iter().zip(ends)
    }

    /// Begins anew with the parameters of this rank in common.
    pub(super) fn restart(&mut self, replica: &impl Replica) -> Result<(), Error> {
        self.sync.load_tensors(&crate::State::default())?;
        self.common = self.read(replica);
        self.outer.fill(0.0);
        (self.updates, self.rounds, self.ended_at) = (0, 0, None);
        Ok(())
    }

    /// Adds the common parameters, the outer optimiser's state and what the exchange keeps to a state.
    pub(super) fn save(&self, tensors: &mut Tensors) {
        let slots = self.settings.outer.rule.slots();
        for (index, parameter) in self.sync.parameters().iter().enumerate() {
            let range = self.starts[index]..self.starts[index + 1];
            let mut put = |kind: String, values: &[f32]| {
                let name = format!("{kind}.{}", parameter.name);
                tensors.insert(name, (parameter.shape.clone(), values.to_vec()));
            };
            put(COMMON.to_owned(), &self.common[range.clone()]);
            let state = &self.outer[slots * range.start..slots * range.end];
            for (slot, values) in state.chunks(range.len().max(1)).enumerate() {
                put(format!("{OUTER}{slot}"), values);
            }
        }
        tensors.extend(self.sync.state().tensors);
    }

    /// Continues from a state.
    ///
    /// # Errors
    /// If it lacks a tensor or has one of another length; nothing has changed then.
    pub(super) fn load(&mut self, counts: [u64; 2], tensors: &Tensors) -> Result<(), Error> {
        let slots = self.settings.outer.rule.slots();
        let (mut common, mut outer) = (Vec::new(), Vec::new());
        for parameter in self.sync.parameters() {
            let take = |kind: String, values: &mut Vec<f32>| {
                let name = format!("{kind}.{}", parameter.name);
                let found = tensors.get(&name).map(|(_, values)| values);
                match found.filter(|found| found.len() == parameter.elements()) {
                    Some(found) => {
                        values.extend(found);
                        Ok(())
                    }
                    None => Err(Error::Invalid(format!(
                        "the state has {name} of {} elements, expected {} (hint: continue in the mode in which it was saved, or without a mode)",
                        found.map_or(0, Vec::len),
                        parameter.elements()
                    ))),
                }
            };
            take(COMMON.to_owned(), &mut common)?;
            (0..slots).try_for_each(|slot| take(format!("{OUTER}{slot}"), &mut outer))?;
        }
        let mine = tensors
            .iter()
            .filter(|(name, _)| !name.starts_with(COMMON) && !name.starts_with(OUTER));
        let tensors = mine.map(|(name, tensor)| (name.clone(), tensor.clone())).collect();
        self.sync.load_tensors(&crate::State { tensors, plan: String::new() })?;
        (self.common, self.outer) = (common, outer);
        [self.rounds, self.updates] = counts;
        self.ended_at = None;
        Ok(())
    }

    /// Returns the numbers of rounds and of updates.
    pub(super) fn counts(&self) -> [u64; 2] {
        [self.rounds, self.updates]
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn fragments_have_all_elements_once(
            shapes in proptest::collection::vec((1_usize..40, 1_usize..20), 1..12),
            fragments in 1_u32..6,
        ) {
            let parameters: Vec<Parameter> = shapes
                .iter()
                .enumerate()
                .map(|(at, (rows, columns))| Parameter::new(&at.to_string(), &[*rows, *columns]))
                .collect();
            let all = cut(&parameters, fragments);
            prop_assert_eq!(all.len(), fragments as usize);
            let mut next = vec![0; parameters.len()];
            for piece in all.iter().flatten() {
                prop_assert_eq!(piece.elements.start, next[piece.parameter]);
                next[piece.parameter] = piece.elements.end;
                prop_assert_eq!(piece.elements.len() % parameters[piece.parameter].shape[1], 0);
            }
            let expected: Vec<usize> = parameters.iter().map(Parameter::elements).collect();
            prop_assert_eq!(next, expected);
            let total: usize = parameters.iter().map(Parameter::elements).sum();
            let row = parameters.iter().map(|it| it.shape[1]).max().unwrap();
            for fragment in &all {
                let elements: usize = fragment.iter().map(|piece| piece.elements.len()).sum();
                prop_assert!(elements <= total / fragments as usize + row + 1, "{elements} of {total}");
            }
        }
    }

    #[test]
    fn rows_of_a_large_parameter_are_parted() {
        let parameters = [Parameter::new("embedding", &[8, 4]), Parameter::new("bias", &[4])];
        let all = cut(&parameters, 2);
        let names: Vec<Vec<String>> = all
            .iter()
            .map(|pieces| pieces.iter().map(|piece| described(piece, &parameters).name).collect())
            .collect();
        assert_eq!(names, [vec!["embedding[0..5]"], vec!["embedding[5..8]", "bias"]]);
    }
}

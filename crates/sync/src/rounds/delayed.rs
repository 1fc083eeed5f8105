//! Gradients that are averaged in every step and applied some steps later, so that their exchange overlaps with
//! the steps between.

use std::time::Instant;

use super::mode::Mode;
use crate::channel::Channel;
use crate::{Error, Options, Outcome, Parameter, Policy, State, Synchronizer, Tensors};

/// The exchanges of gradients that are applied `steps` steps later, each with a residual of its
/// own.
#[derive(Debug)]
pub struct Delayed {
    /// One for each step that may be on its way, in turn.
    turns: Vec<Synchronizer>,
    /// The number of the next step.
    step: u64,
    /// Steps that are on their way.
    underway: u64,
}

impl Delayed {
    /// Starts the exchange of gradients that are applied `steps` steps later; a collective call.
    ///
    /// # Errors
    /// As [`Synchronizer::over`], or if codec `auto` would have to measure while gradients are on their way.
    pub fn start(
        channel: &Channel,
        parameters: &[Parameter],
        steps: u64,
        options: &Options,
    ) -> Result<Delayed, Error> {
        Mode::Delayed { steps }.check().map_err(|error| Error::Invalid(error.to_string()))?;
        if steps > 0 {
            refuse_auto(options, steps)?;
        }
        let turn = |_| {
            let sync = Synchronizer::over(channel.clone(), parameters.to_vec(), options.clone());
            // Without a delay nothing overlaps, and random rounding is that of steps.
            sync.map(|sync| if steps > 0 { sync.overlapping() } else { sync })
        };
        Ok(Delayed {
            turns: (0..=steps).map(turn).collect::<Result<_, _>>()?,
            step: 0,
            underway: 0,
        })
    }

    /// Sends the gradients of a step whose computation began at `begun`, and waits for the averages of
    /// the step that is due: the one `steps` steps earlier. Returns that step, whose averages can be
    /// read unless it was skipped; `None` in the first steps.
    ///
    /// # Errors
    /// If a gradient has another length, or a peer is lost.
    pub fn exchange(
        &mut self,
        gradients: &[&[f32]],
        begun: Instant,
    ) -> Result<Option<Due<'_>>, Error> {
        let turns = self.turns.len() as u64;
        self.check(gradients)?;
        let sync = &mut self.turns[(self.step % turns) as usize];
        sync.begin_since(self.step, begun)?;
        for (index, gradient) in gradients.iter().enumerate() {
            sync.ready(index, *gradient)?;
        }
        (self.step, self.underway) = (self.step + 1, self.underway + 1);
        if self.underway == turns { self.end() } else { Ok(None) }
    }

    /// Sets the part of the global batch that this rank computes, from the next step on; `None` if all
    /// parts are equal.
    ///
    /// # Errors
    /// As [`Synchronizer::set_share`].
    pub fn set_share(&mut self, share: Option<f32>) -> Result<(), Error> {
        self.turns.iter_mut().try_for_each(|sync| match share {
            Some(share) => sync.set_share(share),
            None => {
                sync.set_equal_shares();
                Ok(())
            }
        })
    }

    /// Returns the tensors that the exchanges keep for the next steps. Nothing may be on its way.
    pub fn tensors(&self) -> Tensors {
        let of_turn = |(turn, sync): (usize, &Synchronizer)| {
            let all = sync.state().tensors.into_iter();
            all.map(move |(name, tensor)| (named(turn, &name), tensor)).collect::<Tensors>()
        };
        self.turns.iter().enumerate().flat_map(of_turn).collect()
    }

    /// Continues from the tensors that [`Delayed::tensors`] returned, before the step with this number.
    ///
    /// # Errors
    /// As [`Synchronizer::load_tensors`].
    pub fn load(&mut self, tensors: &Tensors, step: u64) -> Result<(), Error> {
        for (turn, sync) in self.turns.iter_mut().enumerate() {
            let own = tensors.iter().filter_map(|(name, tensor)| {
                let (kind, rest) = name.split_once('.')?;
                let parameter = rest.strip_prefix(&format!("{turn}/"))?;
                // What counts the steps of a warm-up is of no parameter.
                let name = match parameter {
                    "" => kind.to_owned(),
                    parameter => format!("{kind}.{parameter}"),
                };
                Some((name, tensor.clone()))
            });
            sync.load_tensors(&State { tensors: own.collect(), plan: String::new() })?;
        }
        (self.step, self.underway) = (step, 0);
        Ok(())
    }

    /// Refuses gradients of other lengths before a step has begun with them.
    fn check(&self, gradients: &[&[f32]]) -> Result<(), Error> {
        let found: Vec<usize> = gradients.iter().map(|gradient| gradient.len()).collect();
        let expected = self.turns[0].parameters().iter().map(Parameter::elements);
        let expected: Vec<usize> = expected.collect();
        match found == expected {
            true => Ok(()),
            false => Err(Error::Invalid(format!(
                "gradients of {found:?} elements, expected {expected:?}"
            ))),
        }
    }

    /// Waits for the oldest step that is on its way, at the end of the training; returns `None` if
    /// there is none.
    ///
    /// # Errors
    /// If a peer is lost.
    pub fn end(&mut self) -> Result<Option<Due<'_>>, Error> {
        let Some(oldest) = self.underway.checked_sub(1).map(|after| self.step - 1 - after) else {
            return Ok(None);
        };
        self.underway -= 1;
        let turn = oldest % self.turns.len() as u64;
        let sync = &mut self.turns[turn as usize];
        let outcome = sync.finish()?;
        Ok(Some(Due { outcome, step: oldest, sync }))
    }
}

/// A step whose averages are due.
#[derive(Debug)]
pub struct Due<'a> {
    /// The outcome of the step.
    pub outcome: Outcome,
    /// The number of the step.
    pub step: u64,
    /// The exchange, which has the averages.
    pub sync: &'a Synchronizer,
}

/// Returns the name of a tensor of one of several exchanges.
fn named(turn: usize, name: &str) -> String {
    let (kind, parameter) = name.split_once('.').unwrap_or((name, ""));
    format!("{kind}.{turn}/{parameter}")
}

/// Refuses `auto`, which measures the link in some steps, where others are on their way.
fn refuse_auto(options: &Options, steps: u64) -> Result<(), Error> {
    match options.policy {
        Policy::Auto(_) => Err(Error::Invalid(format!(
            "codec auto cannot be used with mode delayed:{steps}, expected a codec such as int8: auto measures \
             the link, on which other exchanges are under way"
        ))),
        Policy::Fixed(_) | Policy::Named(_) => Ok(()),
    }
}

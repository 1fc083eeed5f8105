//! Updates: gradients are summed and sent to the ranks that update the parameters, and these ranks
//! distribute the new values.

use std::borrow::Cow;
use std::fmt;
use std::time::Instant;

use thinwire_model::{Layout, Placement};
use thinwire_program::{Mesh, Message, Owner, Parameter, Program};
use thinwire_sync::Outcome;

use super::gradients::Exchange;
use super::{Agreed, Executor, Last, Watch, known_loss};
use crate::adam::{Sending, Travel};
use crate::error::Error;
use crate::spmd::invalid;
use crate::spmd::slots::{Content, MessageEnd, Slots, When};
use crate::spmd::value::Value;
use crate::{Adam, AdamW, AdamWOptions, Pace, clip_scale, global_norm};

/// The sum of a parameter's gradient so far.
#[derive(Debug, Default)]
pub(super) struct Sum {
    shares: usize,
    total: Option<Vec<f32>>,
}

/// Step of one rank, as it is handed to the optimiser of other processes. Each field has an item per
/// parameter of `ExchangeOptions::remote`, in the order of the program.
#[derive(Debug)]
pub struct Handover<'a> {
    /// Gradients; `None` for a step that is skipped because some are not finite.
    pub gradients: Option<&'a [Cow<'a, [f32]>]>,
    /// Factor of the gradients.
    pub scale: f32,
    /// Mean loss of the ranks that exchange with this one. The optimiser may replace it by the mean loss of
    /// all ranks.
    pub loss: &'a mut f64,
    /// Values of the parameters. The optimiser replaces them by the values for the next step.
    pub values: &'a mut [Vec<f32>],
}

/// Function that takes a step, and returns the bytes that it sent.
type Update<'a> = dyn FnMut(Handover<'_>) -> Result<u64, Error> + 'a;

/// Optimiser of other processes, such as the servers of a parameter server, as one rank calls it after its
/// backward pass.
pub struct Remote<'a>(Box<Update<'a>>);

impl<'a> Remote<'a> {
    /// Wraps the function that is called in every step.
    pub fn new(update: impl FnMut(Handover<'_>) -> Result<u64, Error> + 'a) -> Remote<'a> {
        Remote(Box::new(update))
    }

    fn update(&mut self, step: Handover<'_>) -> Result<u64, Error> {
        (self.0)(step)
    }
}

impl fmt::Debug for Remote<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Remote")
    }
}

impl Executor<'_> {
    /// Adds a share of a gradient; after the last share of a step, the gradient can be reduced.
    pub(super) fn share(&mut self, index: usize, value: Value) {
        if self.muted {
            return;
        }
        let (sum, share) = (&mut self.sums[index], value.into_floats());
        match &mut sum.total {
            Some(total) => total.iter_mut().zip(&share).for_each(|(a, b)| *a += b),
            None => sum.total = Some(share),
        }
        sum.shares += 1;
        let parameter = &self.program.parameters[index];
        if sum.shares == parameter.shares * self.program.micro_batches {
            self.complete.push(index);
        }
    }

    /// Hands over the gradients that have all their shares.
    pub(super) fn reduce(&mut self) -> Result<(), Error> {
        let when = When::later(self.micro_batch_number(0));
        for index in std::mem::take(&mut self.complete) {
            let parameter = &self.program.parameters[index];
            let total = self.sums[index].total.take().expect("all its shares have come");
            let content =
                Content::Here(Value::new(&self.program.slots[parameter.sum].shape, total));
            let earlier = self.exchange.earlier(index, parameter);
            let content = self.slots.chain(&self.program, earlier, content, when)?;
            let slot = earlier.last().map_or(parameter.sum, |convert| convert.to);
            let value = self.slots.arrived(content, &self.program.slots[slot].shape)?;
            let micro_batches = self.program.micro_batches_of_all;
            let state = &self.optimizer.state;
            let turn = |gradient: &mut [f32], sending| state.hand_over(index, gradient, sending);
            self.exchange.ready(index, value.into_floats(), micro_batches, turn)?;
        }
        Ok(())
    }

    /// Ends a step: waits for gradients, runs the optimiser, and distributes new values.
    pub(super) fn update(
        &mut self,
        pace: Pace,
        options: &AdamWOptions,
        watch: &mut Watch,
    ) -> Result<(), Error> {
        let outcome = self.exchange.wait()?;
        self.slots.waited_s.update(|waited_s| waited_s + self.exchange.exposed_wait_s);
        self.sums = self.program.parameters.iter().map(|_| Sum::default()).collect();
        let outcome = self.tell(outcome)?;
        let keep = outcome == Outcome::Averaged;
        watch.told();
        // A synchroniser that plans anew does so with nothing else on its way.
        self.slots.flush()?;
        // All ranks have the step once they have told each other: a peer that is lost while a synchroniser
        // plans anew takes nothing of it back.
        let planned = self.exchange.commit(outcome);
        if keep && !self.exchange.has_averages() {
            return planned;
        }
        self.slots.residuals.settle(outcome)?;
        let (started, waited_s) = (Instant::now(), self.slots.waited_s.get());
        self.gradient_norm = f64::NAN;
        if keep && self.exchange.is_pending() {
            self.gradient_norm = 0.0;
        } else if keep {
            self.optimize(pace, options)?;
            self.look_at_variance(options);
        } else {
            self.update_remotely(None)?;
        }
        self.optimizer_s = started.elapsed().as_secs_f64() - (self.slots.waited_s.get() - waited_s);
        let (micro_batch_number, slots, program) =
            (self.micro_batch_number(0), &mut self.slots, &self.program);
        for (index, parameter) in program.parameters.iter().enumerate() {
            let values = self.optimizer.shown(index);
            let home = bring_home(slots, program, parameter, &values, micro_batch_number)?;
            slots.put_lasting(parameter.home, home);
        }
        self.step += 1;
        planned
    }

    /// Gathers one row per rank in a step: whether the rank's values are finite, its share of the loss,
    /// its number (see [`Executor::say`]), its notes, and a sketch of its gradients if one is due.
    /// Returns the outcome of the step for all ranks.
    fn tell(&mut self, outcome: Outcome) -> Result<Outcome, Error> {
        let finite = outcome == Outcome::Averaged && self.slots.exchanges.take_finite();
        let [known, loss] = self.told_loss();
        let mut row = vec![f32::from(u8::from(finite)), known, loss, self.said];
        let header = row.len();
        row.extend(&self.notes);
        row.extend(self.exchange.sketch());
        let all = self.slots.gather_waiting(&row)?;
        let rows: Vec<&[f32]> = all.chunks(row.len()).collect();
        let losses: Vec<_> = rows.iter().map(|row| known_loss([row[1], row[2]])).collect();
        self.agreed = Agreed {
            loss: self.mean_loss(&losses, self.program.micro_batches_of_all),
            said: rows.iter().map(|row| row[3]).fold(f32::MIN, f32::max),
        };
        self.all_notes = rows.iter().flat_map(|row| &row[header..]).copied().collect();
        let all_finite = rows.iter().all(|row| row[0] == 1.0);
        Ok(if all_finite { Outcome::Averaged } else { Outcome::Skipped })
    }

    /// Sends all sums to their owners, clips them, and runs the optimiser.
    fn optimize(&mut self, pace: Pace, options: &AdamWOptions) -> Result<(), Error> {
        let micro_batch_number = self.micro_batch_number(0);
        let (slots, program, exchange) = (&mut self.slots, &self.program, &self.exchange);
        let gradients = program.parameters.iter().enumerate().map(|(index, parameter)| {
            whole_gradient(slots, program, exchange.gradient(index), parameter, micro_batch_number)
        });
        let gradients = gradients.collect::<Result<Vec<_>, Error>>()?;
        let norm = match exchange.is_replica {
            true => norm_of_replicas(slots, exchange, self.share)?,
            false => norm_of_all(slots, program, &gradients)?,
        };
        self.gradient_norm = norm * f64::from(pace.gradient_scale);
        // Sums of finite numbers may overflow.
        if !self.gradient_norm.is_finite() {
            drop(gradients);
            return self.update_remotely(None);
        }
        // Momenta of clipped gradients are within the same norm.
        let clip = clip_scale(self.gradient_norm, self.gradient_norm_max);
        let pace = Pace { gradient_scale: pace.gradient_scale * clip, ..pace };
        // What others update is nothing to this rank's optimiser.
        let away = Away::take(exchange, &mut self.optimizer.values);
        let gradient = |index: usize| match exchange.is_remote(index) {
            true => &[][..],
            false => &gradients[index][..],
        };
        let (adam, travel) = (exchange.adam, exchange.sending.travel);
        self.optimizer.update(adam, travel, gradient, pace, options);
        drop(gradients);
        away.put_back(&mut self.optimizer.values);
        self.update_remotely(Some(pace.gradient_scale))
    }

    /// Returns the values that this rank hands over in the next step.
    pub(super) fn sending(&mut self, pace: Pace, options: &AdamWOptions) -> Result<Sending, Error> {
        let adam = self.exchange.adam;
        let form = match adam {
            // Its warm-up is AdamW's.
            Adam::OneBit if self.exchange.sync.is_in_warm_up() => Adam::AdamW,
            form => form,
        };
        let state = &mut self.optimizer.state;
        let travel = state.travel(form, pace.learning_rate);
        let rate = state.rate(state.updates + 1, pace, options);
        if adam == Adam::ZeroOne && travel == Travel::Momenta {
            self.rescale(rate)?;
        }
        Ok(Sending { travel, beta1: options.beta1, rate })
    }

    /// Rescales the residuals so that they have the same effect as before. Momenta are applied for all
    /// steps since the last exchange; `rate` is the rate of the next exchange's momenta.
    fn rescale(&mut self, rate: f32) -> Result<(), Error> {
        let AdamW { variance, local, .. } = &mut self.optimizer.state;
        let sent_rate = local.rate + rate;
        self.exchange.sync.rescale(variance.sent_rate, sent_rate).map_err(Error::exchange)?;
        if sent_rate > 0.0 {
            variance.sent_rate = sent_rate;
        }
        Ok(())
    }

    /// Ends the warm-up of 1-bit Adam, or fixes the variance of 0/1 Adam, if the variance has settled. This
    /// happens after the same step on all ranks.
    fn look_at_variance(&mut self, options: &AdamWOptions) {
        let state = &mut self.optimizer.state;
        if !self.exchange.may_settle() {
            return;
        }
        let (sum, squared) = (state.sum_of_squares(), state.squared());
        if !state.variance.settles(sum, options.beta2) {
            return;
        }
        match self.exchange.adam {
            Adam::ZeroOne => state.fix(squared),
            Adam::AdamW | Adam::OneBit => self.exchange.sync.finish_warm_up(),
        }
    }

    /// Applies local steps and delayed gradients early, so that all ranks have the same parameters and
    /// moments. All ranks call this after the same step.
    ///
    /// # Errors
    /// If a peer is lost.
    pub fn end_early(&mut self) -> Result<(), Error> {
        self.end_local_steps()?;
        let Some(Last { pace, options }) = self.last else { return Ok(()) };
        while let Some(outcome) = self.exchange.end_late()? {
            if outcome == Outcome::Averaged {
                self.optimize(pace, &options)?;
                self.use_values();
            }
        }
        Ok(())
    }

    /// Averages the momenta of all ranks, if each has taken local steps since the last exchange.
    fn end_local_steps(&mut self) -> Result<(), Error> {
        if self.optimizer.state.local.steps == 0 {
            return Ok(());
        }
        let state = &self.optimizer.state;
        let momentum = |index: usize| {
            let mut momentum = state.means[index].clone();
            state.local.average(index, &mut momentum, 0.0);
            momentum
        };
        let outcome = self.exchange.average_momenta(self.step, momentum)?;
        let exchange = &self.exchange;
        let averages = |index| (outcome == Outcome::Averaged).then(|| exchange.gradient(index));
        self.optimizer.unite(averages);
        self.use_values();
        Ok(())
    }

    /// Hands over the gradients that stay on this rank, multiplied by a scale, or a skipped step if
    /// there is no scale. Stores the new values of their parameters.
    fn update_remotely(&mut self, scale: Option<f32>) -> Result<(), Error> {
        let gradients: Vec<_> = self.exchange.kept().map(Cow::Borrowed).collect();
        let Some(remote) = &mut self.remote else {
            let text = format!(
                "{} gradients stay on this rank, but nothing updates their parameters",
                gradients.len()
            );
            return if gradients.is_empty() { Ok(()) } else { Err(invalid(text)) };
        };
        let begun = Instant::now();
        let mut away = Away::take(&self.exchange, &mut self.optimizer.values);
        let sent_bytes = remote.update(Handover {
            gradients: scale.map(|_| &gradients[..]),
            scale: scale.unwrap_or(0.0),
            loss: &mut self.agreed.loss,
            values: &mut away.values,
        });
        drop(gradients);
        away.put_back(&mut self.optimizer.values);
        self.exchange.sent_bytes += sent_bytes?;
        self.slots.waited_s.update(|before| before + begun.elapsed().as_secs_f64());
        Ok(())
    }
}

/// Values of the parameters that other processes update, which this rank's optimiser must not change.
struct Away {
    places: Vec<usize>,
    values: Vec<Vec<f32>>,
}

impl Away {
    fn take(exchange: &Exchange, all: &mut [Vec<f32>]) -> Away {
        let places: Vec<usize> = exchange.remote().collect();
        let values = places.iter().map(|index| std::mem::take(&mut all[*index])).collect();
        Away { places, values }
    }

    fn put_back(self, all: &mut [Vec<f32>]) {
        self.places.into_iter().zip(self.values).for_each(|(index, values)| all[index] = values);
    }
}

/// Returns the norm of the gradient of replicas. For gradients that stay on their ranks, it uses the mean of
/// squared norms, which is at least the squared norm of their mean. So all ranks clip alike.
fn norm_of_replicas(
    slots: &mut Slots,
    exchange: &Exchange,
    share: Option<f32>,
) -> Result<f64, Error> {
    let norm = global_norm(exchange.gradients());
    if exchange.remote().next().is_none() {
        return Ok(norm);
    }
    let share = share.map_or(1.0 / exchange.sync.world().size() as f64, f64::from);
    let mine = share * global_norm(exchange.kept()).powi(2);
    let all = slots.gather_waiting(&[mine as f32])?;
    let theirs: f64 = all.iter().map(|square| f64::from(*square)).sum();
    Ok((norm.powi(2) + theirs).sqrt())
}

/// Returns the norm of the gradients of all ranks together; each rank sends the others its share.
fn norm_of_all(
    slots: &mut Slots,
    program: &Program,
    gradients: &[Cow<'_, [f32]>],
) -> Result<f64, Error> {
    let share = |(parameter, gradient): (&Parameter, &Cow<'_, [f32]>)| {
        let replicas = replicas(&program.slots[parameter.reduced].layout, &program.mesh);
        global_norm(std::iter::once(&gradient[..])).powi(2) / replicas as f64
    };
    let norm: f64 = program.parameters.iter().zip(gradients).map(share).sum();
    let all = slots.gather_waiting(&[norm as f32])?;
    Ok(all.iter().map(|norm| f64::from(*norm)).sum::<f64>().sqrt())
}

/// Returns the number of ranks of a mesh that have the same part of a tensor.
fn replicas(layout: &Layout, mesh: &Mesh) -> usize {
    let placements = layout.0.iter().zip(&mesh.sizes);
    let replicated = placements.filter(|(placement, _)| **placement == Placement::Replicated);
    replicated.map(|(_, size)| size).product()
}

/// Returns the whole gradient of a parameter, if this rank updates it.
fn whole_gradient<'g>(
    slots: &mut Slots,
    program: &Program,
    sum: &'g [f32],
    parameter: &Parameter,
    micro_batch_number: u64,
) -> Result<Cow<'g, [f32]>, Error> {
    if let Owner::There { rank, sum: number, .. } = parameter.owner {
        let end = MessageEnd { slot: parameter.reduced, peer: rank, number };
        slots.send(program, end, sum.to_vec(), When::later(micro_batch_number));
        return Ok(Cow::Borrowed(&[]));
    }
    let mut total = Cow::Borrowed(sum);
    for other in &parameter.others {
        let content = slots.recv(program, end_of(other), micro_batch_number);
        let content =
            slots.chain(program, &other.converts, content, When::later(micro_batch_number))?;
        let sum = slots.arrived(content, &program.slots[parameter.reduced].shape)?.into_floats();
        total.to_mut().iter_mut().zip(sum).for_each(|(a, b)| *a += b);
    }
    Ok(total)
}

/// Brings new values of a parameter to the ranks that use them; returns those for this rank.
fn bring_home(
    slots: &mut Slots,
    program: &Program,
    parameter: &Parameter,
    values: &[f32],
    micro_batch_number: u64,
) -> Result<Content, Error> {
    let (restore, copies) = match &parameter.owner {
        Owner::Here { restore, copies } => (restore, copies),
        Owner::There { rank, values, .. } => {
            let end = MessageEnd { slot: parameter.home, peer: *rank, number: *values };
            return Ok(slots.recv(program, end, micro_batch_number));
        }
    };
    let shape = &program.slots[parameter.reduced].shape;
    let value = Value::new(shape, values.to_vec());
    let when = When::later(micro_batch_number);
    for copy in copies {
        let content = Content::Here(value.clone());
        let content = slots.chain(program, &copy.converts, content, when)?;
        let values = slots.arrived(content, &program.slots[copy.slot].shape)?.into_floats();
        slots.send(program, end_of(copy), values, when);
    }
    slots.chain(program, restore, Content::Here(value), when)
}

fn end_of(message: &Message) -> MessageEnd {
    MessageEnd { slot: message.slot, peer: message.peer, number: message.number }
}

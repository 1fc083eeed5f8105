//! Updates: gradients are summed and brought to who updates, and new values are brought home.

use std::time::Instant;

use thinwire_model::{Layout, Placement};
use thinwire_program::{Mesh, Owner, Parameter, Program};
use thinwire_sync::Outcome;

use super::{Agreed, Machine, Watch, known_loss};
use crate::error::Error;
use crate::spmd::slots::{Content, Slots, When};
use crate::spmd::value::Value;
use crate::{AdamWOptions, Pace, clip_scale, global_norm};

/// The sum of a parameter's gradient, as far as it is.
#[derive(Debug, Default)]
pub(super) struct Sum {
    shares: usize,
    total: Option<Vec<f32>>,
    reduced: Option<Content>,
}

impl Machine<'_> {
    /// Adds a share of a gradient; after the last one of a step it is to be reduced.
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

    /// Starts the reductions of gradients of which all shares are there.
    pub(super) fn reduce(&mut self) -> Result<(), Error> {
        let moment = self.moment(0);
        for index in std::mem::take(&mut self.complete) {
            let parameter = &self.program.parameters[index];
            let total = self.sums[index].total.take().expect("all its shares have come");
            let shape = &self.program.slots[parameter.sum].shape;
            let content = Content::Here(Value::new(shape, total));
            let reduced =
                self.slots.chain(&self.program, &parameter.reduce, content, When::later(moment))?;
            self.sums[index].reduced = match (&mut self.replicas, reduced) {
                (Some(replicas), Content::Here(value)) => {
                    replicas.ready(index, value.into_floats(), self.program.micro_batches)?;
                    None
                }
                (_, reduced) => Some(reduced),
            };
        }
        Ok(())
    }

    /// Ends a step: gradients are averaged with replicas or brought to their owners, the optimiser
    /// works, and values are brought home.
    pub(super) fn update(
        &mut self,
        pace: Pace,
        options: &AdamWOptions,
        watch: &mut Watch,
    ) -> Result<(), Error> {
        match self.replicas {
            Some(_) => self.update_with_replicas(pace, options, watch)?,
            None => self.update_as_planned(pace, options, watch)?,
        }
        let (moment, slots, program) = (self.moment(0), &mut self.slots, &self.program);
        for (parameter, values) in program.parameters.iter().zip(self.optimizer.values()) {
            let home = bring_home(slots, program, (parameter, values), moment)?;
            slots.put_lasting(parameter.home, home);
        }
        Ok(())
    }

    /// Waits for the averages and lets the optimiser work. Replicas have the same averages, so none has
    /// to tell another what follows from them.
    fn update_with_replicas(
        &mut self,
        pace: Pace,
        options: &AdamWOptions,
        watch: &mut Watch,
    ) -> Result<(), Error> {
        let replicas = self.replicas.as_mut().expect("update has seen them");
        let outcome = replicas.finish()?;
        watch.told();
        self.sums = self.program.parameters.iter().map(|_| Sum::default()).collect();
        let loss = self.loss.unwrap_or(f32::NAN) / self.program.micro_batches as f32;
        self.agreed = Agreed { loss: f64::from(loss), said: self.said };
        let started = Instant::now();
        self.gradient_norm = f64::NAN;
        if outcome == Outcome::Averaged {
            self.gradient_norm = replicas.norm();
            let gradient_scale =
                pace.gradient_scale * clip_scale(self.gradient_norm, self.gradient_norm_max);
            let pace = Pace { gradient_scale, ..pace };
            self.optimizer.update(|index| replicas.gradient(index), pace, options);
        }
        self.optimizer_s = started.elapsed().as_secs_f64();
        Ok(())
    }

    /// Brings all sums to their owners and lets the optimiser work.
    fn update_as_planned(
        &mut self,
        pace: Pace,
        options: &AdamWOptions,
        watch: &mut Watch,
    ) -> Result<(), Error> {
        let (moment, slots, program) = (self.moment(0), &mut self.slots, &self.program);
        let sums = std::mem::take(&mut self.sums).into_iter().zip(&program.parameters);
        let gradients =
            sums.map(|(sum, parameter)| whole_gradient(slots, program, (sum, parameter), moment));
        let gradients = gradients.collect::<Result<Vec<_>, Error>>()?;
        self.sums = gradients.iter().map(|_| Sum::default()).collect();
        let mean = pace.gradient_scale / self.program.micro_batches_of_all as f32;
        let started = Instant::now();
        let waited_s = self.slots.waited_s();
        let all = self.tell(&gradients)?;
        watch.told();
        let clip = self.clip(&all, mean);
        self.slots.residuals_mut().settle(clip.is_some())?;
        if let Some(clip) = clip {
            let pace = Pace { gradient_scale: mean * clip, ..pace };
            self.optimizer.update(|index| &gradients[index], pace, options);
        }
        self.optimizer_s = started.elapsed().as_secs_f64() - (self.slots.waited_s() - waited_s);
        Ok(())
    }

    /// Gathers one row per rank in a step: the rank's share of the gradients' squared norm, NaN
    /// where a codec has met a number that is not finite, its share of the loss, and the number
    /// that it says.
    fn tell(&mut self, gradients: &[Vec<f32>]) -> Result<Vec<[f32; 4]>, Error> {
        let finite = self.slots.take_finite();
        let program = &self.program;
        let share = |(parameter, gradient): (&Parameter, &Vec<f32>)| {
            let replicas = replicas(&program.slots[parameter.reduced].layout, &program.mesh);
            global_norm(std::iter::once(&gradient[..])).powi(2) / replicas as f64
        };
        let norm: f64 = program.parameters.iter().zip(gradients).map(share).sum();
        let norm = if finite { norm as f32 } else { f32::NAN };
        let [known, loss] = self.told_loss();
        let started = Instant::now();
        let all = self.slots.gather(&[norm, known, loss, self.said])?;
        self.slots.set_waited_s(self.slots.waited_s() + started.elapsed().as_secs_f64());
        Ok(all.as_chunks().0.to_vec())
    }

    /// Takes note of what all have told. Returns the factor by which gradients, which count `scale`
    /// times, are clipped; none if their norm is not finite.
    fn clip(&mut self, all: &[[f32; 4]], scale: f32) -> Option<f32> {
        let losses: Vec<_> =
            all.iter().map(|[_, known, loss, _]| known_loss([*known, *loss])).collect();
        self.agreed = Agreed {
            loss: self.mean_loss(&losses, self.program.micro_batches_of_all),
            said: all.iter().map(|[.., said]| *said).fold(f32::MIN, f32::max),
        };
        let sum: f64 = all.iter().map(|[norm, ..]| f64::from(*norm)).sum();
        self.gradient_norm = sum.sqrt() * f64::from(scale);
        let finite = self.gradient_norm.is_finite();
        finite.then(|| clip_scale(self.gradient_norm, self.gradient_norm_max))
    }
}

/// On how many ranks of a mesh the same part of a tensor lies.
fn replicas(layout: &Layout, mesh: &Mesh) -> usize {
    let placements = layout.0.iter().zip(&mesh.sizes);
    let replicated = placements.filter(|(placement, _)| **placement == Placement::Replicated);
    replicated.map(|(_, size)| size).product()
}

/// The whole gradient of a parameter, if this rank updates it.
fn whole_gradient(
    slots: &mut Slots,
    program: &Program,
    (sum, parameter): (Sum, &Parameter),
    moment: u64,
) -> Result<Vec<f32>, Error> {
    let shape = &program.slots[parameter.reduced].shape;
    let reduced = sum.reduced.expect("all shares have come");
    let mut total = slots.arrived(reduced, shape)?.into_floats();
    if let Owner::There { rank, sum, .. } = parameter.owner {
        slots.send((program, parameter.reduced), total, (rank, sum), When::later(moment));
        return Ok(Vec::new());
    }
    for other in &parameter.others {
        let content = slots.recv((program, other.slot), (other.peer, other.number), moment);
        let content = slots.chain(program, &other.converts, content, When::later(moment))?;
        let sum = slots.arrived(content, shape)?.into_floats();
        total.iter_mut().zip(sum).for_each(|(a, b)| *a += b);
    }
    Ok(total)
}

/// Brings new values of a parameter to where they are used; what comes to this rank's home.
fn bring_home(
    slots: &mut Slots,
    program: &Program,
    (parameter, values): (&Parameter, &[f32]),
    moment: u64,
) -> Result<Content, Error> {
    let (restore, copies) = match &parameter.owner {
        Owner::Here { restore, copies } => (restore, copies),
        Owner::There { rank, values, .. } => {
            return Ok(slots.recv((program, parameter.home), (*rank, *values), moment));
        }
    };
    let shape = &program.slots[parameter.reduced].shape;
    let value = Value::new(shape, values.to_vec());
    for copy in copies {
        let content = Content::Here(value.clone());
        let content = slots.chain(program, &copy.converts, content, When::later(moment))?;
        let values = slots.arrived(content, &program.slots[copy.slot].shape)?.into_floats();
        slots.send((program, copy.slot), values, (copy.peer, copy.number), When::later(moment));
    }
    slots.chain(program, restore, Content::Here(value), When::later(moment))
}

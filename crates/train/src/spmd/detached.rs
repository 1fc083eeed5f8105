//! Replicas that continue in another epoch of an elastic job.
//!
//! At the end of an epoch, a replica becomes a [`DetachedReplica`]. Its last step is either complete, or
//! a peer was lost in it and it has no effect. In the next epoch it re-forms its exchange and becomes an
//! [`Executor`] again, for the number of rows that it then has. Ranks that join start a new executor and
//! take over a [`Snapshot`]. Every rank that has the newest state makes this snapshot, all with the same
//! bytes.
//!
//! Law: the steps after a change equal those of a job of the new size that resumes from the same state.

use thinwire_model::{Part, TensorId, Training};
use thinwire_program::Plan;
use thinwire_sync::{Channel, Synchronizer};

use super::executor::{Earlier, ExchangeOptions, Executor, Late};
use super::invalid;
use super::slots::Content;
use super::snapshot::{Replica, Snapshot};
use super::value::Value;
use crate::adam::Variance;
use crate::error::Error;
use crate::{AdamW, Parameter};

/// Replica between two epochs: parameters, moments, and its synchroniser with its residuals.
#[derive(Debug)]
pub struct DetachedReplica {
    parameters: Vec<Parameter>,
    values: Vec<Vec<f32>>,
    moments: AdamW,
    sync: Synchronizer,
    /// Gradients under way, if they are applied later.
    late: Option<Late>,
    step: u64,
}

impl DetachedReplica {
    /// Returns the number of steps that were taken.
    pub fn step(&self) -> u64 {
        self.step
    }

    /// Returns the values of the parameters, to be changed in place, in the order of the program.
    pub fn values_mut(&mut self) -> &mut Vec<Vec<f32>> {
        &mut self.values
    }

    /// Keeps the codec errors of the interrupted step. Call it if another rank applied this step before a
    /// peer was lost; without this call, the step has no effect.
    ///
    /// # Errors
    /// If the data that peers sent is not a valid encoding.
    pub fn keep_lost(&mut self) -> Result<(), Error> {
        self.sync.keep_lost().map_err(Error::exchange)
    }

    /// Returns the residuals of this replica, as bytes for [`DetachedReplica::take_on`].
    ///
    /// # Errors
    /// If they are too large for their format.
    pub fn owed(&self) -> Result<Vec<u8>, Error> {
        self.sync.owed().map_err(Error::exchange)
    }

    /// Adds the residuals of a replica that leaves.
    ///
    /// # Errors
    /// If the bytes are not from [`DetachedReplica::owed`], or belong to another model.
    pub fn take_on(&mut self, owed: &[u8]) -> Result<(), Error> {
        self.sync.take_on(owed).map_err(Error::exchange)
    }

    /// Ends the connections of an epoch whose last step is complete.
    pub fn release(&mut self) {
        self.sync.release();
    }

    /// Continues with the exchange among the ranks of a channel; each of them calls this or
    /// [`Executor::new`]. A step under way has no effect.
    ///
    /// # Errors
    /// If a peer of the channel is lost, or disagrees. The call may be repeated with another channel.
    pub fn reform(&mut self, channel: &Channel) -> Result<(), Error> {
        self.sync.reform_over(channel.clone()).map_err(Error::exchange)
    }

    /// Returns the state that is equal on all replicas, as the bytes of a [`Snapshot`]. `about` is any text
    /// of the caller, which is stored with the state.
    ///
    /// # Errors
    /// If it is too large for its format.
    pub fn snapshot(&self, about: &str) -> Result<Vec<u8>, Error> {
        let replica = Replica {
            parameters: &self.parameters,
            buffers: [&self.values, &self.moments.means, &self.moments.squares],
        };
        let mut exchange = self.sync.state().shared();
        self.moments.variance.save(&mut exchange.tensors);
        replica.to_bytes(&exchange, self.step, self.moments.updates, about)
    }
}

impl<'a> Executor<'a> {
    /// Ends this replica's epoch, after any step or the loss of a peer.
    pub fn into_detached(self) -> DetachedReplica {
        let step = self.next_step();
        let (optimizer, Earlier { sync, late }) = self.into_parts();
        let (parameters, values, moments) = optimizer.into_parts();
        DetachedReplica { parameters, values, moments, sync, late, step }
    }

    /// Returns a replica that continues in the next epoch, after [`DetachedReplica::reform`] over the same
    /// channel. The graph may be for another number of rows.
    ///
    /// # Errors
    /// If the graph belongs to another model, or the plan is not for a replica.
    pub fn resume(
        training: &'a Training,
        plan: &Plan,
        channel: Channel,
        detached: DetachedReplica,
        options: ExchangeOptions,
    ) -> Result<Executor<'a>, Error> {
        let DetachedReplica { parameters, values, moments, sync, late, step } = detached;
        let place = |id: TensorId| {
            let tensor = &training.graph.tensors[id];
            let is_it = |parameter: &Parameter| {
                parameter.name == tensor.name && parameter.shape == tensor.shape
            };
            parameters.iter().position(is_it)
        };
        let known = training.graph.parameters().all(|(id, _)| place(id).is_some());
        if !known || plan.ranks() != 1 {
            return Err(invalid(
                "a replica cannot continue with another model, or with a plan of several ranks"
                    .to_owned(),
            ));
        }
        let start = |id: TensorId, _: &[Part]| values[place(id).expect("it is known")].clone();
        let earlier = Some(Earlier { sync, late });
        let mut executor = Executor::build(training, plan, channel, &start, options, earlier)?;
        executor.optimizer.state = moments;
        executor.use_values();
        (executor.step, executor.first) = (step, step);
        Ok(executor)
    }

    /// Takes over the state of the ranks that have the newest state; this rank's own residuals stay
    /// unchanged.
    ///
    /// # Errors
    /// If the snapshot belongs to another model.
    pub fn take_over(&mut self, snapshot: Snapshot) -> Result<(), Error> {
        let Snapshot { step, updates, mut model, exchange, .. } = snapshot;
        for index in 0..self.program().parameters.len() {
            let Parameter { name, shape } = self.optimizer.parameter(index).clone();
            for (suffix, buffer) in self.optimizer.buffers(index) {
                *buffer = match model.remove(&format!("{name}{suffix}")) {
                    Some((found, values)) if found == shape => values,
                    found => {
                        let found = found.map(|(shape, _)| shape);
                        return Err(invalid(format!(
                            "the state of another rank has {name}{suffix} of shape {found:?}, expected \
                             {shape:?}"
                        )));
                    }
                };
            }
            let value = Value::new(&shape, self.optimizer.values[index].clone());
            let home = self.program().parameters[index].home;
            self.slots.put_lasting(home, Content::Here(value));
        }
        self.optimizer.state.variance = Variance::load(&exchange.tensors);
        let state = self.sync().state().with_shared(exchange);
        self.sync_mut().load_tensors(&state)?;
        self.optimizer.state.updates = updates;
        (self.step, self.first) = (step, step);
        Ok(())
    }
}

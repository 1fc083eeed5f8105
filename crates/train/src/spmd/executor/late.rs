//! Gradients of replicas that are applied some steps after they were computed.
//!
//! While they are under way, ranks compute the next steps. Law: after step s, the optimiser has applied the
//! averages of steps 0 to s − K, each once and in order; at the end of the training, it has applied the
//! averages of all steps.

use std::time::Instant;

use thinwire_sync::{Channel, Delayed, Due, Options, Outcome, Parameter, StepRecord, Tensors};

use crate::error::Error;

/// Gradients under way.
#[derive(Debug)]
pub(crate) struct Late {
    delayed: Delayed,
    /// The parameters in the order of their exchange, by their numbers in the program.
    order: Vec<usize>,
    /// Whether the last step had no gradients to apply.
    pub is_pending: bool,
    /// Record of the exchange of the gradients that were due last.
    pub record: StepRecord,
}

/// Averages of the step that is due.
pub(crate) struct Averages {
    pub outcome: Outcome,
    /// Values by parameter, in the order of the exchange; empty if the step was skipped.
    values: Vec<Vec<f32>>,
    record: StepRecord,
}

impl Averages {
    fn of(due: Due<'_>) -> Averages {
        let Due { outcome, sync, .. } = due;
        let count = if outcome == Outcome::Averaged { sync.parameters().len() } else { 0 };
        let values = (0..count).map(|index| sync.gradient(index).to_vec());
        Averages { outcome, values: values.collect(), record: sync.record().clone() }
    }
}

impl Late {
    /// Starts the exchange of gradients in this order, delayed by `steps` steps. All ranks call this.
    pub fn start(
        channel: &Channel,
        parameters: &[Parameter],
        order: Vec<usize>,
        steps: u64,
        options: &Options,
    ) -> Result<Late, Error> {
        let delayed = Delayed::start(channel, parameters, steps, options)?;
        Ok(Late { delayed, order, is_pending: true, record: StepRecord::default() })
    }

    /// Sets this rank's part of the global batch, if parts are unequal.
    pub fn set_share(&mut self, share: Option<f32>) -> Result<(), Error> {
        Ok(self.delayed.set_share(share)?)
    }

    /// Sends gradients, by parameter of the program, of a step that began at `begun`; returns the averages
    /// that are due.
    pub fn exchange(
        &mut self,
        gradients: &[Vec<f32>],
        begun: Instant,
    ) -> Result<Option<Averages>, Error> {
        let given: Vec<&[f32]> = self.order.iter().map(|index| &gradients[*index][..]).collect();
        let due = self.delayed.exchange(&given, begun)?.map(Averages::of);
        self.is_pending = due.is_none();
        Ok(due)
    }

    /// Waits for averages under way, at the end of the steps; returns `None` if there are none left.
    pub fn end(&mut self) -> Result<Option<Averages>, Error> {
        Ok(self.delayed.end()?.map(Averages::of))
    }

    /// Replaces gradients by averages. Returns the bytes that this rank has sent for them.
    pub fn put(&mut self, averages: Averages, gradients: &mut [Vec<f32>]) -> u64 {
        let Averages { values, record, .. } = averages;
        for (index, values) in self.order.iter().zip(values) {
            gradients[*index] = values;
        }
        self.record = record;
        self.record.total(|bucket| bucket.sent_bytes)
    }

    /// Returns the residuals of the exchange. No gradients may be under way.
    pub fn tensors(&self) -> Tensors {
        self.delayed.tensors()
    }

    /// Continues with the residuals of the exchange, before a step.
    pub fn load(&mut self, tensors: &Tensors, step: u64) -> Result<(), Error> {
        Ok(self.delayed.load(tensors, step)?)
    }
}

#[cfg(test)]
mod tests {
    use thinwire_collective::Group;
    use thinwire_sync::Options;
    use thinwire_testkit::{Network, spawn};

    use crate::spmd::{ExchangeOptions, Executor, initial};
    use crate::testing::{batch, gradients, model, values};
    use crate::{AdamW, AdamWOptions, Pace};

    const STEPS: u64 = 6;
    const PACE: Pace = Pace { learning_rate: 0.01, gradient_scale: 1.0 };

    /// Returns the parameters of each of two ranks before every step, after the last one, and after all
    /// gradients were applied.
    fn trained(delay: u64, codec: &str) -> Vec<Vec<Vec<Vec<f32>>>> {
        spawn(Network::Mem, 2, |link| {
            let (model, rank) = (model(8), u64::from(link.world().rank().0));
            let sync = Options { policy: codec.parse().unwrap(), ..Options::default() };
            let options = ExchangeOptions { sync, delay, ..ExchangeOptions::default() };
            let start = initial(&model.training().graph, 3);
            let (plan, group) = (model.plan(1), Group::new(link));
            let mut executor =
                Executor::new(model.training(), &plan, group, &start, options).unwrap();
            let mut all = vec![values(&model, &mut executor)];
            for step in 0..STEPS {
                let inputs = model.micro_batches(&batch(4, 8, 10 * step + rank));
                executor.step(&inputs, PACE, &AdamWOptions::default()).unwrap();
                assert!(executor.gradient_norm().is_finite());
                all.push(values(&model, &mut executor));
            }
            executor.settle().unwrap();
            all.push(values(&model, &mut executor));
            all
        })
    }

    #[test]
    fn every_average_is_applied_once_some_steps_later() {
        let model = model(8);
        for delay in 1..=2 {
            let ranks = trained(delay, "none");
            assert_eq!(ranks[0], ranks[1]);
            let all = &ranks[0];
            let mut expected = all[0].clone();
            let mut state = AdamW::new(model.parameters());
            for step in 0..STEPS + delay {
                if let Some(old) = step.checked_sub(delay) {
                    let of = |rank| {
                        gradients(&model, &all[old as usize], &batch(4, 8, 10 * old + rank)).1
                    };
                    let [one, other] = [0, 1].map(of);
                    let mean = |(a, b): (&Vec<f32>, &Vec<f32>)| -> Vec<f32> {
                        a.iter().zip(b).map(|(a, b)| 0.5 * a + 0.5 * b).collect()
                    };
                    let means: Vec<Vec<f32>> = one.iter().zip(&other).map(mean).collect();
                    let options = AdamWOptions::default();
                    state.update(
                        model.parameters(),
                        &mut expected,
                        |it| &means[it],
                        PACE,
                        &options,
                    );
                }
                let after = all[(step + 1).min(STEPS + 1) as usize].iter().flatten();
                // What is due after the last step is applied at once.
                if step < STEPS || step + 1 == STEPS + delay {
                    let off = after.zip(expected.iter().flatten());
                    let off = off.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
                    assert!(off < 1e-5, "{delay} late, step {step}: off by {off}");
                }
            }
        }
    }

    #[test]
    fn without_a_delay_it_is_a_step() {
        assert!(trained(0, "int8") != trained(1, "int8"));
        let ranks = trained(1, "int8");
        assert_eq!(ranks[0], ranks[1]);
    }
}

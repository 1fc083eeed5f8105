//! The simulation of a pipeline on a clock.
//!
//! A rank runs its passes in the order of its list, each as soon as its input is there: for a forward pass
//! the message of the previous stage, for a backward pass the message of the next stage. Messages are
//! sent when a pass ends, one after the other in each direction, while the rank continues. The time that
//! the rank itself needs for moving messages delays its next pass, unless that pass has to wait anyway.

use super::{Kind, Pass};

/// The times of one chunk of the pipeline for one micro-batch, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Stage {
    /// Seconds of the forward pass.
    pub forward_s: f64,
    /// Seconds of the backward pass, or only of the gradient of inputs if the gradient of weights is a
    /// separate pass.
    pub backward_s: f64,
    /// Seconds of the gradient of weights, if it is a separate pass.
    pub weight_s: f64,
    /// Seconds that a message takes from this stage to the next one, or back.
    pub message_s: f64,
    /// Seconds of the rank's own time for messages, after a forward or backward pass.
    pub handling_s: f64,
    /// Seconds from the beginning until new parameters have arrived; no forward pass ends before.
    pub home_s: f64,
    /// Seconds by which the first forward pass takes longer, because new parameters arrive.
    pub first_s: f64,
}

/// A pass with its times.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Run {
    /// The pass.
    pub pass: Pass,
    /// Time at which the pass began, in seconds.
    pub start_s: f64,
    /// Time at which the pass ended, in seconds.
    pub end_s: f64,
}

/// A pipeline's run.
#[derive(Clone, Debug, PartialEq)]
pub struct Timeline {
    /// Time at which the last rank is done, in seconds.
    pub seconds: f64,
    /// The passes of every rank, in order.
    pub ranks: Vec<Vec<Run>>,
}

impl Timeline {
    /// Returns the largest number of micro-batches that waited at the same time on `rank` for their last
    /// pass, counting all chunks of the rank.
    pub fn in_flight(&self, rank: usize) -> usize {
        let runs = &self.ranks[rank];
        let apart = runs.iter().any(|run| run.pass.kind == Kind::Weight);
        let last = if apart { Kind::Weight } else { Kind::Backward };
        let step = |(now, most): (usize, usize), run: &Run| match run.pass.kind {
            Kind::Forward => (now + 1, most.max(now + 1)),
            kind if kind == last => (now - 1, most),
            _ => (now, most),
        };
        runs.iter().fold((0, 0), step).1
    }
}

/// Simulates orders; `stages` are in the order in which a micro-batch passes through them. Returns `None` if
/// a rank waits forever.
///
/// # Panics
/// If the number of stages differs from the number of chunks on all ranks.
pub fn simulate(orders: &[Vec<Pass>], stages: &[Stage]) -> Option<Timeline> {
    let ranks = orders.len();
    assert_eq!(stages.len() % ranks, 0, "{} stages on {ranks} ranks", stages.len());
    let micro_batches = orders[0].iter().map(|pass| pass.micro_batch + 1).max().unwrap_or(0);
    let mut play = Play {
        stages,
        forward: vec![None; stages.len() * micro_batches],
        backward: vec![None; stages.len() * micro_batches],
        link_free: vec![[0.0; 2]; stages.len()],
        micro_batches,
    };
    let mut runs: Vec<Vec<Run>> =
        orders.iter().map(|order| Vec::with_capacity(order.len())).collect();
    let mut advanced = true;
    while advanced {
        advanced = false;
        for (rank, order) in orders.iter().enumerate() {
            while let Some(pass) = order.get(runs[rank].len()) {
                let now = runs[rank].last().map_or(0.0, |run| play.free_s(run));
                let Some(run) = play.run(*pass, now) else { break };
                runs[rank].push(run);
                advanced = true;
            }
        }
    }
    let done = runs.iter().zip(orders).all(|(runs, order)| runs.len() == order.len());
    let ends = runs.iter().filter_map(|runs| runs.last()).map(|run| run.end_s);
    let seconds = ends.fold(0.0, f64::max);
    done.then_some(Timeline { seconds, ranks: runs })
}

struct Play<'a> {
    stages: &'a [Stage],
    micro_batches: usize,
    /// For every stage and micro-batch, the time at which the input of the forward pass arrives.
    forward: Vec<Option<f64>>,
    /// For every stage and micro-batch, the time at which the gradient for the backward pass arrives.
    backward: Vec<Option<f64>>,
    /// For every stage, the times at which its links to the next and to the previous stage are free.
    link_free: Vec<[f64; 2]>,
}

impl Play<'_> {
    /// Returns the time at which a rank may continue after a pass.
    fn free_s(&self, run: &Run) -> f64 {
        match run.pass.kind {
            Kind::Weight => run.end_s,
            _ => run.end_s + self.stages[run.pass.chunk].handling_s,
        }
    }

    /// Runs a pass, if the arrival of its input is known.
    fn run(&mut self, pass: Pass, now: f64) -> Option<Run> {
        let stage = pass.chunk;
        let place = stage * self.micro_batches + pass.micro_batch;
        let (needs, seconds) = match pass.kind {
            Kind::Forward if stage == 0 => (0.0, self.stages[stage].forward_s),
            Kind::Forward => (self.forward[place]?, self.stages[stage].forward_s),
            Kind::Backward => (self.backward[place]?, self.stages[stage].backward_s),
            Kind::Weight => (now, self.stages[stage].weight_s),
        };
        let start_s = now.max(needs);
        let first = pass.kind == Kind::Forward && pass.micro_batch == 0;
        let end_s = match first {
            true => (start_s + seconds + self.stages[stage].first_s).max(self.stages[stage].home_s),
            false => start_s + seconds,
        };
        match pass.kind {
            Kind::Forward if stage + 1 == self.stages.len() => self.backward[place] = Some(end_s),
            Kind::Forward => {
                let next = place + self.micro_batches;
                self.forward[next] = Some(self.send(stage, 0, end_s));
            }
            Kind::Backward if stage > 0 => {
                let before = place - self.micro_batches;
                self.backward[before] = Some(self.send(stage, 1, end_s));
            }
            Kind::Backward | Kind::Weight => {}
        }
        Some(Run { pass, start_s, end_s })
    }

    /// Returns the time at which a message arrives that is ready at `ready`.
    fn send(&mut self, stage: usize, way: usize, ready: f64) -> f64 {
        let message_s = self.stages[stage - way].message_s;
        let free = &mut self.link_free[stage][way];
        *free = free.max(ready) + message_s;
        *free
    }
}

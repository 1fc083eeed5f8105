//! Rounds of a rank that trains its copy of the model independently and exchanges parameters every few steps.

use std::mem;
use std::time::Instant;

use thinwire_job::elastic::Wish;
use thinwire_policy::Sketch;
use thinwire_sync::{
    Action, Averager, AveragerState, Channel, DelayedRows, Mode, RoundRecord, Tensors, reshard,
};
use thinwire_wire::{Rank, World};

use super::Settings;
use super::adaptation::{NOTES, Told};
use crate::checkpoint::Checkpoint;
use crate::error::Error;
use crate::spmd::Executor;

/// Number of steps after which ranks of a fixed number know each other's wishes: a rank may be this many
/// steps ahead of another.
pub(super) const LAG: usize = 16;
/// The same number of steps in an elastic job. A rank that joins waits for as many.
pub(super) const ELASTIC_LAG: usize = 1;
/// Prefix of the tensors of a rank's own copy in its file of a checkpoint.
const OWN: &str = "own.";
/// Name of the number of updates of this copy.
const UPDATES: &str = "updates";

/// Rounds of one rank, with the ranks of its job.
pub(super) struct Rounds {
    channel: Channel,
    averager: Averager,
    /// Wishes and notes of all ranks.
    rows: DelayedRows,
    /// Number of steps after which the rows of all ranks are known.
    lag: usize,
    /// Numbers in a row.
    width: usize,
    /// Notes that are known, and take effect at the end of a round.
    held: Vec<Told>,
    /// Notes that were known when the last round ended.
    told: Vec<Told>,
    /// Bytes that rounds have sent, and the time for which they have waited, since the record was last
    /// read.
    record: RoundRecord,
}

impl Rounds {
    /// Starts rounds over the copy of an executor that exchanges nothing; all ranks of the channel call this.
    ///
    /// # Errors
    /// If the settings of ranks differ, or a peer is lost.
    pub(super) fn start(
        channel: Channel,
        settings: &Settings<'_>,
        executor: &Executor<'_>,
        lag: usize,
    ) -> Result<Rounds, Error> {
        let (parameters, values) = (executor.replicated(), executor.values());
        let (mode, options) = (settings.mode, &settings.exchange.sync);
        let averager = Averager::start(channel.clone(), &parameters, mode, options, values)?;
        Ok(Rounds::of(channel, averager, settings, lag))
    }

    /// Joins the rounds of the other ranks of a channel, which call [`Rounds::reform`]. In a mode with common
    /// parameters, the executor receives them.
    ///
    /// # Errors
    /// If the settings of ranks differ, or a peer is lost.
    pub(super) fn join(
        channel: Channel,
        settings: &Settings<'_>,
        executor: &mut Executor<'_>,
    ) -> Result<Rounds, Error> {
        let (parameters, values) = (executor.replicated(), executor.values_mut());
        let (mode, options) = (settings.mode, &settings.exchange.sync);
        let averager = Averager::join(channel.clone(), &parameters, mode, options, values)?;
        executor.use_values();
        Ok(Rounds::of(channel, averager, settings, ELASTIC_LAG))
    }

    fn of(channel: Channel, averager: Averager, settings: &Settings<'_>, lag: usize) -> Rounds {
        let sketch = if settings.needs_noise() { Sketch::ROW } else { 0 };
        let notes = if settings.policies.is_empty() { 0 } else { NOTES + sketch };
        let width = 1 + notes;
        let (rows, record) =
            (DelayedRows::new(channel.clone(), width, lag), RoundRecord::default());
        let (held, told) = (Vec::new(), Vec::new());
        Rounds { channel, averager, rows, lag, width, held, told, record }
    }

    /// Continues among the ranks of another channel, with this rank's parameters.
    ///
    /// # Errors
    /// If the settings of ranks differ, or a peer is lost. The call may be repeated with another channel.
    pub(super) fn reform(
        &mut self,
        channel: &Channel,
        values: &mut Vec<Vec<f32>>,
    ) -> Result<(), Error> {
        self.averager.reform(channel.clone(), values)?;
        self.channel = channel.clone();
        self.forget_rows();
        Ok(())
    }

    /// Releases the other ranks after [`Rounds::settle`]; only [`Rounds::reform`] may follow.
    pub(super) fn release(&mut self) {
        self.averager.release();
        self.channel = self.averager.channel().clone();
        self.forget_rows();
    }

    /// Starts new rows among the ranks of another epoch. Policies send again what is not in force.
    fn forget_rows(&mut self) {
        self.lag = ELASTIC_LAG;
        self.rows = DelayedRows::new(self.channel.clone(), self.width, self.lag);
        self.held.clear();
    }

    /// Returns this rank among those of the job.
    pub(super) fn world(&self) -> World {
        self.channel.world()
    }

    /// Returns the mode of the rounds.
    pub(super) fn mode(&self) -> Mode {
        self.averager.mode()
    }

    /// Ends a step of the executor: begins and ends the rounds that are due, and sends the other ranks a
    /// wish about the end of the epoch. Returns the highest wish of all ranks some steps earlier, and the
    /// record of rounds.
    ///
    /// # Errors
    /// If a peer is lost.
    pub(super) fn step(
        &mut self,
        executor: &mut Executor<'_>,
        wish: Wish,
    ) -> Result<(Wish, RoundRecord), Error> {
        let record = self.averager.step(executor.values_mut())?;
        if record.ended > 0 {
            executor.use_values();
        }
        let started = Instant::now();
        let rows = self.tell(executor, wish)?;
        self.record.wait_s += started.elapsed().as_secs_f64();
        let highest = rows.iter().flatten().map(|row| row[0]).fold(0.0, f32::max);
        self.record += record;
        self.hold(rows, executor.next_step() - 1);
        // What policies ask for is in force from the end of a round on, which comes after the same step on all ranks.
        if self.is_round_over() {
            self.told.append(&mut self.held);
        }
        let record = mem::take(&mut self.record);
        Ok((Wish::of(highest as i32), record))
    }

    /// Sends the others a wish and the notes of the executor's last step. Returns the rows that all
    /// ranks sent some steps earlier, once these have arrived.
    fn tell(
        &mut self,
        executor: &Executor<'_>,
        wish: Wish,
    ) -> Result<Option<Vec<Vec<f32>>>, Error> {
        let notes = executor.notes().next().unwrap_or_default();
        let mut row = vec![wish.number() as f32];
        // Rows are summed, in which what is not finite would reach those of other ranks.
        row.extend(notes.iter().map(|note| if note.is_finite() { *note } else { 0.0 }));
        row.resize(self.width, 0.0);
        let rows = self.rows.tell(&row)?;
        Ok(rows.map(|rows| rows.chunks(self.width).map(<[f32]>::to_vec).collect()))
    }

    /// Keeps the notes in rows of an earlier step; `last` is the last step.
    fn hold(&mut self, rows: Option<Vec<Vec<f32>>>, last: u64) {
        let Some(rows) = rows.filter(|_| self.width > 1) else { return };
        let notes = rows.into_iter().map(|row| row[1..].to_vec()).collect();
        self.held.push(Told { step: last.saturating_sub(self.lag as u64), notes });
    }

    /// Returns whether a round was due to end after the last step.
    fn is_round_over(&self) -> bool {
        let due = self.mode().timetable().map(|timetable| timetable.due(self.averager.steps()));
        due.is_none_or(|due| due.iter().any(|action| matches!(action, Action::End(_))))
    }

    /// Returns the notes of all ranks that were known when the last round ended, unless they were returned
    /// before.
    pub(super) fn told(&mut self) -> Vec<Told> {
        mem::take(&mut self.told)
    }

    /// Waits until all exchanges have ended.
    ///
    /// # Errors
    /// If a peer is lost.
    pub(super) fn settle(&mut self, executor: &mut Executor<'_>) -> Result<(), Error> {
        let record = self.averager.settle(executor.values_mut())?;
        if record.ended > 0 {
            executor.use_values();
        }
        self.record += record;
        Ok(self.rows.settle()?)
    }

    /// Gives all ranks the same parameters by a last round. Returns the record of rounds since the last step.
    ///
    /// # Errors
    /// If a peer is lost.
    pub(super) fn finish(&mut self, executor: &mut Executor<'_>) -> Result<RoundRecord, Error> {
        self.settle(executor)?;
        self.record += self.averager.finish(executor.values_mut())?;
        executor.use_values();
        Ok(mem::take(&mut self.record))
    }

    /// Returns the numbers of all ranks, in order. Call [`Rounds::settle`] first.
    ///
    /// # Errors
    /// If a peer is lost.
    pub(super) fn gather(&self, mine: &[f32]) -> Result<Vec<f32>, Error> {
        Ok(self.channel.gather(mine)?)
    }

    /// Returns the bytes of all ranks, in order. Call [`Rounds::settle`] first.
    ///
    /// # Errors
    /// If a peer is lost.
    pub(super) fn gather_bytes(&self, mine: Vec<u8>) -> Result<Vec<Vec<u8>>, Error> {
        Ok(self.channel.gather_bytes(mine)?)
    }

    /// Returns this rank's state for a checkpoint: its copy and the state of its rounds; and also the
    /// progress, which is the same on all ranks.
    pub(super) fn state(&self, executor: &Executor<'_>) -> AveragerState {
        let mut state = self.averager.state();
        let own = executor.shards().into_iter();
        state.tensors.extend(own.map(|(name, tensor)| (format!("{OWN}{name}"), tensor)));
        // Ranks skip steps of their own.
        let updates = thinwire_sync::tensor_of_count(executor.updates());
        state.tensors.insert(format!("{OWN}{UPDATES}"), updates);
        state
    }

    /// Returns the model for a checkpoint, with the optimiser's state of this rank: the common parameters, in
    /// a mode that has them, or otherwise this rank's own.
    pub(super) fn model(&self, executor: &mut Executor<'_>) -> Tensors {
        match self.averager.common() {
            Some(common) => executor.shards_of(common),
            None => executor.shards(),
        }
    }

    /// Continues from the files of a checkpoint, whose model the executor already has. Returns a notice if
    /// other state of the ranks is dropped.
    ///
    /// # Errors
    /// If the files are damaged, or a peer is lost.
    pub(super) fn restore(
        &mut self,
        checkpoint: &Checkpoint,
        executor: &mut Executor<'_>,
    ) -> Result<Option<String>, Error> {
        let (world, progress) = (self.world(), checkpoint.progress());
        let mode = self.averager.mode();
        let saved = progress.world as usize;
        if progress.config[MODE] != mode.to_string() {
            // The copies of all ranks begin as the model of the checkpoint.
            self.averager.restart(executor.values())?;
            return Ok(Some(format!(
                "the checkpoint is of mode {}: all ranks begin with its model, and changes not exchanged yet are dropped",
                progress.config[MODE].as_str().unwrap_or("step")
            )));
        }
        let tensors = reshard(world, saved, |rank| {
            let mut tensors = checkpoint.exchange(Rank(rank as u32))?;
            tensors.retain(|name, _| !name.starts_with(OWN));
            Ok::<_, Error>(tensors)
        })?;
        let own: Tensors = checkpoint
            .exchange(Rank(world.rank().0 % progress.world))?
            .into_iter()
            .filter_map(|(name, tensor)| Some((name.strip_prefix(OWN)?.to_owned(), tensor)))
            .collect();
        executor.replace_shards(&own)?;
        if let Some(updates) =
            own.get(UPDATES).and_then(|(_, values)| thinwire_sync::count_of(values))
        {
            executor.set_updates(updates);
        }
        let state = AveragerState { tensors, progress: progress.plan.clone() };
        self.averager.load(&state, executor.values())?;
        // A rank that is new has learnt nothing of its own.
        let common = self.averager.common().filter(|_| world.rank().index() >= saved);
        if let Some(common) = common {
            *executor.values_mut() = common;
            executor.use_values();
        }
        Ok((saved > world.size()).then(|| {
            let ranks = world.size();
            format!(
                "the checkpoint is of {saved} ranks: the progress of ranks {ranks} and above \
                 since their last rounds is dropped"
            )
        }))
    }
}

/// Key, in the manifest of a checkpoint, of the mode.
pub(super) const MODE: &str = "mode";

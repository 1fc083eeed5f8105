//! A synchroniser that continues among other ranks.
//!
//! A step in which a peer was lost is a skipped step: exchanges return their gradients, residuals are
//! those from before the step, and the new group repeats it. Residuals of ranks that left without
//! handing them on are lost with them.

use thinwire_collective::Group;
use thinwire_link::{Link, mem};
use thinwire_wire::World;

use crate::agreement::{check_combination, identity};
use crate::bucket::state::BucketState;
use crate::synchronizer::phase::Phase;
use crate::worker::Worker;
use crate::{Channel, Error, Outcome, State, Synchronizer};

impl Synchronizer {
    /// Sets the part of the global batch that this rank computes, from the next step on, for ranks with
    /// unequal parts: the average of gradients is the sum over ranks of `share` times the rank's mean. The
    /// shares of all ranks add up to 1. Without this call all parts are equal.
    ///
    /// # Errors
    /// If `share` is not from 0 to 1.
    pub fn set_share(&mut self, share: f32) -> Result<(), Error> {
        if !(0.0..=1.0).contains(&share) {
            return Err(Error::Invalid(format!("a share of {share}, expected 0 to 1")));
        }
        self.share = Some(share);
        Ok(())
    }

    /// Takes back [`Synchronizer::set_share`], from the next step on: all ranks compute equal parts.
    pub fn set_equal_shares(&mut self) {
        self.share = None;
    }

    /// Sets the error budget of `auto` for the plans from now on; all ranks call this in the same step.
    /// It has no effect on named codecs.
    pub fn set_error_budget(&mut self, budget: f64) {
        if let Some(planner) = &mut self.planner {
            planner.set_error_budget(budget);
        }
    }

    /// Keeps the last step, if all of its buckets have arrived on this rank: its codec errors are the
    /// residuals from now on. Otherwise the residuals stay as they were before the step. Call it on a
    /// rank that has not seen the end of a step that another rank has applied; the caller then takes
    /// over the parameters of that other rank and its [shared part](State::shared), which counts the step.
    ///
    /// # Errors
    /// If peers sent invalid encodings.
    pub fn keep_lost(&mut self) -> Result<(), Error> {
        let arrived = self.buckets.iter().all(BucketState::has_arrived);
        if self.underway > 0 || !arrived || !self.absence.is_settled() {
            return Ok(());
        }
        // The step is not counted here: the rank that has applied it may be lost before it hands its state over, and
        // then all repeat it.
        self.commit_buckets(Outcome::Averaged)
    }

    /// Returns this rank's residuals and momenta as bytes for [`Synchronizer::take_on`].
    ///
    /// # Errors
    /// If they are too large for their format.
    pub fn owed(&self) -> Result<Vec<u8>, Error> {
        self.state().owed().to_bytes(World::alone())
    }

    /// Adds the residuals and momenta of a rank that leaves to this rank's, between steps: their sum
    /// over all ranks stays the same.
    ///
    /// # Errors
    /// If the bytes do not come from [`Synchronizer::owed`], or belong to another model.
    pub fn take_on(&mut self, owed: &[u8]) -> Result<(), Error> {
        let theirs = State::from_bytes(owed, World::alone()).map_err(Error::Invalid)?;
        let mut state = self.state();
        state.add_owed(theirs)?;
        self.load_tensors(&state)
    }

    /// Releases the other ranks between steps, so that this rank's connections to them end.
    /// Otherwise, a rank that waits for its next group would hold up the ranks that leave the last
    /// one. The synchroniser can then be continued only by [`Synchronizer::reform`].
    pub fn release(&mut self) {
        if self.underway == 0 {
            self.worker = Worker::new(Channel::new(Group::new(mem::alone())));
        }
    }

    /// Continues among the ranks of another link, after a step was lost with a peer, or between steps.
    /// All of these ranks call it together. New ranks call [`Synchronizer::start`] instead, and then
    /// load the [shared part](crate::State::shared) of the state of a rank that stays. Residuals,
    /// factors and momenta stay; the means of [`Feedback::Ef21`](crate::Feedback::Ef21) are reset. The
    /// next step may have the number of the lost one. Parts of the batch are equal again.
    ///
    /// # Errors
    /// If ranks disagree on the parameters or the options, buckets are exchanged by groups of ranks, or a
    /// peer of the new link is lost. The call may then be made again with another link.
    pub fn reform(&mut self, link: Link) -> Result<(), Error> {
        self.reform_over(Channel::new(Group::new(link).with_timeout(self.options.timeout)))
    }

    /// Continues among the ranks of another channel, as [`Synchronizer::reform`] does; new ranks call
    /// [`Synchronizer::over`].
    ///
    /// # Errors
    /// As [`Synchronizer::reform`].
    pub fn reform_over(&mut self, channel: Channel) -> Result<(), Error> {
        if let Some(state) = self.buckets.iter().find(|state| !state.bucket.ranks.is_empty()) {
            let (name, ranks) = (state.bucket.name(&self.parameters), &state.bucket.ranks);
            return Err(Error::Invalid(format!(
                "{name} is exchanged by {ranks:?} alone, expected all ranks: a part without a replica cannot be re-formed"
            )));
        }
        self.reclaim()?;
        check_combination(&self.options, channel.world())?;
        channel.agree(&identity(&self.parameters, &self.options))?;
        self.planner = Synchronizer::planner(&channel, &self.parameters, &self.options)?;
        (self.world, self.worker) = (channel.world(), Worker::new(channel));
        (self.share, self.last) = (None, None);
        self.buckets.iter_mut().for_each(|bucket| bucket.forget_means());
        self.lay_out_again(self.parameters.clone())
    }

    /// Takes back everything that is on its way, over a link that has failed or is no longer wanted, as
    /// if the step had been skipped: the state is the one from before the step.
    ///
    /// # Errors
    /// If peers sent invalid encodings.
    pub fn reclaim(&mut self) -> Result<(), Error> {
        if self.underway > 0 || self.absence.is_underway() {
            // Between steps others may still wait for a message, and are left in good order.
            self.stop().stop("the group is formed anew");
        }
        while self.underway > 0 {
            // Each of them says again what has failed.
            let _ = self.receive();
        }
        let _ = self.absence.wait();
        self.phase = Phase::Before;
        self.commit_buckets(Outcome::Skipped)
    }
}

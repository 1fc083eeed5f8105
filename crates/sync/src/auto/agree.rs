//! Planning on all ranks together, after some steps.
//!
//! Every few steps an all-gather gives all reports to every rank, so all ranks notice in the same step that
//! another plan is due. Rank 0 then decides on it and broadcasts it, all ranks switch, and a hash makes sure
//! that they follow the same plan. If several plans are to be tried, rank 0 sends all of them, and they take
//! turns without further messages: from the reports every rank knows which plan is next, and each report
//! begins with the hash of the plan in force.

use thinwire_collective::{Group, all_gather, broadcast_bytes};
use thinwire_wire::Rank;

use crate::auto::plan::Plan;
use crate::auto::planner::Planner;
use crate::measure::link::{self, LinkSpeed};
use crate::{Error, Synchronizer};

/// The longest plans that rank 0 may send, in bytes.
const PLAN_BYTES_MAX: usize = 1 << 26;

impl Synchronizer {
    /// Returns the plan for buckets of which nothing is known yet.
    pub(crate) fn first_plan(&mut self) -> Result<Plan, Error> {
        let buckets = self.buckets.len();
        self.planner_mut().lay_out(buckets);
        let plan = self.decide("before the first step")?.swap_remove(0);
        self.planner_mut().switched(&plan);
        Ok(plan)
    }

    /// Keeps some of a bucket's gradients, if a plan is due after this step.
    pub(crate) fn sample(&mut self, bucket: usize) {
        let due = Planner::is_due(self.age());
        let Some(planner) = self.planner.as_mut().filter(|_| due) else { return };
        if !self.buckets[bucket].bucket.exempt {
            planner.sample(bucket, &self.buckets[bucket].given());
        }
    }

    /// Absorbs the reports of all ranks after some steps of `auto`, and plans again if they call for it.
    pub(crate) fn plan_again(&mut self) -> Result<(), Error> {
        let age = self.age();
        let Some(planner) = &mut self.planner else { return Ok(()) };
        planner.record(&self.record, &self.plan);
        if !Planner::reports(age) {
            return Ok(());
        }
        let is_due = Planner::is_due(age);
        // A link that may have changed is measured before anything is planned for it, and a trial ends by itself.
        match self.absorb_reports()? {
            Some(slowdown) => self.measure_link(slowdown)?,
            None if is_due && !self.planner_mut().is_trying() => {
                self.plan_anew("gradients and their times were measured")?;
            }
            None => {}
        }
        self.take_turns()?;
        let planner = self.planner.as_mut().expect("it was there");
        // The step may have begun with a planning: that before the first step, or that of a state.
        self.record.planning = planner.news().map(Box::new).or(self.record.planning.take());
        Ok(())
    }

    /// Gathers the reports of all ranks. Returns the factor by which bytes take longer than predicted, if the
    /// link is to be measured.
    fn absorb_reports(&mut self) -> Result<Option<f64>, Error> {
        let planner = self.planner.as_mut().expect("only auto plans");
        let message = planner.report();
        let length = message.len();
        let mut row = self.plan.hash().to_le_bytes().to_vec();
        row.extend(message.into_iter().flat_map(f32::to_le_bytes));
        let all = self.worker.channel.call(move |group| all_gather(group, &row))?;
        let all = self.figures_of_this_plan(all.chunks_exact(4 * (1 + length)))?;
        let is_due = Planner::is_due(self.age());
        let sampled: Vec<usize> = (0..self.buckets.len())
            .filter(|bucket| is_due && !self.buckets[*bucket].bucket.exempt)
            .collect();
        Ok(self.planner_mut().absorb_reports(&all, length, &sampled))
    }

    /// Returns the figures of all ranks, after checking by the hash that begins each row that all follow the
    /// same plan.
    fn figures_of_this_plan<'a>(
        &self,
        rows: impl Iterator<Item = &'a [u8]>,
    ) -> Result<Vec<f32>, Error> {
        let mine = self.plan.hash();
        let mut all = Vec::new();
        for (rank, row) in self.world.ranks().zip(rows) {
            let (words, _) = row.as_chunks::<4>();
            let theirs = u32::from_le_bytes(words[0]);
            if theirs != mine {
                let (about, mine) = ("plan".to_owned(), described(mine));
                return Err(Error::Disagreement { about, mine, rank, theirs: described(theirs) });
            }
            all.extend(words[1..].iter().map(|word| f32::from_le_bytes(*word)));
        }
        Ok(all)
    }

    /// Measures the link, and plans again if it has changed.
    fn measure_link(&mut self, slowdown: f64) -> Result<(), Error> {
        let known = self.planner_mut().link();
        let before = known.clone();
        let measure = move |group: &mut Group| link::probe_again(group, &before, slowdown);
        let peers = self.worker.channel.peers(&self.parameters);
        let link = link::of_rank_0(&self.worker.channel, &peers, peers.call(measure)?)?;
        if !self.planner_mut().learn(link.clone()) {
            return Ok(());
        }
        self.plan_anew(&changed(&known, &link))
    }

    /// Switches on all ranks at once to the plan that rank 0 decides on, and begins a trial if rank 0 sends
    /// further plans.
    fn plan_anew(&mut self, reason: &str) -> Result<(), Error> {
        let plans = self.decide(reason)?;
        let before = self.plan.hash();
        self.follow(plans[0].clone())?;
        // A plan that stays in force needs no new agreement.
        if self.plan.hash() != before {
            self.agree(&[("plan".to_owned(), described(self.plan.hash()))])?;
        }
        self.planner_mut().begin_trial(plans);
        Ok(())
    }

    /// Switches to the plan whose turn it is in a trial.
    fn take_turns(&mut self) -> Result<(), Error> {
        let Some(plan) = self.planner_mut().turn() else { return Ok(()) };
        self.follow(plan)?;
        if !self.planner_mut().is_trying() && self.world.rank() == Rank(0) {
            self.explain_plan("a trial of plans has ended");
        }
        Ok(())
    }

    /// Returns on all ranks what rank 0 decides: the plan to follow, and after it those that are tried
    /// against it.
    fn decide(&mut self, reason: &str) -> Result<Vec<Plan>, Error> {
        let steps = self.warm_up.kept();
        self.planner_mut().permit_trial_after(steps);
        let mut json = Vec::new();
        if self.world.rank() == Rank(0) {
            let plans = self.plan_with(|planner, sync| {
                planner.propose(&sync.buckets, &sync.plan, reason.to_owned())
            });
            json = serde_json::to_vec(&plans).expect("plans have only numbers and strings");
        }
        let json = self
            .worker
            .channel
            .call(move |group| broadcast_bytes(group, &json, Rank(0), PLAN_BYTES_MAX))?;
        let plans: Vec<Plan> = serde_json::from_slice(&json)
            .map_err(|error| Error::Invalid(format!("rank 0 sent no plan: {error}")))?;
        match plans.is_empty() {
            true => Err(Error::Invalid("rank 0 sent no plan".to_owned())),
            false => Ok(plans),
        }
    }

    /// Explains the plan in force, on rank 0.
    pub(crate) fn explain_plan(&mut self, reason: &str) {
        self.plan_with(|planner, sync| planner.conclude(&sync.buckets, &sync.plan, reason));
    }

    /// Runs `plan` with the planner and the buckets, and then names the buckets in the planner's record.
    fn plan_with<T>(&mut self, plan: impl FnOnce(&mut Planner, &Synchronizer) -> T) -> T {
        let mut planner = self.planner.take().expect("only auto plans");
        planner.set_budget_after(self.warm_up.kept());
        let planned = plan(&mut planner, self);
        let buckets = self.buckets.iter();
        planner.name_buckets(
            buckets.map(|state| (state.bucket.name(&self.parameters), &state.bucket)),
        );
        self.planner = Some(planner);
        planned
    }

    /// Switches to `plan` on this rank alone; the next reports reveal a rank that follows another one.
    pub(crate) fn follow(&mut self, plan: Plan) -> Result<(), Error> {
        let before = self.plan.hash();
        self.adopt(plan)?;
        if self.plan.hash() != before {
            let planner = self.planner.as_mut().expect("only auto plans");
            planner.switched(&self.plan);
        }
        Ok(())
    }

    pub(crate) fn planner_mut(&mut self) -> &mut Planner {
        self.planner.as_mut().expect("only auto plans")
    }

    /// Returns the number of steps since the buckets were laid out, or a state of other buckets or ranks was
    /// loaded.
    pub(crate) fn age(&self) -> u64 {
        self.aged.saturating_add(self.step.saturating_sub(self.first.unwrap_or(self.step)))
    }
}

fn described(hash: u32) -> String {
    format!("hash {hash:08x}")
}

fn changed(old: &LinkSpeed, new: &LinkSpeed) -> String {
    let mbit = |link: &LinkSpeed| link.bytes_per_s * 8e-6;
    let ms = |link: &LinkSpeed| link.latency_s * 1e3;
    format!(
        "the link went from {:.0} to {:.0} Mbit/s and from {:.1} to {:.1} ms",
        mbit(old),
        mbit(new),
        ms(old),
        ms(new)
    )
}

//! Planning on all ranks together, after some steps.
//!
//! Every few steps ranks tell each other what they saw. All come to the same verdict on the plan in
//! force; where it calls for another one, rank 0 decides which, all switch here, and make sure by a
//! hash that they follow the same.

use thinwire_collective::{Group, broadcast};
use thinwire_wire::Rank;

use crate::plan::Plan;
use crate::planner::Planner;
use crate::probe::{self, LinkSpeed};
use crate::watch::Verdict;
use crate::{Error, Synchronizer};

/// The longest plan that rank 0 may send, in bytes.
const PLAN_BYTES_MAX: usize = 1 << 26;

impl Synchronizer {
    /// A plan for buckets of which nothing is known yet.
    pub(crate) fn first_plan(&mut self) -> Result<Plan, Error> {
        let buckets = self.lanes.len();
        self.planner_mut().lay_out(buckets);
        let plan = self.propose("before the first step")?;
        self.planner_mut().switched(&plan, Plan::default());
        Ok(plan)
    }

    /// Keeps some of a bucket's gradients, if a plan is due after this step.
    pub(crate) fn sample(&mut self, lane: usize) {
        let due = Planner::is_due(self.age());
        let Some(planner) = self.planner.as_mut().filter(|_| due) else { return };
        if !self.lanes[lane].bucket.exempt {
            planner.sample(lane, self.lanes[lane].values());
        }
    }

    /// With `auto`, hears the other ranks in some steps, and plans anew where that is called for.
    pub(crate) fn plan_again(&mut self) -> Result<(), Error> {
        let age = self.age();
        let Some(planner) = &mut self.planner else { return Ok(()) };
        planner.note(&self.record, &self.plan);
        if !Planner::is_heard(age) {
            return Ok(());
        }
        match self.hear(Planner::is_due(age))? {
            Verdict::Probe { slowdown } => self.measure_link(slowdown)?,
            Verdict::Back => self.retreat(Verdict::Back, "the plan before was faster")?,
            Verdict::Raw => self.retreat(Verdict::Raw, "raw seems to be faster")?,
            Verdict::Stay if Planner::is_due(age) => {
                let plan = self.propose("gradients and their times were measured")?;
                self.switch(plan)?;
            }
            Verdict::Stay => {}
        }
        let planner = self.planner.as_mut().expect("it was there");
        self.record.planning =
            planner.take_planning().map(Box::new).or(self.record.planning.take());
        Ok(())
    }

    /// Tells the others what this rank saw, and hears them.
    fn hear(&mut self, sampled: bool) -> Result<Verdict, Error> {
        let planner = self.planner.as_mut().expect("only auto plans");
        let message = planner.message(&self.plan);
        let all = self.gather(&message)?;
        self.check_plans(&all, message.len())?;
        let sampled: Vec<usize> = (0..self.lanes.len())
            .filter(|lane| sampled && !self.lanes[*lane].bucket.exempt)
            .collect();
        Ok(self.planner_mut().hear(&all, message.len(), &sampled))
    }

    /// Makes sure that all ranks follow the same plan, by the hash that begins every message.
    fn check_plans(&self, all: &[f32], length: usize) -> Result<(), Error> {
        let mine = self.plan.hash();
        for (rank, message) in self.world.ranks().zip(all.chunks_exact(length)) {
            let theirs = (message[0] as u32) << 16 | message[1] as u32;
            if theirs != mine {
                let (about, mine) = ("plan".to_owned(), described(mine));
                return Err(Error::Disagreement { about, mine, rank, theirs: described(theirs) });
            }
        }
        Ok(())
    }

    /// Measures the link, and plans anew if it is another one.
    fn measure_link(&mut self, slowdown: f64) -> Result<(), Error> {
        let known = self.planner_mut().link();
        let before = known.clone();
        let measure = move |group: &mut Group| probe::probe_again(group, &before, slowdown);
        let link = self.worker.call(measure)?;
        if !self.planner_mut().learn(link.clone()) {
            return Ok(());
        }
        let plan = self.propose(&changed(&known, &link))?;
        self.switch(plan)
    }

    fn retreat(&mut self, verdict: Verdict, reason: &str) -> Result<(), Error> {
        let plan = self
            .by_rank_0(|planner, sync| planner.retreat(&sync.lanes, verdict, reason.to_owned()))?;
        self.switch(plan)
    }

    fn propose(&mut self, reason: &str) -> Result<Plan, Error> {
        self.by_rank_0(|planner, sync| planner.propose(&sync.lanes, &sync.plan, reason.to_owned()))
    }

    /// What rank 0 decides, on all ranks.
    fn by_rank_0(
        &mut self,
        decide: impl FnOnce(&mut Planner, &Synchronizer) -> Plan,
    ) -> Result<Plan, Error> {
        let mut json = Vec::new();
        if self.world.rank() == Rank(0) {
            let mut planner = self.planner.take().expect("only auto plans");
            let plan = decide(&mut planner, self);
            let lanes = self.lanes.iter();
            planner
                .name_buckets(lanes.map(|lane| (lane.bucket.name(&self.parameters), &lane.bucket)));
            self.planner = Some(planner);
            json = serde_json::to_vec(&plan).expect("a plan has only numbers and strings");
        }
        let json = self.worker.call(move |group| spread(group, &json))?;
        serde_json::from_slice(&json)
            .map_err(|error| Error::Invalid(format!("rank 0 sent no plan: {error}")))
    }

    /// Follows `plan` from now on, with all ranks together.
    pub(crate) fn switch(&mut self, plan: Plan) -> Result<(), Error> {
        let switches = plan.hash() != self.plan.hash();
        self.follow(plan)?;
        match switches {
            true => self.agree(&[("plan".to_owned(), described(self.plan.hash()))]),
            false => Ok(()),
        }
    }

    /// The same on this rank alone; all ranks find out when they next hear each other.
    pub(crate) fn follow(&mut self, plan: Plan) -> Result<(), Error> {
        let (old, new) = (self.plan.clone(), plan.clone());
        self.adopt(plan)?;
        match new.hash() == old.hash() {
            true => self.planner_mut().kept(&new),
            false => self.planner_mut().switched(&new, old),
        }
        Ok(())
    }

    fn planner_mut(&mut self) -> &mut Planner {
        self.planner.as_mut().expect("only auto plans")
    }

    /// Steps since the buckets were laid out, or a checkpoint was loaded.
    fn age(&self) -> u64 {
        self.step.saturating_sub(self.first.unwrap_or(self.step))
    }
}

fn described(hash: u32) -> String {
    format!("hash {hash:08x}")
}

/// Rank 0's bytes, on all ranks.
fn spread(group: &mut Group, mine: &[u8]) -> Result<Vec<u8>, thinwire_collective::Error> {
    // Halves of the length are numbers that f32 holds exactly.
    let mut length = [(mine.len() >> 16) as f32, (mine.len() & 0xffff) as f32];
    broadcast(group, &mut length, Rank(0))?;
    let length = ((length[0] as usize) << 16 | length[1] as usize).min(PLAN_BYTES_MAX);
    let mut words = vec![0.0_f32; length.div_ceil(4)];
    if !mine.is_empty() {
        bytemuck::cast_slice_mut(&mut words)[..length].copy_from_slice(&mine[..length]);
    }
    broadcast(group, &mut words, Rank(0))?;
    Ok(bytemuck::cast_slice(&words)[..length].to_vec())
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

//! Laws of the steps of elastic ranks, over jobs that are made up: ranks join, are lost between steps or in the
//! middle of one, which some of the others have applied then, and leave in good order.

use std::collections::BTreeMap;
use std::ops::Range;

use proptest::prelude::*;
use thinwire_job::elastic::{Due, Entry, EpochStart, Residuals, StateFrom, Steps, Wish};
use thinwire_member::deal;
use thinwire_wire::World;

const BATCH: usize = 7;
const PROCESSES: usize = 5;

/// A process with what a trainer has beside its [`Steps`].
struct Process {
    steps: Steps,
    /// Where the batch of the next step begins.
    position: u64,
    /// Number of the step after which its residuals are true, and of the life of the state that they belong to.
    owes: Option<(u64, u32)>,
    /// Epoch and steps of its state, as a coordinator counts them.
    state: Option<(u32, u64)>,
}

/// One life of the group.
#[derive(Clone, Debug)]
struct Life {
    members: Vec<usize>,
    /// Steps that all complete.
    complete: u64,
    end: End,
    /// Ranks that are lost while the epoch begins, after they have decided how.
    is_cut_short: bool,
}

#[derive(Clone, Debug)]
enum End {
    /// The members agree on a step.
    Agreed,
    /// A peer is lost in a step that only these members have applied.
    Lost { applied: Vec<usize> },
}

fn life() -> impl Strategy<Value = Life> {
    let some = || prop::collection::vec(0..PROCESSES, 0..=PROCESSES);
    let end = prop_oneof![Just(End::Agreed), some().prop_map(|applied| End::Lost { applied })];
    let members = prop::sample::subsequence((0..PROCESSES).collect::<Vec<_>>(), 1..=PROCESSES);
    (members, 0..4_u64, end, prop::bool::weighted(0.2)).prop_map(
        |(members, complete, end, is_cut_short)| Life { members, complete, end, is_cut_short },
    )
}

/// A job of processes, and the rows of each step that was ever begun.
struct Job {
    processes: Vec<Process>,
    rows: BTreeMap<u64, Range<u64>>,
    epoch: u32,
}

impl Job {
    fn new(steps: Steps) -> Job {
        let process = || Process { steps, position: 0, owes: None, state: None };
        let processes = (0..PROCESSES).map(|_| process()).collect();
        Job { processes, rows: BTreeMap::new(), epoch: 0 }
    }

    /// Lives through an epoch and checks the laws.
    fn live(&mut self, life: &Life) {
        self.epoch += 1;
        let newest = self.processes.iter().filter_map(|process| process.state).max();
        let holds = |this: &Job, member: &usize| {
            newest.is_some() && this.processes[*member].state == newest
        };
        let mut members = life.members.clone();
        members.sort_by_key(|member| !holds(self, member));
        let state_sources = members.iter().filter(|member| holds(self, member)).count() as u32;
        if newest.is_some() && state_sources == 0 {
            return; // the coordinator waits for a state source
        }
        let done = newest.map_or(0, |(_, done)| done);
        let entries = self.begin(&members, state_sources, done);
        if life.is_cut_short {
            return;
        }
        for (member, entry) in members.iter().zip(entries) {
            let process = &mut self.processes[*member];
            process.position = match entry.state {
                StateFrom::Own => process.position,
                _ => done * BATCH as u64,
            };
            process.owes = match entry.residuals {
                Residuals::Kept => process.owes,
                Residuals::OfLostStep => process.owes.map(|(step, life)| (step + 1, life)),
                Residuals::Dropped => Some((done, self.epoch)),
            };
            assert_eq!(
                process.owes.map(|(step, _)| step),
                Some(done),
                "residuals of another state"
            );
            process.steps.synced(done);
            process.state = Some((self.epoch, done));
        }
        for number in done..done + life.complete {
            let wish = match &life.end {
                End::Agreed if number + 1 == done + life.complete => Wish::Change,
                _ => Wish::Continue,
            };
            self.step(&members, number, Some(wish), &members);
            let due = if wish == Wish::Change { Due::Change } else { Due::Step };
            assert!(members.iter().all(|member| self.processes[*member].steps.due(None) == due));
        }
        if let End::Lost { applied } = &life.end {
            self.step(&members, done + life.complete, None, applied);
            for member in &members {
                self.processes[*member].steps.lost();
                assert_eq!(self.processes[*member].steps.due(Some(0)), Due::Repeat);
            }
        }
    }

    /// Begins an epoch on all members, which decide alike.
    fn begin(&mut self, members: &[usize], state_sources: u32, done: u64) -> Vec<Entry> {
        let world = |rank| World::new(rank as u32, members.len() as u32).unwrap();
        let entries: Vec<Entry> = members
            .iter()
            .enumerate()
            .map(|(rank, member)| {
                let process = &mut self.processes[*member];
                let before = process.steps;
                let entry = process
                    .steps
                    .begin(EpochStart { world: world(rank), state_sources, done })
                    .unwrap();
                assert_eq!(
                    process.steps.done(),
                    before.done(),
                    "only an applied step moves the position"
                );
                let is_near = (before.done()..=before.done() + 1).contains(&done);
                assert!(entry.residuals == Residuals::Dropped || is_near);
                entry
            })
            .collect();
        assert!(entries.iter().all(|entry| entry.hand_over == entries[0].hand_over));
        let others = entries.iter().filter(|entry| entry.state == StateFrom::Others).count();
        let sources = entries[0].hand_over.map_or(members.len(), |sources| sources as usize);
        assert_eq!(others, members.len() - sources, "who lacks the state is handed it");
        entries
    }

    /// A step of all members, of which some apply it.
    fn step(&mut self, members: &[usize], number: u64, wish: Option<Wish>, applied: &[usize]) {
        let mut rows = Vec::new();
        for (rank, member) in members.iter().enumerate() {
            let process = &mut self.processes[*member];
            assert_eq!(process.steps.done(), number, "all ranks of an epoch are at the same step");
            let world = World::new(rank as u32, members.len() as u32).unwrap();
            rows.extend(deal(BATCH, process.position, world));
            process.steps.begin_step();
            wish.into_iter().for_each(|wish| process.steps.agreed(wish));
            assert_eq!(process.steps.done(), number, "only an applied step moves the position");
            if applied.contains(member) {
                process.steps.applied();
                process.position += BATCH as u64;
                process.owes = process.owes.map(|(step, life)| (step + 1, life));
                process.state = Some((self.epoch, number + 1));
            }
            assert_eq!(process.steps.is_under_way(), !applied.contains(member));
        }
        let whole = rows[0]..rows[0] + BATCH as u64;
        assert!(whole.clone().eq(rows), "every row once");
        let first = self.rows.entry(number).or_insert_with(|| whole.clone());
        assert_eq!(*first, whole, "step {number} is repeated with the same rows");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn ranks_agree_and_repeat_what_was_lost_whoever_comes_and_goes(
        lives in prop::collection::vec(life(), 1..12), is_of_python in any::<bool>()
    ) {
        let steps = if is_of_python { Steps::from_rank_0() } else { Steps::default() };
        let mut job = Job::new(steps);
        lives.iter().for_each(|life| job.live(life));
    }

    #[test]
    fn residuals_stay_only_with_the_state_that_they_belong_to(
        mine in 0..20_u64, done in 0..20_u64, sources in 0..4_u32, rank in 0..4_u32
    ) {
        let mut steps = Steps::default();
        steps.synced(mine);
        let start = EpochStart { world: World::new(rank, 4).unwrap(), state_sources: sources, done };
        let expected = match done as i64 - mine as i64 {
            _ if sources == 0 => Residuals::Dropped,
            0 => Residuals::Kept,
            1 => Residuals::OfLostStep,
            _ => Residuals::Dropped,
        };
        match steps.begin(start) {
            Ok(entry) => {
                prop_assert_eq!(entry.residuals, expected);
                prop_assert_eq!(entry.state == StateFrom::Own, rank < sources);
            }
            Err(_) => prop_assert!(rank < sources && expected == Residuals::Dropped),
        }
    }
}

fn start(rank: u32, state_sources: u32, done: u64) -> EpochStart {
    EpochStart { world: World::new(rank, 2).unwrap(), state_sources, done }
}

#[test]
fn a_rank_without_its_state_is_no_source() {
    let mut steps = Steps::default();
    steps.synced(3);
    // It begins as a new one, and is lost before it has the state of the others.
    assert_eq!(steps.begin(start(1, 1, 9)).unwrap().residuals, Residuals::Dropped);
    let error = steps.begin(start(0, 1, 3)).unwrap_err().to_string();
    assert_eq!(error, "the job relies on a state that this process does not have");
    assert_eq!(steps.begin(start(1, 1, 3)).unwrap().state, StateFrom::Others);
}

#[test]
fn without_state_sources_a_checkpoint_counts_or_rank_0_if_it_has_as_much() {
    let mut steps = Steps::default();
    steps.synced(3);
    let entry = steps.begin(start(1, 0, 0)).unwrap();
    let expected =
        Entry { state: StateFrom::Checkpoint, residuals: Residuals::Dropped, hand_over: None };
    assert_eq!(entry, expected);
    let mut steps = Steps::from_rank_0();
    assert_eq!(steps.begin(start(0, 0, 0)).unwrap().state, StateFrom::Own);
    steps.synced(3);
    let entry = steps.begin(start(1, 0, 3)).unwrap();
    assert_eq!((entry.state, entry.hand_over), (StateFrom::Others, Some(1)));
    steps.synced(3);
    let error = steps.begin(start(1, 0, 2)).unwrap_err().to_string();
    let expected =
        "no rank has the newest state any more: rank 0 is at step 2 and this one at step 3";
    assert_eq!(error, expected);
}

#[test]
fn the_wish_of_all_ranks_decides_what_follows() {
    let due = |wish: Wish, total| {
        let mut steps = Steps::default();
        steps.begin_step();
        steps.applied();
        steps.agreed(Wish::of(wish.number()));
        steps.due(total)
    };
    assert_eq!(due(Wish::Continue, None), Due::Step);
    assert_eq!(due(Wish::Continue, Some(2)), Due::Step);
    assert_eq!(due(Wish::Continue, Some(1)), Due::Finish);
    assert_eq!(due(Wish::Signal(15), Some(2)), Due::Finish);
    // The members of the next epoch end the training together.
    assert_eq!(due(Wish::Change, Some(1)), Due::Change);
    assert_eq!(due(Wish::Stop, Some(1)), Due::Stop);
}

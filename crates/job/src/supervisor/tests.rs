//! Tests of a launcher's decisions.

use proptest::prelude::*;
use signal_hook::consts::SIGINT;

use super::*;

const FINE: End = End::Code(0);
const KILLED: End = End::Signal(SIGKILL);
/// Line after the first signal.
const LEAVE: Action = Action::Say(Notice::Leaving);
const NONE: [u32; 0] = [];

fn limits(ranks: RangeInclusive<u32>, restarts: u32, shutdown: Shutdown) -> Limits {
    let here = *ranks.end();
    Limits { ranks, restarts, here, others: Others::Shown, loss: Loss::Survivable, shutdown }
}

fn job(ranks: RangeInclusive<u32>, restarts: u32) -> (Supervisor, Instant) {
    let now = Instant::now();
    let (supervisor, actions) = Supervisor::begin(limits(ranks, restarts, Shutdown::Signal), now);
    assert!(actions.iter().all(|action| matches!(action, Action::Start { .. })));
    (supervisor, now)
}

fn ended(member: u32, end: End) -> Event {
    Event::Ended { member, end }
}

fn epoch<const N: usize>(members: [u32; N]) -> Event {
    shared_epoch(members, 0)
}

/// Returns an epoch that also has members of other launchers.
fn shared_epoch<const N: usize>(members: [u32; N], others: u32) -> Event {
    let first = members.first().copied();
    Event::Epoch(Epoch { first, members: BTreeSet::from(members), others })
}

fn starts(actions: &[Action]) -> Vec<u32> {
    let start = |action: &Action| match action {
        Action::Start { member } => Some(*member),
        _ => None,
    };
    actions.iter().filter_map(start).collect()
}

fn said(actions: &[Action]) -> Vec<String> {
    let said = |action: &Action| match action {
        Action::Say(notice) => Some(notice.to_string()),
        _ => None,
    };
    actions.iter().filter_map(said).collect()
}

fn to<const N: usize>(members: [u32; N], signal: i32) -> [Action; 1] {
    [Action::Signal { members: members.to_vec(), signal }]
}

/// Returns the message about members that are told to end after a wait, and are killed a second later.
fn overdue<const N: usize>(job: &mut Supervisor, members: [u32; N], at: Instant) -> String {
    let actions = job.on(Event::Tick, at);
    let line = said(&actions).join("");
    assert_eq!(actions[1..], to(members, SIGTERM), "{line}");
    assert_eq!(job.on(Event::Tick, at), []);
    assert_eq!(job.on(Event::Tick, at + LAST_WORDS), to(members, SIGKILL));
    line
}

#[test]
fn a_job_begins_with_as_many_members_as_it_may_have() {
    let limits = limits(2..=4, 0, Shutdown::Signal);
    let (job, actions) = Supervisor::begin(limits, Instant::now());
    assert_eq!(starts(&actions), [0, 1, 2, 3]);
    assert!(job.is_running() && job.deadline().is_none());
}

#[test]
fn a_death_is_no_failure_while_others_live() {
    let (mut job, now) = job(1..=3, 0);
    job.on(epoch([0, 1, 2]), now);
    let actions = job.on(ended(0, KILLED), now);
    assert_eq!(actions[0], Action::Lost { member: 0 });
    assert_eq!(said(&actions), ["member 0 was killed by signal 9 (SIGKILL); 2 continue"]);
    assert_eq!(actions.len(), 2);
    job.on(epoch([1, 2]), now);
    job.on(Event::Complete, now);
    job.on(ended(1, FINE), now);
    job.on(ended(2, FINE), now);
    assert!(!job.is_running());
    assert_eq!(job.verdict(), Verdict::Done);
}

#[test]
fn who_dies_is_replaced_as_often_as_allowed() {
    let (mut job, now) = job(2..=2, 2);
    let actions = job.on(ended(1, KILLED), now + QUICK);
    assert_eq!(starts(&actions), [2]);
    let line = "member 1 was killed by signal 9 (SIGKILL); 1 continues, \
                and one takes its place (restarts left: 1)";
    assert_eq!(said(&actions), [line]);
    assert_eq!(starts(&job.on(ended(2, End::Code(3)), now + 2 * QUICK)), [3]);
    assert_eq!(starts(&job.on(ended(3, KILLED), now + 3 * QUICK)), NONE);
    job.on(ended(0, FINE), now + 3 * QUICK);
    assert_eq!(job.started(), 4);
}

#[test]
fn a_program_that_always_dies_is_not_started_in_a_loop() {
    let (mut job, now) = job(1..=1, 100);
    let (mut waits, mut time) = (Vec::new(), now);
    for member in 0..8 {
        let mut actions = job.on(ended(member, End::Code(2)), time);
        assert!(job.is_running());
        waits.push(job.deadline().map_or(0, |due| (due - time).as_secs()));
        if let Some(due) = job.deadline() {
            assert_eq!(starts(&actions), NONE);
            assert_eq!(job.on(Event::Tick, due - BACKOFF / 2), []);
            (actions, time) = (job.on(Event::Tick, due), due);
        }
        assert_eq!(starts(&actions), [member + 1]);
    }
    assert_eq!(waits, [0, 1, 2, 4, 8, 16, 30, 30]);
    // Somebody lived for long: the next death may be chance again.
    assert_eq!(starts(&job.on(ended(8, KILLED), time + QUICK)), [9]);
}

#[test]
fn the_first_death_since_the_last_epoch_is_the_cause() {
    let (mut job, now) = job(1..=3, 0);
    job.on(ended(0, KILLED), now);
    job.on(epoch([1, 2]), now);
    job.on(ended(2, End::Code(2)), now);
    assert_eq!(job.on(ended(1, KILLED), now), [Action::Lost { member: 1 }]);
    assert!(!job.is_running());
    assert_eq!(job.verdict(), Verdict::Failed { member: 2, end: End::Code(2) });
}

#[test]
fn who_was_asked_to_go_is_neither_replaced_nor_a_failure() {
    for end in [End::Code(143), End::Signal(15), End::Code(130), FINE] {
        let (mut job, now) = job(1..=2, 5);
        job.on(epoch([0, 1]), now);
        let actions = job.on(ended(0, end), now);
        assert_eq!(starts(&actions), NONE, "{end}");
        assert_eq!(said(&actions), ["member 0 has left; 1 continues"], "{end}");
        // The last step is not done.
        assert_eq!(said(&job.on(ended(1, end), now)), ["member 1 has left; nobody continues"]);
        assert!(!job.is_running());
        assert_eq!(job.verdict(), Verdict::Interrupted(15));
    }
}

#[test]
fn a_complete_job_waits_for_its_members_and_replaces_nobody() {
    let (mut job, now) = job(1..=3, 3);
    job.on(epoch([0, 1]), now);
    assert_eq!(job.on(Event::Complete, now), []);
    // The coordinator has told the spare, which does not listen.
    let tell = |signal| [Action::Signal { members: vec![2], signal }];
    assert_eq!(job.on(Event::Tick, now + GRACE), tell(SIGTERM));
    assert_eq!(job.on(ended(1, KILLED), now + GRACE), []);
    assert_eq!(job.on(Event::Tick, now + 2 * GRACE), tell(SIGKILL));
    job.on(ended(2, KILLED), now + 2 * GRACE);
    assert!(job.is_running() && job.deadline().is_none());
    job.on(ended(0, FINE), now + 100 * GRACE);
    assert_eq!(job.verdict(), Verdict::Done);
}

#[test]
fn who_fails_after_the_last_step_fails_the_job() {
    for (member, end) in [(1, End::Code(2)), (0, KILLED)] {
        let (mut job, now) = job(1..=2, 3);
        job.on(epoch([0, 1]), now);
        job.on(Event::Complete, now);
        // No spare is left to be told.
        let later = now + 2 * GRACE;
        assert_eq!(job.on(Event::Tick, now + GRACE), []);
        assert_eq!(job.on(Event::Tick, later), []);
        job.on(ended(member, end), later);
        assert_eq!(job.on(Event::Tick, later + GRACE), to([1 - member], SIGTERM));
        job.on(ended(1 - member, FINE), later + GRACE);
        assert_eq!(job.verdict(), Verdict::Failed { member, end });
    }
}

#[test]
fn members_that_never_form_an_epoch_are_waited_for() {
    let (mut job, now) = job(1..=2, 3);
    assert_eq!(job.on(ended(1, FINE), now), []);
    assert!(job.is_running() && job.deadline().is_none());
    // The job is done without it.
    assert_eq!(job.on(ended(0, KILLED), now), []);
    assert_eq!(job.verdict(), Verdict::Done);
}

#[test]
fn members_that_form_an_epoch_after_all_decide_how_the_job_ends() {
    let (mut job, now) = job(1..=2, 0);
    job.on(ended(1, FINE), now);
    job.on(epoch([0]), now);
    job.on(ended(0, KILLED), now);
    assert_eq!(job.verdict(), Verdict::Failed { member: 0, end: KILLED });
}

#[test]
fn a_member_that_leaves_too_few_behind_ends_the_job() {
    let (mut job, now) = job(2..=2, 9);
    job.on(epoch([0, 1]), now);
    assert!(job.on(ended(0, FINE), now).contains(&Action::Dismiss));
    job.on(ended(1, FINE), now);
    assert_eq!(job.verdict(), Verdict::TooFew { have: 1, min: 2, cause: None });
}

#[test]
fn fewer_than_the_least_do_not_wait_for_nobody() {
    let (mut job, now) = job(2..=3, 0);
    job.on(epoch([0, 1, 2]), now);
    job.on(ended(2, KILLED), now);
    job.on(epoch([0, 1]), now);
    let actions = job.on(ended(0, End::Code(2)), now);
    let told = Action::Signal { members: vec![1], signal: SIGTERM };
    assert_eq!(actions[2..], [Action::Dismiss, told]);
    let line = overdue(&mut job, [1], now + LEAVING);
    let expected = "warning: killing member 1, which did not end within 60 s: a last checkpoint may be missing";
    assert_eq!(line, expected);
    job.on(ended(1, KILLED), now);
    let cause = Some((0, End::Code(2)));
    assert_eq!(job.verdict(), Verdict::TooFew { have: 1, min: 2, cause });
}

#[test]
fn where_others_have_come_more_may_come() {
    let (mut job, now) = job(2..=3, 0);
    job.on(shared_epoch([0, 1], 1), now);
    job.on(ended(2, KILLED), now);
    let actions = job.on(ended(0, KILLED), now);
    assert_eq!(said(&actions), ["member 0 was killed by signal 9 (SIGKILL); 1 continues"]);
    assert_eq!(actions.len(), 2);
    assert!(job.deadline().is_none());
}

#[test]
fn a_replacement_on_its_way_counts() {
    let (mut job, now) = job(2..=2, 2);
    job.on(ended(0, KILLED), now);
    let actions = job.on(ended(1, KILLED), now);
    assert!(!actions.contains(&Action::Dismiss), "{actions:?}");
    assert_eq!(job.deadline(), Some(now + BACKOFF));
}

#[test]
fn a_larger_job_gets_what_is_missing() {
    let (mut job, now) = job(1..=4, 0);
    job.on(ended(3, KILLED), now);
    assert_eq!(job.on(Event::Resized { target: 2 }, now), []);
    job.on(epoch([0, 1, 2]), now);
    job.on(ended(2, FINE), now);
    let actions = job.on(Event::Resized { target: 4 }, now);
    assert_eq!(starts(&actions), [4, 5]);
    assert_eq!(said(&actions), ["the job is to have 4 ranks: 2 more are started"]);
    job.on(shared_epoch([0, 1, 4], 1), now);
    assert_eq!(starts(&job.on(Event::Resized { target: 4 }, now)), NONE);
}

#[test]
fn a_smaller_job_replaces_nobody() {
    let (mut job, now) = job(1..=3, 9);
    job.on(Event::Resized { target: 2 }, now);
    assert_eq!(starts(&job.on(ended(0, KILLED), now)), NONE);
    assert_eq!(starts(&job.on(ended(1, KILLED), now)), [3]);
}

#[test]
fn a_signal_lets_all_leave_and_a_second_one_kills() {
    let (mut job, now) = job(1..=2, 5);
    let forward = Action::Signal { members: vec![0, 1], signal: 2 };
    assert_eq!(job.on(Event::Signal(2), now), [Action::Dismiss, forward, LEAVE]);
    // One that has nothing to save is soon gone, and the others have their time.
    assert_eq!(job.on(ended(0, KILLED), now), []);
    assert_eq!(job.deadline(), Some(now + LEAVING));
    let kill = Action::Signal { members: vec![1], signal: SIGKILL };
    assert_eq!(job.on(Event::Signal(2), now), [Action::Say(Notice::Killed), kill]);
    job.on(ended(1, KILLED), now);
    assert_eq!(job.verdict(), Verdict::Interrupted(2));
}

#[test]
fn members_with_servers_leave_one_by_one_and_soon() {
    let now = Instant::now();
    let (mut job, _) = Supervisor::begin(limits(2..=2, 0, Shutdown::Terminate), now);
    job.on(epoch([0, 1]), now);
    let told = Action::Signal { members: vec![0, 1], signal: SIGTERM };
    assert_eq!(job.on(Event::Signal(2), now), [told, LEAVE]);
    assert_eq!(job.deadline(), Some(now + LAST_PUSH));
}

#[test]
fn members_that_write_a_checkpoint_get_no_second_signal() {
    let limits = limits(2..=2, 0, Shutdown::Leave);
    let now = Instant::now();
    let (mut job, _) = Supervisor::begin(limits.clone(), now);
    job.on(epoch([0, 1]), now);
    assert_eq!(job.on(Event::Signal(SIGTERM), now), [Action::Dismiss, LEAVE]);
    job.on(ended(1, FINE), now);
    job.on(ended(0, FINE), now);
    assert_eq!(job.verdict(), Verdict::Interrupted(SIGTERM));
    let (mut job, _) = Supervisor::begin(limits.clone(), now);
    job.on(epoch([0, 1]), now);
    let actions = job.on(ended(1, KILLED), now);
    assert_eq!(actions.last(), Some(&Action::Dismiss));
}

#[test]
fn a_signal_at_which_all_members_stop_interrupts_the_job() {
    let (mut job, now) = job(1..=3, 5);
    job.on(epoch([0, 1]), now);
    job.on(Event::Complete, now);
    job.on(ended(2, End::Code(143)), now);
    assert_eq!(job.verdict(), Verdict::Done);
    job.on(ended(1, End::Code(130)), now);
    job.on(ended(0, End::Code(130)), now);
    assert_eq!(job.verdict(), Verdict::Interrupted(2));
}

#[test]
fn after_a_signal_patience_ends() {
    let (mut job, now) = job(1..=1, 5);
    job.on(Event::Signal(15), now);
    let later = now + LEAVING;
    assert_eq!(job.on(Event::Tick, later - GRACE), []);
    assert!(
        overdue(&mut job, [0], later).contains("killing member 0, which did not end within 60 s")
    );
}

#[test]
fn a_signal_to_launcher_and_members_interrupts_in_any_order() {
    let (mut job, now) = job(2..=2, 5);
    job.on(ended(0, End::Code(143)), now);
    let forward = Action::Signal { members: vec![1], signal: 15 };
    assert_eq!(job.on(Event::Signal(15), now), [Action::Dismiss, forward, LEAVE]);
    job.on(ended(1, End::Code(143)), now);
    assert_eq!(job.verdict(), Verdict::Interrupted(15));
}

#[test]
fn a_reader_that_has_enough_ends_the_job() {
    let (mut job, now) = job(1..=2, 5);
    assert_eq!(job.on(Event::Unread, now), to([0, 1], SIGKILL));
    job.on(ended(0, KILLED), now);
    job.on(ended(1, KILLED), now);
    assert_eq!(job.verdict(), Verdict::Interrupted(SIGPIPE));
}

/// Returns one of several launchers of a job of 2 to 4 ranks, which starts two of them.
fn shared(shutdown: Shutdown) -> (Supervisor, Instant) {
    let limits = Limits { here: 2, others: Others::May, ..limits(2..=4, 0, shutdown) };
    let now = Instant::now();
    let (job, actions) = Supervisor::begin(limits.clone(), now);
    assert_eq!(starts(&actions), [0, 1]);
    (job, now)
}

#[test]
fn one_of_several_launchers_waits_for_members_of_others() {
    let (mut job, now) = shared(Shutdown::Leave);
    job.on(epoch([0, 1]), now);
    let actions = job.on(ended(0, KILLED), now);
    assert!(!actions.contains(&Action::Dismiss), "{actions:?}");
    assert!(job.is_running() && job.deadline().is_none());
}

#[test]
fn one_of_several_launchers_starts_no_more_than_its_share() {
    let (mut job, now) = shared(Shutdown::Leave);
    job.on(shared_epoch([0, 1], 1), now);
    assert_eq!(starts(&job.on(Event::Resized { target: 4 }, now)), NONE);
    job.on(ended(1, End::Code(0)), now);
    assert_eq!(starts(&job.on(Event::Resized { target: 2 }, now)), NONE);
    assert_eq!(starts(&job.on(Event::Resized { target: 3 }, now)), [2]);
}

#[test]
fn one_of_several_launchers_goes_alone_when_it_is_told_to_end() {
    for (shutdown, signal) in
        [(Shutdown::Leave, SIGTERM), (Shutdown::Leave, SIGINT), (Shutdown::Signal, SIGINT)]
    {
        let (mut job, now) = shared(shutdown);
        job.on(epoch([0, 1]), now);
        let leave = Action::Signal { members: vec![0, 1], signal: SIGTERM };
        assert_eq!(job.on(Event::Signal(signal), now), [leave, LEAVE]);
    }
}

/// Returns a job of ranks that cannot do without each other.
fn fixed(ranks: u32) -> (Supervisor, Instant) {
    let now = Instant::now();
    let (job, actions) = Supervisor::begin(Limits::fixed(ranks), now);
    assert_eq!(starts(&actions), (0..ranks).collect::<Vec<u32>>());
    (job, now)
}

#[test]
fn a_fixed_job_is_done_when_every_rank_is() {
    let (mut job, now) = fixed(2);
    assert_eq!(job.on(ended(1, FINE), now), []);
    assert!(job.is_running() && job.deadline().is_none());
    job.on(ended(0, FINE), now);
    assert!(!job.is_running());
    assert_eq!(job.verdict(), Verdict::Done);
}

#[test]
fn who_fails_after_others_are_done_fails_a_fixed_job() {
    for end in [KILLED, End::Code(3), End::Signal(SIGTERM)] {
        let (mut job, now) = fixed(2);
        job.on(ended(0, FINE), now);
        assert_eq!(job.on(ended(1, end), now), []);
        assert!(!job.is_running());
        assert_eq!(job.verdict(), Verdict::Failed { member: 1, end });
    }
}

#[test]
fn survivors_have_a_grace_and_the_first_failure_counts() {
    let (mut job, now) = fixed(3);
    job.on(ended(1, KILLED), now);
    assert_eq!(job.on(Event::Tick, now + GRACE / 2), []);
    job.on(ended(0, End::Code(2)), now);
    let later = now + GRACE;
    assert_eq!(job.on(Event::Tick, later), to([2], SIGTERM));
    assert_eq!(job.on(Event::Tick, later), []);
    assert_eq!(job.on(Event::Tick, later + LAST_WORDS), to([2], SIGKILL));
    job.on(ended(2, KILLED), later);
    assert_eq!(job.verdict(), Verdict::Failed { member: 1, end: KILLED });
}

#[test]
fn who_was_killed_failed_first() {
    let (mut job, now) = fixed(3);
    job.on(ended(0, End::Code(2)), now);
    job.on(ended(1, KILLED), now);
    assert_eq!(job.verdict(), Verdict::Failed { member: 1, end: KILLED });
    job.on(Event::Tick, now + GRACE);
    job.on(ended(2, End::Signal(SIGTERM)), now);
    assert_eq!(job.verdict(), Verdict::Failed { member: 1, end: KILLED });
}

#[test]
fn who_is_stopped_is_the_cause_and_not_waited_for() {
    let (mut job, now) = fixed(3);
    job.on(ended(0, End::Code(2)), now);
    assert_eq!(job.on(Event::Stopped { member: 2 }, now), []);
    assert_eq!(job.on(Event::Tick, now), []);
    assert_eq!(job.on(ended(1, End::Code(2)), now), to([2], SIGKILL));
    job.on(ended(2, KILLED), now);
    assert!(!job.is_running());
    assert_eq!(job.verdict(), Verdict::Failed { member: 2, end: End::Stopped });
}

#[test]
fn a_signal_goes_to_fixed_ranks_and_a_second_one_kills() {
    let (mut job, now) = fixed(2);
    assert_eq!(job.on(Event::Signal(SIGINT), now), to([0, 1], SIGINT));
    job.on(ended(0, End::Code(130)), now);
    assert_eq!(job.on(Event::Signal(SIGINT), now), to([1], SIGKILL));
    job.on(ended(1, KILLED), now);
    assert_eq!(job.verdict(), Verdict::Interrupted(SIGINT));
}

#[test]
fn a_signal_after_a_failure_reaches_the_rest_and_the_failure_counts() {
    let (mut job, now) = fixed(2);
    job.on(ended(1, End::Code(3)), now);
    assert_eq!(job.on(Event::Signal(SIGINT), now), to([0], SIGINT));
    assert_eq!(job.deadline(), Some(now + GRACE));
    job.on(ended(0, End::Code(130)), now);
    assert_eq!(job.verdict(), Verdict::Failed { member: 1, end: End::Code(3) });
}

#[test]
fn a_reader_that_has_enough_of_rank_0_ends_a_fixed_job() {
    let (mut job, now) = fixed(2);
    assert_eq!(job.on(ended(0, End::Signal(SIGPIPE)), now), to([1], SIGKILL));
    job.on(ended(1, KILLED), now);
    assert_eq!(job.verdict(), Verdict::Interrupted(SIGPIPE));
}

#[test]
fn a_signal_to_one_rank_stops_the_job_as_one_to_the_launcher_does() {
    let (mut job, now) = fixed(2);
    job.on(ended(1, End::Code(130)), now);
    job.on(ended(0, End::Code(130)), now);
    assert!(!job.is_running());
    assert_eq!(job.verdict(), Verdict::Interrupted(SIGINT));
}

#[test]
fn after_a_signal_to_fixed_ranks_patience_ends() {
    let (mut job, now) = fixed(1);
    job.on(Event::Signal(SIGTERM), now);
    let later = now + PATIENCE;
    assert_eq!(job.on(Event::Tick, later - GRACE / 2), []);
    assert!(
        overdue(&mut job, [0], later).contains("killing rank 0, which did not end within 14 s")
    );
}

#[test]
fn after_a_signal_and_an_end_the_rest_have_a_grace() {
    let (mut job, now) = fixed(4);
    job.on(Event::Signal(SIGINT), now - GRACE / 2);
    job.on(ended(1, End::Code(130)), now);
    job.on(ended(2, End::Code(130)), now + GRACE / 2);
    let line = overdue(&mut job, [0, 3], now + GRACE);
    assert!(line.contains("killing rank 0, rank 3, which did not end within 6 s"), "{line}");
}

/// Processes of a job that end when they are told to, or not before they are killed.
struct World {
    job: Supervisor,
    now: Instant,
    live: BTreeSet<u32>,
    dying: BTreeSet<u32>,
    started: u32,
}

impl World {
    fn begin(limits: Limits) -> World {
        let now = Instant::now();
        let (job, starts) = Supervisor::begin(limits, now);
        let (live, dying) = (BTreeSet::new(), BTreeSet::new());
        let mut world = World { job, now, live, dying, started: 0 };
        world.act(starts);
        world
    }

    fn on(&mut self, event: Event) {
        let actions = self.job.on(event, self.now);
        self.act(actions);
    }

    fn act(&mut self, actions: Vec<Action>) {
        for action in actions {
            match action {
                Action::Start { member } => {
                    assert_eq!(member, self.started, "members are numbered in their order");
                    self.started += 1;
                    self.live.insert(member);
                }
                Action::Signal { members, signal } => {
                    let is_live = |member| self.live.contains(member);
                    assert!(!members.is_empty() && members.iter().all(is_live), "{members:?}");
                    self.dying.extend(members.into_iter().filter(|_| signal == SIGKILL));
                }
                Action::Say(Notice::Overdue { members, .. }) => {
                    assert!(members.iter().all(|member| self.live.contains(member)));
                }
                Action::Lost { member } => assert!(!self.live.contains(&member)),
                Action::Dismiss | Action::Say(_) => {}
            }
        }
    }

    /// Returns whether the job ends, whatever happens. An epoch that was late may still start after the last
    /// step.
    fn is_final(&self) -> bool {
        self.job.is_over() && self.job.verdict() != Verdict::Done
    }

    fn end(&mut self, member: u32, end: End) {
        self.live.remove(&member);
        self.dying.remove(&member);
        self.on(Event::Ended { member, end });
    }

    fn end_the_dying(&mut self) {
        while let Some(member) = self.dying.first().copied() {
            self.end(member, KILLED);
        }
    }

    /// Lets time pass until the job sets no further deadline.
    fn wait(&mut self) {
        self.end_the_dying();
        while let Some(deadline) = self.job.deadline().filter(|_| self.job.is_running()) {
            self.now = self.now.max(deadline);
            self.on(Event::Tick);
            self.end_the_dying();
        }
    }

    /// Returns a living member by its number among them; 0 if none lives.
    fn any(&self, number: usize) -> u32 {
        self.live.iter().nth(number % self.live.len().max(1)).copied().unwrap_or_default()
    }

    fn step(&mut self, kind: u32, number: usize) {
        let member = self.any(number);
        let is_live = self.live.contains(&member);
        let ends = [FINE, FINE, KILLED, End::Code(2), End::Code(130), End::Code(143)];
        let ends = [&ends[..], &[End::Signal(SIGTERM), End::Signal(SIGPIPE)]].concat();
        match kind {
            0..3 if is_live => self.end(member, ends[number % ends.len()]),
            6 => self.on(Event::Complete),
            7 | 8 => {
                // The coordinator may not know yet that some have ended.
                let members = (0..self.started).filter(|it| number >> it & 1 == 1).collect();
                let (first, others) = (self.live.first().copied(), (number % 5 / 4) as u32);
                self.on(Event::Epoch(Epoch { members, first, others }));
            }
            9 => self.on(Event::Resized { target: number as u32 % 6 }),
            10 => self.on(Event::Signal([SIGINT, SIGTERM][number % 2])),
            11 => self.on(Event::Stopped { member }),
            3 | 4 | 12 | 13 => {
                self.now += Duration::from_millis(number as u64 * 10);
                self.on(Event::Tick);
            }
            14 => self.end_the_dying(),
            15 if number.is_multiple_of(8) => self.on(Event::Unread),
            _ => {}
        }
    }
}

fn any_limits() -> impl Strategy<Value = Limits> {
    use Shutdown::{Forward, Leave, Signal, Terminate};
    let shutdown = prop::sample::select(vec![Forward, Signal, Leave, Terminate]);
    let others = prop::sample::select(vec![Others::Shown, Others::May]);
    let elastic = (1..3_u32, 0..3_u32, 0..4_u32, shutdown, others);
    let elastic = elastic.prop_map(|(min, more, restarts, shutdown, others)| Limits {
        others,
        ..limits(min..=min + more, restarts, shutdown)
    });
    prop_oneof![(1..5_u32).prop_map(Limits::fixed), elastic]
}

proptest! {
    #[test]
    fn every_job_ends_and_nothing_runs_afterwards(
        limits in any_limits(),
        steps in prop::collection::vec((0..16_u32, 0..1000_usize), 0..60),
    ) {
        let is_fixed = limits.loss == Loss::Fatal;
        let mut world = World::begin(limits);
        for (kind, number) in steps {
            // Nobody coordinates a fixed job, and its ranks write to the launcher's own output.
            if is_fixed && [6, 7, 8, 9, 15].contains(&kind) {
                continue;
            }
            let final_before = world.is_final();
            let started = world.started;
            world.step(kind, number);
            prop_assert!(!final_before || world.started == started);
            prop_assert!(world.job.is_running() || world.live.is_empty());
        }
        // Members that hang do not outlive a failure, or else a signal to the launcher.
        let interrupted = matches!(world.job.verdict(), Verdict::Interrupted(_));
        if !world.is_final() || (interrupted && !is_fixed) {
            world.on(Event::Signal(SIGTERM));
        }
        let told = world.now;
        world.wait();
        prop_assert!(world.now <= told + LEAVING + LAST_WORDS);
        prop_assert!(world.live.is_empty() && !world.job.is_running());
        let verdict = world.job.verdict();
        for event in [Event::Tick, Event::Resized { target: 9 }, Event::Stopped { member: 0 }] {
            prop_assert_eq!(world.job.on(event, world.now + LEAVING), []);
        }
        prop_assert_eq!(world.job.on(ended(0, KILLED), world.now), []);
        prop_assert_eq!(world.job.verdict(), verdict);
    }
}

//! Made-up traces, played through the watch as the synchroniser does it.

use proptest::prelude::*;
use thinwire_wire::random::Key;

use super::*;

const RAW: u32 = 0;
const FAST: f64 = 125e6;

/// Seconds that a plan's bytes take; plan p sends raw / 2ᵖ and computes a little for it.
fn wire_s(plan: u32, bytes_per_s: f64) -> f64 {
    4e6 / f64::from(1 << plan) / bytes_per_s
}

fn exchange_s(plan: u32, bytes_per_s: f64) -> f64 {
    wire_s(plan, bytes_per_s) + 0.012 * f64::from(plan)
}

/// The plan that is best for a link, by the prediction.
fn best(bytes_per_s: f64) -> u32 {
    (0..4)
        .min_by(|a, b| exchange_s(*a, bytes_per_s).total_cmp(&exchange_s(*b, bytes_per_s)))
        .unwrap()
}

/// An event after a step.
#[derive(Debug, PartialEq)]
enum Event {
    Probe,
    Switch(u32),
}

/// A job under a link that changes as `link` says, with times that scatter by `noise`; `truth` is what
/// exchanges take over what is predicted of them.
struct Job<L, T> {
    link: L,
    truth: T,
    noise: f64,
    seed: u64,
}

impl<L: Fn(u64) -> f64, T: Fn(u32) -> f64> Job<L, T> {
    fn play(&self, steps: u64) -> Vec<(u64, Event)> {
        let key = Key { seed: self.seed, step: 0, tensor: 0 };
        let scatter = |draw: u64| 1.0 + self.noise * (2.0 * f64::from(key.uniform(draw)) - 1.0);
        let mut believed = (self.link)(0);
        let (mut plan, mut previous) = (best(believed), RAW);
        let raw_s = |believed: f64| 0.05 + exchange_s(RAW, believed);
        let mut watch = Watch::new(plan, plan == RAW);
        watch.expect_of_raw(raw_s(believed));
        let (mut waiting, mut events) = (Vec::new(), Vec::new());
        for step in 0..steps {
            let link = (self.link)(step);
            let truth = (self.truth)(plan);
            let wire = wire_s(plan, link) * truth * scatter(2 * step);
            let exchange = wire + (exchange_s(plan, link) - wire_s(plan, link)) * truth;
            let seconds = 0.05 * scatter(2 * step + 1) + exchange;
            waiting.push(Reading { seconds, drift: Some(wire / wire_s(plan, believed)) });
            if (step + 1) % INTERVAL != 0 {
                continue;
            }
            let verdict = waiting.drain(..).map(|reading| watch.record(reading));
            let verdict = verdict
                .fold(Verdict::Stay, |all, one| if all == Verdict::Stay { one } else { all });
            let next = match verdict {
                Verdict::Stay => continue,
                Verdict::RollBack => previous,
                Verdict::Raw => RAW,
                Verdict::Probe { .. } => {
                    events.push((step, Event::Probe));
                    let changed = (link / believed - 1.0).abs() > 0.15;
                    watch.measured(changed);
                    if !changed {
                        continue;
                    }
                    believed = link;
                    best(link)
                }
            };
            if next != plan {
                (previous, plan) = (plan, next);
                events.push((step, Event::Switch(plan)));
                watch.switched(plan, plan == RAW);
                watch.expect_of_raw(raw_s(believed));
            }
        }
        events
    }
}

fn switches(events: &[(u64, Event)]) -> Vec<(u64, u32)> {
    let switch = |(step, event): &(u64, Event)| match event {
        Event::Switch(plan) => Some((*step, *plan)),
        Event::Probe => None,
    };
    events.iter().filter_map(switch).collect()
}

proptest! {
    #[test]
    fn a_cut_link_is_answered_and_so_is_its_recovery(
        cut in 20_u64..60, lasts in 30_u64..80, noise in 0.0..0.2, seed in any::<u64>(),
    ) {
        let recovery = cut + lasts;
        let link = |step| if (cut..recovery).contains(&step) { FAST / 4.0 } else { FAST };
        let events = Job { link, truth: |_| 1.0, noise, seed }.play(recovery + 40);
        let found = switches(&events);
        prop_assert_eq!(found.len(), 2, "{:?}", &events);
        prop_assert!((cut..cut + 20).contains(&found[0].0) && found[0].1 == best(FAST / 4.0));
        prop_assert!((recovery..recovery + 20).contains(&found[1].0) && found[1].1 == best(FAST));
    }

    #[test]
    fn noise_alone_switches_nothing(noise in 0.0..0.22, seed in any::<u64>()) {
        let events = Job { link: |_| FAST, truth: |_| 1.0, noise, seed }.play(400);
        prop_assert_eq!(events, vec![]);
    }

    #[test]
    fn a_prediction_that_is_off_is_asked_about_but_once(
        off in prop_oneof![0.3..0.6, 1.6..3.0], noise in 0.0..0.1, seed in any::<u64>(),
    ) {
        // Raw is off by as much, so that there is nothing to be won by it.
        let events = Job { link: |_| FAST / 10.0, truth: |_| off, noise, seed }.play(400);
        let probes = events.iter().filter(|(_, event)| *event == Event::Probe).count();
        prop_assert!((1..=3).contains(&probes), "{:?}", &events);
        let last = switches(&events).last().map_or(best(FAST / 10.0), |(_, plan)| *plan);
        prop_assert_eq!(last, best(FAST / 10.0), "{:?}", &events);
    }

    #[test]
    fn wild_noise_probes_ever_less_often(seed in any::<u64>()) {
        let events = Job { link: |_| FAST, truth: |_| 1.0, noise: 0.9, seed }.play(2000);
        let probes = events.iter().filter(|(_, event)| *event == Event::Probe).count();
        prop_assert!(probes <= 30, "{probes} probes");
    }
}

#[test]
fn a_link_of_which_a_plan_tells_nothing_is_measured_now_and_then() {
    let silent = |is_raw: bool, seconds: f64| {
        let mut watch = Watch::new(1, is_raw);
        let probes = (0..400).filter(|_| {
            let verdict = watch.record(Reading { seconds, drift: None });
            if matches!(verdict, Verdict::Probe { .. }) {
                watch.measured(false);
            }
            verdict != Verdict::Stay
        });
        probes.count() as u64
    };
    assert_eq!(silent(false, 1.0), 398 / SILENCE_STEPS);
    assert_eq!(silent(false, 0.1), 398 / 100);
    assert_eq!(silent(true, 1.0), 0);
}

#[test]
fn a_plan_slower_than_raw_gives_way_and_stays_away() {
    // Encoding takes ten times as long as thought.
    let truth = |plan| if plan == RAW { 1.0 } else { 10.0 };
    let events = Job { link: |_| FAST / 4.0, truth, noise: 0.05, seed: 1 }.play(300);
    assert_eq!(switches(&events).len(), 1, "{events:?}");
    assert_eq!(switches(&events)[0].1, RAW);
}

#[test]
fn raw_that_is_slower_still_is_rolled_back_for_good() {
    let truth = |plan| if plan == RAW { 40.0 } else { 10.0 };
    let events = Job { link: |_| FAST / 4.0, truth, noise: 0.05, seed: 1 }.play(300);
    let plans: Vec<u32> = switches(&events).into_iter().map(|(_, plan)| plan).collect();
    assert_eq!(plans, [RAW, best(FAST / 4.0)], "{events:?}");
}

#[test]
fn a_slower_plan_is_rolled_back_and_remembered() {
    let mut watch = Watch::new(1, false);
    let steady = |watch: &mut Watch, seconds: f64| {
        (0..2 * WINDOW)
            .map(|_| watch.record(Reading { seconds, drift: None }))
            .find(|v| *v != Verdict::Stay)
    };
    assert_eq!(steady(&mut watch, 1.0), None);
    watch.switched(2, false);
    assert_eq!(steady(&mut watch, 1.2), Some(Verdict::RollBack));
    watch.switched(1, false);
    assert!(watch.has_dropped(2) && !watch.has_dropped(1));
    assert_eq!(steady(&mut watch, 1.3), None, "a known plan is on no trial");
    watch.measured(true);
    assert!(!watch.has_dropped(2), "under another link everything is open again");
}

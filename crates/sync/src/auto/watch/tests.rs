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
    /// Whether three plans take turns, as in a trial.
    takes_turns: bool,
    seed: u64,
}

impl<L: Fn(u64) -> f64, T: Fn(u32) -> f64> Job<L, T> {
    fn play(&self, steps: u64) -> Vec<(u64, Event)> {
        let key = Key { seed: self.seed, step: 0, tensor: 0 };
        let scatter = |draw: u64| 1.0 + self.noise * (2.0 * f64::from(key.uniform(draw)) - 1.0);
        let mut believed = (self.link)(0);
        let mut plan = best(believed);
        let mut watch = Watch::new(InForce { hash: plan, is_raw: plan == RAW });
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
            let slowdowns: Vec<_> =
                waiting.drain(..).filter_map(|reading| watch.record(reading)).collect();
            let next = match self.takes_turns {
                true => (plan + 1) % 3,
                false => plan,
            };
            let next = match slowdowns.is_empty() {
                true => next,
                false => {
                    events.push((step, Event::Probe));
                    let changed = (link / believed - 1.0).abs() > 0.15;
                    if changed {
                        watch.found_other_link();
                        believed = link;
                    } else {
                        watch.found_same_link();
                    }
                    if changed && !self.takes_turns { best(link) } else { next }
                }
            };
            if next != plan {
                plan = next;
                events.push((step, Event::Switch(plan)));
                watch.switched(InForce { hash: plan, is_raw: plan == RAW });
                if !self.takes_turns {
                    watch.settled();
                }
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
        let events = Job { link, truth: |_| 1.0, noise, takes_turns: false, seed }.play(recovery + 40);
        let found = switches(&events);
        prop_assert_eq!(found.len(), 2, "{:?}", &events);
        prop_assert!((cut..cut + 20).contains(&found[0].0) && found[0].1 == best(FAST / 4.0));
        prop_assert!((recovery..recovery + 20).contains(&found[1].0) && found[1].1 == best(FAST));
    }

    #[test]
    fn a_cut_link_is_noticed_while_plans_take_turns(
        cut in 20_u64..60, noise in 0.0..0.2, seed in any::<u64>(),
    ) {
        let link = |step| if step < cut { FAST } else { FAST / 4.0 };
        let events = Job { link, truth: |_| 1.0, noise, takes_turns: true, seed }.play(cut + 40);
        let probes: Vec<u64> = events
            .iter()
            .filter_map(|(step, event)| (*event == Event::Probe).then_some(*step))
            .collect();
        prop_assert!(probes.first().is_some_and(|step| (cut..cut + 20).contains(step)), "{:?}", events);
        prop_assert!(probes.len() <= 2, "{:?}", events);
    }

    #[test]
    fn noise_alone_switches_nothing(noise in 0.0..0.22, seed in any::<u64>()) {
        let events = Job { link: |_| FAST, truth: |_| 1.0, noise, takes_turns: false, seed }.play(400);
        prop_assert_eq!(events, vec![]);
    }

    #[test]
    fn a_prediction_that_is_off_is_asked_about_but_once(
        off in prop_oneof![0.3..0.6, 1.6..3.0], noise in 0.0..0.1, seed in any::<u64>(),
    ) {
        let events = Job { link: |_| FAST / 10.0, truth: |_| off, noise, takes_turns: false, seed }.play(400);
        let probes = events.iter().filter(|(_, event)| *event == Event::Probe).count();
        prop_assert!((1..=3).contains(&probes), "{:?}", &events);
        let last = switches(&events).last().map_or(best(FAST / 10.0), |(_, plan)| *plan);
        prop_assert_eq!(last, best(FAST / 10.0), "{:?}", &events);
    }

    #[test]
    fn wild_noise_probes_ever_less_often(seed in any::<u64>()) {
        let events = Job { link: |_| FAST, truth: |_| 1.0, noise: 0.9, takes_turns: false, seed }.play(2000);
        let probes = events.iter().filter(|(_, event)| *event == Event::Probe).count();
        prop_assert!(probes <= 30, "{probes} probes");
    }
}

fn in_force(hash: u32) -> InForce {
    InForce { hash, is_raw: false }
}

#[test]
fn a_link_of_which_a_plan_tells_nothing_is_measured_now_and_then() {
    let silent = |is_raw: bool, seconds: f64| {
        let mut watch = Watch::new(InForce { hash: 1, is_raw });
        let probes = (0..400).filter(|_| {
            let probes = watch.record(Reading { seconds, drift: None }).is_some();
            if probes {
                watch.found_same_link();
            }
            probes
        });
        probes.count() as u64
    };
    assert_eq!(silent(false, 1.0), 398 / SILENCE_STEPS);
    assert_eq!(silent(false, 0.1), 398 / 80);
    assert_eq!(silent(true, 1.0), 0);
}

#[test]
fn a_plan_that_tells_something_now_and_then_is_silent_too() {
    let mut watch = Watch::new(in_force(1));
    let probe = (0..40).find(|step| {
        let drift = (step % 4 == 0).then_some(1.0);
        let probes = watch.record(Reading { seconds: 1.0, drift }).is_some();
        watch.switched(in_force(1 + u32::from(step % 8 < 4)));
        watch.settling = 0;
        probes
    });
    assert!(probe.is_some_and(|step| step < 3 * SILENCE_STEPS / 2), "{probe:?}");
}

#[test]
fn what_is_normal_is_known_plan_by_plan() {
    let seen = |watch: &mut Watch, drift: f64| {
        let reading = Reading { seconds: 1.0, drift: Some(drift) };
        (0..12).filter_map(|_| watch.record(reading)).next()
    };
    let mut watch = Watch::new(in_force(1));
    assert_eq!(seen(&mut watch, 1.5), Some(1.5));
    watch.found_same_link();
    assert_eq!(seen(&mut watch, 1.5), None);
    watch.switched(in_force(2));
    watch.settled();
    assert_eq!(seen(&mut watch, 1.5), Some(1.5));
    watch.switched(in_force(1));
    watch.settled();
    assert_eq!((seen(&mut watch, 1.5), seen(&mut watch, 3.0)), (None, Some(3.0)));
}

//! A job of two ranks in a simulated clock: every step takes what the timeline says of the plan in force
//! under the link as it is, with noise.

use thinwire_wire::random::Key;

use super::saved::Saved;
use super::*;
use crate::bucket::feedback::Memory;
use crate::exchange::route::Ranks;
use crate::options::Options;
use crate::{BucketRecord, Feedback, Parameter};

const CODECS: [&str; 4] = ["bf16", "int8", "ecsq:0.5", "ecsq:0.7"];
const BUCKETS: usize = 10;
const ELEMENTS: usize = 1 << 16;

/// The link as it was at first: raw gradients hide behind backward.
const FAST: f64 = 12.5e6;

/// Steps of a training in which the error budget no longer grows.
const SETTLED: u64 = WHOLE_BUDGET_STEPS + PLANNING_INTERVAL;

/// Steps within which a change is answered.
const ANSWERED: usize = 20;

fn link(bytes_per_s: f64) -> LinkSpeed {
    LinkSpeed {
        latency_s: 1e-4,
        bytes_per_s,
        fan_in: 1.0,
        cpu_s_per_byte: 1e-10,
        cpu_s_per_message: 1e-6,
        unequal: None,
        pairs: Vec::new(),
    }
}

/// A planner, and what it plans for.
struct Job {
    planner: Planner,
    plan: Plan,
    buckets: Vec<BucketState>,
    values: Vec<f32>,
    /// The candidates under the link as it is.
    truth: Candidates,
    noise: f64,
    key: Key,
    age: u64,
    /// Steps of the training.
    trained: u64,
}

impl Job {
    /// Returns a job of a training that has settled.
    fn new(noise: f64, seed: u64) -> Job {
        Job::after(SETTLED, noise, seed)
    }

    /// Returns a job that continues a training after so many steps of it.
    fn after(trained: u64, noise: f64, seed: u64) -> Job {
        let (world, overrides) = (World::new(0, 2).unwrap(), Overrides::default());
        let limits = Limits {
            overrides,
            error_budget: Options::default().error_budget,
            shares_cores: false,
        };
        let parameters = vec![Parameter::new("weight", &[ELEMENTS / 256, 256]); BUCKETS];
        let bucket = |index: usize| {
            let memory = Memory::new(Feedback::Classic);
            let bucket = Bucket::of_one(index, &parameters[index]);
            BucketState::new(bucket, &parameters, Ranks::all(world), memory, None)
        };
        let calibration = || Calibration::made_up(link(FAST), &CODECS);
        let key = Key { seed, step: 0, tensor: 0 };
        let mut planner = Planner::new(calibration(), world, limits);
        planner.lay_out(BUCKETS);
        planner.set_budget_after(trained);
        let buckets: Vec<BucketState> = (0..BUCKETS).map(bucket).collect();
        let plan = planner.propose(&buckets, &Plan::default(), String::new()).swap_remove(0);
        planner.switched(&plan);
        Job {
            planner,
            plan,
            buckets,
            values: (0..ELEMENTS as u64).map(|i| key.normal(i)).collect(),
            truth: Candidates::new(calibration(), world, overrides),
            noise,
            key,
            age: 0,
            trained,
        }
    }

    /// A job that continues from the state of this one.
    fn resumed(&self) -> Job {
        let text = serde_json::to_string(&self.planner.saved(7, self.age)).unwrap();
        let saved: Saved = serde_json::from_str(&text).unwrap();
        let mut job = Job::after(self.trained, self.noise, self.key.seed);
        job.truth.set_link(self.truth.calibration().link.clone());
        assert!(job.planner.takes(&saved));
        assert_eq!(job.planner.flaw(&saved, &self.plan), None);
        job.planner.resume(saved, &self.plan);
        (job.plan, job.age, job.trained) = (self.plan.clone(), self.age, self.trained);
        assert_eq!(serde_json::to_string(&job.planner.saved(7, self.age)).unwrap(), text);
        job
    }

    /// Takes so many steps, and returns the plan of each.
    fn plans_of(&mut self, steps: usize) -> Vec<u32> {
        let plans = (0..steps).map(|_| {
            self.step();
            self.plan.hash()
        });
        plans.collect()
    }

    /// Takes a step, as [`crate::Synchronizer`] does; whether it was planned anew for another link.
    fn step(&mut self) -> bool {
        let age = self.age;
        (self.age, self.trained) = (self.age + 1, self.trained + 1);
        let record = self.record();
        self.planner.record(&record, &self.plan);
        if !Planner::reports(age) {
            return false;
        }
        let is_due = Planner::is_due(age);
        let sampled: Vec<usize> = (0..if is_due { BUCKETS } else { 0 }).collect();
        sampled.iter().for_each(|bucket| self.planner.sample(*bucket, &self.values));
        let report = self.planner.report();
        let all = [report.clone(), report.clone()].concat();
        let slowdown = self.planner.absorb_reports(&all, report.len(), &sampled);
        let link = self.truth.calibration().link.clone();
        let changed = slowdown.is_some() && self.planner.learn(link);
        if changed || slowdown.is_none() && is_due && !self.planner.is_trying() {
            self.planner.permit_trial_after(self.trained);
            self.planner.set_budget_after(self.trained);
            let plans = self.planner.propose(&self.buckets, &self.plan, String::new());
            self.follow(plans[0].clone());
            self.planner.begin_trial(plans);
        }
        if let Some(plan) = self.planner.turn() {
            self.follow(plan);
        }
        changed
    }

    fn follow(&mut self, plan: Plan) {
        let before = std::mem::replace(&mut self.plan, plan).hash();
        if self.plan.hash() != before {
            self.planner.switched(&self.plan);
        }
    }

    /// The record of a step under the plan in force.
    fn record(&mut self) -> StepRecord {
        let measured = Measured {
            backward_s: 0.5,
            buckets: (1..=BUCKETS)
                .map(|i| Readiness { ready_s: 0.15 + 0.035 * i as f64 })
                .collect(),
            shares_cores: false,
        };
        let truth = &mut self.truth;
        let all: Vec<_> = self.buckets.iter().map(|it| truth.of_bucket(&it.bucket, None)).collect();
        let prices = choose::priced(&measured, &all, &self.plan).prices;
        let prediction = timeline::predict(&measured, &prices);
        let scatter = self.noise * f64::from(self.key.normal(u64::MAX - self.age));
        let buckets = prediction.spans.iter().zip(&prices).map(|((ready_s, done_s), price)| {
            let done_s = ready_s + (done_s - ready_s) * (1.0 + scatter).max(0.5);
            BucketRecord { ready_s: *ready_s, done_s, encode_s: price.cpu_s, ..Default::default() }
        });
        StepRecord {
            backward_s: measured.backward_s,
            wait_s: (prediction.seconds - measured.backward_s) * (1.0 + scatter).max(0.5),
            buckets: buckets.collect(),
            ..StepRecord::default()
        }
    }

    /// The link is another one now. Returns after how many steps it was planned for.
    fn change(&mut self, bytes_per_s: f64) -> Option<usize> {
        self.truth.set_link(link(bytes_per_s));
        (1..=ANSWERED).find(|_| self.step())
    }

    /// Takes so many steps, and returns the codec error of the plan in force after them.
    fn error_after(&mut self, steps: usize) -> f64 {
        (0..steps).for_each(|_| _ = self.step());
        self.plan.codec_error
    }
}

#[test]
fn errors_are_means_of_all_ranks_and_lengths_the_longest() {
    let mut job = Job::new(0.0, 0);
    let values = job.values.clone();
    let mut report = |values: &[f32]| {
        (0..BUCKETS).for_each(|bucket| job.planner.sample(bucket, values));
        job.planner.report()
    };
    let sparse: Vec<f32> = (0..ELEMENTS).map(|i| f32::from(u8::from(i % 64 == 0))).collect();
    let (dense, sparse) = (report(&values), report(&sparse));
    let sampled = Vec::from_iter(0..BUCKETS);
    job.planner.absorb_reports(&[&dense[..], &sparse].concat(), dense.len(), &sampled);
    let codecs = job.planner.candidates.calibration().codecs.len();
    let both = |first: usize| [dense[first], sparse[first]];
    for (bucket, found) in job.planner.errors.iter().enumerate() {
        let first = dense.len() - (BUCKETS - bucket) * 2 * codecs;
        for codec in 0..codecs {
            let (errors, lengths) = (both(first + codec), both(first + codecs + codec));
            assert_eq!(found[codec], (errors[0] + errors[1]) / 2.0);
            assert_eq!(found[codecs + codec], lengths[0].max(lengths[1]));
        }
    }
    // Both orders occur: zeros are short under entropy coding.
    assert!(dense[dense.len() - 1] > 2.0 * sparse[sparse.len() - 1]);
}

/// Ages after which ranks have told each other everything, before, in and after a trial.
const TOLD: [usize; 6] = [2, 17, 28, 60, 120, 301];

#[test]
fn a_job_that_goes_on_from_a_state_decides_as_one_that_was_not_stopped() {
    for (noise, ages) in [(0.05, TOLD.to_vec()), (0.0, (0..64).step_by(7).collect())] {
        for age in ages {
            let mut job = Job::after(if age % 2 == 0 { 0 } else { SETTLED }, noise, 3);
            job.plans_of(age);
            let mut resumed = job.resumed();
            assert_eq!(job.planner.is_trying(), resumed.planner.is_trying(), "{age}");
            assert_eq!(job.plans_of(320), resumed.plans_of(320), "{noise} {age}");
            assert_eq!(job.planner.trials.decided(), resumed.planner.trials.decided());
        }
    }
}

/// Until the end of a round, which times decide, plans take turns in the same steps.
#[test]
fn a_trial_goes_on_in_the_same_steps_though_some_were_not_told() {
    for age in 17..24 {
        let mut job = Job::new(0.05, 5);
        job.plans_of(age);
        let mut resumed = job.resumed();
        assert!(job.planner.is_trying());
        assert_eq!(job.plans_of(8), resumed.plans_of(8), "{age}");
    }
}

#[test]
fn measurements_of_another_link_are_not_taken_over() {
    let mut job = Job::new(0.0, 0);
    job.plans_of(40);
    for (times, takes) in [(0.25, false), (0.6, true), (1.0, true), (2.0, true), (4.0, false)] {
        let mut other = Job::new(0.0, 0);
        other.planner.candidates.set_link(link(times * FAST));
        let saved = job.planner.saved(0, 0).unwrap();
        assert_eq!(other.planner.takes(&saved), takes, "{times}");
    }
    // Time slices of busy cores, and another place.
    for (latency_s, takes) in [(0.005, true), (0.02, false)] {
        let mut other = Job::new(0.0, 0);
        other.planner.candidates.set_link(LinkSpeed { latency_s, ..link(FAST) });
        assert_eq!(other.planner.takes(&job.planner.saved(0, 0).unwrap()), takes, "{latency_s}");
    }
}

#[test]
fn a_trial_counts_while_the_link_is_about_as_fast() {
    let mut job = Job::new(0.05, 0);
    assert!(job.planner.trials.is_first());
    job.error_after(250);
    for (times, is_first) in [(0.6, false), (1.4, false), (0.4, false), (0.2, true)] {
        job.planner.trials.link_changed(times * FAST);
        assert_eq!(job.planner.trials.is_first(), is_first, "{times}");
    }
}

/// A trial that a changed link has ended without a verdict is none, and what is tried is said when it begins.
#[test]
fn trials_count_when_they_are_decided() {
    let mut job = Job::new(0.05, 0);
    let steps = |job: &mut Job, is_trying: bool| {
        (0..250).find(|_| {
            job.step();
            job.planner.is_trying() == is_trying
        })
    };
    let said = |job: &Job| job.planner.planning().cloned().unwrap();
    steps(&mut job, true).unwrap();
    let Planning { trials, trying, line, .. } = said(&job);
    assert!(trials == 0 && !trying.is_empty(), "{trials} {trying:?}");
    assert!(line.contains("; comparing it with "), "{line}");
    job.planner.trials.link_changed(FAST / 4.0);
    assert_eq!((job.planner.is_trying(), job.planner.trials.decided()), (false, 0));
    steps(&mut job, true).unwrap();
    assert!(said(&job).line.contains("; comparing it with "));
    steps(&mut job, false).unwrap();
    assert_eq!(job.planner.trials.decided(), 1);
    job.planner.conclude(&job.buckets, &job.plan, "a trial of plans has ended");
    let Planning { trials, trying, line, .. } = said(&job);
    assert!(trials == 1 && trying.is_empty() && line.ends_with("; 1 trial"), "{line}");
    assert!(job.planner.news().is_some() && job.planner.news().is_none());
    assert_eq!(said(&job).line, line);
}

#[test]
fn plans_keep_to_the_error_budget_which_grows_with_the_steps_of_a_training() {
    let mut job = Job::after(0, 0.05, 1);
    let slow = link(FAST / 16.0);
    job.truth.set_link(slow.clone());
    job.planner.learn(slow);
    // Errors are known from the second step on.
    job.plans_of(2);
    let mut errors = Vec::new();
    for _ in 0..SETTLED + 200 {
        job.step();
        // The plan has the sum over its buckets.
        let error = job.plan.codec_error / BUCKETS as f64;
        let budget = job.planner.limits.budget_after(job.trained);
        assert!(error <= budget, "{error} of {budget}");
        errors.push(error);
    }
    let whole = Options::default().error_budget;
    let [first, last] = [errors[60], errors[errors.len() - 1]];
    assert!(0.0 < first && first < 0.15 * whole && last > 0.3 * whole, "{first} {last}");
}

#[test]
fn plans_follow_a_link_that_is_cut_to_a_quarter_and_heals() {
    for seed in 0..4 {
        let mut job = Job::new(0.05, seed);
        let fast = job.error_after(250);
        let before = job.plan.hash();
        let cut = job.change(FAST / 4.0);
        let slow = job.plan.codec_error;
        assert!(cut.is_some() && job.plan.hash() != before && slow > 2.0 * fast, "{cut:?} {slow}");
        // Trials find nothing else.
        let slow = job.error_after(250);
        assert!(slow > 2.0 * fast, "{slow} {fast}");
        let healed = job.change(FAST);
        let again = job.plan.codec_error;
        assert!(healed.is_some() && again < 0.5 * slow, "{healed:?} {again} {slow}");
        assert!(job.error_after(250) < 0.5 * slow);
        println!("after {cut:?} and {healed:?} steps: error {fast}, {slow}, {again}");
    }
}

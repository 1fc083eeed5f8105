//! The trial of plans: a race that finds the fastest of a few by the times of real steps.
//!
//! The trial is a state machine without clock or network. It receives the time of every step on the
//! slowest rank, the same numbers on all ranks, and decides which plan the next step follows. So all
//! ranks run each step under the same plan and come to the same verdict without a message about it.
//!
//! The alternatives (*arms*: the plan in force, the proposal of the cost model, everything raw, the best
//! fixed codecs) take turns in *windows* of some steps, the first of which after a switch does not count. A
//! *round* is one window of each arm; rounds alternate in direction. Times are compared as logarithms,
//! relative to their round, so that what slows down a whole round counts against no arm, and by the means
//! of their middle halves, so that single outliers do not count either.
//!
//! - An arm never runs if its predicted time is more than twice the measured time of the first arm.
//! - Of the arms within two percent of the fastest, the one with the smallest codec error is ahead. An
//!   arm with a smaller error may therefore be two percent slower; one with a larger error must be two
//!   percent faster.
//! - After every round, arms are dropped that are slower than allowed by [`SURE`] standard errors, or,
//!   if their error is larger than that of the arm ahead, by [`LIKELY`]: successive elimination
//!   (Even-Dar, Mannor, Mansour, "Action Elimination and Stopping Conditions for the Multi-Armed
//!   Bandit", JMLR 2006). After the first round, an arm is dropped only if each of its steps was much
//!   slower.
//! - The trial ends when one arm is left; when its steps are used up, the arm that is ahead is kept.
//!
//! [`Allowance`] bounds the steps of trials: a first trial, then one step in a hundred, and some after the
//! link has changed or the error budget has grown.
//!
//! Laws: with noise of 20 percent and outliers, the arm that is kept is within two percent of the
//! fastest in 94 of 100 trials; raw is kept unless another arm is two percent faster; equal times lead
//! to the same arm.

use std::cmp::Ordering;

use serde::{Deserialize, Serialize};

use crate::measure::{median, midmean};

/// Steps of the windows of the first rounds, and of all later ones. They are whole reports: few steps at
/// first, so that hopeless arms take little time, then more, so that fewer of them are lost to settling.
const WINDOWS: [usize; 3] = [4, 4, 8];

/// Steps after a switch that do not count, since memory is touched for the first time.
const SETTLING: usize = 1;

/// The difference of logarithms up to which times are equal.
const TIE: f64 = 0.02;

/// Standard errors above which a difference is not noise: a good arm is lost in one round of forty, and the
/// arms that are left have more steps.
const SURE: f64 = 2.0;

/// Standard errors above which an arm with a larger codec error is not expected to catch up.
const LIKELY: f64 = 1.25;

/// Standard errors in favour of an arm without codec error, since the fastest of several is seldom as
/// fast as it seems. Their product is limited, since noise is no reason to keep an arm that seems
/// slower by more.
const DOUBT: f64 = 0.5;
const DOUBT_MAX: f64 = 0.0125;

/// The least standard deviation that is believed, of logarithms.
const NOISE_MIN: f64 = 0.005;

/// Factor on both numbers of standard errors after the second round: steps that follow each other are
/// disturbed alike, and noise is not known well yet.
const EARLY: f64 = 1.5;

/// Rounds from which on their own scatter is meaningful.
const ROUNDS_MIN: usize = 4;

/// Factor by which each step of a first window must be slower for the arm to be dropped at once.
const MUCH_WORSE: f64 = 1.25;

/// Factor by which an arm's prediction may exceed what the first arm takes.
const HOPELESS: f64 = 2.0;

/// The least number of steps that an arm takes part with: two windows.
pub(crate) const ARM_STEPS: usize = WINDOWS[0] + WINDOWS[1];

/// A plan that takes part in a trial.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Arm {
    /// The weighted error of the plan; 0 if nothing is lost.
    pub(crate) error: f64,
    /// The predicted time of a step, in seconds; 0 without a prediction.
    pub(crate) predicted_s: f64,
}

/// A trial, under way or decided. A state holds its arms and times, from which the trial is replayed.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(into = "Played", try_from = "Played")]
pub(crate) struct Trial {
    arms: Vec<Arm>,
    /// Windows of each arm, one per round: the logarithms of the times that count.
    windows: Vec<Vec<Vec<f64>>>,
    /// The arms that are left, in the order of this round.
    left: Vec<usize>,
    /// The place in `left` of the arm that runs.
    place: usize,
    /// The logarithms of the times in the window that is open.
    open: Vec<f64>,
    /// Number of times at the beginning of the window that do not count.
    settling: usize,
    /// The number of steps that may still follow.
    steps_left: usize,
    played: Played,
}

/// The arms of a trial, its most steps, and the times that were recorded, as they came.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Played {
    arms: Vec<Arm>,
    steps: usize,
    seconds: Vec<Vec<f64>>,
}

impl From<Trial> for Played {
    fn from(trial: Trial) -> Played {
        trial.played
    }
}

impl TryFrom<Played> for Trial {
    type Error = &'static str;

    fn try_from(played: Played) -> Result<Trial, &'static str> {
        if played.arms.is_empty() {
            return Err("a trial of nothing");
        }
        let mut trial = Trial::new(played.arms, played.steps);
        played.seconds.iter().for_each(|seconds| trial.record(seconds));
        Ok(trial)
    }
}

impl Trial {
    /// Returns a trial of some arms that ends after `steps` steps; the first arm is in force.
    ///
    /// # Panics
    /// If there are no arms.
    pub(crate) fn new(arms: Vec<Arm>, steps: usize) -> Trial {
        assert!(!arms.is_empty(), "a trial of nothing");
        Trial {
            windows: vec![Vec::new(); arms.len()],
            left: (0..arms.len()).collect(),
            played: Played { arms: arms.clone(), steps, seconds: Vec::new() },
            arms,
            place: 0,
            open: Vec::new(),
            settling: SETTLING,
            steps_left: steps,
        }
    }

    /// Returns the arm that runs; of a decided trial the one that is kept.
    pub(crate) fn arm(&self) -> usize {
        self.left[self.place]
    }

    /// Returns the number of arms.
    pub(crate) fn arms(&self) -> usize {
        self.arms.len()
    }

    /// Returns whether one arm is left.
    pub(crate) fn is_decided(&self) -> bool {
        self.left.len() == 1
    }

    /// Returns the midmean of the times of an arm's steps, in seconds; `None` for an arm that never
    /// ran.
    pub(crate) fn seconds(&self, arm: usize) -> Option<f64> {
        let mut times = self.windows[arm].concat();
        (!times.is_empty()).then(|| midmean(&mut times).exp())
    }

    /// Records the times of some steps, all under the arm that runs. Another one may run afterwards.
    pub(crate) fn record(&mut self, seconds: &[f64]) {
        if self.is_decided() {
            return;
        }
        self.played.seconds.push(seconds.to_vec());
        self.steps_left = self.steps_left.saturating_sub(seconds.len());
        self.open.extend(seconds.iter().map(|seconds| seconds.max(f64::MIN_POSITIVE).ln()));
        if self.open.len() >= self.window() {
            self.close_window();
        }
    }

    /// Returns the number of steps of a window of the arm that runs.
    fn window(&self) -> usize {
        let round = self.windows[self.arm()].len();
        WINDOWS[round.min(WINDOWS.len() - 1)]
    }

    fn close_window(&mut self) {
        let arm = self.arm();
        let counted = std::mem::take(&mut self.open).split_off(self.settling);
        self.windows[arm].push(counted);
        if self.windows.iter().flatten().count() == 1 {
            self.drop_by_prediction();
        }
        self.place += 1;
        if self.place == self.left.len() {
            self.end_round();
        }
        // The last arm of a round is the first of the next one, without a switch.
        self.settling = if self.arm() == arm { 0 } else { SETTLING };
    }

    /// Drops the arms that cannot be worth a step, by what the first arm takes.
    fn drop_by_prediction(&mut self) {
        let most_s = HOPELESS * self.seconds(0).unwrap_or(f64::MAX);
        let arms = &self.arms;
        self.left.retain(|arm| *arm == 0 || arms[*arm].predicted_s <= most_s);
    }

    fn end_round(&mut self) {
        let standings = Standings::of(self);
        let ahead = standings.ahead();
        let mut left = standings.hopeful();
        left.reverse();
        (self.left, self.place) = (left, 0);
        if self.steps_left < self.window() * self.left.len() {
            self.left = vec![ahead];
        }
    }
}

/// The arms that are left, after a round.
struct Standings {
    arms: Vec<Standing>,
    /// The standard deviation of a time, robustly.
    noise: f64,
}

/// The standing of an arm; times are logarithms, relative to their round.
#[derive(Debug)]
struct Standing {
    arm: usize,
    error: f64,
    time: f64,
    /// The number of steps that `time` is the midmean of.
    steps: usize,
    /// The least of all times in the first round.
    least: f64,
    /// The midmean of each round.
    rounds: Vec<f64>,
}

impl Standings {
    fn of(trial: &Trial) -> Standings {
        let rounds = trial.windows[trial.left[0]].len();
        // All arms that are left were in every round: their mean is what the round took.
        let middle = |arm: usize, round: usize| midmean(&mut trial.windows[arm][round].clone());
        let sum = |round| trial.left.iter().map(|arm| middle(*arm, round)).sum::<f64>();
        let levels: Vec<f64> =
            (0..rounds).map(|round| sum(round) / trial.left.len() as f64).collect();
        let standing = |arm: &usize| Standing::new(*arm, trial, &levels);
        let windows = trial.windows.iter().flatten();
        let mut changes: Vec<f64> = windows
            .flat_map(|times| times.windows(2).map(|pair| (pair[0] - pair[1]).abs()))
            .collect();
        // The median change between two normal numbers is 0.954 standard deviations.
        let noise = (median(&mut changes) / 0.954).max(NOISE_MIN);
        Standings { arms: trial.left.iter().map(standing).collect(), noise }
    }

    fn fastest(&self) -> &Standing {
        let fastest = self.arms.iter().min_by(|a, b| a.time.total_cmp(&b.time));
        fastest.expect("some arm is always left")
    }

    /// Returns the arm with the smallest error among those that are about as fast as the fastest.
    fn best(&self) -> &Standing {
        let fastest = self.fastest();
        let doubt = |arm: &Standing| match arm.error == 0.0 {
            true => (DOUBT * self.standard_error(arm, fastest)).min(DOUBT_MAX),
            false => 0.0,
        };
        let equal = self.arms.iter().filter(|arm| arm.time <= fastest.time + TIE + doubt(arm));
        let order =
            |a: &&Standing, b: &&Standing| (a.error, a.time).partial_cmp(&(b.error, b.time));
        let best = equal.min_by(|a, b| order(a, b).unwrap_or(Ordering::Equal));
        best.expect("the fastest is as fast as itself")
    }

    /// Returns the arm that would be kept now.
    fn ahead(&self) -> usize {
        self.best().arm
    }

    /// Returns the arms that may still be kept.
    fn hopeful(&self) -> Vec<usize> {
        let (best, fastest) = (self.best(), self.fastest());
        let is_hopeful = |one: &&Standing| match one.error.total_cmp(&best.error) {
            _ if one.arm == best.arm => true,
            Ordering::Less => !self.exceeds(one, fastest, TIE, SURE),
            Ordering::Equal => !self.exceeds(one, best, 0.0, SURE),
            Ordering::Greater => !self.exceeds(one, best, -TIE, LIKELY),
        };
        self.arms.iter().filter(is_hopeful).map(|one| one.arm).collect()
    }

    /// Returns whether an arm takes longer than another one by more than `margin`, `sure` standard errors off.
    fn exceeds(&self, one: &Standing, other: &Standing, margin: f64, sure: f64) -> bool {
        if one.rounds.len() == 1 {
            return one.least > other.time + MUCH_WORSE.ln();
        }
        let sure = if one.rounds.len() == 2 { EARLY * sure } else { sure };
        one.time - other.time - sure * self.standard_error(one, other) > margin
    }

    /// Returns the standard error of the difference of two times: that of midmeans of independent
    /// times, or more if whole rounds scatter more.
    fn standard_error(&self, one: &Standing, other: &Standing) -> f64 {
        let rounds = one.rounds.len();
        // Midmeans of normal numbers scatter 1.1 times as much as means, medians 1.25 times.
        let within = 1.1 * self.noise * (1.0 / one.steps as f64 + 1.0 / other.steps as f64).sqrt();
        if rounds < ROUNDS_MIN {
            return within;
        }
        let apart: Vec<f64> = one.rounds.iter().zip(&other.rounds).map(|(a, b)| a - b).collect();
        let middle = median(&mut apart.clone());
        let mut deviations: Vec<f64> = apart.iter().map(|apart| (apart - middle).abs()).collect();
        let deviation = median(&mut deviations);
        // The median deviation of normal numbers from their median is 0.6745 standard deviations.
        within.max(1.25 * deviation / 0.6745 / (rounds as f64).sqrt())
    }
}

impl Standing {
    fn new(arm: usize, trial: &Trial, levels: &[f64]) -> Standing {
        let relative = |(window, level): (&Vec<f64>, &f64)| {
            window.iter().map(|time| time - level).collect::<Vec<f64>>()
        };
        let windows: Vec<Vec<f64>> = trial.windows[arm].iter().zip(levels).map(relative).collect();
        let mut times = windows.concat();
        Standing {
            arm,
            error: trial.arms[arm].error,
            steps: times.len(),
            time: midmean(&mut times),
            least: windows[0].iter().copied().fold(f64::INFINITY, f64::min),
            rounds: windows.into_iter().map(|mut window| midmean(&mut window)).collect(),
        }
    }
}

/// The steps that trials may take.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Allowance {
    steps: f64,
    /// The least number of steps after the link has changed once more.
    changed: f64,
}

impl Allowance {
    /// The steps of a first trial, and the most that may be saved up.
    const FIRST: f64 = 180.0;

    /// The least number of steps after the link has changed for the first time; then half as many each time.
    const CHANGED: f64 = 60.0;

    /// The share of other steps by which the allowance grows.
    const SHARE: f64 = 0.01;

    /// Returns the allowance of buckets that were just laid out.
    pub(crate) fn first() -> Allowance {
        Allowance { steps: Allowance::FIRST, changed: Allowance::CHANGED }
    }

    /// Returns the whole number of steps.
    pub(crate) fn steps(&self) -> usize {
        self.steps as usize
    }

    /// Counts steps of a trial.
    pub(crate) fn spend(&mut self, steps: usize) {
        self.steps = (self.steps - steps as f64).max(0.0);
    }

    /// Counts steps outside of trials.
    pub(crate) fn save(&mut self, steps: usize) {
        self.steps = (self.steps + Allowance::SHARE * steps as f64).min(Allowance::FIRST);
    }

    /// Grants at least this many steps.
    pub(crate) fn grant(&mut self, steps: usize) {
        self.steps = self.steps.max(steps as f64);
    }

    /// Grants steps for a trial under a changed link, under which earlier results do not hold: half as many
    /// with each change, so that a link that changes all the time does not cause trials all the time.
    pub(crate) fn link_changed(&mut self) {
        self.steps = self.steps.max(self.changed);
        self.changed /= 2.0;
    }
}

#[cfg(test)]
mod tests;

//! Trials of made-up tables of costs, with noise and outliers.

use thinwire_wire::random::Key;

use super::*;

/// Steps of a report.
const REPORT: usize = 4;

/// Random numbers, one after the other.
struct Draws {
    key: Key,
    next: u64,
}

impl Draws {
    fn new(seed: u64) -> Draws {
        Draws { key: Key { seed, step: 0, tensor: 0 }, next: 0 }
    }

    fn uniform(&mut self) -> f64 {
        self.next += 1;
        self.key.uniform(self.next).into()
    }

    /// A factor of this standard deviation around 1; three times as large in three of a hundred steps.
    fn noise(&mut self, deviation: f64) -> f64 {
        self.next += 1;
        let factor = (1.0 + deviation * f64::from(self.key.normal(4 * self.next))).max(0.3);
        if self.uniform() < 0.03 { 3.0 * factor } else { factor }
    }
}

/// The mean times of arms, and what they lose.
struct Table {
    times: Vec<f64>,
    arms: Vec<Arm>,
}

impl Table {
    /// Five to eight arms that take 1 to 3, of which raw is the first; with near ties a second one is
    /// within 1.5 percent of the fastest.
    fn made_up(seed: u64, near_ties: bool, draws: &mut Draws) -> Table {
        let count = 5 + seed as usize % 4;
        let mut times: Vec<f64> = (0..count).map(|_| 1.0 + 2.0 * draws.uniform()).collect();
        let best = (0..count).min_by(|a, b| times[*a].total_cmp(&times[*b])).unwrap();
        if near_ties {
            times[(best + 1) % count] = times[best] * (1.0 + 0.015 * draws.uniform());
        }
        let lost = [0.001, 0.004, 0.015, 0.06];
        let arms = (0..count).map(|arm| Arm {
            error: if arm == 0 { 0.0 } else { lost[(4.0 * draws.uniform()) as usize] },
            predicted_s: 0.0,
        });
        Table { arms: arms.collect(), times }
    }

    fn best(&self) -> f64 {
        self.times.iter().copied().fold(f64::INFINITY, f64::min)
    }
}

/// The end of a trial.
struct End {
    trial: Trial,
    /// The steps that it took.
    steps: usize,
    /// The sum of the mean times of these steps.
    sum: f64,
}

fn play(table: &Table, deviation: f64, draws: &mut Draws) -> End {
    let mut trial = Trial::new(table.arms.clone(), Allowance::first().steps());
    let (mut steps, mut sum) = (0, 0.0);
    while !trial.is_decided() {
        let time = table.times[trial.arm()];
        trial.record(&[0; REPORT].map(|_| time * draws.noise(deviation)));
        (steps, sum) = (steps + REPORT, sum + REPORT as f64 * time);
    }
    End { trial, steps, sum }
}

/// The trials of each kind.
const TRIALS: u64 = 2000;

/// Plays trials, and returns how many of a hundred keep an arm within two percent of the fastest.
fn found(deviation: f64, near_ties: bool) -> f64 {
    let (mut good, mut regrets, mut all_steps) = (0, Vec::new(), 0);
    for seed in 0..TRIALS {
        let mut draws = Draws::new(seed);
        let table = Table::made_up(seed, near_ties, &mut draws);
        let End { trial, steps, sum } = play(&table, deviation, &mut draws);
        assert!(17 + steps < 200, "{steps} steps, and seventeen before");
        let kept = table.times[trial.arm()];
        good += usize::from(kept <= 1.0201 * table.best());
        let sum = sum + (1000 - steps) as f64 * kept;
        regrets.push(100.0 * (sum / 1000.0 / table.best() - 1.0));
        all_steps += steps;
    }
    regrets.sort_by(f64::total_cmp);
    let (good, mean) = (per_trial(100 * good), regrets.iter().sum::<f64>() / TRIALS as f64);
    println!(
        "noise {deviation}, near ties {near_ties}: {good:.1} of 100 in {:.0} steps; regret over 1,000 \
         steps: mean {mean:.1} %, 95th percentile {:.1} %",
        per_trial(all_steps),
        regrets[regrets.len() * 95 / 100]
    );
    good
}

fn per_trial(sum: usize) -> f64 {
    sum as f64 / TRIALS as f64
}

#[test]
fn the_fastest_arm_is_found_in_most_trials() {
    for deviation in [0.05, 0.2] {
        let good = found(deviation, true);
        assert!(good >= 95.0, "noise {deviation}: {good}");
        let good = found(deviation, false);
        assert!(good >= 94.0, "noise {deviation}, without near ties: {good}");
    }
}

fn arm(error: f64, predicted_s: f64) -> Arm {
    Arm { error, predicted_s }
}

/// How many of a hundred trials keep raw, which is the second arm and takes 1, beside arms that lose
/// something and take `seconds`.
fn raw_kept(seconds: f64, deviation: f64) -> usize {
    let arms = vec![arm(0.05, 0.0), arm(0.0, 0.0), arm(0.001, 0.0), arm(0.01, 0.0)];
    let table = Table { times: vec![seconds, 1.0, seconds, seconds], arms };
    let kept = |seed: &u64| play(&table, deviation, &mut Draws::new(*seed)).trial.arm() == 1;
    (0..100).filter(kept).count()
}

#[test]
fn nothing_is_lost_for_less_than_two_percent() {
    assert!(raw_kept(1.0, 0.05) >= 95);
    assert!(raw_kept(0.99, 0.02) >= 95);
    assert!(raw_kept(0.94, 0.05) <= 5);
}

#[test]
fn a_slow_arm_runs_for_one_window_and_a_hopeless_one_never() {
    let arms = vec![arm(0.0, 1.0), arm(0.0, 1.9), arm(0.0, 1.9), arm(0.0, 2.1)];
    let table = Table { times: vec![1.0, 1.6, 0.7, 0.1], arms };
    let trial = play(&table, 0.02, &mut Draws::new(1)).trial;
    assert_eq!((trial.arm(), trial.windows[1].len(), trial.windows[3].len()), (2, 1, 0));
    assert_eq!(trial.seconds(3), None);
    let seconds = trial.seconds(2).unwrap();
    assert!((seconds - 0.7).abs() < 0.02, "{seconds}");
}

#[test]
fn what_slows_down_a_whole_round_counts_for_no_arm() {
    let arms = vec![arm(0.0, 0.0); 3];
    let slow = |steps: usize| [1.0, 3.0, 1.5, 1.0, 2.0, 0.7][steps / 12 % 6];
    for seed in 0..20 {
        let (mut trial, mut draws, mut steps) =
            (Trial::new(arms.clone(), 180), Draws::new(seed), 0);
        while !trial.is_decided() {
            let time = [1.1, 1.0, 1.15][trial.arm()] * slow(steps);
            trial.record(&[0; REPORT].map(|_| time * draws.noise(0.02)));
            steps += REPORT;
        }
        assert_eq!(trial.arm(), 1, "seed {seed}");
    }
}

#[test]
fn a_window_ends_with_a_report_however_long_that_is() {
    let mut trial = Trial::new(vec![arm(0.0, 0.0); 2], 100);
    trial.record(&[1.0; 3]);
    assert_eq!(trial.arm(), 0);
    trial.record(&[1.0; 5]);
    assert_eq!((trial.arm(), trial.windows[0][0].len()), (1, 7));
    trial.record(&[1.0; 4]);
    assert_eq!(trial.windows[1][0].len(), 3, "the first step after a switch does not count");
    // The round has ended: the same arm continues.
    trial.record(&[1.0; 4]);
    assert_eq!((trial.arm(), trial.windows[1][1].len()), (0, 4));
}

#[test]
fn one_arm_alone_needs_no_trial_and_a_trial_without_steps_keeps_what_is_in_force() {
    assert!(Trial::new(vec![arm(0.0, 0.0)], 100).is_decided());
    let mut trial = Trial::new(vec![arm(0.0, 0.0); 3], 0);
    (0..3).for_each(|_| trial.record(&[1.0; 4]));
    assert!(trial.is_decided() && trial.arm() == 0);
}

#[test]
fn after_the_first_trial_one_step_in_a_hundred_is_one_of_a_trial() {
    let mut allowance = Allowance::first();
    let (mut spent, steps) = (0, 100_000);
    let mut step = 0;
    while step < steps {
        let trial = allowance.steps();
        match trial >= 2 * ARM_STEPS {
            true => (allowance.spend(trial), spent += trial, step += trial).2,
            false => (allowance.save(REPORT), step += REPORT).1,
        }
    }
    assert!((900..180 + steps / 100).contains(&spent), "{spent}");
    // However often the link changes, that adds no more than twice what the first change does.
    let more = (0..100).map(|_| {
        allowance.spend(allowance.steps());
        allowance.link_changed();
        allowance.steps()
    });
    let more: Vec<usize> = more.collect();
    assert!(more[0] >= 3 * ARM_STEPS && more.iter().sum::<usize>() <= 2 * more[0], "{more:?}");
}

//! The laws of every feedback and of momentum correction, over links in memory.

mod made;

use made::{averages, normal, spawn_with};
use thinwire_sync::{Feedback, Momentum, Options, Outcome, Parameter, State, Synchronizer};
use thinwire_testkit::{self as testkit, Network};

const CODECS: [&str; 6] =
    ["int8", "int4", "onebit", "topk:0.05", "powersgd:2", "powersgd:2:alternate"];
const STEPS: u64 = 6;

fn parameters() -> Vec<Parameter> {
    vec![
        Parameter::new("wide", &[60, 50]),
        Parameter::new("bias", &[60]),
        Parameter::new("tall", &[90, 20]),
    ]
}

fn options(codec: &str, feedback: &str) -> Options {
    Options {
        policy: codec.parse().unwrap(),
        feedback: feedback.parse().unwrap(),
        bucket_bytes: 8_000,
        seed: 7,
        ..Options::default()
    }
}

fn gradient(rank: u32, step: u64, parameter: usize) -> Vec<f32> {
    normal(rank, step, parameter, parameters()[parameter].elements())
}

/// One step; with `scale` times the gradients.
fn give(sync: &mut Synchronizer, step: u64, scale: f32) -> Outcome {
    let rank = sync.world().rank().0;
    sync.begin(step).unwrap();
    for index in 0..parameters().len() {
        let values: Vec<f32> = gradient(rank, step, index).iter().map(|x| x * scale).collect();
        sync.ready(index, &values).unwrap();
    }
    sync.finish().unwrap()
}

/// The averages of every step and the state after it, by rank.
type History = Vec<(Vec<Vec<f32>>, State)>;

fn play(size: usize, options: &Options) -> Vec<History> {
    spawn_with(size, &parameters(), options, |mut sync| {
        let mut history = Vec::new();
        for step in 0..STEPS {
            assert_eq!(give(&mut sync, step, 1.0), Outcome::Averaged);
            history.push((averages(&sync), sync.state()));
        }
        history
    })
}

/// A tensor of a rank's state; zeros if it has none.
fn kept(state: &State, prefix: &str, parameter: usize) -> Vec<f32> {
    let Parameter { name, .. } = &parameters()[parameter];
    let found = state.tensors.get(&format!("{prefix}.{name}"));
    found
        .map_or_else(|| vec![0.0; parameters()[parameter].elements()], |(_, values)| values.clone())
}

/// The sum over ranks of a tensor of their states after a step.
fn sum(ranks: &[History], step: usize, prefix: &str, parameter: usize) -> Vec<f64> {
    let mut sum = vec![0.0; parameters()[parameter].elements()];
    for history in ranks {
        let values = kept(&history[step].1, prefix, parameter);
        sum.iter_mut().zip(values).for_each(|(sum, value)| *sum += f64::from(value));
    }
    sum
}

fn mean_gradient(size: usize, step: u64, parameter: usize) -> Vec<f64> {
    let mut mean = vec![0.0; parameters()[parameter].elements()];
    for rank in 0..size as u32 {
        let values = gradient(rank, step, parameter);
        mean.iter_mut().zip(values).for_each(|(mean, x)| *mean += f64::from(x) / size as f64);
    }
    mean
}

fn assert_close(found: &[f64], expected: &[f64], what: &str) {
    for (place, (found, expected)) in found.iter().zip(expected).enumerate() {
        assert!((found - expected).abs() < 2e-4, "{what} [{place}]: {found} for {expected}");
    }
}

fn as_f64(values: &[f32]) -> Vec<f64> {
    values.iter().map(|&value| value.into()).collect()
}

#[test]
fn ef21_knows_the_sum_of_what_it_has_told() {
    for codec in CODECS {
        let ranks = play(3, &options(codec, "ef21"));
        for history in &ranks {
            assert!(history.iter().map(|h| &h.0).eq(ranks[0].iter().map(|h| &h.0)), "{codec}");
        }
        for (step, (averages, _)) in ranks[0].iter().enumerate() {
            for parameter in [0, 2] {
                let shifts = sum(&ranks, step, "shift", parameter);
                assert_close(&as_f64(&averages[parameter]), &shifts, codec);
            }
            // What travels raw is not shifted.
            let raw = mean_gradient(3, step as u64, 1);
            assert_close(&as_f64(&averages[1]), &raw, codec);
        }
    }
}

#[test]
fn ef21_learns_a_gradient_that_stays() {
    for (codec, share) in [("int4", 0.2), ("topk:0.05", 0.99), ("onebit", 0.9)] {
        let errors = spawn_with(2, &parameters(), &options(codec, "ef21"), |mut sync| {
            let rank = sync.world().rank().0;
            let mut errors = Vec::new();
            for step in 0..STEPS {
                sync.begin(step).unwrap();
                for index in 0..parameters().len() {
                    sync.ready(index, &gradient(rank, 0, index)).unwrap();
                }
                assert_eq!(sync.finish().unwrap(), Outcome::Averaged);
                let of = |(found, mean): (&f32, &f64)| (f64::from(*found) - mean).powi(2);
                let mean = mean_gradient(2, 0, 0);
                errors.push(sync.gradient(0).iter().zip(&mean).map(of).sum::<f64>());
            }
            errors
        });
        for pair in errors[0].windows(2) {
            assert!(pair[1] <= share * pair[0] + 1e-9, "{codec}: {:?}", errors[0]);
        }
    }
}

#[test]
fn an_average_without_memory_is_classic() {
    for codec in CODECS {
        // The plan of a state names the feedback.
        let found = |feedback: &str| {
            let mut ranks = play(3, &options(codec, feedback));
            ranks.iter_mut().flatten().for_each(|(_, state)| state.plan.clear());
            ranks
        };
        assert_eq!(found("average:0"), found("classic"), "{codec}");
    }
}

#[test]
fn an_average_follows_what_was_lost() {
    for codec in CODECS {
        let beta = 0.7;
        let ranks = play(2, &options(codec, "average:0.7"));
        for step in 1..STEPS as usize {
            for parameter in [0, 2] {
                let before = sum(&ranks, step - 1, "residual", parameter);
                let mean = mean_gradient(2, step as u64, parameter);
                let got = as_f64(&ranks[0][step].0[parameter]);
                let expected: Vec<f64> = before
                    .iter()
                    .zip(mean.iter().zip(&got))
                    .map(|(e, (g, c))| beta * e + (1.0 - beta) * (g + e - c))
                    .collect();
                assert_close(&sum(&ranks, step, "residual", parameter), &expected, codec);
            }
        }
    }
}

#[test]
fn a_decay_of_nothing_is_classic() {
    for codec in CODECS {
        let found = |feedback: &str| {
            let mut ranks = play(3, &options(codec, feedback));
            ranks.iter_mut().flatten().for_each(|(_, state)| state.plan.clear());
            ranks
        };
        assert_eq!(found("decay:1"), found("classic"), "{codec}");
    }
}

/// Results plus residuals over the factor are gradients plus the residuals before.
#[test]
fn a_decayed_residual_is_a_part_of_what_was_lost() {
    for codec in CODECS.into_iter().chain(["blocktopk:64/1024:lloyd:2"]) {
        let factor = 0.7;
        let ranks = play(2, &options(codec, "decay:0.7"));
        for step in 1..STEPS as usize {
            for parameter in [0, 2] {
                let before = sum(&ranks, step - 1, "residual", parameter);
                let mean = mean_gradient(2, step as u64, parameter);
                let got = as_f64(&ranks[0][step].0[parameter]);
                let lost = before.iter().zip(mean.iter().zip(&got)).map(|(e, (g, c))| g + e - c);
                let expected: Vec<f64> = lost.map(|lost| factor * lost).collect();
                assert_close(&sum(&ranks, step, "residual", parameter), &expected, codec);
            }
        }
    }
}

#[test]
fn a_rate_that_changes_is_made_up_for() {
    let rates = [0.1_f32, 0.4, 0.2, 0.8, 0.8, 0.05];
    for codec in ["int4", "onebit", "topk:0.05"] {
        let ranks = spawn_with(2, &parameters(), &options(codec, "classic"), |mut sync| {
            let mut walked = vec![0.0; parameters()[0].elements()];
            for step in 0..STEPS {
                let rate = rates[step as usize];
                sync.rescale(rates[(step as usize).saturating_sub(1)], rate).unwrap();
                assert_eq!(give(&mut sync, step, 1.0), Outcome::Averaged);
                let average = sync.gradient(0);
                walked.iter_mut().zip(average).for_each(|(at, x)| *at += f64::from(rate * x));
            }
            (walked, kept(&sync.state(), "residual", 0))
        });
        let mut expected = vec![0.0; parameters()[0].elements()];
        for (step, rate) in rates.iter().enumerate() {
            let mean = mean_gradient(2, step as u64, 0);
            expected.iter_mut().zip(mean).for_each(|(at, g)| *at += f64::from(*rate) * g);
        }
        let last = f64::from(rates[5]);
        let owed = |place| ranks.iter().map(|(_, owed)| f64::from(owed[place]) * last).sum::<f64>();
        let found: Vec<f64> =
            ranks[0].0.iter().enumerate().map(|(place, at)| at + owed(place)).collect();
        assert_close(&found, &expected, codec);
    }
    let link = thinwire_link::mem::alone();
    let mut sync = Synchronizer::start(link, parameters(), options("int8", "classic")).unwrap();
    let error = sync.rescale(0.1, f32::NAN).unwrap_err().to_string();
    assert_eq!(error, "learning rates 0.1 and NaN, expected 0 or more");
}

#[test]
fn a_skipped_step_and_a_restart_leave_no_trace() {
    let momentum = Some(Momentum { factor: 0.8, ..Momentum::default() });
    for codec in CODECS {
        for feedback in ["classic", "ef21", "average:0.5", "decay:0.5"] {
            let options = Options { momentum, ..options(codec, feedback) };
            let whole = spawn_with(2, &parameters(), &options, |mut sync| {
                for step in [0, 2, 3] {
                    assert_eq!(give(&mut sync, step, 1.0), Outcome::Averaged);
                }
                averages(&sync)
            });
            let resumed = spawn_with(2, &parameters(), &options, |mut sync| {
                assert_eq!(give(&mut sync, 0, 1.0), Outcome::Averaged);
                let before = sync.state();
                assert_eq!(give(&mut sync, 1, f32::INFINITY), Outcome::Skipped);
                assert_eq!(sync.state(), before, "{codec}, {feedback}");
                assert_eq!(give(&mut sync, 2, 1.0), Outcome::Averaged);
                sync.state()
            });
            let ended = spawn_with(2, &parameters(), &options, |mut sync| {
                sync.load(&resumed[sync.world().rank().index()]).unwrap();
                assert_eq!(give(&mut sync, 3, 1.0), Outcome::Averaged);
                averages(&sync)
            });
            assert_eq!(whole, ended, "{codec}, {feedback}");
        }
    }
}

/// The averages of all steps for a codec that loses nothing, though it has feedback.
fn lossless(momentum: Momentum) -> Vec<Vec<Vec<f32>>> {
    let options = Options { momentum: Some(momentum), ..options("topk:1", "classic") };
    play(1, &options).swap_remove(0).into_iter().map(|(averages, _)| averages).collect()
}

#[test]
fn without_masking_a_lossless_codec_gives_momentum() {
    for nesterov in [false, true] {
        let momentum = Momentum { nesterov, masking: false, ..Momentum::default() };
        let averages = lossless(momentum);
        for parameter in 0..3 {
            let mut velocity = vec![0.0_f32; parameters()[parameter].elements()];
            for (step, averages) in averages.iter().enumerate() {
                let gradient = gradient(0, step as u64, parameter);
                for (place, (velocity, g)) in velocity.iter_mut().zip(gradient).enumerate() {
                    let expected = if nesterov {
                        *velocity = 0.9 * (*velocity + g);
                        *velocity + g
                    } else {
                        *velocity = 0.9 * *velocity + g;
                        *velocity
                    };
                    assert_eq!(averages[parameter][place], expected, "{nesterov} in step {step}");
                }
            }
        }
    }
}

#[test]
fn with_masking_a_lossless_codec_gives_no_momentum_but_to_vectors() {
    let averages = lossless(Momentum::default());
    for (step, averages) in averages.iter().enumerate() {
        assert_eq!(averages[0], gradient(0, step as u64, 0));
        assert_eq!(averages[2], gradient(0, step as u64, 2));
        assert_eq!(averages[1] == gradient(0, step as u64, 1), step == 0, "vectors travel raw");
    }
}

#[test]
fn what_was_sent_and_is_owed_is_all_momentum() {
    let momentum = Momentum { masking: false, ..Momentum::default() };
    let options = Options { momentum: Some(momentum), ..options("topk:0.05", "classic") };
    let ranks = play(2, &options);
    for parameter in [0, 2] {
        let mut velocities = vec![0.0; parameters()[parameter].elements()];
        let mut given = velocities.clone();
        let mut sent = velocities.clone();
        for (step, (averages, _)) in ranks[0].iter().enumerate() {
            let mean = mean_gradient(2, step as u64, parameter);
            for (place, g) in mean.iter().enumerate() {
                velocities[place] = 0.9 * velocities[place] + g;
                given[place] += velocities[place];
                sent[place] += f64::from(averages[parameter][place]);
            }
        }
        let owed = sum(&ranks, STEPS as usize - 1, "residual", parameter);
        let found: Vec<f64> = sent.iter().zip(owed).map(|(sent, owed)| sent + owed).collect();
        assert_close(&found, &given, "topk");
    }
}

#[test]
fn warm_up_sends_more_at_first() {
    let momentum = Momentum { warm_up_steps: 4, ..Momentum::default() };
    let options = Options { momentum: Some(momentum), ..options("topk:0.01", "classic") };
    let sent = spawn_with(2, &parameters(), &options, |mut sync| {
        let step = |step| {
            assert_eq!(give(&mut sync, step, 1.0), Outcome::Averaged);
            sync.record().total(|bucket| bucket.sent_bytes)
        };
        (0..STEPS).map(step).collect::<Vec<u64>>()
    });
    assert!(sent[0].is_sorted_by(|a, b| a >= b), "{sent:?}");
    assert!(sent[0][0] > 2 * sent[0][1] && sent[0][1] > sent[0][2], "{sent:?}");
    assert_eq!(sent[0][4], sent[0][5]);
}

#[test]
fn feedbacks_and_momenta_that_differ_are_refused() {
    let errors = testkit::spawn(Network::Mem, 2, |link| {
        let feedback = [Feedback::Classic, Feedback::Ef21][link.world().rank().index()];
        let options = Options { feedback, ..options("int8", "classic") };
        Synchronizer::start(link, parameters(), options).unwrap_err().to_string()
    });
    assert_eq!(errors[0], "ranks disagree on feedback: this rank has classic, rank 1 has ef21");
    let errors = testkit::spawn(Network::Mem, 2, |link| {
        let momentum = [Some(Momentum::default()), None][link.world().rank().index()];
        let options = Options { momentum, ..options("int8", "classic") };
        Synchronizer::start(link, parameters(), options).unwrap_err().to_string()
    });
    assert_eq!(errors[0], "ranks disagree on momentum: this rank has 0.9, rank 1 has none");
}

#[test]
fn a_feedback_of_nothing_is_refused() {
    for (codec, feedback) in [("none", "ef21"), ("intsgd", "average:0.5"), ("auto:bf16", "ef21")] {
        let options = options(codec, feedback);
        let link = thinwire_link::mem::alone();
        let error = Synchronizer::start(link, parameters(), options).unwrap_err().to_string();
        let expected = "which leaves nothing to feed back";
        assert_eq!(
            error,
            format!("feedback {feedback} has no effect with codec {codec}, {expected}")
        );
    }
}

#[test]
fn momentum_is_not_lost_in_silence() {
    let corrected =
        Options { momentum: Some(Momentum::default()), ..options("topk:0.05", "classic") };
    let start = |options: &Options| {
        let link = thinwire_link::mem::alone();
        Synchronizer::start(link, parameters(), options.clone()).unwrap()
    };
    let mut sync = start(&corrected);
    let _ = give(&mut sync, 0, 1.0);
    let state = sync.state();
    start(&corrected).load(&state).unwrap();
    let mut without = start(&options("topk:0.05", "classic"));
    let before = without.state();
    for error in [without.load(&state), without.load_tensors(&state)].map(Result::unwrap_err) {
        let text = error.to_string();
        assert!(text.starts_with("the state is of a training with momentum correction (momentum."));
    }
    assert_eq!(without.state(), before);
}

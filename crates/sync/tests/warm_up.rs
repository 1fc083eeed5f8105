//! The laws of a warm-up, over links in memory.

mod made;

use made::{averages, give, options, parameters, spawn, spawn_with};
use proptest::prelude::*;
use thinwire_sync::{Momentum, Options, Outcome, Parameter, State, Synchronizer};
use thinwire_testkit::{self as testkit, Network};

const CODECS: [&str; 8] = [
    "none",
    "int8",
    "int8:stochastic",
    "topk:0.05",
    "dgc:0.05",
    "powersgd:2",
    "powersgd:2:alternate",
    "intsgd",
];

fn warmed(codec: &str, warm_up_steps: u64) -> Options {
    Options { warm_up_steps, ..options(codec) }
}

/// The averages of a step, none if it was skipped.
type Averages = Option<Vec<Vec<f32>>>;

fn step(sync: &mut Synchronizer, step: u64, spoiled: bool) -> Averages {
    match give(sync, step, spoiled) {
        Outcome::Averaged => Some(averages(sync)),
        Outcome::Skipped => None,
    }
}

/// The averages of all steps from `first` on, the same on all ranks. Some steps are spoiled.
fn play(size: usize, options: &Options, spoiled: &[bool], first: usize) -> Vec<Averages> {
    let mut ranks = spawn_with(size, &parameters(), options, |mut sync| {
        let steps = first..spoiled.len();
        steps.map(|index| step(&mut sync, index as u64, spoiled[index])).collect::<Vec<_>>()
    });
    assert!(ranks.iter().all(|history| *history == ranks[0]));
    ranks.swap_remove(0)
}

/// The first step after `warm_up_steps` that were kept.
fn switch(spoiled: &[bool], warm_up_steps: u64) -> usize {
    let mut kept = 0;
    let is_on = |bad: &&bool| {
        let on = kept < warm_up_steps;
        kept += u64::from(!**bad);
        on
    };
    spoiled.iter().take_while(is_on).count()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn raw_before_the_switch_and_a_fresh_run_after_it(
        codec in prop::sample::select(&CODECS[..]),
        size in 2_usize..5,
        warm_up_steps in 0_u64..5,
        spoiled in prop::collection::vec(prop::bool::weighted(0.2), 4..8),
    ) {
        let found = play(size, &warmed(codec, warm_up_steps), &spoiled, 0);
        let switch = switch(&spoiled, warm_up_steps);
        let raw = play(size, &options("none"), &spoiled, 0);
        prop_assert_eq!(&found[..switch], &raw[..switch]);
        let fresh = play(size, &options(codec), &spoiled, switch);
        prop_assert_eq!(&found[switch..], &fresh[..]);
    }

    #[test]
    fn a_run_resumed_anywhere_goes_on_bit_for_bit(
        codec in prop::sample::select(&CODECS[..]),
        feedback in prop::sample::select(&["classic", "ef21", "average:0.5", "decay:0.5"][..]),
        corrected in prop::bool::ANY,
        warm_up_steps in 0_u64..5,
        stop in 0_usize..6,
        spoiled in prop::collection::vec(prop::bool::weighted(0.2), 6),
    ) {
        let usual = warmed(codec, warm_up_steps);
        let options = Options {
            feedback: match usual.policy.leaves_a_residual() {
                true => feedback.parse().unwrap(),
                false => usual.feedback,
            },
            momentum: corrected.then(|| Momentum { warm_up_steps: 4, ..Momentum::default() }),
            ..usual
        };
        let whole = play(3, &options, &spoiled, 0);
        let states: Vec<State> = spawn_with(3, &parameters(), &options, |mut sync| {
            (0..stop).for_each(|index| drop(step(&mut sync, index as u64, spoiled[index])));
            sync.state()
        });
        let rest = spawn_with(3, &parameters(), &options, |mut sync| {
            sync.load(&states[sync.world().rank().index()]).unwrap();
            let steps = stop..spoiled.len();
            steps.map(|index| step(&mut sync, index as u64, spoiled[index])).collect::<Vec<_>>()
        });
        for rest in rest {
            prop_assert_eq!(&rest[..], &whole[stop..]);
        }
    }
}

#[test]
fn a_state_of_the_codec_itself_needs_no_warm_up() {
    let states = spawn(2, "int8", |mut sync| {
        assert!(step(&mut sync, 0, false).is_some());
        sync.state()
    });
    let codecs = spawn_with(2, &parameters(), &warmed("int8", 5), |mut sync| {
        assert!(sync.plan().assignments.iter().all(|assignment| assignment.codec == "none"));
        sync.load(&states[sync.world().rank().index()]).unwrap();
        assert_eq!(sync.state().tensors["residual.head.weight"], {
            states[sync.world().rank().index()].tensors["residual.head.weight"].clone()
        });
        sync.plan().assignments[0].codec.clone()
    });
    assert_eq!(codecs, ["int8", "int8"]);
}

#[test]
fn an_older_state_brings_the_warm_up_back() {
    spawn_with(2, &parameters(), &warmed("topk:0.05", 2), |mut sync| {
        let mut history = vec![step(&mut sync, 0, false)];
        let early = sync.state();
        history.extend([1, 2].map(|index| step(&mut sync, index, false)));
        sync.load(&early).unwrap();
        let again = [1, 2].map(|index| step(&mut sync, index, false));
        assert_eq!(again[..], history[1..]);
    });
}

#[test]
fn momentum_goes_on_over_the_switch() {
    let momentum = Some(Momentum { masking: false, ..Momentum::default() });
    let of = |warm_up_steps| {
        let options = Options { momentum, ..warmed("topk:1", warm_up_steps) };
        play(1, &options, &[false; 6], 0)
    };
    assert_eq!(of(3), of(0), "a codec that loses nothing shows no switch");
}

#[test]
fn a_new_layout_in_a_warm_up_keeps_its_count() {
    let reversed = || parameters().into_iter().rev().collect::<Vec<Parameter>>();
    spawn_with(2, &parameters(), &warmed("powersgd:2", 2), |mut sync| {
        assert!(step(&mut sync, 0, false).is_some());
        sync.relayout(reversed()).unwrap();
        sync.relayout(parameters()).unwrap();
        assert!(step(&mut sync, 1, false).is_some());
        assert!(sync.record().buckets.iter().all(|bucket| bucket.codec == "none"));
        assert!(step(&mut sync, 2, false).is_some());
        assert!(sync.record().buckets.iter().any(|bucket| bucket.codec == "powersgd:2"));
    });
}

#[test]
fn ranks_that_disagree_on_the_warm_up_are_told() {
    let errors = testkit::spawn(Network::Mem, 2, |link| {
        let warm_up_steps = [20, 30][link.world().rank().index()];
        Synchronizer::start(link, parameters(), warmed("int4", warm_up_steps)).unwrap_err()
    });
    let text = "ranks disagree on warm-up steps: this rank has 20, rank 1 has 30";
    assert_eq!(errors[0].to_string(), text);
}

#[test]
fn warm_ups_that_nobody_has_are_refused() {
    let start = |options| Synchronizer::start(thinwire_link::mem::alone(), parameters(), options);
    let error = start(warmed("auto", 20)).unwrap_err().to_string();
    assert_eq!(
        error,
        "codec auto takes no warm-up, found 20 steps: leave the warm-up out, or name a codec"
    );
    let error = start(warmed("int4", u64::MAX)).unwrap_err().to_string();
    assert_eq!(error, "a warm-up of 18446744073709551615 steps, expected at most 16777216");
}

#[test]
fn a_count_that_is_none_is_refused() {
    let link = thinwire_link::mem::alone();
    let mut sync = Synchronizer::start(link, parameters(), warmed("int4", 3)).unwrap();
    let state = sync.state();
    for count in [vec![], vec![1.5], vec![-1.0], vec![f32::NAN], vec![1e9], vec![1.0, 2.0]] {
        let mut strange = state.clone();
        strange.tensors.insert(State::WARM_UP.to_owned(), (vec![count.len()], count));
        let error = sync.load(&strange).unwrap_err().to_string();
        assert!(error.starts_with("warm_up in the state is ["), "{error}");
        assert!(error.ends_with("expected one whole number up to 16777216"), "{error}");
        assert_eq!(sync.state(), state);
    }
}

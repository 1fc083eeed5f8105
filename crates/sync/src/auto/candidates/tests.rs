//! Candidates of made-up links, and what is chosen of them.

use super::*;
use crate::Parameter;
use crate::Target;
use crate::auto::choose;
use crate::auto::timeline::{Measured, Readiness};
use crate::measure::pairs::{self, Pair, Unequal};
use crate::measure::units::Units;

/// Ranks whose slowest link has 12.5 MB/s, in units of two with 1 GB/s within or in none.
fn link(units: bool) -> LinkSpeed {
    let units = units.then_some(Units {
        ranks: 2,
        latency_s: 5e-5,
        bytes_per_s: 1e9,
        between_bytes_per_s: 6.25e6,
    });
    LinkSpeed {
        latency_s: 2e-4,
        bytes_per_s: 12.5e6,
        fan_in: 1.3,
        cpu_s_per_byte: 1e-9,
        cpu_s_per_message: 1e-5,
        unequal: Some(Unequal { latency_s: 5e-5, bytes_per_s: 1e9, slow: Vec::new(), units }),
        pairs: Vec::new(),
    }
}

fn bucket() -> Bucket {
    Bucket::of_one(0, &Parameter::new("weight", &[512, 512]))
}

fn candidates(size: u32, link: LinkSpeed, overridden: Option<&str>) -> Candidates {
    let algorithm = overridden.map(|name| name.parse().unwrap());
    let overrides = Overrides { algorithm, partitions: None };
    let calibration = Calibration::made_up(link, &["int8", "topk:0.01"]);
    Candidates::new(calibration, World::new(0, size).unwrap(), overrides)
}

/// The names of the sums that are worth comparing for a codec.
fn names(codec: &str, overridden: Option<&str>, size: u32, link: LinkSpeed) -> Vec<String> {
    let carriers =
        candidates(size, link, overridden).carriers(&Choice::parse(codec).unwrap(), &bucket());
    carriers.iter().map(Summation::to_string).collect()
}

#[test]
fn an_algorithm_that_was_asked_for_is_the_only_one() {
    let names = |codec, overridden, size| names(codec, overridden, size, link(false));
    assert_eq!(names("none", Some("halving"), 4), ["halving"]);
    assert_eq!(names("int8", Some("gather"), 4), ["gather"]);
    assert_eq!(names("int8", Some("hierarchical:2:two-shot"), 4), ["hierarchical:2:two-shot"]);
    assert_eq!(names("int8", Some("ring"), 4), [""; 0]);
    assert_eq!(names("topk:0.01", Some("two-shot"), 4), [""; 0]);
    assert_eq!(names("topk:0.01", None, 4), ["gather", "ring-gather"]);
    assert_eq!(names("topk:0.01", None, 2), ["gather"]);
    assert_eq!(names("int8", None, 32), ["two-shot"]);
    assert_eq!(names("none", None, 4).len(), 4);
    assert_eq!(names("none", None, 1).len(), 1);
}

#[test]
fn units_add_the_algorithms_between_them() {
    assert_eq!(
        names("int8", None, 4, link(true)),
        ["two-shot", "gather", "hierarchical:2:two-shot", "hierarchical:2:gather"]
    );
    let six = names("none", None, 6, link(true));
    assert_eq!(six.len(), 8);
    assert!(six.contains(&"hierarchical:2:ring".to_owned()), "{six:?}");
    // Chunks are in rank order.
    let shard = Bucket { target: Target::Shard, ..bucket() };
    let carriers =
        candidates(4, link(true), None).carriers(&Choice::parse("int8").unwrap(), &shard);
    assert!(carriers.iter().all(|summation| summation.unit == 1), "{carriers:?}");
}

/// The plan for four such buckets that are ready at once.
fn chosen(link: LinkSpeed) -> Vec<Assignment> {
    let mut candidates = candidates(4, link, None);
    let of_bucket = candidates
        .of_bucket(&bucket(), Some(&[0.0, 1e-6, 1e-5, 1e-4, 0.9, 1.0, 1.0, 1.0, 1.0, 1.0]));
    let usable: Vec<Candidate> = of_bucket.into_iter().filter(|it| it.error < 0.1).collect();
    let buckets = vec![Readiness { ready_s: 0.01 }; 4];
    let measured = Measured { backward_s: 0.01, buckets, shares_cores: false };
    choose::choose(&measured, &vec![usable; 4]).assignments
}

#[test]
fn units_are_summed_first_where_links_within_them_are_faster() {
    for assignment in chosen(link(true)) {
        assert_eq!(assignment.codec, "int8");
        assert!(assignment.algorithm.starts_with("hierarchical:2:"), "{assignment:?}");
    }
    for assignment in chosen(link(false)) {
        assert!(!assignment.algorithm.starts_with("hierarchical"), "{assignment:?}");
    }
}

/// Four ranks at 12.5 MB/s, but for pairs at the given part of it.
fn differing(part: impl Fn(u32, u32) -> f64) -> LinkSpeed {
    let lower = (0..4).flat_map(|low| (low + 1..4).map(move |high| (low, high)));
    let pair = |(low, high)| Pair {
        ranks: (low, high),
        latency_s: 2e-4,
        bytes_per_s: 12.5e6 * part(low, high),
        same_host: low / 2 == high / 2,
    };
    let pairs: Vec<Pair> = lower.map(pair).collect();
    let slowest = pairs.iter().map(|pair| pair.bytes_per_s).fold(f64::INFINITY, f64::min);
    let unequal = pairs::unequal(4, &pairs);
    LinkSpeed { bytes_per_s: slowest, unequal, pairs, ..link(false) }
}

#[test]
fn trees_are_tried_where_links_differ() {
    let trees = |codec, link| {
        let mut names = names(codec, None, 4, link);
        names.retain(|name| name.starts_with("trees:"));
        names
    };
    let slow_rank = || differing(|_, high| if high == 3 { 0.25 } else { 1.0 });
    let shallow = trees("int8", slow_rank());
    assert!(shallow.len() == 1 && !shallow[0].contains("3.3.3.3"), "{shallow:?}");
    assert_eq!(trees("none", slow_rank()), shallow);
    assert_eq!(trees("topk:0.01", slow_rank()), [""; 0]);
    // Any star has a thin diagonal, so casts alone have a way around.
    let square = || differing(|low, high| if high - low == 2 { 0.1 } else { 1.0 });
    assert!(trees("none", square()).len() > trees("int8", square()).len());
    // Links that are alike, and hosts with a fast path inside, need none.
    assert_eq!(trees("none", differing(|_, _| 1.0)), [""; 0]);
    let hosts = differing(|low, high| if low / 2 == high / 2 { 1.0 } else { 0.1 });
    assert_eq!(trees("none", hosts), [""; 0]);
}

#[test]
fn a_slow_rank_is_a_leaf() {
    for assignment in chosen(differing(|_, high| if high == 3 { 0.25 } else { 1.0 })) {
        assert!(assignment.algorithm.starts_with("trees:"), "{assignment:?}");
    }
}

#[test]
fn units_do_not_change_the_prices_of_flat_sums() {
    let [mut with, mut without] = [true, false].map(|units| candidates(4, link(units), None));
    let [with, without] = [&mut with, &mut without].map(|it| it.of_bucket(&bucket(), None));
    let flat = |it: &Candidate| !it.assignment.algorithm.starts_with("hierarchical");
    let flat: Vec<_> = with.into_iter().filter(flat).collect();
    // Finer partitions are tried for the best two alone.
    assert!(flat.iter().all(|candidate| without.contains(candidate)) && flat.len() > 6);
}

#[test]
fn links_of_units_keep_to_what_all_ranks_reach_together() {
    let rates = |between_bytes_per_s| {
        let mut link = link(true);
        link.unequal.as_mut().unwrap().units.as_mut().unwrap().between_bytes_per_s =
            between_bytes_per_s;
        link.in_units(2).map(|link| link.bytes_per_s)
    };
    assert_eq!(rates(8e6), [1e9, 8e6]);
    assert_eq!(rates(1e6), [1e9, 6.25e6]);
    assert_eq!(rates(1e8), [1e9, 12.5e6]);
    assert_eq!(link(true).in_units(4).map(|link| link.bytes_per_s), [12.5e6; 2]);
}

#[test]
fn what_is_encoded_in_less_is_cheaper() {
    let mut candidates = candidates(4, link(false), Some("two-shot"));
    let mut wire_s = |ratio| {
        let tried = [[0.0, 0.0, 0.0, 1e-4, 0.9], [1.0, 1.0, 1.0, ratio, 1.0]].concat();
        let all = candidates.of_bucket(&bucket(), Some(&tried));
        let int8 = all.iter().find(|candidate| candidate.assignment.codec == "int8");
        int8.expect("a candidate").price.wire_s
    };
    let [half, whole, more] = [0.5, 1.0, 1.25].map(&mut wire_s);
    assert!(half < 0.6 * whole && whole < more, "{half} {whole} {more}");
}

#[test]
fn only_exact_codecs_have_no_error_whatever_the_gradients_are() {
    let names = ["lossless", "lossless:bf16", "bf16", "int8", "onebit", "ecsq:1.4"];
    let mut calibration = Calibration::made_up(link(false), &names);
    for speed in &mut calibration.codecs {
        let exact = ["none", "lossless"].contains(&speed.choice.to_string().as_str());
        speed.error = if exact { 0.0 } else { 1e-4 };
    }
    let mut candidates =
        Candidates::new(calibration, World::new(0, 2).unwrap(), Overrides::default());
    let exact = |candidate: &Candidate| {
        candidate.assignment.codec.as_str() == "none" || candidate.assignment.codec == "lossless"
    };
    let gradients = [vec![0.0; 4096], vec![1.0; 4096], vec![-0.0; 4096]];
    for gradients in gradients {
        let tried = candidates.calibration().try_on(&gradients);
        for candidate in candidates.of_bucket(&bucket(), Some(&tried)) {
            assert_eq!(candidate.error == 0.0, exact(&candidate), "{candidate:?}");
        }
    }
}

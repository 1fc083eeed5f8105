//! Plans for made-up prices.

use super::*;
use crate::auto::timeline::Readiness;

/// Raw takes as long as its bytes, the others shrink the wire time and cost some computing.
fn candidates(wire_s: f64, compute_s: f64) -> Vec<Candidate> {
    let make = |(codec, name): (usize, &str)| {
        let wire_s = wire_s * [1.0, 0.5, 0.25, 0.125][codec];
        let cpu_s = compute_s * codec as f64;
        let price = Price { alone_s: wire_s + cpu_s, wire_s, cpu_s, ..Price::default() };
        let assignment =
            Assignment { codec: name.to_owned(), algorithm: "two-shot".to_owned(), partitions: 1 };
        Candidate { assignment, codec, error: [0.0, 1e-5, 1e-4, 1e-2][codec], elements: 100, price }
    };
    ["none", "bf16", "int8", "int4"].into_iter().enumerate().map(make).collect()
}

fn measured(backward_s: f64) -> Measured {
    let readiness = |index: usize| Readiness { ready_s: backward_s * (index + 1) as f64 / 4.0 };
    Measured { backward_s, buckets: (0..4).map(readiness).collect(), shares_cores: true }
}

fn plan(backward_s: f64, wire_s: f64, compute_s: f64) -> Plan {
    choose(&measured(backward_s), &vec![candidates(wire_s, compute_s); 4])
}

fn codecs(plan: &Plan) -> Vec<&str> {
    plan.assignments.iter().map(|assignment| assignment.codec.as_str()).collect()
}

#[test]
fn a_fast_link_is_left_raw() {
    assert_eq!(codecs(&plan(1.0, 0.001, 0.002)), ["none"; 4]);
}

#[test]
fn a_slow_link_gets_the_strongest_codec() {
    assert_eq!(codecs(&plan(0.1, 10.0, 0.001)), ["int4"; 4]);
}

#[test]
fn only_what_overlap_cannot_hide_is_compressed() {
    let plan = plan(4.0, 0.9, 0.001);
    assert_eq!(&codecs(&plan)[..3], ["none"; 3]);
    assert_ne!(codecs(&plan)[3], "none");
}

#[test]
fn what_loses_less_is_taken_where_both_are_as_fast() {
    // On these gradients the codec that was thought the worse loses less.
    let mut alike = candidates(10.0, 0.0);
    (alike[2].price, alike[2].error) = (alike[3].price, 0.05);
    let plan = choose(&measured(0.1), &vec![alike; 4]);
    assert_eq!(codecs(&plan), ["int4"; 4]);
}

/// A codec for every number of bits from 1 to 12, each of which quarters the error.
fn bits() -> Vec<Candidate> {
    let of_bits = |bits: i32| {
        let wire_s = 0.01 * f64::from(bits);
        let price = Price { alone_s: wire_s, wire_s, ..Price::default() };
        let error = if bits == 13 { 0.0 } else { 0.25_f64.powi(bits) };
        let codec = (13 - bits) as usize;
        let assignment = Assignment {
            codec: format!("{bits} bits"),
            algorithm: "two-shot".to_owned(),
            partitions: 1,
        };
        Candidate { assignment, codec, error, elements: 100, price }
    };
    (1..=13).rev().map(of_bits).collect()
}

#[test]
fn the_time_that_backward_hides_is_spent_on_bits_alike() {
    let all = vec![bits(); 4];
    let at = |backward_s: f64| {
        let plan = choose(&measured(backward_s), &all);
        let picked = all.iter().zip(&plan.assignments);
        let picked = picked.map(|(all, it)| all.iter().find(|c| c.assignment == *it).unwrap());
        picked.map(|candidate| 13 - candidate.codec).collect::<Vec<_>>()
    };
    // The last bucket begins when backward ends: its one bit cannot be hidden, but all before can.
    let bits = at(0.2);
    assert!(bits[..3].iter().all(|bits| (3..=6).contains(bits)) && bits[3] == 1, "{bits:?}");
    assert!(bits[..3].iter().max().unwrap() - bits[..3].iter().min().unwrap() <= 2, "{bits:?}");
    // More time to hide behind means more bits.
    let total = |backward_s| at(backward_s).iter().sum::<usize>();
    let totals = [0.05, 0.1, 0.2, 0.4].map(total);
    assert!(totals.is_sorted() && totals[0] < totals[3], "{totals:?}");
}

#[test]
fn no_plan_is_predicted_slower_than_raw() {
    for (wire_s, compute_s) in [(0.001, 1.0), (1.0, 1.0), (1.0, 0.1), (3.0, 2.0)] {
        let plan = plan(0.5, wire_s, compute_s);
        assert!(plan.iteration_s <= plan.raw_iteration_s, "{plan:?}");
    }
}

#[test]
fn the_hash_is_that_of_the_assignments() {
    let (plan, later) = (plan(0.1, 10.0, 0.001), plan(0.2, 10.0, 0.001));
    assert!(plan.iteration_s != later.iteration_s && plan.hash() == later.hash());
    let mut other = plan.clone();
    other.assignments[2].partitions = 2;
    assert_ne!(plan.hash(), other.hash());
}

#[test]
fn a_plan_wins_by_its_time_or_by_a_smaller_error_in_the_same_time() {
    let plan = |iteration_s, codec_error| Plan { iteration_s, codec_error, ..Plan::default() };
    let now = plan(1.0, 0.8);
    assert!(plan(0.97, 2.0).beats(&now) && !plan(0.99, 0.8).beats(&now));
    assert!(plan(1.01, 0.3).beats(&now) && !plan(1.01, 0.5).beats(&now));
    assert!(!plan(1.03, 0.0).beats(&now) && !plan(1.0, 0.0).beats(&plan(1.0, 0.0)));
}

#[test]
fn fixed_plans_are_the_fastest_one_that_sends_less_and_one_that_loses_far_less() {
    let fixed = |compute_s: f64| {
        let plans = fixed(&measured(0.1), &vec![candidates(1.0, compute_s); 4]);
        plans.iter().map(|plan| codecs(plan)[0].to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(fixed(0.01), ["int4", "int8"]);
    assert_eq!(fixed(10.0), ["bf16", "int8"], "nothing loses less than a tenth of it");
}

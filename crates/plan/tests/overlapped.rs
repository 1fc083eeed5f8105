//! Laws of collectives of backward that gradients of weights hide: nothing of them is lost, and no more
//! is hidden than there is to hide it behind.

use proptest::prelude::*;
use thinwire_model::named;
use thinwire_plan::Cluster;
use thinwire_plan::cost::{Cost, Division};
use thinwire_plan::pipeline::Schedule;
use thinwire_plan::search::{
    Candidate, Chain, Evaluated, Outcome, Overlap, Prepared, Recompute, Rule, Settings, costs,
    evaluate, simulated_s,
};

const MICRO_BATCHES: usize = 4;

/// A model whose tensors are cut on devices that links join.
struct Case {
    cluster: Cluster,
    prepared: Prepared,
    candidate: Candidate,
}

impl Case {
    /// Four devices in so many stages, with links of so many Gbit/s, whose own time moving bytes takes,
    /// or does not.
    fn new(gbit: f64, own: bool, stages: usize) -> Case {
        let handling = if own { "handling_gbyte_per_s = 10\n" } else { "" };
        let text = format!(
            "[[device]]\nname = \"rank\"\ntflops = 1\nmemory_gib = 80\nmemory_gbyte_per_s = 1000\n{handling}\
             [[level]]\nname = \"link\"\nsize = 4\nlatency_us = 0\ngbit = {gbit}\n"
        );
        let model = "gpt:layers=2,width=256,heads=4,vocabulary=512,positions=128";
        let (mesh, rule, division) = (vec![1, 4 / stages], Rule::PlainGrid, Division::Each);
        let micro_batches = MICRO_BATCHES;
        Case {
            cluster: Cluster::parse(&text).unwrap(),
            prepared: Prepared::new(named(model, 4, 128).unwrap()).unwrap(),
            candidate: Candidate { stages, mesh, micro_batches, division, rule },
        }
    }

    /// The best plan where collectives begin early, or do not.
    fn plan(&self, products: bool, schedule: Schedule) -> Outcome {
        let settings = Settings { schedule: Some(schedule), ..settings(products) };
        let (cluster, prepared) = (&self.cluster, &self.prepared);
        let verdict = evaluate(cluster, prepared, &self.candidate, &settings, &|| f64::INFINITY);
        let Evaluated::Found(plan) = verdict else { panic!("no plan of {:?}", self.candidate) };
        *plan
    }

    /// What the strategies of a plan cost where collectives begin early, or do not.
    fn cost(&self, products: bool, plan: &Outcome) -> Cost {
        let here = costs(&self.cluster, &self.candidate, &settings(products));
        let chain = Chain::new(&self.prepared, &here, self.candidate.rule).unwrap();
        chain.costs(&plan.choice).into_iter().sum()
    }
}

fn settings(products: bool) -> Settings {
    let all = Settings::of_executor();
    let overlap = Overlap { products, ..all.overlap };
    Settings { recompute: Recompute::Never, overlap, ..all }
}

const TURNS: Schedule = Schedule::OneForwardOneBackward;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn what_is_hidden_leaves_the_step_and_nothing_else_does(
        gbit in 1.5_f64..4.0,
        own in any::<bool>(),
    ) {
        let case = Case::new(10_f64.powf(gbit), own, 1);
        let plan = case.plan(true, TURNS);
        let [with, without] = [true, false].map(|products| case.cost(products, &plan));
        let Cost { backward_wire_s, overlapped_s, backward_s, .. } = with;
        let all_s = without.backward_wire_s;
        prop_assert!((backward_wire_s + overlapped_s - all_s).abs() < 1e-9 * all_s);
        // Of the products of a layer, 24 hidden² in backward, those of two weights: 3 and 4.
        prop_assert!(own || 0.0 < overlapped_s);
        prop_assert!(overlapped_s < 7.0 / 24.0 * backward_s, "{with:?}");
        let exposed = Cost { backward_wire_s, overlapped_s, ..without };
        prop_assert_eq!(exposed, with);
        let expected_s = MICRO_BATCHES as f64 * with.micro_s() + with.optimizer_s;
        prop_assert!((plan.seconds / expected_s - 1.0).abs() < 1e-9, "{} {expected_s}", plan.seconds);
        prop_assert!(plan.bound_s <= plan.seconds * (1.0 + 1e-9));
    }
}

#[test]
fn two_of_the_four_sums_of_a_layer_hide_behind_its_weights() {
    // Links so thick that gradients of weights take longer than any collective.
    let case = Case::new(1000.0, false, 1);
    let Cost { forward_wire_s, backward_wire_s, overlapped_s, .. } =
        case.cost(true, &case.plan(true, TURNS));
    assert!(overlapped_s > 0.9 * forward_wire_s, "{overlapped_s} of {forward_wire_s}");
    assert!(backward_wire_s < 0.1 * forward_wire_s, "{backward_wire_s} of {forward_wire_s}");
}

#[test]
fn a_devices_own_time_is_not_hidden() {
    let cost = |own| {
        let case = Case::new(1000.0, own, 1);
        case.cost(true, &case.plan(true, TURNS))
    };
    let [own, wires] = [true, false].map(cost);
    // Of 10 gigabytes a second where links carry 125: nearly all of the exchange.
    assert!(own.backward_wire_s > 5.0 * wires.backward_wire_s, "{own:?} {wires:?}");
    assert!(own.backward_wire_s > 3.0 * own.overlapped_s, "{own:?}");
}

#[test]
fn weights_in_passes_of_their_own_hide_nothing() {
    let case = Case::new(100.0, false, 2);
    let seconds = |schedule| {
        [true, false].map(|products| {
            let plan = case.plan(products, schedule);
            [plan.seconds, simulated_s(&plan, settings(products).overlap).unwrap()]
        })
    };
    let [with, without] = seconds(Schedule::ZeroBubble);
    with.iter().zip(without).for_each(|(with, without)| {
        assert!((with / without - 1.0).abs() < 1e-9, "{with} {without}");
    });
    let [with, without] = seconds(TURNS);
    with.iter().zip(without).for_each(|(with, without)| {
        assert!(*with < 0.95 * without, "{with} {without}");
    });
}

//! Laws of what is chosen block by block and parameter by parameter: more choices, never slower.

mod made;

use good_lp::{Expression, ProblemVariables, Solution, SolverModel, constraint, microlp, variable};
use proptest::prelude::*;
use thinwire_plan::cost::{Cost, Division, GradientTransport, Sharding};
use thinwire_plan::pipeline::Schedule;
use thinwire_plan::report::{PlanFile, plan_file, report};
use thinwire_plan::search::{
    Candidate, Found, Outcome, Planner, Recompute, Rule, Settings, estimate_s,
};
use thinwire_plan::stage::{Formulation, TransportOptions, Weights, Wire, solve};
use thinwire_plan::{Cluster, Error};
use thinwire_wire::random::Key;

fn gpt(settings: Settings) -> Planner {
    made::planner(made::gpt(6, 512, 512), 32, settings)
}

/// A model whose head has a weight of its own: what stages share is no part of what is chosen by.
fn llama(settings: Settings) -> Planner {
    let model = "llama:layers=6,width=512,heads=8,key_heads=8,feed_forward=2048,vocabulary=8192,positions=512";
    Planner::new(32, settings, |batch| {
        thinwire_model::named(model, batch, 512).map_err(|error| Error::from_model(&error))
    })
}

fn found(
    cluster: &Cluster,
    planner: fn(Settings) -> Planner,
    (recompute, division): (Recompute, Division),
    (stages, mesh): (usize, &[usize]),
    schedule: Option<Schedule>,
) -> Result<Found, Error> {
    let mut planner = planner(Settings { recompute, schedule, ..Settings::default() });
    let (mesh, rule) = (mesh.to_vec(), Rule::Free);
    let candidate = Candidate { stages, mesh, micro_batches: 8, division, rule };
    planner.plan_for(cluster, &candidate)
}

fn closed_s(found: &Found) -> f64 {
    let Outcome { stages, schedule, rounds, .. } = &found.best;
    estimate_s(stages, *schedule, *rounds, Settings::default().overlap)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn more_choices_are_never_slower(
        memory_gib in 0.1_f64..2.0,
        (stages, mesh) in prop::sample::select(vec![(1, vec![8_usize]), (1, vec![2, 4]), (2, vec![4]), (4, vec![2])]),
        gbit in prop::sample::select(vec![25.0, 400.0]),
        schedule in prop::sample::select(vec![Schedule::OneForwardOneBackward, Schedule::ZeroBubble]),
    ) {
        let cluster = made::cluster(2, 4, gbit, memory_gib);
        let at = |recompute, division| found(&cluster, llama, (recompute, division), (stages, &mesh), Some(schedule));
        let free = at(Recompute::Free, Division::Each);
        let alike = [Sharding::Optimizer, Sharding::Gradients, Sharding::Parameters];
        let alike = alike.map(|sharding| at(Recompute::Free, Division::Alike(sharding)));
        let whole = [Recompute::Never, Recompute::Always].map(|one| at(one, Division::Each));
        for (narrow, what) in alike.into_iter().chain(whole).zip(["1", "2", "3", "never", "always"]) {
            let Ok(narrow) = narrow else { continue };
            let free = free.as_ref().expect("what fits with fewer choices fits with more");
            // Plans are compared in closed form and the fastest of them by playing, so fewer choices may win by one
            // of the two, but not by both.
            let (free_s, narrow_s) = (closed_s(free), closed_s(&narrow));
            let played = (free.best.seconds, narrow.best.seconds);
            let is_slower = free_s > narrow_s * (1.0 + 1e-9) && played.0 > played.1 * (1.0 + 1e-9);
            prop_assert!(!is_slower, "{what}: {free_s}, {narrow_s}, played {played:?}");
            prop_assert!(free.best.over(0.1) <= 0.0 && free.bound_s <= free_s);
        }
    }
}

/// A memory with which some blocks compute again.
fn mixed(stages: usize, mesh: &[usize]) -> Cluster {
    let sizes = (0..80).map(|step| made::cluster(2, 4, 400.0, 4.0 * 0.95_f64.powi(step)));
    let some = |cluster: &Cluster| {
        let found = found(cluster, gpt, (Recompute::Free, Division::Each), (stages, mesh), None);
        let (again, all) = found
            .map_or((0, 0), |found| (found.best.recomputed(), found.best.savings.recomputed.len()));
        0 < again && again < all
    };
    sizes.into_iter().find(some).expect("a memory between all and nothing")
}

#[test]
fn the_file_and_the_report_say_what_is_given_up() {
    let cluster = mixed(2, &[4]);
    let mut planner = made::planner(made::gpt(6, 512, 512), 32, Settings::default());
    let (mesh, rule, division) = (vec![4], Rule::Free, Division::Each);
    let candidate = Candidate { stages: 2, mesh, micro_batches: 8, division, rule };
    let found = planner.plan_for(&cluster, &candidate).unwrap();
    let file = plan_file("small", 512, &planner, &cluster, &found).unwrap();
    assert_eq!(PlanFile::parse(&file.text()).unwrap(), file);
    assert_eq!(file.recomputed.len(), found.best.recomputed());
    let text = report(&planner, &cluster, &found).unwrap();
    let blocks = found.best.savings.recomputed.len();
    let again = format!("forward twice in {} of {blocks}", file.recomputed.len());
    assert!(text.contains(&again), "{text}");
}

/// A block with random costs: variables in a chain, of which each has a parameter that may be
/// divided in two other transports.
fn random(seed: u64, variables: usize, options: usize) -> Formulation {
    let key = Key { seed, step: 0, tensor: 0 };
    let mut draws = (0..).map(move |draw| f64::from(key.uniform(draw)));
    let mut draw = || draws.next().unwrap();
    let mut cost = || Cost {
        forward_s: draw(),
        backward_s: draw(),
        sync_s: draw(),
        state_bytes: 3.0 * draw(),
        activation_bytes: 3.0 * draw(),
        checkpoint_bytes: 0.3 * draw(),
        ..Cost::ZERO
    };
    let alone: Vec<Vec<Cost>> =
        (0..variables).map(|_| (0..options).map(|_| cost()).collect()).collect();
    let way = |sharding, change: Cost| {
        let change = Cost { activation_bytes: 0.0, checkpoint_bytes: 0.0, ..change };
        let change = Cost { state_bytes: -0.5 * change.state_bytes, ..change };
        GradientTransport { sharding, coding: None, change }
    };
    let mut transports = |tensor| TransportOptions {
        tensor,
        transports: [Sharding::Gradients, Sharding::Parameters].map(|one| way(one, cost())).into(),
    };
    let transports = (0..variables)
        .map(|variable| (variable, (0..options).map(|_| vec![transports(variable)]).collect()));
    let transports = transports.collect();
    let mut wire = || {
        let cost = cost();
        Wire {
            forward_s: cost.forward_s,
            backward_s: cost.backward_s,
            overlapped_s: cost.overlapped_s,
        }
    };
    let edges = (1..variables)
        .map(|second| ([second - 1, second], (0..options * options).map(|_| wire()).collect()));
    let edges = edges.collect();
    Formulation { options: alone, edges, transports, variables: [].into(), entry: None, exit: None }
}

/// The least cost by an integer programme that knows every way of every parameter and both modes.
fn integer_programme(block: &Formulation, modes: &[Weights], seconds_per_byte: f64) -> f64 {
    let mut variables = ProblemVariables::new();
    let mut objective = Expression::default();
    let mut rows = Vec::new();
    let mode: Vec<_> = modes.iter().map(|_| variables.add(variable().binary())).collect();
    rows.push(constraint!(mode.iter().sum::<Expression>() == 1.0));
    for (weights, mode) in modes.iter().zip(&mode) {
        let price = |cost: &Cost| weights.price(cost).at(seconds_per_byte);
        let mut chosen = Vec::new();
        for (at, options) in block.options.iter().enumerate() {
            let one: Vec<_> = options.iter().map(|_| variables.add(variable().binary())).collect();
            for (option, (variable_, cost)) in one.iter().zip(options).enumerate() {
                objective += price(cost) * *variable_;
                let transports = &block.transports[&at][option][0].transports;
                let taken: Vec<_> =
                    transports.iter().map(|_| variables.add(variable().binary())).collect();
                for (taken, way) in taken.iter().zip(transports.iter()) {
                    objective += price(&way.change) * *taken;
                }
                rows.push(constraint!(taken.iter().sum::<Expression>() <= *variable_));
            }
            rows.push(constraint!(one.iter().sum::<Expression>() == *mode));
            chosen.push(one);
        }
        for ([first, second], wires) in &block.edges {
            let width = block.options[*second].len();
            for (place, wire) in wires.iter().enumerate() {
                let pair = variables.add(variable().bounds(0.0..=1.0));
                let seconds =
                    weights.forward_wire * wire.forward_s + weights.backward_wire * wire.backward_s;
                objective += seconds * pair;
                let (a, b) = (chosen[*first][place / width], chosen[*second][place % width]);
                rows.push(constraint!(a + b - 1.0 <= pair));
            }
        }
    }
    let model = variables.minimise(objective.clone()).using(microlp);
    let model = rows.into_iter().fold(model, SolverModel::with);
    model.solve().unwrap().eval(objective)
}

#[test]
fn the_dynamic_programme_equals_an_integer_programme_with_modes_and_ways() {
    for seed in 0..200 {
        let block = random(seed, 2 + seed as usize % 3, 2);
        let seconds_per_byte = 0.1 * (seed % 7) as f64;
        let keep = Weights { checkpoint: 0.0, ..Weights::ONCE };
        let (forward, forward_wire) = (2.0, 1.9);
        let again = Weights { forward, forward_wire, activation: 0.1, checkpoint: 1.0, ..keep };
        let modes = [keep, again];
        let least = |weights: &Weights| {
            let problem = block.problem(weights, seconds_per_byte);
            solve(&problem, seconds_per_byte).0
        };
        let cost = modes.iter().map(least).fold(f64::INFINITY, f64::min);
        let expected = integer_programme(&block, &modes, seconds_per_byte);
        assert!((cost - expected).abs() < 1e-6, "seed {seed}: {cost}, expected {expected}");
    }
}

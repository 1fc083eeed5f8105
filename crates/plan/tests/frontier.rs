//! The frontier dynamic programme against an integer programme and against all choices there are.

mod pareto;

use good_lp::{
    Expression, ProblemVariables, Solution, SolverModel, Variable, constraint, microlp, variable,
};
use pareto::{Point, pareto};
use proptest::prelude::*;
use thinwire_plan::stage::{Edge, Lack, Price, Problem, eliminate, solve, within};
use thinwire_wire::random::Key;

/// A problem of `variables` variables with `options` options each, a chain with random chords.
fn random(seed: u64, variables: usize, options: usize) -> Problem {
    let key = Key { seed, step: 0, tensor: 0 };
    let mut draws = (0..).map(move |draw| f64::from(key.uniform(draw)));
    let sizes: Vec<usize> =
        draws.by_ref().take(variables).map(|draw| 1 + (draw * options as f64) as usize).collect();
    let mut price = || Price { seconds: draws.next().unwrap(), bytes: draws.next().unwrap() };
    let mut prices = |count: usize| -> Vec<Price> { (0..count).map(|_| price()).collect() };
    let alone = sizes.iter().map(|size| prices(*size)).collect();
    let mut edges = Vec::new();
    for second in 1..variables {
        for first in [second - 1, (seed as usize * 7 + second * second) % second] {
            let prices = prices(sizes[first] * sizes[second]);
            edges.push(Edge { ends: [first, second], prices });
        }
    }
    Problem { options: alone, edges }
}

/// The price of one option per variable.
fn price_of(problem: &Problem, choices: &[usize]) -> Price {
    let alone = problem.options.iter().zip(choices).map(|(options, choice)| options[*choice]);
    let of_edge = |Edge { ends: [first, second], prices }: &Edge| {
        prices[choices[*first] * problem.options[*second].len() + choices[*second]]
    };
    alone.sum::<Price>() + problem.edges.iter().map(of_edge).sum()
}

/// The least cost by an integer programme: a variable between 0 and 1 for every option, whole, and
/// for every pair of options of an edge, which sum up to those of its two ends.
fn integer_programme(problem: &Problem) -> f64 {
    let mut variables = ProblemVariables::new();
    let mut objective = Expression::default();
    let mut rows = Vec::new();
    let mut chosen: Vec<Vec<Variable>> = Vec::new();
    for options in &problem.options {
        let one: Vec<Variable> =
            options.iter().map(|_| variables.add(variable().binary())).collect();
        for (variable, price) in one.iter().zip(options) {
            objective += price.seconds * *variable;
        }
        rows.push(constraint!(one.iter().sum::<Expression>() == 1.0));
        chosen.push(one);
    }
    for edge in &problem.edges {
        let [first, second] = edge.ends.map(|end| &chosen[end]);
        let pairs: Vec<Variable> =
            edge.prices.iter().map(|_| variables.add(variable().bounds(0.0..=1.0))).collect();
        for (variable, price) in pairs.iter().zip(&edge.prices) {
            objective += price.seconds * *variable;
        }
        for (place, variable) in first.iter().enumerate() {
            let row = &pairs[place * second.len()..(place + 1) * second.len()];
            rows.push(constraint!(row.iter().sum::<Expression>() == *variable));
        }
        for (place, variable) in second.iter().enumerate() {
            let column = pairs.iter().skip(place).step_by(second.len());
            rows.push(constraint!(column.sum::<Expression>() == *variable));
        }
    }
    let model = variables.minimise(objective.clone()).using(microlp);
    let model = rows.into_iter().fold(model, SolverModel::with);
    model.solve().unwrap().eval(objective)
}

#[test]
fn the_dynamic_programme_equals_an_integer_programme_on_a_thousand_graphs() {
    for seed in 0..1000 {
        let problem = random(seed, 2 + seed as usize % 5, 2 + seed as usize % 3);
        let (cost, choices) = solve(&problem, 0.0);
        assert!((price_of(&problem, &choices).seconds - cost).abs() < 1e-9, "seed {seed}");
        let expected = integer_programme(&problem);
        assert!((cost - expected).abs() < 1e-6, "seed {seed}: {cost}, expected {expected}");
    }
}

/// All choices of a problem.
fn all(problem: &Problem) -> Vec<Vec<usize>> {
    problem.options.iter().fold(vec![Vec::new()], |all, options| {
        let longer = |choices: &Vec<usize>| {
            let choices = choices.clone();
            (0..options.len()).map(move |option| [&choices[..], &[option]].concat())
        };
        all.iter().flat_map(longer).collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn what_is_kept_has_the_best_of_the_rest(seed in 0_u64..1 << 40, variables in 2_usize..6) {
        let problem = random(seed, variables, 4);
        let eliminated = eliminate(&problem, &problem.order(&[1, 0]), &[1, 0], 0.5);
        let sizes = [problem.options[1].len(), problem.options[0].len()];
        for (place, cost) in eliminated.costs.iter().enumerate() {
            let kept = [place / sizes[1], place % sizes[1]];
            let choices = eliminated.choices(&kept);
            prop_assert!((price_of(&problem, &choices).at(0.5) - cost).abs() < 1e-9);
            prop_assert_eq!([choices[1], choices[0]], kept);
            let others = all(&problem).into_iter();
            let others = others.filter(|choices| [choices[1], choices[0]] == kept);
            let least = others.map(|choices| price_of(&problem, &choices).at(0.5)).fold(f64::MAX, f64::min);
            prop_assert!((least - cost).abs() < 1e-9);
        }
    }

    #[test]
    fn the_pareto_set_has_the_best_choice_within_every_limit(seed in 0_u64..1 << 40, variables in 2_usize..6) {
        let problem = random(seed, variables, 4);
        let set = pareto(&problem);
        for point in &set {
            let price = price_of(&problem, &point.choices);
            prop_assert!((price.seconds - point.price.seconds).abs() < 1e-9);
            prop_assert!((price.bytes - point.price.bytes).abs() < 1e-9);
        }
        for choices in all(&problem) {
            let price = price_of(&problem, &choices);
            let better = |point: &Point| {
                point.price.seconds <= price.seconds + 1e-9 && point.price.bytes <= price.bytes + 1e-9
            };
            prop_assert!(set.iter().any(better), "{price:?}");
        }
    }

    #[test]
    fn the_gap_to_the_best_choice_within_a_limit_is_certified(seed in 0_u64..1 << 40, part in 0.0_f64..1.0) {
        let problem = random(seed, 5, 4);
        let prices: Vec<Price> = all(&problem).iter().map(|choices| price_of(&problem, choices)).collect();
        let least = prices.iter().map(|price| price.bytes).fold(f64::MAX, f64::min);
        let most = prices.iter().map(|price| price.bytes).fold(0.0, f64::max);
        let limit = least + part * (most - least) + 1e-9;
        let fitting = prices.iter().filter(|price| price.bytes <= limit);
        let best = fitting.map(|price| price.seconds).fold(f64::MAX, f64::min);
        let cheapest = |rate: f64| {
            let (_, choices) = solve(&problem, rate);
            (price_of(&problem, &choices), choices)
        };
        let found = within(limit, f64::INFINITY, cheapest).unwrap();
        prop_assert!(found.price.bytes <= limit);
        prop_assert!(found.bound_s <= best + 1e-9, "{} {best}", found.bound_s);
        prop_assert!(best <= found.price.seconds + 1e-9);
        let too_little = within(least - 1e-3, f64::INFINITY, cheapest).unwrap_err();
        prop_assert!(matches!(too_little, Lack::Bytes(bytes) if (bytes - least).abs() < 1e-6));
        let too_slow = within(limit, found.bound_s - 1e-9, cheapest).unwrap_err();
        prop_assert!(matches!(too_slow, Lack::Seconds(seconds) if seconds <= best + 1e-9));
    }
}

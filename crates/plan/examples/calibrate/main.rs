//! The cost model against published measurements: `calibrate FOLDER [all]`.
//!
//! Constants of the A100 are fitted on the rows of role `fit`, one set for all files; errors are
//! shown on those of role `check`, beside those of Calculon, the best open model, which has no
//! constants fitted. Regret is what a step takes with the plan that the model prefers, over the
//! fastest of the plans measured for the same model, devices and batch.

mod case;
mod constants;
mod row;

use std::collections::HashMap;
use std::error::Error;
use std::path::Path;

use case::{Case, Models};
use constants::Constants;
use rayon::prelude::*;
use row::Row;

/// Every so manieth row of a large file is fitted on, unless all are asked for.
const EVERY: usize = 4;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let folder = arguments.next().ok_or("calibrate FOLDER [all]")?;
    let every = if arguments.next().is_some() { 1 } else { EVERY };
    let folder = Path::new(&folder);
    let multi = row::vtrain(folder, "vtrain_ground_truth_multi.csv")?;
    let single = row::vtrain(folder, "vtrain_ground_truth_single.csv")?;
    let paper = row::megatron(folder, "megatron_sc21_table1.csv")?;
    let mut models = Models::new();
    let mut cases = |rows: &[Row]| {
        rows.iter()
            .map(|row| Case::new(row, &mut models, &Constants::START.cluster(row.devices)))
            .collect::<Result<Vec<_>, _>>()
    };
    let (multi, single, paper) = (cases(&multi)?, cases(&single)?, cases(&paper)?);
    let fit = |cases| fitted_on(cases);
    let few = fit(&single).into_iter().step_by(every).collect();
    let constants = Constants::fit(&[(1.0, fit(&multi)), (1.0, few), (0.3, fit(&paper))]);
    for (name, value) in Constants::NAMES.iter().zip(constants.values) {
        println!("{name:32} {value:.3}");
    }
    println!(
        "\n{:28} rows   error  (Calculon)  regret  (Calculon)  largest  rank correlation",
        "check rows"
    );
    report("vTrain, several nodes", &multi, &constants, "16.2 %", "1.3 %");
    report("vTrain, one node", &single, &constants, "38.9 %", "10.2 %");
    report("Megatron, SC'21 table 1", &paper, &constants, "12.0 %", "-");
    Ok(())
}

fn fitted_on(cases: &[Case]) -> Vec<&Case> {
    cases.iter().filter(|case| case.row.fit).collect()
}

/// One line about the rows that were not fitted on.
fn report(name: &str, cases: &[Case], constants: &Constants, error: &str, regret: &str) {
    let checks: Vec<&Case> = cases.iter().filter(|case| !case.row.fit).collect();
    let predicted: Vec<f64> = checks.par_iter().map(|case| constants.predict(case)).collect();
    let measured: Vec<f64> = checks.iter().map(|case| case.row.seconds).collect();
    let errors = predicted.iter().zip(&measured).map(|(ours, theirs)| (ours / theirs - 1.0).abs());
    let mean = 100.0 * errors.sum::<f64>() / checks.len() as f64;
    let regrets = regrets(&checks, &predicted);
    let mean_regret = 100.0 * regrets.iter().sum::<f64>() / regrets.len().max(1) as f64;
    let largest = 100.0 * regrets.iter().copied().fold(0.0, f64::max);
    let rows = checks.len();
    let rank = rank_correlation(&predicted, &measured);
    println!(
        "{name:28} {rows:4}  {mean:5.1} %  {error:>10}  {mean_regret:4.2} %  {regret:>10}  {largest:5.1} %  {rank:.3}"
    );
}

/// Of every model, number of devices and batch with several plans, the regret.
fn regrets(checks: &[&Case], predicted: &[f64]) -> Vec<f64> {
    let mut groups: HashMap<[usize; 4], Vec<(f64, f64)>> = HashMap::new();
    for (case, ours) in checks.iter().zip(predicted) {
        let Row { devices, batch, hidden, layers, seconds, .. } = case.row;
        groups.entry([devices, batch, hidden, layers]).or_default().push((*ours, seconds));
    }
    let several = groups.into_values().filter(|plans| plans.len() > 1);
    let regret = |plans: Vec<(f64, f64)>| {
        let preferred = plans.iter().min_by(|a, b| a.0.total_cmp(&b.0));
        let fastest = plans.iter().map(|(_, theirs)| *theirs).fold(f64::MAX, f64::min);
        preferred.map_or(0.0, |(_, theirs)| theirs / fastest - 1.0)
    };
    several.map(regret).collect()
}

/// Spearman's.
fn rank_correlation(one: &[f64], other: &[f64]) -> f64 {
    let ranks = |values: &[f64]| {
        let mut order: Vec<usize> = (0..values.len()).collect();
        order.sort_by(|a, b| values[*a].total_cmp(&values[*b]));
        let mut ranks = vec![0.0; values.len()];
        order.iter().enumerate().for_each(|(rank, place)| ranks[*place] = rank as f64);
        ranks
    };
    let n = one.len() as f64;
    let squares = ranks(one).into_iter().zip(ranks(other)).map(|(a, b)| (a - b).powi(2));
    1.0 - 6.0 * squares.sum::<f64>() / (n * (n * n - 1.0))
}

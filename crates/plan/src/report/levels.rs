//! Bytes of a step, level by level of the cluster.

use std::collections::BTreeMap;
use std::sync::Arc;

use thinwire_program::StepBytes;
use thinwire_program::bytes::{Exchange, Kind, Route};
use thinwire_wire::Rank;

use crate::Cluster;
use crate::cluster::Level;
use crate::cost::{Costs, Exchange as Levels};

/// The bytes that the busiest stage's devices send over one level in a step, mean over these devices, encoded
/// if the plan encodes them.
#[derive(Clone, Debug, PartialEq)]
pub struct LevelTraffic {
    /// The level.
    pub level: String,
    /// Activations and their gradients within the stage.
    pub collective_bytes: f64,
    /// Gradients of parameters and new parameters.
    pub parameter_bytes: f64,
    /// Messages between stages.
    pub message_bytes: f64,
    /// Seconds in which the busiest port of the level sends the bytes of all its devices.
    pub busy_s: f64,
}

/// Returns the bytes that devices send in a step, for every level of the cluster.
pub(super) fn levels(cluster: &Cluster, costs: &Costs<'_>, bytes: &StepBytes) -> Vec<LevelTraffic> {
    let ranks = bytes.stages * bytes.width();
    let mut sums = vec![vec![[0.0; 3]; ranks]; cluster.levels.len()];
    for (exchange, count) in alike(bytes) {
        let kind = exchange.kind as usize;
        let shares = level_shares(costs, exchange);
        bytes.pairs(exchange, |from, to, sent| {
            let sent = count as f64 * sent as f64;
            match &shares {
                Some(shares) => {
                    for (level, share) in shares.iter().enumerate() {
                        sums[level][from.index()][kind] += share * sent;
                    }
                }
                None => {
                    let level = crossed(&cluster.levels, [from.index(), to.index()]);
                    sums[level][from.index()][kind] += sent;
                }
            }
        });
    }
    let mut behind = 1;
    let levels = cluster.levels.iter().zip(&sums).map(|(level, devices)| {
        let traffic = traffic(level, devices, bytes.width(), behind);
        behind *= level.size;
        traffic
    });
    levels.collect()
}

/// Returns for every level whether activations or their gradients travel over it. A message uses the codec of
/// the outermost level that any pair of its stages crosses.
pub(super) fn crossed_by_activations(
    cluster: &Cluster,
    costs: &Costs<'_>,
    bytes: &StepBytes,
) -> Vec<bool> {
    let mut all = vec![false; cluster.levels.len()];
    for (exchange, _) in alike(bytes) {
        let mut outermost = 0;
        let mut visit = |from: Rank, to: Rank, _| {
            let level = crossed(&cluster.levels, [from.index(), to.index()]);
            outermost = outermost.max(level);
            all[level] |= exchange.kind == Kind::Activation;
        };
        match (exchange.kind, level_shares(costs, exchange)) {
            (Kind::Parameter, _) => {}
            (_, Some(shares)) => {
                all.iter_mut().zip(shares).for_each(|(one, share)| *one |= share > 0.0);
            }
            (Kind::Activation, None) => bytes.pairs(exchange, &mut visit),
            (Kind::Message, None) => {
                bytes.pairs(exchange, &mut visit);
                all[outermost] = true;
            }
        }
    }
    all
}

/// Returns each group of exchanges that send the same over the same route as one exchange, with the number of
/// exchanges in the group.
fn alike(bytes: &StepBytes) -> Vec<(&Exchange, usize)> {
    let mut all = BTreeMap::new();
    for one in &bytes.exchanges {
        let key = (one.stage, one.kind, one.route, one.times, Arc::as_ptr(&one.volume) as usize);
        all.entry(key).or_insert((one, 0)).1 += 1;
    }
    all.into_values().collect()
}

/// Returns the part of a collective's bytes that crosses each level, if the collective runs level by level,
/// in a program other than the executor; `None` if the executor's own schedules determine it.
fn level_shares(costs: &Costs<'_>, exchange: &Exchange) -> Option<Vec<f64>> {
    match exchange.route {
        Route::Along(dim) if costs.exchange != Levels::Flat => Some(costs.level_shares(dim)),
        _ => None,
    }
}

/// Returns the outermost level on which two devices differ.
fn crossed(levels: &[Level], mut devices: [usize; 2]) -> usize {
    let mut outermost = 0;
    for (at, level) in levels.iter().enumerate() {
        if devices[0] != devices[1] {
            outermost = at;
        }
        devices = devices.map(|device| device / level.size);
    }
    outermost
}

/// Returns the traffic of one level, each of whose ports has `behind` devices.
fn traffic(level: &Level, devices: &[[f64; 3]], width: usize, behind: usize) -> LevelTraffic {
    let sum = |devices: &[[f64; 3]]| {
        devices.iter().fold([0.0; 3], |sum, one| std::array::from_fn(|kind| sum[kind] + one[kind]))
    };
    let total = |bytes: &[f64; 3]| bytes.iter().sum::<f64>();
    let stages = devices.chunks(width).map(sum);
    let busiest = stages.max_by(|a, b| total(a).total_cmp(&total(b))).unwrap_or_default();
    let ports = devices.chunks(behind).map(|port| total(&sum(port)));
    let [collective_bytes, parameter_bytes, message_bytes] =
        busiest.map(|bytes| bytes / width as f64);
    LevelTraffic {
        level: level.name.clone(),
        collective_bytes,
        parameter_bytes,
        message_bytes,
        busy_s: ports.fold(0.0, f64::max) / level.bytes_per_s,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn level(size: usize) -> Level {
        let name = format!("of {size}");
        Level { name, size, latency_s: 0.0, bytes_per_s: 2.0, links: None }
    }

    #[test]
    fn devices_cross_the_outermost_level_on_which_they_differ() {
        let levels = [level(4), level(2), level(3)];
        let found = [[0, 3], [3, 4], [4, 8], [0, 23]].map(|pair| crossed(&levels, pair));
        assert_eq!(found, [0, 1, 2, 2]);
    }

    #[test]
    fn a_port_sends_what_the_devices_behind_it_send() {
        // Four stages of one device, two to a port; then one stage over both ports.
        let busy_s = |devices: &[f64], width, behind| {
            let devices: Vec<[f64; 3]> = devices.iter().map(|bytes| [0.0, *bytes, 0.0]).collect();
            traffic(&level(4), &devices, width, behind).busy_s
        };
        assert_eq!(busy_s(&[1.0, 2.0, 4.0, 1.0], 1, 2), 2.5);
        assert_eq!(busy_s(&[3.0; 4], 4, 2), 3.0);
        assert_eq!(busy_s(&[3.0, 1.0], 1, 1), 1.5);
    }

    #[test]
    fn the_busiest_stage_is_shown_in_the_mean_of_its_devices() {
        let devices = [[1.0, 0.0, 0.0], [3.0, 0.0, 0.0], [0.0, 5.0, 2.0], [0.0, 0.0, 1.0]];
        let found = traffic(&level(4), &devices, 2, 4);
        let bytes = [found.collective_bytes, found.parameter_bytes, found.message_bytes];
        assert_eq!(bytes, [0.0, 2.5, 1.5]);
    }
}

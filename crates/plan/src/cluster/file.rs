//! Cluster files in TOML, with the meaning and range of each field.
//!
//! ```toml
//! [[device]]
//! name = "a100"
//! tflops = 312
//! memory_gib = 80
//! fixed_mib = 300                        # of it, whatever is trained
//! memory_slack = 0.1                     # taken beyond what a plan counts: what an allocator keeps
//! memory_gbyte_per_s = 2039
//! codec_gbyte_per_s = 300                # f32 encoded or decoded; a third of memory's rate unless said
//! handling_gbyte_per_s = 2               # sent and received, if it takes the device's own time
//! handling_us = 20                       # of every message
//! exchange_us = 50                       # of every change of layout, beyond what travels
//! operators = { attention = 0.5 }        # half as fast as other operators of its kind
//! efficiency = [[0.1, 0.2], [10, 0.6]]   # pairs of gflop and the fraction of tflops
//!
//! [[level]]                              # innermost first
//! name = "node"
//! size = 8                               # devices
//! latency_us = 3
//! gbit = 2400                            # of one device
//!
//! [[level]]
//! name = "pod"
//! size = 16                              # nodes
//! latency_us = 10
//! gbit = 800                             # of one node
//! ```
//!
//! If links of a level differ, `gbit_matrix` replaces `gbit`, and `latency_us_matrix` may replace
//! `latency_us`: a row for every sender, with a number for every receiver. The diagonal is ignored.

use std::collections::{BTreeMap, HashMap};

use serde::Deserialize;
use thinwire_model::Operator;

use super::matrix::{LevelTable, links};
use super::range::{
    FIXED_MIB, GBIT, GBYTE_PER_S, GFLOP, MEMORY_GIB, PACE, PART, SLACK, TFLOPS, TIME_US, within,
};
use super::{ADD, Cluster, Device, Efficiency, Handling, LAYOUT, Lane, Level, UPDATE};
use crate::Error;

const MIB: f64 = (1_u64 << 20) as f64;
const GIB: f64 = (1_u64 << 30) as f64;
/// Largest number of devices; a larger number is refused as a mistake.
const DEVICES_MAX: usize = 1 << 20;
/// Largest number of levels; a larger number is refused as a mistake.
const LEVELS_MAX: usize = 32;
/// Names of measured work other than the model's operators: the optimiser, adding up gradients, and copying
/// for transfers.
const BESIDE: [&str; 3] = [UPDATE, ADD, LAYOUT];
/// Links of a level with one member, over which nothing travels.
const ALONE: Lane = Lane { latency_s: 0.0, bytes_per_s: 1e15 };

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    kinds: Vec<String>,
    device: Vec<DeviceTable>,
    level: Vec<LevelTable>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DeviceTable {
    name: String,
    tflops: f64,
    memory_gib: f64,
    #[serde(default)]
    fixed_mib: f64,
    #[serde(default)]
    memory_slack: f64,
    memory_gbyte_per_s: f64,
    #[serde(default = "whole")]
    memory_efficiency: f64,
    codec_gbyte_per_s: Option<f64>,
    #[serde(default)]
    overhead_us: f64,
    handling_gbyte_per_s: Option<f64>,
    #[serde(default)]
    handling_us: f64,
    #[serde(default)]
    exchange_us: f64,
    #[serde(default)]
    operators: BTreeMap<String, f64>,
    #[serde(default)]
    efficiency: Vec<Vec<f64>>,
}

fn whole() -> f64 {
    1.0
}

/// Returns the cluster that a file describes.
pub(super) fn parse(text: &str) -> Result<Cluster, Error> {
    let file: File = toml::from_str(text).map_err(|error| syntax(text, &error))?;
    if file.device.is_empty() || file.level.is_empty() {
        let (devices, levels) = (file.device.len(), file.level.len());
        let found = format!("{devices} devices and {levels} levels, expected at least one of each");
        return Err(Error::file(found));
    }
    if file.level.len() > LEVELS_MAX {
        let levels = file.level.len();
        return Err(Error::file(format!("{levels} levels, expected at most {LEVELS_MAX}")));
    }
    let names: Vec<&str> = file.device.iter().map(|device| device.name.as_str()).collect();
    unique("device", &names)?;
    unique("level", &file.level.iter().map(|level| level.name.as_str()).collect::<Vec<_>>())?;
    let devices = file.device.iter().map(device).collect::<Result<Vec<_>, _>>()?;
    let levels = file.level.iter().map(level).collect::<Result<Vec<_>, _>>()?;
    size(&levels)?;
    let kinds = kinds(&file.kinds, &names, &levels)?;
    Ok(Cluster { devices, levels, kinds })
}

/// Returns an error of one line with its place: the field from serde, the line from the parser.
fn syntax(text: &str, error: &toml::de::Error) -> Error {
    let line = error.span().map_or(1, |span| 1 + text[..span.start].matches('\n').count());
    let message = error.message().lines().collect::<Vec<_>>().join(", ");
    Error::file(format!("line {line}: {message}"))
}

fn unique(what: &str, names: &[&str]) -> Result<(), Error> {
    let mut places = HashMap::new();
    for (place, name) in names.iter().enumerate() {
        if let Some(first) = places.insert(*name, place) {
            let (first, second) = (first + 1, place + 1);
            let twice = format!("appears twice, as {what} {first} and {what} {second}");
            return Err(Error::file(format!("{what} '{name}' {twice}")));
        }
    }
    Ok(())
}

fn device(table: &DeviceTable) -> Result<Device, Error> {
    let about = format!("device '{}'", table.name);
    let within = |field, value, range| within(&about, field, value, range);
    let memory_gib = within("memory_gib", table.memory_gib, MEMORY_GIB)?;
    let fixed_mib = within("fixed_mib", table.fixed_mib, FIXED_MIB)?;
    if MIB * fixed_mib >= GIB * memory_gib {
        let found = format!("fixed_mib is {fixed_mib} of {} MiB", 1024.0 * memory_gib);
        return Err(Error::file(format!("{about}: {found}, expected less than memory_gib")));
    }
    let memory_gbyte_per_s = within("memory_gbyte_per_s", table.memory_gbyte_per_s, GBYTE_PER_S)?;
    let memory_efficiency = within("memory_efficiency", table.memory_efficiency, PART)?;
    let codec_gbyte_per_s = match table.codec_gbyte_per_s {
        Some(rate) => within("codec_gbyte_per_s", rate, GBYTE_PER_S)?,
        // Values and residual are read and the residual is written.
        None => memory_gbyte_per_s * memory_efficiency / 3.0,
    };
    Ok(Device {
        name: table.name.clone(),
        flops_per_s: 1e12 * within("tflops", table.tflops, TFLOPS)?,
        memory_bytes: GIB * memory_gib,
        fixed_bytes: MIB * fixed_mib,
        slack: within("memory_slack", table.memory_slack, SLACK)?,
        memory_bytes_per_s: 1e9 * memory_gbyte_per_s,
        memory_efficiency,
        codec_bytes_per_s: 1e9 * codec_gbyte_per_s,
        overhead_s: 1e-6 * within("overhead_us", table.overhead_us, TIME_US)?,
        efficiency: efficiency(&about, &table.efficiency)?,
        handling: handling(&about, table)?,
        operators: operators(&about, &table.operators)?,
    })
}

fn operators(about: &str, paces: &BTreeMap<String, f64>) -> Result<BTreeMap<String, f64>, Error> {
    let known = |name: &str| Operator::NAMES.contains(&name) || BESIDE.contains(&name);
    for (operator, pace) in paces {
        if !known(operator) {
            let error = Error::file(format!("{about}: no operator is called '{operator}'"));
            return Err(error.with_hint("thinwire model show prints what operators are called"));
        }
        within(about, &format!("operators.{operator}"), *pace, PACE)?;
    }
    Ok(paces.clone())
}

fn handling(about: &str, table: &DeviceTable) -> Result<Handling, Error> {
    let byte_s = match table.handling_gbyte_per_s {
        Some(rate) => 1e-9 / within(about, "handling_gbyte_per_s", rate, GBYTE_PER_S)?,
        None => 0.0,
    };
    let message_s = 1e-6 * within(about, "handling_us", table.handling_us, TIME_US)?;
    let exchange_s = 1e-6 * within(about, "exchange_us", table.exchange_us, TIME_US)?;
    Ok(Handling { byte_s, message_s, exchange_s })
}

fn efficiency(about: &str, points: &[Vec<f64>]) -> Result<Efficiency, Error> {
    let pair = |point: &Vec<f64>| match point[..] {
        [gflop, fraction] => Ok((gflop, fraction)),
        _ => {
            let found = format!("efficiency {point:?} has {} numbers", point.len());
            Err(Error::file(format!("{about}: {found}, expected gflop and a fraction")))
        }
    };
    let points = points.iter().map(pair).collect::<Result<Vec<_>, _>>()?;
    for (gflop, fraction) in &points {
        within(about, "efficiency's gflop", *gflop, GFLOP)?;
        within(about, &format!("efficiency at {gflop} gflop"), *fraction, PART)?;
    }
    if let Some(pair) = points.windows(2).find(|pair| pair[1].0 <= pair[0].0) {
        let found = format!("at {} gflop follows that at {} gflop", pair[1].0, pair[0].0);
        let expected = "expected more gflop in every pair";
        return Err(Error::file(format!("{about}: efficiency {found}, {expected}")));
    }
    let points: Vec<_> = points.iter().map(|(gflop, fraction)| (1e9 * gflop, *fraction)).collect();
    Ok(if points.is_empty() { Efficiency::constant(1.0) } else { Efficiency::through(points) })
}

fn level(table: &LevelTable) -> Result<Level, Error> {
    let about = format!("level '{}'", table.name);
    if table.size == 0 {
        return Err(Error::file(format!("{about}: size is 0, expected at least 1")));
    }
    let links = links(&about, table)?;
    if table.gbit_matrix.is_some() && links.is_none() {
        // A member alone has links to nobody.
        let Lane { latency_s, bytes_per_s } = ALONE;
        return Ok(Level { name: table.name.clone(), size: 1, latency_s, bytes_per_s, links });
    }
    let one = |field: &str, value: Option<f64>| {
        value.ok_or_else(|| Error::file(format!("{about} has no {field}, expected a number")))
    };
    let Lane { latency_s, bytes_per_s } = match &links {
        Some(links) => links.worst(),
        None => Lane {
            latency_s: 1e-6
                * within(&about, "latency_us", one("latency_us", table.latency_us)?, TIME_US)?,
            bytes_per_s: 1e9 / 8.0 * within(&about, "gbit", one("gbit", table.gbit)?, GBIT)?,
        },
    };
    Ok(Level { name: table.name.clone(), size: table.size, latency_s, bytes_per_s, links })
}

fn size(levels: &[Level]) -> Result<(), Error> {
    let mut size: usize = 1;
    for Level { name, size: members, .. } in levels {
        size = size.saturating_mul(*members);
        if size > DEVICES_MAX {
            let found = format!("level '{name}': size {members} makes {size} devices");
            return Err(Error::file(format!("{found}, expected at most {DEVICES_MAX}")));
        }
    }
    Ok(())
}

/// Returns the kind of device of every unit of the innermost level.
fn kinds(kinds: &[String], names: &[&str], levels: &[Level]) -> Result<Vec<usize>, Error> {
    if kinds.is_empty() && names.len() > 1 {
        let (kinds, level) = (names.len(), &levels[0].name);
        let unsaid = format!("no line 'kinds' says which {level} has devices of which kind");
        return Err(Error::file(format!("{kinds} kinds of devices, but {unsaid}")));
    }
    let units: usize = levels[1..].iter().map(|level| level.size).product();
    if !kinds.is_empty() && kinds.len() != units {
        let (found, level) = (kinds.len(), &levels[0].name);
        let plural = if found == 1 { "unit" } else { "units" };
        let found = format!("kinds names {found} {plural} of level '{level}'");
        return Err(Error::file(format!("{found}, expected {units}")));
    }
    let place = |kind: &String| {
        let unknown =
            || format!("kinds names device '{kind}', expected one of {}", names.join(", "));
        let found = names.iter().position(|name| name == kind);
        found.ok_or_else(|| Error::file(unknown()))
    };
    kinds.iter().map(place).collect()
}

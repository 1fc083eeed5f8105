//! Checks of a plan file that do not depend on its model, since people and other programs may have written
//! it.

use std::collections::HashSet;

use thinwire_model::Graph;

use super::{PlanFile, WayFile};
use crate::{Error, counted};

/// The first version of plan files.
pub const FIRST_VERSION: u64 = 1;
/// The latest version of plan files, which is the first with codecs of activations.
pub const VERSION: u64 = 2;
/// The largest number of micro-batches of a step.
pub const MICRO_BATCHES_MAX: usize = 1 << 16;

/// Refuses a file of another version, before its other content is parsed.
pub(super) fn version(text: &str) -> Result<(), Error> {
    let table: toml::Table = toml::from_str(text).unwrap_or_default();
    match table.get("version").unwrap_or(&toml::Value::Integer(FIRST_VERSION as i64)) {
        toml::Value::Integer(found) if (FIRST_VERSION as i64..=VERSION as i64).contains(found) => {
            Ok(())
        }
        found => {
            let message =
                format!("a plan of version {found}, expected {FIRST_VERSION} to {VERSION}");
            Err(Error::file(message).with_hint("make the plan again with this thinwire"))
        }
    }
}

/// Refuses numbers and lists that contradict each other.
pub(super) fn file(file: &PlanFile) -> Result<(), Error> {
    seconds("step_s", file.step_s)?;
    seconds("bound_s", file.bound_s)?;
    micro_batches(file)?;
    shares(file)?;
    chunks(file)?;
    devices(file)?;
    let blocks = file.way.iter().flat_map(|way| &way.blocks);
    once("block", "ways", blocks)?;
    once("block", "recomputed", file.recomputed.iter())?;
    once("parameter", "codecs", file.codec.iter().flat_map(|codec| &codec.parameters))?;
    once("parameter", "divisions", file.division.iter().flat_map(|one| &one.parameters))?;
    file.codec.iter().try_for_each(|one| units(&one.name, one.level.as_deref(), one.within))?;
    file.activation
        .iter()
        .try_for_each(|one| units(&one.name, one.level.as_deref(), one.within))?;
    activations(file)?;
    match file.codec.iter().find(|codec| codec.parameters.is_empty()) {
        None => Ok(()),
        Some(codec) => {
            let message =
                format!("codec '{}' encodes 0 parameters, expected 1 or more", codec.name);
            Err(Error::file(message))
        }
    }
}

/// Refuses units without devices, and units of a level that is not named.
fn units(codec: &str, level: Option<&str>, within: Option<usize>) -> Result<(), Error> {
    let message = match (level, within) {
        (_, Some(0)) => format!("codec '{codec}' is not used within 0 devices, expected 1 or more"),
        (None, Some(within)) => {
            format!("codec '{codec}' has within = {within} without a level, expected both or none")
        }
        _ => return Ok(()),
    };
    Err(Error::file(message))
}

/// Refuses two codecs of activations for the same units of devices, and all of them if the version of the
/// file does not have any.
fn activations(file: &PlanFile) -> Result<(), Error> {
    if file.version < VERSION
        && let Some(given) = file.activation.first()
    {
        let message =
            format!("a plan of version {} has activations by '{}'", file.version, given.name);
        return Err(Error::file(format!("{message}, expected version {VERSION}")));
    }
    let mut seen: Vec<(usize, &str)> = Vec::new();
    for given in &file.activation {
        let within = given.within.filter(|_| given.level.is_some()).unwrap_or(1);
        if let Some((_, other)) = seen.iter().find(|(known, _)| *known == within) {
            let message = format!("activations have '{other}' and '{}'", given.name);
            return Err(Error::file(format!("{message} within {within}, expected one of them")));
        }
        seen.push((within, &given.name));
    }
    Ok(())
}

fn seconds(field: &str, value: f64) -> Result<(), Error> {
    match value.is_finite() && value >= 0.0 {
        true => Ok(()),
        false => Err(Error::file(format!("{field} is {value}, expected a number of at least 0"))),
    }
}

fn micro_batches(file: &PlanFile) -> Result<(), Error> {
    let (batch, count) = (file.batch, file.micro_batches);
    if !(1..=MICRO_BATCHES_MAX).contains(&count) {
        let expected = format!("expected 1 to {MICRO_BATCHES_MAX}");
        return Err(Error::file(format!("{count} micro-batches, {expected}")));
    }
    if batch == 0 || !batch.is_multiple_of(count) {
        let found = format!("batch of {batch} does not divide into {count} micro-batches");
        return Err(Error::file(found));
    }
    Ok(())
}

/// Checks that there is one share for every part along the first dimension of the mesh, or none.
fn shares(file: &PlanFile) -> Result<(), Error> {
    let (shares, parts) = (file.shares.len(), file.mesh.first().copied().unwrap_or(1));
    if shares != 0 && shares != parts {
        let mesh = &file.mesh;
        let message = format!("shares of {shares} parts, expected {parts} as in mesh {mesh:?}");
        return Err(Error::file(message));
    }
    let all = parts.checked_mul(file.micro_batches);
    let sum = file.shares.iter().try_fold(0_usize, |sum, share| sum.checked_add(*share));
    if shares != 0 && (sum != all || file.shares.contains(&0)) {
        let (found, each) = (&file.shares, file.micro_batches);
        let expected = format!("expected {parts} of 1 or more that add up to {parts} times {each}");
        return Err(Error::file(format!("shares are {found:?}, {expected}")).with_hint(
            "a share is the number of micro-batches that one part along the first dimension of \
             the mesh computes",
        ));
    }
    Ok(())
}

/// Checks that every chunk has a block.
fn chunks(file: &PlanFile) -> Result<(), Error> {
    let (stages, chunks) = (file.stage.len(), file.schedule.chunks());
    let blocks: usize = file.way.iter().map(|way| way.blocks.len()).sum();
    // Without a stage or a way there is another error.
    let most = (blocks / stages.max(1)).max(1);
    if (1..=most).contains(&chunks) {
        return Ok(());
    }
    let found = format!("schedule has {chunks} chunks a stage");
    let of = format!("{} and {}", counted(stages, "stage"), counted(blocks, "block"));
    Err(Error::file(format!("{found}, expected 1 to {most} with {of}"))
        .with_hint("every chunk needs a block; fewer stages leave room for more chunks"))
}

/// Checks that every rank has a device of its own, or none has.
fn devices(file: &PlanFile) -> Result<(), Error> {
    let known: HashSet<&usize> = file.devices.iter().collect();
    let count = file.devices.len();
    let product =
        file.mesh.iter().try_fold(file.stage.len(), |ranks, size| ranks.checked_mul(*size));
    let Some(ranks) = product else {
        let (stages, mesh) = (file.stage.len(), &file.mesh);
        let message = format!("{stages} stages of mesh {mesh:?} are too many devices to count");
        return Err(Error::file(message));
    };
    if count != 0 && (count < ranks || known.len() < count) {
        let found = format!("devices names {} devices in {count} places", known.len());
        return Err(Error::file(format!(
            "{found}, expected a different one for each of {ranks} ranks"
        )));
    }
    Ok(())
}

/// Refuses a name that occurs twice.
fn once<'a>(what: &str, place: &str, names: impl Iterator<Item = &'a String>) -> Result<(), Error> {
    let mut seen = HashSet::new();
    for name in names {
        if !seen.insert(name) {
            let message = format!("{what} '{name}' appears twice in {place}, expected it once");
            return Err(Error::file(message));
        }
    }
    Ok(())
}

/// Refuses strategies of blocks, and of nodes in them, that the model does not have.
pub(super) fn ways(ways: &[WayFile], graph: &Graph) -> Result<(), Error> {
    for way in ways {
        for name in &way.blocks {
            let block = graph.blocks.iter().find(|block| block.name == *name);
            let unknown = || {
                Error::file(format!("a way is for block '{name}', but the model has no such block"))
            };
            let block = block.ok_or_else(unknown)?;
            let nodes = &graph.nodes[block.nodes.clone()];
            let prefix = format!("{name}.");
            let known: HashSet<&str> = nodes
                .iter()
                .map(|node| node.name.strip_prefix(&prefix).unwrap_or(&node.name))
                .collect();
            if let Some(node) = way.nodes.keys().find(|node| !known.contains(node.as_str())) {
                let message =
                    format!("a way cuts node '{node}', but block '{name}' has no such node");
                return Err(Error::file(message));
            }
        }
    }
    Ok(())
}

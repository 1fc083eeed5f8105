//! A synchroniser's state between Python and the core: named tensors as bytes of f32, and the plan.
//!
//! It comes from a file, so all of it is checked before any of it is used: a state is loaded as a whole
//! or refused.

use std::collections::BTreeMap;

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use thinwire_sync::{Parameter, Plan, State, Synchronizer, count_of, tensor_of_count};
use thinwire_wire::World;

use crate::error::Failure;
use crate::options;

/// The name under which a state holds the step, from which stochastic rounding draws its numbers.
const STEP: &str = "step";

/// Prefix of a parameter's name for tensors with a number for each of its elements.
const ELEMENTWISE: [&str; 4] = ["residual.", "shift.", "mean.", "momentum."];

/// Prefix for tensors whose number of elements depends on the codec.
const OTHERS: [&str; 2] = ["factor.", "scale."];

/// More parts of a bucket than any plan has.
const PARTITIONS_MAX: usize = 1 << 16;

/// Named tensors in Python: shape and bytes of f32.
pub(crate) type Tensors<'py> = BTreeMap<String, (Vec<usize>, Bound<'py, PyBytes>)>;

/// Returns a state of the core.
pub(crate) fn read(plan: String, tensors: Tensors<'_>) -> Result<State, Failure> {
    Ok(State { plan, tensors: taken(tensors)? })
}

/// Returns tensors of the core.
fn taken(tensors: Tensors<'_>) -> Result<thinwire_sync::Tensors, Failure> {
    let tensors = tensors.into_iter().map(|(name, (shape, bytes))| {
        let values = floats(&name, bytes.as_bytes())?;
        let expected = shape.iter().try_fold(1_usize, |total, &size| total.checked_mul(size));
        if expected != Some(values.len()) {
            let found = values.len();
            return Err(Failure::invalid(format!(
                "{name} in the state has {found} elements, expected those of its shape {shape:?}"
            )));
        }
        Ok((name, (shape, values)))
    });
    tensors.collect()
}

/// Returns tensors for Python.
pub(crate) fn given(
    py: Python<'_>,
    tensors: thinwire_sync::Tensors,
) -> PyResult<Bound<'_, PyDict>> {
    let dict = PyDict::new(py);
    for (name, (shape, values)) in tensors {
        dict.set_item(name, (shape, PyBytes::new(py, bytemuck::cast_slice(&values))))?;
    }
    Ok(dict)
}

/// Returns the state from which rank `rank` of `world` continues, if `saved` ranks have saved theirs;
/// `read` returns the tensors of one of them.
#[pyfunction]
pub(crate) fn reshard<'py>(
    py: Python<'py>,
    rank: u32,
    world: u32,
    saved: usize,
    read: Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyDict>> {
    let world = World::new(rank, world).map_err(|error| Failure::invalid(error.to_string()))?;
    let read = |rank: usize| Ok(taken(read.call1((rank,))?.extract()?)?);
    let tensors = thinwire_sync::reshard(world, saved, read);
    given(py, tensors.map_err(|Raised(error)| error)?)
}

/// An error of the core or of Python.
struct Raised(PyErr);

impl From<PyErr> for Raised {
    fn from(error: PyErr) -> Raised {
        Raised(error)
    }
}

impl From<Failure> for Raised {
    fn from(failure: Failure) -> Raised {
        Raised(failure.into())
    }
}

impl From<thinwire_sync::Error> for Raised {
    fn from(error: thinwire_sync::Error) -> Raised {
        Failure::from(error).into()
    }
}

/// Returns the f32 in these bytes, which must be finite.
pub(crate) fn floats(name: &str, bytes: &[u8]) -> Result<Vec<f32>, Failure> {
    if !bytes.len().is_multiple_of(4) {
        let found = bytes.len();
        return Err(Failure::invalid(format!(
            "{name} in the state has {found} bytes, expected a multiple of 4"
        )));
    }
    let values: Vec<f32> = bytemuck::pod_collect_to_vec(bytes);
    match values.iter().find(|value| !value.is_finite()) {
        None => Ok(values),
        Some(value) => Err(Failure::invalid(format!(
            "{name} in the state holds {value}, expected finite numbers"
        ))),
    }
}

/// Adds the step to a state.
pub(crate) fn put_step(state: &mut State, step: u64) {
    state.tensors.insert(STEP.to_owned(), tensor_of_count(step));
}

/// Takes the step out of a state, if it has one.
fn take_step(state: &mut State) -> Result<Option<u64>, Failure> {
    let Some((_, values)) = state.tensors.remove(STEP) else { return Ok(None) };
    count_of(&values).map(Some).ok_or_else(|| {
        Failure::invalid(format!(
            "the step in the state is {values:?}, expected two whole numbers below 16777216"
        ))
    })
}

/// Refuses tensors that belong to no parameter or have another length, since they are of another model.
fn check(state: &State, parameters: &[Parameter]) -> Result<(), Failure> {
    let known: BTreeMap<&str, usize> =
        parameters.iter().map(|each| (each.name.as_str(), each.elements())).collect();
    let of_parameters = state.tensors.iter().filter(|(name, _)| *name != State::WARM_UP);
    for (name, (_, values)) in of_parameters {
        let after = |kinds: &[&str]| kinds.iter().find_map(|kind| name.strip_prefix(kind));
        let elementwise = after(&ELEMENTWISE);
        let of = elementwise.or_else(|| after(&OTHERS));
        let Some(expected) = of.and_then(|of| known.get(of)) else {
            return Err(Failure::invalid(format!(
                "the state is of another model: it has '{name}', and this model no such parameter"
            )));
        };
        if elementwise.is_some() && values.len() != *expected {
            return Err(Failure::invalid(format!(
                "the state is of another model: {name} has {} elements, expected {expected}",
                values.len()
            )));
        }
    }
    Ok(())
}

/// Checks a state; returns one that `sync` can load, and its step.
pub(crate) fn loadable(
    mut state: State,
    sync: &Synchronizer,
) -> Result<(State, Option<u64>), Failure> {
    let plan = plan(&state)?;
    let step = take_step(&mut state)?;
    state.check(sync.options())?;
    check(&state, sync.parameters())?;
    let current = sync.state();
    settle(&mut state, &current);
    // Another layout of buckets has another plan; residuals belong to parameters.
    if plan.assignments.len() != sync.plan().assignments.len() {
        state.plan = current.plan;
    }
    Ok((state, step))
}

/// Returns the facts that must be equal in the states of all ranks.
pub(crate) fn facts(step: Option<u64>) -> Vec<(String, String)> {
    vec![("step".to_owned(), step.map_or("none".to_owned(), |step| step.to_string()))]
}

/// Refuses, before ranks meet, a state whose plan cannot be read, or is of a training with another
/// codec, feedback or momentum correction than these options.
#[pyfunction]
#[pyo3(signature = (plan, codec = "none", feedback = "classic", momentum_correction = None, **_others))]
pub(crate) fn check_state(
    plan: String,
    codec: &str,
    feedback: &str,
    momentum_correction: Option<f32>,
    _others: Option<&Bound<'_, PyDict>>,
) -> PyResult<()> {
    let options = options::named(codec, feedback, momentum_correction)?;
    let state = State { plan, ..State::default() };
    Ok(state.check(&options).map_err(Failure::from)?)
}

/// Returns the plan of a state; refuses one with numbers that no planner gives.
fn plan(state: &State) -> Result<Plan, Failure> {
    let plan: Plan = serde_json::from_str(&state.plan)
        .map_err(|error| Failure::invalid(format!("cannot read the plan in the state: {error}")))?;
    let mut partitions = plan.assignments.iter().map(|assignment| assignment.partitions);
    match partitions.find(|partitions| !(1..=PARTITIONS_MAX).contains(partitions)) {
        None => Ok(plan),
        Some(found) => Err(Failure::invalid(format!(
            "the plan in the state has {found} partitions, expected 1..={PARTITIONS_MAX}"
        ))),
    }
}

/// Adds zeros for elementwise tensors of `current` that a state does not have.
fn settle(state: &mut State, current: &State) {
    for (name, (shape, values)) in &current.tensors {
        let elementwise = ELEMENTWISE.iter().any(|kind| name.starts_with(kind));
        if elementwise && !state.tensors.contains_key(name) {
            state.tensors.insert(name.clone(), (shape.clone(), vec![0.0; values.len()]));
        }
    }
}

//! State of a training that is equal on all replicas, as bytes: joining ranks take it over.
//!
//! A snapshot is a safetensors file in memory, with `model/NAME`, `model/NAME.mean`, `model/NAME.square`
//! and `exchange/NAME`, and the counts in its metadata. Laws: ranks with equal state make equal bytes; any
//! bytes are either parsed as a state or refused; nothing is lost.

use std::collections::HashMap;

use safetensors::tensor::{Dtype, TensorView};
use safetensors::{SafeTensorError, SafeTensors};
use serde::{Deserialize, Serialize};
use thinwire_sync::State;

use super::invalid;
use crate::Parameter;
use crate::checkpoint::{Tensors, tensors_of};
use crate::error::Error;

/// Suffixes of a parameter's values, means and means of squares.
pub(super) const SUFFIXES: [&str; 3] = ["", ".mean", ".square"];

/// Key of the counts in the metadata; there is only one key, so that equal states have equal bytes.
const ABOUT: &str = "thinwire";
const MODEL: &str = "model/";
const EXCHANGE: &str = "exchange/";

/// State of a training that is equal on all replicas.
#[derive(Clone, Debug, PartialEq)]
pub struct Snapshot {
    /// Number of steps that were taken.
    pub step: u64,
    /// Number of updates that the optimiser has made.
    pub updates: u64,
    /// Parameters by name, with their moments as `NAME.mean` and `NAME.square`.
    pub model: Tensors,
    /// State of the exchange that is equal on all ranks.
    pub exchange: State,
    /// Text of the caller, such as the position in the data.
    pub about: String,
}

/// Content of the metadata.
#[derive(Serialize, Deserialize)]
struct About {
    step: u64,
    updates: u64,
    plan: String,
    about: String,
}

/// Parameters of a replica with their values, means and means of squares.
pub(super) struct Replica<'a> {
    pub parameters: &'a [Parameter],
    pub buffers: [&'a [Vec<f32>]; 3],
}

impl Replica<'_> {
    /// Returns the bytes of a snapshot.
    pub fn to_bytes(
        &self,
        exchange: &State,
        step: u64,
        updates: u64,
        about: &str,
    ) -> Result<Vec<u8>, Error> {
        let of_model = self.parameters.iter().enumerate().flat_map(|(index, parameter)| {
            SUFFIXES.iter().zip(self.buffers).map(move |(suffix, all)| {
                (format!("{MODEL}{}{suffix}", parameter.name), &parameter.shape, &all[index])
            })
        });
        let of_exchange = exchange.tensors.iter();
        let of_exchange =
            of_exchange.map(|(name, (shape, values))| (format!("{EXCHANGE}{name}"), shape, values));
        let cannot = |error| invalid(format!("a state that cannot be handed over: {error}"));
        let views = of_model
            .chain(of_exchange)
            .map(|(name, shape, values)| view(name, shape, values))
            .collect::<Result<Vec<_>, _>>();
        let plan = exchange.plan.clone();
        let about = About { step, updates, plan, about: about.to_owned() };
        let about = serde_json::to_string(&about).expect("numbers and strings");
        let metadata = HashMap::from([(ABOUT.to_owned(), about)]);
        safetensors::serialize(views.map_err(cannot)?, Some(metadata)).map_err(cannot)
    }
}

fn view<'a>(
    name: String,
    shape: &[usize],
    values: &'a [f32],
) -> Result<(String, TensorView<'a>), SafeTensorError> {
    let view = TensorView::new(Dtype::F32, shape.to_vec(), bytemuck::cast_slice(values))?;
    Ok((name, view))
}

impl Snapshot {
    /// Parses the bytes that another rank has sent.
    ///
    /// # Errors
    /// If they are not a state.
    pub fn parse(bytes: &[u8]) -> Result<Snapshot, Error> {
        parse(bytes).map_err(|why| invalid(format!("the state of another rank is damaged: {why}")))
    }
}

fn parse(bytes: &[u8]) -> Result<Snapshot, String> {
    let (_, metadata) = SafeTensors::read_metadata(bytes).map_err(|error| error.to_string())?;
    let about = metadata.metadata().as_ref().and_then(|entries| entries.get(ABOUT));
    let about = about.ok_or("its metadata have no counts")?;
    let About { step, updates, plan, about } =
        serde_json::from_str(about).map_err(|error| error.to_string())?;
    let (mut model, mut exchange) = (Tensors::new(), State { plan, ..State::default() });
    for (name, tensor) in tensors_of(bytes)? {
        if let Some(name) = name.strip_prefix(MODEL) {
            model.insert(name.to_owned(), tensor);
        } else if let Some(name) = name.strip_prefix(EXCHANGE) {
            exchange.tensors.insert(name.to_owned(), tensor);
        } else {
            return Err(format!("tensor '{name}', expected one of model/ or exchange/"));
        }
    }
    Ok(Snapshot { step, updates, model, exchange, about })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes() -> Vec<u8> {
        let parameters = [
            Parameter { name: "w".to_owned(), shape: vec![2, 2] },
            Parameter { name: "b".to_owned(), shape: vec![1] },
        ];
        let buffers: [Vec<Vec<f32>>; 3] =
            [0, 10, 20].map(|first| vec![vec![first as f32; 4], vec![first as f32 + 1.0]]);
        let mut exchange = State { plan: "{}".to_owned(), ..State::default() };
        exchange.tensors.insert("factor.w".to_owned(), (vec![2], vec![5.0, 6.0]));
        let replica =
            Replica { parameters: &parameters, buffers: [0, 1, 2].map(|at| &buffers[at][..]) };
        replica.to_bytes(&exchange, 7, 6, "here").unwrap()
    }

    #[test]
    fn a_state_is_read_as_it_was_written() {
        let read = Snapshot::parse(&bytes()).unwrap();
        assert_eq!((read.step, read.updates, &read.about[..]), (7, 6, "here"));
        assert_eq!(
            read.model.keys().collect::<Vec<_>>(),
            ["b", "b.mean", "b.square", "w", "w.mean", "w.square"]
        );
        assert_eq!(read.model["b.square"], (vec![1], vec![21.0]));
        assert_eq!(read.exchange.tensors["factor.w"].1, [5.0, 6.0]);
        assert_eq!(bytes(), bytes());
    }

    #[test]
    fn other_bytes_are_refused() {
        let whole = bytes();
        assert!(Snapshot::parse(&whole[..whole.len() - 1]).is_err());
        assert!(Snapshot::parse(&[]).is_err());
        let foreign = safetensors::serialize(
            [("w", TensorView::new(Dtype::F32, vec![0], &[]).unwrap())],
            None,
        );
        let error = Snapshot::parse(&foreign.unwrap()).unwrap_err().to_string();
        assert_eq!(error, "the state of another rank is damaged: its metadata have no counts");
    }
}

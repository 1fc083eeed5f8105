//! A state as a safetensors file, with plan, rank and world in the metadata.
//!
//! Law: a saved state is loaded bit for bit. Bytes that are not a state are refused, and a file is the
//! old one or the new one, never a part.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::Path;

use safetensors::tensor::{Dtype, TensorView};
use safetensors::{SafeTensors, serialize};
use serde::{Deserialize, Serialize};
use thinwire_link::durable;
use thinwire_wire::World;

use super::{State, Tensors};
use crate::Error;

/// The key of the metadata; with one alone, equal states have equal bytes.
const ABOUT: &str = "thinwire";

/// The content of the metadata.
#[derive(Serialize, Deserialize)]
struct About {
    rank: u32,
    world: u32,
    plan: String,
}

impl State {
    /// Writes the state of one rank to a file; every rank needs a file of its own. A reader finds
    /// the old file or the new one, never a part.
    ///
    /// # Errors
    /// If the file cannot be written, or a tensor's number of elements does not fit its shape.
    pub fn save(&self, path: &Path, world: World) -> Result<(), Error> {
        let bytes = self.to_bytes(world)?;
        durable::replace(path, &bytes)
            .map_err(|error| Error::Invalid(format!("cannot write {}: {error}", path.display())))
    }

    /// Reads the state that [`State::save`] has written for this rank of this world. A job with
    /// another number of ranks reads the files of all old ranks and converts them with
    /// [`crate::reshard`].
    ///
    /// # Errors
    /// If the file cannot be read, is not a state, or belongs to another rank or another number of ranks.
    pub fn load(path: &Path, world: World) -> Result<State, Error> {
        let refused = |why: String| Error::Invalid(format!("{}: {why}", path.display()));
        let unread = |error: io::Error| refused(error.to_string());
        // Whoever opens a pipe waits for a writer, and a device may never end.
        if !path.metadata().map_err(unread)?.is_file() {
            return Err(refused("no regular file".to_owned()));
        }
        State::from_bytes(&fs::read(path).map_err(unread)?, world).map_err(refused)
    }

    pub(crate) fn to_bytes(&self, world: World) -> Result<Vec<u8>, Error> {
        let (rank, ranks) = (world.rank().0, world.size() as u32);
        let about = About { rank, world: ranks, plan: self.plan.clone() };
        let about = serde_json::to_string(&about).expect("numbers and a string");
        let invalid = |error| Error::Invalid(format!("cannot save the state: {error}"));
        let views = self.tensors.iter().map(|(name, (shape, values))| {
            let bytes = bytemuck::cast_slice(values);
            TensorView::new(Dtype::F32, shape.clone(), bytes).map(|view| (name, view))
        });
        let views: Vec<_> = views.collect::<Result<_, _>>().map_err(invalid)?;
        serialize(views, Some(HashMap::from([(ABOUT.to_owned(), about)]))).map_err(invalid)
    }

    pub(crate) fn from_bytes(bytes: &[u8], world: World) -> Result<State, String> {
        let said = |error: safetensors::SafeTensorError| format!("no state: {error}");
        let (_, metadata) = SafeTensors::read_metadata(bytes).map_err(said)?;
        let about = metadata.metadata().as_ref().and_then(|entries| entries.get(ABOUT));
        let about = about.ok_or("no state: its metadata do not name its rank")?;
        let about: About = serde_json::from_str(about).map_err(|e| format!("no state: {e}"))?;
        let (rank, ranks) = (world.rank().0, world.size() as u32);
        if (about.rank, about.world) != (rank, ranks) {
            return Err(format!(
                "the state of rank {} of {}, expected that of rank {rank} of {ranks}",
                about.rank, about.world
            ));
        }
        let mut tensors = Tensors::new();
        for (name, view) in SafeTensors::deserialize(bytes).map_err(said)?.tensors() {
            if view.dtype() != Dtype::F32 {
                return Err(format!("tensor {name} is {:?}, expected F32", view.dtype()));
            }
            let (words, _) = view.data().as_chunks::<4>();
            let values: Vec<f32> = words.iter().map(|word| f32::from_le_bytes(*word)).collect();
            if let Some(value) = values.iter().find(|value| !value.is_finite()) {
                return Err(format!("tensor {name} holds {value}, expected finite numbers"));
            }
            tensors.insert(name, (view.shape().to_vec(), values));
        }
        Ok(State { tensors, plan: about.plan })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn world(rank: u32, size: u32) -> World {
        World::new(rank, size).unwrap()
    }

    fn state(values: Vec<f32>) -> State {
        let tensors = Tensors::from([
            ("residual.a b/ü\"".to_owned(), (vec![values.len()], values)),
            ("residual.none".to_owned(), (vec![0, 3], Vec::new())),
            (State::WARM_UP.to_owned(), (vec![1], vec![7.0])),
        ]);
        State { tensors, plan: "{\"asked\":\"int8\"}".to_owned() }
    }

    proptest! {
        #[test]
        fn what_was_saved_is_what_is_loaded(values in prop::collection::vec(-1e30_f32..1e30, 0..40)) {
            let state = state(values);
            let bytes = state.to_bytes(world(1, 3)).unwrap();
            prop_assert_eq!(&bytes, &state.to_bytes(world(1, 3)).unwrap());
            prop_assert_eq!(State::from_bytes(&bytes, world(1, 3)).unwrap(), state);
        }

        #[test]
        fn bytes_that_were_changed_are_refused_or_a_state(
            at in 0_usize..400, byte in 0_u8..=255, cut in 0_usize..400,
        ) {
            let mut bytes = state(vec![0.5; 5]).to_bytes(world(0, 1)).unwrap();
            let place = at % bytes.len();
            bytes[place] = byte;
            bytes.truncate(bytes.len() - cut.min(bytes.len()) * usize::from(cut % 2 == 0));
            if let Ok(state) = State::from_bytes(&bytes, world(0, 1)) {
                state.to_bytes(world(0, 1)).unwrap();
            }
        }
    }

    #[test]
    fn what_is_no_state_of_this_rank_is_refused() {
        let folder = std::env::temp_dir().join(format!("thinwire-state-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let file = folder.join("rank0");
        let refused = |world| {
            let error = State::load(&file, world).unwrap_err().to_string();
            error.strip_prefix(&format!("{}: ", file.display())).unwrap().to_owned()
        };
        assert!(refused(world(0, 2)).starts_with("No such file"));
        state(vec![1.0]).save(&file, world(0, 2)).unwrap();
        let other = "the state of rank 0 of 2, expected that of rank";
        assert_eq!(refused(world(1, 2)), format!("{other} 1 of 2"));
        assert_eq!(refused(world(0, 4)), format!("{other} 0 of 4"));
        let before = state(vec![2.0]);
        before.save(&file, world(0, 2)).unwrap();
        assert_eq!(State::load(&file, world(0, 2)).unwrap(), before);
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1, "nothing is left beside it");
        state(vec![f32::NAN]).save(&file, world(0, 2)).unwrap();
        assert!(refused(world(0, 2)).ends_with("holds NaN, expected finite numbers"));
        fs::write(&file, b"abc").unwrap();
        assert!(refused(world(0, 2)).starts_with("no state: "));
        let missing = folder.join("gone/rank0");
        let error = state(Vec::new()).save(&missing, world(0, 2)).unwrap_err().to_string();
        assert!(error.starts_with(&format!("cannot write {}: ", missing.display())), "{error}");
        fs::remove_file(&file).unwrap();
        fs::create_dir(&file).unwrap();
        assert_eq!(refused(world(0, 2)), "no regular file");
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_shape_of_other_elements_is_not_saved() {
        let mut state = state(Vec::new());
        state.tensors.insert("residual.b".to_owned(), (vec![3], vec![0.0; 2]));
        let error = state.to_bytes(world(0, 1)).unwrap_err().to_string();
        assert!(error.starts_with("cannot save the state: "), "{error}");
    }
}

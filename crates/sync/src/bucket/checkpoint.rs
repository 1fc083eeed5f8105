//! The state of a bucket in a checkpoint, by the names of its parameters.

use crate::bucket::feedback::{MEAN, SHIFT};
use crate::bucket::momentum::{MOMENTUM, Velocity};
use crate::bucket::state::BucketState;
use crate::checkpoint::Tensors;
use crate::{Error, Parameter};

const RESIDUAL: &str = "residual";

impl BucketState {
    /// Adds the state of the bucket to `tensors`.
    pub(crate) fn save(&self, parameters: &[Parameter], tensors: &mut Tensors) {
        for (member, (parameter, range)) in self.bucket.members.iter().enumerate() {
            let Parameter { name, shape, .. } = &parameters[*parameter];
            let mut save = |prefix: &str, values| {
                tensors.insert(format!("{prefix}.{name}"), (shape.clone(), values));
            };
            if !self.residual.is_empty() {
                save(RESIDUAL, self.residual[range.clone()].to_vec());
            }
            for (prefix, values) in self.memory.save(range) {
                save(prefix, values);
            }
            let momentum = self.velocity.as_ref().map_or(&[][..], Velocity::kept);
            if !momentum.is_empty() {
                save(MOMENTUM, momentum[range.clone()].to_vec());
            }
            let state = self.exchange.as_ref().and_then(|exchange| exchange.state(member));
            if let Some((prefix, state)) = state {
                tensors.insert(format!("{prefix}.{name}"), (vec![state.len()], state));
            }
        }
    }

    /// Returns the place of tensors whose names have this prefix, if they are of use here.
    fn place(&mut self, prefix: &str) -> Option<&mut Vec<f32>> {
        let elements = self.bucket.elements;
        match prefix {
            RESIDUAL => {
                self.residual.resize(elements, 0.0);
                Some(&mut self.residual)
            }
            MOMENTUM => self.velocity.as_mut().map(|velocity| velocity.place(elements)),
            _ => self.memory.place(prefix, elements),
        }
    }

    /// Takes up the state of the bucket.
    pub(crate) fn load(
        &mut self,
        parameters: &[Parameter],
        tensors: &Tensors,
    ) -> Result<(), Error> {
        let members = self.bucket.members.clone();
        for (member, (parameter, range)) in members.into_iter().enumerate() {
            let name = &parameters[parameter].name;
            for prefix in [RESIDUAL, SHIFT, MEAN, MOMENTUM] {
                let Some((_, values)) = tensors.get(&format!("{prefix}.{name}")) else { continue };
                if values.len() != range.len() {
                    return Err(misfit(prefix, name, values.len(), range.len()));
                }
                if let Some(place) = self.place(prefix) {
                    place[range.clone()].copy_from_slice(values);
                }
            }
            let Some(exchange) = &mut self.exchange else { continue };
            let Some((prefix, old)) = exchange.state(member) else { continue };
            if let Some((_, state)) = tensors.get(&format!("{prefix}.{name}")) {
                if state.len() != old.len() {
                    return Err(misfit(prefix, name, state.len(), old.len()));
                }
                exchange.load(member, state);
            }
        }
        Ok(())
    }
}

fn misfit(what: &str, name: &str, found: usize, expected: usize) -> Error {
    Error::Invalid(format!(
        "{what}.{name} in the checkpoint has {found} elements, expected {expected}"
    ))
}

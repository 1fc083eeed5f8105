//! The state of a bucket in a checkpoint, by the names of its parameters.

use crate::bucket::feedback::{MEAN, SHIFT};
use crate::bucket::momentum::{MOMENTUM, Velocity};
use crate::bucket::state::{BucketState, Kept};
use crate::checkpoint::Tensors;
use crate::{Error, Parameter};

const RESIDUAL: &str = "residual";

/// Prefixes of what has as many elements as the parameter.
const BY_ELEMENT: [&str; 4] = [RESIDUAL, SHIFT, MEAN, MOMENTUM];

impl BucketState {
    /// Adds the state of the bucket to `tensors`.
    pub(crate) fn save(&self, parameters: &[Parameter], tensors: &mut Tensors) {
        for (member, (parameter, _)) in self.bucket.members.iter().enumerate() {
            let Parameter { name, shape, .. } = &parameters[*parameter];
            for (prefix, values) in self.kept(member) {
                let is_by_element = BY_ELEMENT.contains(&prefix);
                let shape = if is_by_element { shape.clone() } else { vec![values.len()] };
                tensors.insert(format!("{prefix}.{name}"), (shape, values));
            }
        }
    }

    /// Returns all that is kept of a member of the bucket from step to step, by prefix of its name.
    pub(super) fn kept(&self, member: usize) -> Kept {
        let range = &self.bucket.members[member].1;
        let mut kept = self.memory.save(range);
        if self.residual.len() > 0 {
            kept.push((RESIDUAL, self.residual.range_to_host(range.clone())));
        }
        let momentum = self.velocity.as_ref().map_or(&[][..], Velocity::kept);
        if !momentum.is_empty() {
            kept.push((MOMENTUM, momentum[range.clone()].to_vec()));
        }
        kept.extend(self.exchange.as_ref().and_then(|exchange| exchange.state(member)));
        kept
    }

    /// Brings a member of the bucket back to what [`BucketState::kept`] returned of it.
    pub(super) fn restore(&mut self, member: usize, kept: &Kept) {
        let range = self.bucket.members[member].1.clone();
        for (prefix, values) in kept {
            if let Some(place) = self.place(prefix) {
                place[range.clone()].copy_from_slice(values);
            } else if let Some(exchange) = &mut self.exchange
                && !BY_ELEMENT.contains(prefix)
            {
                exchange.load(member, values);
            }
        }
    }

    /// Returns the place of tensors whose names have this prefix, if they are of use here.
    fn place(&mut self, prefix: &str) -> Option<&mut Vec<f32>> {
        let elements = self.bucket.elements;
        match prefix {
            RESIDUAL => {
                let residual = self.residual.owned_mut();
                residual.resize(elements, 0.0);
                Some(residual)
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
            for prefix in BY_ELEMENT {
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

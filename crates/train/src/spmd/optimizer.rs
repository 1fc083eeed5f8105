//! The optimiser's side of a rank: its parts of the parameters and of what AdamW keeps for them.

use std::borrow::Cow;

use thinwire_model::Graph;
use thinwire_program::{Parameter, Program};

use super::snapshot::SUFFIXES;
use super::value::Value;
use crate::adam::Travel;
use crate::{Adam, AdamW, AdamWOptions, Pace};

/// AdamW on this rank's parts.
#[derive(Debug)]
pub struct Optimizer {
    parameters: Vec<crate::Parameter>,
    /// Values, by parameter.
    pub values: Vec<Vec<f32>>,
    /// Their means and means of squares, and the number of updates so far.
    pub state: AdamW,
}

impl Optimizer {
    /// The state before the first step; `owned` gives the part of a parameter that is updated here.
    pub fn new(
        graph: &Graph,
        program: &Program,
        owned: impl Fn(&Parameter) -> Option<Value>,
    ) -> Optimizer {
        let parts: Vec<Option<Value>> = program.parameters.iter().map(owned).collect();
        let described = program.parameters.iter().zip(&parts).map(|(parameter, part)| {
            let tensor = &graph.tensors[parameter.tensor];
            let nothing = vec![0; tensor.shape.len()];
            let shape = part.as_ref().map_or(nothing, |part| part.shape().to_vec());
            crate::Parameter { name: tensor.name.clone(), shape }
        });
        let parameters: Vec<_> = described.collect();
        let values = parts.iter().map(|part| part.clone().map_or(Vec::new(), Value::into_floats));
        Optimizer { values: values.collect(), state: AdamW::new(&parameters), parameters }
    }

    /// Returns the part of a parameter that is updated here, by name and shape.
    pub fn parameter(&self, index: usize) -> &crate::Parameter {
        &self.parameters[index]
    }

    /// Returns the values, means and means of squares of a parameter, by the suffix of their name.
    pub fn buffers(&mut self, index: usize) -> [(&'static str, &mut Vec<f32>); 3] {
        let AdamW { means, squares, .. } = &mut self.state;
        let [values, mean, square] = SUFFIXES;
        [
            (values, &mut self.values[index]),
            (mean, &mut means[index]),
            (square, &mut squares[index]),
        ]
    }

    /// Returns the parameters, their values and the optimiser's state.
    pub fn into_parts(self) -> (Vec<crate::Parameter>, Vec<Vec<f32>>, AdamW) {
        (self.parameters, self.values, self.state)
    }

    /// Updates all values once, in the way of a form of Adam in which this has travelled.
    pub fn update<'g>(
        &mut self,
        adam: Adam,
        travel: Travel,
        given: impl Fn(usize) -> &'g [f32],
        pace: Pace,
        options: &AdamWOptions,
    ) {
        let (state, parameters, values) = (&mut self.state, &self.parameters, &mut self.values);
        match (travel, adam) {
            (Travel::Gradients, Adam::AdamW | Adam::OneBit) => {
                state.update(parameters, values, given, pace, options);
            }
            (Travel::Gradients, Adam::ZeroOne) => {
                state.update_with_squares(parameters, values, given, pace, options);
            }
            (Travel::Momenta, _) => {
                // Not when the step begins: one that is lost with a peer leaves no trace.
                if adam == Adam::OneBit {
                    state.variance.fix(state.updates);
                }
                state.update_by_momenta(parameters, values, given, pace, options);
            }
            (Travel::Nothing, _) => state.update_locally(parameters, values, given, pace, options),
        }
    }

    /// Ends the steps of this rank alone by the momenta of all ranks, or drops them if there are none.
    pub fn unite<'g>(&mut self, momentum: impl Fn(usize) -> Option<&'g [f32]>) {
        self.state.unite(&mut self.values, momentum);
    }

    /// Returns the values of a parameter with which this rank computes.
    pub fn shown(&self, index: usize) -> Cow<'_, [f32]> {
        let AdamW { squares, local, .. } = &self.state;
        local.shown(index, &self.values[index], &squares[index])
    }
}

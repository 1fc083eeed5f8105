//! Early exchanges: a collective starts as soon as its input is computed, and a reader of its result waits
//! for it.
//!
//! Between the two, the program computes something else. For example, the gradient of a product's weight
//! is computed after the gradient of the product's input, and overlaps with the collective of the
//! input's gradient.

use std::collections::HashMap;

use thinwire_model::Origin;

use crate::{Instruction, Slot};

/// Moves every collective of a pass directly behind the node that computes its input, and sums of gradients,
/// which collectives read, directly behind the last of their terms. An instruction that reads the result
/// of an exchange under way is not moved.
///
/// Law: the results are the same, and all ranks of a group begin their exchanges in the same order.
pub fn begin_early(list: Vec<Instruction>, origins: &[Origin]) -> Vec<Instruction> {
    // Each with what has moved up behind it.
    let mut places: Vec<Vec<Instruction>> = Vec::with_capacity(list.len());
    let mut made: HashMap<Slot, usize> = HashMap::new();
    for instruction in list {
        let behind = match &instruction {
            Instruction::Convert(convert) if convert.gradient.is_none() => {
                made.get(&convert.from).copied()
            }
            Instruction::Compute { node, inputs, .. }
                if matches!(origins[*node], Origin::Accumulate(_)) =>
            {
                let makers = inputs.iter().map(|slot| made.get(slot).copied());
                makers.collect::<Option<Vec<_>>>().and_then(|makers| makers.into_iter().max())
            }
            _ => None,
        };
        let place = behind.unwrap_or(places.len());
        match &instruction {
            Instruction::Compute { outputs, .. } => {
                made.extend(outputs.iter().map(|slot| (*slot, place)));
            }
            Instruction::Convert(convert) => drop(made.remove(&convert.to)),
            _ => {}
        }
        match behind {
            Some(place) => places[place].push(instruction),
            None => places.push(vec![instruction]),
        }
    }
    places.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    use thinwire_model::{Collective, Reduction, Step};

    use crate::program::Convert;

    fn compute(node: usize, inputs: &[Slot], outputs: &[Slot]) -> Instruction {
        Instruction::Compute { node, inputs: inputs.to_vec(), outputs: outputs.to_vec() }
    }

    fn sum(from: Slot, to: Slot) -> Instruction {
        let collective = Collective::AllReduce { reduction: Reduction::Sum };
        let step = Step { mesh_dim: 0, collective, elements: 4 };
        Instruction::Convert(Convert { from, to, step, number: to as u32, gradient: None })
    }

    fn recv(slot: Slot) -> Instruction {
        Instruction::Recv { slot, from: thinwire_wire::Rank(0), number: 0 }
    }

    #[test]
    fn a_sum_begins_behind_what_makes_it_and_not_where_it_is_read() {
        let origins = [Origin::Gradient(0); 3];
        let list = vec![
            compute(0, &[0], &[1]),
            compute(1, &[0], &[2]),
            sum(1, 3),
            sum(3, 4),
            compute(2, &[4], &[5]),
        ];
        let [dx, dweight, first, second, reader] = list.clone().try_into().unwrap();
        // The second reads what is under way: begun early, it would wait.
        assert_eq!(begin_early(list, &origins), [dx, first, dweight, second, reader]);
    }

    #[test]
    fn sums_of_gradients_move_up_with_their_collective() {
        let terms = [Origin::Gradient(0), Origin::Gradient(1), Origin::Gradient(1)];
        let origins = [&terms[..], &[Origin::Accumulate(9)]].concat();
        let list = vec![
            compute(0, &[0], &[1]),
            compute(1, &[0], &[2]),
            compute(2, &[0], &[3]),
            compute(3, &[1, 2], &[4]),
            sum(4, 5),
        ];
        let [one, other, dweight, add, convert] = list.clone().try_into().unwrap();
        assert_eq!(begin_early(list, &origins), [one, other, add, convert, dweight]);
    }

    #[test]
    fn what_was_received_or_made_before_is_converted_where_it_was() {
        let origins = [Origin::Gradient(0), Origin::Accumulate(9)];
        let list = vec![recv(1), compute(0, &[0], &[2]), sum(1, 3), compute(1, &[2, 7], &[4])];
        assert_eq!(begin_early(list.clone(), &origins), list);
    }
}

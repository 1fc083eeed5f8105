//! Folding: computes values that depend only on known numbers and shapes.

mod element;
mod place;
mod source;

use thinwire_model::Error;

use crate::constant::{Constant, elements};
use crate::import::{Importer, refuse};
use crate::operator;
use crate::value::Value;
use element::broadcast;

/// Types of real numbers, as the numbers that a cast uses.
const REAL: [i64; 4] = [1, 10, 11, 16];

/// Largest number of values that all nodes together may fold: more than any real file needs.
const FOLDED_MAX: usize = 1 << 26;

/// Counter of the numbers that nodes have folded so far. It limits how much a file can make its reader
/// compute or store.
#[derive(Debug, Default)]
pub(crate) struct Folder {
    numbers: usize,
}

impl Folder {
    /// Returns the numbers that a node computes, if all of its inputs are known.
    ///
    /// # Errors
    /// If operands contradict each other, or there are too many numbers.
    pub fn fold(&mut self, importer: &Importer<'_>) -> Result<Option<Constant>, Error> {
        let folded = fold(importer)?;
        folded.iter().try_for_each(|constant| self.charge(constant))?;
        Ok(folded)
    }

    /// Counts the numbers of one node, and refuses a node with too many.
    fn charge(&mut self, folded: &Constant) -> Result<(), Error> {
        self.numbers += elements(&folded.shape)?;
        match self.numbers <= FOLDED_MAX {
            true => Ok(()),
            false => Err(refuse(format!("more than {FOLDED_MAX} known numbers in all nodes"))),
        }
    }
}

fn fold(importer: &Importer<'_>) -> Result<Option<Constant>, Error> {
    let call = importer.call;
    match call.operator {
        "Constant" => return source::constant(call).map(Some),
        "Shape" => return source::shape(importer).map(Some),
        "Size" => {
            let elements: usize = importer.shape(importer.value(0)?).iter().product();
            return Ok(Some(Constant::integer(elements)));
        }
        _ => {}
    }
    let read: Vec<usize> = (0..call.inputs()).filter(|index| call.has(*index)).collect();
    let fixed = read.iter().all(|index| importer.is_fixed(*index));
    if read.is_empty() || !fixed || is_still_stored(importer) {
        return Ok(None);
    }
    let known = |index: usize| importer.constant(index).ok();
    match read.into_iter().map(known).collect::<Option<Vec<Constant>>>() {
        Some(inputs) => known_numbers(importer, &inputs),
        None => Ok(None),
    }
}

/// Returns whether a node leaves numbers of the file unchanged that may turn out to be trained.
fn is_still_stored(importer: &Importer<'_>) -> bool {
    let Ok(Value::Stored(weight)) = importer.value(0) else { return false };
    match importer.call.operator {
        "Identity" => true,
        "Cast" => REAL.contains(&importer.call.integer("to", 0)),
        "Transpose" => {
            operator::order(importer.call, weight.shape.len()).is_ok_and(|order| order == [1, 0])
        }
        _ => false,
    }
}

fn known_numbers(importer: &Importer<'_>, inputs: &[Constant]) -> Result<Option<Constant>, Error> {
    let (call, first) = (importer.call, &inputs[0]);
    let reshaped = |shape: Vec<usize>| Some(Constant { shape, ..first.clone() });
    Ok(match call.operator {
        "Identity" | "Dropout" => Some(first.clone()),
        "Cast" => Some(element::cast(call, first)),
        "Reshape" => reshaped(operator::asked(importer, &first.shape)?),
        "Squeeze" => reshaped(operator::squeezed(importer, &first.shape)?),
        "Unsqueeze" => reshaped(operator::unsqueezed(importer, &first.shape)?),
        "Flatten" => reshaped(operator::flat(call, &first.shape)?),
        "Gather" => place::gather(call, first, &inputs[1..])?,
        "GatherElements" => place::gather_elements(call, first, &inputs[1..])?,
        "GatherND" => place::gather_all(call, first, &inputs[1..])?,
        "Concat" => place::concat(call, inputs)?,
        "Transpose" => place::transpose(call, first)?,
        "CumSum" => place::cumulative(call, inputs)?,
        "MatMul" => place::product(inputs)?,
        "Slice" => place::slice(importer, first)?,
        "Range" => source::range(inputs)?,
        "ConstantOfShape" => source::filled(call, first)?,
        "Trilu" => Some(source::triangle(call, inputs)),
        "Expand" => {
            let [_, shape] = inputs else { return Ok(None) };
            let ones =
                Constant { shape: source::lengths(shape), values: Vec::new(), whole: first.whole };
            broadcast(&[first, &ones], |values| values[0])?
        }
        "Where" => {
            let [condition, yes, no] = inputs else { return Ok(None) };
            let chosen = |v: &[f64]| if v[0] != 0.0 { v[1] } else { v[2] };
            let found = broadcast(&[condition, yes, no], chosen)?;
            found.map(|found| Constant { whole: yes.whole, ..found })
        }
        _ => match (inputs, element::single(call.operator), element::pair(call.operator, first)) {
            ([x], Some(function), _) => Some(Constant {
                values: x.values.iter().map(|v| function(*v)).collect(),
                ..x.clone()
            }),
            ([x, y], _, Some(function)) => {
                let found = broadcast(&[x, y], |v| function(v[0], v[1]))?;
                let truths = element::COMPARISONS.contains(&call.operator);
                found.map(|found| Constant { whole: truths || found.whole, ..found })
            }
            _ => None,
        },
    })
}

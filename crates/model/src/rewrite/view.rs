//! Views show the same elements in another shape or order. This module combines several views in
//! sequence.

use super::Rewriter;
use crate::{Error, Operator, Reshape, Scale, TensorId, Transpose};

impl Rewriter {
    /// Returns the elements of a tensor in another shape.
    pub(super) fn reshape(
        &mut self,
        name: &str,
        x: TensorId,
        shape: &[usize],
    ) -> Result<TensorId, Error> {
        let x = match self.maker(x) {
            Some(node) if matches!(node.operator, Operator::Reshape(_)) => node.inputs[0],
            _ => x,
        };
        if self.shape(x) == shape {
            return Ok(x);
        }
        Ok(self.apply(name, Reshape { shape: shape.to_vec() }.into(), &[x])?[0])
    }

    /// Returns a tensor whose dimension i is dimension `order[i]` of this one.
    pub(super) fn transpose(
        &mut self,
        name: &str,
        x: TensorId,
        order: &[usize],
    ) -> Result<TensorId, Error> {
        if order.iter().enumerate().all(|(at, dim)| at == *dim) {
            return Ok(x);
        }
        let maker = self.maker(x).map(|node| (node.operator.clone(), node.inputs[0]));
        match maker {
            Some((Operator::Transpose(before), x)) => {
                let before = before.order();
                let both: Vec<usize> = order.iter().map(|dim| before[*dim]).collect();
                self.transpose(name, x, &both)
            }
            Some((Operator::Reshape(_), inner)) if self.turns_last(x, inner, order) => {
                let dims = self.shape(inner).len();
                let mut shape = self.shape(x).to_vec();
                shape.swap(order.len() - 2, order.len() - 1);
                let inner_order: Vec<usize> = (0..dims - 2).chain([dims - 1, dims - 2]).collect();
                let turned = self.transpose(name, inner, &inner_order)?;
                self.reshape(name, turned, &shape)
            }
            _ => {
                let letters: Vec<char> = ('a'..='z').take(order.len()).collect();
                let turned: String = order.iter().map(|dim| letters[*dim]).collect();
                let transpose = Transpose::new(letters.iter().collect::<String>(), turned);
                Ok(self.apply(name, transpose.into(), &[x])?[0])
            }
        }
    }

    /// Returns whether an order exchanges only the last two dimensions, which already existed before a
    /// reshape.
    fn turns_last(&self, reshaped: TensorId, before: TensorId, order: &[usize]) -> bool {
        let Some(leading) = order.len().checked_sub(2) else { return false };
        let last = order[leading..] == [leading + 1, leading];
        let alone = order[..leading].iter().enumerate().all(|(at, dim)| at == *dim);
        let pair = |id: TensorId| self.shape(id).last_chunk::<2>();
        last && alone && pair(reshaped).is_some() && pair(reshaped) == pair(before)
    }

    /// Splits a tensor, looking through views, into another tensor and a factor.
    pub(super) fn unscaled(&mut self, name: &str, x: TensorId) -> Result<(TensorId, f64), Error> {
        let Some(node) = self.maker(x) else { return Ok((x, 1.0)) };
        let (operator, inner) = (node.operator.clone(), node.inputs.first().copied());
        let Some(inner) = inner else { return Ok((x, 1.0)) };
        let (base, factor) = match operator {
            Operator::Scale(Scale(factor)) => {
                let (base, rest) = self.unscaled(name, inner)?;
                return Ok((base, factor * rest));
            }
            Operator::Reshape(_) | Operator::Transpose(_) => self.unscaled(name, inner)?,
            _ => return Ok((x, 1.0)),
        };
        match operator {
            _ if base == inner => Ok((x, 1.0)),
            Operator::Reshape(reshape) => Ok((self.reshape(name, base, &reshape.shape)?, factor)),
            Operator::Transpose(transpose) => {
                Ok((self.transpose(name, base, &transpose.order())?, factor))
            }
            _ => Ok((x, 1.0)),
        }
    }
}

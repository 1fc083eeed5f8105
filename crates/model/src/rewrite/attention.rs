//! Recognises attention that consists of several operators: queries times keys, softmax, and the result
//! times values.

use super::Rewriter;
use super::scores::{Mixture, Scores};
use crate::{Attention, Error, MatMul, Node, Operator, Scale, TensorId};

/// Largest relative error of a factor, since other programs store it in few bits.
const NEAR: f64 = 1e-3;

/// Operands as `[batch, heads, tokens, features]`.
struct Heads {
    batch: usize,
    queries: TensorId,
    keys: TensorId,
    values: TensorId,
    /// Factor of the scores.
    factor: f64,
    causal: bool,
}

impl Rewriter {
    /// Returns the attention that ends with this product with values, if there is one.
    pub(super) fn attention(
        &mut self,
        node: &Node,
        product: &MatMul,
        inputs: &[TensorId],
    ) -> Result<Option<TensorId>, Error> {
        if self.reads[node.inputs[0]] > 1 {
            return Ok(None);
        }
        let Some(mixture) = Mixture::of(product) else { return Ok(None) };
        let values = self.transpose(&node.name, inputs[1], &mixture.values)?;
        let Some(heads) = self.heads(&node.name, inputs[0], values)? else { return Ok(None) };
        let Some(mixed) = self.attend(&node.name, &heads)? else { return Ok(None) };
        let mut shape = self.shape(inputs[0]).to_vec();
        shape.pop();
        shape.extend(self.shape(values).last());
        let mixed = self.reshape(&node.name, mixed, &shape)?;
        self.transpose(&node.name, mixed, &mixture.output).map(Some)
    }

    /// Finds the queries and keys of the weights, if these are a softmax of scores.
    fn heads(
        &mut self,
        name: &str,
        weights: TensorId,
        values: TensorId,
    ) -> Result<Option<Heads>, Error> {
        let softmax = self.through_leading(weights);
        let Some(Node { operator: Operator::Softmax(softmax), inputs, .. }) = self.maker(softmax)
        else {
            return Ok(None);
        };
        let (causal, scaled) = (softmax.causal, inputs[0]);
        let (scores, of_scores) = self.unscaled(name, scaled)?;
        let scores = self.through_leading(scores);
        let Some(Node { operator: Operator::MatMul(product), inputs, .. }) = self.maker(scores)
        else {
            return Ok(None);
        };
        let Some(order) = Scores::of(product) else { return Ok(None) };
        let same_last = self.last_two(scores) == self.last_two(weights);
        let (q, k) =
            (inputs[usize::from(order.keys_first)], inputs[usize::from(!order.keys_first)]);
        if !same_last {
            return Ok(None);
        }
        let (q, of_queries) = self.unscaled(name, q)?;
        let (k, of_keys) = self.unscaled(name, k)?;
        let queries = self.transpose(&format!("{name}.q"), q, &order.queries)?;
        let keys = self.transpose(&format!("{name}.k"), k, &order.keys)?;
        let Some([batch, heads]) = self.leading(queries, weights) else { return Ok(None) };
        let [queries, keys, values] = [queries, keys, values].map(|x| {
            let [tokens, features] = self.last_two(x)?;
            Some((x, [batch, heads, tokens, features]))
        });
        let (Some(queries), Some(keys), Some(values)) = (queries, keys, values) else {
            return Ok(None);
        };
        let factor = of_scores * of_queries * of_keys;
        let queries = self.reshape(&format!("{name}.q"), queries.0, &queries.1)?;
        let keys = self.reshape(&format!("{name}.k"), keys.0, &keys.1)?;
        let values = self.reshape(&format!("{name}.v"), values.0, &values.1)?;
        Ok(Some(Heads { batch, queries, keys, values, factor, causal }))
    }

    /// Adds the attention of heads, as `[batch, heads, tokens, features]`.
    fn attend(&mut self, name: &str, heads: &Heads) -> Result<Option<TensorId>, Error> {
        let Heads { batch, mut queries, keys, values, factor, causal } = *heads;
        let of_heads = self.shape(queries).to_vec();
        let head_size = of_heads[3];
        if self.shape(values)[3] != head_size || self.shape(keys)[3] != head_size {
            return Ok(None);
        }
        let ratio = factor * (head_size as f64).sqrt();
        if (ratio - 1.0).abs() > NEAR {
            queries = self.apply(&format!("{name}.scale"), Scale(ratio).into(), &[queries])?[0];
        }
        let (keys, values, queries_per_key) =
            match (self.shared(name, keys), self.shared(name, values)) {
                (Some((keys, times)), Some((values, same))) if times == same => {
                    (keys, values, times)
                }
                _ => (keys, values, 1),
            };
        let merged = |x: &mut Rewriter, end: &str, id: TensorId| {
            let name = format!("{name}.{end}");
            let turned = x.transpose(&name, id, &[0, 2, 1, 3])?;
            let [_, tokens, heads, features] = x.shape(turned) else { return Ok(turned) };
            let shape = [batch, *tokens, heads * features];
            x.reshape(&name, turned, &shape)
        };
        let operands =
            [merged(self, "q", queries)?, merged(self, "k", keys)?, merged(self, "v", values)?];
        let attention = Attention { head_size, queries_per_key, causal };
        let mixed = self.apply(name, attention.into(), &operands)?[0];
        let shape = [batch, of_heads[2], of_heads[1], head_size];
        let mixed = self.reshape(&format!("{name}.mixed"), mixed, &shape)?;
        self.transpose(&format!("{name}.mixed"), mixed, &[0, 2, 1, 3]).map(Some)
    }

    /// Returns the heads that several heads of queries share, `[b,g,t,d]` for `[b,g·i,t,d]`, and the
    /// number of heads of queries that share one.
    fn shared(&mut self, name: &str, repeated: TensorId) -> Option<(TensorId, usize)> {
        let [batch, heads, tokens, features] = *self.shape(repeated).as_array()?;
        let reshape = self.maker(repeated)?;
        let broadcast = self.maker(*reshape.inputs.first()?)?;
        let (Operator::Reshape(_), Operator::Broadcast(spread)) =
            (&reshape.operator, &broadcast.operator)
        else {
            return None;
        };
        let [_, groups, times, ..] = *spread.shape else { return None };
        let once = broadcast.inputs[0];
        let spreads = spread.shape == [batch, groups, times, tokens, features]
            && *self.shape(once) == [batch, groups, 1, tokens, features];
        if !spreads || groups * times != heads {
            return None;
        }
        let once = self
            .reshape(&format!("{name}.shared"), once, &[batch, groups, tokens, features])
            .ok()?;
        Some((once, times))
    }

    /// Returns batch and heads, looking through a reshape that merged them.
    fn leading(&self, queries: TensorId, weights: TensorId) -> Option<[usize; 2]> {
        let split = |id: TensorId| match *self.shape(id) {
            [batch, heads, _, _] => Some([batch, heads]),
            _ => None,
        };
        let before = |id: TensorId| match self.maker(id) {
            Some(Node { operator: Operator::Reshape(_), inputs, .. }) => split(inputs[0]),
            _ => None,
        };
        let all = self.shape(queries).iter().rev().skip(2).product::<usize>();
        let found = split(queries).or_else(|| split(weights)).or_else(|| before(queries));
        match (found, self.shape(queries)) {
            (Some([batch, heads]), _) if batch * heads == all => Some([batch, heads]),
            (None, [batch, _, _]) => Some([*batch, 1]),
            _ => None,
        }
    }

    /// Returns the tensor before reshapes that left the last two dimensions unchanged.
    fn through_leading(&self, x: TensorId) -> TensorId {
        match self.maker(x) {
            Some(Node { operator: Operator::Reshape(_), inputs, .. })
                if self.last_two(inputs[0]) == self.last_two(x) =>
            {
                self.through_leading(inputs[0])
            }
            _ => x,
        }
    }

    fn last_two(&self, x: TensorId) -> Option<[usize; 2]> {
        self.shape(x).last_chunk::<2>().copied()
    }
}

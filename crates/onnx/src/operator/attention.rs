//! Attention as one node, which ONNX has since version 23.

use thinwire_model::{Attention, Error, Reshape, Scale, TensorId, Transpose};

use super::mask::{self, Seen};
use crate::import::{Call, Importer, refuse};
use crate::value::Value;

/// Largest relative error of a factor.
const NEAR: f64 = 1e-3;

/// Numbers of heads of queries, and of keys and values.
struct Heads {
    queries: usize,
    keys: usize,
    /// Whether heads are a separate dimension: `[batch, heads, tokens, features]`.
    apart: bool,
}

/// Imports attention of queries, keys and values.
pub(super) fn visit(importer: &mut Importer<'_>) -> Result<Value, Error> {
    refuse_rest(importer.call)?;
    let operands = [importer.tensor(0)?, importer.tensor(1)?, importer.tensor(2)?];
    let heads = heads(importer, operands)?;
    let [q, k, v] = operands;
    let [mut q, k, v] = [merged(importer, q)?, merged(importer, k)?, merged(importer, v)?];
    let features = importer.graph.tensors[q].shape[2];
    let head_size = features / heads.queries;
    let ratio =
        importer.call.float("scale", 1.0 / (head_size as f64).sqrt()) * (head_size as f64).sqrt();
    if (ratio - 1.0).abs() > NEAR {
        q = importer.part("scale", Scale(ratio), &[q])?;
    }
    let causal = causal(importer)?;
    let attention = Attention { head_size, queries_per_key: heads.queries / heads.keys, causal };
    let y = importer.node(attention, &[q, k, v])?;
    if !heads.apart {
        return Ok(Value::Tensor(y));
    }
    let [batch, tokens, features] = importer.graph.tensors[y].shape[..] else {
        return Ok(Value::Tensor(y));
    };
    let shape = vec![batch, tokens, heads.queries, features / heads.queries];
    let y = importer.part("apart", Reshape { shape }, &[y])?;
    let turned = Transpose::new("bshd", "bhsd");
    importer.part("turned", turned, &[y]).map(Value::Tensor)
}

/// Refuses options that attention does not have here.
fn refuse_rest(call: &Call<'_>) -> Result<(), Error> {
    let inputs = ["past_key", "past_value", "nonpad_kv_seqlen"].into_iter().zip(4..);
    let outputs = ["present_key", "present_value", "qk_matmul_output"].into_iter().zip(1..);
    let given =
        inputs.filter(|(_, at)| call.has(*at)).chain(outputs.filter(|(_, at)| call.gives(*at)));
    if let Some((name, _)) = given.into_iter().next() {
        return Err(refuse(format!(
            "attention has {name}, expected only queries, keys, values and a mask"
        )));
    }
    match call.float("softcap", 0.0) {
        0.0 => Ok(()),
        cap => Err(refuse(format!("softcap is {cap}, expected 0"))),
    }
}

/// Returns the heads, from their dimension or from attributes.
fn heads(importer: &Importer<'_>, operands: [TensorId; 3]) -> Result<Heads, Error> {
    let [q, k, v] = operands.map(|id| &importer.graph.tensors[id].shape[..]);
    let (queries, keys, apart) = match (q, k, v) {
        ([_, queries, ..], [_, keys, ..], [_, values, ..])
            if [q.len(), k.len(), v.len()] == [4; 3] && keys == values =>
        {
            (*queries, *keys, true)
        }
        _ if [q.len(), k.len(), v.len()] == [3; 3] => {
            let attribute = |name| usize::try_from(importer.call.integer(name, 0)).unwrap_or(0);
            (attribute("q_num_heads"), attribute("kv_num_heads"), false)
        }
        _ => {
            let message = format!("shapes {q:?}, {k:?}, {v:?}, expected 3 or 4 dimensions each");
            return Err(refuse(message));
        }
    };
    if keys == 0 || queries == 0 || queries % keys != 0 {
        return Err(refuse(format!(
            "{queries} heads of queries share {keys} of keys, expected a multiple of {keys}"
        )));
    }
    Ok(Heads { queries, keys, apart })
}

/// Returns an operand as `[batch, tokens, features]`.
fn merged(importer: &mut Importer<'_>, x: TensorId) -> Result<TensorId, Error> {
    let [batch, heads, tokens, features] = importer.graph.tensors[x].shape[..] else {
        return Ok(x);
    };
    let turned = Transpose::new("bhsd", "bshd");
    let turned = importer.part("turned", turned, &[x])?;
    let shape = vec![batch, tokens, heads * features];
    importer.part("merged", Reshape { shape }, &[turned])
}

/// Returns whether no query sees a later key, from the attribute or a known mask.
fn causal(importer: &Importer<'_>) -> Result<bool, Error> {
    let asked = importer.call.integer("is_causal", 0) != 0;
    if !importer.call.has(3) {
        return Ok(asked);
    }
    match mask::mask(&importer.constant(3)?) {
        Some(seen) => Ok(asked || seen == Seen::Earlier),
        None => Err(refuse("its mask is neither causal nor open to all keys")),
    }
}

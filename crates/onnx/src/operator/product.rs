//! Products: Gemm and MatMul.

use thinwire_model::{Arithmetic, Error, Initial, Linear, MatMul, TensorId};

use crate::import::{Importer, WEIGHT, refuse};
use crate::value::{Value, Weight};

/// Letters of dimensions before the last two.
const LEADING: &str = "bgtuv";

/// `y = x · w + c`, with w perhaps the other way round.
pub(super) fn gemm(importer: &mut Importer<'_>) -> Result<Value, Error> {
    let factors = [importer.call.float("alpha", 1.0), importer.call.float("beta", 1.0)];
    if factors != [1.0, 1.0] || importer.call.integer("transA", 0) != 0 {
        return Err(refuse(format!(
            "alpha and beta are {factors:?}, expected 1, and an x that is not transposed"
        )));
    }
    let turned = importer.call.integer("transB", 0) != 0;
    let x = importer.tensor(0)?;
    let bias = if importer.call.has(2) { importer.weight(2) } else { None };
    let product = match importer.weight(1) {
        Some(weight) => {
            let weight = if turned { weight.turned() } else { weight };
            let features = weight.shape.last().copied();
            match bias
                .filter(|bias| bias.shape.len() == 1 && bias.shape.last().copied() == features)
            {
                Some(bias) if shared_table(importer, &weight).is_none() => {
                    let (layer, weight) = layer(importer, &weight)?;
                    let operands = [x, weight, importer.parameter(&bias, Initial::Zeros)?];
                    return importer.give(Linear { bias: true, ..layer }, &operands);
                }
                _ => linear(importer, x, &weight)?,
            }
        }
        None => {
            let y = importer.tensor(1)?;
            let right = if turned { "nk" } else { "kn" };
            importer.node(MatMul::new("bk", right, "bn"), &[x, y])?
        }
    };
    if !importer.call.has(2) {
        return Ok(Value::Tensor(product));
    }
    let added = importer.learned(2, Initial::Zeros)?;
    importer.part("add", Arithmetic::Add, &[product, added]).map(Value::Tensor)
}

/// A product over the last dimension of x and the one before the last of y.
pub(super) fn matmul(importer: &mut Importer<'_>) -> Result<Value, Error> {
    let x = importer.tensor(0)?;
    if let Some(weight) = importer.weight(1).filter(|weight| weight.shape.len() == 2) {
        return linear(importer, x, &weight).map(Value::Tensor);
    }
    let y = importer.tensor(1)?;
    let shape = |id: TensorId| importer.graph.tensors[id].shape.clone();
    let shapes = [shape(x), shape(y)];
    let [left, right] = [shapes[0].len(), shapes[1].len()];
    if left < 2 || right < 2 || left.max(right) > LEADING.len() + 2 {
        let message = format!("shapes {shapes:?}, expected 2 to {} dimensions", LEADING.len() + 2);
        return Err(refuse(message));
    }
    let most = left.max(right) - 2;
    let leading = |dimensions: usize| &LEADING[most + 2 - dimensions..most];
    let product = MatMul::new(
        format!("{}sk", leading(left)),
        format!("{}kn", leading(right)),
        format!("{}sn", leading(left.max(right))),
    );
    importer.give(product, &[x, y])
}

/// A product with a weight: a linear layer, or a product with a table that is also read otherwise.
fn linear(importer: &mut Importer<'_>, x: TensorId, weight: &Weight) -> Result<TensorId, Error> {
    match shared_table(importer, weight) {
        None => {
            let (layer, weight) = layer(importer, weight)?;
            importer.node(layer, &[x, weight])
        }
        Some(table) => {
            let table = importer.parameter(&table, WEIGHT)?;
            let dimensions = importer.graph.tensors[x].shape.len();
            let rows: String = LEADING.chars().take(dimensions.saturating_sub(1)).collect();
            let product = MatMul::new(format!("{rows}k"), "nk", format!("{rows}n"));
            importer.node(product, &[x, table])
        }
    }
}

/// A linear layer, and its weight in the order of the file.
fn layer(importer: &mut Importer<'_>, weight: &Weight) -> Result<(Linear, TensorId), Error> {
    let turned = weight.transposed;
    let stored = if turned { weight.turned() } else { weight.clone() };
    Ok((Linear { turned, ..Linear::plain() }, importer.parameter(&stored, WEIGHT)?))
}

/// Returns the weight in the order of the file, if it is used here transposed and elsewhere as it is:
/// a shared parameter, such as the table of an embedding that is also the head.
fn shared_table(importer: &Importer<'_>, weight: &Weight) -> Option<Weight> {
    (weight.transposed && !importer.once(weight)).then(|| weight.turned())
}

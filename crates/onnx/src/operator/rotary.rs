//! Rotary positions as one node, which ONNX has since version 23.
//!
//! The tables of cosines and sines are known numbers, from which their base is determined. Tables of anything
//! else, such as stretched positions, are refused.

use thinwire_model::{Error, Reshape, Rotary, TensorId, Transpose};

use crate::constant::Constant;
use crate::import::{Importer, refuse};
use crate::value::Value;

/// Largest absolute error of a cosine or sine.
const NEAR: f64 = 1e-3;
/// Largest relative difference between a base and the whole number that is probably intended.
const WHOLE: f64 = 1e-4;
/// The base if there is only one pair, which rotates by one radian per token with any base.
const USUAL: f64 = 10_000.0;

/// Imports the rotation of pairs of features.
pub(super) fn visit(importer: &mut Importer<'_>) -> Result<Value, Error> {
    let x = importer.tensor(0)?;
    let (tokens, heads, head_size) = heads(importer, x)?;
    for (name, usual) in [("interleaved", 0), ("rotary_embedding_dim", 0)] {
        let found = importer.call.integer(name, usual);
        let whole = name != "interleaved" && found == head_size as i64;
        if found != usual && !whole {
            return Err(refuse(format!("{name} is {found}, expected {usual}")));
        }
    }
    let base = base(importer, tokens, head_size)?;
    let rotary = Rotary { head_size, base, back: false };
    let [batch, _, _, features] = importer.graph.tensors[x].shape[..] else {
        return importer.give(rotary, &[x]);
    };
    let shape = vec![batch, tokens, heads * features];
    let turned = Transpose::new("bhsd", "bshd");
    let x = importer.part("turned", turned, &[x])?;
    let x = importer.part("merged", Reshape { shape }, &[x])?;
    let y = importer.node(rotary, &[x])?;
    let shape = vec![batch, tokens, heads, features];
    let y = importer.part("apart", Reshape { shape }, &[y])?;
    let back = Transpose::new("bshd", "bhsd");
    importer.part("back", back, &[y]).map(Value::Tensor)
}

/// Returns the numbers of tokens, of heads, and of features per head.
fn heads(importer: &Importer<'_>, x: TensorId) -> Result<(usize, usize, usize), Error> {
    let shape = &importer.graph.tensors[x].shape;
    let heads = usize::try_from(importer.call.integer("num_heads", 0)).unwrap_or(0);
    let found = match (&shape[..], heads) {
        ([_, heads, tokens, size], _) => Some((*tokens, *heads, *size)),
        ([_, tokens, features], 1..) if features % heads == 0 => {
            Some((*tokens, heads, features / heads))
        }
        _ => None,
    };
    found.filter(|(_, _, size)| size % 2 == 0).ok_or_else(|| {
        refuse(format!("shape {shape:?} of {heads} heads, expected an even number for each"))
    })
}

/// Returns the base of the tables, if positions count from 0.
fn base(importer: &Importer<'_>, tokens: usize, head_size: usize) -> Result<f64, Error> {
    let [cosines, sines] = [importer.constant(1)?, importer.constant(2)?];
    let half = head_size / 2;
    let places = if importer.call.has(3) { Some(importer.constant(3)?) } else { None };
    let rows = |table: &Constant| {
        let fits = table.shape.last() == Some(&half) && table.values.len() >= tokens * half;
        let known = table.values.len() / half.max(1);
        let at = |token: usize| match &places {
            // Batches that come after the first are as it is.
            Some(places) => places.values.get(token).map(|place| *place as usize),
            None => Some(token),
        };
        let row = |token: usize| at(token).filter(|row| *row < known);
        let rows = (0..tokens).map(|token| row(token).map(|row| row * half));
        if fits { rows.collect::<Option<Vec<usize>>>() } else { None }
    };
    let wrong = || {
        let shapes = format!("tables of shape {:?} and {:?}", cosines.shape, sines.shape);
        refuse(format!("{shapes}, expected {tokens} rows of {half} numbers"))
    };
    let (of_cosines, of_sines) =
        (rows(&cosines).ok_or_else(wrong)?, rows(&sines).ok_or_else(wrong)?);
    // The slowest pair has not yet turned far on the second token.
    let slowest = of_sines.get(1).map(|row| {
        let last = row + half - 1;
        sines.values[last].atan2(cosines.values[of_cosines[1] + half - 1])
    });
    let base = match slowest {
        Some(angle) if half > 1 => meant(angle.powf(half as f64 / (1.0 - half as f64))),
        _ => USUAL,
    };
    let right = |token: usize, pair: usize| {
        let angle = token as f64 / base.powf(pair as f64 / half as f64);
        let near = |table: &Constant, row: usize, expected: f64| {
            (table.values[row + pair] - expected).abs() < NEAR
        };
        near(&cosines, of_cosines[token], angle.cos()) && near(&sines, of_sines[token], angle.sin())
    };
    match (0..tokens).all(|token| (0..half).all(|pair| right(token, pair))) {
        true => Ok(base),
        false => {
            Err(refuse("its tables are not those of one base and of positions counted from 0"))
        }
    }
}

/// Returns the whole number that is close to a base.
fn meant(base: f64) -> f64 {
    let whole = base.round();
    if (whole - base).abs() < WHOLE * base { whole } else { base }
}

//! Masks: they determine which keys a query sees.

use thinwire_model::Error;

use crate::constant::{Constant, FAR};
use crate::half::{Half, Stage};
use crate::import::{Importer, unsupported};
use crate::value::Value;

/// Keys that a query attends to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Seen {
    /// All keys.
    All,
    /// The keys up to the query's own position.
    Earlier,
}

/// Imports `Where` as a mask, with scores, and minus infinity for keys that are not seen; or as a replacement
/// of NaN.
pub(super) fn masked(importer: &mut Importer<'_>) -> Result<Value, Error> {
    if let (Value::Half(half), Value::Tensor(x)) = (importer.value(0)?, importer.value(2)?)
        && (half.stage, half.x) == (Stage::Missing, *x)
        && importer.constant(1).is_ok_and(|constant| constant.single() == Some(0.0))
    {
        return Ok(Value::Tensor(*x));
    }
    let Ok(condition) = importer.constant(0) else { return Err(unsupported("Where")) };
    let far = |index: usize| {
        let constant = importer.constant(index).ok();
        constant.is_some_and(|constant| constant.values.iter().all(|value| *value <= FAR))
    };
    let (x, seen_is) = match (far(1), far(2)) {
        (false, true) => (1, true),
        (true, false) => (2, false),
        _ => return Err(unsupported("Where")),
    };
    let seen = seen(&condition, |value| (value != 0.0) == seen_is);
    let Some(seen) = seen else { return Err(unsupported("Where")) };
    let x = importer.tensor(x)?;
    scores(importer, x, &condition, seen).ok_or_else(|| unsupported("Where"))
}

/// Returns scores with a mask of a shape; `None` if applying the mask would enlarge them.
pub(super) fn scores(
    importer: &Importer<'_>,
    x: usize,
    mask: &Constant,
    seen: Seen,
) -> Option<Value> {
    let shape = &importer.graph.tensors[x].shape;
    let missing = shape.len().checked_sub(mask.shape.len())?;
    let fits = |(of_x, of_mask): (&usize, &usize)| of_x == of_mask || *of_mask == 1;
    let fits = shape[missing..].iter().zip(&mask.shape).all(fits);
    fits.then_some(match seen {
        Seen::All => Value::Tensor(x),
        Seen::Earlier => Value::Half(Half::new(Stage::Causal, x, importer.call.name.clone())),
    })
}

/// Returns the keys that queries see under a mask. Either the mask is added, or it is true for keys that are
/// seen.
pub(super) fn mask(mask: &Constant) -> Option<Seen> {
    match mask.whole {
        true => seen(mask, |value| value != 0.0),
        false => adds(mask),
    }
}

/// Returns the keys that queries see under a mask that is added.
pub(super) fn adds(mask: &Constant) -> Option<Seen> {
    let clear = mask.values.iter().all(|value| *value == 0.0 || *value <= FAR);
    seen(mask, |value| value == 0.0).filter(|_| clear)
}

/// Returns the keys that all queries see by a common rule, if there is one.
fn seen(mask: &Constant, is_seen: impl Fn(f64) -> bool) -> Option<Seen> {
    if mask.values.iter().all(|value| is_seen(*value)) {
        return Some(Seen::All);
    }
    let [.., queries, keys] = mask.shape[..] else { return None };
    let right = |(at, value): (usize, &f64)| (at % keys <= at / keys % queries) == is_seen(*value);
    let earlier = queries == keys && mask.values.iter().enumerate().all(right);
    earlier.then_some(Seen::Earlier)
}

//! Images: convolutions, pools and batch norm.

use thinwire_model::{
    Arithmetic, BatchNorm, Conv2d, Error, Moments, Pool, PoolKind, Scale, Sum, Summed,
};

use crate::import::{Call, Importer};
use crate::value::{Value, Weight};

/// The same stride, and the same padding on all sides.
fn steps(call: &Call<'_>, kernel: &[usize]) -> Result<(usize, usize), Error> {
    let [strides, dilations] = ["strides", "dilations"].map(|name| call.integers(name));
    let pads = match call.attribute("auto_pad").map(|attribute| attribute.s) {
        None | Some(b"NOTSET") => call.integers("pads").unwrap_or(&[]).to_vec(),
        Some(b"VALID") => Vec::new(),
        Some(b"SAME_UPPER" | b"SAME_LOWER")
            if kernel.iter().all(|size| size % 2 == 1)
                && strides.unwrap_or(&[]).iter().all(|stride| *stride == 1) =>
        {
            kernel.iter().map(|size| (size / 2) as i64).collect()
        }
        Some(other) => {
            let other = String::from_utf8_lossy(other).into_owned();
            return Err(call.refuse(format!("auto_pad is {other}, expected NOTSET or VALID")));
        }
    };
    for (name, value, expected) in [
        ("dilations", dilations.unwrap_or(&[]), 1),
        ("ceil_mode", &[call.integer("ceil_mode", 0)], 0),
        ("group", &[call.integer("group", 1)], 1),
    ] {
        if value.iter().any(|value| *value != expected) {
            return Err(call.refuse(format!("{name} is {value:?}, expected {expected}")));
        }
    }
    Ok((same(call, "strides", strides.unwrap_or(&[]), 1)?, same(call, "pads", &pads, 0)?))
}

/// The number that a list repeats.
fn same(call: &Call<'_>, name: &str, list: &[i64], usual: usize) -> Result<usize, Error> {
    let first = list.first().copied().unwrap_or(usual as i64);
    match usize::try_from(first) {
        Ok(number) if number < 1 << 20 && list.iter().all(|value| *value == first) => Ok(number),
        _ => Err(call.refuse(format!("{name} are {list:?}, expected the same in all directions"))),
    }
}

/// A convolution, and its bias.
pub(super) fn conv(importer: &mut Importer<'_>, call: &Call<'_>) -> Result<Value, Error> {
    let [x, weight] = [importer.tensor(call, 0)?, importer.tensor(call, 1)?];
    let kernel = importer.graph.tensors[weight].shape.get(2..).unwrap_or(&[]).to_vec();
    let (stride, padding) = steps(call, &kernel)?;
    let y = importer.apply(&call.name, Conv2d { stride, padding }, &[x, weight])?;
    if !call.has(2) {
        return Ok(Value::Tensor(y));
    }
    let Some(bias) = importer.weight(call, 2) else {
        return Err(call.refuse("its bias is computed, expected one that is trained"));
    };
    let shape = [&bias.shape[..], &[1, 1]].concat();
    let bias = importer.parameter(&Weight { shape, ..bias })?;
    let name = format!("{}.bias", call.name);
    Ok(Value::Tensor(importer.apply(&name, Arithmetic::Add, &[y, bias])?))
}

/// The largest or the mean of windows.
pub(super) fn pool(importer: &mut Importer<'_>, call: &Call<'_>) -> Result<Value, Error> {
    let kind = if call.operator == "MaxPool" { PoolKind::Max } else { PoolKind::Mean };
    let kernel = call.integers("kernel_shape").unwrap_or(&[]);
    let size = same(call, "kernel_shape", kernel, 1)?;
    let (stride, padding) = steps(call, &vec![size; kernel.len()])?;
    if kind == PoolKind::Mean && padding > 0 && call.integer("count_include_pad", 0) == 0 {
        return Err(call.refuse("count_include_pad is 0, expected 1 where there is padding"));
    }
    let x = importer.tensor(call, 0)?;
    let pool = Pool { kind, size, stride, padding };
    Ok(Value::Tensor(importer.apply(&call.name, pool, &[x])?))
}

/// The mean of a whole image.
pub(super) fn global(importer: &mut Importer<'_>, call: &Call<'_>) -> Result<Value, Error> {
    let x = importer.tensor(call, 0)?;
    let shape = importer.graph.tensors[x].shape.clone();
    match shape[..] {
        [_, _, height, width] if height == width => {
            let pool = Pool { kind: PoolKind::Mean, size: height, stride: 1, padding: 0 };
            Ok(Value::Tensor(importer.apply(&call.name, pool, &[x])?))
        }
        [_, _, ..] => {
            let of = |dim: usize| if dim > 1 { Summed::ToOne } else { Summed::No };
            let sum = Sum { dims: (0..shape.len()).map(of).collect() };
            let sum = importer.apply(&format!("{}.sum", call.name), sum, &[x])?;
            let count: usize = shape[2..].iter().product();
            Ok(Value::Tensor(importer.apply(&call.name, Scale(1.0 / count as f64), &[sum])?))
        }
        _ => Err(call.refuse(format!("x has shape {shape:?}, expected an image"))),
    }
}

/// Batch norm as it is in training; the file's statistics are not used.
pub(super) fn batch_norm(importer: &mut Importer<'_>, call: &Call<'_>) -> Result<Value, Error> {
    let inputs = [importer.tensor(call, 0)?, importer.tensor(call, 1)?, importer.tensor(call, 2)?];
    let [x, gain, bias] = inputs;
    let name = format!("{}.moments", call.name);
    let moments = importer.graph.apply(name, Moments.into(), &[x])?;
    let operands = [x, moments[0], moments[1], gain, bias];
    Ok(Value::Tensor(importer.apply(&call.name, BatchNorm, &operands)?))
}

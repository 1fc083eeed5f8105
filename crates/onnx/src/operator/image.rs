//! Images: convolutions, pools and batch norm.

use thinwire_model::{
    Arithmetic, BatchNorm, Conv2d, Error, Initial, Moments, Pool, PoolKind, Reshape, Summed,
    TensorId,
};

use super::norm;
use crate::import::{Call, Importer, WEIGHT, refuse};
use crate::value::Value;

/// Windows of an image.
struct Steps {
    stride: [usize; 2],
    dilation: [usize; 2],
    padding: [usize; 4],
}

/// Reads the windows of a node, for known sizes of the image and the windows.
fn steps(call: &Call<'_>, image: [usize; 2], kernel: [usize; 2]) -> Result<Steps, Error> {
    let stride = list(call, "strides", 1)?;
    let dilation = list(call, "dilations", 1)?;
    let padding = match call.text("auto_pad") {
        None | Some(b"NOTSET") => list(call, "pads", 0)?,
        Some(b"VALID") => [0; 4],
        Some(side @ (b"SAME_UPPER" | b"SAME_LOWER")) => {
            let [rows, columns] = [0, 1].map(|dim| {
                let windows = image[dim].div_ceil(stride[dim].max(1));
                let reach = kernel[dim].saturating_sub(1) * dilation[dim] + 1;
                let padded = windows.saturating_sub(1) * stride[dim] + reach;
                let added = padded.saturating_sub(image[dim]);
                match side {
                    b"SAME_UPPER" => (added / 2, added - added / 2),
                    _ => (added - added / 2, added / 2),
                }
            });
            [rows.0, columns.0, rows.1, columns.1]
        }
        Some(other) => {
            let other = String::from_utf8_lossy(other).into_owned();
            return Err(refuse(format!("auto_pad is {other}, expected NOTSET or VALID")));
        }
    };
    Ok(Steps { stride, dilation, padding })
}

/// Reads a list with one number per direction; for a sequence, converts it to that of an image of one row.
fn list<const N: usize>(call: &Call<'_>, name: &str, usual: usize) -> Result<[usize; N], Error> {
    let Some(given) = call.integers(name) else { return Ok([usual; N]) };
    let number = |value: &i64| usize::try_from(*value).ok().filter(|number| *number < 1 << 20);
    let numbers: Option<Vec<usize>> = given.iter().map(number).collect();
    let refused = || refuse(format!("{name} are {given:?}, expected {N} small numbers"));
    let numbers = numbers.ok_or_else(refused)?;
    let of_row = |number: &usize| [usual, *number];
    match numbers.len() * 2 == N {
        true => numbers.iter().flat_map(of_row).collect::<Vec<_>>().try_into(),
        false => numbers.try_into(),
    }
    .map_err(|_| refused())
}

/// Returns the last two dimensions of an image or a weight.
fn plane(importer: &Importer<'_>, id: TensorId) -> Result<[usize; 2], Error> {
    match importer.graph.tensors[id].shape[..] {
        [_, _, height, width] => Ok([height, width]),
        ref shape => Err(refuse(format!("shape {shape:?}, expected an image"))),
    }
}

/// Kind of a node's operand.
#[derive(Clone, Copy, PartialEq)]
enum Operand {
    Image,
    Sequence,
}

/// Returns an image; a sequence becomes an image of one row.
fn image(importer: &mut Importer<'_>) -> Result<(TensorId, Operand), Error> {
    let x = importer.tensor(0)?;
    let [batch, channels, length] = importer.graph.tensors[x].shape[..] else {
        return Ok((x, Operand::Image));
    };
    let row = Reshape { shape: vec![batch, channels, 1, length] };
    Ok((importer.part("row", row, &[x])?, Operand::Sequence))
}

/// Returns a convolution's weight; the weight for sequences is converted for images of one row.
fn kernel(importer: &mut Importer<'_>, operand: Operand) -> Result<TensorId, Error> {
    match importer.weight(1) {
        Some(weight) if operand == Operand::Sequence && weight.shape.len() == 3 => {
            let [out, channels, length] = [0, 1, 2].map(|dim| weight.shape[dim]);
            let shape = Reshape { shape: vec![out, channels, 1, length] };
            let weight = importer.parameter(&weight, WEIGHT)?;
            importer.part("kernel", shape, &[weight])
        }
        _ => importer.learned(1, WEIGHT),
    }
}

/// Returns the result for an image, as a sequence if the operand was one.
fn result(importer: &mut Importer<'_>, y: TensorId, operand: Operand) -> Result<Value, Error> {
    let [batch, channels, 1, length] = importer.graph.tensors[y].shape[..] else {
        return Ok(Value::Tensor(y));
    };
    if operand == Operand::Image {
        return Ok(Value::Tensor(y));
    }
    let flat = Reshape { shape: vec![batch, channels, length] };
    importer.part("flat", flat, &[y]).map(Value::Tensor)
}

/// Returns the number of groups of a convolution.
fn groups(call: &Call<'_>) -> Result<usize, Error> {
    let group = call.integer("group", 1);
    let groups = usize::try_from(group).ok().filter(|groups| *groups > 0);
    groups.ok_or_else(|| refuse(format!("group is {group}, expected 1 or more")))
}

/// Imports a convolution with its bias.
pub(super) fn conv(importer: &mut Importer<'_>) -> Result<Value, Error> {
    let (x, operand) = image(importer)?;
    let weight = kernel(importer, operand)?;
    let (image, kernel) = (plane(importer, x)?, plane(importer, weight)?);
    let Steps { stride, dilation, padding } = steps(importer.call, image, kernel)?;
    let convolution = Conv2d { stride, padding, dilation, groups: groups(importer.call)? };
    let y = importer.node(convolution, &[x, weight])?;
    if !importer.call.has(2) {
        return result(importer, y, operand);
    }
    let Some(bias) = importer.weight(2) else {
        return Err(refuse("its bias is computed, expected one that is trained"));
    };
    let shape = Reshape { shape: [&bias.shape[..], &[1, 1]].concat() };
    let bias = importer.parameter(&bias, Initial::Zeros)?;
    let bias = importer.part("bias_of_channels", shape, &[bias])?;
    let y = importer.part("bias", Arithmetic::Add, &[y, bias])?;
    result(importer, y, operand)
}

/// Imports the maximum or the mean of windows.
pub(super) fn pool(importer: &mut Importer<'_>) -> Result<Value, Error> {
    let kind = if importer.call.operator == "MaxPool" { PoolKind::Max } else { PoolKind::Mean };
    let (x, operand) = image(importer)?;
    let (image, size) = (plane(importer, x)?, list(importer.call, "kernel_shape", 1)?);
    let Steps { stride, dilation, mut padding } = steps(importer.call, image, size)?;
    if dilation != [1, 1] {
        return Err(refuse(format!("dilations are {dilation:?}, expected 1")));
    }
    let padded = padding != [0; 4];
    if kind == PoolKind::Mean && padded && importer.call.integer("count_include_pad", 0) == 0 {
        return Err(refuse("count_include_pad is 0, expected 1 where there is padding"));
    }
    if importer.call.integer("ceil_mode", 0) != 0 {
        let more = ceiling(image, size, stride, padding);
        if kind == PoolKind::Mean && more != padding {
            return Err(refuse("ceil_mode is 1, expected 0 where windows reach beyond the image"));
        }
        padding = more;
    }
    let pool = Pool { kind, size, stride, padding };
    let y = importer.node(pool, &[x])?;
    result(importer, y, operand)
}

/// Returns the padding that completes every window that begins before the end of the image and its leading
/// padding.
fn ceiling(
    image: [usize; 2],
    size: [usize; 2],
    stride: [usize; 2],
    padding: [usize; 4],
) -> [usize; 4] {
    let mut more = padding;
    for dim in [0, 1] {
        let before = image[dim] + padding[dim];
        let padded = before + padding[dim + 2];
        let step = stride[dim].max(1);
        let steps = padded.saturating_sub(size[dim]).div_ceil(step);
        if steps * step < before {
            more[dim + 2] = (steps * step + size[dim]).saturating_sub(before).max(padding[dim + 2]);
        }
    }
    more
}

/// Imports the mean of a whole image.
pub(super) fn global(importer: &mut Importer<'_>) -> Result<Value, Error> {
    let x = importer.tensor(0)?;
    let shape = importer.graph.tensors[x].shape.clone();
    match shape[..] {
        [_, _, height, width] => {
            let pool = Pool { size: [height, width], ..Pool::square(PoolKind::Mean, 1, 1, 0) };
            importer.give(pool, &[x])
        }
        [_, _, ..] => {
            let image: Vec<usize> = (2..shape.len()).collect();
            importer.mean(&importer.call.name, x, &image, Summed::ToOne).map(Value::Tensor)
        }
        _ => Err(refuse(format!("x has shape {shape:?}, expected an image"))),
    }
}

/// Imports batch norm in training mode; the file's statistics are not used.
pub(super) fn batch_norm(importer: &mut Importer<'_>) -> Result<Value, Error> {
    let x = importer.tensor(0)?;
    let gain = importer.learned(1, Initial::Ones)?;
    let bias = importer.learned(2, Initial::Zeros)?;
    let name = format!("{}.moments", importer.call.name);
    let moments = importer.graph.apply(name, Moments.into(), &[x])?;
    let operands = [x, moments[0], moments[1], gain, bias];
    importer.give(BatchNorm(norm::epsilon(importer.call)), &operands)
}

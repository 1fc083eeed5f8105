//! Trial of the kernels that are made of a codec as text, on a device or else on the host.
//!
//! Law: if all values are finite, bytes, residuals and decoded values are those of the CPU, bit for
//! bit.

use std::sync::Arc;
use std::task::Waker;

use thinwire_codec::{Codec, Finite, Input, Write};
use thinwire_wire::random::Key;

use super::Cuda;
use super::kernel::{Kernels, kernels};
use super::simulated::{cuda, host};
use crate::{Canonicalise, Decoding, Device, Done, Encoding, Operand, Source, Work};

/// Place where kernels were tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// On a device.
    Device,
    /// On the host, as C++.
    Host,
}

/// Tries the kernels that were made of a codec as text. Returns the place of the trial; `None` if there
/// is neither a device nor a C++ compiler.
///
/// # Errors
/// The difference, or the reason why the kernels do not start.
pub fn attempt(codec: &Arc<dyn Codec>) -> Result<Option<Place>, String> {
    if let Ok(device) = Cuda::open(0, &[]) {
        return equal(&device, codec).map(|()| Some(Place::Device));
    }
    let Some(Kernels::Code(code)) = kernels(codec.as_ref()) else { return Ok(None) };
    // Only there does the linker tell where shared memory is.
    if !cfg!(target_os = "linux") || !host::has_compiler() {
        return Ok(None);
    }
    host::Function::find(code.encode)?;
    let (device, _) = cuda(1).map_err(|fault| fault.to_string())?;
    equal(&device, codec).map(|()| Some(Place::Host))
}

/// Kinds of values: normal ones, halves, of all exponents, zeros, and one that is infinite.
const KINDS: u32 = 5;

fn values(kind: u32, length: usize, seed: u64) -> Vec<f32> {
    let key = Key { seed, step: kind.into(), tensor: length as u32 };
    let value = |at: usize| {
        let word = key.word(at as u64);
        match kind {
            0 => key.normal(at as u64) * 0.01,
            // Exact ties under a scale of 1.
            1 if seed == 1 => (word % 29) as f32 / 2.0 - 7.0,
            2 => f32::from_bits(word & 0x807f_ffff | ((word >> 8) % 200) << 23),
            4 if at == length / 2 => f32::INFINITY,
            4 => key.normal(at as u64),
            _ => 0.0,
        }
    };
    (0..length).map(value).collect()
}

fn equal(device: &Cuda, codec: &Arc<dyn Codec>) -> Result<(), String> {
    let block = codec.block();
    let lengths = [1, 7, block.div_ceil(2), block, block + 1, 2 * block + 17, 5 * block - 1];
    for (length, kind) in lengths.into_iter().flat_map(|n| (0..KINDS).map(move |kind| (n, kind))) {
        let case = Case {
            device,
            codec,
            values: values(kind, length, 1),
            residual: values(kind, length, 2),
            key: Key { seed: 7, step: kind.into(), tensor: length as u32 },
        };
        for residual in [None, Some(case.residual.as_slice())] {
            case.compare(residual).map_err(|what| {
                format!("{what} of {length} values differ from those of the CPU")
            })?;
        }
    }
    Ok(())
}

struct Case<'a> {
    device: &'a Cuda,
    codec: &'a Arc<dyn Codec>,
    values: Vec<f32>,
    residual: Vec<f32>,
    key: Key,
}

impl Case<'_> {
    fn compare(&self, residual: Option<&[f32]>) -> Result<(), &'static str> {
        let Case { device, codec, key, .. } = *self;
        let (mut left, length) = (self.values.clone(), self.values.len());
        let mut bytes = vec![0; codec.encoded_len(length)];
        let input = match residual {
            Some(residual) => Input::Feedback { values: &mut left, residual },
            None => Input::Plain(&self.values),
        };
        let finite = codec.encode(input, key, &mut bytes);

        let on_device = device.upload(&self.values);
        let encoded = self.done(Work::Encode(Encoding {
            codec,
            values: Operand::Device(on_device.clone()),
            residual: residual.map(|residual| Source::Device(device.upload(residual))),
            key,
            to: device.host(bytes.len()),
        }))?;
        if encoded.finite != finite {
            return Err("marks as finite");
        }
        if finite == Finite::No {
            return Ok(());
        }
        if encoded.bytes.as_slice() != bytes {
            return Err("bytes");
        }
        if residual.is_some() && !same(&on_device.fetch(), &left) {
            return Err("residuals");
        }
        for write in [Write::Set, Write::Add] {
            let (mut decoded, to) = (self.residual.clone(), device.upload(&self.residual));
            codec.decode(&bytes, write, &mut decoded).map_err(|_| "readings")?;
            self.done(Work::Decode(Decoding {
                codec,
                from: encoded.bytes.clone(),
                to: Operand::Device(to.clone()),
                write,
                canonicalise: Canonicalise::default(),
            }))?;
            if !same(&to.fetch(), &decoded) {
                return Err("decoded values");
            }
        }
        Ok(())
    }

    fn done(&self, work: Work<'_>) -> Result<Done, &'static str> {
        let done = self.device.submit(work, Waker::noop()).into_pending().wait();
        if done.failure.is_some() { Err("ends") } else { Ok(done) }
    }
}

fn same(a: &[f32], b: &[f32]) -> bool {
    a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits())
}

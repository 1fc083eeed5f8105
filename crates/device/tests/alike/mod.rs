//! Comparison of kernels on the host with the Rust codecs: bytes, residuals and decoded values.
#![allow(dead_code, reason = "each test uses some")]

use std::sync::{Arc, OnceLock};

use thinwire_codec::{Choice, Codec, Finite, Input, Write};
use thinwire_device::cuda::arguments::{self, Address, Arguments};
use thinwire_device::cuda::kernel::{Cast, Code, Grid, Kernel, Kernels, SOURCES, Source, kernels};
use thinwire_device::cuda::simulated::host;
use thinwire_wire::DType;
use thinwire_wire::random::Key;

use super::inputs;

/// Bytes behind every buffer, which no kernel may change.
const GUARD: u8 = 0xc7;
const GUARDS: usize = 64;

/// Result of encoding: bytes, and the new residual where there was one.
#[derive(PartialEq)]
pub struct Encoded {
    finite: Finite,
    pub bytes: Vec<u8>,
    residual: Vec<u32>,
}

pub fn codec(name: &str) -> Arc<dyn Codec> {
    match Choice::parse(name) {
        Ok(Choice::Bytes(codec)) => codec,
        Ok(Choice::Integers(integers)) => integers.integers(),
        other => panic!("{name} is {other:?}"),
    }
}

/// Kernels of all texts, compiled as one file.
pub static TEXTS: OnceLock<Source> = OnceLock::new();

/// Runs a kernel on buffers of this test.
pub fn launch<A: Arguments>(kernel: Kernel, grid: Grid, arguments: &A, seed: u64) {
    let is_text = |source| !SOURCES.contains(source);
    let source = *TEXTS.get().filter(|_| is_text(&kernel.source)).unwrap_or(&kernel.source);
    let kernel = Kernel { source, ..kernel };
    // SAFETY: tests name buffers of the lengths that they pass.
    unsafe { host::launch(kernel, grid, arguments, seed) };
}

pub fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|x| x.to_bits()).collect()
}

pub fn address<T>(values: &mut [T]) -> Address {
    values.as_mut_ptr() as Address
}

/// Intermediate results, aligned as memory of a device is.
fn scratch(words: usize) -> Vec<u64> {
    vec![0xa5a5_a5a5_a5a5_a5a5; words.div_ceil(2)]
}

/// What the codec gives.
pub fn expected(codec: &dyn Codec, values: &[f32], residual: Option<&[f32]>, key: Key) -> Encoded {
    let mut bytes = vec![0xaa; codec.encoded_len(values.len())];
    let mut left = values.to_vec();
    let input = match residual {
        Some(residual) => Input::Feedback { values: &mut left, residual },
        None => Input::Plain(values),
    };
    let finite = codec.encode(input, key, &mut bytes);
    Encoded { finite, bytes, residual: bits(&left) }
}

/// What the kernel gives, with the encoding at an address that is `shift` beyond a multiple of 8.
fn found(
    codec: &dyn Codec,
    values: &[f32],
    residual: Option<&[f32]>,
    key: Key,
    shift: usize,
) -> Encoded {
    let length = codec.encoded_len(values.len());
    let mut places = vec![u64::from_ne_bytes([GUARD; 8]); (shift + length + GUARDS).div_ceil(8)];
    let bytes = address(&mut places) + shift as u64;
    let (mut left, mut residual) = (values.to_vec(), residual.map(<[f32]>::to_vec));
    let mut flag = [0u32];
    let (values, flags) = (address(&mut left), address(&mut flag));
    let residual = residual.as_mut().map_or(0, |residual| address(residual));
    let finite = match kernels(codec).expect("a codec with kernels") {
        Kernels::Cast(cast) => {
            let arguments = arguments::Cast {
                values,
                residual,
                error: values,
                elements: bytes,
                largest: flags,
                length: left.len() as u64,
                ..arguments::Cast::default()
            };
            launch(cast.encode, cast.grid(left.len()), &arguments, key.step);
            flag[0] < cast.limit
        }
        Kernels::Code(code) => {
            let arguments = arguments::Code {
                values,
                residual,
                error: values,
                bytes,
                infinite: flags,
                length: left.len() as u64,
                key: key.into(),
                parameters: code.parameters,
                ..arguments::Code::default()
            };
            launch(code.encode, code.grid(left.len()), &arguments, key.step);
            flag[0] == 0
        }
        Kernels::Sparse(selection) => {
            let sparse = selection.of(left.len()).expect("fewer than 2^32 elements");
            let mut scratch = scratch(sparse.scratch_len());
            let arguments = arguments::Sparse {
                values,
                residual,
                error: values,
                bytes,
                infinite: flags,
                scratch: address(&mut scratch),
                ..sparse.arguments(key)
            };
            for step in sparse.encoding() {
                launch(step.kernel, step.grid, &step.arguments(&arguments), key.step);
            }
            flag[0] == 0
        }
        Kernels::Rans(symbols) => {
            let rans = symbols.of(codec, left.len());
            let mut scratch = scratch(rans.scratch_len());
            let arguments = arguments::Rans {
                values,
                residual,
                error: values,
                bytes,
                infinite: flags,
                scratch: address(&mut scratch),
                ..rans.arguments()
            };
            for stage in rans.encoding() {
                launch(stage.kernel, stage.grid, &arguments, key.step);
            }
            flag[0] == 0
        }
    };
    let all: Vec<u8> = places.into_iter().flat_map(u64::to_ne_bytes).collect();
    let outside = all[..shift].iter().chain(&all[shift + length..]);
    assert!(outside.copied().all(|byte| byte == GUARD), "{codec}: bytes outside of the encoding");
    let bytes = all[shift..shift + length].to_vec();
    Encoded { finite: finite.into(), bytes, residual: bits(&left) }
}

/// Decodes with the kernel; returns whether the bytes were sound.
fn decoded(
    codec: &dyn Codec,
    bytes: &[u8],
    write: Write,
    values: &mut [f32],
    shift: usize,
) -> bool {
    let mut places = vec![0u64; (shift + bytes.len()).div_ceil(8).max(1)];
    let start = address(&mut places) + shift as u64;
    for (at, byte) in (shift..).zip(bytes) {
        places[at / 8] |= u64::from(*byte) << (at % 8 * 8);
    }
    let length = values.len() as u64;
    match kernels(codec).expect("a codec with kernels") {
        Kernels::Cast(cast @ Cast { decode, .. }) => {
            let arguments = arguments::Cast {
                values: address(values),
                elements: start,
                length,
                add: write.into(),
                ..arguments::Cast::default()
            };
            launch(decode, cast.grid(values.len()), &arguments, length);
        }
        Kernels::Code(code @ Code { decode, parameters, .. }) => {
            let mut flag = [0u32];
            let arguments = arguments::Code {
                values: address(values),
                bytes: start,
                infinite: address(&mut flag),
                length,
                parameters,
                add: write.into(),
                ..arguments::Code::default()
            };
            launch(decode, code.grid(values.len()), &arguments, length);
            return flag == [0];
        }
        Kernels::Sparse(selection) => {
            let sparse = selection.of(values.len()).expect("fewer than 2^32 elements");
            let (mut scratch, mut flag) = (scratch(sparse.scratch_len()), [0u32]);
            let arguments = arguments::Sparse {
                values: address(values),
                bytes: start,
                infinite: address(&mut flag),
                scratch: address(&mut scratch),
                add: write.into(),
                ..sparse.arguments(Key { seed: 0, step: 0, tensor: 0 })
            };
            let steps = sparse.decoding(write);
            steps.for_each(|step| launch(step.kernel, step.grid, &arguments, length));
            return flag == [0];
        }
        Kernels::Rans(symbols) => {
            let rans = symbols.of(codec, values.len());
            let (mut scratch, mut flag) = (scratch(rans.scratch_len()), [0u32]);
            let arguments = arguments::Rans {
                values: address(values),
                bytes: start,
                infinite: address(&mut flag),
                scratch: address(&mut scratch),
                add: write.into(),
                ..rans.arguments()
            };
            rans.decoding().for_each(|stage| launch(stage.kernel, stage.grid, &arguments, length));
            return flag == [0];
        }
    }
    true
}

/// Checks that a kernel decodes any bytes as the codec does, up to the payload of NaN.
fn decodes_alike(codec: &dyn Codec, bytes: &[u8], start: &[f32], shift: usize) {
    for write in [Write::Set, Write::Add] {
        let (mut own, mut other) = (start.to_vec(), start.to_vec());
        let is_sound = codec.decode(&bytes[..codec.frame_len(bytes)], write, &mut own).is_ok();
        assert!(decoded(codec, bytes, write, &mut other, shift) == is_sound, "{codec}: an error");
        if !is_sound {
            continue;
        }
        let same = |(a, b): (&f32, &f32)| a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan();
        let differs = own.iter().zip(&other).position(|pair| !same(pair));
        if let Some(at) = differs {
            let (own, other, length) = (own[at], other[at], start.len());
            panic!("{codec}: {write:?} decodes {at} of {length} to {other:e}, expected {own:e}");
        }
    }
}

/// Checks that a kernel encodes as the codec does: all bits where all is finite, else the flag.
fn encodes_alike(codec: &dyn Codec, what: &str, values: &[f32], residual: &[f32], case: u64) {
    let key = Key { seed: case << 40 | 7, step: case, tensor: 3 };
    // Words are used at even cases, bytes at odd ones, but elements of casts are aligned.
    let step = codec.dtype().map_or(1, DType::size);
    let shift = case as usize % 2 * step;
    for residual in [None, Some(residual)] {
        let expected = expected(codec, values, residual, key);
        let found = found(codec, values, residual, key, shift);
        let length = values.len();
        let sort = if residual.is_some() { "with feedback" } else { "plain" };
        assert!(found.finite == expected.finite, "{codec}: {what}, {length} {sort}: finite");
        if expected.finite == Finite::No {
            continue;
        }
        let frame = &expected.bytes[..codec.frame_len(&expected.bytes)];
        let byte = found.bytes.iter().zip(frame).position(|(a, b)| a != b);
        assert!(byte.is_none(), "{codec}: {what}, {length} {sort}: byte {byte:?}");
        let left = found.residual.iter().zip(&expected.residual).position(|(a, b)| a != b);
        assert!(left.is_none(), "{codec}: {what}, {length} {sort}: residual {left:?}");
        decodes_alike(codec, &expected.bytes, values, shift);
    }
}

/// Checks that a kernel decodes an encoding of which some bytes are others as the codec does.
fn damaged_decodes_alike(codec: &dyn Codec, values: &[f32], case: u32) {
    let Encoded { bytes, .. } = expected(codec, values, None, Key { seed: 0, step: 0, tensor: 0 });
    let length = codec.frame_len(&bytes);
    for (turn, word) in inputs::bytes(8 * 6, case).chunks_exact(8).enumerate() {
        let mut damaged = bytes.clone();
        // Heads, tables and states are near the beginning.
        let among = if turn % 2 == 0 { length.min(100) } else { length };
        let place = u32::from_le_bytes([word[0], word[1], word[2], word[3]]) as usize % among;
        damaged[place] =
            if word[4] % 2 == 0 { word[5] } else { damaged[place] ^ 1 << (word[5] % 8) };
        decodes_alike(codec, &damaged, values, 0);
    }
}

/// Checks a codec at lengths and inputs of every kind.
pub fn check(codec: &dyn Codec, lengths: impl IntoIterator<Item = usize>) {
    for (case, length) in (0..).zip(lengths) {
        let kinds = inputs::kinds();
        // Every kind at some lengths, one of them at the others.
        let one = if length == 40_001 { 0 } else { case % kinds.len() };
        let chosen = match length {
            129 | 257 | 6000 | 100_003 => 0..kinds.len(),
            _ => one..one + 1,
        };
        for (what, make) in &kinds[chosen] {
            let (values, residual) = (make(length, 1), make(length, 2));
            encodes_alike(codec, what, &values, &residual, case as u64);
        }
        let bytes = inputs::bytes(codec.encoded_len(length), case as u32);
        let values = inputs::normal(length, 1);
        decodes_alike(codec, &bytes, &values, 0);
        if codec.is_variable() {
            damaged_decodes_alike(codec, &values, case as u32);
        }
    }
}

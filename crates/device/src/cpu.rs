//! The processor of the host.

use std::task::Waker;
use std::time::{Duration, Instant};

use thinwire_codec::{Error, Finite, Input};

use crate::work::Residual;
use crate::{Decoding, Device, Done, Encoding, Operand, Region, Submission, Work};

/// Host processor, which does its work within [`Device::submit`], on the caller's thread.
#[derive(Clone, Copy, Debug)]
pub struct Cpu;

impl Device for Cpu {
    /// Does the work.
    ///
    /// # Panics
    /// If an operand lies in the memory of a device.
    fn submit(&self, work: Work<'_>, _waker: &Waker) -> Submission {
        let begin = Instant::now();
        let mut done = match work {
            Work::Encode(encoding) => encode(encoding),
            Work::Decode(decoding) => decode(decoding),
        };
        done.busy = begin.elapsed();
        Submission::Done(done)
    }

    fn read(&self, from: &Region, _to: &mut [f32]) {
        panic!("{from:?} is not host memory");
    }

    fn write(&self, _from: &[f32], to: &Region) {
        panic!("{to:?} is not host memory");
    }
}

/// Encodes values in host memory.
fn encode(encoding: Encoding<'_>) -> Done {
    let Encoding { codec, values, residual, key, mut to } = encoding;
    let values = host(values);
    let input = match residual {
        None => Input::Plain(values),
        Some(Residual::Host(residual)) => Input::Feedback { values, residual },
        Some(Residual::Device(region)) => panic!("the residual {region:?} is not host memory"),
    };
    let finite = codec.encode(input, key, to.as_mut_slice());
    Done { finite, bytes: to, busy: Duration::ZERO, error: None }
}

/// Decodes into values in host memory.
fn decode(decoding: Decoding<'_>) -> Done {
    let Decoding { codec, from, to, write, canonicalise } = decoding;
    let values = host(to);
    if canonicalise.before {
        codec.canonicalise(values);
    }
    let bytes = from.as_slice();
    let decoded = codec.decode(&bytes[..codec.frame_len(bytes)], write, values);
    if decoded.is_ok() && canonicalise.after {
        codec.canonicalise(values);
    }
    let error: Option<Error> = decoded.err();
    Done { finite: Finite::Yes, bytes: from, busy: Duration::ZERO, error }
}

/// Returns the values of an operand in host memory.
fn host(operand: Operand<'_>) -> &mut [f32] {
    match operand {
        Operand::Host(values) => values,
        Operand::Device(region) => panic!("{region:?} is not host memory"),
    }
}

//! Plus or minus a fixed threshold: two bits per element.
//!
//! Strom, "Scalable distributed DNN training using commodity GPU cloud computing" (2015, section 3),
//! with two bits for each element instead of a list, so that the length is known beforehand.
//! Magnitudes of at least TAU are sent as TAU with their sign, others as 0. The rest of a value stays
//! in the residual, which grows without bound where magnitudes are always above TAU.
//!
//! Law: decoded values are -TAU, 0 or TAU.

use crate::choice::{Choice, Entry};
use crate::coded::Coded;
use crate::kernel::Scale;
use crate::kernel::codes::Code;
use crate::shown::Number;
use crate::{Bound, Claims, Error};

/// Line in the table of codecs.
pub(crate) const ENTRY: Entry = Entry {
    usage: "tbq:TAU",
    summary: "0 or ± TAU, 32 bytes per 128 elements",
    examples: &["tbq:0.5", "tbq:0.001"],
    parse,
};

#[derive(Clone, Copy, Debug)]
pub(crate) struct Threshold {
    pub(crate) tau: f32,
}

fn parse(parameter: Option<&str>) -> Result<Choice, Error> {
    match parameter.and_then(|found| found.parse().ok()) {
        Some(tau) if (1e-30..=1e30).contains(&tau) => Ok(Choice::bytes(Coded(Threshold { tau }))),
        _ => Err(Error::parameter("tbq tau", parameter, "a number from 1e-30 to 1e30")),
    }
}

impl Code for Threshold {
    fn name(&self) -> String {
        format!("tbq:{}", Number(self.tau))
    }

    #[inline(always)]
    fn bits(&self) -> usize {
        2
    }

    #[inline(always)]
    fn code(&self, x: f32, _scale: Scale, _random: u32) -> u32 {
        (i32::from(x >= self.tau) - i32::from(x <= -self.tau)) as u32
    }

    #[inline(always)]
    fn value(&self, code: u32, _scale: f32) -> f32 {
        // Code 2, which is never written, is read as 0.
        let positive = if code & 3 == 1 { self.tau } else { 0.0 };
        if code & 3 == 3 { -self.tau } else { positive }
    }

    fn bound(&self, _elements: usize) -> Bound {
        // Of values below the threshold nothing is sent.
        Bound::Contraction(0.0)
    }

    fn claims(&self) -> Claims {
        Claims { exact: false, nearest: false, ..Claims::ALL }
    }
}

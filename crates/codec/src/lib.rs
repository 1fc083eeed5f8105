//! Gradients to bytes and back.
//!
//! A [`Codec`] turns a range of f32 into bytes, and declares the [`Exchange`] of these bytes between
//! ranks. Their length is known beforehand, or stated in the bytes ([`Codec::is_variable`]). The codec
//! error stays in the residual and is sent in the next step. [`PowerSgd`] sends sums of f32 instead of
//! bytes, and [`IntSgd`] sums of integers.
//!
//! Law: `decode(encode(values + residual)) + new residual == values + residual`.
//!
//! ```
//! use thinwire_codec::{Choice, Codec, Finite, Input, Write};
//! use thinwire_wire::random::Key;
//!
//! let Choice::Bytes(codec) = Choice::parse("int8").unwrap() else { unreachable!() };
//! let (mut values, residual) = ([0.5, -1.0, 0.25], [0.0; 3]);
//! let mut bytes = vec![0; codec.encoded_len(3)];
//! let key = Key { seed: 1, step: 0, tensor: 0 };
//! let finite = codec.encode(Input::Feedback { values: &mut values, residual: &residual }, key, &mut bytes);
//! assert_eq!((finite, bytes.len()), (Finite::Yes, 7));
//!
//! let mut decoded = [0.0; 3];
//! codec.decode(&bytes, Write::Set, &mut decoded).unwrap();
//! assert_eq!(decoded[1] + values[1], -1.0);
//! ```
#![deny(unsafe_code)]

mod alternate;
mod blockwise;
mod cast;
mod choice;
mod codec;
mod codec_error;
mod coded;
mod cosine;
mod crowd;
mod dct;
mod dynamic8;
mod ecsq;
mod entropy;
mod error;
mod float8;
mod indices;
mod ints;
mod intsgd;
pub mod kernel;
pub mod language;
#[cfg(feature = "laws")]
pub mod laws;
mod least_squares;
mod lloyd;
mod lossless;
mod natural;
pub mod powersgd;
mod qsgd;
mod randomk;
mod select;
mod shown;
mod signs;
mod sparse;
pub mod speed;
mod subsets;
mod table;
mod tbq;
mod vote;

pub use alternate::Alternating;
pub use cast::{raw, raw_of};
pub use choice::{Choice, Entry};
pub use codec::{Bound, Claims, Codec, Finite, Input, Write};
pub use codec_error::{Distortion, contraction, relative_error};
pub use error::{Error, Kind};
pub use intsgd::IntSgd;
pub use powersgd::{Factor, PowerSgd, Rounds, Side};
pub use table::{CODECS, all};
pub use thinwire_wire::Exchange;

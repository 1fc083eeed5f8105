//! Codecs as text.
//!
//! A file `name.codec` describes in some fifteen lines the encoding of a block to fields of few bits,
//! and the decoding; docs/codec-language.md teaches the language. A text goes through these files:
//!
//! - `token`, `parse`: to a tree (`syntax`), or a refusal with a place (`refusal`);
//! - `check`, with `header`, `expression`, `operand` and `function`: to a program of operators over
//!   registers, in which every type fits and every length follows from the number of elements;
//! - `fuse`, `registers`: to fewer operators, and as few registers as are needed at once;
//! - `run`: the interpreter. An operator is a loop over a batch of blocks (`compute`, with `loops`,
//!   `pick` and `random`; `emit` and `take`, with `pack`), so that dispatch costs next to nothing;
//! - `interpreted`: the program as a [`Codec`](crate::Codec), with residuals and non-finite values;
//! - `cuda`: the program as kernels of a device;
//! - `refuse`: trials of the claims before a codec is used; `file`: texts in files.
//!
//! Law: an operator computes the bits of the loop that codecs in Rust have for it.
//!
//! ```
//! use thinwire_codec::language::{Text, compile};
//!
//! let source = "
//! codec bits
//! block 64
//! feedback
//! contraction 1 / elements
//! encode x:
//!     scale = mean(abs(x))
//!     emit f32 scale
//!     emit u1 x < 0
//! decode:
//!     scale = take f32
//!     yield select(take u1, -scale, scale)
//! ";
//! let text = Text { path: "bits.codec", source, parameters: &[] };
//! assert!(compile(&text).unwrap().to_string().starts_with("bits#"));
//!
//! let source = &source.replace("mean", "men");
//! let error = compile(&Text { source, ..text }).unwrap_err();
//! assert!(error.to_string().starts_with("bits.codec:7:13: no function is called 'men'"));
//! ```

mod batch;
mod check;
mod compute;
mod cuda;
mod emit;
mod expression;
mod file;
mod frame;
mod function;
mod fuse;
mod header;
mod interpreted;
mod loops;
mod operand;
mod pack;
mod parse;
mod pick;
mod program;
mod random;
mod refusal;
mod refuse;
mod registers;
mod run;
mod syntax;
mod take;
mod token;
mod value;
mod wire;

use crate::shown::Number;
use crate::{Choice, Error};

pub use cuda::Cuda;
pub(crate) use file::{is_file, load};

/// Largest number of bytes of a text; a codec has some fifteen lines.
pub(crate) const SOURCE_BYTES_MAX: usize = 64 << 10;

/// Text of a codec, with a path and with parameters that replace defaults.
#[derive(Clone, Copy, Debug)]
pub struct Text<'a> {
    /// Name of the text in errors.
    pub path: &'a str,
    /// Source of the codec.
    pub source: &'a str,
    /// Values of parameters by name.
    pub parameters: &'a [(String, f64)],
}

/// Compiles the codec that a text describes, and tests whether the codec keeps its claims.
///
/// # Errors
/// If the text has a fault, or the codec breaks a claim; the error names the place.
pub fn compile(text: &Text<'_>) -> Result<Choice, Error> {
    let codec = interpreted(text)?;
    refuse::refuse(&codec).map_err(|refusal| refusal.error(text.path, text.source))?;
    Ok(Choice::bytes(codec))
}

fn interpreted(text: &Text<'_>) -> Result<interpreted::Interpreted, Error> {
    let refused = |refusal: refusal::Refusal| refusal.error(text.path, text.source);
    let definition = parse::parse(text.source).map_err(refused)?;
    let program = check::check(&definition, text.parameters).map_err(refused)?;
    Ok(interpreted::Interpreted::new(name(text, &program), program))
}

/// Returns the name of a codec: the stem of the file, the fingerprint of the text and the given
/// parameters. Ranks that read equal texts from different folders agree on the name.
fn name(text: &Text<'_>, program: &program::Program) -> String {
    let file = text.path.rsplit('/').next().unwrap_or(text.path);
    let stem = file.strip_suffix(".codec").unwrap_or(file);
    let given = |name: &str| text.parameters.iter().any(|(given, _)| given == name);
    let given = program.parameters.iter().filter(|(name, _)| given(name));
    let parameters = given.map(|(name, value)| format!("{name}={}", Number(*value)));
    let parameters = parameters.collect::<Vec<_>>().join(",");
    let colon = if parameters.is_empty() { "" } else { ":" };
    format!("{stem}#{}{colon}{parameters}", fingerprint(text.source))
}

/// Returns a short hash of a text, by which ranks find out that their texts differ.
pub fn fingerprint(source: &str) -> String {
    format!("{:08x}", thinwire_wire::checksum(source.as_bytes()))
}

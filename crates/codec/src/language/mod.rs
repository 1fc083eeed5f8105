//! Codecs as text.
//!
//! A file `name.codec` says in some fifteen lines how a block becomes fields of few bits, and how
//! fields become a block; docs/codec-language.md teaches it. The text goes through one file each:
//!
//! - `token`, `parse`: to a tree (`syntax`), or a refusal with its place (`refusal`);
//! - `check`, with `header`, `expression`, `operand` and `function`: to a program of operators over
//!   registers, in which every type fits and every length follows from the number of elements;
//! - `fuse`, `registers`: to fewer operators, and as few registers as are needed at once;
//! - `run`: the interpreter. An operator is a loop over a batch of blocks (`compute`, with `loops`,
//!   `pick` and `random`; `emit` and `take`, with `pack`), so that choosing it costs next to nothing;
//! - `interpreted`: the program as a [`Codec`](crate::Codec), with residuals and what is not finite;
//! - `refuse`: what it must show before it is used; `file`: where texts come from.
//!
//! Law: an operator has the meaning, bit for bit, of the loop that codecs in Rust have for it.
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

pub(crate) use file::{is_file, load};

/// A longer text is refused: a codec has some fifteen lines.
pub(crate) const SOURCE_BYTES_MAX: usize = 64 << 10;

/// A codec's text, where it is from, and parameters in place of its own defaults.
#[derive(Clone, Copy, Debug)]
pub struct Text<'a> {
    /// What errors call it.
    pub path: &'a str,
    /// The text itself.
    pub source: &'a str,
    /// Parameters by name.
    pub parameters: &'a [(String, f64)],
}

/// The codec that a text describes.
///
/// # Errors
/// Where the text does not parse or makes no sense, or what the codec does not do as it says.
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

/// What the codec calls itself: the stem of its file, the fingerprint of its text and what of its
/// parameters was given. Ranks that read the same text from different folders agree on it.
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

/// A short hash of a text: ranks whose texts differ have different ones.
pub fn fingerprint(source: &str) -> String {
    format!("{:08x}", thinwire_wire::checksum(source.as_bytes()))
}

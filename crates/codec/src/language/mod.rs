//! Codecs as text.
//!
//! A file `name.codec` says how a block becomes fields of few bits, and how fields become a block.

mod check;
mod frame;
mod function;
mod fuse;
mod header;
mod interpreted;
mod loops;
mod pack;
mod parse;
mod pick;
mod program;
mod random;
mod refusal;
mod registers;
mod run;
mod syntax;
mod token;
mod transfer;
mod value;
mod wire;

use crate::{Choice, Error};

/// The codec in `source`, which is called `path`, with parameters in place of its own defaults.
///
/// # Errors
/// Where the text does not parse or makes no sense.
pub fn compile(path: &str, source: &str, parameters: &[(String, f64)]) -> Result<Choice, Error> {
    let refused = |refusal: refusal::Refusal| refusal.error(path, source);
    let definition = parse::parse(source).map_err(refused)?;
    let program = check::check(&definition, parameters).map_err(refused)?;
    Ok(Choice::bytes(interpreted::Interpreted::new(path.to_owned(), program)))
}

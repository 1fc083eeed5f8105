//! Law of the texts in the definition of a parameter server's tables, and of the names of snapshots.

use std::fmt::{Debug, Display};

use thinwire_server::{Consistency, Format, Initial, fuzzing};
use thinwire_update::Optimizer;

/// Checks that any text is either read as a consistency, an optimiser, initial values, a format of values
/// or the name of a snapshot's folder, or refused with an error of one line. A valid text is written back
/// as one with the same meaning.
pub fn settings(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    writes_itself_back(text, Consistency::parse);
    writes_itself_back(text, Optimizer::parse);
    writes_itself_back(text, Initial::parse);
    writes_itself_back(text, Format::parse);
    let _ = fuzzing::snapshot_number(text);
}

fn writes_itself_back<T: Debug + Display + PartialEq, E: Debug + Display>(
    text: &str,
    parse: impl Fn(&str) -> Result<T, E>,
) {
    match parse(text) {
        Ok(value) => assert_eq!(parse(&value.to_string()).expect("it writes itself back"), value),
        // The text itself may have several lines.
        Err(error) => assert!(text.contains('\n') || !error.to_string().contains('\n'), "{error}"),
    }
}

//! Advice in addition to the message of an error.

use std::error::Error;

/// An error that may come with advice.
///
/// The message describes the problem, and the hint what to do about it. Both are one line; the code
/// that shows the error decides where the hint goes.
///
/// ```
/// use std::fmt;
///
/// use thinwire_wire::Hint;
///
/// #[derive(Debug)]
/// struct Full;
///
/// impl fmt::Display for Full {
///     fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
///         f.write_str("cannot write the report: the disk is full")
///     }
/// }
///
/// impl std::error::Error for Full {}
///
/// impl Hint for Full {
///     fn hint(&self) -> Option<&str> {
///         Some("free some space there, or write to another place")
///     }
/// }
///
/// let shown = match Full.hint() {
///     Some(hint) => format!("{Full} (hint: {hint})"),
///     None => Full.to_string(),
/// };
/// assert!(shown.ends_with("full (hint: free some space there, or write to another place)"));
/// ```
pub trait Hint: Error {
    /// Returns what the user can do about the error, in one line, if that is known.
    fn hint(&self) -> Option<&str>;
}

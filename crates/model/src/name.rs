//! Names that come from files.

use crate::{Error, Kind};

/// Letters of a name that an error repeats.
const LETTERS_MAX: usize = 60;

/// Refuses a name that would do something to the terminal it is shown on.
///
/// # Errors
/// If there are control characters in it.
pub fn check_name(name: &str) -> Result<(), Error> {
    if !name.contains(char::is_control) {
        return Ok(());
    }
    let shown: String = name.chars().take(LETTERS_MAX).flat_map(char::escape_debug).collect();
    let message = format!("the name '{shown}' has control characters, expected none");
    Err(Error::new(Kind::Name, message))
}

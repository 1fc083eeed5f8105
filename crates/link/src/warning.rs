//! Warnings of links, for people: differences from the requested options that end nothing.

use std::fmt::Display;
use std::io::{self, Write};
use std::sync::OnceLock;

/// The function that takes warnings, if a program has its own.
static LOGGER: OnceLock<fn(String)> = OnceLock::new();

/// Passes warnings of this process's links to `logger` instead of standard error, such as why an
/// endpoint refuses a client, or that ranks have fewer connections than were requested. Only the first
/// call has an effect.
pub fn log_warnings_by(logger: fn(String)) {
    let _ = LOGGER.set(logger);
}

/// Logs a warning.
pub(crate) fn warn(text: &dyn Display) {
    match LOGGER.get() {
        Some(logger) => logger(text.to_string()),
        None => {
            // Where nobody reads, nobody is told.
            let _ = writeln!(io::stderr(), "thinwire: {text}");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[test]
    fn the_first_logger_takes_the_warnings() {
        static LOGGED: Mutex<Vec<String>> = Mutex::new(Vec::new());
        log_warnings_by(|text| LOGGED.lock().unwrap().push(text));
        log_warnings_by(|_| panic!("the first one counts"));
        warn(&"a client was refused");
        assert!(LOGGED.lock().unwrap().contains(&"a client was refused".to_owned()));
    }
}

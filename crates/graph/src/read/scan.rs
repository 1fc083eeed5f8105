//! Numbers in lines of text.

use std::io::BufRead;

use super::edges::checked;
use crate::error::Error;

/// Largest length of a weight in bytes.
const WEIGHT_BYTES_MAX: usize = 64;

/// Text that is read once, number by number, without keeping it.
pub(super) struct Scan<R> {
    stream: R,
    line: u64,
}

impl<R: BufRead> Scan<R> {
    /// Starts at the first line.
    pub fn new(stream: R) -> Scan<R> {
        Scan { stream, line: 1 }
    }

    /// Returns an error at this line.
    pub fn error(&self, found: &str, expected: &str) -> Error {
        Error::format(format!("line {}: {found}, expected {expected}", self.line))
    }

    /// Returns the next byte without consuming it; `None` at the end.
    pub fn peek(&mut self) -> Result<Option<u8>, Error> {
        match self.stream.fill_buf() {
            Ok(bytes) => Ok(bytes.first().copied()),
            Err(error) => Err(Error::io(&format!("line {}", self.line), error)),
        }
    }

    /// Skips blanks and at most one comma, but not the end of a line. Returns the byte after them.
    ///
    /// # Errors
    /// If there are two commas, with an empty column between them.
    pub fn skip_blanks(&mut self) -> Result<Option<u8>, Error> {
        let mut is_passed = false;
        loop {
            match self.peek()? {
                Some(b',') if is_passed => {
                    return Err(self.error("two commas", "a column between them"));
                }
                Some(b' ' | b'\t' | b'\r') => {}
                Some(b',') => is_passed = true,
                next => return Ok(next),
            }
            self.stream.consume(1);
        }
    }

    /// Skips the rest of a line.
    pub fn skip_line(&mut self) -> Result<(), Error> {
        while let Some(byte) = self.peek()? {
            self.stream.consume(1);
            if byte == b'\n' {
                self.line += 1;
                break;
            }
        }
        Ok(())
    }

    /// Skips lines that are blank or begin with `mark`. Returns whether another line follows.
    pub fn skip_comments(&mut self, mark: u8) -> Result<bool, Error> {
        loop {
            match self.skip_blanks()? {
                None => return Ok(false),
                Some(b'\n') => self.skip_line()?,
                Some(byte) if byte == mark => self.skip_line()?,
                Some(_) => return Ok(true),
            }
        }
    }

    /// Reads a word, which may contain any bytes except blanks, and returns its first `bytes_max` bytes.
    pub fn word(&mut self, bytes_max: usize) -> Result<String, Error> {
        let mut word = Vec::new();
        self.skip_blanks()?;
        while let Some(byte) = self.peek()?.filter(|byte| !byte.is_ascii_whitespace()) {
            if word.len() < bytes_max {
                word.push(byte);
            }
            self.stream.consume(1);
        }
        Ok(String::from_utf8_lossy(&word).into_owned())
    }

    /// Reads a whole number of this line.
    ///
    /// # Errors
    /// If there is no number before the end of the line; `what` is its name in errors.
    pub fn number(&mut self, what: &str) -> Result<u64, Error> {
        let mut number = None;
        self.skip_blanks()?;
        loop {
            let byte = self.peek()?;
            match byte {
                Some(digit @ b'0'..=b'9') => {
                    let tens = number.unwrap_or(0_u64).checked_mul(10);
                    let sum = tens.and_then(|tens| tens.checked_add(u64::from(digit - b'0')));
                    let Some(sum) = sum else {
                        return Err(self.error("a number above 2^64", what));
                    };
                    number = Some(sum);
                    self.stream.consume(1);
                }
                None | Some(b' ' | b'\t' | b'\r' | b',' | b'\n') if number.is_some() => {
                    return Ok(number.unwrap_or(0));
                }
                None => return Err(self.error("the end of the file", what)),
                Some(b'\n') => return Err(self.error("the end of the line", what)),
                Some(byte) => {
                    return Err(self.error(&format!("'{}'", byte.escape_ascii()), what));
                }
            }
        }
    }

    /// Reads a vertex.
    ///
    /// # Errors
    /// If there is no number, or it is 2^32 - 1 or more.
    pub fn vertex(&mut self, what: &str) -> Result<u32, Error> {
        let number = self.number(what)?;
        match u32::try_from(number) {
            Ok(vertex) if vertex < u32::MAX => Ok(vertex),
            _ => Err(self.error(&format!("vertex {number}"), "vertices below 4294967295")),
        }
    }

    /// Reads the weight of an edge.
    ///
    /// # Errors
    /// If there is no number before the end of the line, or it is not finite or is negative.
    pub fn weight(&mut self) -> Result<f32, Error> {
        let mut word = Vec::new();
        self.skip_blanks()?;
        let is_end = |byte: &u8| byte.is_ascii_whitespace() || *byte == b',';
        while let Some(byte) = self.peek()?.filter(|byte| !is_end(byte)) {
            if word.len() == WEIGHT_BYTES_MAX {
                let expected = format!("at most {WEIGHT_BYTES_MAX} bytes");
                return Err(self.error("a longer weight", &expected));
            }
            word.push(byte);
            self.stream.consume(1);
        }
        if word.is_empty() {
            let end = if self.peek()?.is_none() { "the file" } else { "the line" };
            return Err(self.error(&format!("the end of {end}"), "the weight of an edge"));
        }
        let text = word.escape_ascii().to_string();
        let Ok(weight) = text.parse() else {
            return Err(self.error(&format!("'{text}'"), "the weight of an edge"));
        };
        checked(weight, &format!("line {}: weight", self.line), &text)
    }

    /// Reads the end of a line.
    ///
    /// # Errors
    /// If there is something else.
    pub fn end_line(&mut self) -> Result<(), Error> {
        match self.skip_blanks()? {
            None => Ok(()),
            Some(b'\n') => self.skip_line(),
            Some(byte) => {
                Err(self.error(&format!("'{}'", byte.escape_ascii()), "the end of the line"))
            }
        }
    }
}

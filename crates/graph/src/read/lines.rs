//! Lines of columns, separated by blanks or commas.
//!
//! If a line contains a comma, commas separate its columns; otherwise blanks do. A column may be in quotation
//! marks, as in CSV (RFC 4180), and may then contain any bytes.

use std::io::{BufRead, Read};
use std::ops::Range;

use crate::error::Error;

/// Longest line in bytes.
const LINE_BYTES_MAX: u64 = 1 << 20;
/// Bytes with which comments begin.
const COMMENTS: [u8; 2] = *b"#%";

/// Lines of a text, of which one is in memory at a time.
pub(super) struct Lines<R> {
    stream: R,
    /// Bytes of this line.
    line: Vec<u8>,
    /// Number of this line, from 1, and the number of lines that it spans.
    number: u64,
    span: u64,
    /// Columns, without quotation marks, one after the other.
    text: Vec<u8>,
    columns: Vec<Range<usize>>,
}

impl<R: BufRead> Lines<R> {
    /// Starts before the first line.
    pub fn new(stream: R) -> Lines<R> {
        let (line, text, columns) = (Vec::new(), Vec::new(), Vec::new());
        Lines { stream, line, number: 1, span: 0, text, columns }
    }

    /// Reads the next line that is not blank. Returns whether there is one.
    ///
    /// # Errors
    /// If it is too long, a quotation mark is not closed, or the text cannot be read.
    pub fn advance(&mut self) -> Result<bool, Error> {
        loop {
            self.number += self.span;
            self.span = 0;
            self.line.clear();
            if !self.append()? {
                return Ok(false);
            }
            if self.is_comment() {
                return Ok(true);
            }
            while has_open_quote(&self.line) {
                if !self.append()? {
                    return Err(self.error("a quotation mark", "another one behind it"));
                }
            }
            self.split()?;
            if !self.columns.is_empty() {
                return Ok(true);
            }
        }
    }

    /// Returns whether the line is a comment.
    pub fn is_comment(&self) -> bool {
        let first = self.line.iter().find(|byte| !byte.is_ascii_whitespace());
        first.is_some_and(|byte| COMMENTS.contains(byte))
    }

    /// Returns the number of columns of the line.
    pub fn columns(&self) -> usize {
        self.columns.len()
    }

    /// Returns a column, counted from 0.
    ///
    /// # Errors
    /// If the line does not have the column, or it is empty; `what` is its name in errors.
    pub fn column(&self, at: usize, what: &str) -> Result<&[u8], Error> {
        match self.columns.get(at).map(|range| &self.text[range.clone()]) {
            None => Err(self.error("the end of the line", what)),
            Some([]) => Err(self.error("an empty column", what)),
            Some(column) => Ok(column),
        }
    }

    /// Returns whether the first column that is not empty begins with a letter.
    pub fn begins_with_letter(&self) -> bool {
        self.text.first().is_some_and(u8::is_ascii_alphabetic)
    }

    /// Returns an error at this line.
    pub fn error(&self, found: &str, expected: &str) -> Error {
        Error::format(format!("line {}: {found}, expected {expected}", self.number))
    }

    /// Returns the number of this line, from 1.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Reads to the end of a line. Returns whether there was any text.
    fn append(&mut self) -> Result<bool, Error> {
        let room = (LINE_BYTES_MAX + 1).saturating_sub(self.line.len() as u64);
        let mut rest = self.stream.by_ref().take(room);
        let read = rest.read_until(b'\n', &mut self.line);
        let read = read.map_err(|error| Error::io(&format!("line {}", self.number), error))?;
        self.span += 1;
        if self.line.len() as u64 > LINE_BYTES_MAX {
            return Err(self.error("a longer line", &format!("at most {LINE_BYTES_MAX} bytes")));
        }
        Ok(read > 0)
    }

    /// Finds the columns of the line.
    fn split(&mut self) -> Result<(), Error> {
        self.text.clear();
        self.columns.clear();
        let has_commas = has_comma(&self.line);
        let mut rest = self.line.trim_ascii();
        while !rest.is_empty() {
            let start = self.text.len();
            let column = match rest.strip_prefix(b"\"") {
                Some(quoted) => unquote(quoted, &mut self.text),
                None => {
                    let is_end = |byte: &u8| match has_commas {
                        true => *byte == b',',
                        false => byte.is_ascii_whitespace(),
                    };
                    let end = rest.iter().position(is_end).unwrap_or(rest.len());
                    self.text.extend_from_slice(rest[..end].trim_ascii_end());
                    &rest[end..]
                }
            };
            self.columns.push(start..self.text.len());
            let behind = column.trim_ascii_start();
            rest = match behind.strip_prefix(b",") {
                Some(next) if has_commas => next.trim_ascii_start(),
                _ if behind.is_empty() || (!has_commas && behind.len() < column.len()) => behind,
                _ => return Err(self.error("text behind a quotation mark", "the next column")),
            };
        }
        Ok(())
    }
}

/// Copies a column up to its closing quotation mark; two quotation marks stand for one. Returns the text
/// after it.
fn unquote<'a>(mut rest: &'a [u8], text: &mut Vec<u8>) -> &'a [u8] {
    loop {
        let end = rest.iter().position(|byte| *byte == b'"').unwrap_or(rest.len());
        text.extend_from_slice(&rest[..end]);
        rest = rest.get(end + 1..).unwrap_or_default();
        match rest.strip_prefix(b"\"") {
            Some(more) => {
                text.push(b'"');
                rest = more;
            }
            None => return rest,
        }
    }
}

/// Calls a function with every byte outside quotation marks. Returns whether the last quotation mark is not
/// closed.
fn outside_quotes(line: &[u8], mut see: impl FnMut(u8)) -> bool {
    let (mut is_quoted, mut is_start) = (false, true);
    for byte in line {
        match (is_quoted, byte) {
            // Two in a row close and open again.
            (true, b'"') => (is_quoted, is_start) = (false, true),
            (true, _) => {}
            (false, b'"') if is_start => is_quoted = true,
            (false, byte) => {
                is_start = *byte == b',' || byte.is_ascii_whitespace();
                see(*byte);
            }
        }
    }
    is_quoted
}

fn has_open_quote(line: &[u8]) -> bool {
    outside_quotes(line, |_| {})
}

fn has_comma(line: &[u8]) -> bool {
    let mut found = false;
    outside_quotes(line, |byte| found |= byte == b',');
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn columns(text: &str) -> Result<Vec<Vec<String>>, String> {
        let (mut lines, mut all) = (Lines::new(text.as_bytes()), Vec::new());
        while lines.advance().map_err(|error| error.to_string())? {
            if !lines.is_comment() {
                let column = |range: &Range<usize>| {
                    String::from_utf8_lossy(&lines.text[range.clone()]).into_owned()
                };
                all.push(lines.columns.iter().map(column).collect());
            }
        }
        Ok(all)
    }

    #[test]
    fn columns_are_between_blanks_or_commas_or_in_quotation_marks() {
        for (text, expected) in [
            ("0 1\r\n\n# 2 3\n% 4\n  5\t 6", vec![vec!["0", "1"], vec!["5", "6"]]),
            ("new york , boston\n1,,2,", vec![vec!["new york", "boston"], vec!["1", "", "2"]]),
            ("\"a,b\", \"c \"\"d\"\"\"\n", vec![vec!["a,b", "c \"d\""]]),
            ("\"a b\" c\n\"#d\" \"\" e", vec![vec!["a b", "c"], vec!["#d", "", "e"]]),
            ("\"two\nlines\",1\n2,3", vec![vec!["two\nlines", "1"], vec!["2", "3"]]),
            ("5\" pipe,1", vec![vec!["5\" pipe", "1"]]),
        ] {
            assert_eq!(columns(text).unwrap(), expected, "{text}");
        }
    }

    #[test]
    fn lines_without_an_end_are_errors() {
        let error = columns("0,1\n\"a,b\nc").unwrap_err();
        assert_eq!(error, "line 2: a quotation mark, expected another one behind it");
        let error = columns("\"a\"b,c").unwrap_err();
        assert_eq!(error, "line 1: text behind a quotation mark, expected the next column");
        let long = "1".repeat(1 << 20);
        assert_eq!(columns(&long).unwrap(), [[long.clone()]]);
        let error = columns(&format!("{long}1\n")).unwrap_err();
        assert_eq!(error, "line 1: a longer line, expected at most 1048576 bytes");
    }
}

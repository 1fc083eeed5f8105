//! Forwards a rank's output to standard error, line by line.
//!
//! A line is written in one piece, so that output of different ranks never mixes within a line. A very long
//! line is cut, which limits the memory it needs.

use std::io::{BufRead, BufReader, Read, Write};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

/// Longest line in bytes. It is enough for the report of a long training, which is one line.
const LINE_BYTES_MAX: u64 = 16 << 20;

/// Longest wait for outputs of an ended rank. A program started by the rank may keep its output open for
/// longer.
const DRAIN: Duration = Duration::from_millis(500);

/// Passes each line of `output`, after a prefix, to `write` in a thread. The receiver disconnects after the
/// last line.
pub fn each(
    output: impl Read + Send + 'static,
    prefix: String,
    mut write: impl FnMut(&[u8]) + Send + 'static,
) -> Receiver<()> {
    let (done, wait) = channel();
    thread::spawn(move || {
        let mut output = BufReader::new(output);
        while let Some(line) = next_line(&mut output, &prefix) {
            write(&line);
        }
        drop(done);
    });
    wait
}

/// Writes a line to standard error.
pub fn to_error(line: &[u8]) {
    // Who closed our standard error does not want to read it; the rank continues.
    let _ = std::io::stderr().lock().write_all(line);
}

/// Waits until the outputs of an ended rank are forwarded.
pub fn drain(outputs: [Option<Receiver<()>>; 2]) {
    for output in outputs.into_iter().flatten() {
        let _ = output.recv_timeout(DRAIN);
    }
}

fn next_line(output: &mut impl BufRead, prefix: &str) -> Option<Vec<u8>> {
    let mut line = prefix.as_bytes().to_vec();
    let length = output.take(LINE_BYTES_MAX).read_until(b'\n', &mut line).ok()?;
    if length == 0 {
        return None;
    }
    if line.last() != Some(&b'\n') {
        line.push(b'\n');
    }
    Some(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_gets_its_prefix_and_long_ones_are_cut() {
        let text = format!("a\n\n{}\nend", "x".repeat(LINE_BYTES_MAX as usize + 1));
        let mut input = text.as_bytes();
        let mut lines = Vec::new();
        while let Some(line) = next_line(&mut input, "> ") {
            lines.push(String::from_utf8(line).unwrap());
        }
        assert_eq!(lines[..2], ["> a\n", "> \n"]);
        assert_eq!(lines[2].len() as u64, LINE_BYTES_MAX + 3);
        assert_eq!(lines[3..], ["> x\n", "> end\n"]);
    }
}

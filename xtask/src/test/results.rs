//! The lines that test programs print, read as a summary.

use crate::summary::Summary;

/// Results read from the lines of one test program, or of several in a row.
#[derive(Debug, Default)]
pub struct Results {
    summary: Summary,
    /// Programs that have begun, less those that have printed their results.
    open: i32,
}

impl Results {
    /// Reads one line.
    pub fn read(&mut self, line: &str) {
        self.open += i32::from(begins_program(line)) - i32::from(line.starts_with("test result: "));
        let Some((name, result)) = line.strip_prefix("test ").and_then(|l| l.split_once(" ... "))
        else {
            return;
        };
        match result.trim_end() {
            "ok" => self.summary.passed += 1,
            "FAILED" => self.summary.failed.push(name.to_owned()),
            "ignored" => self.summary.add(Summary::skipped(name, "no reason given")),
            other => {
                if let Some(reason) = other.strip_prefix("ignored, ") {
                    self.summary.add(Summary::skipped(name, reason));
                }
            }
        }
    }

    /// Returns the summary of all lines. A program that crashed counts as one failure, since the tests that it did
    /// not reach are in no line.
    pub fn finish(mut self) -> Summary {
        if self.open > 0 {
            let ended = format!("{} test programs that ended before their results", self.open);
            self.summary.failed.push(ended);
        }
        self.summary
    }
}

/// Returns whether a line is "running 4 tests", which a test program prints before its tests.
fn begins_program(line: &str) -> bool {
    let count = line.strip_prefix("running ").and_then(|line| line.split_once(" test"));
    count.is_some_and(|(count, _)| count.parse::<u32>().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_read_from_the_lines() {
        let mut results = Results::default();
        for line in [
            "running 4 tests",
            "test header::tests::a_flipped_bit_is_noticed ... ok",
            "test ring_equals_tree ... FAILED",
            "test shaped_link ... ignored, needs root for network namespaces",
            "test crates/wire/src/lib.rs - (line 7) ... ok",
            "test result: FAILED. 2 passed; 1 failed; 1 ignored",
        ] {
            results.read(line);
        }
        assert_eq!(
            results.finish().report(),
            "tests: 2 passed, 1 failed, 1 skipped\n  \
             failed  ring_equals_tree\n  \
             skipped shaped_link: needs root for network namespaces\n"
        );
    }

    #[test]
    fn a_program_without_results_has_failed() {
        let mut results = Results::default();
        results.read("running 2 tests");
        results.read("test ring ... ok");
        assert_eq!(results.finish().failed, ["1 test programs that ended before their results"]);
    }
}

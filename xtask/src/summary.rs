//! Results of tests: the number that passed, and the names of those that failed or were skipped.

/// The results of some tests, of one tool or of several.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Number of tests that passed.
    pub passed: usize,
    /// The names of those that failed.
    pub failed: Vec<String>,
    /// The names of those that failed or hung at first, and passed in their second run.
    pub flaky: Vec<String>,
    /// The names of those that were skipped, each with its reason.
    pub skipped: Vec<(String, String)>,
}

impl Summary {
    /// Nothing but one skipped name.
    pub fn skipped(name: &str, reason: &str) -> Summary {
        Summary { skipped: vec![(name.to_owned(), reason.to_owned())], ..Summary::default() }
    }

    /// Adds the results of another tool.
    pub fn add(&mut self, other: Summary) {
        self.passed += other.passed;
        self.failed.extend(other.failed);
        self.flaky.extend(other.flaky);
        self.skipped.extend(other.skipped);
    }

    /// Takes over the results of the failed tests' second run, without other tests beside them. The tests count as
    /// flaky if all of them ran and passed.
    pub fn retried(&mut self, again: &Summary) {
        if again.failed.is_empty() && again.passed >= self.failed.len() {
            self.passed += self.failed.len();
            self.flaky.append(&mut self.failed);
        }
    }

    /// The counts on the first line, then the names that somebody should look at.
    pub fn report(&self) -> String {
        let Summary { passed, failed, flaky, skipped } = self;
        let mut report =
            format!("tests: {passed} passed, {} failed, {} skipped\n", failed.len(), skipped.len());
        for name in failed {
            report += &format!("  failed  {name}\n");
        }
        for name in flaky {
            report += &format!("  flaky   {name}: passed in its second run\n");
        }
        for (name, reason) in skipped {
            report += &format!("  skipped {name}: {reason}\n");
        }
        report
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tools_are_counted_together() {
        let failed = vec!["ring".to_owned()];
        let mut summary = Summary { passed: 2, failed, ..Summary::default() };
        summary.add(Summary { passed: 3, ..Summary::default() });
        summary.add(Summary::skipped("shaped_link", "needs root"));
        assert_eq!(
            summary.report(),
            "tests: 5 passed, 1 failed, 1 skipped\n  \
             failed  ring\n  \
             skipped shaped_link: needs root\n"
        );
    }

    #[test]
    fn tests_that_pass_alone_are_flaky() {
        let failed = || Summary { failed: vec!["ring".to_owned()], ..Summary::default() };
        let mut passes = failed();
        passes.retried(&Summary { passed: 1, ..Summary::default() });
        assert_eq!(
            passes.report(),
            "tests: 1 passed, 0 failed, 0 skipped\n  \
             flaky   ring: passed in its second run\n"
        );
        for again in [failed(), Summary::default()] {
            let mut fails = failed();
            fails.retried(&again);
            assert_eq!(fails, failed());
        }
    }
}

//! Runs a test with many seeds, and prints a failing one as a test case.

use std::any::Any;
use std::env;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// Environment variable that lowers the number of schedules of every test.
const MOST: &str = "THINWIRE_SCHEDULES_MAX";
/// Environment variable that raises the number of schedules of every test.
const LEAST: &str = "THINWIRE_SCHEDULES_MIN";

/// Returns the number of schedules that a test runs: `usual`, unless `THINWIRE_SCHEDULES_MAX` lowers or
/// `THINWIRE_SCHEDULES_MIN` raises it.
///
/// # Panics
/// If one of them is set and is not a number.
pub fn count(usual: u64) -> u64 {
    let limit = |name: &str| {
        env::var(name).ok().map(|text| {
            text.parse::<u64>().unwrap_or_else(|_| panic!("{name}={text}, expected a number"))
        })
    };
    usual.min(limit(MOST).unwrap_or(u64::MAX)).max(limit(LEAST).unwrap_or(0))
}

/// Runs `law(seed)` for the seeds `0..count(usual)`.
///
/// # Panics
/// If the law does not hold for a seed. It first prints that seed as a test case that calls `name`, the name
/// of the function `law`.
pub fn schedules(name: &str, usual: u64, law: impl Fn(u64)) {
    for seed in 0..count(usual) {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| law(seed))) {
            eprintln!("{}", case(name, seed));
            resume_unwind(panic as Box<dyn Any + Send>);
        }
    }
}

/// Returns the failing seed as the text of a test.
fn case(name: &str, seed: u64) -> String {
    format!(
        "\nthis schedule as a case:\n\n#[test]\nfn {name}_{seed}() {{\n    {name}({seed});\n}}\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_failing_seed_ends_the_test() {
        let failed = catch_unwind(|| schedules("law", 10, |seed| assert!(seed < 3, "seed {seed}")));
        assert_eq!(failed.unwrap_err().downcast_ref::<String>().unwrap(), "seed 3");
        assert!(case("law", 3).contains("fn law_3() {\n    law(3);\n}"));
    }
}

//! The heartbeat timeout: the silence after which a rank counts as lost.

use std::time::Duration;

use crate::environment::Variables;
use crate::error::Error;

/// The environment variable with the default heartbeat timeout, in seconds.
pub const VARIABLE: &str = "THINWIRE_HEARTBEAT_TIMEOUT_S";

/// The heartbeat timeout if neither the caller nor the environment gives one.
const USUAL: Duration = Duration::from_secs(10);

/// The longest heartbeat timeout of a member of an elastic job.
const SILENCE_MAX: Duration = Duration::from_secs(86_400);

/// The shortest heartbeat timeout: a busy machine may be silent for a shorter time.
const SHORTEST: Duration = Duration::from_secs(1);

/// Returns the heartbeat timeout: the caller's, or else the environment's, or else 10 s. A timeout longer
/// than `timeout` is refused, since every wait fails after `timeout`.
///
/// # Errors
/// If the requested timeout is shorter than a second, longer than `timeout`, or not a number.
pub fn heartbeat_timeout(
    overrides: Option<Duration>,
    timeout: Duration,
    variables: Variables<'_>,
) -> Result<Duration, Error> {
    let (name, asked) = match overrides {
        Some(overrides) => ("heartbeat timeout", overrides),
        None => match variables(VARIABLE) {
            Some(text) => (VARIABLE, parse(&text)?),
            // Nobody asked for it, so it is no error that a shorter timeout ends waits before.
            None => return Ok(USUAL),
        },
    };
    if (SHORTEST..=timeout).contains(&asked) {
        return Ok(asked);
    }
    let [asked, least, most] = [asked, SHORTEST, timeout].map(|time| time.as_secs_f64());
    Err(Error::invalid(format!("{name} is {asked} s, expected {least} s to the timeout, {most} s"))
        .with_hint("a wait without progress ends after the timeout: give a longer timeout"))
}

/// Returns the silence after which the coordinator of an elastic job counts a member as lost: the value
/// from the environment, or else `usual`.
///
/// # Errors
/// If the variable is not a time from a second to a day.
pub fn silence(usual: Duration, variables: Variables<'_>) -> Result<Duration, Error> {
    match variables(VARIABLE) {
        Some(_) => heartbeat_timeout(None, SILENCE_MAX, variables),
        None => Ok(usual),
    }
}

fn parse(text: &str) -> Result<Duration, Error> {
    let seconds = text.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    seconds.ok_or_else(|| Error::invalid(format!("{VARIABLE} is '{text}', expected seconds")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(overrides: Option<f64>, timeout_s: u64, said: Option<&str>) -> Result<f64, String> {
        let said = |name: &str| said.filter(|_| name == VARIABLE).map(str::to_owned);
        let overrides = overrides.map(Duration::from_secs_f64);
        let found = heartbeat_timeout(overrides, Duration::from_secs(timeout_s), &said);
        found.map(|found| found.as_secs_f64()).map_err(|error| error.to_string())
    }

    #[test]
    fn what_is_given_comes_before_the_environment_and_that_before_ten_seconds() {
        assert_eq!(found(Some(30.0), 60, Some("20")), Ok(30.0));
        assert_eq!(found(None, 60, Some("1.5")), Ok(1.5));
        assert_eq!(found(None, 60, None), Ok(10.0));
        assert_eq!(found(None, 3, None), Ok(10.0));
        assert_eq!(found(Some(60.0), 60, None), Ok(60.0));
    }

    #[test]
    fn a_coordinator_takes_silence_from_the_environment_alone() {
        let usual = Duration::from_secs(2);
        let found = |said: Option<&str>| {
            silence(usual, &|name: &str| said.filter(|_| name == VARIABLE).map(str::to_owned))
        };
        assert_eq!(found(None).unwrap(), usual);
        assert_eq!(found(Some("90")).unwrap(), Duration::from_secs(90));
        assert!(found(Some("0.5")).is_err());
    }

    #[test]
    fn what_cannot_be_is_refused_with_both_values() {
        let error = found(Some(90.0), 60, None).unwrap_err();
        assert_eq!(error, "heartbeat timeout is 90 s, expected 1 s to the timeout, 60 s");
        let error = found(None, 5, Some("0.5")).unwrap_err();
        assert!(error.starts_with(&format!("{VARIABLE} is 0.5 s, expected 1 s")), "{error}");
        for text in ["soon", "-1", "nan", "1e300"] {
            let error = found(None, 60, Some(text)).unwrap_err();
            assert_eq!(error, format!("{VARIABLE} is '{text}', expected seconds"));
        }
    }
}

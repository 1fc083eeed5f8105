//! Finding of a check, with its severity and a hint.

use serde::Serialize;

use crate::failure;

/// Severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Jobs work.
    Ok,
    /// Jobs start, but may not do what the user expects.
    Note,
    /// Some jobs cannot start.
    Error,
}

/// Result of a check.
#[derive(Debug, Serialize)]
pub struct Finding {
    /// Severity of the finding.
    pub severity: Severity,
    check: &'static str,
    found: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    hint: Option<String>,
}

impl Finding {
    /// Returns a finding without a problem.
    pub fn ok(check: &'static str, found: impl Into<String>) -> Finding {
        Finding { severity: Severity::Ok, check, found: found.into(), hint: None }
    }

    /// Returns a finding that may surprise the user.
    pub fn note(check: &'static str, found: impl Into<String>, hint: impl Into<String>) -> Finding {
        let hint = Some(hint.into());
        Finding { severity: Severity::Note, check, found: found.into(), hint }
    }

    /// Returns a finding for an error with which a job would fail at its start.
    pub fn error(check: &'static str, error: impl Into<anyhow::Error>, hint: &str) -> Finding {
        let (found, own) = failure::lines(&error.into());
        let hint = Some(own.unwrap_or_else(|| hint.to_owned()));
        Finding { severity: Severity::Error, check, found, hint }
    }

    /// Returns a finding for a value, or for an error.
    pub fn of<T, E: Into<anyhow::Error>>(
        check: &'static str,
        value: Result<T, E>,
        found: impl FnOnce(T) -> String,
        hint: &str,
    ) -> Finding {
        match value {
            Ok(value) => Finding::ok(check, found(value)),
            Err(error) => Finding::error(check, error, hint),
        }
    }

    /// Returns the line of the finding, which ends with the hint.
    pub fn line(&self) -> String {
        let severity = match self.severity {
            Severity::Ok => "ok",
            Severity::Note => "note",
            Severity::Error => "ERROR",
        };
        let hint = self.hint.as_ref().map_or(String::new(), |hint| format!("; hint: {hint}"));
        format!("{severity:<5}  {:<11}  {}{hint}\n", self.check, self.found)
    }
}

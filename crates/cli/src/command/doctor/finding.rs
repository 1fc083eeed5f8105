//! Finding of a check: what was found, how much it matters, and what to do about it.

use serde::Serialize;

use crate::failure;

/// Weight of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// It is as jobs need it.
    Ok,
    /// Jobs start, but perhaps not as expected.
    Note,
    /// Some job cannot start.
    Error,
}

/// Result of a check.
#[derive(Debug, Serialize)]
pub struct Finding {
    /// Weight of it.
    pub severity: Severity,
    check: &'static str,
    found: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    hint: Option<String>,
}

impl Finding {
    /// A finding that is fine.
    pub fn ok(check: &'static str, found: impl Into<String>) -> Finding {
        Finding { severity: Severity::Ok, check, found: found.into(), hint: None }
    }

    /// A finding that may surprise.
    pub fn note(check: &'static str, found: impl Into<String>, hint: impl Into<String>) -> Finding {
        let hint = Some(hint.into());
        Finding { severity: Severity::Note, check, found: found.into(), hint }
    }

    /// The finding of an error that would end a job at its start.
    pub fn error(check: &'static str, error: impl Into<anyhow::Error>, hint: &str) -> Finding {
        let (found, own) = failure::lines(&error.into());
        let hint = Some(own.unwrap_or_else(|| hint.to_owned()));
        Finding { severity: Severity::Error, check, found, hint }
    }

    /// The finding of a value that may be none.
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

    /// Returns its line, with the hint at the end.
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

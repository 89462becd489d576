//! Findings of `forebay check` and their output.

use std::fmt::Write as _;

use serde::Serialize;

use crate::terminal::{Paint, Tone};

/// Result of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FindingLevel {
    /// The check passed.
    Ok,
    /// The server will run, but the operator should look at it.
    Warn,
    /// The server will not run, or not correctly.
    Fail,
}

impl FindingLevel {
    /// Returns the name in the output.
    pub fn as_str(self) -> &'static str {
        match self {
            FindingLevel::Ok => "ok",
            FindingLevel::Warn => "warn",
            FindingLevel::Fail => "fail",
        }
    }

    fn tone(self) -> Tone {
        match self {
            FindingLevel::Ok => Tone::Good,
            FindingLevel::Warn => Tone::Careful,
            FindingLevel::Fail => Tone::Bad,
        }
    }
}

/// Part of the system that a check is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CheckArea {
    /// The database.
    Postgres,
    /// The Redis that instances share.
    Redis,
    /// The storage directory.
    Storage,
    /// This machine.
    Machine,
}

impl CheckArea {
    fn as_str(self) -> &'static str {
        match self {
            CheckArea::Postgres => "postgres",
            CheckArea::Redis => "redis",
            CheckArea::Storage => "storage",
            CheckArea::Machine => "machine",
        }
    }
}

/// Result of one check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Whether the check passed.
    pub level: FindingLevel,
    /// Part of the system.
    pub area: CheckArea,
    /// Stable name of the check, for programs.
    pub check: &'static str,
    /// The finding.
    pub what: String,
    /// What to do; `None` if nothing.
    pub advice: Option<String>,
}

impl Finding {
    pub(super) fn ok(area: CheckArea, check: &'static str, what: impl Into<String>) -> Finding {
        Finding { level: FindingLevel::Ok, area, check, what: what.into(), advice: None }
    }

    pub(super) fn warn(
        area: CheckArea,
        check: &'static str,
        what: impl Into<String>,
        advice: impl Into<String>,
    ) -> Finding {
        Finding { level: FindingLevel::Warn, area, check, what: what.into(), advice: Some(advice.into()) }
    }

    pub(super) fn fail(
        area: CheckArea,
        check: &'static str,
        what: impl Into<String>,
        advice: impl Into<String>,
    ) -> Finding {
        Finding { level: FindingLevel::Fail, area, check, what: what.into(), advice: Some(advice.into()) }
    }

    /// Returns the text output, with a line break. The advice is on its own line.
    pub fn line(&self, paint: Paint) -> String {
        let level = paint.tone(self.level.tone(), &format!("{:<4}", self.level.as_str()));
        let mut line = format!("{level}  {:<8}  {}\n", self.area.as_str(), self.what);
        if let Some(advice) = &self.advice {
            let _ = writeln!(line, "{:14}  → {advice}", "");
        }
        line
    }
}

/// All findings, with counts.
#[derive(Debug, Default, Serialize)]
pub struct Findings {
    failed: usize,
    warned: usize,
    findings: Vec<Finding>,
}

impl Findings {
    pub(super) fn add(&mut self, finding: Finding) {
        match finding.level {
            FindingLevel::Ok => {}
            FindingLevel::Warn => self.warned += 1,
            FindingLevel::Fail => self.failed += 1,
        }
        self.findings.push(finding);
    }

    /// Returns whether no check failed.
    pub fn is_fit(&self) -> bool {
        self.failed == 0
    }

    /// Returns the last line of the text output.
    pub fn summary(&self) -> String {
        let all = self.findings.len();
        match (self.failed, self.warned) {
            (0, 0) => format!("all {all} checks passed"),
            (0, warned) => format!("ready, with {warned} of {all} checks to look at"),
            (failed, 0) => format!("not ready: {failed} of {all} checks failed"),
            (failed, warned) => {
                format!("not ready: {failed} of {all} checks failed, and {warned} to look at")
            }
        }
    }
}

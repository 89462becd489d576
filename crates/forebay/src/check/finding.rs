//! One thing that was looked at, and how it is told.

use std::fmt::Write as _;

use serde::Serialize;

use crate::terminal::{Paint, Tone};

/// How it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    /// Fit.
    Ok,
    /// It will run, but somebody should look.
    Warn,
    /// It won't run, or not well.
    Fail,
}

impl Level {
    /// In what is printed.
    pub fn as_str(self) -> &'static str {
        match self {
            Level::Ok => "ok",
            Level::Warn => "warn",
            Level::Fail => "fail",
        }
    }

    fn tone(self) -> Tone {
        match self {
            Level::Ok => Tone::Good,
            Level::Warn => Tone::Careful,
            Level::Fail => Tone::Bad,
        }
    }
}

/// What was looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Area {
    /// The database.
    Postgres,
    /// Where instances meet.
    Redis,
    /// The storage directory.
    Storage,
    /// This machine.
    Machine,
}

impl Area {
    fn as_str(self) -> &'static str {
        match self {
            Area::Postgres => "postgres",
            Area::Redis => "redis",
            Area::Storage => "storage",
            Area::Machine => "machine",
        }
    }
}

/// One thing that was looked at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// How it is.
    pub level: Level,
    /// Where.
    pub area: Area,
    /// Which check, for programs: it stays the same.
    pub check: &'static str,
    /// What was found.
    pub what: String,
    /// What to do, if something is to be done.
    pub advice: Option<String>,
}

impl Finding {
    pub(super) fn ok(area: Area, check: &'static str, what: impl Into<String>) -> Finding {
        Finding { level: Level::Ok, area, check, what: what.into(), advice: None }
    }

    pub(super) fn warn(
        area: Area,
        check: &'static str,
        what: impl Into<String>,
        advice: impl Into<String>,
    ) -> Finding {
        Finding { level: Level::Warn, area, check, what: what.into(), advice: Some(advice.into()) }
    }

    pub(super) fn fail(
        area: Area,
        check: &'static str,
        what: impl Into<String>,
        advice: impl Into<String>,
    ) -> Finding {
        Finding { level: Level::Fail, area, check, what: what.into(), advice: Some(advice.into()) }
    }

    /// For people, with its end of line; the advice is a line of its own.
    pub fn line(&self, paint: Paint) -> String {
        let level = paint.tone(self.level.tone(), &format!("{:<4}", self.level.as_str()));
        let mut line = format!("{level}  {:<8}  {}\n", self.area.as_str(), self.what);
        if let Some(advice) = &self.advice {
            let _ = writeln!(line, "{:14}  → {advice}", "");
        }
        line
    }
}

/// All of it.
#[derive(Debug, Default, Serialize)]
pub struct Findings {
    failed: usize,
    warned: usize,
    findings: Vec<Finding>,
}

impl Findings {
    pub(super) fn add(&mut self, finding: Finding) {
        match finding.level {
            Level::Ok => {}
            Level::Warn => self.warned += 1,
            Level::Fail => self.failed += 1,
        }
        self.findings.push(finding);
    }

    /// Whether nothing failed.
    pub fn is_fit(&self) -> bool {
        self.failed == 0
    }

    /// The last line, for people.
    pub fn summary(&self) -> String {
        let all = self.findings.len();
        match (self.failed, self.warned) {
            (0, 0) => format!("all {all} checks are ok"),
            (0, warned) => format!("fit, with {warned} of {all} checks to look at"),
            (failed, 0) => format!("not fit: {failed} of {all} checks failed"),
            (failed, warned) => {
                format!("not fit: {failed} of {all} checks failed, and {warned} are to look at")
            }
        }
    }
}

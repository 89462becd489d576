//! From what was written to what is meant: each value checked once, each complaint naming its key and where it was set.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use http::header::HeaderName;

use super::origin::Origin;

/// A value that can't be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{key}{} {why}", Given { value, origin })]
pub struct ValueError {
    /// `section.key`.
    pub key: &'static str,
    /// What was written; nothing if it was missing, or is a secret.
    pub value: Option<String>,
    /// Where.
    pub origin: Option<String>,
    /// What is wrong, and what to write.
    pub why: String,
}

struct Given<'a> {
    value: &'a Option<String>,
    origin: &'a Option<String>,
}

impl fmt::Display for Given<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(value) = self.value {
            write!(f, " = {value:?}")?;
        }
        if let Some(origin) = self.origin {
            write!(f, " ({origin})")?;
        }
        f.write_str(if self.value.is_some() { ":" } else { "" })
    }
}

/// Reads values, knowing where each was set.
#[derive(Debug, Default)]
pub(super) struct Check {
    pub(super) origins: BTreeMap<String, Origin>,
}

impl Check {
    pub(super) fn wrong(
        &self,
        key: &'static str,
        value: impl Into<Option<String>>,
        why: impl fmt::Display,
    ) -> ValueError {
        let origin = self.origins.get(key).map(ToString::to_string);
        ValueError { key, value: value.into(), origin, why: why.to_string() }
    }

    /// A text that stands for something.
    pub(super) fn parse<T: FromStr>(
        &self,
        key: &'static str,
        text: Option<&String>,
        default: T,
        why: &str,
    ) -> Result<T, ValueError> {
        text.map_or(Ok(default), |text| text.parse().map_err(|_| self.wrong(key, text.clone(), why)))
    }

    /// One of a few words.
    pub(super) fn choice<T: Copy>(
        &self,
        key: &'static str,
        text: Option<&String>,
        choices: &[(&str, T)],
    ) -> Result<T, ValueError> {
        let Some(text) = text else { return Ok(choices[0].1) };
        choices.iter().find(|(name, _)| name == text).map(|(_, choice)| *choice).ok_or_else(|| {
            let names: Vec<_> = choices.iter().map(|(name, _)| format!("`{name}`")).collect();
            self.wrong(key, text.clone(), format!("must be {}", names.join(" or ")))
        })
    }

    /// A list of texts that stand for something; `why` comes from the parser.
    pub(super) fn list<T: FromStr>(
        &self,
        key: &'static str,
        texts: Option<&Vec<String>>,
    ) -> Result<Vec<T>, ValueError>
    where
        T::Err: fmt::Display,
    {
        let texts = texts.map(Vec::as_slice).unwrap_or_default();
        texts.iter().map(|text| text.parse().map_err(|why| self.wrong(key, text.clone(), why))).collect()
    }

    pub(super) fn address(
        &self,
        key: &'static str,
        text: Option<&String>,
        default: SocketAddr,
    ) -> Result<SocketAddr, ValueError> {
        let why = format!("must be an IP address and a port, such as {default} or [::1]:{}", default.port());
        self.parse(key, text, default, &why)
    }

    /// Between one millisecond and a day: a wait of zero can only fail, and a longer one is a slip.
    pub(super) fn duration(
        &self,
        key: &'static str,
        given_ms: Option<u64>,
        default: Duration,
    ) -> Result<Duration, ValueError> {
        const DAY_MS: u64 = 24 * 60 * 60 * 1000;
        match given_ms {
            None => Ok(default),
            Some(ms) if (1..=DAY_MS).contains(&ms) => Ok(Duration::from_millis(ms)),
            Some(ms) => Err(self.wrong(key, ms.to_string(), format!("must be 1 to {DAY_MS} milliseconds"))),
        }
    }

    /// At least one of something.
    pub(super) fn count(
        &self,
        key: &'static str,
        given: Option<u32>,
        default: u32,
    ) -> Result<u32, ValueError> {
        match given {
            Some(0) => Err(self.wrong(key, "0".to_owned(), "must be at least 1")),
            given => Ok(given.unwrap_or(default)),
        }
    }

    /// So many of something that is paid for with memory: a slip of the pen must not be a crash.
    pub(super) fn count_within(
        &self,
        key: &'static str,
        given: Option<u32>,
        default: usize,
        bounds: RangeInclusive<u32>,
    ) -> Result<usize, ValueError> {
        match given {
            None => Ok(default),
            Some(given) if bounds.contains(&given) => Ok(given as usize),
            Some(given) => {
                let why = format!("must be {} to {}", bounds.start(), bounds.end());
                Err(self.wrong(key, given.to_string(), why))
            }
        }
    }

    /// So many bytes.
    pub(super) fn bytes(
        &self,
        key: &'static str,
        given: Option<u64>,
        default: u64,
        bounds: RangeInclusive<u64>,
    ) -> Result<u64, ValueError> {
        match given {
            None => Ok(default),
            Some(given) if bounds.contains(&given) => Ok(given),
            Some(given) => {
                let why = format!("must be {} to {} bytes", bounds.start(), bounds.end());
                Err(self.wrong(key, given.to_string(), why))
            }
        }
    }

    pub(super) fn header(
        &self,
        key: &'static str,
        name: Option<&String>,
    ) -> Result<Option<HeaderName>, ValueError> {
        let parse = |name: &String| {
            HeaderName::try_from(name).map_err(|_| self.wrong(key, name.clone(), "is no name of a header"))
        };
        name.map(parse).transpose()
    }

    /// A file's content, for keys and secrets.
    pub(super) fn read(
        &self,
        key: &'static str,
        path: Option<&PathBuf>,
    ) -> Result<Option<Vec<u8>>, ValueError> {
        let Some(path) = path else { return Ok(None) };
        let text = || path.display().to_string();
        let content = std::fs::read(path)
            .map_err(|error| self.wrong(key, text(), format!("can't be read: {error}")))?;
        if content.is_empty() {
            return Err(self.wrong(key, text(), "is an empty file"));
        }
        Ok(Some(content))
    }
}

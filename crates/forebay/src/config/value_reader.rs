//! Validation of setting values. Each error names the key and the origin of the value.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use http::header::HeaderName;

use super::setting_origin::SettingOrigin;

/// An invalid value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{key}{} {why}", ValueAndOrigin { value, origin })]
pub struct ValueError {
    /// Key, as `section.key`.
    pub key: &'static str,
    /// The value; `None` if it is missing or secret.
    pub value: Option<String>,
    /// Origin of the value: the file, a variable or a flag.
    pub origin: Option<String>,
    /// The problem, and a valid value.
    pub why: String,
}

/// The value and its origin, as shown in a [`ValueError`].
struct ValueAndOrigin<'a> {
    value: &'a Option<String>,
    origin: &'a Option<String>,
}

impl fmt::Display for ValueAndOrigin<'_> {
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

/// Converts values and builds errors with their origins.
#[derive(Debug, Default)]
pub(super) struct ValueReader {
    /// Origins by `section.key`. A key without an origin has its default.
    pub(super) origins: BTreeMap<String, SettingOrigin>,
}

impl ValueReader {
    /// Returns an error for a key, with its origin.
    pub(super) fn error(
        &self,
        key: &'static str,
        value: impl Into<Option<String>>,
        why: impl fmt::Display,
    ) -> ValueError {
        let origin = self.origins.get(key).map(ToString::to_string);
        ValueError { key, value: value.into(), origin, why: why.to_string() }
    }

    /// Parses a text; `why` is the error text.
    pub(super) fn parse<T: FromStr>(
        &self,
        key: &'static str,
        text: Option<&String>,
        default: T,
        why: &str,
    ) -> Result<T, ValueError> {
        text.map_or(Ok(default), |text| text.parse().map_err(|_| self.error(key, text.clone(), why)))
    }

    /// Returns the choice with this name; the first one is the default.
    pub(super) fn choice<T: Copy>(
        &self,
        key: &'static str,
        text: Option<&String>,
        choices: &[(&str, T)],
    ) -> Result<T, ValueError> {
        let Some(text) = text else { return Ok(choices[0].1) };
        choices.iter().find(|(name, _)| name == text).map(|(_, choice)| *choice).ok_or_else(|| {
            let names: Vec<_> = choices.iter().map(|(name, _)| format!("`{name}`")).collect();
            self.error(key, text.clone(), format!("must be {}", names.join(" or ")))
        })
    }

    /// Parses each text of a list; the parser provides the error text.
    pub(super) fn list<T: FromStr>(
        &self,
        key: &'static str,
        texts: Option<&Vec<String>>,
    ) -> Result<Vec<T>, ValueError>
    where
        T::Err: fmt::Display,
    {
        let texts = texts.map(Vec::as_slice).unwrap_or_default();
        texts.iter().map(|text| text.parse().map_err(|why| self.error(key, text.clone(), why))).collect()
    }

    /// Parses an IP address with a port.
    pub(super) fn address(
        &self,
        key: &'static str,
        text: Option<&String>,
        default: SocketAddr,
    ) -> Result<SocketAddr, ValueError> {
        let why = format!("must be an IP address and a port, such as {default} or [::1]:{}", default.port());
        self.parse(key, text, default, &why)
    }

    /// Returns a duration of 1 ms to one day. Zero would always time out, and a longer value is
    /// probably a mistake.
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
            Some(ms) => Err(self.error(key, ms.to_string(), format!("must be 1 to {DAY_MS} milliseconds"))),
        }
    }

    /// Returns a count of at least 1.
    pub(super) fn count(
        &self,
        key: &'static str,
        given: Option<u32>,
        default: u32,
    ) -> Result<u32, ValueError> {
        match given {
            Some(0) => Err(self.error(key, "0".to_owned(), "must be at least 1")),
            given => Ok(given.unwrap_or(default)),
        }
    }

    /// Returns a count within bounds. It is for counts that allocate memory, so that a typo can't
    /// exhaust it.
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
                Err(self.error(key, given.to_string(), why))
            }
        }
    }

    /// Returns a size within bounds, in bytes.
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
                Err(self.error(key, given.to_string(), why))
            }
        }
    }

    /// Parses the name of a header.
    pub(super) fn header(
        &self,
        key: &'static str,
        name: Option<&String>,
    ) -> Result<Option<HeaderName>, ValueError> {
        let parse = |name: &String| {
            HeaderName::try_from(name)
                .map_err(|_| self.error(key, name.clone(), "is not a valid header name"))
        };
        name.map(parse).transpose()
    }

    /// Returns the content of a file with a key or a secret. Fails if the file is empty.
    pub(super) fn read_file(
        &self,
        key: &'static str,
        path: Option<&PathBuf>,
    ) -> Result<Option<Vec<u8>>, ValueError> {
        let Some(path) = path else { return Ok(None) };
        let text = || path.display().to_string();
        let content = std::fs::read(path)
            .map_err(|error| self.error(key, text(), format!("can't be read: {error}")))?;
        if content.is_empty() {
            return Err(self.error(key, text(), "is an empty file"));
        }
        Ok(Some(content))
    }
}

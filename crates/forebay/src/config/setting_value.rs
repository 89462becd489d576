//! Types of settings: how a value of the config file becomes a checked value.
//!
//! Invariant: a type accepts the same values from the file, a variable and a flag. An error never
//! contains a secret.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use forebay_admission::{Network, Secret};
use forebay_gate::StreamRoute;
use http::HeaderName;
use serde::de::DeserializeOwned;
use toml::Value;

use super::secret_text::SecretText;
use super::setting::{Setting, SettingBounds, SettingDefault, SettingKind};

const DAY_MS: u64 = 24 * 60 * 60 * 1000;

/// Field of a section: a [`SettingValue`], or an `Option` of one for a setting without a default.
pub(crate) trait SettingField: Sized {
    type Value: SettingValue;

    /// Returns the field. `None`: the setting is required and absent.
    fn from_value(value: Option<Self::Value>) -> Option<Self>;
}

impl<T: SettingValue> SettingField for T {
    type Value = T;

    fn from_value(value: Option<T>) -> Option<T> {
        value
    }
}

impl<T: SettingValue> SettingField for Option<T> {
    type Value = T;

    fn from_value(value: Option<T>) -> Option<Option<T>> {
        Some(value)
    }
}

/// Checked value of a setting.
pub(crate) trait SettingValue: Sized {
    /// Type in the config file.
    type Raw: DeserializeOwned;
    const KIND: SettingKind;
    /// Smallest and largest number, if the declaration has no bounds.
    const BOUNDS: (u64, u64) = (0, u64::MAX);

    /// Checks a value that has the right type.
    fn check(raw: Self::Raw, setting: &Setting) -> Result<Self, InvalidValue>;

    /// Returns the error of a value with the wrong type.
    fn check_type(value: &Value) -> Result<(), String> {
        raw::<Self::Raw>(value).map(drop)
    }

    /// Checks the type and the value.
    fn from_toml(value: &Value, setting: &Setting) -> Result<Self, InvalidValue> {
        let wrong_type = |why| InvalidValue { value: String::new(), why };
        Self::check(raw(value).map_err(wrong_type)?, setting)
    }
}

fn raw<T: DeserializeOwned>(value: &Value) -> Result<T, String> {
    value.clone().try_into().map_err(|error: toml::de::Error| error.message().to_owned())
}

/// An invalid value, and why it is invalid.
pub(crate) struct InvalidValue {
    pub(super) value: String,
    pub(super) why: String,
}

/// Returns the error of a value.
fn invalid<T>(value: impl Display, why: impl Display) -> Result<T, InvalidValue> {
    Err(InvalidValue { value: value.to_string(), why: why.to_string() })
}

fn check_rule(text: &str, setting: &Setting) -> Result<(), InvalidValue> {
    let Some(rule) = setting.rule else { return Ok(()) };
    rule(text).or_else(|why| invalid(text, why))
}

/// Checks the bounds of a number.
fn check_bounds(number: u64, setting: &Setting) -> Result<(), InvalidValue> {
    let SettingBounds { min, max, or_zero, .. } = setting.bounds;
    if (min..=max).contains(&number) || or_zero && number == 0 {
        return Ok(());
    }
    invalid(number, bounds_error(setting))
}

fn bounds_error(setting: &Setting) -> String {
    let reason = setting.reason.map(|reason| format!(": {reason}")).unwrap_or_default();
    format!("must be {}{reason}", setting.allowed_numbers())
}

/// Types without a check of their own.
macro_rules! unchecked {
    ($($type:ty: $kind:ident,)+) => {$(
        impl SettingValue for $type {
            type Raw = $type;
            const KIND: SettingKind = SettingKind::$kind;

            fn check(raw: $type, _: &Setting) -> Result<$type, InvalidValue> {
                Ok(raw)
            }
        }
    )+};
}

unchecked! {
    SecretText: Secret,
    bool: Switch,
    Vec<String>: List,
}

macro_rules! number {
    ($($type:ty,)+) => {$(
        impl SettingValue for $type {
            type Raw = $type;
            const KIND: SettingKind = SettingKind::Number;

            fn check(raw: $type, setting: &Setting) -> Result<$type, InvalidValue> {
                check_bounds(raw.into(), setting).map(|()| raw)
            }
        }
    )+};
}

number! {
    u8,
    u32,
    u64,
}

impl SettingValue for f64 {
    type Raw = f64;
    const KIND: SettingKind = SettingKind::Number;

    fn check(raw: f64, setting: &Setting) -> Result<f64, InvalidValue> {
        let SettingBounds { min, max, .. } = setting.bounds;
        if !(min as f64..=max as f64).contains(&raw) {
            return invalid(raw, bounds_error(setting));
        }
        Ok(raw)
    }
}

/// Milliseconds, by default 1 to a day. Zero would always time out, and a longer value is probably
/// a mistake.
impl SettingValue for Duration {
    type Raw = u64;
    const KIND: SettingKind = SettingKind::Number;
    const BOUNDS: (u64, u64) = (1, DAY_MS);

    fn check(raw: u64, setting: &Setting) -> Result<Duration, InvalidValue> {
        check_bounds(raw, setting).map(|()| Duration::from_millis(raw))
    }
}

/// Numbers by name.
impl SettingValue for BTreeMap<String, u8> {
    type Raw = BTreeMap<String, u8>;
    const KIND: SettingKind = SettingKind::Table;

    fn check(raw: Self, setting: &Setting) -> Result<Self, InvalidValue> {
        raw.values().try_for_each(|number| check_bounds((*number).into(), setting)).map(|()| raw)
    }
}

impl SettingValue for String {
    type Raw = String;
    const KIND: SettingKind = SettingKind::Text;

    fn check(raw: String, setting: &Setting) -> Result<String, InvalidValue> {
        check_rule(&raw, setting).map(|()| raw)
    }
}

impl SettingValue for PathBuf {
    type Raw = PathBuf;
    const KIND: SettingKind = SettingKind::Path;

    fn check(raw: PathBuf, setting: &Setting) -> Result<PathBuf, InvalidValue> {
        check_rule(&raw.display().to_string(), setting).map(|()| raw)
    }
}

impl SettingValue for Secret {
    type Raw = String;
    const KIND: SettingKind = SettingKind::Secret;

    fn check(raw: String, _: &Setting) -> Result<Secret, InvalidValue> {
        if raw.trim() != raw {
            return invalid(
                "",
                "begins or ends with white space, which clients would have to send, too: remove it",
            );
        }
        let empty = || invalid("", "is empty: choose a long secret, or remove the setting");
        Secret::new(raw).map_or_else(empty, Ok)
    }
}

/// IP address with a port.
impl SettingValue for SocketAddr {
    type Raw = String;
    const KIND: SettingKind = SettingKind::Text;

    fn check(raw: String, setting: &Setting) -> Result<SocketAddr, InvalidValue> {
        raw.parse().or_else(|_| {
            let example = match setting.default {
                SettingDefault::Value(default) => default().as_str().unwrap_or_default().to_owned(),
                SettingDefault::Unset(_) | SettingDefault::Required(_) => "127.0.0.1:3000".to_owned(),
            };
            let port = example.rsplit(':').next().unwrap_or_default();
            invalid(&raw, format!("must be an IP address and a port, such as {example} or [::1]:{port}"))
        })
    }
}

/// Address, or `off`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OptionalAddress(pub(super) Option<SocketAddr>);

impl SettingValue for OptionalAddress {
    type Raw = String;
    const KIND: SettingKind = SettingKind::Text;

    fn check(raw: String, setting: &Setting) -> Result<OptionalAddress, InvalidValue> {
        match raw.as_str() {
            "off" => Ok(OptionalAddress(None)),
            _ => SocketAddr::check(raw, setting).map(|address| OptionalAddress(Some(address))),
        }
    }
}

impl SettingValue for HeaderName {
    type Raw = String;
    const KIND: SettingKind = SettingKind::Text;

    fn check(raw: String, _: &Setting) -> Result<HeaderName, InvalidValue> {
        raw.parse().or_else(|_| invalid(&raw, "is not a valid header name"))
    }
}

impl SettingValue for Vec<Network> {
    type Raw = Vec<String>;
    const KIND: SettingKind = SettingKind::List;

    fn check(raw: Vec<String>, _: &Setting) -> Result<Self, InvalidValue> {
        parse_all(raw)
    }
}

impl SettingValue for Vec<StreamRoute> {
    type Raw = Vec<String>;
    const KIND: SettingKind = SettingKind::List;

    fn check(raw: Vec<String>, _: &Setting) -> Result<Self, InvalidValue> {
        parse_all(raw)
    }
}

/// Parses each text of a list; the parser provides the error text.
fn parse_all<T: FromStr<Err: Display>>(texts: Vec<String>) -> Result<Vec<T>, InvalidValue> {
    texts.iter().map(|text| text.parse().or_else(|why| invalid(text, why))).collect()
}

/// One of several values with names.
pub(crate) trait SettingChoice: Copy + 'static {
    const CHOICES: &'static [(&'static str, Self)];
}

impl<T: SettingChoice> SettingValue for T {
    type Raw = String;
    const KIND: SettingKind = SettingKind::Text;

    fn check(raw: String, _: &Setting) -> Result<T, InvalidValue> {
        let found = T::CHOICES.iter().find(|(name, _)| *name == raw);
        found.map(|(_, choice)| *choice).map_or_else(
            || {
                let names: Vec<_> = T::CHOICES.iter().map(|(name, _)| format!("`{name}`")).collect();
                invalid(&raw, format!("must be {}", names.join(" or ")))
            },
            Ok,
        )
    }
}

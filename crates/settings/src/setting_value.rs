//! Types of settings: how a value of the config file becomes a checked value.
//!
//! Invariant: a type accepts the same values from the file, a variable and a flag. An error never
//! contains a secret.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::marker::PhantomData;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use serde::de::DeserializeOwned;
use toml::Value;

use crate::secret_text::SecretText;
use crate::setting::{Setting, SettingBounds, SettingDefault, SettingKind};

const DAY_MS: u64 = 24 * 60 * 60 * 1000;

/// Marker of the implementations of [`SettingValue`] and [`SettingChoice`] for a crate's own types.
#[derive(Debug, Clone, Copy)]
pub struct OwnType;

/// Marker of an implementation of [`SettingValue`] by [`SettingChoice`].
#[derive(Debug)]
pub struct ByChoice<M>(PhantomData<M>);

/// Marker of an `Option`.
#[derive(Debug)]
pub struct Optional<M>(PhantomData<M>);

/// Field of a section: a [`SettingValue`], or an `Option` of one for a setting without a default.
/// The compiler infers the marker `M`.
pub trait SettingField<M>: Sized {
    /// Kind of the value.
    const KIND: SettingKind;
    /// Smallest and largest number, if the declaration has no bounds.
    const BOUNDS: (u64, u64);

    /// Returns the error of a value with the wrong type.
    ///
    /// # Errors
    /// The text says which type is expected.
    fn check_type(value: &Value) -> Result<(), String>;

    /// Returns the field. `None`: the setting is required and absent.
    ///
    /// # Errors
    /// Fails if the value is invalid.
    fn from_toml(value: Option<&Value>, setting: &Setting) -> Result<Option<Self>, InvalidValue>;
}

impl<T: SettingValue<M>, M> SettingField<M> for T {
    const KIND: SettingKind = T::KIND;
    const BOUNDS: (u64, u64) = T::BOUNDS;

    fn check_type(value: &Value) -> Result<(), String> {
        raw::<T::Raw>(value).map(drop)
    }

    fn from_toml(value: Option<&Value>, setting: &Setting) -> Result<Option<T>, InvalidValue> {
        value.map(|value| checked(value, setting)).transpose()
    }
}

impl<T: SettingValue<M>, M> SettingField<Optional<M>> for Option<T> {
    const KIND: SettingKind = T::KIND;
    const BOUNDS: (u64, u64) = T::BOUNDS;

    fn check_type(value: &Value) -> Result<(), String> {
        raw::<T::Raw>(value).map(drop)
    }

    fn from_toml(value: Option<&Value>, setting: &Setting) -> Result<Option<Option<T>>, InvalidValue> {
        value.map(|value| checked(value, setting)).transpose().map(Some)
    }
}

/// Checked value of a setting.
///
/// The marker `M` lets a program implement the trait for a type of another crate. The marker is
/// then any type of the program: `impl SettingValue<Shop> for Url`. The compiler infers it.
pub trait SettingValue<M = OwnType>: Sized {
    /// Type in the config file.
    type Raw: DeserializeOwned;
    /// Kind of the value.
    const KIND: SettingKind;
    /// Smallest and largest number, if the declaration has no bounds.
    const BOUNDS: (u64, u64) = (0, u64::MAX);

    /// Checks a value that has the right type.
    ///
    /// # Errors
    /// Fails if the value is invalid.
    fn check(raw: Self::Raw, setting: &Setting) -> Result<Self, InvalidValue>;
}

/// Checks the type and the value.
fn checked<T: SettingValue<M>, M>(value: &Value, setting: &Setting) -> Result<T, InvalidValue> {
    let wrong_type = |why| InvalidValue { value: String::new(), why };
    T::check(raw(value).map_err(wrong_type)?, setting)
}

fn raw<T: DeserializeOwned>(value: &Value) -> Result<T, String> {
    value.clone().try_into().map_err(|error: toml::de::Error| error.message().to_owned())
}

/// An invalid value, and why it is invalid.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InvalidValue {
    pub(crate) value: String,
    pub(crate) why: String,
}

impl InvalidValue {
    /// Returns the error of a value. `why` completes the sentence that begins with the key. The
    /// value of a secret is never shown.
    pub fn new(value: impl Display, why: impl Display) -> InvalidValue {
        InvalidValue { value: value.to_string(), why: why.to_string() }
    }
}

fn invalid<T>(value: impl Display, why: impl Display) -> Result<T, InvalidValue> {
    Err(InvalidValue::new(value, why))
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
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OptionalAddress(pub Option<SocketAddr>);

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

/// One of several values with names. The marker `M` is as that of [`SettingValue`].
pub trait SettingChoice<M = OwnType>: Copy + 'static {
    /// Name and value of each choice.
    const CHOICES: &'static [(&'static str, Self)];
}

impl<T: SettingChoice<M>, M> SettingValue<ByChoice<M>> for T {
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

#[cfg(test)]
mod tests {
    use crate::command_settings::CommandDeclaration;
    use crate::setting_layers::SettingLayers;
    use crate::test_program::{DoorState, GateSettings};

    fn read(variables: &[(&str, &str)]) -> Result<GateSettings, String> {
        let mut layers = SettingLayers::new(CommandDeclaration::of::<GateSettings>());
        let upstream = [("SHOP_GATE_UPSTREAM", "http://h")];
        let all = upstream.iter().chain(variables).map(|(name, value)| ((*name).into(), (*value).into()));
        layers.environment(all).unwrap();
        GateSettings::read(&layers).map_err(|error| error.to_string())
    }

    #[test]
    fn a_setting_is_its_value_or_its_default() {
        let defaults = read(&[]).unwrap();
        assert_eq!((defaults.gate.listen.port(), defaults.admission.total), (8080, 10_000));
        assert_eq!(defaults.gate.upstream, "http://h");
        assert_eq!((defaults.gate.door, defaults.gate.forward_user_header), (DoorState::Open, None));
        assert!(defaults.admission.class_percent.is_none() && defaults.gate.stream_routes.is_empty());
        assert!(!defaults.admin.insecure && defaults.admin.listen.0.is_some());
        let given = read(&[
            ("SHOP_GATE_DOOR", "closed"),
            ("SHOP_GATE_DRAIN_TIMEOUT_MS", "0"),
            ("SHOP_GATE_TOLL_PERCENT", "2.5"),
            ("SHOP_ADMISSION_CLASS_PERCENT", "{ user = 90 }"),
            ("SHOP_ADMIN_LISTEN", "off"),
            ("SHOP_REDIS_URL", "redis://:s3cr3t@h"),
        ]);
        let given = given.unwrap();
        assert_eq!(given.gate.door, DoorState::Closed);
        assert!(given.gate.drain_timeout_ms.is_zero() && given.admin.listen.0.is_none());
        assert_eq!((given.gate.toll_percent, given.admission.class_percent.unwrap()["user"]), (2.5, 90));
        assert_eq!(given.redis.url.as_ref().map(super::SecretText::reveal), Some("redis://:s3cr3t@h"));
        assert!(!format!("{:?}", given.redis).contains("s3cr3t"));
    }

    #[test]
    fn an_invalid_value_is_reported_with_key_origin_and_a_valid_value() {
        for (name, value, error) in [
            (
                "SHOP_GATE_LISTEN",
                "here",
                "gate.listen = \"here\" (from SHOP_GATE_LISTEN): must be an IP address and a port, such as \
                 127.0.0.1:8080 or [::1]:8080",
            ),
            (
                "SHOP_ADMISSION_TOTAL",
                "0",
                "admission.total = \"0\" (from SHOP_ADMISSION_TOTAL): must be 1 to 20000: more would exceed the \
                 memory",
            ),
            (
                "SHOP_GATE_DRAIN_TIMEOUT_MS",
                "86400001",
                "gate.drain_timeout_ms = \"86400001\" (from SHOP_GATE_DRAIN_TIMEOUT_MS): must be 1 to 86400000 \
                 milliseconds, or 0",
            ),
            (
                "SHOP_GATE_DOOR",
                "ajar",
                "gate.door = \"ajar\" (from SHOP_GATE_DOOR): must be `open` or `closed`",
            ),
            ("SHOP_GATE_UPSTREAM", "", "gate.upstream = \"\" (from SHOP_GATE_UPSTREAM): must not be empty"),
        ] {
            assert_eq!(read(&[(name, value)]).unwrap_err(), error);
        }
        let layers = SettingLayers::new(CommandDeclaration::of::<GateSettings>());
        let missing = GateSettings::read(&layers).unwrap_err().to_string();
        assert_eq!(missing, "gate.upstream is missing: set the URL");
    }
}

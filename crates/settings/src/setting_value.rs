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

const DAY_S: u64 = 24 * 60 * 60;
/// Ends of keys that name a unit of time.
const MILLISECONDS: &str = "_ms";
const SECONDS: &str = "_s";

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
    /// Units of the type: see [`SettingValue::UNITS`].
    const UNITS: &'static [SettingUnit];

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
    const UNITS: &'static [SettingUnit] = T::UNITS;

    fn check_type(value: &Value) -> Result<(), String> {
        raw::<T, M>(value).map(drop)
    }

    fn from_toml(value: Option<&Value>, setting: &Setting) -> Result<Option<T>, InvalidValue> {
        value.map(|value| checked(value, setting)).transpose()
    }
}

impl<T: SettingValue<M>, M> SettingField<Optional<M>> for Option<T> {
    const KIND: SettingKind = T::KIND;
    const BOUNDS: (u64, u64) = T::BOUNDS;
    const UNITS: &'static [SettingUnit] = T::UNITS;

    fn check_type(value: &Value) -> Result<(), String> {
        raw::<T, M>(value).map(drop)
    }

    fn from_toml(value: Option<&Value>, setting: &Setting) -> Result<Option<Option<T>>, InvalidValue> {
        value.map(|value| checked(value, setting)).transpose().map(Some)
    }
}

/// Unit of a number: the end of the key that names it, and the bounds if the declaration has none.
#[derive(Debug, Clone, Copy)]
pub struct SettingUnit {
    /// End of the key, such as `_ms`.
    pub suffix: &'static str,
    /// Smallest number.
    pub min: u64,
    /// Largest number.
    pub max: u64,
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
    /// Units, if the value has one. The declaration of a key that ends with none of them doesn't
    /// compile. [`Setting::unit_of`] returns the unit of a setting.
    const UNITS: &'static [SettingUnit] = &[];

    /// Checks a value that has the right type.
    ///
    /// # Errors
    /// Fails if the value is invalid.
    fn check(raw: Self::Raw, setting: &Setting) -> Result<Self, InvalidValue>;
}

/// Checks the type and the value.
fn checked<T: SettingValue<M>, M>(value: &Value, setting: &Setting) -> Result<T, InvalidValue> {
    let wrong_type = |why| InvalidValue { value: String::new(), why };
    T::check(raw::<T, M>(value).map_err(wrong_type)?, setting)
}

/// Returns the value with the type of the config file. The error of a secret quotes nothing: the
/// text of `Deserialize` may contain the value.
fn raw<T: SettingValue<M>, M>(value: &Value) -> Result<T::Raw, String> {
    value.clone().try_into().map_err(|error: toml::de::Error| match (T::KIND, value) {
        (SettingKind::Secret, Value::String(_)) => "must be another text; this one is not shown".to_owned(),
        (SettingKind::Secret, other) => format!("invalid type: {}, expected a string", other.type_str()),
        (_, _) => error.message().to_owned(),
    })
}

/// An invalid value, and why it is invalid.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InvalidValue {
    pub(crate) value: String,
    pub(crate) why: String,
}

impl InvalidValue {
    /// Returns the error of a value. `why` completes the sentence that begins with the key. The
    /// value of a secret is never shown, nor a `why` that contains it.
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

/// Milliseconds if the key ends with `_ms`, seconds if it ends with `_s`; by default 1 to a day.
/// Zero would always time out, and a longer value is probably a mistake.
impl SettingValue for Duration {
    type Raw = u64;
    const KIND: SettingKind = SettingKind::Number;
    const UNITS: &'static [SettingUnit] = &[
        SettingUnit { suffix: MILLISECONDS, min: 1, max: DAY_S * 1000 },
        SettingUnit { suffix: SECONDS, min: 1, max: DAY_S },
    ];

    fn check(raw: u64, setting: &Setting) -> Result<Duration, InvalidValue> {
        check_bounds(raw, setting)?;
        let is_seconds =
            setting.unit_of(<Duration as SettingValue>::UNITS).is_some_and(|unit| unit.suffix == SECONDS);
        Ok(if is_seconds { Duration::from_secs(raw) } else { Duration::from_millis(raw) })
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

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

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::command_settings::CommandDeclaration;
    use crate::setting_flags::SettingFlags;
    use crate::setting_layers::SettingLayers;
    use crate::test_program::{DoorState, GateSettings};

    fn read(variables: &[(&str, &str)]) -> Result<GateSettings, String> {
        let mut layers = SettingLayers::new(CommandDeclaration::of::<GateSettings>());
        let upstream = [("SHOP_GATE_UPSTREAM", "http://h")];
        layers.environment(upstream.iter().chain(variables).copied()).unwrap();
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

    crate::settings! {
        /// Opening hours.
        HoursSection: "hours" {
            /// Time at the door.
            greeting_ms: Duration = 500;
            /// Time for lunch.
            lunch_s: Duration = 1_800;
            /// Time for tea.
            tea_s: Option<Duration>, bounds(10, 60), or_zero();
        }
    }

    crate::command_settings! {
        /// Settings of a program with durations.
        HoursSettings: "shop" "hours" {
            hours: HoursSection,
        }
    }

    #[test]
    fn the_end_of_the_key_is_the_unit_of_a_duration() {
        let read = |variables: &[(&'static str, &'static str)]| {
            let mut layers = SettingLayers::new(CommandDeclaration::of::<HoursSettings>());
            layers.environment(variables.iter().copied()).unwrap();
            HoursSettings::read(&layers).map(|settings| settings.hours).map_err(|error| error.to_string())
        };
        let hours = read(&[("SHOP_HOURS_TEA_S", "20")]).unwrap();
        assert_eq!(hours.greeting_ms, Duration::from_millis(500));
        assert_eq!((hours.lunch_s, hours.tea_s), (Duration::from_secs(1_800), Some(Duration::from_secs(20))));
        assert!(read(&[("SHOP_HOURS_LUNCH_S", "86400"), ("SHOP_HOURS_GREETING_MS", "86400000")]).is_ok());
        for (variable, value, allowed) in [
            ("SHOP_HOURS_LUNCH_S", "86401", "1 to 86400 seconds"),
            ("SHOP_HOURS_GREETING_MS", "86400001", "1 to 86400000 milliseconds"),
            ("SHOP_HOURS_TEA_S", "9", "10 to 60 seconds, or 0"),
        ] {
            let error = read(&[(variable, value)]).unwrap_err();
            assert!(error.ends_with(&format!("must be {allowed}")), "{error}");
        }
    }

    /// Secret of a program: a number, whose errors quote it.
    #[derive(Debug, Clone)]
    pub(crate) struct DoorCode;

    impl SettingValue for DoorCode {
        type Raw = QuotedCode;
        const KIND: SettingKind = SettingKind::Secret;

        fn check(raw: QuotedCode, _: &Setting) -> Result<DoorCode, InvalidValue> {
            if raw.0 == "open" { Ok(DoorCode) } else { invalid(&raw.0, format!("{} is wrong", raw.0)) }
        }
    }

    /// Text of four letters. The error of another one quotes it.
    pub(crate) struct QuotedCode(String);

    impl<'de> serde::Deserialize<'de> for QuotedCode {
        fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<QuotedCode, D::Error> {
            let text = String::deserialize(deserializer)?;
            if text.len() == 4 { Ok(QuotedCode(text)) } else { Err(serde::de::Error::custom(text)) }
        }
    }

    crate::settings! {
        /// The door.
        DoorSection: "door" {
            /// Code of the door.
            code: Option<DoorCode>, flag("--code", "CODE");
        }
    }

    crate::command_settings! {
        /// Settings of a program with a secret of its own type.
        DoorSettings: "shop" "door" {
            door: DoorSection,
        }
    }

    #[derive(Debug, clap::Parser)]
    struct DoorCommand {
        #[command(flatten)]
        flags: SettingFlags<DoorSettings>,
    }

    #[test]
    fn errors_of_a_programs_own_secret_type_do_not_quote_it() {
        let layers = || SettingLayers::new(CommandDeclaration::of::<DoorSettings>());
        let hidden = |error: String| assert!(!error.contains("s3cr"), "{error}");
        let mut valid = layers();
        valid.environment([("SHOP_DOOR_CODE", "open")]).unwrap();
        assert!(DoorSettings::read(&valid).unwrap().door.code.is_some());
        for secret in ["s3cret-text", "s3cr"] {
            let mut of_file = layers();
            let text = format!("[door]\ncode = \"{secret}\"\n");
            match of_file.text(&text, Path::new("shop.toml")) {
                Ok(()) => hidden(DoorSettings::read(&of_file).unwrap_err().to_string()),
                Err(error) => hidden(format!("{error} {error:?}")),
            }
            let mut of_variable = layers();
            match of_variable.environment([("SHOP_DOOR_CODE", secret)]) {
                Ok(()) => hidden(DoorSettings::read(&of_variable).unwrap_err().to_string()),
                Err(error) => hidden(format!("{error} {error:?}")),
            }
            let mut of_flag = layers();
            match <DoorCommand as clap::Parser>::try_parse_from(["shop", "--code", secret]) {
                Ok(command) => command.flags.apply(&mut of_flag),
                Err(error) => hidden(error.to_string()),
            }
            hidden(DoorSettings::read(&of_flag).unwrap_err().to_string());
        }
    }
}

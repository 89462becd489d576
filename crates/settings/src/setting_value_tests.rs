//! Tests of the types of settings.

use std::path::Path;
use std::time::Duration;

use crate::command_settings::CommandDeclaration;
use crate::secret_text::SecretText;
use crate::setting::{Setting, SettingKind};
use crate::setting_flags::SettingFlags;
use crate::setting_layers::SettingLayers;
use crate::setting_value::{InvalidValue, SettingValue};
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
    assert_eq!(given.redis.url.as_ref().map(SecretText::reveal), Some("redis://:s3cr3t@h"));
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
        ("SHOP_GATE_DOOR", "ajar", "gate.door = \"ajar\" (from SHOP_GATE_DOOR): must be `open` or `closed`"),
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
        if raw.0 == "open" {
            Ok(DoorCode)
        } else {
            Err(InvalidValue::new(&raw.0, format!("{} is wrong", raw.0)))
        }
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

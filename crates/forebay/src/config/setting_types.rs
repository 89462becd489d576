//! Types of settings that other crates define: how a value of the config file becomes one of them.

use std::fmt::Display;
use std::str::FromStr;

use forebay_admission::{Network, Secret};
use forebay_gate::StreamRoute;
use forebay_settings::{InvalidValue, Setting, SettingKind, SettingValue};
use http::HeaderName;

/// Marker of implementations for types of other crates.
#[derive(Debug)]
pub(super) struct Forebay;

impl SettingValue<Forebay> for Secret {
    type Raw = String;
    const KIND: SettingKind = SettingKind::Secret;

    fn check(raw: String, _: &Setting) -> Result<Secret, InvalidValue> {
        if raw.trim() != raw {
            let why = "begins or ends with white space, which clients would have to send, too: remove it";
            return Err(InvalidValue::new("", why));
        }
        let empty = || InvalidValue::new("", "is empty: choose a long secret, or remove the setting");
        Secret::new(raw).ok_or_else(empty)
    }
}

impl SettingValue<Forebay> for HeaderName {
    type Raw = String;
    const KIND: SettingKind = SettingKind::Text;

    fn check(raw: String, _: &Setting) -> Result<HeaderName, InvalidValue> {
        raw.parse().map_err(|_| InvalidValue::new(&raw, "is not a valid header name"))
    }
}

impl SettingValue<Forebay> for Vec<Network> {
    type Raw = Vec<String>;
    const KIND: SettingKind = SettingKind::List;

    fn check(raw: Vec<String>, _: &Setting) -> Result<Self, InvalidValue> {
        parse_all(raw)
    }
}

impl SettingValue<Forebay> for Vec<StreamRoute> {
    type Raw = Vec<String>;
    const KIND: SettingKind = SettingKind::List;

    fn check(raw: Vec<String>, _: &Setting) -> Result<Self, InvalidValue> {
        parse_all(raw)
    }
}

/// Parses each text of a list; the parser provides the error text.
fn parse_all<T: FromStr<Err: Display>>(texts: Vec<String>) -> Result<Vec<T>, InvalidValue> {
    texts.iter().map(|text| text.parse().map_err(|why| InvalidValue::new(text, why))).collect()
}

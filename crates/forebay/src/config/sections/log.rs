//! Settings of `[log]`.

use forebay_admission::StageLevel;
use forebay_settings::{Reload, SettingChoice};

use crate::config::electric_variables::level;
use crate::config::setting_types::Forebay;
use crate::config::settings_macro::settings;
use crate::logging::{LogFormat, check_filter};

impl SettingChoice for LogFormat {
    const CHOICES: &'static [(&'static str, LogFormat)] =
        &[("text", LogFormat::Text), ("json", LogFormat::Json)];
}

impl SettingChoice<Forebay> for StageLevel {
    const CHOICES: &'static [(&'static str, StageLevel)] =
        &[("debug", StageLevel::Debug), ("info", StageLevel::Info)];
}

settings! {
    /// The log, on standard error.
    LogSection: "log" {
        /// Log format: `text` or `json`.
        format: LogFormat = "text", flag("--log-format", "FORMAT");

        /// Minimum log level: `error`, `warn`, `info`, `debug` or `trace`, or a list such as
        /// `info,forebay_serve=debug`.
        filter: String = "info",
            rule(check_filter),
            reload(Reload::Applied("with the next line")),
            flag("--log", "FILTER"),
            electric("ELECTRIC_LOG_LEVEL", level, "`warning` is `warn`; a filter may also name modules");

        /// Level of the lines about the stages of each stream, which have the codes `CP.1` to
        /// `CP.4.1`: `debug` or `info`. With `info`, each stream has five lines, and each refused
        /// one has up to three. These lines are not rate-limited, also for refused requests.
        stages: StageLevel = "debug", reload(Reload::Applied("with the next line"));
    }
}

//! Settings of `[log]`.

use forebay_settings::{Reload, SettingChoice};

use crate::config::electric_variables::level;
use crate::config::settings_macro::settings;
use crate::logging::{LogFormat, check_filter};

impl SettingChoice for LogFormat {
    const CHOICES: &'static [(&'static str, LogFormat)] =
        &[("text", LogFormat::Text), ("json", LogFormat::Json)];
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
    }
}

//! Macro for declarations of settings, with Forebay's own words.

/// Declares the settings of a section, as [`forebay_settings::settings!`] describes.
///
/// Besides the words there, these are allowed:
///
/// | word | purpose |
/// |---|---|
/// | `gate_default(\|\| value)` | default of `forebay gate`, if it differs |
/// | `electric(name, parser, remark)` | variable of Electric that sets this setting |
/// | `dsql(name, parser, remark)` | variable of the DSQL plugin that sets this setting |
/// | `opentelemetry(name)` | variable of OpenTelemetry that sets this setting |
///
/// If several variables are set, the last one applies. Those of Electric come after those of
/// OpenTelemetry, because they are for this program only.
macro_rules! settings {
    ($($section:tt)+) => {
        forebay_settings::settings! {
            words [crate::config::settings_macro::forebay_words];
            $($section)+
        }
    };
}

/// Applies the words of a declaration to its setting, one after another.
macro_rules! forebay_words {
    ($setting:expr;) => { $setting };
    ($setting:expr; gate_default($value:expr) $($rest:tt)*) => {
        crate::config::settings_macro::forebay_words!($setting.default_for("gate", $value); $($rest)*)
    };
    ($setting:expr; electric($name:expr, $parser:expr, $remark:expr) $($rest:tt)*) => {
        crate::config::settings_macro::forebay_words!(
            $setting.import(&crate::config::imported_variables::ELECTRIC_VARIABLES, $name, $parser, $remark);
            $($rest)*
        )
    };
    ($setting:expr; dsql($name:expr, $parser:expr, $remark:expr) $($rest:tt)*) => {
        crate::config::settings_macro::forebay_words!(
            $setting.import(&crate::config::imported_variables::DSQL_VARIABLES, $name, $parser, $remark);
            $($rest)*
        )
    };
    ($setting:expr; opentelemetry($name:expr) $($rest:tt)*) => {
        crate::config::settings_macro::forebay_words!(
            $setting.import(
                &crate::config::imported_variables::OPENTELEMETRY_VARIABLES,
                $name,
                crate::config::imported_variables::text,
                "",
            );
            $($rest)*
        )
    };
    ($setting:expr; $word:ident $arguments:tt $($rest:tt)*) => {
        crate::config::settings_macro::forebay_words!($setting.$word $arguments; $($rest)*)
    };
}

pub(super) use {forebay_words, settings};

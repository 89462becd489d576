//! Settings of a program, each declared once.
//!
//! A declaration has section, key, type, default, bounds, flag, description, and whether SIGHUP
//! applies a change. From it follow the key of the config file (TOML), the environment variable,
//! the flag with its help (clap), the check of a value and its error, the list of effective
//! settings with their origins, the example file, and the tables of the documentation.
//!
//! ```
//! use std::net::SocketAddr;
//! use std::path::Path;
//! use std::time::Duration;
//!
//! use forebay_settings::{CommandDeclaration, SettingLayers};
//! use forebay_settings::{command_settings, example_file, settings};
//!
//! settings! {
//!     /// The HTTP interface.
//!     HttpSection: "http" {
//!         /// Address for clients.
//!         listen: SocketAddr = "127.0.0.1:8080", flag("--listen", "IP:PORT");
//!
//!         /// Time until an idle connection is closed.
//!         idle_timeout_ms: Duration = 30_000, bounds(100, 60_000);
//!     }
//! }
//!
//! command_settings! {
//!     /// Settings of `shop serve`.
//!     ServeSettings: "shop" "serve" {
//!         http: HttpSection,
//!     }
//! }
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! const SERVE: CommandDeclaration = CommandDeclaration::of::<ServeSettings>();
//! let mut layers = SettingLayers::new(SERVE);
//! layers.text("[http]\nidle_timeout_ms = 50\n", Path::new("shop.toml"))?; // or `file`
//! let error = ServeSettings::read(&layers).unwrap_err().to_string();
//! assert_eq!(
//!     error,
//!     "http.idle_timeout_ms = \"50\" (from shop.toml): must be 100 to 60000 milliseconds"
//! );
//!
//! layers.environment([("SHOP_HTTP_IDLE_TIMEOUT_MS", "500")])?; // or `std::env::vars_os()`
//! let settings = ServeSettings::read(&layers)?;
//! assert_eq!(settings.http.idle_timeout_ms, Duration::from_millis(500));
//! assert!(example_file(SERVE).contains("# Address for clients.\nlisten = \"127.0.0.1:8080\"\n"));
//! # Ok(())
//! # }
//! ```
//!
//! # Picture
//! ```text
//! settings! ─▶ Section, Setting ─▶ CommandDeclaration ─┬─▶ example_file, reference_table
//!                                                      ├─▶ SettingFlags (clap): --help
//!   file ─▶ other programs' variables ─▶ variables ─▶ flags
//!     └───────────┴───────────────────────┴────────────┴─▶ SettingLayers
//!                                                            ├─▶ read: checked values, ValueError
//!                                                            ├─▶ EffectiveSettings
//!                                                            └─▶ ExplicitSettings: what changed
//! ```
//! Order of precedence, weakest first: defaults, the config file, variables of other programs, the
//! program's own variables, flags. The layers may be added in any order.
//!
//! # Invariants and their tests
//!
//! - Variables override the file, and flags override variables.
//!   `variables_override_the_file_and_flags_override_variables`,
//!   `a_variable_of_another_program_overrides_the_file_and_our_own_overrides_it`,
//!   `the_order_of_the_calls_does_not_matter`
//! - An unknown key or variable is an error that names it, and a similar one.
//!   `an_unknown_key_is_reported_with_its_line_and_a_suggestion`,
//!   `an_unknown_variable_is_reported_with_a_suggestion`,
//!   `variables_of_kubernetes_services_are_ignored`
//! - An invalid value is an error that names its key, its origin and a valid value.
//!   `an_invalid_value_is_reported_with_key_origin_and_a_valid_value`
//! - A setting accepts the same values from the file, a variable and a flag.
//!   `a_variable_is_parsed_as_the_type_of_its_setting`, `a_flag_has_the_type_of_its_setting`
//! - The value of a secret is never printed: not in errors, not in `Debug` output, and not in the
//!   list of effective settings.
//!   `an_error_about_the_file_does_not_quote_a_possible_password`,
//!   `every_key_is_listed_with_its_origin_and_secrets_are_hidden`,
//!   `changed_keys_are_listed_and_values_are_not_printed`, `values_of_flags_are_not_printed`,
//!   `errors_of_a_programs_own_secret_type_do_not_quote_it`
//! - The end of a key is the unit of a duration. `the_end_of_the_key_is_the_unit_of_a_duration`
//! - The values of the example file are the defaults.
//!   `the_values_of_the_example_are_the_defaults`, `the_default_is_that_of_the_command`
//! - A variable of another program that has no effect is reported with the reason.
//!   `variables_without_effect_are_reported_with_the_reason`
//!
//! Out of scope: applying a change on SIGHUP, and checks of several settings together. The program
//! does both. [`SettingLayers::error`] makes an error with the origin of the value.
//!
//! # Where to look
//! | topic | file |
//! |---|---|
//! | syntax of declarations | `settings_macro.rs` |
//! | what a declaration can have | `setting.rs` |
//! | types of values | `setting_value.rs`, `secret_text.rs` |
//! | a command and its sections | `command_settings.rs` |
//! | file, environment and flags | `setting_layers.rs`, `config_file.rs`, `setting_flags.rs` |
//! | variables of other programs | `imported_variables.rs` |
//! | origins and errors | `setting_origin.rs`, `value_error.rs` |
//! | suggestions for misspelt names | `nearest.rs` |
//! | effective settings | `effective_settings.rs` |
//! | differences between two loads | `explicit_settings.rs` |
//! | example file; tables of the documentation | `example_file.rs`; `reference.rs` |
//!
//! # Decisions
//! - Declarations are constants, and a macro makes them. The help of a flag needs no value, and an
//!   unused setting is a warning of the compiler.
//! - [`SettingValue`] and [`SettingChoice`] have a marker type, so that a program can implement
//!   them for types of other crates in spite of the orphan rule.
//! - A value stays TOML until [`SettingLayers::read`]. A wrong type is reported where the value is
//!   read, with line and column. A value out of bounds is reported only if no layer overrides it.

mod command_settings;
mod config_file;
mod effective_settings;
mod example_file;
mod explicit_settings;
mod imported_variables;
mod nearest;
mod reference;
mod secret_text;
mod setting;
mod setting_flags;
mod setting_layers;
#[cfg(test)]
mod setting_layers_tests;
mod setting_origin;
mod setting_value;
#[cfg(test)]
mod setting_value_tests;
mod settings_macro;
#[cfg(test)]
mod test_program;
mod value_error;

pub use command_settings::{CommandDeclaration, CommandSettings};
pub use effective_settings::{EffectiveSettings, to_toml};
pub use example_file::example_file;
pub use explicit_settings::ExplicitSettings;
pub use imported_variables::{
    Import, ImportSource, ImportedVariable, VariableLookup, VariableNotice, VariableParser, verbatim,
};
pub use nearest::{Suggestion, nearest};
pub use reference::reference_table;
pub use secret_text::SecretText;
pub use setting::{DefaultValue, Reload, Section, Setting, SettingKind, TextRule};
pub use setting_flags::SettingFlags;
pub use setting_layers::{LayerError, SettingLayers};
pub use setting_origin::SettingOrigin;
pub use setting_value::{
    ByChoice, InvalidValue, Optional, OptionalAddress, OwnType, SettingChoice, SettingField, SettingUnit,
    SettingValue,
};
pub use toml::Value;
pub use value_error::ValueError;

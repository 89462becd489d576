//! Macros for declarations: [`settings!`] for a section, [`command_settings!`] for a command.

/// Declares the settings of a section.
///
/// ```text
/// settings! {
///     /// Description of the section.
///     NameOfTheStruct: "section" {
///         /// Description of the setting. The first sentence is the help of its flag.
///         key: Type = default, method(argument), method(argument);
///     }
/// }
/// ```
///
/// This defines a struct with a field for each setting, and two items of it. `SECTION` has the
/// declarations. `read` returns the checked values. An `Option` is for a setting without a
/// default. `setting_value.rs` lists the types, and [`Setting`](super::setting::Setting) the
/// methods. The compiler warns of a setting that the program does not use.
macro_rules! settings {
    (
        $(#[doc = $about:literal])+
        $name:ident: $section:literal {
            $(
                $(#[doc = $doc:literal])+
                $key:ident: $type:ty $(= $default:expr)? $(, $method:ident($($argument:expr),* $(,)?))*;
            )+
        }
    ) => {
        $(#[doc = $about])+
        #[derive(Debug, Clone)]
        pub(crate) struct $name {
            $($(#[doc = $doc])+ pub(crate) $key: $type,)+
        }

        impl $name {
            pub(crate) const SECTION: crate::config::setting::Section = crate::config::setting::Section {
                name: $section,
                doc: &[$($about),+],
                settings: &[$(
                    crate::config::setting::Setting::new::<$type>(
                        concat!($section, ".", stringify!($key)),
                        &[$($doc),+],
                    )
                    $(.default(|| toml::Value::from($default)))?
                    $(.$method($($argument),*))*
                ),+],
            };

            /// Returns the checked values.
            pub(crate) fn read(
                layers: &crate::config::SettingLayers,
            ) -> Result<$name, crate::config::ValueError> {
                Ok($name { $($key: layers.read(concat!($section, ".", stringify!($key)))?,)+ })
            }
        }
    };
}

/// Declares the sections of a command, in the order of its config file.
macro_rules! command_settings {
    (
        $(#[doc = $about:literal])+
        $name:ident: $command:literal {
            $($field:ident: $section:ident,)+
        }
    ) => {
        $(#[doc = $about])+
        #[derive(Debug, Clone)]
        pub(crate) struct $name {
            $(pub(crate) $field: $section,)+
        }

        impl crate::config::CommandSettings for $name {
            const NAME: &'static str = $command;
            const SECTIONS: &'static [crate::config::setting::Section] = &[$($section::SECTION),+];
        }

        impl $name {
            /// Returns the checked values of all sections.
            pub(crate) fn read(
                layers: &crate::config::SettingLayers,
            ) -> Result<$name, crate::config::ValueError> {
                Ok($name { $($field: $section::read(layers)?,)+ })
            }
        }
    };
}

pub(super) use {command_settings, settings};

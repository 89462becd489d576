//! Macros for declarations: [`settings!`](crate::settings!) for a section,
//! [`command_settings!`](crate::command_settings!) for a command.

/// Declares the settings of a section.
///
/// ```text
/// settings! {
///     /// Description of the section.
///     NameOfTheStruct: "section" {
///         /// Description of the setting. The first sentence is the help of its flag.
///         key: Type = default, word(argument), word(argument);
///     }
/// }
/// ```
///
/// This defines a struct with a field for each setting, and two items of it. `SECTION` has the
/// declarations. `read` returns the checked values. All are `pub(crate)`. An `Option` is for a
/// setting without a default. A type is a [`SettingValue`](crate::SettingValue). A word is a method
/// of [`Setting`](crate::Setting). The compiler warns of a setting that the program does not use.
///
/// These declarations don't compile: a `Duration` whose key doesn't end with `_ms` or `_s`, and a
/// secret with a default.
///
/// ```compile_fail
/// forebay_settings::settings! {
///     /// The cart.
///     CartSection: "cart" {
///         /// Time until an unused cart is emptied.
///         lifetime: std::time::Duration = 60_000;
///     }
/// }
/// # fn main() { CartSection::SECTION; }
/// ```
///
/// ```compile_fail
/// forebay_settings::settings! {
///     /// The till.
///     TillSection: "till" {
///         /// Code of the drawer.
///         code: Option<forebay_settings::SecretText> = "1234";
///     }
/// }
/// # fn main() { TillSection::SECTION; }
/// ```
///
/// # Words of a program
/// A program can add words of its own. `words [path::to::a_macro];` before the declaration names a
/// macro. It gets a [`Setting`](crate::Setting), `;`, and all words of the setting, each with its
/// arguments. It returns the setting after all words.
///
/// ```
/// macro_rules! shop_words {
///     ($setting:expr;) => { $setting };
///     // A word of the program: a number of items.
///     ($setting:expr; items($max:expr) $($rest:tt)*) => {
///         shop_words!($setting.bounds(1, $max); $($rest)*)
///     };
///     ($setting:expr; $word:ident $arguments:tt $($rest:tt)*) => {
///         shop_words!($setting.$word $arguments; $($rest)*)
///     };
/// }
///
/// forebay_settings::settings! {
///     words [shop_words];
///     /// The cart.
///     CartSection: "cart" {
///         /// Maximum number of items.
///         max_items: u32 = 50, items(1_000), flag("--max-items", "N");
///     }
/// }
/// # fn main() {
/// assert!(CartSection::SECTION.settings[0].description().ends_with("Allowed: 1 to 1000."));
/// # }
/// ```
#[macro_export]
macro_rules! settings {
    (words [$($words:tt)+]; $($section:tt)+) => {
        $crate::settings! { @section [$($words)+] $($section)+ }
    };
    (
        @section $words:tt
        $(#[doc = $about:literal])+
        $name:ident: $section:literal {
            $(
                $(#[doc = $doc:literal])+
                $key:ident: $type:ty $(= $default:expr)? $(, $word:ident($($argument:expr),* $(,)?))*;
            )+
        }
    ) => {
        $(#[doc = $about])+
        #[derive(Debug, Clone)]
        pub(crate) struct $name {
            $($(#[doc = $doc])+ pub(crate) $key: $type,)+
        }

        impl $name {
            /// Declarations of the settings.
            pub(crate) const SECTION: $crate::Section = $crate::Section::new(
                $section,
                &[$($about),+],
                &[$(
                    $crate::settings!(
                        @words $words
                        $crate::Setting::new::<$type, _>(
                            concat!($section, ".", stringify!($key)),
                            &[$($doc),+],
                        )
                        $(.default(|| $crate::Value::from($default)))?;
                        $($word($($argument),*))*
                    )
                ),+],
            );

            /// Returns the checked values.
            pub(crate) fn read(layers: &$crate::SettingLayers) -> Result<$name, $crate::ValueError> {
                Ok($name { $($key: layers.read(concat!($section, ".", stringify!($key)))?,)+ })
            }
        }
    };
    (@words [] $setting:expr; $($word:ident $arguments:tt)*) => {
        $setting $(.$word $arguments)*
    };
    (@words [$($words:tt)+] $setting:expr; $($all:tt)*) => {
        $($words)+!($setting; $($all)*)
    };
    ($($section:tt)+) => {
        $crate::settings! { @section [] $($section)+ }
    };
}

/// Declares the sections of a command, in the order of its config file.
///
/// ```text
/// command_settings! {
///     /// Settings of `program command`.
///     NameOfTheStruct: "program" "command", imports(&SOURCE, &SOURCE) {
///         field: SectionStruct,
///     }
/// }
/// ```
///
/// The command is left out for a program without commands. `imports` is optional: it lists the
/// other programs whose variables are accepted ([`ImportSource`](crate::ImportSource)).
///
/// This defines a struct with a field for each section. It implements
/// [`CommandSettings`](crate::CommandSettings), and `read` returns the checked values of all
/// sections. All are `pub(crate)`.
#[macro_export]
macro_rules! command_settings {
    (
        $(#[doc = $about:literal])+
        $name:ident: $program:literal $($command:literal)? $(, imports($($source:expr),+ $(,)?))? {
            $($field:ident: $section:ident,)+
        }
    ) => {
        $(#[doc = $about])+
        #[derive(Debug, Clone)]
        pub(crate) struct $name {
            $(pub(crate) $field: $section,)+
        }

        impl $crate::CommandSettings for $name {
            const PROGRAM: &'static str = $program;
            const NAME: &'static str = concat!($($command)?);
            const SECTIONS: &'static [$crate::Section] = &[$($section::SECTION),+];
            const IMPORTS: &'static [&'static $crate::ImportSource] = &[$($($source),+)?];
        }

        impl $name {
            /// Returns the checked values of all sections.
            pub(crate) fn read(layers: &$crate::SettingLayers) -> Result<$name, $crate::ValueError> {
                Ok($name { $($field: $section::read(layers)?,)+ })
            }
        }
    };
}

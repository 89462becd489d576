//! Values of Postgres types: parsed from text, compared, computed, cast and formatted as Postgres
//! does.
//!
//! ```
//! use forebay_values::{Arithmetic, Scalar, SqlValue, ValueType};
//!
//! const NUMERIC: ValueType = ValueType::Scalar(Scalar::Numeric);
//! let parse = |text| SqlValue::parse(text, NUMERIC, true); // as Postgres 16 and newer
//! let quotient = parse("10")?.compute(Arithmetic::Divide, parse("3.00")?, Scalar::Numeric)?;
//! assert_eq!(quotient.into_text(NUMERIC), "3.3333333333333333");
//! assert!(parse("2.50")?.compare(&parse("2.5")?, false).is_eq());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! [`SqlValue`] is a value, [`ValueType`] its type. The modules [`json`] and [`like`] work on texts
//! alone.
//!
//! ```text
//! text ──▶ SqlValue::parse ──▶ SqlValue ──▶ into_text ──▶ text
//!                                │   ▲
//!                 compare  ◀─────┤   │
//!                 json, like ◀───┘   └── compute, cast, fitted, clock_part, Array, Range, …
//! ```
//!
//! Texts are written under these settings: `bytea_output = hex`, `DateStyle = ISO`,
//! `TimeZone = UTC`, `extra_float_digits = 1`, `IntervalStyle = iso_8601`. The encoding is UTF8.
//!
//! # Invariants and their tests
//!
//! Invariant: parsing, formatting, comparing and computing give the result or the error of Postgres
//! 15 to 18. An operation fails with SQLSTATE `0A000` where they, or collation providers, differ.
//! Enforced by: the tests of `forebay-filter`, which evaluate random clauses on real servers. This
//! crate's own tests need no server.
//! Out of scope: NULL, which is `None`; whether two types have an operator, which the caller
//! checks; collations that don't order by bytes; I/O, clocks and randomness.
//!
//! - Values agree with Postgres 15 and 18 in random clauses (tests of `forebay-filter`).
//!   `random_clauses_agree_with_postgres_15`, `random_clauses_agree_with_postgres_18`,
//!   `jsonb_agrees_under_every_collation`
//! - Dates, times and intervals of any form are read as by Postgres (test of `forebay-filter`).
//!   `texts_of_dates_and_times_are_read_as_by_postgres`
//! - Errors of texts have the messages of Postgres (test of `forebay-filter`).
//!   `errors_have_the_messages_of_postgres`
//! - No text causes a panic, and the written text of a value parses to an equal value.
//!   `no_text_causes_a_panic_and_written_texts_are_parsed_again`
//! - Arithmetic of numerics is exact, and a quotient has the scale of Postgres.
//!   `arithmetic_agrees_with_integers`, `quotients_have_postgres_scale`
//! - A letter changes its case only if all collation providers map it alike.
//!   `letters_change_only_where_all_collations_agree`
//! - A lookup in jsonb returns a slice of the text.
//!   `lookups_return_slices_of_the_text`
//! - LIKE and jsonb containment take bounded time, whatever the operands.
//!   `many_wildcards_neither_recurse_nor_explode`,
//!   `a_long_search_is_refused_after_a_bounded_number_of_steps`,
//!   `deep_and_quadratic_containment_is_refused_in_bounded_time`
//! - Containment and overlap of long arrays, and `?|` and `?&` with many names, take few steps.
//!   `ten_thousand_elements_are_compared_with_ten_thousand_in_few_steps`,
//!   `ten_thousand_names_are_looked_up_in_few_steps`
//! - Comparing a text of a row with a constant allocates no memory (test of `forebay-filter`).
//!   `comparing_a_column_with_a_constant_allocates_nothing`
//!
//! # Where to look
//!
//! | topic | file |
//! |---|---|
//! | values, comparison | `sql_value.rs` |
//! | types, their names and oids | `scalar.rs` |
//! | texts to values, values to texts | `input.rs`, `number_text.rs`, `output.rs` |
//! | why a text is no value, why an operation fails | `input_error.rs`, `eval_error.rs` |
//! | operators of numbers; of dates and times | `arithmetic.rs`, `clock_arithmetic.rs` |
//! | casts, lengths and precisions | `cast.rs` |
//! | `numeric` | `numeric/` |
//! | dates, times, intervals as Postgres writes them | `datetime.rs`, `interval.rs`, `calendar.rs` |
//! | dates, times, intervals in all other forms, zones | `clock_text/` |
//! | `extract`, `date_part`, `date_trunc` | `clock_part.rs`, `clock_field.rs` |
//! | `make_date`, `make_time`, `make_timestamp`; `age`, `date_bin` | `clock_fields.rs`, `clock_span.rs` |
//! | fields of interval types | `interval_fields.rs` |
//! | arrays; lookups in them | `array.rs`, `array_input.rs`; `array_set.rs` |
//! | ranges; those made of others; multiranges | `range.rs`; `range_arithmetic.rs`; `multirange.rs` |
//! | `bytea`; `inet`, `cidr`, `macaddr` | `bytes.rs`; `network.rs`, `ipv6_text.rs` |
//! | jsonb, without a tree | `json/` |
//! | LIKE | `like.rs` |
//! | collations, lower() and upper() | `collation.rs`, `letter_case.rs` |
//!
//! # Decisions
//!
//! - This crate has its own `numeric`: no decimal crate computes the scale of a quotient as
//!   Postgres does (`numeric/mod.rs`).
//! - [`SqlValue`] doesn't implement `Ord`: values of different types have no order, and `==`
//!   distinguishes 1.0 from 1.00, as formatting does.
//! - Operations panic on types that Postgres has no operator for. A caller with typed expressions
//!   never gets there, and an error would hide its bug.

#![forbid(unsafe_code)]

mod arithmetic;
mod array;
mod array_input;
mod array_set;
mod bytes;
mod calendar;
mod cast;
mod clock_arithmetic;
mod clock_field;
mod clock_fields;
mod clock_part;
mod clock_span;
mod clock_text;
mod collation;
mod datetime;
mod eval_error;
mod input;
mod input_error;
mod interval;
mod interval_fields;
mod ipv6_text;
pub mod json;
mod letter_case;
pub mod like;
mod multirange;
mod network;
mod number_text;
mod numeric;
mod output;
mod range;
mod range_arithmetic;
mod scalar;
mod sql_value;

pub use arithmetic::Arithmetic;
pub use array::{Array, ArrayEnd, Dimension};
pub use cast::TypeModifier;
pub use clock_text::zone_offset;
pub use collation::Collation;
pub use datetime::{Date, Time, Timestamp, Timetz};
pub use eval_error::EvalError;
pub use input_error::InputError;
pub use interval::Interval;
pub use interval_fields::IntervalFields;
pub use letter_case::{Casing, LetterCase};
pub use multirange::Multirange;
pub use network::{Inet, InetOperator};
pub use numeric::{Decimal, Numeric};
pub use range::{Range, RangeFunction, RangeOperator};
pub use range_arithmetic::RangeArithmetic;
pub use scalar::{Scalar, ValueType};
pub use sql_value::{SqlValue, compare_text, unpadded};

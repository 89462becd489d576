//! Fuzz target: texts of bytea. Run `cargo +nightly fuzz run bytea` in `crates/values`.

#![no_main]

#[path = "../check.rs"]
mod check;

libfuzzer_sys::fuzz_target!(|input: &[u8]| check::bytea(input));

//! Fuzz target: texts of numbers. Run `cargo +nightly fuzz run number` in `crates/values`.

#![no_main]

#[path = "../check.rs"]
mod check;

libfuzzer_sys::fuzz_target!(|input: &[u8]| check::number(input));

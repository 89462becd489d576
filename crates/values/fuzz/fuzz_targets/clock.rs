//! Fuzz target: texts of dates, times and intervals. Run `cargo +nightly fuzz run clock` in
//! `crates/values`.

#![no_main]

#[path = "../check.rs"]
mod check;

libfuzzer_sys::fuzz_target!(|input: &[u8]| check::clock(input));

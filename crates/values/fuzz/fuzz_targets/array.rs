//! Fuzz target: texts of arrays. Run `cargo +nightly fuzz run array` in `crates/values`.

#![no_main]

#[path = "../check.rs"]
mod check;

libfuzzer_sys::fuzz_target!(|input: &[u8]| check::array(input));

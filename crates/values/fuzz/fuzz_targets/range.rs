//! Fuzz target: texts of ranges. Run `cargo +nightly fuzz run range` in `crates/values`.

#![no_main]

#[path = "../check.rs"]
mod check;

libfuzzer_sys::fuzz_target!(|input: &[u8]| check::range(input));

//! Fuzz target: texts and patterns of LIKE. Run `cargo +nightly fuzz run like` in `crates/values`.

#![no_main]

#[path = "../check.rs"]
mod check;

libfuzzer_sys::fuzz_target!(|input: &[u8]| check::like(input));

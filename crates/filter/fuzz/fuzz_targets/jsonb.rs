//! Fuzz target: reads any text as jsonb. Run `cargo +nightly fuzz run jsonb` in `crates/filter`.

#![no_main]

#[path = "../check.rs"]
mod check;

libfuzzer_sys::fuzz_target!(|input: &[u8]| check::jsonb(input));

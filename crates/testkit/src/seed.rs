//! Chance that can be had again.

/// What a random test begins with: `FOREBAY_SEED`, or always the same. It should print it.
///
/// # Panics
/// When `FOREBAY_SEED` is no number.
pub fn seed() -> u64 {
    std::env::var("FOREBAY_SEED").map_or(20_261_116, |seed| seed.parse().expect("FOREBAY_SEED is a number"))
}

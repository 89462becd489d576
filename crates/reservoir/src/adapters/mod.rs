//! A reservoir under a pool of another make: the pool asks us for connections, and lets go of those that we wouldn't lend.
//!
//! Such a pool keeps what it got; the reservoir's bound, budget and rate hold all the same, because a guard counts as lent for
//! as long as the pool has it. Switch the pool's own lifetimes off: the reservoir's jitter is what keeps ends apart.

#[cfg(feature = "bb8")]
mod bb8;
#[cfg(feature = "deadpool")]
mod deadpool;

//! A reservoir under a pool of another make: the pool asks us for connections, and lets go of those that we wouldn't lend.
//!
//! Such a pool keeps what it got; the reservoir's bound, budget and rate hold all the same, because a guard counts as lent for
//! as long as the pool has it. Switch the pool's own lifetimes off: the reservoir's jitter is what keeps ends apart.

use crate::connect::Connection;
use crate::error::CheckoutError;
use crate::guard::Guard;
use crate::reservoir::View;

#[cfg(feature = "bb8")]
mod bb8;
#[cfg(feature = "deadpool")]
mod deadpool;

impl<C: Connection> View<C> {
    /// For a pool, which keeps it for as long as it lives: that is no leak.
    async fn checkout_to_keep(&self) -> Result<Guard<C>, CheckoutError> {
        self.checkout_by(None, self.patience()).await
    }
}

impl<C: Connection> Guard<C> {
    /// Before the next user of the pool: fit to be lent, and as clean as the reservoir would lend it.
    async fn clean(&mut self) -> Result<(), CheckoutError> {
        if self.is_fit() && self.reset().await { Ok(()) } else { Err(CheckoutError::Ended) }
    }
}

//! Clause turns: long clauses are parsed one after another, apart from other requests.
//!
//! A clause of 1 MiB takes a fraction of a second. Without turns, a few requests with such clauses
//! would delay all others.

use std::thread::available_parallelism;

use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::Semaphore;
use tokio::task::block_in_place;

use super::protocol::{RequestRefusal, TokenBearer};
use super::token_verifier::while_valid;

/// Maximum length of a clause with its parameters that is parsed without a turn, in bytes.
const MAX_SHORT_BYTES: usize = 32 << 10;

/// Turns for the parses of long clauses: one for each two CPUs.
#[derive(Debug)]
pub(crate) struct ClauseTurns(Semaphore);

impl Default for ClauseTurns {
    fn default() -> Self {
        let cpus = available_parallelism().map_or(1, usize::from);
        ClauseTurns(Semaphore::new(cpus.div_ceil(2)))
    }
}

impl ClauseTurns {
    /// Runs the parse of a clause. If the clause is long, waits for a turn first, and the thread's
    /// other tasks move to other threads.
    ///
    /// # Errors
    /// Fails if the bearer's token expires before the turn.
    pub(crate) async fn run<T>(
        &self,
        (clause, params): (Option<&str>, &[String]),
        bearer: Option<&TokenBearer>,
        parse: impl FnOnce() -> T,
    ) -> Result<T, RequestRefusal> {
        let bytes = clause.map_or(0, str::len) + params.iter().map(String::len).sum::<usize>();
        if bytes <= MAX_SHORT_BYTES {
            return Ok(parse());
        }
        let _turn = while_valid(bearer, self.0.acquire()).await?.expect("the semaphore is never closed");
        Ok(match Handle::current().runtime_flavor() {
            RuntimeFlavor::CurrentThread => parse(),
            _ => block_in_place(parse),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn only_long_clauses_take_turns() {
        let turns = Arc::new(ClauseTurns(Semaphore::new(1)));
        let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let long = || "x".repeat(MAX_SHORT_BYTES + 1);
        let mut parses = tokio::task::JoinSet::new();
        for _ in 0..4 {
            let (turns, now, most, clause) =
                (Arc::clone(&turns), Arc::clone(&now), Arc::clone(&most), long());
            parses.spawn(async move {
                let parse = || {
                    most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                    std::thread::sleep(Duration::from_millis(20));
                    now.fetch_sub(1, Ordering::SeqCst);
                };
                turns.run((Some(&clause), &[]), None, parse).await
            });
        }
        assert!(parses.join_all().await.iter().all(Result::is_ok));
        assert_eq!(most.load(Ordering::SeqCst), 1);
        let _taken = turns.0.acquire().await;
        assert_eq!(turns.run((Some("a = 1"), &["x".to_owned()]), None, || 7).await, Ok(7));
        let expired = TokenBearer { grants: [].into(), expires_at: Some(tokio::time::Instant::now()) };
        let refused = turns.run((None, &[long()]), Some(&expired), || 7).await;
        assert_eq!(refused.map_err(|refusal| refusal.as_str()), Err("expired"));
    }
}

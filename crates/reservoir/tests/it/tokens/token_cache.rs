//! Token cache.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use forebay_reservoir::{
    AuthSecret, AuthToken, PasswordFile, TokenCache, TokenError, TokenFuture, TokenProvider,
};
use tokio::sync::Semaphore;
use tokio::time::{advance, sleep};

use super::{TempFolder, secret};

const MINUTE: Duration = Duration::from_secs(60);
const SECOND: Duration = Duration::from_secs(1);

/// Provides numbered tokens, one per permit, and counts requests.
#[derive(Debug)]
struct NumberedTokens {
    requests: AtomicU32,
    refused: AtomicU32,
    permits: Semaphore,
    valid_for: Option<Duration>,
    /// Number of requests that fail first.
    fails: u32,
    panics: bool,
}

impl NumberedTokens {
    fn new(valid_for: Option<Duration>) -> Self {
        NumberedTokens {
            requests: AtomicU32::new(0),
            refused: AtomicU32::new(0),
            permits: Semaphore::new(1000),
            valid_for,
            fails: 0,
            panics: false,
        }
    }

    fn without_permits(self) -> Self {
        NumberedTokens { permits: Semaphore::new(0), ..self }
    }

    fn cached(self) -> (Arc<Self>, Arc<TokenCache<Arc<Self>>>) {
        let numbers = Arc::new(self);
        (numbers.clone(), Arc::new(TokenCache::new(numbers)))
    }

    fn requests(&self) -> u32 {
        self.requests.load(Ordering::Relaxed)
    }
}

impl TokenProvider for NumberedTokens {
    fn token(&self) -> TokenFuture<'_> {
        Box::pin(async {
            let number = self.requests.fetch_add(1, Ordering::Relaxed) + 1;
            self.permits.acquire().await.unwrap().forget();
            assert!(!self.panics || number > self.fails, "as the test wants it");
            if number <= self.fails {
                return Err(TokenError(format!("failure {number}")));
            }
            Ok(AuthToken { secret: AuthSecret::new(number.to_string()), valid_for: self.valid_for })
        })
    }

    fn refused(&self) {
        self.refused.fetch_add(1, Ordering::Relaxed);
    }
}

/// Returns the token's number and its remaining validity.
async fn number(cached: &impl TokenProvider) -> Result<(String, Option<Duration>), String> {
    let token = cached.token().await.map_err(|error| error.to_string())?;
    Ok((token.secret.reveal().to_string(), token.valid_for))
}

fn first(left: Duration) -> Result<(String, Option<Duration>), String> {
    Ok(("1".into(), Some(left)))
}

fn second(left: Duration) -> Result<(String, Option<Duration>), String> {
    Ok(("2".into(), Some(left)))
}

/// Spawns tasks that request a token; all of them wait.
async fn askers<P: TokenProvider>(
    count: usize,
    cached: &Arc<TokenCache<P>>,
) -> Vec<tokio::task::JoinHandle<Result<(String, Option<Duration>), String>>> {
    let ask = |_| {
        let cached = cached.clone();
        tokio::spawn(async move { number(&*cached).await })
    };
    let askers: Vec<_> = (0..count).map(ask).collect();
    sleep(Duration::from_millis(1)).await;
    assert!(askers.iter().all(|asker| !asker.is_finished()));
    askers
}

#[tokio::test(start_paused = true)]
async fn a_token_is_cached_for_80_percent_of_its_validity() {
    let (numbers, cached) = NumberedTokens::new(Some(15 * MINUTE)).cached();
    assert_eq!(number(&*cached).await, first(15 * MINUTE));
    advance(12 * MINUTE - SECOND).await;
    assert_eq!(number(&*cached).await, first(3 * MINUTE + SECOND));
    assert_eq!(numbers.requests(), 1);
    advance(SECOND).await;
    assert_eq!(number(&*cached).await, second(15 * MINUTE));
    assert_eq!(numbers.requests(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_token_of_unknown_validity_is_not_cached() {
    let (numbers, cached) = NumberedTokens::new(None).cached();
    assert_eq!(number(&*cached).await, Ok(("1".into(), None)));
    assert_eq!(number(&*cached).await, Ok(("2".into(), None)));
    assert_eq!(numbers.requests(), 2);
}

#[tokio::test]
async fn a_rotated_file_is_read_at_once_through_a_cache_too() {
    let folder = TempFolder::new();
    let cached = TokenCache::new(PasswordFile::new(folder.write("password", "hunter2")));
    assert_eq!(secret(&cached).await, "hunter2");
    folder.write("password", "hunter3");
    assert_eq!(secret(&cached).await, "hunter3");
}

#[tokio::test(start_paused = true)]
async fn concurrent_callers_share_one_request() {
    for valid_for in [Some(15 * MINUTE), None] {
        let (numbers, cached) = NumberedTokens::new(valid_for).without_permits().cached();
        let askers = askers(20, &cached).await;
        numbers.permits.add_permits(1);
        for asker in askers {
            assert_eq!(asker.await.unwrap(), Ok(("1".into(), valid_for)));
        }
        assert_eq!(numbers.requests(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_failure_is_shared_by_waiting_callers_and_not_cached() {
    let (numbers, cached) =
        NumberedTokens { fails: 1, ..NumberedTokens::new(Some(15 * MINUTE)) }.without_permits().cached();
    let askers = askers(20, &cached).await;
    numbers.permits.add_permits(1);
    for asker in askers {
        assert_eq!(asker.await.unwrap(), Err("failure 1".into()));
    }
    numbers.permits.add_permits(1);
    assert_eq!(number(&*cached).await, second(15 * MINUTE));
    assert_eq!(numbers.requests(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_dropped_caller_does_not_cancel_the_request() {
    let (numbers, cached) = NumberedTokens::new(Some(15 * MINUTE)).without_permits().cached();
    let mut askers = askers(20, &cached).await;
    // The first caller has started the request.
    for asker in askers.drain(..10) {
        asker.abort();
        assert!(asker.await.unwrap_err().is_cancelled());
    }
    numbers.permits.add_permits(1);
    for asker in askers {
        assert_eq!(asker.await.unwrap(), first(15 * MINUTE));
    }
    assert_eq!(numbers.requests(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_token_without_waiting_callers_is_cached() {
    let (numbers, cached) = NumberedTokens::new(Some(15 * MINUTE)).without_permits().cached();
    for asker in askers(3, &cached).await {
        asker.abort();
    }
    numbers.permits.add_permits(1);
    sleep(SECOND).await;
    assert_eq!(number(&*cached).await, first(15 * MINUTE - SECOND));
    assert_eq!(numbers.requests(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_request_that_panics_fails_its_callers_and_the_next_one_starts() {
    let (numbers, cached) =
        NumberedTokens { fails: 1, panics: true, ..NumberedTokens::new(Some(15 * MINUTE)) }
            .without_permits()
            .cached();
    let askers = askers(3, &cached).await;
    numbers.permits.add_permits(2);
    for asker in askers {
        assert_eq!(asker.await.unwrap(), Err("the request for a token broke off".into()));
    }
    assert_eq!(number(&*cached).await, second(15 * MINUTE));
}

#[tokio::test(start_paused = true)]
async fn a_request_that_hangs_times_out_and_the_next_one_starts() {
    let (numbers, cached) = NumberedTokens::new(Some(15 * MINUTE)).without_permits().cached();
    let begun = tokio::time::Instant::now();
    assert_eq!(number(&*cached).await, Err("no token within 30s".into()));
    assert!(begun.elapsed() < 31 * SECOND);
    numbers.permits.add_permits(1);
    assert_eq!(number(&*cached).await, second(15 * MINUTE));

    let hangs = TokenCache::new(NumberedTokens::new(None).without_permits()).timeout(SECOND);
    assert_eq!(number(&hangs).await, Err("no token within 1s".into()));
}

#[test]
fn a_request_ends_with_its_runtime_and_the_next_one_starts() {
    let (numbers, cached) = NumberedTokens::new(Some(15 * MINUTE)).without_permits().cached();
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let ended = runtime();
    ended.block_on(async { drop(askers(1, &cached).await) });
    drop(ended);
    numbers.permits.add_permits(1);
    let (number, _) = runtime().block_on(number(&*cached)).unwrap();
    assert_eq!((number.as_str(), numbers.requests()), ("2", 2));
}

#[tokio::test(start_paused = true)]
async fn a_refused_token_is_dropped_from_the_cache() {
    let (numbers, cached) = NumberedTokens::new(Some(15 * MINUTE)).cached();
    assert_eq!(number(&*cached).await, first(15 * MINUTE));
    (Box::new(cached.clone()) as Box<dyn TokenProvider>).refused();
    assert_eq!(numbers.refused.load(Ordering::Relaxed), 1);
    assert_eq!(number(&*cached).await, second(15 * MINUTE));
    assert_eq!(number(&*cached).await, second(15 * MINUTE));
}

#[tokio::test]
async fn a_cached_token_is_not_shown() {
    let token = AuthToken { secret: AuthSecret::new("hunter2"), valid_for: Some(MINUTE) };
    struct FixedToken(AuthToken);
    impl std::fmt::Debug for FixedToken {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("FixedToken")
        }
    }
    impl TokenProvider for FixedToken {
        fn token(&self) -> TokenFuture<'_> {
            Box::pin(async { Ok(self.0.clone()) })
        }
    }
    let cached = TokenCache::new(FixedToken(token));
    assert_eq!(cached.token().await.unwrap().secret.reveal(), "hunter2");
    let shown = format!("{cached:?} {cached:#?}");
    assert!(shown.contains("AuthSecret") && !shown.contains("hunter2"), "{shown}");
}

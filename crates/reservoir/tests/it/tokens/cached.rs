//! Tokens that are kept for a while.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use forebay_reservoir::{Asking, Cached, PasswordFile, Secret, Token, TokenError, TokenProvider};
use tokio::sync::Semaphore;
use tokio::time::{advance, sleep};

use super::{Folder, secret};

const MINUTE: Duration = Duration::from_secs(60);
const SECOND: Duration = Duration::from_secs(1);

/// Gives numbered tokens, each for a permit, and counts.
#[derive(Debug)]
struct Numbers {
    asked: AtomicU32,
    refused: AtomicU32,
    permits: Semaphore,
    good_for: Option<Duration>,
    /// How many requests fail first.
    fails: u32,
    panics: bool,
}

impl Numbers {
    fn new(good_for: Option<Duration>) -> Self {
        Numbers {
            asked: AtomicU32::new(0),
            refused: AtomicU32::new(0),
            permits: Semaphore::new(1000),
            good_for,
            fails: 0,
            panics: false,
        }
    }

    fn without_permits(self) -> Self {
        Numbers { permits: Semaphore::new(0), ..self }
    }

    fn cached(self) -> (Arc<Self>, Arc<Cached<Arc<Self>>>) {
        let numbers = Arc::new(self);
        (numbers.clone(), Arc::new(Cached::new(numbers)))
    }

    fn asked(&self) -> u32 {
        self.asked.load(Ordering::Relaxed)
    }
}

impl TokenProvider for Numbers {
    fn token(&self) -> Asking<'_> {
        Box::pin(async {
            let number = self.asked.fetch_add(1, Ordering::Relaxed) + 1;
            self.permits.acquire().await.unwrap().forget();
            assert!(!self.panics || number > self.fails, "as the test wants it");
            if number <= self.fails {
                return Err(TokenError(format!("failure {number}")));
            }
            Ok(Token { secret: Secret::new(number.to_string()), good_for: self.good_for })
        })
    }

    fn refused(&self) {
        self.refused.fetch_add(1, Ordering::Relaxed);
    }
}

/// The token's number, and how long it is still good.
async fn number(cached: &impl TokenProvider) -> Result<(String, Option<Duration>), String> {
    let token = cached.token().await.map_err(|error| error.to_string())?;
    Ok((token.secret.reveal().to_string(), token.good_for))
}

fn first(left: Duration) -> Result<(String, Option<Duration>), String> {
    Ok(("1".into(), Some(left)))
}

fn second(left: Duration) -> Result<(String, Option<Duration>), String> {
    Ok(("2".into(), Some(left)))
}

/// As many tasks that ask, all of them waiting.
async fn askers<P: TokenProvider>(
    count: usize,
    cached: &Arc<Cached<P>>,
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
async fn a_token_is_kept_for_four_fifths_of_its_life_and_says_how_much_is_left() {
    let (numbers, cached) = Numbers::new(Some(15 * MINUTE)).cached();
    assert_eq!(number(&*cached).await, first(15 * MINUTE));
    advance(12 * MINUTE - SECOND).await;
    assert_eq!(number(&*cached).await, first(3 * MINUTE + SECOND));
    assert_eq!(numbers.asked(), 1);
    advance(SECOND).await;
    assert_eq!(number(&*cached).await, second(15 * MINUTE));
    assert_eq!(numbers.asked(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_token_of_unknown_life_is_never_kept() {
    let (numbers, cached) = Numbers::new(None).cached();
    assert_eq!(number(&*cached).await, Ok(("1".into(), None)));
    assert_eq!(number(&*cached).await, Ok(("2".into(), None)));
    assert_eq!(numbers.asked(), 2);
}

#[tokio::test]
async fn a_rotated_file_is_read_at_once_through_a_cache_too() {
    let folder = Folder::new();
    let cached = Cached::new(PasswordFile::new(folder.write("password", "hunter2")));
    assert_eq!(secret(&cached).await, "hunter2");
    folder.write("password", "hunter3");
    assert_eq!(secret(&cached).await, "hunter3");
}

#[tokio::test(start_paused = true)]
async fn those_who_ask_together_share_one_request() {
    for good_for in [Some(15 * MINUTE), None] {
        let (numbers, cached) = Numbers::new(good_for).without_permits().cached();
        let askers = askers(20, &cached).await;
        numbers.permits.add_permits(1);
        for asker in askers {
            assert_eq!(asker.await.unwrap(), Ok(("1".into(), good_for)));
        }
        assert_eq!(numbers.asked(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_failure_is_shared_by_those_who_wait_and_not_kept() {
    let (numbers, cached) =
        Numbers { fails: 1, ..Numbers::new(Some(15 * MINUTE)) }.without_permits().cached();
    let askers = askers(20, &cached).await;
    numbers.permits.add_permits(1);
    for asker in askers {
        assert_eq!(asker.await.unwrap(), Err("failure 1".into()));
    }
    numbers.permits.add_permits(1);
    assert_eq!(number(&*cached).await, second(15 * MINUTE));
    assert_eq!(numbers.asked(), 2);
}

#[tokio::test(start_paused = true)]
async fn whoever_leaves_does_not_take_the_request_along() {
    let (numbers, cached) = Numbers::new(Some(15 * MINUTE)).without_permits().cached();
    let mut askers = askers(20, &cached).await;
    // The first is the one who asked.
    for asker in askers.drain(..10) {
        asker.abort();
        assert!(asker.await.unwrap_err().is_cancelled());
    }
    numbers.permits.add_permits(1);
    for asker in askers {
        assert_eq!(asker.await.unwrap(), first(15 * MINUTE));
    }
    assert_eq!(numbers.asked(), 1);
}

#[tokio::test(start_paused = true)]
async fn what_nobody_waits_for_any_more_is_kept_for_the_next() {
    let (numbers, cached) = Numbers::new(Some(15 * MINUTE)).without_permits().cached();
    for asker in askers(3, &cached).await {
        asker.abort();
    }
    numbers.permits.add_permits(1);
    sleep(SECOND).await;
    assert_eq!(number(&*cached).await, first(15 * MINUTE - SECOND));
    assert_eq!(numbers.asked(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_request_that_panics_leaves_nobody_waiting_and_makes_room_for_the_next() {
    let (numbers, cached) =
        Numbers { fails: 1, panics: true, ..Numbers::new(Some(15 * MINUTE)) }.without_permits().cached();
    let askers = askers(3, &cached).await;
    numbers.permits.add_permits(2);
    for asker in askers {
        assert_eq!(asker.await.unwrap(), Err("the request for a token broke off".into()));
    }
    assert_eq!(number(&*cached).await, second(15 * MINUTE));
}

#[tokio::test(start_paused = true)]
async fn a_request_that_hangs_ends_and_makes_room_for_the_next() {
    let (numbers, cached) = Numbers::new(Some(15 * MINUTE)).without_permits().cached();
    let begun = tokio::time::Instant::now();
    assert_eq!(number(&*cached).await, Err("no token within 30s".into()));
    assert!(begun.elapsed() < 31 * SECOND);
    numbers.permits.add_permits(1);
    assert_eq!(number(&*cached).await, second(15 * MINUTE));

    let hangs = Cached::new(Numbers::new(None).without_permits()).timeout(SECOND);
    assert_eq!(number(&hangs).await, Err("no token within 1s".into()));
}

#[test]
fn a_runtime_that_ends_takes_its_request_along_and_makes_room_for_the_next() {
    let (numbers, cached) = Numbers::new(Some(15 * MINUTE)).without_permits().cached();
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let ended = runtime();
    ended.block_on(async { drop(askers(1, &cached).await) });
    drop(ended);
    numbers.permits.add_permits(1);
    let (number, _) = runtime().block_on(number(&*cached)).unwrap();
    assert_eq!((number.as_str(), numbers.asked()), ("2", 2));
}

#[tokio::test(start_paused = true)]
async fn a_token_that_was_refused_is_forgotten() {
    let (numbers, cached) = Numbers::new(Some(15 * MINUTE)).cached();
    assert_eq!(number(&*cached).await, first(15 * MINUTE));
    (Box::new(cached.clone()) as Box<dyn TokenProvider>).refused();
    assert_eq!(numbers.refused.load(Ordering::Relaxed), 1);
    assert_eq!(number(&*cached).await, second(15 * MINUTE));
    assert_eq!(number(&*cached).await, second(15 * MINUTE));
}

#[tokio::test]
async fn what_is_kept_is_not_shown() {
    let token = Token { secret: Secret::new("hunter2"), good_for: Some(MINUTE) };
    struct Given(Token);
    impl std::fmt::Debug for Given {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("Given")
        }
    }
    impl TokenProvider for Given {
        fn token(&self) -> Asking<'_> {
            Box::pin(async { Ok(self.0.clone()) })
        }
    }
    let cached = Cached::new(Given(token));
    assert_eq!(cached.token().await.unwrap().secret.reveal(), "hunter2");
    let shown = format!("{cached:?} {cached:#?}");
    assert!(shown.contains("Secret") && !shown.contains("hunter2"), "{shown}");
}

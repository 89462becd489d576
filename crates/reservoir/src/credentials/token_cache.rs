//! Token cache: keeps a token for 80 % of its validity.
//!
//! Invariant: at most one request to the provider is in flight. It ends with a token, an error, or
//! its timeout. Concurrent callers share its result.
//! Enforced by: a request runs in its own task, so a caller that is dropped doesn't cancel it.
//! Dropping its `TokenRequest` allows the next request, also after a panic and when the runtime
//! ends.
//! Invariant: only tokens with a known validity are cached.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;

use super::{AuthToken, TokenError, TokenFuture, TokenProvider};

/// Default timeout of a request; longer than the timeouts of the providers in this crate.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(30);

/// Caches the tokens of another provider for 80 % of their validity. Concurrent callers share one
/// request.
///
/// Tokens of unknown validity and errors are not cached. A request continues when its callers are
/// dropped, and its token is cached.
///
/// ```
/// use std::time::Duration;
///
/// use forebay_reservoir::{TokenCache, PasswordCommand, TokenProvider};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let command = PasswordCommand::new("date").arg("+%N").valid_for(Duration::from_secs(900));
/// let tokens = TokenCache::new(command);
/// assert_eq!(tokens.token().await?.secret, tokens.token().await?.secret);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct TokenCache<P> {
    provider: Arc<P>,
    /// Each change is a single assignment, so a panic under the lock leaves a consistent state.
    state: Arc<Mutex<TokenCacheState>>,
    timeout: Duration,
}

impl<P: TokenProvider> TokenCache<P> {
    /// Creates a cache for the tokens of this provider.
    pub fn new(provider: P) -> Self {
        TokenCache { provider: Arc::new(provider), state: Arc::default(), timeout: DEFAULT_TIMEOUT }
    }

    /// Sets the timeout of a request. Default: 30 s. All callers wait for the same request.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    async fn fetch(&self) -> Result<AuthToken, TokenError> {
        let lookup = self.state.lock().lookup(Instant::now());
        let mut result = match lookup {
            CacheLookup::Hit(token) => return Ok(token),
            CacheLookup::Join(result) => result,
            // There is no await in between, so the request is always started.
            CacheLookup::Start(sender, result) => {
                let request = TokenRequest { state: self.state.clone(), result: sender };
                tokio::spawn(request.run(self.provider.clone(), self.timeout));
                result
            }
        };
        let result = result.wait_for(Option::is_some).await.map(|result| result.clone());
        match result {
            Ok(Some(Ok(cached))) => Ok(cached.token_at(Instant::now())),
            Ok(Some(Err(error))) => Err(error),
            Ok(None) | Err(_) => Err(TokenError("the request for a token broke off".into())),
        }
    }
}

impl<P: TokenProvider> TokenProvider for TokenCache<P> {
    fn token(&self) -> TokenFuture<'_> {
        Box::pin(self.fetch())
    }

    /// Drops the cached token.
    fn refused(&self) {
        self.state.lock().cached = None;
        self.provider.refused();
    }
}

type TokenResult = Option<Result<CachedToken, TokenError>>;

/// The cached token and the request in flight.
#[derive(Debug, Default)]
struct TokenCacheState {
    cached: Option<CachedToken>,
    request: Option<watch::Receiver<TokenResult>>,
}

/// Next step of a caller.
#[derive(Debug)]
enum CacheLookup {
    Hit(AuthToken),
    Join(watch::Receiver<TokenResult>),
    Start(watch::Sender<TokenResult>, watch::Receiver<TokenResult>),
}

impl TokenCacheState {
    fn lookup(&mut self, now: Instant) -> CacheLookup {
        if let Some(cached) = self.cached.as_ref().filter(|cached| cached.is_fresh(now)) {
            return CacheLookup::Hit(cached.token_at(now));
        }
        if let Some(request) = &self.request {
            return CacheLookup::Join(request.clone());
        }
        let (sender, result) = watch::channel(None);
        self.request = Some(result.clone());
        CacheLookup::Start(sender, result)
    }
}

/// A token and the time at which it was received.
#[derive(Debug, Clone)]
struct CachedToken {
    token: AuthToken,
    since: Instant,
}

impl CachedToken {
    fn is_fresh(&self, now: Instant) -> bool {
        self.token.valid_for.is_some_and(|valid_for| self.age(now) < valid_for / 5 * 4)
    }

    fn is_valid(&self, now: Instant) -> bool {
        self.token.valid_for.is_some_and(|valid_for| self.age(now) < valid_for)
    }

    fn token_at(&self, now: Instant) -> AuthToken {
        let valid_for = self.token.valid_for.map(|valid_for| valid_for.saturating_sub(self.age(now)));
        AuthToken { secret: self.token.secret.clone(), valid_for }
    }

    fn age(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.since)
    }
}

/// A request to the provider. Dropping it allows the next request.
struct TokenRequest {
    state: Arc<Mutex<TokenCacheState>>,
    result: watch::Sender<TokenResult>,
}

impl TokenRequest {
    async fn run<P: TokenProvider>(self, provider: Arc<P>, timeout: Duration) {
        let result = tokio::time::timeout(timeout, provider.token()).await;
        let result = result.unwrap_or_else(|_| Err(TokenError(format!("no token within {timeout:?}"))));
        let now = Instant::now();
        let mut state = self.state.lock();
        let result = match result {
            Ok(token) => Ok(CachedToken { token, since: now }),
            // A token that is due for refresh but still valid is better than none.
            Err(error) => state.cached.take().filter(|cached| cached.is_valid(now)).ok_or(error),
        };
        state.cached = result.as_ref().ok().filter(|cached| cached.token.valid_for.is_some()).cloned();
        drop(state);
        self.result.send_replace(Some(result));
    }
}

impl Drop for TokenRequest {
    fn drop(&mut self) {
        self.state.lock().request = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::credentials::AuthSecret;

    const MINUTE: Duration = Duration::from_secs(60);

    fn cached_token(valid_for: Option<Duration>, since: Instant) -> CachedToken {
        CachedToken { token: AuthToken { secret: AuthSecret::new("hunter2"), valid_for }, since }
    }

    #[test]
    fn a_token_is_fresh_for_80_percent_of_its_validity() {
        let now = Instant::now();
        let token = cached_token(Some(10 * MINUTE), now);
        assert!(token.is_fresh(now));
        assert!(token.is_fresh(now + 8 * MINUTE - Duration::from_nanos(1)));
        assert!(!token.is_fresh(now + 8 * MINUTE));
        assert!(cached_token(Some(Duration::MAX), now).is_fresh(now + 8 * MINUTE));
        assert!(!cached_token(Some(Duration::ZERO), now).is_fresh(now));
        assert!(!cached_token(None, now).is_fresh(now));
    }

    #[test]
    fn a_cached_token_reports_its_remaining_validity() {
        let now = Instant::now();
        let token = cached_token(Some(10 * MINUTE), now);
        assert_eq!(token.token_at(now).valid_for, Some(10 * MINUTE));
        assert_eq!(token.token_at(now + 3 * MINUTE).valid_for, Some(7 * MINUTE));
        assert_eq!(token.token_at(now + 11 * MINUTE).valid_for, Some(Duration::ZERO));
        assert_eq!(cached_token(None, now).token_at(now + MINUTE).valid_for, None);
    }

    #[test]
    fn the_first_caller_starts_a_request_and_the_others_join_it() {
        let (now, mut state) = (Instant::now(), TokenCacheState::default());
        assert!(matches!(state.lookup(now), CacheLookup::Start(..)));
        assert!(matches!(state.lookup(now), CacheLookup::Join(_)));
        state = TokenCacheState { cached: Some(cached_token(Some(10 * MINUTE), now)), request: None };
        assert!(
            matches!(state.lookup(now + MINUTE), CacheLookup::Hit(token) if token.valid_for == Some(9 * MINUTE))
        );
        assert!(matches!(state.lookup(now + 8 * MINUTE), CacheLookup::Start(..)));
        assert!(matches!(state.lookup(now + 8 * MINUTE), CacheLookup::Join(_)));
    }
}

//! A token that is kept for a while.
//!
//! Invariant: at most one request is under way, and it ends: with an answer, an error, or by its timeout. Whoever asks
//! meanwhile waits for that one.
//! Kept by: a request runs in a task of its own, so that no asker who leaves takes it along; its `Flight` makes room for the
//! next one when it is dropped, in a panic and when the runtime ends, too.
//! Invariant: only a token that says how long it is good is kept, and for four fifths of that.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use super::{Asking, Token, TokenError, TokenProvider};

/// More than the providers here need by themselves.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(30);

/// Keeps another provider's tokens for 80 % of the time that they are good, and asks for one at a time: whoever asks while a
/// request is under way gets that one's answer.
///
/// A token that doesn't say how long it is good isn't kept, and neither is an error. A request goes on when those who asked
/// have gone: what comes of it is kept for the next.
///
/// ```
/// use std::time::Duration;
///
/// use forebay_reservoir::{Cached, PasswordCommand, TokenProvider};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let command = PasswordCommand::new("date").arg("+%N").good_for(Duration::from_secs(900));
/// let tokens = Cached::new(command);
/// assert_eq!(tokens.token().await?.secret, tokens.token().await?.secret);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Cached<P> {
    provider: Arc<P>,
    desk: Arc<Mutex<Desk>>,
    timeout: Duration,
}

impl<P: TokenProvider> Cached<P> {
    /// Tokens of this provider.
    pub fn new(provider: P) -> Self {
        Cached { provider: Arc::new(provider), desk: Arc::default(), timeout: DEFAULT_TIMEOUT }
    }

    /// How long a request may take; 30 s by default. It bounds what one that hangs costs: all who ask wait for it.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    async fn ask(&self) -> Result<Token, TokenError> {
        let next = lock(&self.desk).next(Instant::now());
        let mut answer = match next {
            Next::Give(token) => return Ok(token),
            Next::Wait(answer) => answer,
            // Nothing is awaited in between: whoever is told to ask does.
            Next::Ask(sender, answer) => {
                let flight = Flight { desk: self.desk.clone(), answer: sender };
                tokio::spawn(flight.fly(self.provider.clone(), self.timeout));
                answer
            }
        };
        let answer = answer.wait_for(Option::is_some).await.map(|answer| answer.clone());
        match answer {
            Ok(Some(Ok(kept))) => Ok(kept.token_at(Instant::now())),
            Ok(Some(Err(error))) => Err(error),
            Ok(None) | Err(_) => Err(TokenError("the request for a token broke off".into())),
        }
    }
}

impl<P: TokenProvider> TokenProvider for Cached<P> {
    fn token(&self) -> Asking<'_> {
        Box::pin(self.ask())
    }

    /// Forgets the token that it keeps.
    fn refused(&self) {
        lock(&self.desk).kept = None;
        self.provider.refused();
    }
}

type Answer = Option<Result<Kept, TokenError>>;

/// What is kept, and what is under way.
#[derive(Debug, Default)]
struct Desk {
    kept: Option<Kept>,
    flight: Option<watch::Receiver<Answer>>,
}

/// What someone who asks has to do.
#[derive(Debug)]
enum Next {
    Give(Token),
    Wait(watch::Receiver<Answer>),
    Ask(watch::Sender<Answer>, watch::Receiver<Answer>),
}

impl Desk {
    fn next(&mut self, now: Instant) -> Next {
        if let Some(kept) = self.kept.as_ref().filter(|kept| kept.is_fresh(now)) {
            return Next::Give(kept.token_at(now));
        }
        if let Some(flight) = &self.flight {
            return Next::Wait(flight.clone());
        }
        let (sender, answer) = watch::channel(None);
        self.flight = Some(answer.clone());
        Next::Ask(sender, answer)
    }
}

/// A token, and since when it is as it says.
#[derive(Debug, Clone)]
struct Kept {
    token: Token,
    since: Instant,
}

impl Kept {
    fn is_fresh(&self, now: Instant) -> bool {
        self.token.good_for.is_some_and(|good_for| self.age(now) < good_for / 5 * 4)
    }

    fn is_good(&self, now: Instant) -> bool {
        self.token.good_for.is_some_and(|good_for| self.age(now) < good_for)
    }

    fn token_at(&self, now: Instant) -> Token {
        let good_for = self.token.good_for.map(|good_for| good_for.saturating_sub(self.age(now)));
        Token { secret: self.token.secret.clone(), good_for }
    }

    fn age(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.since)
    }
}

/// The right to ask, and the duty to answer.
struct Flight {
    desk: Arc<Mutex<Desk>>,
    answer: watch::Sender<Answer>,
}

impl Flight {
    async fn fly<P: TokenProvider>(self, provider: Arc<P>, timeout: Duration) {
        let answer = tokio::time::timeout(timeout, provider.token()).await;
        let answer = answer.unwrap_or_else(|_| Err(TokenError(format!("no token within {timeout:?}"))));
        let now = Instant::now();
        let mut desk = lock(&self.desk);
        let answer = match answer {
            Ok(token) => Ok(Kept { token, since: now }),
            // One that is due to be replaced is still better than none.
            Err(error) => desk.kept.take().filter(|kept| kept.is_good(now)).ok_or(error),
        };
        desk.kept = answer.as_ref().ok().filter(|kept| kept.token.good_for.is_some()).cloned();
        drop(desk);
        self.answer.send_replace(Some(answer));
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        lock(&self.desk).flight = None;
    }
}

fn lock(desk: &Mutex<Desk>) -> MutexGuard<'_, Desk> {
    // Every change of it is a single assignment: a panic leaves nothing half done.
    desk.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::credentials::Secret;

    const MINUTE: Duration = Duration::from_secs(60);

    fn kept(good_for: Option<Duration>, since: Instant) -> Kept {
        Kept { token: Token { secret: Secret::new("hunter2"), good_for }, since }
    }

    #[test]
    fn a_token_is_fresh_for_four_fifths_of_its_life() {
        let now = Instant::now();
        let token = kept(Some(10 * MINUTE), now);
        assert!(token.is_fresh(now));
        assert!(token.is_fresh(now + 8 * MINUTE - Duration::from_nanos(1)));
        assert!(!token.is_fresh(now + 8 * MINUTE));
        assert!(kept(Some(Duration::MAX), now).is_fresh(now + 8 * MINUTE));
        assert!(!kept(Some(Duration::ZERO), now).is_fresh(now));
        assert!(!kept(None, now).is_fresh(now));
    }

    #[test]
    fn a_kept_token_says_how_long_it_is_still_good() {
        let now = Instant::now();
        let token = kept(Some(10 * MINUTE), now);
        assert_eq!(token.token_at(now).good_for, Some(10 * MINUTE));
        assert_eq!(token.token_at(now + 3 * MINUTE).good_for, Some(7 * MINUTE));
        assert_eq!(token.token_at(now + 11 * MINUTE).good_for, Some(Duration::ZERO));
        assert_eq!(kept(None, now).token_at(now + MINUTE).good_for, None);
    }

    #[test]
    fn the_first_asks_and_the_others_wait_until_the_token_is_there_and_again_when_it_is_stale() {
        let (now, mut desk) = (Instant::now(), Desk::default());
        assert!(matches!(desk.next(now), Next::Ask(..)));
        assert!(matches!(desk.next(now), Next::Wait(_)));
        desk = Desk { kept: Some(kept(Some(10 * MINUTE), now)), flight: None };
        assert!(matches!(desk.next(now + MINUTE), Next::Give(token) if token.good_for == Some(9 * MINUTE)));
        assert!(matches!(desk.next(now + 8 * MINUTE), Next::Ask(..)));
        assert!(matches!(desk.next(now + 8 * MINUTE), Next::Wait(_)));
    }
}

//! A stream's socket, which its task shares with the topic that it follows.
//!
//! A task that is woken for an event costs a sixth of what the write of it does: nothing of it is in a cache. So a stream that has
//! nothing else to do lends its socket to the topic: whoever brings the news writes them, and the task sleeps on.
//!
//! Invariants: whoever writes holds the lock. While there is a loan and nothing is unsent, the topic may write what comes next, and
//! says in the loan how far it is; the tail takes the loan back whenever it is polled, so nothing is written twice or left out.
//! Kept by: only a tail makes a loan, for as long as it has nothing to yield; a loan names its tail, so that of another is left
//! alone. Where anything is unusual, the topic wakes the task, which goes on from what was written.
//! The task's lock is held while its body is polled, so locks are taken in this order: a desk's, then a topic's.

use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use tokio::net::TcpStream;

use crate::chunk::Batch;
use crate::outbox::{Lost, Outbox};
use crate::topic::{News, Progress};

#[derive(Debug)]
pub(crate) struct Outlet {
    pub(crate) stream: TcpStream,
    desk: Mutex<Desk>,
}

/// What belongs to whoever may write.
#[derive(Debug)]
pub(crate) struct Desk {
    pub(crate) outbox: Outbox,
    loan: Option<Loan>,
    /// How a write of the topic failed.
    pub(crate) lost: Option<Lost>,
}

#[derive(Debug)]
struct Loan {
    tail: TailId,
    progress: Progress,
}

/// Of one tail in this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TailId(u64);

/// What a tail finds that is polled for a lean stream.
struct Lender {
    outlet: Arc<Outlet>,
    loan: Option<Loan>,
}

thread_local! {
    /// Of the stream whose body this thread polls. A body is polled through whatever was put around it, which knows of no sockets.
    static LENDER: RefCell<Option<Lender>> = const { RefCell::new(None) };
}

/// The stream's body is polled no more, be it by a panic.
struct Polled;

impl Outlet {
    pub(crate) fn new(stream: TcpStream, outbox: Outbox) -> Outlet {
        Outlet { stream, desk: Mutex::new(Desk { outbox, loan: None, lost: None }) }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Desk> {
        self.desk.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Polls the stream's body, whose tail may take the loan back and make another.
    pub(crate) fn poll_body<R>(self: &Arc<Self>, desk: &mut Desk, poll: impl FnOnce() -> R) -> R {
        LENDER.set(Some(Lender { outlet: Arc::clone(self), loan: desk.loan.take() }));
        let _polled = Polled;
        let polled = poll();
        desk.loan = LENDER.take().and_then(|lender| lender.loan);
        polled
    }

    /// Writes what is new, if the tail has lent the socket. `false`: the stream's own task has to look.
    pub(crate) fn deliver(&self, tail: TailId, news: &News) -> bool {
        let mut desk = match self.desk.try_lock() {
            Ok(desk) => desk,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return false,
        };
        let Desk { outbox, loan, lost } = &mut *desk;
        let Some(loan) = loan.as_mut().filter(|loan| loan.tail == tail && lost.is_none()) else {
            return false;
        };
        if !outbox.is_empty() {
            return true; // the task looks when that is written
        }
        let Some(events) = news.since(&loan.progress) else { return false };
        let mut batch = Batch::of_this_thread();
        for event in events {
            if batch.is_full() {
                return false;
            }
            batch.push_chunk(event);
        }
        match outbox.write(&self.stream, &mut batch) {
            Ok(()) => {
                batch.keep();
                news.tell(&mut loan.progress);
                outbox.is_empty()
            }
            Err(failure) => {
                *lost = Some(failure);
                false
            }
        }
    }
}

impl TailId {
    pub(crate) fn new() -> TailId {
        static LAST: AtomicU64 = AtomicU64::new(0);
        TailId(LAST.fetch_add(1, Ordering::Relaxed))
    }
}

impl Desk {
    /// The body is gone, and with it whoever made a loan.
    pub(crate) fn recall(&mut self) {
        self.loan = None;
    }
}

impl Drop for Polled {
    fn drop(&mut self) {
        LENDER.take();
    }
}

/// What a tail has lent of the stream that this thread polls, and how far it is.
pub(crate) fn take_back(tail: TailId) -> Option<Progress> {
    // A thread that ends polls nothing, but may drop a tail.
    let taken = LENDER.try_with(|lender| {
        let mut lender = lender.borrow_mut();
        lender.as_mut()?.loan.take_if(|loan| loan.tail == tail)
    });
    Some(taken.ok()??.progress)
}

/// Lends the socket of the stream that this thread polls, if it is a lean one and another tail hasn't lent it.
pub(crate) fn lend(tail: TailId, progress: Progress) -> Option<Arc<Outlet>> {
    LENDER.with_borrow_mut(|lender| {
        let Lender { outlet, loan } = lender.as_mut()?;
        loan.is_none().then(|| {
            *loan = Some(Loan { tail, progress });
            Arc::clone(outlet)
        })
    })
}

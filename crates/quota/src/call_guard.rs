//! `CallGuard`: reports the end of a call to the core exactly once.

use std::sync::Arc;
use std::time::Instant;

use crate::core::member::QuotaMember;
use crate::member_runtime::{MemberRuntime, now};
use crate::store::StoreError;
use crate::take_future::TakeSender;

/// Reports the result of a call to the core.
pub(crate) type CompleteFn<T> = fn(&mut QuotaMember<TakeSender>, Result<T, String>, Instant);

/// Reports to the core when a call ends, even if its task is dropped before its first poll.
pub(crate) struct CallGuard<T> {
    pub(crate) runtime: Arc<MemberRuntime>,
    complete: Option<CompleteFn<T>>,
    deadline: Instant,
}

impl<T> CallGuard<T> {
    pub(crate) fn new(runtime: Arc<MemberRuntime>, complete: CompleteFn<T>, deadline: Instant) -> Self {
        CallGuard { runtime, complete: Some(complete), deadline }
    }

    pub(crate) fn finish(mut self, reply: Result<T, StoreError>) {
        self.report(reply.map_err(|error| error.to_string()));
    }

    fn report(&mut self, reply: Result<T, String>) {
        if let Some(complete) = self.complete.take() {
            self.runtime.update(|member, now| complete(member, reply, now));
            self.runtime.reply_received.notify_waiters();
        }
    }
}

impl<T> Drop for CallGuard<T> {
    fn drop(&mut self) {
        let why = match now() >= self.deadline {
            true => StoreError::Timeout(self.runtime.call_timeout).to_string(),
            false => "the call was dropped before its answer came; has its runtime ended?".into(),
        };
        self.report(Err(why));
    }
}

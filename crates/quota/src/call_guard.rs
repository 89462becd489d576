//! `CallGuard`: reports the end of a call to the core exactly once.

use std::sync::Arc;
use std::time::Instant;

use crate::core::member::{CallError, QuotaMember};
use crate::member_runtime::{MemberRuntime, now};
use crate::store::StoreError;
use crate::take_future::TakeSender;

/// Reports the result of a call to the core.
pub(crate) type CompleteFn<T> = fn(&mut QuotaMember<TakeSender>, Result<T, CallError>, Instant);

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
        self.report(reply.map_err(CallError::Store));
    }

    fn report(&mut self, reply: Result<T, CallError>) {
        if let Some(complete) = self.complete.take() {
            self.runtime.update(|member, now| complete(member, reply, now));
            self.runtime.reply_received.notify_waiters();
        }
    }
}

impl<T> Drop for CallGuard<T> {
    fn drop(&mut self) {
        let error = match now() >= self.deadline {
            true => CallError::Store(StoreError::Timeout(self.runtime.call_timeout)),
            false => CallError::Dropped,
        };
        self.report(Err(error));
    }
}

//! Dedicated connection, for commands that block it or change its state.

use std::time::Duration;

use crate::client::RedisClient;
use crate::command::{CommandBatch, RedisCommand};
use crate::config::Config;
use crate::core::link::State;
use crate::error::{ExecError, RedisConnectError};
use crate::reply::{FromReplies, FromReply};

/// A connection for one caller at a time: `BLPOP`, `XREAD BLOCK`, `WATCH`.
///
/// It has no response deadline: a blocking command waits as long as its own timeout says. Dropping
/// a call ends the connection, so that the server does not send an item to a dropped call.
/// The next call connects again. Connection state, such as watched keys, is lost with the
/// connection. After an [abort](RedisClient::abort) of its client, every call fails with
/// `Cancelled`.
#[derive(Debug)]
pub struct DedicatedConnection {
    client: RedisClient,
    /// True if a call was dropped. Its connection ends, even if the worker has not noticed yet.
    abandoned: bool,
}

impl RedisClient {
    /// Opens a dedicated connection to the same server.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let server = forebay_sandbox::Redis::start()?;
    /// # let client = forebay_redis::RedisClient::connect(server.url()).await?;
    /// # client.exec::<()>(("RPUSH", "jobs", "job")).await?;
    /// let mut queue = client.dedicated().await?;
    /// let (list, job): (String, String) = queue.exec(("BLPOP", "jobs", 0)).await?;
    /// assert_eq!((list.as_str(), job.as_str()), ("jobs", "job"));
    /// # Ok(())
    /// # }
    /// ```
    pub async fn dedicated(&self) -> Result<DedicatedConnection, RedisConnectError> {
        let config = Config {
            response_timeout: None,
            stall_timeout: None,
            close_timeout: Duration::ZERO,
            reconnect: None,
            dedicated: true,
            ..(**self.config()).clone()
        };
        Ok(DedicatedConnection { client: self.connect_dedicated(config).await?, abandoned: false })
    }
}

impl DedicatedConnection {
    /// Runs one command without a deadline.
    pub async fn exec<T: FromReply>(&mut self, command: impl RedisCommand) -> Result<T, ExecError> {
        let call = self.call().await;
        let result = call.client.exec(command).await;
        call.done();
        result
    }

    /// Runs several commands atomically. Fails with
    /// [`ReplyError::Aborted`](crate::ReplyError::Aborted) if a key watched on this connection was
    /// changed.
    pub async fn transaction<R: FromReplies>(
        &mut self,
        batch: impl CommandBatch<R>,
    ) -> Result<R::Results, ExecError> {
        let call = self.call().await;
        let result = call.client.transaction(batch).await;
        call.done();
        result
    }

    /// Reconnects if necessary. If that fails, the request returns the reason.
    async fn call(&mut self) -> DedicatedCall<'_> {
        let ended = matches!(self.client.state(), State::Failed | State::Closing | State::Closed);
        if (self.abandoned || ended) && !self.client.shared().inbox.is_aborted() {
            self.client.close().await;
            let _reported_by_the_request = self.client.reopen().await;
            self.abandoned = false;
        }
        DedicatedCall { client: &self.client, abandoned: &mut self.abandoned }
    }
}

/// Ends the connection when it is dropped, unless `done` was called.
struct DedicatedCall<'c> {
    client: &'c RedisClient,
    abandoned: &'c mut bool,
}

impl DedicatedCall<'_> {
    fn done(self) {
        std::mem::forget(self);
    }
}

impl Drop for DedicatedCall<'_> {
    fn drop(&mut self) {
        *self.abandoned = true;
        self.client.shared().inbox.request_close();
    }
}

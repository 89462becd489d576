//! A connection of one's own, for commands that block it or leave something behind on it.

use std::time::Duration;

use crate::client::Client;
use crate::command::{Batch, Command};
use crate::config::Config;
use crate::core::link::State;
use crate::error::{ConnectError, ExecError};
use crate::reply::{FromReplies, FromReply};

/// A connection for one caller at a time: `BLPOP`, `XREAD BLOCK`, `WATCH`.
///
/// It has no response deadline: a blocking command waits as long as it says. Dropping a call ends the connection, so that
/// the server doesn't hand an item to nobody; the next call connects again. What is left behind on the connection, such as
/// watched keys, ends with it.
#[derive(Debug)]
pub struct Dedicated {
    client: Client,
    /// A call was dropped, and its connection with it, whether or not the worker knows already.
    abandoned: bool,
}

impl Client {
    /// Makes a connection of its own to the same server.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let server = forebay_sandbox::Redis::start()?;
    /// # let client = forebay_redis::Client::connect(server.url()).await?;
    /// # client.exec::<()>(("RPUSH", "jobs", "job")).await?;
    /// let mut queue = client.dedicated().await?;
    /// let (list, job): (String, String) = queue.exec(("BLPOP", "jobs", 0)).await?;
    /// assert_eq!((list.as_str(), job.as_str()), ("jobs", "job"));
    /// # Ok(())
    /// # }
    /// ```
    pub async fn dedicated(&self) -> Result<Dedicated, ConnectError> {
        let config = Config {
            response_timeout: None,
            stall_timeout: None,
            close_timeout: Duration::ZERO,
            reconnect: None,
            dedicated: true,
            ..(**self.config()).clone()
        };
        Ok(Dedicated { client: Client::connect(config).await?, abandoned: false })
    }
}

impl Dedicated {
    /// Runs one command, however long it takes.
    pub async fn exec<T: FromReply>(&mut self, command: impl Command) -> Result<T, ExecError> {
        let call = self.call().await;
        let result = call.client.exec(command).await;
        call.done();
        result
    }

    /// Runs several commands as one unit. With keys watched on this connection it fails with
    /// [`ReplyError::Aborted`](crate::ReplyError::Aborted) if one of them was changed.
    pub async fn transaction<R: FromReplies>(
        &mut self,
        batch: impl Batch<R>,
    ) -> Result<R::Results, ExecError> {
        let call = self.call().await;
        let result = call.client.transaction(batch).await;
        call.done();
        result
    }

    /// Connects again if need be. If that fails, the request will say why.
    async fn call(&mut self) -> Call<'_> {
        if self.abandoned || matches!(self.client.state(), State::Failed | State::Closing | State::Closed) {
            self.client.close().await;
            let _the_request_will_say = self.client.reopen().await;
            self.abandoned = false;
        }
        Call { client: &self.client, abandoned: &mut self.abandoned }
    }
}

/// Ends the connection unless it is done.
struct Call<'c> {
    client: &'c Client,
    abandoned: &'c mut bool,
}

impl Call<'_> {
    fn done(self) {
        std::mem::forget(self);
    }
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        *self.abandoned = true;
        self.client.shared().inbox.wish_close();
    }
}

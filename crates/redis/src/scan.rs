//! SCAN, HSCAN, SSCAN and ZSCAN as streams.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures_core::Stream;

use crate::args::ToArgs;
use crate::client::RedisClient;
use crate::command::{Cmd, cmd};
use crate::error::ExecError;
use crate::reply::FromReply;

/// A scan: what to iterate over, and its options.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let server = forebay_sandbox::Redis::start()?;
/// # let client = forebay_redis::RedisClient::connect(server.url()).await?;
/// # client.exec::<()>(("SET", "user:1", "ada")).await?;
/// use forebay_redis::ScanCommand;
///
/// let mut users = client.scan::<String>(ScanCommand::keys().matching("user:*").count(1000));
/// while let Some(key) = users.next().await {
///     assert_eq!(key?, "user:1");
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct ScanCommand {
    /// The command up to its cursor.
    command: Cmd,
    options: Vec<(&'static str, String)>,
}

impl ScanCommand {
    /// Scans the keys of the database: `SCAN`.
    pub fn keys() -> Self {
        ScanCommand { command: cmd("SCAN"), options: Vec::new() }
    }

    /// Scans the fields and values of a hash: `HSCAN`. Its items are pairs.
    pub fn hash(key: impl ToArgs) -> Self {
        ScanCommand { command: cmd("HSCAN").arg(key), options: Vec::new() }
    }

    /// Scans the members of a set: `SSCAN`.
    pub fn set(key: impl ToArgs) -> Self {
        ScanCommand { command: cmd("SSCAN").arg(key), options: Vec::new() }
    }

    /// Scans the members and scores of a sorted set: `ZSCAN`. Its items are pairs.
    pub fn sorted_set(key: impl ToArgs) -> Self {
        ScanCommand { command: cmd("ZSCAN").arg(key), options: Vec::new() }
    }

    /// Returns only items that match a glob pattern.
    #[must_use]
    pub fn matching(mut self, pattern: impl Into<String>) -> Self {
        self.options.push(("MATCH", pattern.into()));
        self
    }

    /// Sets the approximate number of items that the server examines for one reply. Default 10.
    #[must_use]
    pub fn count(mut self, count: u32) -> Self {
        self.options.push(("COUNT", count.to_string()));
        self
    }

    /// Returns only keys of this type; for [`ScanCommand::keys`].
    #[must_use]
    pub fn of_type(mut self, name: impl Into<String>) -> Self {
        self.options.push(("TYPE", name.into()));
        self
    }

    fn at(&self, cursor: &str) -> Cmd {
        let command = self.command.clone().arg(cursor);
        self.options.iter().fold(command, |command, (name, value)| command.arg(name).arg(value))
    }
}

impl RedisClient {
    /// Iterates over keys, fields or members, page by page.
    ///
    /// As in Redis, an item that exists during the whole scan is returned at least once, and may be
    /// returned twice. The stream ends after an error.
    pub fn scan<T: FromReply>(&self, scan: ScanCommand) -> ScanStream<T> {
        ScanStream {
            client: self.clone(),
            scan,
            items: VecDeque::new(),
            cursor: Some("0".into()),
            page: None,
        }
    }
}

type ScanPage<T> = Pin<Box<dyn Future<Output = Result<(String, Vec<T>), ExecError>> + Send>>;

/// Stream of the items of a [`ScanCommand`].
pub struct ScanStream<T> {
    client: RedisClient,
    scan: ScanCommand,
    items: VecDeque<T>,
    /// Cursor of the next page; `None` after the last page.
    cursor: Option<String>,
    page: Option<ScanPage<T>>,
}

// Nothing is structurally pinned: the page is boxed.
impl<T> Unpin for ScanStream<T> {}

impl<T: FromReply + 'static> ScanStream<T> {
    /// Returns the next item, or `None` after the last one.
    pub async fn next(&mut self) -> Option<Result<T, ExecError>> {
        std::future::poll_fn(|cx| self.poll(cx)).await
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<T, ExecError>>> {
        loop {
            if let Some(item) = self.items.pop_front() {
                return Poll::Ready(Some(Ok(item)));
            }
            if let Some(page) = &mut self.page {
                let result = ready!(page.as_mut().poll(cx));
                self.page = None;
                match result {
                    Ok((cursor, items)) => {
                        self.cursor = Some(cursor).filter(|cursor| cursor != "0");
                        self.items = items.into();
                    }
                    Err(error) => return Poll::Ready(Some(Err(error))),
                }
                continue;
            }
            let Some(cursor) = self.cursor.take() else { return Poll::Ready(None) };
            let (client, command) = (self.client.clone(), self.scan.at(&cursor));
            self.page = Some(Box::pin(async move { client.exec(command).await }));
        }
    }
}

impl<T: FromReply + 'static> Stream for ScanStream<T> {
    type Item = Result<T, ExecError>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.get_mut().poll(cx)
    }
}

impl<T> std::fmt::Debug for ScanStream<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ScanStream")
            .field("scan", &self.scan)
            .field("cursor", &self.cursor)
            .finish_non_exhaustive()
    }
}

//! SCAN and its kin as streams.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures_core::Stream;

use crate::client::Client;
use crate::command::{Cmd, ToArgs, cmd};
use crate::error::ExecError;
use crate::reply::FromReply;

/// What to go through, and how.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let server = forebay_sandbox::Redis::start()?;
/// # let client = forebay_redis::Client::connect(server.url()).await?;
/// # client.exec::<()>(("SET", "user:1", "ada")).await?;
/// use forebay_redis::Scan;
///
/// let mut users = client.scan::<String>(Scan::keys().matching("user:*").count(1000));
/// while let Some(key) = users.next().await {
///     assert_eq!(key?, "user:1");
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Scan {
    /// The command up to its cursor.
    command: Cmd,
    options: Vec<(&'static str, String)>,
}

impl Scan {
    /// The keys of the database: `SCAN`.
    pub fn keys() -> Self {
        Scan { command: cmd("SCAN"), options: Vec::new() }
    }

    /// The fields and values of a hash: `HSCAN`. Its items are pairs.
    pub fn hash(key: impl ToArgs) -> Self {
        Scan { command: cmd("HSCAN").arg(key), options: Vec::new() }
    }

    /// The members of a set: `SSCAN`.
    pub fn set(key: impl ToArgs) -> Self {
        Scan { command: cmd("SSCAN").arg(key), options: Vec::new() }
    }

    /// The members and scores of a sorted set: `ZSCAN`. Its items are pairs.
    pub fn sorted_set(key: impl ToArgs) -> Self {
        Scan { command: cmd("ZSCAN").arg(key), options: Vec::new() }
    }

    /// Only what matches a glob pattern.
    #[must_use]
    pub fn matching(mut self, pattern: impl Into<String>) -> Self {
        self.options.push(("MATCH", pattern.into()));
        self
    }

    /// About how many items the server looks at for one reply; 10 unless told.
    #[must_use]
    pub fn count(mut self, count: u32) -> Self {
        self.options.push(("COUNT", count.to_string()));
        self
    }

    /// Only keys of a type, for [`Scan::keys`].
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

impl Client {
    /// Goes through keys, fields or members, page by page. As the server has it: everything that is there from beginning to
    /// end is seen at least once, and may be seen twice. After an error the stream ends.
    pub fn scan<T: FromReply>(&self, scan: Scan) -> Scanning<T> {
        Scanning { client: self.clone(), scan, items: VecDeque::new(), cursor: Some("0".into()), page: None }
    }
}

type Page<T> = Pin<Box<dyn Future<Output = Result<(String, Vec<T>), ExecError>> + Send>>;

/// The items of a [`Scan`].
pub struct Scanning<T> {
    client: Client,
    scan: Scan,
    items: VecDeque<T>,
    /// Where the next page begins; `None` after the last.
    cursor: Option<String>,
    page: Option<Page<T>>,
}

// Nothing in it is pinned but the page, which is boxed.
impl<T> Unpin for Scanning<T> {}

impl<T: FromReply + 'static> Scanning<T> {
    /// The next item; `None` after the last.
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

impl<T: FromReply + 'static> Stream for Scanning<T> {
    type Item = Result<T, ExecError>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.get_mut().poll(cx)
    }
}

impl<T> std::fmt::Debug for Scanning<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Scanning")
            .field("scan", &self.scan)
            .field("cursor", &self.cursor)
            .finish_non_exhaustive()
    }
}

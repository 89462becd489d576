//! Client handle: cheap to clone, usable from any thread and any tokio runtime.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use crate::command::{CommandBatch, RedisCommand};
use crate::command_guard::CommandGuard;
use crate::config::{Config, IntoConfig, Protocol};
use crate::connect::{Dialer, RespVersion, dialer};
use crate::core::link::State;
use crate::error::{ConnectionLoss, ExecError, RedisConnectError, RequestError};
use crate::inbox::{AbortScope, Inbox, InboxBounds};
use crate::reply::{FromReplies, FromReply};
use crate::request_future::{CommandSpec, PipelineSpec, RequestFuture, RequestSpec, TransactionSpec};
use crate::status::{ClientStats, Status, StatusJournal, StatusStream, WorkerCounters};
use crate::topic_registry::TopicRegistry;
use crate::worker::ConnectionWorker;

/// Redis client: one connection, shared by all clones.
///
/// Requests from any number of tasks, threads and runtimes are completed in the order of
/// submission. Dropping the last clone closes the connection.
#[derive(Clone)]
pub struct RedisClient {
    handle: Arc<ClientHandle>,
}

/// Shared by all clones and dropped with the last one. The worker holds only [`ClientShared`].
struct ClientHandle {
    shared: Arc<ClientShared>,
    dialer: Dialer,
    /// Subscriber connection for RESP2, where a subscribed connection cannot run other commands.
    subscriber: Mutex<Option<RedisClient>>,
    /// Dedicated connections, which an abort ends. Those that are gone are removed when one is
    /// added, so there are at most as many as were open at once, plus one.
    dedicated: Mutex<Vec<Weak<ClientShared>>>,
}

pub(crate) struct ClientShared {
    pub(crate) config: Arc<Config>,
    pub(crate) inbox: Inbox,
    pub(crate) journal: Arc<StatusJournal>,
    pub(crate) counters: WorkerCounters,
    pub(crate) topics: TopicRegistry,
    #[cfg(feature = "metrics")]
    pub(crate) metrics: Arc<crate::metrics::ClientMetrics>,
    /// True if the connection, or the next one, can subscribe and run other commands.
    is_resp3: AtomicBool,
    /// Dedicated connections only: true between `MULTI` and `EXEC`.
    queuing: AtomicBool,
    lifecycle: Mutex<LinkLifecycle>,
}

#[derive(Default)]
struct LinkLifecycle {
    generation: u64,
    running: bool,
}

impl LinkLifecycle {
    /// Returns the generation of a new link, or `None` if a link is running.
    fn start(&mut self) -> Option<u64> {
        if self.running {
            return None;
        }
        self.running = true;
        self.generation += 1;
        Some(self.generation)
    }
}

impl RedisClient {
    /// Connects. Fails if the first attempt fails; after that, lost connections are reopened
    /// automatically.
    ///
    /// The connection runs on the tokio runtime that this is called on.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let server = forebay_sandbox::Redis::start()?;
    /// # let url = server.url();
    /// use forebay_redis::RedisClient;
    ///
    /// let client = RedisClient::connect(url).await?; // such as redis://127.0.0.1:6379
    /// let greeting: String = client.exec(("ECHO", "hello")).await?;
    /// assert_eq!(greeting, "hello");
    /// # Ok(())
    /// # }
    /// ```
    pub async fn connect(to: impl IntoConfig) -> Result<RedisClient, RedisConnectError> {
        let client = RedisClient::new(to.into_config()?);
        client.connect_once().await?;
        Ok(client)
    }

    /// Starts to connect and returns immediately. Requests are queued during an attempt and
    /// rejected between attempts.
    pub fn open(to: impl IntoConfig) -> Result<RedisClient, RedisConnectError> {
        let client = RedisClient::new(to.into_config()?);
        client.start();
        Ok(client)
    }

    /// Connects a closed client again, with a new link and the next generation. Does nothing if the
    /// client is not closed.
    pub async fn reopen(&self) -> Result<(), RedisConnectError> {
        if self.handle.shared.inbox.is_aborted() {
            // The worker may not have ended the link yet.
            self.status_changes().wait_for(State::Closed).await;
        }
        self.connect_once().await
    }

    /// Runs one command and decodes its reply as `T`.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let server = forebay_sandbox::Redis::start()?;
    /// # let client = forebay_redis::RedisClient::connect(server.url()).await?;
    /// client.exec::<()>(("SET", "answer", 42)).await?;
    /// let answer: i64 = client.exec(("GET", "answer")).await?;
    /// assert_eq!(answer, 42);
    /// # Ok(())
    /// # }
    /// ```
    pub fn exec<T: FromReply>(
        &self,
        command: impl RedisCommand,
    ) -> RequestFuture<'_, impl RequestSpec<Output = Result<T, ExecError>>> {
        RequestFuture::new(self.shared(), CommandSpec::new(command))
    }

    /// Sends several commands as one request.
    ///
    /// A tuple of commands gives a tuple of results; a list gives a `Vec`. Each result is a value
    /// or an error.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let server = forebay_sandbox::Redis::start()?;
    /// # let client = forebay_redis::RedisClient::connect(server.url()).await?;
    /// let commands = (("INCR", "visits"), ("GET", "name"));
    /// let (count, name) = client.pipeline::<(i64, Option<String>)>(commands).await?;
    /// let keys = ["a", "b", "c"].map(|key| ("GET", key));
    /// let values = client.pipeline::<Vec<Option<String>>>(keys).await?;
    /// assert_eq!((count?, name?, values), (1, None, vec![Ok(None), Ok(None), Ok(None)]));
    /// # Ok(())
    /// # }
    /// ```
    pub fn pipeline<R: FromReplies>(
        &self,
        batch: impl CommandBatch<R>,
    ) -> RequestFuture<'_, impl RequestSpec<Output = Result<R::Results, RequestError>>> {
        RequestFuture::new(self.shared(), PipelineSpec::new(batch))
    }

    /// Runs several commands atomically: `MULTI`, the commands and `EXEC` in one request.
    ///
    /// Either all commands run, without commands of other clients in between, or none does.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let server = forebay_sandbox::Redis::start()?;
    /// # let client = forebay_redis::RedisClient::connect(server.url()).await?;
    /// let commands = (("DECR", "left"), ("INCR", "right"));
    /// let (left, right) = client.transaction::<(i64, i64)>(commands).await?;
    /// assert_eq!((left?, right?), (-1, 1));
    /// # Ok(())
    /// # }
    /// ```
    pub fn transaction<R: FromReplies>(
        &self,
        batch: impl CommandBatch<R>,
    ) -> RequestFuture<'_, impl RequestSpec<Output = Result<R::Results, ExecError>>> {
        RequestFuture::new(self.shared(), TransactionSpec::new(batch))
    }

    /// Closes the connection after requests in flight have finished, or after
    /// [`Config::close_timeout`]. Later requests fail.
    pub async fn close(&self) {
        let subscriber = self.handle.subscriber.lock().take();
        if let Some(subscriber) = subscriber {
            Box::pin(subscriber.close()).await;
        }
        let mut changes = self.status_changes();
        self.handle.shared.inbox.request_close();
        while !matches!(changes.next().await.state, State::Closed | State::Init) {}
    }

    /// Closes the connection at once, without waiting for requests in flight.
    ///
    /// Every request that is queued or in flight fails with [`RequestError::Cancelled`], and so do
    /// all later ones. Requests in flight may have run. Attempts to connect end, subscriptions end
    /// after the messages that have arrived, and [`close`](Self::close) returns.
    ///
    /// | | [`close`](Self::close) | `abort` |
    /// |---|---|---|
    /// | requests in flight | may finish within [`Config::close_timeout`] | fail with `Cancelled` |
    /// | later requests | fail with `Closed` | fail with `Cancelled` |
    /// | dedicated connections | stay open | end, and do not connect again |
    /// | returns | when the state is `Closed` | at once |
    /// | state `Closed` | after the last reply, or after the timeout | at the worker's next poll |
    ///
    /// [`reopen`](Self::reopen) connects again, but not the dedicated connections. This method does
    /// not block, and may be called from any thread.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let server = forebay_sandbox::Redis::start()?;
    /// # let client = forebay_redis::RedisClient::connect(server.url()).await?;
    /// use forebay_redis::{ExecError, RequestError, State};
    ///
    /// client.abort();
    /// let error = client.exec::<()>(("PING",)).await.unwrap_err();
    /// assert!(matches!(error, ExecError::Request(RequestError::Cancelled)));
    /// client.status_changes().wait_for(State::Closed).await;
    /// # Ok(())
    /// # }
    /// ```
    pub fn abort(&self) {
        // First, so that no other connection is added to those below.
        self.handle.shared.inbox.abort();
        let subscriber = self.handle.subscriber.lock().take();
        let dedicated = std::mem::take(&mut *self.handle.dedicated.lock());
        let subscriber = subscriber.iter().map(|client| client.shared().clone());
        for shared in dedicated.iter().filter_map(Weak::upgrade).chain(subscriber) {
            shared.inbox.abort();
        }
    }

    /// Returns the state of the connection.
    pub fn state(&self) -> State {
        self.status().state
    }

    /// Returns the state of the connection with its generation, attempts and last error.
    pub fn status(&self) -> Status {
        self.handle.shared.journal.current()
    }

    /// Returns a stream of the connection's status: the current one, then every change.
    pub fn status_changes(&self) -> StatusStream {
        self.handle.shared.journal.follow()
    }

    /// Returns counters since the client was created.
    pub fn stats(&self) -> ClientStats {
        let shared = &self.handle.shared;
        shared.counters.stats(shared.inbox.open_requests())
    }

    pub(crate) fn config(&self) -> &Arc<Config> {
        &self.handle.shared.config
    }

    pub(crate) fn shared(&self) -> &Arc<ClientShared> {
        &self.handle.shared
    }

    /// Returns the client whose connection can subscribe: this one, or a separate one with RESP2.
    pub(crate) async fn subscriber(&self) -> RedisClient {
        // The protocol is known after a successful attempt.
        self.wait_for_attempt().await;
        // The inbox of a closed client rejects the request.
        let closed = matches!(self.state(), State::Closing | State::Closed);
        if closed || self.handle.shared.is_resp3.load(Ordering::Relaxed) || self.config().subscriber_only {
            return self.clone();
        }
        let Some(client) = self.resp2_subscriber() else { return self.clone() };
        // A subscription made before the connection exists would begin with a gap.
        client.wait_for_attempt().await;
        client
    }

    /// Connects a client for a dedicated connection, which an abort of this client ends.
    pub(crate) async fn connect_dedicated(&self, config: Config) -> Result<RedisClient, RedisConnectError> {
        let client = RedisClient::new(config);
        {
            let mut dedicated = self.handle.dedicated.lock();
            if self.handle.shared.inbox.is_aborted() {
                return Err(RedisConnectError::Cancelled);
            }
            dedicated.retain(|shared| shared.strong_count() > 0);
            dedicated.push(Arc::downgrade(client.shared()));
        }
        client.connect_once().await?;
        Ok(client)
    }

    /// Returns the started subscriber client, or `None` if this client is aborted.
    fn resp2_subscriber(&self) -> Option<RedisClient> {
        let new = || {
            RedisClient::new(Config {
                subscriber_only: true,
                protocol: Protocol::Resp2,
                ..(**self.config()).clone()
            })
        };
        let client = {
            let mut subscriber = self.handle.subscriber.lock();
            if self.handle.shared.inbox.is_aborted() {
                return None;
            }
            subscriber.get_or_insert_with(new).clone()
        };
        client.start();
        Some(client)
    }

    /// Waits until no attempt to connect is in progress.
    async fn wait_for_attempt(&self) {
        let mut changes = self.status_changes();
        while matches!(changes.next().await.state, State::Connecting | State::Reconnecting) {}
    }

    pub(crate) fn new(config: Config) -> RedisClient {
        let config = Arc::new(config);
        RedisClient::with_dialer(config.clone(), dialer(config))
    }

    pub(crate) fn with_dialer(config: Arc<Config>, dialer: Dialer) -> RedisClient {
        let bounds =
            InboxBounds { max_requests: config.max_requests, max_unsent_bytes: config.max_unsent_bytes };
        let is_resp3 = AtomicBool::new(config.protocol != Protocol::Resp2);
        let shared = Arc::new(ClientShared {
            config,
            inbox: Inbox::new(bounds, RequestError::Closed { last_error: None }),
            journal: Arc::new(StatusJournal::new()),
            counters: WorkerCounters::default(),
            topics: TopicRegistry::default(),
            #[cfg(feature = "metrics")]
            metrics: crate::metrics::ClientMetrics::new(),
            is_resp3,
            queuing: AtomicBool::new(false),
            lifecycle: Mutex::default(),
        });
        let (subscriber, dedicated) = (Mutex::default(), Mutex::default());
        RedisClient { handle: Arc::new(ClientHandle { shared, dialer, subscriber, dedicated }) }
    }

    /// Starts a new link and returns its generation. Returns `None` if a link is already running.
    pub(crate) fn start(&self) -> Option<u64> {
        let shared = &self.handle.shared;
        // Panics outside of tokio, before any state has changed.
        let runtime = tokio::runtime::Handle::current();
        let generation = shared.lifecycle.lock().start()?;
        let belongs_to_another = shared.config.dedicated || shared.config.subscriber_only;
        shared.inbox.reset(if belongs_to_another { AbortScope::Client } else { AbortScope::Link });
        let mut changes = shared.journal.follow();
        runtime.spawn(ConnectionWorker::new(shared.clone(), self.handle.dialer.clone(), generation));
        if let Some(hooks) = shared.config.hooks.clone() {
            tokio::spawn(async move {
                let _before = changes.next().await;
                loop {
                    let (hooks, status) = (hooks.clone(), changes.next().await);
                    let is_last = status.state == State::Closed;
                    // Runs on a blocking thread: a blocking hook in a task could stall the
                    // runtime's I/O.
                    let _panicked = tokio::task::spawn_blocking(move || hooks.connection(&status)).await;
                    if is_last {
                        break;
                    }
                }
            });
        }
        Some(generation)
    }

    /// Starts a link and waits for its first attempt. A failed attempt is not repeated.
    async fn connect_once(&self) -> Result<(), RedisConnectError> {
        let mut changes = self.status_changes();
        let Some(generation) = self.start() else { return Ok(()) };
        loop {
            let status = changes.next().await;
            // The stream may still deliver the end of the previous link.
            if status.generation != generation {
                continue;
            }
            match status.state {
                State::Open => return Ok(()),
                State::Failed | State::Closed => {
                    if status.state == State::Failed {
                        self.close().await;
                    }
                    return Err(match status.last_error {
                        Some(ConnectionLoss::Connect(error)) => (*error).clone(),
                        Some(_) | None => RedisConnectError::Cancelled,
                    });
                }
                State::Init | State::Connecting | State::Reconnecting | State::Closing => {}
            }
        }
    }
}

impl ClientShared {
    /// Returns the guard for commands on this connection.
    pub(crate) fn guard(&self) -> CommandGuard {
        if self.config.dedicated {
            CommandGuard::Dedicated { queuing: self.queuing.load(Ordering::Relaxed) }
        } else {
            CommandGuard::Shared
        }
    }

    /// Stores the guard's state after a request. Only one caller at a time sends requests on a
    /// dedicated connection.
    pub(crate) fn store_guard(&self, guard: CommandGuard) {
        match guard {
            CommandGuard::Shared => {}
            CommandGuard::Dedicated { queuing } => self.queuing.store(queuing, Ordering::Relaxed),
        }
    }

    /// Handles a new connection. Adds a gap to every subscription, because messages may have been
    /// missed, and subscribes to all topics again.
    pub(crate) fn on_connected(self: &Arc<Self>, version: RespVersion) {
        self.is_resp3.store(version == RespVersion::Resp3, Ordering::Relaxed);
        self.queuing.store(false, Ordering::Relaxed);
        if self.topics.push_gap_to_all() > 0 {
            tokio::spawn(crate::subscription::resubscribe(self.clone()));
        }
    }

    /// Handles the end of the link. A new link can start only after the status is recorded, because
    /// both need the lock.
    pub(crate) fn on_closed(&self, status: Status) {
        self.topics.end_all();
        let change = {
            let mut lifecycle = self.lifecycle.lock();
            lifecycle.running = false;
            self.journal.append(status)
        };
        change.notify();
    }
}

impl Drop for ClientHandle {
    fn drop(&mut self) {
        self.shared.inbox.request_close();
    }
}

impl fmt::Debug for RedisClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisClient")
            .field("config", self.config())
            .field("status", &self.status())
            .finish_non_exhaustive()
    }
}

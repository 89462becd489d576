//! What callers hold: a cheap handle that can be cloned, sent anywhere and used from any runtime.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::command::{Batch, Command};
use crate::config::{Config, IntoConfig, Protocol};
use crate::connect::{Dialer, dialer};
use crate::core::link::State;
use crate::error::{ConnectError, ExecError, Loss, RequestError};
use crate::exec::{Atomic, Exec, Job, One, Several};
use crate::guard::Guard;
use crate::inbox::{Bounds, Inbox};
use crate::reply::{FromReplies, FromReply};
use crate::status::{Changes, Counters, Journal, Stats, Status};
use crate::topics::Topics;
use crate::worker::Worker;

/// A Redis client: one connection, shared by all its clones.
///
/// Requests from any number of tasks, threads and runtimes are answered in the order in which they were submitted. When
/// the last clone is dropped, the connection closes.
#[derive(Clone)]
pub struct Client {
    handle: Arc<Handle>,
}

/// Dropped with the last clone; the worker holds only what is shared.
struct Handle {
    shared: Arc<Shared>,
    dialer: Dialer,
    /// Where the server speaks RESP2, a connection that only subscribes: there it can't do anything else.
    subscriber: Mutex<Option<Client>>,
}

pub(crate) struct Shared {
    pub(crate) config: Arc<Config>,
    pub(crate) inbox: Inbox,
    pub(crate) journal: Arc<Journal>,
    pub(crate) counters: Counters,
    pub(crate) topics: Topics,
    resp3: AtomicBool,
    /// On a connection of one's own: its caller has sent `MULTI` and not yet `EXEC`.
    queuing: AtomicBool,
    life: Mutex<Life>,
}

#[derive(Default)]
struct Life {
    generation: u64,
    running: bool,
}

impl Client {
    /// Connects, and fails if the first try does. After that the connection mends itself.
    ///
    /// The connection lives on the tokio runtime that this is called on.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let server = forebay_sandbox::Redis::start()?;
    /// # let url = server.url();
    /// use forebay_redis::Client;
    ///
    /// let client = Client::connect(url).await?; // such as redis://127.0.0.1:6379
    /// let greeting: String = client.exec(("ECHO", "hello")).await?;
    /// assert_eq!(greeting, "hello");
    /// # Ok(())
    /// # }
    /// ```
    pub async fn connect(to: impl IntoConfig) -> Result<Client, ConnectError> {
        let client = Client::unconnected(to.into_config()?);
        client.first_try().await?;
        Ok(client)
    }

    /// Starts to connect and returns at once. Requests queue while a try is under way and are rejected between tries.
    pub fn open(to: impl IntoConfig) -> Result<Client, ConnectError> {
        let client = Client::unconnected(to.into_config()?);
        client.start();
        Ok(client)
    }

    /// Connects a closed client again: a new link, the next generation. Does nothing if it isn't closed.
    pub async fn reopen(&self) -> Result<(), ConnectError> {
        self.first_try().await
    }

    /// Runs one command and turns its reply into a `T`.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let server = forebay_sandbox::Redis::start()?;
    /// # let client = forebay_redis::Client::connect(server.url()).await?;
    /// client.exec::<()>(("SET", "answer", 42)).await?;
    /// let answer: i64 = client.exec(("GET", "answer")).await?;
    /// assert_eq!(answer, 42);
    /// # Ok(())
    /// # }
    /// ```
    pub fn exec<T: FromReply>(
        &self,
        command: impl Command,
    ) -> Exec<'_, impl Job<Output = Result<T, ExecError>>> {
        Exec::new(self.shared(), One::new(command))
    }

    /// Sends several commands as one request. A tuple of commands gives a tuple of results, a list gives a `Vec`; each is
    /// its value or its own error.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let server = forebay_sandbox::Redis::start()?;
    /// # let client = forebay_redis::Client::connect(server.url()).await?;
    /// let (count, name) = client.pipeline::<(i64, Option<String>)>((("INCR", "visits"), ("GET", "name"))).await?;
    /// let keys = ["a", "b", "c"].map(|key| ("GET", key));
    /// let values: Vec<Option<String>> = client.pipeline::<Vec<_>>(keys).await?.into_iter().collect::<Result<_, _>>()?;
    /// assert_eq!((count?, name?, values), (1, None, vec![None, None, None]));
    /// # Ok(())
    /// # }
    /// ```
    pub fn pipeline<R: FromReplies>(
        &self,
        batch: impl Batch<R>,
    ) -> Exec<'_, impl Job<Output = Result<R::Results, RequestError>>> {
        Exec::new(self.shared(), Several::new(batch))
    }

    /// Runs several commands as one unit: `MULTI`, the commands, `EXEC`, in one request. Either all of them run, with
    /// nothing of anybody else in between, or none does.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let server = forebay_sandbox::Redis::start()?;
    /// # let client = forebay_redis::Client::connect(server.url()).await?;
    /// let (left, right) = client.transaction::<(i64, i64)>((("DECR", "left"), ("INCR", "right"))).await?;
    /// assert_eq!((left?, right?), (-1, 1));
    /// # Ok(())
    /// # }
    /// ```
    pub fn transaction<R: FromReplies>(
        &self,
        batch: impl Batch<R>,
    ) -> Exec<'_, impl Job<Output = Result<R::Results, ExecError>>> {
        Exec::new(self.shared(), Atomic::new(batch))
    }

    /// Lets what is in flight finish, up to [`Config::close_timeout`], then closes. Later requests fail.
    pub async fn close(&self) {
        let subscriber = self.handle.subscriber.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(subscriber) = subscriber {
            Box::pin(subscriber.close()).await;
        }
        let mut changes = self.changes();
        self.handle.shared.inbox.wish_close();
        while !matches!(changes.next().await.state, State::Closed | State::Init) {}
    }

    /// Where the connection is now.
    pub fn state(&self) -> State {
        self.status().state
    }

    /// Where the connection is now, and how it got there.
    pub fn status(&self) -> Status {
        self.handle.shared.journal.current()
    }

    /// Follows the connection: its state now, then every change.
    pub fn changes(&self) -> Changes {
        self.handle.shared.journal.follow()
    }

    /// Counts since the client was made.
    pub fn stats(&self) -> Stats {
        let shared = &self.handle.shared;
        shared.counters.stats(shared.inbox.open_requests())
    }

    pub(crate) fn config(&self) -> &Arc<Config> {
        &self.handle.shared.config
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.handle.shared
    }

    /// The client whose connection can subscribe: this one, or with RESP2 one of its own.
    pub(crate) async fn subscriber(&self) -> Client {
        // Which protocol it is, is known once a try has succeeded.
        self.tried().await;
        let closed = matches!(self.state(), State::Closing | State::Closed); // its own inbox will say so
        if closed || self.handle.shared.resp3.load(Ordering::Relaxed) || self.config().subscriber_only {
            return self.clone();
        }
        let client = self.own_subscriber();
        // A subscription to a connection that is still to come would begin with a gap.
        client.tried().await;
        client
    }

    fn own_subscriber(&self) -> Client {
        let mut subscriber = self.handle.subscriber.lock().unwrap_or_else(PoisonError::into_inner);
        let client = subscriber.get_or_insert_with(|| {
            Client::unconnected(Config {
                subscriber_only: true,
                protocol: Protocol::Resp2,
                ..(**self.config()).clone()
            })
        });
        client.start();
        client.clone()
    }

    /// Waits until no try to connect is under way.
    async fn tried(&self) {
        let mut changes = self.changes();
        while matches!(changes.next().await.state, State::Connecting | State::Reconnecting) {}
    }

    pub(crate) fn unconnected(config: Config) -> Client {
        let config = Arc::new(config);
        Client::with_dialer(config.clone(), dialer(config))
    }

    pub(crate) fn with_dialer(config: Arc<Config>, dialer: Dialer) -> Client {
        let bounds = Bounds { max_requests: config.max_requests, max_unsent_bytes: config.max_unsent_bytes };
        let resp3 = AtomicBool::new(config.protocol != Protocol::Resp2);
        let shared = Arc::new(Shared {
            config,
            inbox: Inbox::new(bounds, RequestError::Closed { last_error: None }),
            journal: Arc::new(Journal::new()),
            counters: Counters::default(),
            topics: Topics::default(),
            resp3,
            queuing: AtomicBool::new(false),
            life: Mutex::default(),
        });
        Client { handle: Arc::new(Handle { shared, dialer, subscriber: Mutex::default() }) }
    }

    /// Begins a new link, unless one runs; gives its generation if it did.
    pub(crate) fn start(&self) -> Option<u64> {
        let shared = &self.handle.shared;
        let runtime = tokio::runtime::Handle::current(); // panics here, before anything has changed, outside of tokio
        let mut life = shared.life.lock().unwrap_or_else(PoisonError::into_inner);
        if life.running {
            return None;
        }
        life.running = true;
        life.generation += 1;
        let generation = life.generation;
        shared.inbox.reset();
        let mut changes = shared.journal.follow();
        let worker = Worker::new(shared.clone(), self.handle.dialer.clone(), generation);
        // A runtime that shuts down drops the worker at once, and that wants the lock.
        drop(life);
        runtime.spawn(worker);
        if let Some(hooks) = shared.config.hooks.clone() {
            tokio::spawn(async move {
                let _before = changes.next().await;
                loop {
                    let (hooks, status) = (hooks.clone(), changes.next().await);
                    let over = status.state == State::Closed;
                    // On a thread that may block: a task that does can keep the whole runtime from its sockets.
                    let _panicked = tokio::task::spawn_blocking(move || hooks.connection(&status)).await;
                    if over {
                        break;
                    }
                }
            });
        }
        Some(generation)
    }

    /// Starts, and waits for the end of the first try. If that fails there is no second one.
    async fn first_try(&self) -> Result<(), ConnectError> {
        let mut changes = self.changes();
        let Some(generation) = self.start() else { return Ok(()) };
        loop {
            let status = changes.next().await;
            // The end of the link before this one may still be on its way to us.
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
                        Some(Loss::Connect(error)) => (*error).clone(),
                        Some(_) | None => ConnectError::Cancelled,
                    });
                }
                State::Init | State::Connecting | State::Reconnecting | State::Closing => {}
            }
        }
    }
}

impl Shared {
    /// What its connection can take.
    pub(crate) fn guard(&self) -> Guard {
        if self.config.dedicated {
            Guard::Dedicated { queuing: self.queuing.load(Ordering::Relaxed) }
        } else {
            Guard::Shared
        }
    }

    /// Keeps what the commands of a request leave behind on the connection. One caller at a time sends them.
    pub(crate) fn note_guard(&self, guard: Guard) {
        match guard {
            Guard::Shared => {}
            Guard::Dedicated { queuing } => self.queuing.store(queuing, Ordering::Relaxed),
        }
    }

    /// A connection is made. Whoever is subscribed has missed what came meanwhile, and must be subscribed again.
    pub(crate) fn connected(self: &Arc<Self>, resp3: bool) {
        self.resp3.store(resp3, Ordering::Relaxed);
        self.queuing.store(false, Ordering::Relaxed);
        if self.topics.mark_gap() {
            tokio::spawn(crate::subscription::resubscribe(self.clone()));
        }
    }

    /// The link is over. Whoever reads of it may begin the next one, and nobody can before it is written down.
    pub(crate) fn ended(&self, status: Status) {
        self.topics.end_all();
        let mut life = self.life.lock().unwrap_or_else(PoisonError::into_inner);
        life.running = false;
        self.journal.record(status);
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.shared.inbox.wish_close();
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("config", self.config())
            .field("status", &self.status())
            .finish_non_exhaustive()
    }
}

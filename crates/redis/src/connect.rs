//! Connecting: credentials, name resolution, dial, TLS and handshake, under one deadline.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream, lookup_host};
use tokio::time::{Instant, timeout_at};

use crate::args::ArgWriter;
use crate::command::{Cmd, cmd};
use crate::config::{Address, Config, Protocol};
use crate::core::frame::{FrameStep, Framer};
use crate::credentials::{RedisCredentials, requested_credentials};
use crate::error::{RedisConnectError, RedisServerError};
use crate::reply::{ReplyReader, ReplyToken};

pub(crate) trait ConnectionIo: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> ConnectionIo for T {}

/// A connection that is ready for requests.
pub(crate) struct EstablishedConnection {
    pub(crate) io: Box<dyn ConnectionIo>,
    /// Bytes that the server sent after the handshake.
    pub(crate) received: BytesMut,
    pub(crate) version: RespVersion,
}

/// Protocol version of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RespVersion {
    Resp2,
    Resp3,
}

pub(crate) type DialFuture =
    Pin<Box<dyn Future<Output = Result<EstablishedConnection, RedisConnectError>> + Send>>;
/// Creates connections. Tests supply their own.
pub(crate) type Dialer = Arc<dyn Fn() -> DialFuture + Send + Sync>;

/// Upper bound for `connect_timeout`, so that adding it to the current time cannot overflow.
const MAX_CONNECT_TIMEOUT: Duration = Duration::from_secs(24 * 60 * 60);

pub(crate) fn dialer(config: Arc<Config>) -> Dialer {
    Arc::new(move || {
        let config = config.clone();
        Box::pin(async move {
            let deadline = ConnectDeadline {
                at: Instant::now() + config.connect_timeout.min(MAX_CONNECT_TIMEOUT),
                config: &config,
            };
            // Before the dial, so that the server has no connection that waits for its login.
            let credentials = credentials(&deadline).await?;
            let io = dial(&deadline).await?;
            deadline.limit("the handshake", handshake(io, &config, credentials)).await?
        })
    })
}

struct ConnectDeadline<'c> {
    at: Instant,
    config: &'c Config,
}

impl ConnectDeadline<'_> {
    async fn limit<F: Future>(&self, step: &'static str, future: F) -> Result<F::Output, RedisConnectError> {
        timeout_at(self.at, future).await.map_err(|_| self.timeout_error(step))
    }

    fn timeout_error(&self, step: &'static str) -> RedisConnectError {
        RedisConnectError::Timeout {
            address: self.config.address.to_string(),
            after: self.config.connect_timeout,
            step,
        }
    }
}

/// Returns the credentials of this attempt, if there are any.
async fn credentials(deadline: &ConnectDeadline<'_>) -> Result<Option<RedisCredentials>, RedisConnectError> {
    let config = deadline.config;
    let Some(provider) = &config.credentials else {
        return Ok(match (&config.username, &config.password) {
            (None, None) => None,
            // A user without a password has an ACL that accepts any password.
            (user, password) => Some(RedisCredentials {
                username: user.clone(),
                password: password.clone().unwrap_or_else(|| "".into()),
            }),
        });
    };
    let requested = requested_credentials(provider.clone());
    match deadline.limit("the provider of the credentials", requested).await? {
        Ok(RedisCredentials { username, password }) => {
            let username = username.or_else(|| config.username.clone());
            Ok(Some(RedisCredentials { username, password }))
        }
        Err(source) => Err(RedisConnectError::Credentials { address: config.address.to_string(), source }),
    }
}

async fn dial(deadline: &ConnectDeadline<'_>) -> Result<Box<dyn ConnectionIo>, RedisConnectError> {
    let config = deadline.config;
    match &config.address {
        Address::Unix(path) => {
            let connected = deadline.limit("connecting", UnixStream::connect(path)).await?;
            let stream = connected.map_err(|source| RedisConnectError::Dial {
                address: config.address.to_string(),
                source: Arc::new(source),
            })?;
            Ok(Box::new(stream))
        }
        Address::Tcp { host, port } => {
            let stream = dial_tcp(deadline, host, *port).await?;
            #[cfg(feature = "tls")]
            if let Some(tls) = &config.tls {
                let (client, name) = tls.prepare(host).await?;
                let connecting = tokio_rustls::TlsConnector::from(client).connect(name, stream);
                let encrypted = deadline.limit("the TLS handshake", connecting).await?;
                return match encrypted {
                    Ok(stream) => Ok(Box::new(stream)),
                    Err(source) => Err(RedisConnectError::Tls {
                        address: config.address.to_string(),
                        source: Arc::new(source),
                    }),
                };
            }
            Ok(Box::new(stream))
        }
    }
}

/// Tries every address of the host, each with an equal share of the remaining time.
async fn dial_tcp(
    deadline: &ConnectDeadline<'_>,
    host: &str,
    port: u16,
) -> Result<TcpStream, RedisConnectError> {
    let resolved = deadline.limit("resolving the name", lookup_host((host, port))).await?;
    let failed = |source| RedisConnectError::Resolve { host: host.to_owned(), source: Arc::new(source) };
    let addresses: Vec<_> = resolved.map_err(failed)?.collect();
    let mut last = failed(io::ErrorKind::NotFound.into());
    for (index, address) in addresses.iter().enumerate() {
        let left = deadline.at.saturating_duration_since(Instant::now());
        let share = left / (addresses.len() - index) as u32;
        match timeout_at(Instant::now() + share, TcpStream::connect(address)).await {
            Err(_) => last = deadline.timeout_error("connecting"),
            Ok(Err(source)) => {
                last = RedisConnectError::Dial { address: address.to_string(), source: Arc::new(source) }
            }
            Ok(Ok(stream)) => match set_options(&stream, deadline.config) {
                Ok(()) => return Ok(stream),
                Err(source) => {
                    last = RedisConnectError::Dial { address: address.to_string(), source: Arc::new(source) }
                }
            },
        }
    }
    Err(last)
}

fn set_options(stream: &TcpStream, config: &Config) -> io::Result<()> {
    let socket = socket2::SockRef::from(stream);
    socket.set_tcp_nodelay(true)?;
    if let Some(idle) = config.tcp_keepalive {
        let probes = socket2::TcpKeepalive::new().with_time(idle).with_interval(Duration::from_secs(5));
        socket.set_tcp_keepalive(&probes)?;
    }
    #[cfg(any(target_os = "linux", target_os = "android"))]
    socket.set_tcp_user_timeout(config.tcp_user_timeout)?;
    Ok(())
}

/// Authenticates, negotiates the protocol version and selects the database.
pub(crate) async fn handshake(
    io: Box<dyn ConnectionIo>,
    config: &Config,
    credentials: Option<RedisCredentials>,
) -> Result<EstablishedConnection, RedisConnectError> {
    let (input, framer) = (BytesMut::new(), Framer::new(config.limits));
    let mut handshake = Handshake { io, input, framer, config, credentials };
    let version = match config.protocol {
        Protocol::Resp2 => RespVersion::Resp2,
        Protocol::Auto | Protocol::Resp3 => handshake.hello().await?,
    };
    if version == RespVersion::Resp2 {
        handshake.login_resp2().await?;
    }
    if config.db != 0
        && let Err(error) = handshake.call(cmd("SELECT").arg(config.db)).await?
    {
        return Err(match error.code() {
            "NOPERM" => RedisConnectError::Permission { command: "SELECT", error },
            _ => RedisConnectError::Database { db: config.db, error },
        });
    }
    Ok(EstablishedConnection { io: handshake.io, received: handshake.input, version })
}

/// Runs the handshake: one command at a time, before the pipeline exists.
struct Handshake<'c> {
    io: Box<dyn ConnectionIo>,
    input: BytesMut,
    framer: Framer,
    config: &'c Config,
    credentials: Option<RedisCredentials>,
}

impl Handshake<'_> {
    /// Sends `HELLO 3` with the credentials and the client name, because a server with a password
    /// refuses `HELLO` alone. Returns the version that the server supports.
    async fn hello(&mut self) -> Result<RespVersion, RedisConnectError> {
        let mut hello = cmd("HELLO").arg(3);
        if let Some(RedisCredentials { username, password }) = &self.credentials {
            let user = username.as_deref().unwrap_or("default");
            hello = hello.arg("AUTH").arg(user).arg(&password.0);
        }
        if let Some(name) = &self.config.client_name {
            hello = hello.arg("SETNAME").arg(name);
        }
        let Err(error) = self.call(hello).await? else { return Ok(RespVersion::Resp3) };
        let unknown = error.code() == "NOPROTO" || error.text().starts_with("ERR unknown command");
        if unknown && self.config.protocol == Protocol::Auto {
            Ok(RespVersion::Resp2)
        } else {
            Err(rejection_error("HELLO", error))
        }
    }

    async fn login_resp2(&mut self) -> Result<(), RedisConnectError> {
        if let Some(RedisCredentials { username, password }) = &self.credentials {
            let auth = cmd("AUTH").arg(username.as_deref()).arg(&password.0);
            self.call(auth).await?.map_err(|error| rejection_error("AUTH", error))?;
        }
        if let Some(name) = &self.config.client_name {
            let set_name = cmd("CLIENT").arg("SETNAME").arg(name);
            self.call(set_name).await?.map_err(|error| rejection_error("CLIENT SETNAME", error))?;
        }
        Ok(())
    }

    async fn call(&mut self, command: Cmd) -> Result<Result<(), RedisServerError>, RedisConnectError> {
        let mut out = Vec::new();
        ArgWriter::new(&mut out).command(&command);
        self.io.write_all(&out).await.map_err(|error| self.handshake_error(error))?;
        self.io.flush().await.map_err(|error| self.handshake_error(error))?;
        let reply = self.reply().await?;
        Ok(match ReplyReader::new(&reply, 0).token() {
            Ok(ReplyToken::Error(text)) => Err(RedisServerError::new(without_arguments(text))),
            Ok(_) => Ok(()),
            Err(error) => return Err(self.handshake_error(error)),
        })
    }

    async fn reply(&mut self) -> Result<Bytes, RedisConnectError> {
        loop {
            match self.framer.next(&self.input).map_err(|error| self.handshake_error(error))? {
                FrameStep::Frame(_, range) => {
                    self.framer.consumed(range.end);
                    return Ok(self.input.split_to(range.end).freeze());
                }
                FrameStep::Need(_) => {
                    let count = self
                        .io
                        .read_buf(&mut self.input)
                        .await
                        .map_err(|error| self.handshake_error(error))?;
                    if count == 0 {
                        return Err(self.handshake_error("the server closed it"));
                    }
                }
            }
        }
    }

    fn handshake_error(&self, reason: impl ToString) -> RedisConnectError {
        RedisConnectError::Handshake { address: self.config.address.to_string(), reason: reason.to_string() }
    }
}

/// Removes the arguments from an error. A server without HELLO or AUTH repeats them, and one of
/// them is the password.
fn without_arguments(text: &[u8]) -> &[u8] {
    const ARGUMENTS: &[u8] = b", with args beginning with";
    memchr::memmem::find(text, ARGUMENTS).map_or(text, |at| &text[..at])
}

fn rejection_error(command: &'static str, error: RedisServerError) -> RedisConnectError {
    match error.code() {
        "WRONGPASS" | "NOAUTH" => RedisConnectError::Auth(error),
        "NOPERM" => RedisConnectError::Permission { command, error },
        _ if error.text().contains("AUTH") || error.text().contains("password") => {
            RedisConnectError::Auth(error)
        }
        _ => RedisConnectError::Refused { command, error },
    }
}

//! Making a connection: name, dial, TLS, handshake, all under one deadline.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream, lookup_host};
use tokio::time::{Instant, timeout_at};

use crate::command::{ArgWriter, Cmd, cmd};
use crate::config::{Address, Config, Protocol};
use crate::core::frame::{Framer, Step};
use crate::error::{ConnectError, ServerError};
use crate::reply::{Reader, Token};

pub(crate) trait Io: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Io for T {}

/// A connection that is ready for requests.
pub(crate) struct Connected {
    pub(crate) io: Box<dyn Io>,
    /// What the server sent beyond the handshake.
    pub(crate) received: BytesMut,
    pub(crate) resp3: bool,
}

pub(crate) type Dialing = Pin<Box<dyn Future<Output = Result<Connected, ConnectError>> + Send>>;
/// Makes connections; tests put their own in.
pub(crate) type Dialer = Arc<dyn Fn() -> Dialing + Send + Sync>;

/// Longer than anybody waits for a connection, and no clock ends before that.
const A_DAY: Duration = Duration::from_secs(24 * 60 * 60);

pub(crate) fn dialer(config: Arc<Config>) -> Dialer {
    Arc::new(move || {
        let config = config.clone();
        Box::pin(async move {
            let deadline =
                Deadline { at: Instant::now() + config.connect_timeout.min(A_DAY), config: &config };
            let io = dial(&deadline).await?;
            deadline.bound("the handshake", handshake(io, &config)).await?
        })
    })
}

struct Deadline<'c> {
    at: Instant,
    config: &'c Config,
}

impl Deadline<'_> {
    async fn bound<F: Future>(&self, step: &'static str, future: F) -> Result<F::Output, ConnectError> {
        timeout_at(self.at, future).await.map_err(|_| self.missed(step))
    }

    fn missed(&self, step: &'static str) -> ConnectError {
        ConnectError::Timeout {
            address: self.config.address.to_string(),
            after: self.config.connect_timeout,
            step,
        }
    }
}

async fn dial(deadline: &Deadline<'_>) -> Result<Box<dyn Io>, ConnectError> {
    let config = deadline.config;
    match &config.address {
        Address::Unix(path) => {
            let connected = deadline.bound("connecting", UnixStream::connect(path)).await?;
            let stream = connected.map_err(|source| ConnectError::Dial {
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
                let encrypted = deadline.bound("the TLS handshake", connecting).await?;
                return match encrypted {
                    Ok(stream) => Ok(Box::new(stream)),
                    Err(source) => Err(ConnectError::Tls {
                        address: config.address.to_string(),
                        source: Arc::new(source),
                    }),
                };
            }
            Ok(Box::new(stream))
        }
    }
}

/// Tries every address of the host, each with its share of the time that is left.
async fn dial_tcp(deadline: &Deadline<'_>, host: &str, port: u16) -> Result<TcpStream, ConnectError> {
    let resolved = deadline.bound("resolving the name", lookup_host((host, port))).await?;
    let failed = |source| ConnectError::Resolve { host: host.to_owned(), source: Arc::new(source) };
    let addresses: Vec<_> = resolved.map_err(failed)?.collect();
    let mut last = failed(io::ErrorKind::NotFound.into());
    for (index, address) in addresses.iter().enumerate() {
        let left = deadline.at.saturating_duration_since(Instant::now());
        let share = left / (addresses.len() - index) as u32;
        match timeout_at(Instant::now() + share, TcpStream::connect(address)).await {
            Err(_) => last = deadline.missed("connecting"),
            Ok(Err(source)) => {
                last = ConnectError::Dial { address: address.to_string(), source: Arc::new(source) }
            }
            Ok(Ok(stream)) => match set_options(&stream, deadline.config) {
                Ok(()) => return Ok(stream),
                Err(source) => {
                    last = ConnectError::Dial { address: address.to_string(), source: Arc::new(source) }
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

/// Says who we are, and finds out which protocol the server speaks.
pub(crate) async fn handshake(io: Box<dyn Io>, config: &Config) -> Result<Connected, ConnectError> {
    let mut talk = Talk { io, input: BytesMut::new(), framer: Framer::new(config.limits), config };
    let resp3 = match config.protocol {
        Protocol::Resp2 => false,
        Protocol::Auto | Protocol::Resp3 => talk.hello().await?,
    };
    if !resp3 {
        talk.login_resp2().await?;
    }
    if config.db != 0
        && let Err(error) = talk.call(cmd("SELECT").arg(config.db)).await?
    {
        return Err(match error.code() {
            "NOPERM" => ConnectError::Permission { command: "SELECT", error },
            _ => ConnectError::Database { db: config.db, error },
        });
    }
    Ok(Connected { io: talk.io, received: talk.input, resp3 })
}

/// One command at a time, before there is a pipeline.
struct Talk<'c> {
    io: Box<dyn Io>,
    input: BytesMut,
    framer: Framer,
    config: &'c Config,
}

impl Talk<'_> {
    /// `HELLO 3` with everything in one command, since HELLO alone is refused where a password is needed. True for RESP3.
    async fn hello(&mut self) -> Result<bool, ConnectError> {
        let mut hello = cmd("HELLO").arg(3);
        if let Some((user, password)) = self.credentials() {
            hello = hello.arg("AUTH").arg(user.unwrap_or("default")).arg(password);
        }
        if let Some(name) = &self.config.client_name {
            hello = hello.arg("SETNAME").arg(name);
        }
        let Err(error) = self.call(hello).await? else { return Ok(true) };
        let unknown = error.code() == "NOPROTO" || error.text().starts_with("ERR unknown command");
        if unknown && self.config.protocol == Protocol::Auto {
            Ok(false)
        } else {
            Err(refusal("HELLO", error))
        }
    }

    async fn login_resp2(&mut self) -> Result<(), ConnectError> {
        if let Some((user, password)) = self.credentials() {
            let auth = cmd("AUTH").arg(user).arg(password);
            self.call(auth).await?.map_err(|error| refusal("AUTH", error))?;
        }
        if let Some(name) = &self.config.client_name {
            let set_name = cmd("CLIENT").arg("SETNAME").arg(name);
            self.call(set_name).await?.map_err(|error| refusal("CLIENT SETNAME", error))?;
        }
        Ok(())
    }

    /// A user without a password is one whose ACL wants none; any will do.
    fn credentials(&self) -> Option<(Option<&str>, &str)> {
        match (self.config.username.as_deref(), &self.config.password) {
            (None, None) => None,
            (user, password) => Some((user, password.as_ref().map_or("", |password| &password.0))),
        }
    }

    async fn call(&mut self, command: Cmd) -> Result<Result<(), ServerError>, ConnectError> {
        let mut out = Vec::new();
        ArgWriter::new(&mut out).command(&command);
        self.io.write_all(&out).await.map_err(|error| self.broken(error))?;
        self.io.flush().await.map_err(|error| self.broken(error))?;
        let reply = self.reply().await?;
        Ok(match Reader::new(&reply, 0).token() {
            Ok(Token::Error(text)) => Err(ServerError::new(without_arguments(text))),
            Ok(_) => Ok(()),
            Err(error) => return Err(self.broken(error)),
        })
    }

    async fn reply(&mut self) -> Result<Bytes, ConnectError> {
        loop {
            match self.framer.next(&self.input).map_err(|error| self.broken(error))? {
                Step::Frame(_, range) => {
                    self.framer.consumed(range.end);
                    return Ok(self.input.split_to(range.end).freeze());
                }
                Step::Need(_) => {
                    let count =
                        self.io.read_buf(&mut self.input).await.map_err(|error| self.broken(error))?;
                    if count == 0 {
                        return Err(self.broken("the server closed it"));
                    }
                }
            }
        }
    }

    fn broken(&self, reason: impl ToString) -> ConnectError {
        ConnectError::Handshake { address: self.config.address.to_string(), reason: reason.to_string() }
    }
}

/// A server that doesn't know HELLO or AUTH repeats their arguments, and one of those is the password.
fn without_arguments(text: &[u8]) -> &[u8] {
    const ARGUMENTS: &[u8] = b", with args beginning with";
    memchr::memmem::find(text, ARGUMENTS).map_or(text, |at| &text[..at])
}

fn refusal(command: &'static str, error: ServerError) -> ConnectError {
    match error.code() {
        "WRONGPASS" | "NOAUTH" => ConnectError::Auth(error),
        "NOPERM" => ConnectError::Permission { command, error },
        _ if error.text().contains("AUTH") || error.text().contains("password") => ConnectError::Auth(error),
        _ => ConnectError::Refused { command, error },
    }
}

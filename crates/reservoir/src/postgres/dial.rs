//! Dialing a Postgres server: name lookup, TCP or Unix socket, TLS and start-up, under one
//! deadline.
//!
//! Invariant: a start-up gets a stream with TLS already negotiated, and the remaining time.
//!
//! TLS is negotiated here because tokio-postgres supports neither the verifying modes nor the retry
//! of `prefer`, and its errors don't name the cause.
//!
//! Out of scope: the protocol on the stream; see `startup.rs`.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use std::{fmt, io};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::lookup_host;
use tokio::time::{Instant, timeout_at};
use tokio_rustls::TlsConnector;

use super::error::PostgresError;
use super::settings::{ConnectSettings, Host};
use super::socket::PostgresSocket;
use super::starting_socket::StartingSocket;
use super::startup::{PostgresStartup, PostgresStartupParams};
use super::stream::PostgresStream;
use super::tls::{ALPN, SslMode, TlsContext};
use crate::connect::DialSlot;
use crate::credentials::AuthSecret;

/// `SSLRequest` message: length and code.
const SSL_REQUEST: [u8; 8] = [0, 0, 0, 8, 0x04, 0xd2, 0x16, 0x2f];

/// Settings and TLS context of a connector.
pub(super) struct ConnectPlan {
    pub(super) settings: ConnectSettings,
    pub(super) mode: SslMode,
    /// `None`: `sslmode=disable`.
    pub(super) encryption: Option<Arc<TlsContext>>,
}

/// A resolved address of a host.
#[derive(Debug, Clone)]
pub(super) enum ServerAddress {
    Tcp { name: String, address: SocketAddr },
    Unix(PathBuf),
}

impl fmt::Display for ServerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ServerAddress::Tcp { name, address } if name.parse::<IpAddr>().is_ok() => address.fmt(f),
            ServerAddress::Tcp { name, address } => write!(f, "{name}:{} ({})", address.port(), address.ip()),
            ServerAddress::Unix(path) => path.display().fmt(f),
        }
    }
}

/// Deadline of a dial, and the timeout it was created with.
#[derive(Clone, Copy)]
pub(super) struct DialDeadline {
    pub(super) at: Instant,
    after: Duration,
}

impl DialDeadline {
    pub(super) fn after(after: Duration) -> Self {
        DialDeadline { at: Instant::now() + after, after }
    }

    /// Divides the remaining time, so that an unresponsive host leaves time for the others.
    fn share(self, among: usize) -> Self {
        let left = self.at.saturating_duration_since(Instant::now());
        let among = u32::try_from(among).unwrap_or(u32::MAX).max(1);
        DialDeadline { at: Instant::now() + left / among, ..self }
    }

    pub(super) async fn bound<F: Future>(
        self,
        server: &(dyn fmt::Display + Sync),
        step: &'static str,
        future: F,
    ) -> Result<F::Output, PostgresError> {
        let timeout = |_| PostgresError::Timeout { address: server.to_string(), step, after: self.after };
        timeout_at(self.at, future).await.map_err(timeout)
    }
}

/// Dials the hosts of a plan and starts a session.
pub(super) struct SessionDialer<'a, S> {
    pub(super) plan: &'a Arc<ConnectPlan>,
    pub(super) password: Option<&'a AuthSecret>,
    pub(super) start: &'a S,
    /// Held by abandoned sockets; `None` outside of a reservoir.
    pub(super) slot: Option<DialSlot>,
}

impl<S: PostgresStartup> SessionDialer<'_, S> {
    /// Tries all hosts in order, each with its share of the time.
    pub(super) async fn open(&self) -> Result<S::Session, PostgresError> {
        let deadline = DialDeadline::after(self.plan.settings.connect_timeout);
        let hosts = &self.plan.settings.hosts;
        let mut last = None;
        for (index, host) in hosts.iter().enumerate() {
            match self.open_host(host, deadline.share(hosts.len() - index)).await {
                Ok(session) => return Ok(session),
                Err(error) if error.stops_host_search() => return Err(error),
                Err(error) => last = Some(error),
            }
        }
        Err(last.expect("there is at least one host"))
    }

    /// Tries all addresses of a host in order. Each TCP connect gets its share of the time; TLS and
    /// start-up may use all that remains.
    async fn open_host(&self, host: &Host, deadline: DialDeadline) -> Result<S::Session, PostgresError> {
        let addresses = resolve(host, deadline).await?;
        let mut last = None;
        for (index, server) in addresses.iter().enumerate() {
            let tried = async {
                let socket = dial(self.plan, server, deadline.share(addresses.len() - index)).await?;
                // Boxed: the future is large, and the caller's stack may already be deep.
                Box::pin(self.open_address(server, socket, deadline)).await
            };
            match tried.await {
                Ok(session) => return Ok(session),
                Err(error) if error.stops_host_search() => return Err(error),
                Err(error) => last = Some(error),
            }
        }
        Err(last.expect("a name that is found has an address"))
    }

    async fn open_address(
        &self,
        server: &ServerAddress,
        socket: PostgresSocket,
        deadline: DialDeadline,
    ) -> Result<S::Session, PostgresError> {
        let plan = self.plan;
        let mut starting = StartingSocket::new(&socket, self.slot.as_ref());
        let negotiating = negotiate(plan, server, socket);
        let negotiated = deadline.bound(server, "negotiating TLS", negotiating).await?;
        let was_plain = negotiated.as_ref().is_ok_and(|stream| !stream.is_encrypted());
        let started = match negotiated {
            Ok(stream) => self.start(server, stream, deadline).await,
            Err(error) => Err(error),
        };
        match started {
            // The first connection must be closed before the second: the server counts both.
            Err(error)
                if plan.mode == SslMode::Prefer
                    && !was_plain
                    && error.allows_retry_without_tls()
                    && starting.shutdown_and_wait(deadline).await =>
            {
                tracing::debug!(address = %server, %error, "retrying without TLS: sslmode=prefer");
                Box::pin(self.open_without_tls(server, deadline)).await
            }
            started => finish(starting, started, deadline).await,
        }
    }

    async fn open_without_tls(
        &self,
        server: &ServerAddress,
        deadline: DialDeadline,
    ) -> Result<S::Session, PostgresError> {
        let socket = dial(self.plan, server, deadline).await?;
        let starting = StartingSocket::new(&socket, self.slot.as_ref());
        let started = self.start(server, PostgresStream::plain(socket), deadline).await;
        finish(starting, started, deadline).await
    }

    async fn start(
        &self,
        server: &ServerAddress,
        stream: PostgresStream,
        deadline: DialDeadline,
    ) -> Result<S::Session, PostgresError> {
        let params = PostgresStartupParams { plan: self.plan, server, password: self.password, deadline };
        deadline.bound(server, "authenticating", self.start.start(stream, &params)).await?
    }
}

/// Ends a start-up. A server that refused it gets some time to close its end, because it counts the
/// connection until then.
async fn finish<T>(
    mut starting: StartingSocket,
    started: Result<T, PostgresError>,
    deadline: DialDeadline,
) -> Result<T, PostgresError> {
    match &started {
        Ok(_) => starting.started(),
        Err(error) if error.is_server_reply() => {
            starting.shutdown_and_wait(deadline).await;
        }
        Err(_) => {}
    }
    started
}

async fn resolve(host: &Host, deadline: DialDeadline) -> Result<Vec<ServerAddress>, PostgresError> {
    let (name, port) = match host {
        Host::Unix(path) => return Ok(vec![ServerAddress::Unix(path.clone())]),
        Host::Tcp { name, address: Some(ip), port } => {
            return Ok(vec![ServerAddress::Tcp { name: name.clone(), address: SocketAddr::new(*ip, *port) }]);
        }
        Host::Tcp { name, address: None, port } => (name, *port),
    };
    let failed = |source| PostgresError::Resolve { host: name.clone(), source };
    let found = deadline.bound(host, "looking up the name", lookup_host((name.as_str(), port))).await?;
    let addresses = ipv6_first(found.map_err(failed)?);
    if addresses.is_empty() {
        return Err(failed(io::Error::new(io::ErrorKind::NotFound, "it has no address")));
    }
    Ok(addresses.into_iter().map(|address| ServerAddress::Tcp { name: name.clone(), address }).collect())
}

/// Sorts IPv6 addresses before IPv4 ones; otherwise keeps the resolver's order.
fn ipv6_first(addresses: impl Iterator<Item = SocketAddr>) -> Vec<SocketAddr> {
    let mut addresses: Vec<_> = addresses.collect();
    addresses.sort_by_key(SocketAddr::is_ipv4);
    addresses
}

async fn dial(
    plan: &ConnectPlan,
    server: &ServerAddress,
    deadline: DialDeadline,
) -> Result<PostgresSocket, PostgresError> {
    let dialed = match server {
        ServerAddress::Tcp { address, .. } => {
            deadline.bound(server, "connecting", PostgresSocket::tcp(*address, plan.settings.tcp)).await?
        }
        ServerAddress::Unix(path) => deadline.bound(server, "connecting", PostgresSocket::unix(path)).await?,
    };
    dialed.map_err(|source| PostgresError::Dial { address: server.to_string(), source })
}

/// Negotiates TLS on a new socket; the stream stays plain only if the plan allows it.
pub(super) async fn negotiate(
    plan: &ConnectPlan,
    server: &ServerAddress,
    socket: PostgresSocket,
) -> Result<PostgresStream, PostgresError> {
    // As in libpq, a Unix socket is never encrypted.
    let (Some(encryption), ServerAddress::Tcp { name, address }) = (&plan.encryption, server) else {
        return Ok(PostgresStream::plain(socket));
    };
    let direct = plan.settings.direct_tls;
    let failed = |source| PostgresError::Tls { address: server.to_string(), direct, source };
    let mut socket = socket;
    if !direct && request_tls(&mut socket, server).await? == TlsReply::Refused {
        return match plan.mode {
            SslMode::Disable | SslMode::Prefer => Ok(PostgresStream::plain(socket)),
            mode @ (SslMode::Require | SslMode::VerifyCa | SslMode::VerifyFull) => {
                Err(PostgresError::NoTls { address: server.to_string(), mode })
            }
        };
    }
    let name = encryption.name(name, address.ip()).ok_or_else(|| {
        failed(io::Error::new(io::ErrorKind::InvalidInput, "the host's name can't be in a certificate"))
    })?;
    let connector = TlsConnector::from(encryption.config().await);
    let stream = connector.connect(name, socket.clone()).await.map_err(failed)?;
    // Without ALPN, the peer may be a server of another protocol with the same certificate.
    if direct && stream.get_ref().1.alpn_protocol() != Some(ALPN) {
        let problem = "the server didn't agree to speak Postgres (ALPN)";
        return Err(failed(io::Error::new(io::ErrorKind::InvalidData, problem)));
    }
    Ok(PostgresStream::encrypted(socket, stream))
}

/// Reply of the server to a request for TLS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TlsReply {
    Accepted,
    Refused,
}

/// Reads exactly one byte: plain bytes after it must not be taken for encrypted data.
async fn request_tls(socket: &mut PostgresSocket, server: &ServerAddress) -> Result<TlsReply, PostgresError> {
    let mut asking = async || {
        socket.write_all(&SSL_REQUEST).await?;
        socket.read_u8().await
    };
    let message =
        asking().await.map_err(|source| PostgresError::Dial { address: server.to_string(), source })?;
    match message {
        b'S' => Ok(TlsReply::Accepted),
        b'N' => Ok(TlsReply::Refused),
        // The text of the error can't be trusted, because the server isn't authenticated yet.
        b'E' => Err(PostgresError::Dial {
            address: server.to_string(),
            source: io::Error::other("the server failed before TLS began; its log says why"),
        }),
        other => Err(PostgresError::NotPostgres {
            address: server.to_string(),
            found: format!("it answered a request for TLS with 0x{other:02x}"),
        }),
    }
}

/// Dials the same address again, with the same encryption, to send a cancel request.
pub(super) async fn redial(
    plan: &ConnectPlan,
    server: &ServerAddress,
    encrypted: bool,
) -> Result<(PostgresSocket, PostgresStream), PostgresError> {
    let deadline = DialDeadline::after(plan.settings.connect_timeout);
    let socket = dial(plan, server, deadline).await?;
    let stream = match encrypted {
        true => deadline.bound(server, "negotiating TLS", negotiate(plan, server, socket.clone())).await??,
        false => PostgresStream::plain(socket.clone()),
    };
    Ok((socket, stream))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ipv6_addresses_come_first_and_keep_their_order() {
        let addresses =
            ["10.0.0.2:1", "[fd00::2]:1", "10.0.0.1:1", "[fd00::1]:1"].map(|it| it.parse().unwrap());
        let sorted: Vec<_> = ipv6_first(addresses.into_iter()).iter().map(ToString::to_string).collect();
        assert_eq!(sorted, ["[fd00::2]:1", "[fd00::1]:1", "10.0.0.2:1", "10.0.0.1:1"]);
    }
}

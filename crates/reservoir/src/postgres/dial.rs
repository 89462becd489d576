//! Making a connection: name, dial, TLS, start-up, all under one deadline.
//!
//! Invariant: a start-up gets a stream that is already what it should be, and as much time as is left.
//!
//! TLS is negotiated here and not by tokio-postgres: it knows neither the modes that verify nor `prefer`'s second try,
//! and its errors don't say what failed.
//!
//! Not here: what is said on the stream; see `start.rs`.

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
use super::settings::{Host, Settings};
use super::socket::Socket;
use super::start::{PostgresStart, PostgresTerms};
use super::starting::StartingSocket;
use super::stream::PostgresStream;
use super::tls::{ALPN, Encryption, SslMode};
use crate::connect::DialSlot;
use crate::credentials::Secret;

/// Length and code of a request for TLS.
const SSL_REQUEST: [u8; 8] = [0, 0, 0, 8, 0x04, 0xd2, 0x16, 0x2f];

/// How connections of one kind are made.
pub(super) struct Plan {
    pub(super) settings: Settings,
    pub(super) mode: SslMode,
    /// `None`: `sslmode=disable`.
    pub(super) encryption: Option<Arc<Encryption>>,
}

/// One address of a host, found.
#[derive(Debug, Clone)]
pub(super) enum Place {
    Tcp { name: String, address: SocketAddr },
    Unix(PathBuf),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Tcp { name, address } if name.parse::<IpAddr>().is_ok() => address.fmt(f),
            Place::Tcp { name, address } => write!(f, "{name}:{} ({})", address.port(), address.ip()),
            Place::Unix(path) => path.display().fmt(f),
        }
    }
}

/// When all of it must be done, and how long that was from the start.
#[derive(Clone, Copy)]
pub(super) struct Deadline {
    pub(super) at: Instant,
    after: Duration,
}

impl Deadline {
    pub(super) fn after(after: Duration) -> Self {
        Deadline { at: Instant::now() + after, after }
    }

    /// A share of what is left, so that one that doesn't answer leaves time for the others.
    fn share(self, among: usize) -> Self {
        let left = self.at.saturating_duration_since(Instant::now());
        let among = u32::try_from(among).unwrap_or(u32::MAX).max(1);
        Deadline { at: Instant::now() + left / among, ..self }
    }

    pub(super) async fn bound<F: Future>(
        self,
        place: &(dyn fmt::Display + Sync),
        step: &'static str,
        future: F,
    ) -> Result<F::Output, PostgresError> {
        let timeout = |_| PostgresError::Timeout { address: place.to_string(), step, after: self.after };
        timeout_at(self.at, future).await.map_err(timeout)
    }
}

/// A session to be, wherever its server is found.
pub(super) struct Opening<'a, S> {
    pub(super) plan: &'a Arc<Plan>,
    pub(super) password: Option<&'a Secret>,
    pub(super) start: &'a S,
    /// Held by sockets that are given up; `None`: nothing counts them.
    pub(super) slot: Option<DialSlot>,
}

impl<S: PostgresStart> Opening<'_, S> {
    /// Tries every host in its turn, each with its share of the time.
    pub(super) async fn open(&self) -> Result<S::Session, PostgresError> {
        let deadline = Deadline::after(self.plan.settings.connect_timeout);
        let hosts = &self.plan.settings.hosts;
        let mut last = None;
        for (index, host) in hosts.iter().enumerate() {
            match self.open_host(host, deadline.share(hosts.len() - index)).await {
                Ok(session) => return Ok(session),
                Err(error) if error.ends_the_search() => return Err(error),
                Err(error) => last = Some(error),
            }
        }
        Err(last.expect("there is at least one host"))
    }

    /// Tries every address of a host in its turn. What can't even be dialed gets its share of the time; a server that
    /// took the connection may use what is left.
    async fn open_host(&self, host: &Host, deadline: Deadline) -> Result<S::Session, PostgresError> {
        let places = places(host, deadline).await?;
        let mut last = None;
        for (index, place) in places.iter().enumerate() {
            let tried = async {
                let socket = dial(self.plan, place, deadline.share(places.len() - index)).await?;
                // Boxed: it is large, and whoever dials may be deep in the stack already.
                Box::pin(self.open_place(place, socket, deadline)).await
            };
            match tried.await {
                Ok(session) => return Ok(session),
                Err(error) if error.ends_the_search() => return Err(error),
                Err(error) => last = Some(error),
            }
        }
        Err(last.expect("a name that is found has an address"))
    }

    async fn open_place(
        &self,
        place: &Place,
        socket: Socket,
        deadline: Deadline,
    ) -> Result<S::Session, PostgresError> {
        let plan = self.plan;
        let mut starting = StartingSocket::new(&socket, self.slot.as_ref());
        let negotiating = negotiate(plan, place, socket);
        let negotiated = deadline.bound(place, "negotiating TLS", negotiating).await?;
        let was_plain = negotiated.as_ref().is_ok_and(|stream| !stream.is_encrypted());
        let started = match negotiated {
            Ok(stream) => self.start(place, stream, deadline).await,
            Err(error) => Err(error),
        };
        match started {
            // Not beside the first connection: the two might be one too many.
            Err(error)
                if plan.mode == SslMode::Prefer
                    && !was_plain
                    && error.is_worth_a_try_without_tls()
                    && starting.hang_up(deadline).await =>
            {
                tracing::debug!(address = %place, %error, "trying without TLS, as sslmode=prefer allows");
                Box::pin(self.open_without_tls(place, deadline)).await
            }
            started => finish(starting, started, deadline).await,
        }
    }

    async fn open_without_tls(&self, place: &Place, deadline: Deadline) -> Result<S::Session, PostgresError> {
        let socket = dial(self.plan, place, deadline).await?;
        let starting = StartingSocket::new(&socket, self.slot.as_ref());
        let started = self.start(place, PostgresStream::plain(socket), deadline).await;
        finish(starting, started, deadline).await
    }

    async fn start(
        &self,
        place: &Place,
        stream: PostgresStream,
        deadline: Deadline,
    ) -> Result<S::Session, PostgresError> {
        let terms = PostgresTerms { plan: self.plan, place, password: self.password, deadline };
        deadline.bound(place, "authenticating", self.start.start(stream, &terms)).await?
    }
}

/// Ends the start of a session. A server that refused it gets a moment to close its end: until then it counts, and whoever
/// tries again at once might be one too many.
async fn finish<T>(
    mut starting: StartingSocket,
    started: Result<T, PostgresError>,
    deadline: Deadline,
) -> Result<T, PostgresError> {
    match &started {
        Ok(_) => starting.started(),
        Err(error) if error.is_a_word_of_postgres() => {
            starting.hang_up(deadline).await;
        }
        Err(_) => {}
    }
    started
}

async fn places(host: &Host, deadline: Deadline) -> Result<Vec<Place>, PostgresError> {
    let (name, port) = match host {
        Host::Unix(path) => return Ok(vec![Place::Unix(path.clone())]),
        Host::Tcp { name, address: Some(ip), port } => {
            return Ok(vec![Place::Tcp { name: name.clone(), address: SocketAddr::new(*ip, *port) }]);
        }
        Host::Tcp { name, address: None, port } => (name, *port),
    };
    let failed = |source| PostgresError::Resolve { host: name.clone(), source };
    let found = deadline.bound(host, "looking up the name", lookup_host((name.as_str(), port))).await?;
    let addresses = in_turn(found.map_err(failed)?);
    if addresses.is_empty() {
        return Err(failed(io::Error::new(io::ErrorKind::NotFound, "it has no address")));
    }
    Ok(addresses.into_iter().map(|address| Place::Tcp { name: name.clone(), address }).collect())
}

/// IPv6 first, then IPv4, and as the name service ordered them otherwise.
fn in_turn(addresses: impl Iterator<Item = SocketAddr>) -> Vec<SocketAddr> {
    let mut addresses: Vec<_> = addresses.collect();
    addresses.sort_by_key(SocketAddr::is_ipv4);
    addresses
}

async fn dial(plan: &Plan, place: &Place, deadline: Deadline) -> Result<Socket, PostgresError> {
    let dialed = match place {
        Place::Tcp { address, .. } => {
            deadline.bound(place, "connecting", Socket::tcp(*address, plan.settings.tcp)).await?
        }
        Place::Unix(path) => deadline.bound(place, "connecting", Socket::unix(path)).await?,
    };
    dialed.map_err(|source| PostgresError::Dial { address: place.to_string(), source })
}

/// Encrypts a fresh socket as the plan says; it stays plain only where that is allowed.
pub(super) async fn negotiate(
    plan: &Plan,
    place: &Place,
    socket: Socket,
) -> Result<PostgresStream, PostgresError> {
    // As in libpq, a Unix socket is never encrypted, whatever the mode.
    let (Some(encryption), Place::Tcp { name, address }) = (&plan.encryption, place) else {
        return Ok(PostgresStream::plain(socket));
    };
    let direct = plan.settings.direct_tls;
    let failed = |source| PostgresError::Tls { address: place.to_string(), direct, source };
    let mut socket = socket;
    if !direct && !ask_for_tls(&mut socket, place).await? {
        return match plan.mode {
            SslMode::Disable | SslMode::Prefer => Ok(PostgresStream::plain(socket)),
            mode @ (SslMode::Require | SslMode::VerifyCa | SslMode::VerifyFull) => {
                Err(PostgresError::NoTls { address: place.to_string(), mode })
            }
        };
    }
    let name = encryption.name(name, address.ip()).ok_or_else(|| {
        failed(io::Error::new(io::ErrorKind::InvalidInput, "the host's name can't be in a certificate"))
    })?;
    let connector = TlsConnector::from(encryption.config().await);
    let stream = connector.connect(name, socket.clone()).await.map_err(failed)?;
    // Without it, who answers may be a server of another protocol that shares the certificate.
    if direct && stream.get_ref().1.alpn_protocol() != Some(ALPN) {
        let problem = "the server didn't agree to speak Postgres (ALPN)";
        return Err(failed(io::Error::new(io::ErrorKind::InvalidData, problem)));
    }
    Ok(PostgresStream::encrypted(socket, stream))
}

/// Reads one byte and no more: whatever followed it in the clear must not be taken for what came encrypted.
async fn ask_for_tls(socket: &mut Socket, place: &Place) -> Result<bool, PostgresError> {
    let mut asking = async || {
        socket.write_all(&SSL_REQUEST).await?;
        socket.read_u8().await
    };
    let answer =
        asking().await.map_err(|source| PostgresError::Dial { address: place.to_string(), source })?;
    match answer {
        b'S' => Ok(true),
        b'N' => Ok(false),
        // What it says can't be trusted, since nobody knows yet who says it.
        b'E' => Err(PostgresError::Dial {
            address: place.to_string(),
            source: io::Error::other("the server failed before TLS began; its log says why"),
        }),
        other => Err(PostgresError::NotPostgres {
            address: place.to_string(),
            found: format!("it answered a request for TLS with 0x{other:02x}"),
        }),
    }
}

/// Opens a socket to the same place once more, encrypted as the first was, for a request to cancel.
pub(super) async fn open_again(
    plan: &Plan,
    place: &Place,
    encrypted: bool,
) -> Result<(Socket, PostgresStream), PostgresError> {
    let deadline = Deadline::after(plan.settings.connect_timeout);
    let socket = dial(plan, place, deadline).await?;
    let stream = match encrypted {
        true => deadline.bound(place, "negotiating TLS", negotiate(plan, place, socket.clone())).await??,
        false => PostgresStream::plain(socket.clone()),
    };
    Ok((socket, stream))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_names_ipv6_addresses_come_first_and_keep_their_order() {
        let addresses =
            ["10.0.0.2:1", "[fd00::2]:1", "10.0.0.1:1", "[fd00::1]:1"].map(|it| it.parse().unwrap());
        let sorted: Vec<_> = in_turn(addresses.into_iter()).iter().map(ToString::to_string).collect();
        assert_eq!(sorted, ["[fd00::2]:1", "[fd00::1]:1", "10.0.0.2:1", "10.0.0.1:1"]);
    }
}

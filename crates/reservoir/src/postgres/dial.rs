//! Making a connection: name, dial, TLS, start-up, all under one deadline.
//!
//! TLS is negotiated here and not by tokio-postgres: it knows neither the modes that verify nor `prefer`'s second try,
//! and its errors don't say what failed. It gets a stream that is already what it should be.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use std::{fmt, io};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::lookup_host;
use tokio::time::{Instant, timeout_at};
use tokio_rustls::TlsConnector;

use super::client::{PostgresCancelToken, PostgresClient};
use super::error::PostgresError;
use super::settings::{Host, Session, Settings};
use super::socket::Socket;
use super::stream::{Done, Stream};
use super::tls::{ALPN, Encryption, SslMode};
use crate::connect::Connection as _;
use crate::credentials::Secret;

/// Length and code of a request for TLS.
const SSL_REQUEST: [u8; 8] = [0, 0, 0, 8, 0x04, 0xd2, 0x16, 0x2f];

/// How long a server that said no may take to hang up.
const GOODBYE: Duration = Duration::from_secs(1);

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
    at: Instant,
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

    async fn bound<F: Future>(
        self,
        place: &(dyn fmt::Display + Sync),
        step: &'static str,
        future: F,
    ) -> Result<F::Output, PostgresError> {
        let timeout = |_| PostgresError::Timeout { address: place.to_string(), step, after: self.after };
        timeout_at(self.at, future).await.map_err(timeout)
    }
}

/// Tries every host in its turn, each with its share of the time.
pub(super) async fn open(
    plan: &Arc<Plan>,
    password: Option<&Secret>,
) -> Result<PostgresClient, PostgresError> {
    let deadline = Deadline::after(plan.settings.connect_timeout);
    let hosts = &plan.settings.hosts;
    let mut last = None;
    for (index, host) in hosts.iter().enumerate() {
        match open_host(plan, host, password, deadline.share(hosts.len() - index)).await {
            Ok(client) => return Ok(client),
            Err(error) if error.ends_the_search() => return Err(error),
            Err(error) => last = Some(error),
        }
    }
    Err(last.expect("there is at least one host"))
}

/// Tries every address of a host in its turn. What can't even be dialed gets its share of the time; a server that
/// took the connection may use what is left.
async fn open_host(
    plan: &Arc<Plan>,
    host: &Host,
    password: Option<&Secret>,
    deadline: Deadline,
) -> Result<PostgresClient, PostgresError> {
    let places = places(host, deadline).await?;
    let mut last = None;
    for (index, place) in places.iter().enumerate() {
        let tried = async {
            let socket = dial(plan, place, deadline.share(places.len() - index)).await?;
            open_place(plan, place, socket, password, deadline).await
        };
        match tried.await {
            Ok(client) => return Ok(client),
            Err(error) if error.ends_the_search() => return Err(error),
            Err(error) => last = Some(error),
        }
    }
    Err(last.expect("a name that is found has an address"))
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
    let mut places: Vec<Place> = Vec::new();
    for address in found.map_err(failed)? {
        places.push(Place::Tcp { name: name.clone(), address });
    }
    match places.is_empty() {
        true => Err(failed(io::Error::new(io::ErrorKind::NotFound, "it has no address"))),
        false => Ok(places),
    }
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

async fn open_place(
    plan: &Arc<Plan>,
    place: &Place,
    socket: Socket,
    password: Option<&Secret>,
    deadline: Deadline,
) -> Result<PostgresClient, PostgresError> {
    let negotiating = negotiate(plan, place, socket.clone());
    let negotiated = deadline.bound(place, "negotiating TLS", negotiating).await?;
    let was_plain = matches!(negotiated, Ok(Stream::Plain(_)));
    let started = match negotiated {
        Ok(stream) => start(plan, place, socket, stream, password, deadline).await,
        Err(error) => Err(error),
    };
    match started {
        Err(error) if plan.mode == SslMode::Prefer && !was_plain && error.is_worth_a_try_without_tls() => {
            tracing::debug!(address = %place, %error, "trying without TLS, as sslmode=prefer allows");
            let socket = dial(plan, place, deadline).await?;
            start(plan, place, socket.clone(), Stream::Plain(socket), password, deadline).await
        }
        started => started,
    }
}

/// Encrypts a fresh socket as the plan says; it stays plain only where that is allowed.
pub(super) async fn negotiate(plan: &Plan, place: &Place, socket: Socket) -> Result<Stream, PostgresError> {
    // As in libpq, a Unix socket is never encrypted, whatever the mode.
    let (Some(encryption), Place::Tcp { name, address }) = (&plan.encryption, place) else {
        return Ok(Stream::Plain(socket));
    };
    let direct = plan.settings.direct_tls;
    let failed = |source| PostgresError::Tls { address: place.to_string(), direct, source };
    let mut socket = socket;
    if !direct && !ask_for_tls(&mut socket, place).await? {
        return match plan.mode {
            SslMode::Disable | SslMode::Prefer => Ok(Stream::Plain(socket)),
            mode @ (SslMode::Require | SslMode::VerifyCa | SslMode::VerifyFull) => {
                Err(PostgresError::NoTls { address: place.to_string(), mode })
            }
        };
    }
    let name = encryption.name(name, address.ip()).ok_or_else(|| {
        failed(io::Error::new(io::ErrorKind::InvalidInput, "the host's name can't be in a certificate"))
    })?;
    let stream = TlsConnector::from(encryption.config().await).connect(name, socket).await.map_err(failed)?;
    // Without it, who answers may be a server of another protocol that shares the certificate.
    if direct && stream.get_ref().1.alpn_protocol() != Some(ALPN) {
        let problem = "the server didn't agree to speak Postgres (ALPN)";
        return Err(failed(io::Error::new(io::ErrorKind::InvalidData, problem)));
    }
    Ok(Stream::Tls(Box::new(stream)))
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

async fn start(
    plan: &Arc<Plan>,
    place: &Place,
    socket: Socket,
    stream: Stream,
    password: Option<&Secret>,
    deadline: Deadline,
) -> Result<PostgresClient, PostgresError> {
    let (settings, encrypted) = (&plan.settings, matches!(stream, Stream::Tls(_)));
    let config = startup(settings, encrypted, password);
    let starting = deadline.bound(place, "authenticating", config.connect_raw(stream, Done)).await?;
    let (client, connection) = match starting {
        Ok(started) => started,
        Err(error) => {
            let error = PostgresError::from_client(&place.to_string(), &settings.user, error);
            if error.is_a_word_of_postgres() {
                // Until the server has let go of it, it counts; whoever tries again at once might be one too many.
                let _late = timeout_at(deadline.at.min(Instant::now() + GOODBYE), socket.hang_up()).await;
            }
            return Err(error);
        }
    };
    let cancel = PostgresCancelToken::new(Arc::clone(plan), place.clone(), encrypted, &client);
    let client = PostgresClient::start(client, connection, socket, cancel);
    let checking = is_wanted(&client, settings.session);
    match deadline.bound(place, "asking what the server is", checking).await? {
        Ok(None) => Ok(client),
        Ok(Some(wanted)) => {
            // Until it is gone it counts, and the next server's connection might be one too many.
            deadline.bound(place, "closing", client.close()).await?;
            Err(PostgresError::WrongSession { address: place.to_string(), wanted })
        }
        Err(error) => Err(PostgresError::from_client(&place.to_string(), &settings.user, error)),
    }
}

fn startup(settings: &Settings, encrypted: bool, password: Option<&Secret>) -> tokio_postgres::Config {
    let mut config = tokio_postgres::Config::new();
    config.user(&settings.user).channel_binding(settings.channel_binding);
    // The stream is what it should be: see `Done`.
    match encrypted {
        true => config
            .ssl_mode(tokio_postgres::config::SslMode::Require)
            .ssl_negotiation(tokio_postgres::config::SslNegotiation::Direct),
        false => config.ssl_mode(tokio_postgres::config::SslMode::Disable),
    };
    if let Some(database) = &settings.database {
        config.dbname(database);
    }
    if let Some(name) = &settings.application_name {
        config.application_name(name);
    }
    if let Some(options) = &settings.options {
        config.options(options);
    }
    if let Some(password) = password {
        config.password(password.reveal());
    }
    config
}

/// `Some`: what the server would have to be.
async fn is_wanted(
    client: &PostgresClient,
    session: Session,
) -> Result<Option<&'static str>, tokio_postgres::Error> {
    let (sql, good, wanted) = match session {
        Session::Any => return Ok(None),
        Session::ReadWrite => ("SHOW transaction_read_only", "off", "read-write"),
        Session::ReadOnly => ("SHOW transaction_read_only", "on", "read-only"),
        Session::Primary => ("SELECT pg_catalog.pg_is_in_recovery()", "f", "a primary"),
        Session::Standby => ("SELECT pg_catalog.pg_is_in_recovery()", "t", "a standby"),
    };
    let answers = client.simple_query(sql).await?;
    let is_good = answers.iter().any(|answer| match answer {
        tokio_postgres::SimpleQueryMessage::Row(row) => row.get(0) == Some(good),
        _ => false,
    });
    Ok((!is_good).then_some(wanted))
}

/// Opens a socket to the same place once more, encrypted as the first was, for a request to cancel.
pub(super) async fn open_again(
    plan: &Plan,
    place: &Place,
    encrypted: bool,
) -> Result<(Socket, Stream), PostgresError> {
    let deadline = Deadline::after(plan.settings.connect_timeout);
    let socket = dial(plan, place, deadline).await?;
    let stream = match encrypted {
        true => deadline.bound(place, "negotiating TLS", negotiate(plan, place, socket.clone())).await??,
        false => Stream::Plain(socket.clone()),
    };
    Ok((socket, stream))
}

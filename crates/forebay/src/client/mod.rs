//! HTTP/1.1 client, for commands that query a running instance, and for telemetry.
//!
//! Invariant: no request waits forever for a dead peer. No response takes more memory than the
//! caller allows. No error contains a query or a secret.
//! Enforced by: TCP keep-alive on every connection, and on Linux a user timeout; a bound in
//! [`HttpClient::body`]; errors name only the address.
//! Out of scope: a peer whose process hangs. A caller that needs a timeout sets one.

mod endpoint;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, AUTHORIZATION, HOST};
use http::{HeaderValue, Request, Response};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

pub use self::endpoint::{Endpoint, EndpointError};

/// Timeout for connecting, including the TLS handshake.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Time without traffic before TCP keep-alive probes start, and between probes.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(15);
/// Time after which unacknowledged data closes the connection.
const USER_TIMEOUT: Duration = Duration::from_secs(45);

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// The connection can't be opened.
    #[error("can't connect to {at}: {source}")]
    Connect {
        /// Address of the server.
        at: String,
        /// Error of the system.
        source: io::Error,
    },
    /// The connection was lost, or the peer doesn't speak HTTP.
    #[error("connection to {at} lost: {source}")]
    Disconnected {
        /// Address of the server.
        at: String,
        /// Error of the connection.
        source: hyper::Error,
    },
    /// The response body exceeds the caller's limit.
    #[error("the response is larger than {limit} bytes")]
    TooLarge {
        /// Maximum size in bytes.
        limit: usize,
    },
    /// The path or the secret isn't valid in HTTP.
    #[error("the request can't be sent: {what}")]
    Unsendable {
        /// The invalid part.
        what: &'static str,
    },
}

/// Client of one server. Keeps its connection open between requests.
#[derive(Debug)]
pub struct HttpClient {
    endpoint: Endpoint,
    sender: Option<SendRequest<Full<Bytes>>>,
    tls: Option<Arc<ClientConfig>>,
}

impl HttpClient {
    /// Creates a client. It connects with the first request.
    pub fn new(endpoint: Endpoint) -> HttpClient {
        HttpClient { endpoint, sender: None, tls: None }
    }

    /// Returns the server's address.
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Sends a GET, and returns the head of the response. Reconnects if the idle connection was
    /// closed.
    ///
    /// # Errors
    /// Fails if there is no response.
    pub async fn get(&mut self, path: &str, bearer: Option<&str>) -> Result<Response<Incoming>, ClientError> {
        let request = self.request(path, bearer)?;
        self.send(request).await
    }

    /// Sends a POST. Like [`get`](Self::get), it is sent again if the connection was closed, so it
    /// may arrive twice.
    ///
    /// # Errors
    /// Fails if there is no response.
    #[cfg(feature = "otel")]
    pub async fn post(
        &mut self,
        path: &str,
        headers: &http::HeaderMap,
        body: Bytes,
    ) -> Result<Response<Incoming>, ClientError> {
        let mut request = self.request(path, None)?;
        *request.method_mut() = http::Method::POST;
        request.headers_mut().extend(headers.clone());
        *request.body_mut() = Full::new(body);
        self.send(request).await
    }

    async fn send(&mut self, request: Request<Full<Bytes>>) -> Result<Response<Incoming>, ClientError> {
        if let Some(mut sender) = self.sender.take()
            && sender.ready().await.is_ok()
            && let Ok(response) = sender.send_request(request.clone()).await
        {
            self.sender = Some(sender);
            return Ok(response);
        }
        let mut sender = self.connect().await?;
        let disconnected = |source| ClientError::Disconnected { at: self.endpoint.to_string(), source };
        let response = sender.send_request(request).await.map_err(disconnected)?;
        self.sender = Some(sender);
        Ok(response)
    }

    /// Reads the body of a response. `on_data` receives each part as it arrives.
    ///
    /// # Errors
    /// Fails if the connection is lost, or if the body is larger than `limit`. The connection is
    /// then closed.
    pub async fn body(
        &mut self,
        mut response: Response<Incoming>,
        limit: usize,
        mut on_data: impl FnMut(&[u8]),
    ) -> Result<Vec<u8>, ClientError> {
        let mut body = Vec::new();
        while let Some(frame) = response.frame().await {
            let frame = frame.map_err(|source| {
                self.sender = None;
                ClientError::Disconnected { at: self.endpoint.to_string(), source }
            })?;
            let Ok(data) = frame.into_data() else { continue };
            if body.len() + data.len() > limit {
                self.sender = None;
                return Err(ClientError::TooLarge { limit });
            }
            body.extend_from_slice(&data);
            on_data(&data);
        }
        Ok(body)
    }

    fn request(&self, path: &str, bearer: Option<&str>) -> Result<Request<Full<Bytes>>, ClientError> {
        let unsendable = |what| ClientError::Unsendable { what };
        let mut request = Request::get(format!("{}{path}", self.endpoint.prefix()))
            .header(HOST, self.endpoint.authority())
            .header(ACCEPT, "application/json")
            .body(Full::default())
            .map_err(|_| unsendable("the path is invalid"))?;
        if let Some(secret) = bearer {
            let mut value = HeaderValue::try_from(format!("Bearer {secret}"))
                .map_err(|_| unsendable("the secret has characters that are not allowed in a header"))?;
            value.set_sensitive(true);
            request.headers_mut().insert(AUTHORIZATION, value);
        }
        Ok(request)
    }

    async fn connect(&mut self) -> Result<SendRequest<Full<Bytes>>, ClientError> {
        let at = self.endpoint.to_string();
        let connecting = timeout(CONNECT_TIMEOUT, async {
            let socket = TcpStream::connect((self.endpoint.host(), self.endpoint.port())).await?;
            set_tcp_timeouts(&socket)?;
            if !self.endpoint.is_tls() {
                return Ok(start(socket).await);
            }
            let config = match &self.tls {
                Some(config) => Arc::clone(config),
                None => Arc::clone(self.tls.insert(system_tls_config()?)),
            };
            let name = ServerName::try_from(self.endpoint.host().to_owned()).map_err(io::Error::other)?;
            Ok(start(TlsConnector::from(config).connect(name, socket).await?).await)
        });
        let timed_out =
            || io::Error::new(io::ErrorKind::TimedOut, format!("no response within {CONNECT_TIMEOUT:?}"));
        let connected = connecting.await.unwrap_or_else(|_| Err(timed_out()));
        let started = connected.map_err(|source| ClientError::Connect { at: at.clone(), source })?;
        started.map_err(|source| ClientError::Disconnected { at, source })
    }
}

/// Starts HTTP on a stream. A task drives the connection, and ends with it.
async fn start<S>(stream: S) -> Result<SendRequest<Full<Bytes>>, hyper::Error>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (sender, connection) = handshake(TokioIo::new(stream)).await?;
    // The error reaches the caller through its pending request.
    tokio::spawn(async { drop(connection.await) });
    Ok(sender)
}

/// Makes the kernel close the connection if the peer is dead.
fn set_tcp_timeouts(socket: &TcpStream) -> io::Result<()> {
    socket.set_nodelay(true)?;
    let socket = socket2::SockRef::from(socket);
    socket.set_tcp_keepalive(
        &socket2::TcpKeepalive::new()
            .with_time(KEEPALIVE_INTERVAL)
            .with_interval(KEEPALIVE_INTERVAL)
            .with_retries(2),
    )?;
    #[cfg(target_os = "linux")]
    socket.set_tcp_user_timeout(Some(USER_TIMEOUT))?;
    Ok(())
}

/// Returns a configuration that trusts the system's certificates.
fn system_tls_config() -> io::Result<Arc<ClientConfig>> {
    let mut roots = RootCertStore::empty();
    let (added, _ignored) = roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if added == 0 {
        return Err(io::Error::other(
            "this system trusts no certificates: install ca-certificates, or set SSL_CERT_FILE",
        ));
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let builder = builder.map_err(io::Error::other)?;
    Ok(Arc::new(builder.with_root_certificates(roots).with_no_client_auth()))
}

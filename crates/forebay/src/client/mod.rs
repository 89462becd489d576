//! A small HTTP/1.1 client, for the commands that ask a running instance, and for telemetry on its way to a collector.
//!
//! Invariant: nothing waits for ever on a dead peer, no answer takes more memory than its caller allows, and no error repeats a
//! query or a secret.
//! Kept by: TCP's keep-alive and user timeout watch what may be silent for long; [`Client::body`] has a bound; errors name the address only.

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

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// A peer that is gone without a word is noticed after about as long.
const SILENCE: Duration = Duration::from_secs(15);
const DEAD_AFTER: Duration = Duration::from_secs(45);

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// Nobody is there.
    #[error("can't connect to {at}: {source}")]
    Connect {
        /// The address.
        at: String,
        /// What the system said.
        source: io::Error,
    },
    /// The connection broke, or what came is no HTTP.
    #[error("the connection to {at} broke: {source}")]
    Broke {
        /// The address.
        at: String,
        /// How.
        source: hyper::Error,
    },
    /// The answer is larger than anybody could mean.
    #[error("the answer is larger than {most} bytes")]
    TooLarge {
        /// What is allowed.
        most: usize,
    },
    /// A path or a secret that can't be sent.
    #[error("the request can't be sent: {what}")]
    Unsendable {
        /// What is wrong.
        what: &'static str,
    },
}

/// A client of one server; it keeps its connection.
#[derive(Debug)]
pub struct Client {
    endpoint: Endpoint,
    sender: Option<SendRequest<Full<Bytes>>>,
    tls: Option<Arc<ClientConfig>>,
}

impl Client {
    /// Connects with the first request.
    pub fn new(endpoint: Endpoint) -> Client {
        Client { endpoint, sender: None, tls: None }
    }

    /// Where it asks.
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Sends a GET, and resolves with the head of the answer. A connection that was closed while it waited is replaced.
    ///
    /// # Errors
    /// When there is no answer.
    pub async fn get(&mut self, path: &str, bearer: Option<&str>) -> Result<Response<Incoming>, ClientError> {
        let request = self.request(path, bearer)?;
        self.send(request).await
    }

    /// Sends a POST, as [`get`](Self::get) does: one that met a closed connection is sent again, and may arrive twice.
    ///
    /// # Errors
    /// When there is no answer.
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
        let broke = |source| ClientError::Broke { at: self.endpoint.to_string(), source };
        let response = sender.send_request(request).await.map_err(broke)?;
        self.sender = Some(sender);
        Ok(response)
    }

    /// All of an answer's body; `seen` is shown what comes as it comes.
    ///
    /// # Errors
    /// When it breaks off, or is larger than `most`. The connection is not used again.
    pub async fn body(
        &mut self,
        mut response: Response<Incoming>,
        most: usize,
        mut seen: impl FnMut(&[u8]),
    ) -> Result<Vec<u8>, ClientError> {
        let mut body = Vec::new();
        while let Some(frame) = response.frame().await {
            let frame = frame.map_err(|source| {
                self.sender = None;
                ClientError::Broke { at: self.endpoint.to_string(), source }
            })?;
            let Ok(data) = frame.into_data() else { continue };
            if body.len() + data.len() > most {
                self.sender = None;
                return Err(ClientError::TooLarge { most });
            }
            body.extend_from_slice(&data);
            seen(&data);
        }
        Ok(body)
    }

    fn request(&self, path: &str, bearer: Option<&str>) -> Result<Request<Full<Bytes>>, ClientError> {
        let unsendable = |what| ClientError::Unsendable { what };
        let mut request = Request::get(format!("{}{path}", self.endpoint.prefix()))
            .header(HOST, self.endpoint.authority())
            .header(ACCEPT, "application/json")
            .body(Full::default())
            .map_err(|_| unsendable("its path is no path"))?;
        if let Some(secret) = bearer {
            let mut value = HeaderValue::try_from(format!("Bearer {secret}"))
                .map_err(|_| unsendable("the secret has characters that no header can have"))?;
            value.set_sensitive(true);
            request.headers_mut().insert(AUTHORIZATION, value);
        }
        Ok(request)
    }

    async fn connect(&mut self) -> Result<SendRequest<Full<Bytes>>, ClientError> {
        let at = self.endpoint.to_string();
        let connecting = timeout(CONNECT_TIMEOUT, async {
            let socket = TcpStream::connect((self.endpoint.host(), self.endpoint.port())).await?;
            watch(&socket)?;
            if !self.endpoint.is_tls() {
                return Ok(start(socket).await);
            }
            let config = match &self.tls {
                Some(config) => Arc::clone(config),
                None => Arc::clone(self.tls.insert(trusting_the_system()?)),
            };
            let name = ServerName::try_from(self.endpoint.host().to_owned()).map_err(io::Error::other)?;
            Ok(start(TlsConnector::from(config).connect(name, socket).await?).await)
        });
        let late =
            || io::Error::new(io::ErrorKind::TimedOut, format!("no answer within {CONNECT_TIMEOUT:?}"));
        let connected = connecting.await.unwrap_or_else(|_| Err(late()));
        let started = connected.map_err(|source| ClientError::Connect { at: at.clone(), source })?;
        started.map_err(|source| ClientError::Broke { at, source })
    }
}

/// Starts HTTP; the connection lives in a task that ends with it.
async fn start<S>(stream: S) -> Result<SendRequest<Full<Bytes>>, hyper::Error>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (sender, connection) = handshake(TokioIo::new(stream)).await?;
    // How it ended is told to whoever waits for an answer.
    tokio::spawn(async { drop(connection.await) });
    Ok(sender)
}

fn watch(socket: &TcpStream) -> io::Result<()> {
    socket.set_nodelay(true)?;
    let socket = socket2::SockRef::from(socket);
    socket.set_tcp_keepalive(
        &socket2::TcpKeepalive::new().with_time(SILENCE).with_interval(SILENCE).with_retries(2),
    )?;
    #[cfg(target_os = "linux")]
    socket.set_tcp_user_timeout(Some(DEAD_AFTER))?;
    Ok(())
}

fn trusting_the_system() -> io::Result<Arc<ClientConfig>> {
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

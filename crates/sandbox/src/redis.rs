//! Throwaway Redis.

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::error::StartError;
use crate::folder::TempFolder;
use crate::port::free_port;
use crate::server_process::{LaunchSpec, ServerProcess, server_controls};
use crate::{certificate, program};

const PROGRAM: &str = "redis-server";
const START_STOP_TIMEOUT: Duration = Duration::from_secs(15);
const PORT_TRIES: u32 = 10;

/// Redis server on 127.0.0.1 and on a Unix socket; stopped when dropped.
///
/// It persists nothing unless configured (`.config("appendonly", "yes")`). Persisted data survives
/// [`Redis::kill`] and [`Redis::revive`].
#[derive(Debug)]
pub struct Redis {
    port: u16,
    tls: Option<RedisTls>,
    socket: PathBuf,
    server: ServerProcess,
}

/// TLS port of a Redis, and its authority.
#[derive(Clone, Debug)]
struct RedisTls {
    port: u16,
    ca_pem: String,
    ca_path: PathBuf,
}

impl Redis {
    /// Starts a server without a password and without TLS.
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn start() -> Result<Redis, StartError> {
        Redis::builder().start()
    }

    /// Returns a builder.
    pub fn builder() -> RedisBuilder {
        RedisBuilder::default()
    }

    /// Returns the plain server that all tests of this process share, started by the first call.
    ///
    /// Use your own keys in it. Don't use the control functions on it.
    ///
    /// # Panics
    /// Panics if it can't be started.
    pub fn shared() -> &'static Redis {
        static SHARED: OnceLock<Redis> = OnceLock::new();
        extern "C" fn discard() {
            if let Some(redis) = SHARED.get() {
                redis.server.discard();
            }
        }
        SHARED.get_or_init(|| {
            let redis = Redis::start().unwrap_or_else(|error| panic!("no shared Redis: {error:?}"));
            // Statics are not dropped. Without this, the folder would stay until the next start.
            // SAFETY: `discard` is valid for the whole life of the program.
            unsafe { libc::atexit(discard) };
            redis
        })
    }

    /// Returns the plain port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns the plain address on 127.0.0.1.
    pub fn addr(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.port))
    }

    /// Returns `redis://127.0.0.1:PORT`, without credentials.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Returns the TLS port.
    ///
    /// # Panics
    /// Panics if built without [`RedisBuilder::tls`]. The three functions below do, too.
    pub fn tls_port(&self) -> u16 {
        self.tls().port
    }

    /// Returns `rediss://localhost:PORT`, without credentials.
    pub fn tls_url(&self) -> String {
        format!("rediss://localhost:{}", self.tls().port)
    }

    /// Returns the certificate of the authority that signed the server's, in PEM.
    pub fn ca_pem(&self) -> &str {
        &self.tls().ca_pem
    }

    /// Returns the path of a file with [`Redis::ca_pem`].
    pub fn ca_path(&self) -> &Path {
        &self.tls().ca_path
    }

    /// Returns the path of the Unix socket, which every server has.
    pub fn unix_path(&self) -> &Path {
        &self.socket
    }

    /// Returns `unix:///path/of/the/socket`.
    pub fn unix_url(&self) -> String {
        format!("unix://{}", self.socket.display())
    }

    fn tls(&self) -> &RedisTls {
        self.tls.as_ref().expect("this Redis was built with tls()")
    }
}

server_controls!(Redis);

/// Builder of a [`Redis`].
#[derive(Clone, Debug, Default)]
pub struct RedisBuilder {
    settings: Vec<String>,
    tls: bool,
}

impl RedisBuilder {
    /// Sets the password (`requirepass`).
    pub fn password(self, password: &str) -> Self {
        let password = quote(password);
        self.setting(format!("requirepass {password}"))
    }

    /// Adds a user with ACL rules, such as `on >secret ~* +@all`.
    pub fn acl_user(self, name: &str, rules: &str) -> Self {
        self.setting(format!("user {name} {rules}"))
    }

    /// Adds a TLS port, with a throwaway certificate for `localhost` and `127.0.0.1`. Clients need
    /// no certificate.
    pub fn tls(mut self) -> Self {
        self.tls = true;
        self
    }

    /// Allows the `DEBUG` command.
    pub fn debug_command(self) -> Self {
        self.config("enable-debug-command", "yes")
    }

    /// Adds a line to redis.conf. `value` is not quoted, so it may contain several arguments.
    ///
    /// # Panics
    /// Panics if the setting contains a line break.
    pub fn config(self, key: &str, value: &str) -> Self {
        let value = if value.is_empty() { r#""""# } else { value };
        self.setting(format!("{key} {value}"))
    }

    /// Starts the server and waits until it is ready.
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn start(self) -> Result<Redis, StartError> {
        let program = program::find(PROGRAM)?;
        let folder = Arc::new(TempFolder::create()?);
        let mut tries = 1;
        loop {
            match self.start_on(free_port(), &program, &folder) {
                Err(StartError::PortTaken { .. }) if tries < PORT_TRIES => tries += 1,
                result => return result,
            }
        }
    }

    fn start_on(&self, port: u16, program: &Path, folder: &Arc<TempFolder>) -> Result<Redis, StartError> {
        let socket = folder.path().join("redis.sock");
        let mut lines = vec![
            "bind 127.0.0.1".to_owned(),
            format!("port {port}"),
            format!("dir {}", quote(&folder.path().to_string_lossy())),
            format!("unixsocket {}", quote(&socket.to_string_lossy())),
            r#"save """#.to_owned(),
        ];
        let tls = if self.tls { Some(prepare_tls(folder, &mut lines)?) } else { None };
        lines.extend_from_slice(&self.settings);
        let config = folder.write("redis.conf", &(lines.join("\n") + "\n"))?;
        let launch = LaunchSpec {
            name: PROGRAM,
            program: program.to_owned(),
            args: vec![OsString::from(config)],
            user: None,
            death_signal: libc::SIGKILL,
            stop_signal: libc::SIGTERM,
            timeout: START_STOP_TIMEOUT,
            socket: socket.clone(),
            is_ready,
        };
        Ok(Redis { port, tls, socket, server: ServerProcess::start(launch, Arc::clone(folder))? })
    }

    fn setting(mut self, line: String) -> Self {
        assert!(!line.contains(['\n', '\r']), "a setting is one line: {line:?}");
        self.settings.push(line);
        self
    }
}

fn prepare_tls(folder: &TempFolder, lines: &mut Vec<String>) -> Result<RedisTls, StartError> {
    let certificates = certificate::make()?;
    let port = free_port();
    let ca_path = folder.write("ca.pem", &certificates.authority)?;
    lines.push(format!("tls-port {port}"));
    lines.push("tls-auth-clients no".to_owned());
    for (key, path) in [
        ("tls-ca-cert-file", ca_path.clone()),
        ("tls-cert-file", folder.write("server.pem", &certificates.server)?),
        ("tls-key-file", folder.write("server.key", &certificates.server_key)?),
    ] {
        lines.push(format!("{key} {}", quote(&path.to_string_lossy())));
    }
    Ok(RedisTls { port, ca_pem: certificates.authority, ca_path })
}

/// Returns true if the server replies. An error reply counts too, except while files are loading.
fn is_ready(socket: &Path) -> bool {
    let ping = || {
        let mut stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(Duration::from_secs(1)))?;
        stream.write_all(b"PING\r\n")?;
        let mut reply = [0; 64];
        let length = stream.read(&mut reply)?;
        Ok::<_, io::Error>(length > 0 && !reply[..length].starts_with(b"-LOADING"))
    };
    ping().unwrap_or(false)
}

/// Quotes an argument of redis.conf.
fn quote(text: &str) -> String {
    format!(r#""{}""#, text.replace('\\', r"\\").replace('"', r#"\""#))
}

//! A throwaway Redis.

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::error::StartError;
use crate::folder::Folder;
use crate::port::free_port;
use crate::server::{Launch, Server, controls};
use crate::{certificate, program};

const PROGRAM: &str = "redis-server";
const DEADLINE: Duration = Duration::from_secs(15);
const PORT_TRIES: u32 = 10;

/// A Redis server on 127.0.0.1 and on a Unix socket, ended when this is dropped.
///
/// It keeps nothing on disk unless told (`.config("appendonly", "yes")`); what it keeps survives [`Redis::kill`] and
/// [`Redis::revive`].
#[derive(Debug)]
pub struct Redis {
    port: u16,
    tls: Option<Tls>,
    socket: PathBuf,
    server: Server,
}

#[derive(Clone, Debug)]
struct Tls {
    port: u16,
    ca_pem: String,
    ca_path: PathBuf,
}

impl Redis {
    /// Starts a plain one: no password, no TLS.
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn start() -> Result<Redis, StartError> {
        Redis::builder().start()
    }

    /// Chooses settings first.
    pub fn builder() -> RedisBuilder {
        RedisBuilder::default()
    }

    /// The plain one that all tests of this process share, started by the first call. Use keys of your own, and leave
    /// the control calls to servers of your own.
    ///
    /// # Panics
    /// When it can't be started.
    pub fn shared() -> &'static Redis {
        static SHARED: OnceLock<Redis> = OnceLock::new();
        extern "C" fn discard() {
            if let Some(redis) = SHARED.get() {
                redis.server.discard();
            }
        }
        SHARED.get_or_init(|| {
            let redis = Redis::start().unwrap_or_else(|error| panic!("no shared Redis: {error:?}"));
            // Statics aren't dropped. Without this the server would still die with us, but its folder would stay until
            // the next start.
            // SAFETY: `discard` is a function for the whole life of the program.
            unsafe { libc::atexit(discard) };
            redis
        })
    }

    /// The plain port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The plain address, on 127.0.0.1.
    pub fn addr(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.port))
    }

    /// `redis://127.0.0.1:PORT`, without credentials.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// The TLS port.
    ///
    /// # Panics
    /// Unless built with [`RedisBuilder::tls`]; so do the three below.
    pub fn tls_port(&self) -> u16 {
        self.tls().port
    }

    /// `rediss://localhost:PORT`, without credentials.
    pub fn tls_url(&self) -> String {
        format!("rediss://localhost:{}", self.tls().port)
    }

    /// The certificate of the authority that signed the server's, in PEM.
    pub fn ca_pem(&self) -> &str {
        &self.tls().ca_pem
    }

    /// A file with [`Redis::ca_pem`].
    pub fn ca_path(&self) -> &Path {
        &self.tls().ca_path
    }

    /// The Unix socket; every server has one.
    pub fn unix_path(&self) -> &Path {
        &self.socket
    }

    /// `unix:///path/of/the/socket`.
    pub fn unix_url(&self) -> String {
        format!("unix://{}", self.socket.display())
    }

    fn tls(&self) -> &Tls {
        self.tls.as_ref().expect("this Redis was built with tls()")
    }
}

controls!(Redis);

/// Settings of a [`Redis`] to come.
#[derive(Clone, Debug, Default)]
pub struct RedisBuilder {
    settings: Vec<String>,
    tls: bool,
}

impl RedisBuilder {
    /// Asks for this password (`requirepass`).
    pub fn password(self, password: &str) -> Self {
        let password = quote(password);
        self.setting(format!("requirepass {password}"))
    }

    /// Adds a user with ACL rules, such as `on >secret ~* +@all`.
    pub fn acl_user(self, name: &str, rules: &str) -> Self {
        self.setting(format!("user {name} {rules}"))
    }

    /// Listens with TLS on a second port, with a throwaway certificate for `localhost` and `127.0.0.1`. Clients need
    /// no certificate.
    pub fn tls(mut self) -> Self {
        self.tls = true;
        self
    }

    /// Allows `DEBUG`.
    pub fn debug_command(self) -> Self {
        self.config("enable-debug-command", "yes")
    }

    /// Any other line of redis.conf; `value` is written as it is, so that it may hold several words.
    ///
    /// # Panics
    /// When the two are not one line.
    pub fn config(self, key: &str, value: &str) -> Self {
        let value = if value.is_empty() { r#""""# } else { value };
        self.setting(format!("{key} {value}"))
    }

    /// Starts it, and waits until it answers.
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn start(self) -> Result<Redis, StartError> {
        let program = program::find(PROGRAM)?;
        let folder = Arc::new(Folder::create()?);
        let mut tries = 1;
        loop {
            match self.start_on(free_port(), &program, &folder) {
                Err(StartError::PortTaken { .. }) if tries < PORT_TRIES => tries += 1,
                result => return result,
            }
        }
    }

    fn start_on(&self, port: u16, program: &Path, folder: &Arc<Folder>) -> Result<Redis, StartError> {
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
        let launch = Launch {
            name: PROGRAM,
            program: program.to_owned(),
            args: vec![OsString::from(config)],
            user: None,
            death_signal: libc::SIGKILL,
            stop_signal: libc::SIGTERM,
            deadline: DEADLINE,
            socket: socket.clone(),
            is_ready,
        };
        Ok(Redis { port, tls, socket, server: Server::start(launch, Arc::clone(folder))? })
    }

    fn setting(mut self, line: String) -> Self {
        assert!(!line.contains(['\n', '\r']), "a setting is one line: {line:?}");
        self.settings.push(line);
        self
    }
}

fn prepare_tls(folder: &Folder, lines: &mut Vec<String>) -> Result<Tls, StartError> {
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
    Ok(Tls { port, ca_pem: certificates.authority, ca_path })
}

/// An error is an answer, too (it may ask for a password), but not the one while it loads its files.
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

/// A word of redis.conf, whatever is in it.
fn quote(word: &str) -> String {
    format!(r#""{}""#, word.replace('\\', r"\\").replace('"', r#"\""#))
}

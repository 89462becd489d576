//! Throwaway PgBouncer in front of a throwaway Postgres.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::error::StartError;
use crate::folder::TempFolder;
use crate::pg_connection::PgConnection;
use crate::port::free_port;
use crate::postgres::{Postgres, url};
use crate::program::{self, is_program};
use crate::server_process::{LaunchSpec, ServerProcess, server_controls};
use crate::system_user::{SystemUser, change_owner, unprivileged_user};

const PROGRAM: &str = "pgbouncer";
/// Path of Debian's package, which may not be on the PATH.
const DISTRIBUTION_PROGRAM: &str = "/usr/sbin/pgbouncer";
const SUPERUSER: &str = "postgres";
const START_STOP_TIMEOUT: Duration = Duration::from_secs(15);
const PORT_TRIES: u32 = 10;

/// PgBouncer on 127.0.0.1; stopped when dropped.
///
/// It connects to its Postgres over the Unix socket, and serves every database and role there.
#[derive(Debug)]
pub struct PgBouncer {
    port: u16,
    password: String,
    server: ServerProcess,
}

impl PgBouncer {
    /// Returns a builder. By default PgBouncer runs in session mode and requires no password.
    pub fn builder(postgres: &Postgres) -> PgBouncerBuilder {
        let target = format!("* = host={} port={}", postgres.socket_dir().display(), postgres.port());
        PgBouncerBuilder { target, settings: Vec::new(), users: BTreeMap::new() }
    }

    /// Returns the port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns the address on 127.0.0.1.
    pub fn addr(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.port))
    }

    /// Returns `postgres://postgres@127.0.0.1:PORT/DATABASE`, with the password if one was set. The
    /// database `pgbouncer` is the admin console.
    pub fn url(&self, database: &str) -> String {
        self.url_as(SUPERUSER, &self.password, database)
    }

    /// Returns the URL for another user; an empty password is omitted.
    pub fn url_as(&self, user: &str, password: &str, database: &str) -> String {
        url(user, password, self.port, database)
    }
}

server_controls!(PgBouncer);

/// Builder of a [`PgBouncer`].
#[derive(Clone, Debug)]
pub struct PgBouncerBuilder {
    target: String,
    settings: Vec<String>,
    users: BTreeMap<String, String>,
}

impl PgBouncerBuilder {
    /// Sets transaction mode: a client holds a server connection for one transaction at a time.
    pub fn transaction_mode(self) -> Self {
        self.config("pool_mode", "transaction")
    }

    /// Adds a user with a password. With the first one, TCP clients must authenticate by
    /// SCRAM-SHA-256; roles of the Postgres use their own passwords.
    pub fn user(mut self, name: &str, password: &str) -> Self {
        self.users.insert(name.to_owned(), password.to_owned());
        self
    }

    /// Adds a setting to the section `pgbouncer` of pgbouncer.ini. It overrides the defaults.
    ///
    /// # Panics
    /// Panics if the setting contains a line break.
    pub fn config(mut self, key: &str, value: &str) -> Self {
        let line = format!("{key} = {value}");
        assert!(!line.contains(['\n', '\r']), "a setting is one line: {line:?}");
        self.settings.push(line);
        self
    }

    /// Starts the server and waits until it is ready.
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn start(self) -> Result<PgBouncer, StartError> {
        let distribution = PathBuf::from(DISTRIBUTION_PROGRAM);
        let program = match program::find(PROGRAM) {
            Err(_) if is_program(&distribution) => distribution,
            found => found?,
        };
        let (user, folder) = (unprivileged_user(), Arc::new(TempFolder::create()?));
        change_owner(folder.path(), user).map_err(StartError::with_path(folder.path()))?;
        let mut tries = 1;
        loop {
            match self.start_on(free_port(), &program, user, &folder) {
                Err(StartError::PortTaken { .. }) if tries < PORT_TRIES => tries += 1,
                result => return result,
            }
        }
    }

    fn start_on(
        &self,
        port: u16,
        program: &Path,
        user: Option<SystemUser>,
        folder: &Arc<TempFolder>,
    ) -> Result<PgBouncer, StartError> {
        let files =
            [("pgbouncer.ini", self.ini(port)), ("users", self.user_list()), ("hba", self.hba_text())];
        for (name, text) in files {
            let path = folder.write(name, &text)?;
            change_owner(&path, user).map_err(StartError::with_path(&path))?;
        }
        let launch = LaunchSpec {
            name: PROGRAM,
            program: program.to_owned(),
            args: vec!["pgbouncer.ini".into()],
            user,
            death_signal: libc::SIGKILL,
            // Stops without waiting for clients.
            stop_signal: libc::SIGTERM,
            timeout: START_STOP_TIMEOUT,
            socket: folder.path().join(format!(".s.PGSQL.{port}")),
            is_ready: |socket| PgConnection::open(socket, "pgbouncer").is_ok(),
        };
        let password = self.users.get(SUPERUSER).cloned().unwrap_or_default();
        Ok(PgBouncer { port, password, server: ServerProcess::start(launch, Arc::clone(folder))? })
    }

    /// Returns pgbouncer.ini. Roles that aren't in the user list are looked up in the Postgres.
    fn ini(&self, port: u16) -> String {
        let mut lines = vec![
            "[databases]".to_owned(),
            self.target.clone(),
            "[pgbouncer]".to_owned(),
            "listen_addr = 127.0.0.1".to_owned(),
            format!("listen_port = {port}"),
            "unix_socket_dir = .".to_owned(),
            "auth_type = hba".to_owned(),
            "auth_hba_file = hba".to_owned(),
            "auth_file = users".to_owned(),
            "auth_user = postgres".to_owned(),
            "admin_users = postgres".to_owned(),
        ];
        lines.extend_from_slice(&self.settings);
        lines.join("\n") + "\n"
    }

    /// Returns the user list. It always contains the superuser, for the readiness check.
    fn user_list(&self) -> String {
        let quote = |text: &str| format!("\"{}\"", text.replace('"', "\"\""));
        let mut users = self.users.clone();
        users.entry(SUPERUSER.to_owned()).or_default();
        users.iter().fold(String::new(), |mut text, (name, password)| {
            writeln!(text, "{} {}", quote(name), quote(password)).expect("a String takes every write");
            text
        })
    }

    fn hba_text(&self) -> String {
        let method = if self.users.is_empty() { "trust" } else { "scram-sha-256" };
        format!("local all all trust\nhost all all 127.0.0.1/32 {method}\n")
    }
}

//! A throwaway PgBouncer before a throwaway Postgres.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::error::StartError;
use crate::folder::Folder;
use crate::port::free_port;
use crate::postgres::{Postgres, url};
use crate::program::{self, is_program};
use crate::server::{Launch, Server, controls};
use crate::user::{User, give, other_than_root};
use crate::wire::Session;

const PROGRAM: &str = "pgbouncer";
/// Not on everybody's PATH.
const DISTRIBUTION: &str = "/usr/sbin/pgbouncer";
const SUPERUSER: &str = "postgres";
const DEADLINE: Duration = Duration::from_secs(15);
const PORT_TRIES: u32 = 10;

/// A PgBouncer on 127.0.0.1, ended when this is dropped. It reaches its Postgres over the Unix socket, at the port of
/// that server for all its lives, and knows every database and role there.
#[derive(Debug)]
pub struct PgBouncer {
    port: u16,
    password: String,
    server: Server,
}

impl PgBouncer {
    /// Settings of one before this Postgres: in session mode, and it trusts everybody, unless told otherwise.
    pub fn builder(postgres: &Postgres) -> PgBouncerBuilder {
        let target = format!("* = host={} port={}", postgres.socket_dir().display(), postgres.port());
        PgBouncerBuilder { target, settings: Vec::new(), users: BTreeMap::new() }
    }

    /// The port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The address, on 127.0.0.1.
    pub fn addr(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.port))
    }

    /// `postgres://postgres@127.0.0.1:PORT/DATABASE`, with the password where that user was given one. The database
    /// `pgbouncer` is its console.
    pub fn url(&self, database: &str) -> String {
        self.url_as(SUPERUSER, &self.password, database)
    }

    /// As [`PgBouncer::url`], for another user; an empty password is left out.
    pub fn url_as(&self, user: &str, password: &str, database: &str) -> String {
        url(user, password, self.port, database)
    }
}

controls!(PgBouncer);

/// Settings of a [`PgBouncer`] to come.
#[derive(Clone, Debug)]
pub struct PgBouncerBuilder {
    target: String,
    settings: Vec<String>,
    users: BTreeMap<String, String>,
}

impl PgBouncerBuilder {
    /// A server connection is a client's for one transaction at a time.
    pub fn transaction_mode(self) -> Self {
        self.config("pool_mode", "transaction")
    }

    /// Lets this user in with this password, and with the first of them asks for passwords on TCP, by SCRAM-SHA-256.
    /// Roles of the Postgres that have a password get in with that.
    pub fn user(mut self, name: &str, password: &str) -> Self {
        self.users.insert(name.to_owned(), password.to_owned());
        self
    }

    /// Any setting of the section `pgbouncer` in pgbouncer.ini. It wins over the defaults.
    ///
    /// # Panics
    /// When the two are not one line.
    pub fn config(mut self, key: &str, value: &str) -> Self {
        let line = format!("{key} = {value}");
        assert!(!line.contains(['\n', '\r']), "a setting is one line: {line:?}");
        self.settings.push(line);
        self
    }

    /// Starts it, and waits until it answers.
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn start(self) -> Result<PgBouncer, StartError> {
        let distribution = PathBuf::from(DISTRIBUTION);
        let program = match program::find(PROGRAM) {
            Err(_) if is_program(&distribution) => distribution,
            found => found?,
        };
        let (user, folder) = (other_than_root(), Arc::new(Folder::create()?));
        give(folder.path(), user).map_err(StartError::at(folder.path()))?;
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
        user: Option<User>,
        folder: &Arc<Folder>,
    ) -> Result<PgBouncer, StartError> {
        let files = [("pgbouncer.ini", self.ini(port)), ("users", self.user_list()), ("hba", self.doors())];
        for (name, text) in files {
            let path = folder.write(name, &text)?;
            give(&path, user).map_err(StartError::at(&path))?;
        }
        let launch = Launch {
            name: PROGRAM,
            program: program.to_owned(),
            args: vec!["pgbouncer.ini".into()],
            user,
            death_signal: libc::SIGKILL,
            // Clients are not waited for.
            stop_signal: libc::SIGTERM,
            deadline: DEADLINE,
            socket: folder.path().join(format!(".s.PGSQL.{port}")),
            is_ready: |socket| Session::open(socket, "pgbouncer").is_ok(),
        };
        let password = self.users.get(SUPERUSER).cloned().unwrap_or_default();
        Ok(PgBouncer { port, password, server: Server::start(launch, Arc::clone(folder))? })
    }

    /// Every role is looked up in the Postgres, by the superuser, unless the list has it.
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

    /// The superuser is always in it: readiness is asked by that name.
    fn user_list(&self) -> String {
        let quote = |word: &str| format!("\"{}\"", word.replace('"', "\"\""));
        let mut users = self.users.clone();
        users.entry(SUPERUSER.to_owned()).or_default();
        users.iter().fold(String::new(), |mut text, (name, password)| {
            writeln!(text, "{} {}", quote(name), quote(password)).expect("a String takes every write");
            text
        })
    }

    fn doors(&self) -> String {
        let method = if self.users.is_empty() { "trust" } else { "scram-sha-256" };
        format!("local all all trust\nhost all all 127.0.0.1/32 {method}\n")
    }
}

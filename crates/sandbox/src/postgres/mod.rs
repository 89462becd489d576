//! Throwaway Postgres, of any installed version.
//!
//! `programs.rs` finds the versions, `cluster.rs` creates data folders, `builder.rs` has the
//! settings. `standby.rs` and `recovery.rs` start servers from copies of others (`backup.rs`).

mod backends;
mod backup;
mod builder;
mod cluster;
mod programs;
mod recovery;
mod standby;
mod system_identifier;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

pub use self::builder::PostgresBuilder;
use self::cluster::{ClusterTls, PostgresCluster};
use self::programs::Programs;
pub use self::recovery::{Backup, RecoveryTarget};
pub use self::standby::StandbyBuilder;
use crate::error::StartError;
use crate::pg_connection::PgConnection;
use crate::proc;
use crate::server_process::{ServerProcess, server_controls};

const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// Timeout of [`until`].
const WAIT_TIMEOUT: Duration = Duration::from_secs(60);

/// Postgres server on 127.0.0.1 and on a Unix socket; stopped when dropped.
///
/// The superuser is `postgres`, without a password unless one is set. `wal_level` is `logical`.
/// `fsync` is `off`: data survives [`Postgres::kill`], but not a power failure. The locale is `C`
/// with UTF-8 (see also [`Postgres::create_icu_database`]). Buffers are small.
#[derive(Debug)]
pub struct Postgres {
    // Dropped first: no process may write to a folder that is being removed.
    server: ServerProcess,
    port: u16,
    cluster: PostgresCluster,
}

impl Postgres {
    /// Starts a server that trusts every local connection.
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn start() -> Result<Postgres, StartError> {
        Postgres::builder().start()
    }

    /// Returns a builder.
    pub fn builder() -> PostgresBuilder {
        PostgresBuilder::default()
    }

    /// Returns the server that all tests of this process share, started by the first call.
    ///
    /// Use your own database in it ([`Postgres::create_database`]). Don't use the control functions
    /// on it.
    ///
    /// # Panics
    /// Panics if it can't be started.
    pub fn shared() -> &'static Postgres {
        shared(None)
    }

    /// Returns the shared server of a major version.
    ///
    /// # Panics
    /// Panics if it can't be started.
    pub fn shared_version(version: u32) -> &'static Postgres {
        shared(Some(version))
    }

    /// Returns the major version, such as 15.
    pub fn version(&self) -> u32 {
        self.cluster.programs.version
    }

    /// Returns the port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns the address on 127.0.0.1.
    pub fn addr(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.port))
    }

    /// Returns `postgres://postgres@127.0.0.1:PORT/DATABASE`, with the password if one is set.
    pub fn url(&self, database: &str) -> String {
        self.url_as("postgres", self.cluster.password.as_deref().unwrap_or_default(), database)
    }

    /// Returns the URL for another user; an empty password is omitted.
    pub fn url_as(&self, user: &str, password: &str, database: &str) -> String {
        url(user, password, self.port, database)
    }

    /// Returns the folder of the Unix socket, a `host` for libpq. No password is needed there.
    pub fn socket_dir(&self) -> &Path {
        self.cluster.folder.path()
    }

    /// Returns the certificate of the authority that signed the server's, in PEM.
    ///
    /// # Panics
    /// Panics if built without [`PostgresBuilder::tls`]. The three functions below do, too.
    pub fn ca_pem(&self) -> &str {
        &self.tls().ca_pem
    }

    /// Returns the path of a file with [`Postgres::ca_pem`].
    pub fn ca_path(&self) -> &Path {
        &self.tls().ca_path
    }

    /// Returns the certificate of an authority that did not sign the server's, in PEM.
    pub fn wrong_ca_pem(&self) -> &str {
        &self.tls().wrong_ca_pem
    }

    /// Returns the path of a file with [`Postgres::wrong_ca_pem`].
    pub fn wrong_ca_path(&self) -> &Path {
        &self.tls().wrong_ca_path
    }

    /// Creates a database with a new name that starts with `prefix`, and returns the name.
    ///
    /// # Errors
    /// Fails if the server doesn't run or rejects the name.
    pub fn create_database(&self, prefix: &str) -> io::Result<String> {
        self.create_database_with(prefix, "")
    }

    /// Creates a database with an ICU locale, such as `en-US`: texts are ordered by its rules, not
    /// by their bytes.
    ///
    /// # Errors
    /// Fails if the server doesn't run, was built without ICU, or doesn't have the locale.
    pub fn create_icu_database(&self, prefix: &str, locale: &str) -> io::Result<String> {
        let locale = locale.replace('\'', "''");
        let options = format!(
            "TEMPLATE template0 LOCALE_PROVIDER icu ICU_LOCALE '{locale}' LC_COLLATE 'C' LC_CTYPE 'C'"
        );
        self.create_database_with(prefix, &options)
    }

    /// Creates a database with these options of CREATE DATABASE.
    fn create_database_with(&self, prefix: &str, options: &str) -> io::Result<String> {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        let name = format!("{prefix}_{}", NEXT.fetch_add(1, Ordering::Relaxed));
        self.execute("postgres", &format!("CREATE DATABASE \"{}\" {options}", name.replace('"', "\"\"")))?;
        Ok(name)
    }

    /// Runs SQL as the superuser over the Unix socket, and discards any rows.
    ///
    /// # Errors
    /// Fails if the server doesn't run, or with the server's message and SQLSTATE.
    pub fn execute(&self, database: &str, sql: &str) -> io::Result<()> {
        self.query(database, sql).map(drop)
    }

    /// Runs SQL as the superuser; returns the rows of all statements, in order, as text.
    ///
    /// # Errors
    /// Fails if the server doesn't run, or with the server's message and SQLSTATE.
    pub fn query(&self, database: &str, sql: &str) -> io::Result<Vec<Vec<Option<String>>>> {
        self.session(database)?.run(sql)
    }

    /// Appends a setting to postgresql.conf, where it overrides earlier ones. It takes effect with
    /// [`Postgres::reload`] or the next start.
    ///
    /// # Errors
    /// Fails if the file can't be written.
    pub fn set_config(&self, key: &str, value: &str) -> Result<(), StartError> {
        self.cluster.configure(&[(key, value)])
    }

    /// Replaces the lines of pg_hba.conf for TCP; see [`PostgresBuilder::hba`]. They take effect
    /// with [`Postgres::reload`].
    ///
    /// # Errors
    /// Fails if the file can't be written.
    pub fn set_hba(&self, lines: &[&str]) -> Result<(), StartError> {
        self.cluster.write_hba(lines)
    }

    /// Reloads the settings and waits until every new session has them.
    ///
    /// Open sessions apply them at their next statement. Settings that need a restart don't change.
    ///
    /// # Errors
    /// Fails if the server doesn't run, or reports an error in the files.
    pub fn reload(&self) -> io::Result<()> {
        const ERRORS: &str = "SELECT f.name || ': ' || f.error FROM pg_file_settings f \
            LEFT JOIN pg_settings s ON s.name = lower(f.name) \
            WHERE f.error IS NOT NULL AND s.pending_restart IS NOT true \
            UNION ALL SELECT 'pg_hba.conf: ' || error FROM pg_hba_file_rules WHERE error IS NOT NULL";
        let loaded = || self.query("postgres", "SELECT pg_conf_load_time()");
        let before = loaded()?;
        proc::signal(self.pid(), libc::SIGHUP);
        until("the settings are read again", || Ok(loaded()? != before))?;
        match self.query("postgres", ERRORS)?.into_iter().flatten().flatten().next() {
            Some(error) => Err(io::Error::other(error)),
            None => Ok(()),
        }
    }

    /// Restarts by a fast shutdown, like [`Postgres::stop`]: sessions end, no recovery is needed.
    ///
    /// # Errors
    /// Fails like the first start, or if the server doesn't stop in time.
    pub fn restart_fast(&self) -> Result<(), StartError> {
        self.server.restart()
    }

    /// Restarts by an immediate shutdown: sessions are cut, and WAL is replayed.
    ///
    /// # Errors
    /// Fails like the first start, or if the server doesn't stop in time.
    pub fn restart_immediate(&self) -> Result<(), StartError> {
        self.server.stop_by(libc::SIGQUIT)?;
        self.server.revive()
    }

    fn session(&self, database: &str) -> io::Result<PgConnection> {
        PgConnection::open(&self.cluster.socket(self.port), database)
    }

    fn tls(&self) -> &ClusterTls {
        self.cluster.tls.as_ref().expect("this Postgres was built with tls()")
    }
}

server_controls!(Postgres);

fn shared(version: Option<u32>) -> &'static Postgres {
    static SHARED: Mutex<BTreeMap<u32, &'static Postgres>> = Mutex::new(BTreeMap::new());
    extern "C" fn discard() {
        // A server that another thread is starting ends by its death signal.
        if let Some(shared) = SHARED.try_lock() {
            shared.values().for_each(|postgres| postgres.server.discard());
        }
    }
    let start = || {
        let version = Programs::find(version)?.version;
        let mut shared = SHARED.lock();
        if let Some(postgres) = shared.get(&version) {
            return Ok(*postgres);
        }
        let postgres: &Postgres = Box::leak(Box::new(Postgres::builder().version(version).start()?));
        if shared.is_empty() {
            // Statics are not dropped; see `Redis::shared`.
            // SAFETY: `discard` is valid for the whole life of the program.
            unsafe { libc::atexit(discard) };
        }
        shared.insert(version, postgres);
        Ok(postgres)
    };
    start().unwrap_or_else(|error: StartError| panic!("no shared Postgres: {error:?}"))
}

/// Polls until the condition holds. Fails after [`WAIT_TIMEOUT`], with `what` in the error.
fn until(what: &str, mut holds: impl FnMut() -> io::Result<bool>) -> io::Result<()> {
    let started_at = Instant::now();
    while !holds()? {
        if started_at.elapsed() > WAIT_TIMEOUT {
            return Err(io::Error::new(
                io::ErrorKind::TimedOut,
                format!("not within {WAIT_TIMEOUT:?}: {what}"),
            ));
        }
        thread::sleep(POLL_INTERVAL);
    }
    Ok(())
}

/// Returns the URL of a server on 127.0.0.1 with Postgres's protocol.
pub(crate) fn url(user: &str, password: &str, port: u16, database: &str) -> String {
    let (user, database) = (percent_encode(user), percent_encode(database));
    let password = if password.is_empty() { String::new() } else { format!(":{}", percent_encode(password)) };
    format!("postgres://{user}{password}@127.0.0.1:{port}/{database}")
}

fn percent_encode(text: &str) -> String {
    text.bytes().fold(String::new(), |mut encoded, byte| {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => {
                encoded.push(char::from(byte))
            }
            _ => write!(encoded, "%{byte:02X}").expect("a String takes every write"),
        }
        encoded
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn special_characters_of_a_url_are_encoded() {
        assert_eq!(percent_encode("p@ss:w/rd é"), "p%40ss%3Aw%2Frd%20%C3%A9");
        assert_eq!(url("a", "", 1, "b"), "postgres://a@127.0.0.1:1/b");
    }
}

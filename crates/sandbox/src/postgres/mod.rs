//! A throwaway Postgres, of any version that is installed.
//!
//! `programs.rs` finds the versions, `cluster.rs` makes data folders, `builder.rs` has the settings. `standby.rs` and
//! `recovery.rs` make servers from copies of others (`backup.rs`).

mod backends;
mod backup;
mod builder;
mod cluster;
mod identity;
mod programs;
mod recovery;
mod standby;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

pub use self::builder::PostgresBuilder;
use self::cluster::{Cluster, Tls};
use self::programs::Programs;
pub use self::recovery::{Backup, RecoveryTarget};
pub use self::standby::StandbyBuilder;
use crate::error::StartError;
use crate::proc;
use crate::server::{Server, controls};
use crate::wire::Session;

const POLL: Duration = Duration::from_millis(5);
const DEADLINE: Duration = Duration::from_secs(60);

/// A Postgres server on 127.0.0.1 and on a Unix socket, ended when this is dropped.
///
/// The superuser is `postgres`, and no password is asked for unless one was set. `wal_level` is `logical`, `fsync` is
/// `off` (it survives [`Postgres::kill`], not a power cut), the locale is `C` with UTF-8
/// (but see [`Postgres::create_icu_database`]), the buffers are small.
#[derive(Debug)]
pub struct Postgres {
    // The first to be dropped: nothing may write to a folder that is being removed.
    server: Server,
    port: u16,
    cluster: Cluster,
}

impl Postgres {
    /// Starts one that trusts every local connection.
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn start() -> Result<Postgres, StartError> {
        Postgres::builder().start()
    }

    /// Chooses settings first.
    pub fn builder() -> PostgresBuilder {
        PostgresBuilder::default()
    }

    /// The one that all tests of this process share, started by the first call. Use a database of your own
    /// ([`Postgres::create_database`]), and leave the control calls to servers of your own.
    ///
    /// # Panics
    /// When it can't be started.
    pub fn shared() -> &'static Postgres {
        shared(None)
    }

    /// As [`Postgres::shared`], one for each major version.
    ///
    /// # Panics
    /// When it can't be started.
    pub fn shared_version(version: u32) -> &'static Postgres {
        shared(Some(version))
    }

    /// The major version, such as 15.
    pub fn version(&self) -> u32 {
        self.cluster.programs.version
    }

    /// The port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The address, on 127.0.0.1.
    pub fn addr(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.port))
    }

    /// `postgres://postgres@127.0.0.1:PORT/DATABASE`, with the password where one was set.
    pub fn url(&self, database: &str) -> String {
        self.url_as("postgres", self.cluster.password.as_deref().unwrap_or_default(), database)
    }

    /// As [`Postgres::url`], for another user; an empty password is left out.
    pub fn url_as(&self, user: &str, password: &str, database: &str) -> String {
        url(user, password, self.port, database)
    }

    /// The folder of the Unix socket, which asks for no password: a `host` for libpq.
    pub fn socket_dir(&self) -> &Path {
        self.cluster.folder.path()
    }

    /// The certificate of the authority that signed the server's, in PEM.
    ///
    /// # Panics
    /// Unless built with [`PostgresBuilder::tls`]; so do the three below.
    pub fn ca_pem(&self) -> &str {
        &self.tls().ca_pem
    }

    /// A file with [`Postgres::ca_pem`].
    pub fn ca_path(&self) -> &Path {
        &self.tls().ca_path
    }

    /// The certificate of an authority that did not sign the server's, in PEM.
    pub fn wrong_ca_pem(&self) -> &str {
        &self.tls().wrong_ca_pem
    }

    /// A file with [`Postgres::wrong_ca_pem`].
    pub fn wrong_ca_path(&self) -> &Path {
        &self.tls().wrong_ca_path
    }

    /// Makes a database whose name starts with `prefix` and is new on this server.
    ///
    /// # Errors
    /// When the server doesn't run or refuses the name.
    pub fn create_database(&self, prefix: &str) -> io::Result<String> {
        self.create_database_with(prefix, "")
    }

    /// As [`Postgres::create_database`], with a locale of ICU, such as `en-US`: texts are ordered
    /// by its rules, not by their bytes.
    ///
    /// # Errors
    /// When the server doesn't run, was built without ICU, or doesn't know the locale.
    pub fn create_icu_database(&self, prefix: &str, locale: &str) -> io::Result<String> {
        let locale = locale.replace('\'', "''");
        let options = format!(
            "TEMPLATE template0 LOCALE_PROVIDER icu ICU_LOCALE '{locale}' LC_COLLATE 'C' LC_CTYPE 'C'"
        );
        self.create_database_with(prefix, &options)
    }

    /// `options`: of CREATE DATABASE.
    fn create_database_with(&self, prefix: &str, options: &str) -> io::Result<String> {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        let name = format!("{prefix}_{}", NEXT.fetch_add(1, Ordering::Relaxed));
        self.execute("postgres", &format!("CREATE DATABASE \"{}\" {options}", name.replace('"', "\"\"")))?;
        Ok(name)
    }

    /// Runs SQL in a database as the superuser, over the Unix socket; any rows are thrown away.
    ///
    /// # Errors
    /// When the server doesn't run, or with its message and SQLSTATE.
    pub fn execute(&self, database: &str, sql: &str) -> io::Result<()> {
        self.query(database, sql).map(drop)
    }

    /// As [`Postgres::execute`], with the rows: of all the statements, in order, each value as text.
    ///
    /// # Errors
    /// When the server doesn't run, or with its message and SQLSTATE.
    pub fn query(&self, database: &str, sql: &str) -> io::Result<Vec<Vec<Option<String>>>> {
        self.session(database)?.run(sql)
    }

    /// Writes a setting into postgresql.conf, where it wins over all before it. It counts from [`Postgres::reload`] on,
    /// or from the next start.
    ///
    /// # Errors
    /// When the file can't be written.
    pub fn set_config(&self, key: &str, value: &str) -> Result<(), StartError> {
        self.cluster.configure(&[(key, value)])
    }

    /// Replaces the lines of pg_hba.conf for TCP; see [`PostgresBuilder::hba`]. They count from [`Postgres::reload`] on.
    ///
    /// # Errors
    /// When the file can't be written.
    pub fn set_hba(&self, lines: &[&str]) -> Result<(), StartError> {
        self.cluster.allow(lines)
    }

    /// Has the settings read again, and returns when every new session has them; an old one has them with its next
    /// statement. A setting that only a restart changes waits for that.
    ///
    /// # Errors
    /// When the server doesn't run, or finds something wrong with the files.
    pub fn reload(&self) -> io::Result<()> {
        const WRONG: &str = "SELECT f.name || ': ' || f.error FROM pg_file_settings f \
            LEFT JOIN pg_settings s ON s.name = lower(f.name) \
            WHERE f.error IS NOT NULL AND s.pending_restart IS NOT true \
            UNION ALL SELECT 'pg_hba.conf: ' || error FROM pg_hba_file_rules WHERE error IS NOT NULL";
        let loaded = || self.query("postgres", "SELECT pg_conf_load_time()");
        let before = loaded()?;
        proc::signal(self.pid(), libc::SIGHUP);
        until("the settings are read again", || Ok(loaded()? != before))?;
        match self.query("postgres", WRONG)?.into_iter().flatten().flatten().next() {
            Some(wrong) => Err(io::Error::other(wrong)),
            None => Ok(()),
        }
    }

    /// A fast shutdown, as [`Postgres::stop`] is, and a revival: sessions are ended, nothing is recovered.
    ///
    /// # Errors
    /// As for the first start, or when it won't stop.
    pub fn restart_fast(&self) -> Result<(), StartError> {
        self.server.restart()
    }

    /// An immediate shutdown and a revival: sessions are cut, and the log is replayed.
    ///
    /// # Errors
    /// As for the first start, or when it won't stop.
    pub fn restart_immediate(&self) -> Result<(), StartError> {
        self.server.stop_by(libc::SIGQUIT)?;
        self.server.revive()
    }

    fn session(&self, database: &str) -> io::Result<Session> {
        Session::open(&self.cluster.socket(self.port), database)
    }

    fn tls(&self) -> &Tls {
        self.cluster.tls.as_ref().expect("this Postgres was built with tls()")
    }
}

controls!(Postgres);

fn shared(version: Option<u32>) -> &'static Postgres {
    static SHARED: Mutex<BTreeMap<u32, &'static Postgres>> = Mutex::new(BTreeMap::new());
    extern "C" fn discard() {
        // One that another thread starts right now dies with us, and the next start sweeps its folder.
        if let Ok(shared) = SHARED.try_lock() {
            shared.values().for_each(|postgres| postgres.server.discard());
        }
    }
    let start = || {
        let version = Programs::find(version)?.version;
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(postgres) = shared.get(&version) {
            return Ok(*postgres);
        }
        let postgres: &Postgres = Box::leak(Box::new(Postgres::builder().version(version).start()?));
        if shared.is_empty() {
            // Statics aren't dropped; see `Redis::shared`.
            // SAFETY: `discard` is a function for the whole life of the program.
            unsafe { libc::atexit(discard) };
        }
        shared.insert(version, postgres);
        Ok(postgres)
    };
    start().unwrap_or_else(|error: StartError| panic!("no shared Postgres: {error:?}"))
}

/// Asks until it holds.
fn until(what: &str, mut holds: impl FnMut() -> io::Result<bool>) -> io::Result<()> {
    let begun = Instant::now();
    while !holds()? {
        if begun.elapsed() > DEADLINE {
            return Err(io::Error::new(io::ErrorKind::TimedOut, format!("not within {DEADLINE:?}: {what}")));
        }
        thread::sleep(POLL);
    }
    Ok(())
}

/// Of a server on 127.0.0.1 that speaks Postgres's protocol.
pub(crate) fn url(user: &str, password: &str, port: u16, database: &str) -> String {
    let (user, database) = (percent_encode(user), percent_encode(database));
    let password = if password.is_empty() { String::new() } else { format!(":{}", percent_encode(password)) };
    format!("postgres://{user}{password}@127.0.0.1:{port}/{database}")
}

fn percent_encode(word: &str) -> String {
    word.bytes().fold(String::new(), |mut encoded, byte| {
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
    fn what_a_url_gives_a_meaning_is_encoded() {
        assert_eq!(percent_encode("p@ss:w/rd é"), "p%40ss%3Aw%2Frd%20%C3%A9");
        assert_eq!(url("a", "", 1, "b"), "postgres://a@127.0.0.1:1/b");
    }
}

//! A throwaway Postgres.

use std::fmt::Write as _;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::{MetadataExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use std::{env, fs, io};

use crate::error::StartError;
use crate::folder::Folder;
use crate::port::free_port;
use crate::program::is_program;
use crate::server::{Launch, Server, User, controls, tail};
use crate::{process, wire};

const DEADLINE: Duration = Duration::from_secs(60);
const PORT_TRIES: u32 = 10;
const DISTRIBUTION: &str = "/usr/lib/postgresql";

/// A Postgres server on 127.0.0.1 and on a Unix socket, ended when this is dropped.
///
/// The superuser is `postgres`, and no password is asked for unless one was set. `wal_level` is `logical`, `fsync` is
/// `off` (it survives [`Postgres::kill`], not a power cut), the locale is `C` with UTF-8.
#[derive(Debug)]
pub struct Postgres {
    port: u16,
    password: Option<String>,
    socket_dir: PathBuf,
    server: Server,
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
        static SHARED: OnceLock<Postgres> = OnceLock::new();
        extern "C" fn discard() {
            if let Some(postgres) = SHARED.get() {
                postgres.server.discard();
            }
        }
        SHARED.get_or_init(|| {
            let postgres = Postgres::start().unwrap_or_else(|error| panic!("no shared Postgres: {error:?}"));
            // Statics aren't dropped; see `Redis::shared`.
            // SAFETY: `discard` is a function for the whole life of the program.
            unsafe { libc::atexit(discard) };
            postgres
        })
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
        let password = self.password.as_deref().map(|word| format!(":{}", percent_encode(word)));
        let (password, database) = (password.unwrap_or_default(), percent_encode(database));
        format!("postgres://postgres{password}@127.0.0.1:{}/{database}", self.port)
    }

    /// The folder of the Unix socket, which asks for no password: a `host` for libpq.
    pub fn socket_dir(&self) -> &Path {
        &self.socket_dir
    }

    /// Makes a database whose name starts with `prefix` and is new on this server.
    ///
    /// # Errors
    /// When the server doesn't run or refuses the name.
    pub fn create_database(&self, prefix: &str) -> io::Result<String> {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        let name = format!("{prefix}_{}", NEXT.fetch_add(1, Ordering::Relaxed));
        self.execute("postgres", &format!("CREATE DATABASE \"{}\"", name.replace('"', "\"\"")))?;
        Ok(name)
    }

    /// Runs SQL in a database as the superuser, over the Unix socket; any rows are thrown away.
    ///
    /// # Errors
    /// When the server doesn't run, or with its message and SQLSTATE.
    pub fn execute(&self, database: &str, sql: &str) -> io::Result<()> {
        wire::run(&socket_path(&self.socket_dir, self.port), database, Some(sql))
    }
}

controls!(Postgres);

/// Settings of a [`Postgres`] to come.
#[derive(Clone, Debug, Default)]
pub struct PostgresBuilder {
    settings: Vec<(String, String)>,
    password: Option<String>,
}

impl PostgresBuilder {
    /// Asks for this password on TCP, by SCRAM-SHA-256. The Unix socket still asks for none.
    pub fn password(mut self, password: &str) -> Self {
        self.password = Some(password.to_owned());
        self
    }

    /// Any setting of postgresql.conf; the value is quoted. It wins over the defaults above.
    pub fn config(mut self, key: &str, value: &str) -> Self {
        self.settings.push((key.to_owned(), value.to_owned()));
        self
    }

    /// Makes a new cluster, starts it, and waits until it answers.
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn start(self) -> Result<Postgres, StartError> {
        let programs = find_programs()?;
        let user = user_to_run_as();
        let folder = Arc::new(Folder::create()?);
        self.make_cluster(&programs, user, &folder)?;
        let mut tries = 1;
        loop {
            match self.start_on(free_port(), &programs, user, &folder) {
                Err(StartError::PortTaken { .. }) if tries < PORT_TRIES => tries += 1,
                result => return result,
            }
        }
    }

    fn make_cluster(&self, programs: &Path, user: Option<User>, folder: &Folder) -> Result<(), StartError> {
        give(folder.path(), user)?;
        let program = programs.join("initdb");
        let mut command = Command::new(&program);
        command.current_dir(folder.path()).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.args(["--pgdata=data", "--username=postgres", "--encoding=UTF8", "--locale=C", "--no-sync"]);
        command.arg("--auth-local=trust");
        match &self.password {
            None => command.arg("--auth-host=trust"),
            Some(password) => {
                give(&folder.write("password", password)?, user)?;
                command.args(["--auth-host=scram-sha-256", "--pwfile=password"])
            }
        };
        if let Some(user) = user {
            command.uid(user.uid).gid(user.gid);
        }
        let child = process::spawn(command, libc::SIGKILL);
        let output = child.and_then(std::process::Child::wait_with_output);
        let output = output.map_err(|source| StartError::Spawn { program, source })?;
        if !output.status.success() {
            let log = tail(&String::from_utf8_lossy(&[output.stdout, output.stderr].concat()));
            return Err(StartError::Exited { name: "initdb", status: output.status, log });
        }
        self.write_settings(&folder.path().join("data/postgresql.conf"), folder.path())
    }

    fn write_settings(&self, path: &Path, socket_dir: &Path) -> Result<(), StartError> {
        let append = || {
            let mut text = fs::read_to_string(path)?;
            // On mmap, shared memory is in files of the folder, and a killed server leaves none elsewhere.
            text += "\nlisten_addresses = '127.0.0.1'\nwal_level = logical\nfsync = off\n\
                     dynamic_shared_memory_type = mmap\n";
            let socket_dir = ("unix_socket_directories".to_owned(), socket_dir.display().to_string());
            for (key, value) in [socket_dir].iter().chain(&self.settings) {
                let value = value.replace('\\', r"\\").replace('\'', "''");
                writeln!(text, "{key} = '{value}'").map_err(io::Error::other)?;
            }
            fs::write(path, text)
        };
        append().map_err(|source| StartError::Folder { path: path.to_owned(), source })
    }

    fn start_on(
        &self,
        port: u16,
        programs: &Path,
        user: Option<User>,
        folder: &Arc<Folder>,
    ) -> Result<Postgres, StartError> {
        let socket_dir = folder.path().to_owned();
        let launch = Launch {
            name: "postgres",
            program: programs.join("postgres"),
            args: vec!["-D".into(), "data".into(), "-p".into(), port.to_string().into()],
            user,
            // An immediate shutdown: the children end with it.
            death_signal: libc::SIGQUIT,
            // A fast shutdown: open sessions are ended, the checkpoint is written.
            stop_signal: libc::SIGINT,
            deadline: DEADLINE,
            socket: socket_path(&socket_dir, port),
            is_ready: |socket| wire::run(socket, "postgres", None).is_ok(),
        };
        let server = Server::start(launch, Arc::clone(folder))?;
        Ok(Postgres { port, password: self.password.clone(), socket_dir, server })
    }
}

fn socket_path(socket_dir: &Path, port: u16) -> PathBuf {
    socket_dir.join(format!(".s.PGSQL.{port}"))
}

fn give(path: &Path, user: Option<User>) -> Result<(), StartError> {
    let Some(user) = user else { return Ok(()) };
    let given = chown(path, Some(user.uid), Some(user.gid));
    given.map_err(|source| StartError::Folder { path: path.to_owned(), source })
}

/// Postgres refuses to run as root. There is always somebody else: where `postgres` isn't a user, `nobody` is.
fn user_to_run_as() -> Option<User> {
    let us = fs::metadata("/proc/self").map_or(u32::MAX, |meta| meta.uid());
    if us != 0 {
        return None;
    }
    let users = fs::read_to_string("/etc/passwd").unwrap_or_default();
    find_user(&users, "postgres")
        .or_else(|| find_user(&users, "nobody"))
        .or(Some(User { uid: 65_534, gid: 65_534 }))
}

fn find_user(users: &str, name: &str) -> Option<User> {
    let line = users.lines().find(|line| line.split(':').next() == Some(name))?;
    let mut fields = line.split(':').skip(2);
    Some(User { uid: fields.next()?.parse().ok()?, gid: fields.next()?.parse().ok()? })
}

/// The folder with `initdb` and `postgres`: Debian keeps them off the PATH, one folder per version.
fn find_programs() -> Result<PathBuf, StartError> {
    let chosen = env::var_os("FOREBAY_PG_BIN");
    let path = env::var_os("PATH").unwrap_or_default();
    let folders: Vec<_> = match &chosen {
        Some(chosen) => vec![PathBuf::from(chosen)],
        None => env::split_paths(&path).chain(distribution_folders()).collect(),
    };
    let complete =
        |folder: &PathBuf| is_program(&folder.join("initdb")) && is_program(&folder.join("postgres"));
    folders.into_iter().find(complete).ok_or_else(|| StartError::NotFound {
        program: "initdb and postgres",
        looked_in: match chosen {
            Some(chosen) => format!("FOREBAY_PG_BIN={}", chosen.to_string_lossy()),
            None => format!("PATH={}, then {DISTRIBUTION}/*/bin", path.to_string_lossy()),
        },
    })
}

/// The newest version first.
fn distribution_folders() -> Vec<PathBuf> {
    let entries = fs::read_dir(DISTRIBUTION).into_iter().flatten().flatten();
    let version =
        |entry: fs::DirEntry| Some((entry.file_name().to_str()?.parse().ok()?, entry.path().join("bin")));
    let mut versions: Vec<(u32, PathBuf)> = entries.filter_map(version).collect();
    versions.sort_unstable_by(|a, b| b.cmp(a));
    versions.into_iter().map(|(_, folder)| folder).collect()
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
    fn a_user_is_found_by_its_whole_name() {
        let users =
            "root:x:0:0::/root:/bin/sh\npostgres2:x:7:8::/:/bin/sh\npostgres:x:101:104:,,,:/var:/bin/sh\n";
        assert_eq!(find_user(users, "postgres"), Some(User { uid: 101, gid: 104 }));
        assert_eq!(find_user(users, "nobody"), None);
    }

    #[test]
    fn what_a_url_gives_a_meaning_is_encoded() {
        assert_eq!(percent_encode("p@ss:w/rd é"), "p%40ss%3Aw%2Frd%20%C3%A9");
    }
}

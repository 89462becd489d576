//! Database clusters: created by `initdb`, or copied from a template, which takes a tenth of the
//! time.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use super::programs::{Programs, WORKSPACE_TARGET};
use super::{Postgres, system_identifier};
use crate::copy_folder::copy_folder;
use crate::error::StartError;
use crate::folder::TempFolder;
use crate::pg_connection::PgConnection;
use crate::port::free_port;
use crate::server_process::{LaunchSpec, ServerProcess, last_lines};
use crate::system_user::{SystemUser, change_owner, unprivileged_user};
use crate::{certificate, spawn};

const START_STOP_TIMEOUT: Duration = Duration::from_secs(60);
const PORT_TRIES: u32 = 10;
const INITDB: &[&str] = &[
    "--username=postgres",
    "--encoding=UTF8",
    "--locale=C",
    "--auth=trust",
    "--no-sync",
    "--no-instructions",
];
/// Version of [`INITDB`]: other arguments need other templates.
const TEMPLATE_VERSION: u32 = 1;

/// Database cluster: a data folder, and the programs and settings to run it.
#[derive(Clone, Debug)]
pub(super) struct PostgresCluster {
    pub(super) programs: Programs,
    pub(super) user: Option<SystemUser>,
    pub(super) folder: Arc<TempFolder>,
    /// Password of the superuser.
    pub(super) password: Option<String>,
    pub(super) tls: Option<ClusterTls>,
    /// WAL archive. In its own folder, because backups need it after the server has ended.
    pub(super) archive: Option<Arc<TempFolder>>,
}

/// Certificates for clients: one that verifies the server, and one that doesn't.
#[derive(Clone, Debug)]
pub(super) struct ClusterTls {
    pub(super) ca_pem: String,
    pub(super) ca_path: PathBuf,
    pub(super) wrong_ca_pem: String,
    pub(super) wrong_ca_path: PathBuf,
}

impl PostgresCluster {
    /// Creates a cluster with the settings of `initdb`.
    pub(super) fn create(programs: Programs) -> Result<PostgresCluster, StartError> {
        let cluster = PostgresCluster::empty(programs)?;
        let data = cluster.data();
        let template = template_path(&cluster.programs);
        // The template is only a shortcut; if it can't be used, `initdb` runs.
        let copied = copy_folder(&template, &data, cluster.user, &|_| true)
            .and_then(|()| system_identifier::renew(&data));
        if copied.is_err() {
            let _ = fs::remove_dir_all(&data);
            cluster.run_initdb()?;
            let _ = save_template(&data, &template);
        }
        Ok(cluster)
    }

    /// Creates a cluster without data.
    pub(super) fn empty(programs: Programs) -> Result<PostgresCluster, StartError> {
        let (user, folder) = (unprivileged_user(), Arc::new(TempFolder::create()?));
        change_owner(folder.path(), user).map_err(StartError::with_path(folder.path()))?;
        Ok(PostgresCluster { programs, user, folder, password: None, tls: None, archive: None })
    }

    pub(super) fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    pub(super) fn socket(&self, port: u16) -> PathBuf {
        self.folder.path().join(format!(".s.PGSQL.{port}"))
    }

    /// Appends settings, which override earlier ones.
    pub(super) fn configure<K: AsRef<str>, V: AsRef<str>>(
        &self,
        settings: &[(K, V)],
    ) -> Result<(), StartError> {
        let path = self.data().join("postgresql.conf");
        let text = settings.iter().fold(String::from("\n"), |mut text, (key, value)| {
            let (key, value) = (key.as_ref(), value.as_ref().replace('\\', r"\\").replace('\'', "''"));
            writeln!(text, "{key} = '{value}'").expect("a String takes every write");
            text
        });
        let append = || File::options().append(true).open(&path)?.write_all(text.as_bytes());
        append().map_err(StartError::with_path(&path))
    }

    /// Writes pg_hba.conf with `lines` for TCP; the Unix socket trusts all users.
    pub(super) fn write_hba<L: AsRef<str>>(&self, lines: &[L]) -> Result<(), StartError> {
        let mut text = String::from("local all all trust\nlocal replication all trust\n");
        for line in lines {
            writeln!(text, "{}", line.as_ref()).expect("a String takes every write");
        }
        self.write("data/pg_hba.conf", &text).map(drop)
    }

    /// Writes certificates into the data folder, so that copies have them too, and turns on TLS.
    pub(super) fn use_tls(&mut self) -> Result<(), StartError> {
        let certificates = certificate::make()?;
        self.write("data/server.pem", &certificates.server)?;
        self.write("data/server.key", &certificates.server_key)?;
        self.configure(&[("ssl", "on"), ("ssl_cert_file", "server.pem"), ("ssl_key_file", "server.key")])?;
        self.write_authorities(certificates.authority, certificates.wrong_authority)
    }

    /// Writes the files with the authorities' certificates.
    pub(super) fn write_authorities(
        &mut self,
        ca_pem: String,
        wrong_ca_pem: String,
    ) -> Result<(), StartError> {
        let ca_path = self.write("ca.pem", &ca_pem)?;
        let wrong_ca_path = self.write("wrong-ca.pem", &wrong_ca_pem)?;
        self.tls = Some(ClusterTls { ca_pem, ca_path, wrong_ca_pem, wrong_ca_path });
        Ok(())
    }

    /// Starts the server on a free port and waits until it is ready.
    pub(super) fn start(self) -> Result<Postgres, StartError> {
        let mut tries = 1;
        loop {
            let port = free_port();
            match ServerProcess::start(self.launch(port), Arc::clone(&self.folder)) {
                Err(StartError::PortTaken { .. }) if tries < PORT_TRIES => tries += 1,
                Err(error) => return Err(error),
                Ok(server) => return Ok(Postgres { port, cluster: self, server }),
            }
        }
    }

    /// Writes a file that only the server's user may read, as Postgres requires for keys.
    pub(super) fn write(&self, name: &str, text: &str) -> Result<PathBuf, StartError> {
        let path = self.folder.path().join(name);
        let write = || {
            let mut file = File::options().write(true).create(true).truncate(true).mode(0o600).open(&path)?;
            file.write_all(text.as_bytes())?;
            change_owner(&path, self.user)
        };
        write().map_err(StartError::with_path(&path))?;
        Ok(path)
    }

    fn launch(&self, port: u16) -> LaunchSpec {
        LaunchSpec {
            name: "postgres",
            program: self.programs.postgres(),
            args: vec!["-D".into(), "data".into(), "-p".into(), port.to_string().into()],
            user: self.user,
            // Immediate shutdown: the server ends its child processes.
            death_signal: libc::SIGQUIT,
            // Fast shutdown: sessions are ended and a checkpoint is written.
            stop_signal: libc::SIGINT,
            timeout: START_STOP_TIMEOUT,
            socket: self.socket(port),
            is_ready,
        }
    }

    fn run_initdb(&self) -> Result<(), StartError> {
        let program = self.programs.initdb();
        let path = self.folder.path().join("initdb.log");
        let open = || File::create(&path).and_then(|log| Ok((log.try_clone()?, log)));
        let (out, err) = open().map_err(StartError::with_path(&path))?;
        let mut command = Command::new(&program);
        command.current_dir(self.folder.path()).arg("--pgdata=data").args(INITDB);
        command.stdin(Stdio::null()).stdout(out).stderr(err);
        if let Some(user) = self.user {
            command.uid(user.uid).gid(user.gid);
        }
        let spawned = spawn::spawn(command, libc::SIGKILL);
        let status = spawned.and_then(|mut child| spawn::wait_with_timeout(&mut child, START_STOP_TIMEOUT));
        let log = || last_lines(&fs::read_to_string(&path).unwrap_or_default());
        match status.map_err(|source| StartError::Spawn { program, source })? {
            Some(status) if status.success() => Ok(()),
            Some(status) => Err(StartError::Exited { name: "initdb", status, log: log() }),
            None => Err(StartError::Silent { name: "initdb", waited: START_STOP_TIMEOUT, log: log() }),
        }
    }
}

/// Returns true if the status in the lock file is `ready` or `standby`, and a connection succeeds.
///
/// The lock file is read first: each connection starts a process, and each refusal writes a log
/// line. The lock file alone isn't enough: a killed server leaves it behind.
fn is_ready(socket: &Path) -> bool {
    let lock = fs::read_to_string(socket.with_file_name("data/postmaster.pid")).unwrap_or_default();
    let status = lock.lines().nth(7).unwrap_or_default().trim_end();
    matches!(status, "ready" | "standby") && PgConnection::open(socket, "postgres").is_ok()
}

/// Returns the template's path, below the workspace's target folder, shared by all processes.
fn template_path(programs: &Programs) -> PathBuf {
    let release = programs.release.replace(|char: char| !char.is_ascii_alphanumeric() && char != '.', "-");
    Path::new(WORKSPACE_TARGET).join(format!("postgres-templates/{release}-{TEMPLATE_VERSION}"))
}

/// Saves a cluster that never ran as a template. The first process saves it for all others.
fn save_template(data: &Path, template: &Path) -> io::Result<()> {
    let new = template.with_added_extension(std::process::id().to_string());
    if let Some(templates) = template.parent().filter(|templates| !templates.exists()) {
        // Fails outside a workspace, where no template is kept.
        fs::create_dir(templates)?;
    }
    let kept = copy_folder(data, &new, None, &|_| true).and_then(|()| fs::rename(&new, template));
    if kept.is_err() {
        let _ = fs::remove_dir_all(&new);
    }
    kept
}

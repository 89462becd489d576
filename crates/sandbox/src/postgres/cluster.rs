//! Data folders: made by `initdb`, or copied from one that `initdb` made before, which takes a tenth of the time.

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
use super::{Postgres, identity};
use crate::copy::copy_folder;
use crate::error::StartError;
use crate::folder::Folder;
use crate::port::free_port;
use crate::server::{Launch, Server, tail};
use crate::user::{User, give, other_than_root};
use crate::wire::Session;
use crate::{certificate, process};

const DEADLINE: Duration = Duration::from_secs(60);
const PORT_TRIES: u32 = 10;
const INITDB: &[&str] = &[
    "--username=postgres",
    "--encoding=UTF8",
    "--locale=C",
    "--auth=trust",
    "--no-sync",
    "--no-instructions",
];
/// A number for [`INITDB`]: other arguments make other templates.
const TEMPLATE_FORM: u32 = 1;

/// A data folder, and what it takes to serve it.
#[derive(Clone, Debug)]
pub(super) struct Cluster {
    pub(super) programs: Programs,
    pub(super) user: Option<User>,
    pub(super) folder: Arc<Folder>,
    /// The superuser's.
    pub(super) password: Option<String>,
    pub(super) tls: Option<Tls>,
    /// Where its log is archived to. Not in its own folder: backups need it after the server is gone.
    pub(super) archive: Option<Arc<Folder>>,
}

/// What clients verify the server by, or fail to.
#[derive(Clone, Debug)]
pub(super) struct Tls {
    pub(super) ca_pem: String,
    pub(super) ca_path: PathBuf,
    pub(super) wrong_ca_pem: String,
    pub(super) wrong_ca_path: PathBuf,
}

impl Cluster {
    /// A new one, with the settings of `initdb`.
    pub(super) fn create(programs: Programs) -> Result<Cluster, StartError> {
        let cluster = Cluster::empty(programs)?;
        let data = cluster.data();
        let template = template_path(&cluster.programs);
        // It is only a shortcut: whatever is wrong with it, there is still `initdb`.
        let copied =
            copy_folder(&template, &data, cluster.user, &|_| true).and_then(|()| identity::renew(&data));
        if copied.is_err() {
            let _ = fs::remove_dir_all(&data);
            cluster.run_initdb()?;
            let _ = keep_template(&data, &template);
        }
        Ok(cluster)
    }

    /// One without data, yet.
    pub(super) fn empty(programs: Programs) -> Result<Cluster, StartError> {
        let (user, folder) = (other_than_root(), Arc::new(Folder::create()?));
        give(folder.path(), user).map_err(StartError::at(folder.path()))?;
        Ok(Cluster { programs, user, folder, password: None, tls: None, archive: None })
    }

    pub(super) fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    pub(super) fn socket(&self, port: u16) -> PathBuf {
        self.folder.path().join(format!(".s.PGSQL.{port}"))
    }

    /// Appends settings, which win over those before them.
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
        append().map_err(StartError::at(&path))
    }

    /// Says who may come in over TCP; the Unix socket trusts everybody.
    pub(super) fn allow<L: AsRef<str>>(&self, lines: &[L]) -> Result<(), StartError> {
        let mut text = String::from("local all all trust\nlocal replication all trust\n");
        for line in lines {
            writeln!(text, "{}", line.as_ref()).expect("a String takes every write");
        }
        self.write("data/pg_hba.conf", &text).map(drop)
    }

    /// Certificates are in the data folder, so that a copy of it has them, too.
    pub(super) fn use_tls(&mut self) -> Result<(), StartError> {
        let certificates = certificate::make()?;
        self.write("data/server.pem", &certificates.server)?;
        self.write("data/server.key", &certificates.server_key)?;
        self.configure(&[("ssl", "on"), ("ssl_cert_file", "server.pem"), ("ssl_key_file", "server.key")])?;
        self.trust(certificates.authority, certificates.wrong_authority)
    }

    /// Writes the authorities of the server's certificate down.
    pub(super) fn trust(&mut self, ca_pem: String, wrong_ca_pem: String) -> Result<(), StartError> {
        let ca_path = self.write("ca.pem", &ca_pem)?;
        let wrong_ca_path = self.write("wrong-ca.pem", &wrong_ca_pem)?;
        self.tls = Some(Tls { ca_pem, ca_path, wrong_ca_pem, wrong_ca_path });
        Ok(())
    }

    /// Starts the server on a port of its own, and waits until it answers.
    pub(super) fn start(self) -> Result<Postgres, StartError> {
        let mut tries = 1;
        loop {
            let port = free_port();
            match Server::start(self.launch(port), Arc::clone(&self.folder)) {
                Err(StartError::PortTaken { .. }) if tries < PORT_TRIES => tries += 1,
                Err(error) => return Err(error),
                Ok(server) => return Ok(Postgres { port, cluster: self, server }),
            }
        }
    }

    /// Writes a file that only the server's user may read, as Postgres asks of a key.
    pub(super) fn write(&self, name: &str, text: &str) -> Result<PathBuf, StartError> {
        let path = self.folder.path().join(name);
        let write = || {
            let mut file = File::options().write(true).create(true).truncate(true).mode(0o600).open(&path)?;
            file.write_all(text.as_bytes())?;
            give(&path, self.user)
        };
        write().map_err(StartError::at(&path))?;
        Ok(path)
    }

    fn launch(&self, port: u16) -> Launch {
        Launch {
            name: "postgres",
            program: self.programs.postgres(),
            args: vec!["-D".into(), "data".into(), "-p".into(), port.to_string().into()],
            user: self.user,
            // An immediate shutdown: the children end with it.
            death_signal: libc::SIGQUIT,
            // A fast shutdown: open sessions are ended, the checkpoint is written.
            stop_signal: libc::SIGINT,
            deadline: DEADLINE,
            socket: self.socket(port),
            is_ready,
        }
    }

    fn run_initdb(&self) -> Result<(), StartError> {
        let program = self.programs.initdb();
        let path = self.folder.path().join("initdb.log");
        let open = || File::create(&path).and_then(|log| Ok((log.try_clone()?, log)));
        let (out, err) = open().map_err(StartError::at(&path))?;
        let mut command = Command::new(&program);
        command.current_dir(self.folder.path()).arg("--pgdata=data").args(INITDB);
        command.stdin(Stdio::null()).stdout(out).stderr(err);
        if let Some(user) = self.user {
            command.uid(user.uid).gid(user.gid);
        }
        let spawned = process::spawn(command, libc::SIGKILL);
        let status = spawned.and_then(|mut child| process::finish(&mut child, DEADLINE));
        let log = || tail(&fs::read_to_string(&path).unwrap_or_default());
        match status.map_err(|source| StartError::Spawn { program, source })? {
            Some(status) if status.success() => Ok(()),
            Some(status) => Err(StartError::Exited { name: "initdb", status, log: log() }),
            None => Err(StartError::Silent { name: "initdb", waited: DEADLINE, log: log() }),
        }
    }
}

/// Asks the lock file first, where Postgres writes it down: a connection costs it a process, and a refusal a line of log.
/// What a killed one left there is not believed either.
fn is_ready(socket: &Path) -> bool {
    let lock = fs::read_to_string(socket.with_file_name("data/postmaster.pid")).unwrap_or_default();
    let status = lock.lines().nth(7).unwrap_or_default().trim_end();
    matches!(status, "ready" | "standby") && Session::open(socket, "postgres").is_ok()
}

/// Beside what script/bootstrap installs, for all processes: most tests run in one of their own.
fn template_path(programs: &Programs) -> PathBuf {
    let release = programs.release.replace(|char: char| !char.is_ascii_alphanumeric() && char != '.', "-");
    Path::new(WORKSPACE_TARGET).join(format!("postgres-templates/{release}-{TEMPLATE_FORM}"))
}

/// Makes a template of a cluster that never ran; whoever is the first does it for all.
fn keep_template(data: &Path, template: &Path) -> io::Result<()> {
    let new = template.with_added_extension(std::process::id().to_string());
    if let Some(templates) = template.parent().filter(|templates| !templates.exists()) {
        // Where there is no workspace, there is nowhere to keep it.
        fs::create_dir(templates)?;
    }
    let kept = copy_folder(data, &new, None, &|_| true).and_then(|()| fs::rename(&new, template));
    if kept.is_err() {
        let _ = fs::remove_dir_all(&new);
    }
    kept
}

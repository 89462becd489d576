//! A throwaway DynamoDB: the emulator `ministack` from PyPI, with that one service switched on.
//!
//! It runs under hypercorn, which ministack brings along, and not by its own command: that one writes a pid file which a
//! kill would leave behind, and has no Unix socket to ask for readiness.

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use std::{env, str};

use crate::error::StartError;
use crate::folder::Folder;
use crate::port::free_port;
use crate::program::{self, is_program};
use crate::server::{Launch, Server, controls};

const PROGRAM: &str = "ministack";
const SERVER: &str = "hypercorn";
const DEADLINE: Duration = Duration::from_secs(60);
const PORT_TRIES: u32 = 10;
/// Where script/bootstrap puts what comes from PyPI.
const WORKSPACE_VENV: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/venv");

/// A DynamoDB endpoint on 127.0.0.1, ended when this is dropped.
///
/// It takes any credentials and any region. All that it knows is in memory: [`DynamoDb::kill`] loses it.
#[derive(Debug)]
pub struct DynamoDb {
    port: u16,
    server: Server,
}

impl DynamoDb {
    /// Starts one, without tables, and waits until it answers.
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn start() -> Result<DynamoDb, StartError> {
        let program = find()?;
        let folder = Arc::new(Folder::create()?);
        let mut tries = 1;
        loop {
            match start_on(free_port(), &program, &folder) {
                Err(StartError::PortTaken { .. }) if tries < PORT_TRIES => tries += 1,
                result => return result,
            }
        }
    }

    /// The one that all tests of this process share, started by the first call. Use a table of your own, and leave the
    /// control calls to servers of your own.
    ///
    /// # Panics
    /// When it can't be started.
    pub fn shared() -> &'static DynamoDb {
        static SHARED: OnceLock<DynamoDb> = OnceLock::new();
        extern "C" fn discard() {
            if let Some(dynamodb) = SHARED.get() {
                dynamodb.server.discard();
            }
        }
        SHARED.get_or_init(|| {
            let dynamodb = DynamoDb::start().unwrap_or_else(|error| panic!("no shared DynamoDB: {error:?}"));
            // Statics aren't dropped; see `Redis::shared`.
            // SAFETY: `discard` is a function for the whole life of the program.
            unsafe { libc::atexit(discard) };
            dynamodb
        })
    }

    /// Its port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Its address, on 127.0.0.1.
    pub fn addr(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.port))
    }

    /// `http://127.0.0.1:PORT`, for an SDK's endpoint.
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }
}

controls!(DynamoDb);

/// hypercorn beside ministack: in the virtual environment that `FOREBAY_VENV` names, in the workspace's own, or on the PATH.
fn find() -> Result<PathBuf, StartError> {
    let named = env::var_os("FOREBAY_VENV").map(PathBuf::from);
    let folders: Vec<_> = named.into_iter().chain([PathBuf::from(WORKSPACE_VENV)]).collect();
    let beside = folders.iter().map(|folder| folder.join("bin").join(PROGRAM)).find(|file| is_program(file));
    let ministack = match beside {
        Some(file) => file,
        None => program::find(PROGRAM).map_err(|error| match error {
            StartError::NotFound { program, looked_in } => {
                let folders: Vec<_> = folders.iter().map(|folder| folder.display().to_string()).collect();
                StartError::NotFound { program, looked_in: format!("{}, {looked_in}", folders.join(", ")) }
            }
            error => error,
        })?,
    };
    let server = ministack.with_file_name(SERVER);
    if is_program(&server) {
        return Ok(server);
    }
    let looked_in = format!("beside {}", ministack.display());
    Err(StartError::NotFound { program: SERVER.to_owned(), looked_in })
}

fn start_on(port: u16, program: &Path, folder: &Arc<Folder>) -> Result<DynamoDb, StartError> {
    let socket = folder.path().join("dynamodb.sock");
    let setting = |name: &str, value: &Path| {
        let mut setting = OsString::from(name);
        setting.push("=");
        setting.push(value);
        setting
    };
    // Nothing of the caller's environment gets in: ministack, Python and AWS read dozens of variables.
    let mut args = vec![
        OsString::from("-i"),
        setting("HOME", folder.path()),
        setting("TMPDIR", folder.path()),
        OsString::from(format!("GATEWAY_PORT={port}")),
    ];
    let settings = ["SERVICES=dynamodb", "LOG_LEVEL=WARNING", "IOT_MTLS_ENABLED=0", "SFTP_ENABLED=0"];
    args.extend(settings.map(OsString::from));
    args.push(program.into());
    // Without workers it serves in the process that we started, the one that dies with us.
    args.extend(["--workers", "0", "--bind"].map(OsString::from));
    args.push(OsString::from(format!("127.0.0.1:{port}")));
    args.extend(["--bind".into(), OsString::from(format!("unix:{}", socket.display()))]);
    args.push(OsString::from("ministack.app:app"));
    let launch = Launch {
        name: PROGRAM,
        program: program::find("env")?,
        args,
        user: None,
        death_signal: libc::SIGKILL,
        stop_signal: libc::SIGTERM,
        deadline: DEADLINE,
        socket,
        is_ready,
    };
    Ok(DynamoDb { port, server: Server::start(launch, Arc::clone(folder))? })
}

/// Its first request loads the service, so that no test waits for that.
fn is_ready(socket: &Path) -> bool {
    const ASK: &str = "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-amz-json-1.0\r\n\
        X-Amz-Target: DynamoDB_20120810.ListTables\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}";
    let ask = || {
        let mut stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(Duration::from_secs(10)))?;
        stream.write_all(ASK.as_bytes())?;
        let mut head = [0; 12];
        stream.read_exact(&mut head)?;
        Ok::<_, io::Error>(str::from_utf8(&head).is_ok_and(|head| head.ends_with(" 200")))
    };
    ask().unwrap_or(false)
}

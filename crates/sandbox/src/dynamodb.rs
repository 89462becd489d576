//! Throwaway DynamoDB: the emulator `ministack` from PyPI, with only that service enabled.
//!
//! It runs under hypercorn, which ministack depends on. ministack's own command would leave a pid
//! file behind when killed, and has no Unix socket for the readiness check.

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use std::{env, str};

use crate::error::StartError;
use crate::folder::TempFolder;
use crate::port::free_port;
use crate::program::{self, is_program};
use crate::server_process::{LaunchSpec, ServerProcess, server_controls};

const PROGRAM: &str = "ministack";
const SERVER: &str = "hypercorn";
const START_STOP_TIMEOUT: Duration = Duration::from_secs(60);
const PORT_TRIES: u32 = 10;
/// Virtual environment that script/bootstrap creates.
const WORKSPACE_VENV: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/venv");

/// DynamoDB endpoint on 127.0.0.1; stopped when dropped.
///
/// It accepts all credentials and regions. All data is in memory and is lost by [`DynamoDb::kill`].
#[derive(Debug)]
pub struct DynamoDb {
    port: u16,
    server: ServerProcess,
}

impl DynamoDb {
    /// Starts a server without tables and waits until it is ready.
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn start() -> Result<DynamoDb, StartError> {
        let program = find()?;
        let folder = Arc::new(TempFolder::create()?);
        let mut tries = 1;
        loop {
            match start_on(free_port(), &program, &folder) {
                Err(StartError::PortTaken { .. }) if tries < PORT_TRIES => tries += 1,
                result => return result,
            }
        }
    }

    /// Returns the server that all tests of this process share, started by the first call.
    ///
    /// Use your own table in it. Don't use the control functions on it.
    ///
    /// # Panics
    /// Panics if it can't be started.
    pub fn shared() -> &'static DynamoDb {
        static SHARED: OnceLock<DynamoDb> = OnceLock::new();
        extern "C" fn discard() {
            if let Some(dynamodb) = SHARED.get() {
                dynamodb.server.discard();
            }
        }
        SHARED.get_or_init(|| {
            let dynamodb = DynamoDb::start().unwrap_or_else(|error| panic!("no shared DynamoDB: {error:?}"));
            // Statics are not dropped; see `Redis::shared`.
            // SAFETY: `discard` is valid for the whole life of the program.
            unsafe { libc::atexit(discard) };
            dynamodb
        })
    }

    /// Returns the port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns the address on 127.0.0.1.
    pub fn addr(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.port))
    }

    /// Returns `http://127.0.0.1:PORT`, the endpoint for an SDK.
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }
}

server_controls!(DynamoDb);

/// Finds hypercorn in the folder of ministack: in `FOREBAY_VENV`, in the workspace's environment,
/// or on the PATH.
fn find() -> Result<PathBuf, StartError> {
    let configured = env::var_os("FOREBAY_VENV").map(PathBuf::from);
    let folders: Vec<_> = configured.into_iter().chain([PathBuf::from(WORKSPACE_VENV)]).collect();
    let installed =
        folders.iter().map(|folder| folder.join("bin").join(PROGRAM)).find(|file| is_program(file));
    let ministack = match installed {
        Some(file) => file,
        None => program::find(PROGRAM).map_err(|error| match error {
            StartError::NotFound { program, searched } => {
                let folders: Vec<_> = folders.iter().map(|folder| folder.display().to_string()).collect();
                StartError::NotFound { program, searched: format!("{}, {searched}", folders.join(", ")) }
            }
            error => error,
        })?,
    };
    let server = ministack.with_file_name(SERVER);
    if is_program(&server) {
        return Ok(server);
    }
    let searched = format!("next to {}", ministack.display());
    Err(StartError::NotFound { program: SERVER.to_owned(), searched })
}

fn start_on(port: u16, program: &Path, folder: &Arc<TempFolder>) -> Result<DynamoDb, StartError> {
    let socket = folder.path().join("dynamodb.sock");
    let setting = |name: &str, value: &Path| {
        let mut setting = OsString::from(name);
        setting.push("=");
        setting.push(value);
        setting
    };
    // The caller's environment is cleared: ministack, Python and AWS read many variables.
    let mut args = vec![
        OsString::from("-i"),
        setting("HOME", folder.path()),
        setting("TMPDIR", folder.path()),
        OsString::from(format!("GATEWAY_PORT={port}")),
    ];
    let settings = ["SERVICES=dynamodb", "LOG_LEVEL=WARNING", "IOT_MTLS_ENABLED=0", "SFTP_ENABLED=0"];
    args.extend(settings.map(OsString::from));
    args.push(program.into());
    // Without workers hypercorn serves in its main process, which has the death signal.
    args.extend(["--workers", "0", "--bind"].map(OsString::from));
    args.push(OsString::from(format!("127.0.0.1:{port}")));
    args.extend(["--bind".into(), OsString::from(format!("unix:{}", socket.display()))]);
    args.push(OsString::from("ministack.app:app"));
    let launch = LaunchSpec {
        name: PROGRAM,
        program: program::find("env")?,
        args,
        user: None,
        death_signal: libc::SIGKILL,
        stop_signal: libc::SIGTERM,
        timeout: START_STOP_TIMEOUT,
        socket,
        is_ready,
    };
    Ok(DynamoDb { port, server: ServerProcess::start(launch, Arc::clone(folder))? })
}

/// Returns true if the server responds to a first request, which also loads the service.
fn is_ready(socket: &Path) -> bool {
    const REQUEST: &str = "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-amz-json-1.0\r\n\
        X-Amz-Target: DynamoDB_20120810.ListTables\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}";
    let list_tables = || {
        let mut stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(Duration::from_secs(10)))?;
        stream.write_all(REQUEST.as_bytes())?;
        let mut head = [0; 12];
        stream.read_exact(&mut head)?;
        Ok::<_, io::Error>(str::from_utf8(&head).is_ok_and(|head| head.ends_with(" 200")))
    };
    list_tables().unwrap_or(false)
}

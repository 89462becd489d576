//! Contestants: each is a server, its clients, and a function that writes.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use forebay_sandbox::Postgres;
use tokio_postgres::NoTls;

use super::listeners::STREAM;
use super::{RACE, direct, now};
use crate::helper_process::HelperProcess;
use crate::serving::ForebayProcess;

/// Maximum time from the start of a server until it listens.
const START_TIMEOUT: Duration = Duration::from_secs(20);
const INSERT: &str =
    "INSERT INTO news (note) VALUES ('~ sixty-four bytes or so, as a price or a line of a chat has them')";
/// The inserted row as an event, for the server without Postgres.
const EVENT: &str =
    "{\"id\":\"12345\",\"note\":\"~ sixty-four bytes or so, as a price or a line of a chat has them\"}";

/// A server and its clients.
pub(super) struct FanoutContestant {
    pub(super) name: &'static str,
    /// Processes whose CPU time is measured.
    pub(super) pids: Vec<u32>,
    pub(super) listeners: HelperProcess,
    /// Writes one event. Returns the time before the write; see `now`.
    pub(super) write: Box<dyn FnMut() -> Result<u64>>,
    /// Average number of bytes that a client received for the last write.
    pub(super) bytes: usize,
    /// Processes that are ended on drop.
    _resources: Box<dyn std::any::Any>,
}

pub(super) fn sse(clients: u64) -> Result<Vec<FanoutContestant>> {
    let ours = forebay(clients, STREAM, |forebay| forebay.live("table=news", "&live_sse=true"))?;
    let [node, durable] = [node(clients)?, durable_streams(clients, STREAM, "/news?offset=now&live=sse")?];
    with_bare_thread(clients, ours, [durable, node])
}

pub(super) fn long_poll(clients: u64) -> Result<Vec<FanoutContestant>> {
    let ours = forebay(clients, "electric-offset", |forebay| {
        let (handle, offset) = forebay.now("table=news")?;
        Ok(format!("/v1/shape?table=news&handle={handle}&live=true&offset=OFFSET#{offset}"))
    })?;
    let target = "/news?live=long-poll&offset=OFFSET#now";
    let durable = durable_streams(clients, "stream-next-offset", target)?;
    with_bare_thread(clients, ours, [durable])
}

/// Adds the bare thread, which writes to each client as many bytes as a client of ours receives.
fn with_bare_thread(
    clients: u64,
    mut ours: FanoutContestant,
    others: impl IntoIterator<Item = FanoutContestant>,
) -> Result<Vec<FanoutContestant>> {
    ours.run_turn(1)?;
    let mut process = HelperProcess::start(RACE.name, &format!("direct {clients} {}", ours.bytes))?;
    let address = process.expect_line("listening")?.parse()?;
    let listeners = listen(clients, address, STREAM, "/")?;
    let pids = vec![process.pid()];
    let write = move || {
        process.send_command("write")?;
        Ok(process.expect_line("wrote")?.parse()?)
    };
    let (name, bytes) = (direct::NAME, ours.bytes);
    let bare =
        FanoutContestant { name, pids, listeners, write: Box::new(write), bytes, _resources: Box::new(()) };
    Ok([ours, bare].into_iter().chain(others).collect())
}

fn listen(clients: u64, address: SocketAddr, header: &str, target: &str) -> Result<HelperProcess> {
    let mut listeners =
        HelperProcess::start(RACE.name, &format!("listeners {clients} {address} {header} {target}"))?;
    listeners.expect_line("ready")?;
    Ok(listeners)
}

fn forebay(
    clients: u64,
    header: &str,
    target: impl Fn(&ForebayProcess) -> Result<String>,
) -> Result<FanoutContestant> {
    let postgres = news()?;
    let forebay = ForebayProcess::start(RACE.name, &postgres, "postgres")?;
    let listeners = listen(clients, forebay.address(), header, &target(&forebay)?)?;
    let (pids, write) = (vec![forebay.pid()], Box::new(writer(&postgres)?));
    let _resources = Box::new((forebay, postgres));
    Ok(FanoutContestant { name: "forebay", pids, listeners, write, bytes: 0, _resources })
}

fn news() -> Result<Postgres> {
    let postgres = Postgres::start()?;
    let table = "CREATE TABLE news (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, note text)";
    postgres.execute("postgres", table)?;
    Ok(postgres)
}

/// Returns a function that inserts a row, and waits for the commit.
fn writer(postgres: &Postgres) -> Result<impl FnMut() -> Result<u64> + use<>> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let (client, connection) = runtime.block_on(tokio_postgres::connect(&postgres.url("postgres"), NoTls))?;
    runtime.spawn(connection);
    Ok(move || {
        let started = now();
        runtime.block_on(client.batch_execute(INSERT))?;
        Ok(started)
    })
}

fn node(clients: u64) -> Result<FanoutContestant> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("peers/fanout.mjs");
    let packages = script.with_file_name("node_modules");
    ensure!(packages.exists(), "{} is missing: run script/bootstrap races", packages.display());
    let postgres = news()?;
    postgres.execute("postgres", "CREATE PUBLICATION news FOR TABLE news")?;
    postgres.execute("postgres", "SELECT pg_create_logical_replication_slot('news', 'pgoutput')")?;
    let mut command = Command::new("node");
    command.arg(script).arg(postgres.url("postgres"));
    let program = PeerProcess::start(command, None)?;
    let listeners = listen(clients, program.address, STREAM, "/")?;
    let (pids, write) = (vec![program.child.id()], Box::new(writer(&postgres)?));
    let _resources = Box::new((program, postgres));
    Ok(FanoutContestant { name: "node", pids, listeners, write, bytes: 0, _resources })
}

fn durable_streams(clients: u64, header: &str, target: &str) -> Result<FanoutContestant> {
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/peers/bin/durable-streams-server");
    ensure!(program.exists(), "{} is missing: run script/bootstrap races", program.display());
    let folder = std::env::temp_dir().join(format!("forebay-races-durable-{}", std::process::id()));
    let mut command = Command::new(program);
    command.arg("--data-dir").arg(&folder).arg("--port");
    let program = PeerProcess::start(command, Some(folder))?;
    let mut socket = TcpStream::connect(program.address)?;
    socket.set_nodelay(true)?;
    send_request(&mut socket, "PUT", "")?;
    let listeners = listen(clients, program.address, header, target)?;
    let write = Box::new(move || {
        let started = now();
        send_request(&mut socket, "POST", EVENT)?;
        Ok(started)
    });
    let pids = vec![program.child.id()];
    Ok(FanoutContestant {
        name: "durable-streams",
        pids,
        listeners,
        write,
        bytes: 0,
        _resources: Box::new(program),
    })
}

/// Sends a request for the stream `/news` to durable-streams. Fails if it isn't successful.
fn send_request(socket: &mut TcpStream, method: &str, body: &str) -> Result<()> {
    let length = body.len();
    let request = format!(
        "{method} /news HTTP/1.1\r\nhost: race\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
    );
    socket.write_all(request.as_bytes())?;
    let mut answer = [0; 4096];
    let read = socket.read(&mut answer)?;
    ensure!(answer.starts_with(b"HTTP/1.1 20"), "{method} returned {}", answer[..read].escape_ascii());
    Ok(())
}

/// Server process of a peer. Its last argument is its port. On drop, it is killed and its folder is
/// removed.
struct PeerProcess {
    child: Child,
    address: SocketAddr,
    folder: Option<PathBuf>,
}

impl PeerProcess {
    fn start(mut command: Command, folder: Option<PathBuf>) -> Result<PeerProcess> {
        let port = forebay_sandbox::free_port();
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        command.arg(port.to_string()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().with_context(|| format!("starting {command:?}"))?;
        let program = PeerProcess { child, address, folder };
        let started = Instant::now();
        while TcpStream::connect(address).is_err() {
            ensure!(started.elapsed() < START_TIMEOUT, "{command:?} doesn't listen after {START_TIMEOUT:?}");
            thread::sleep(Duration::from_millis(10));
        }
        Ok(program)
    }
}

impl Drop for PeerProcess {
    fn drop(&mut self) {
        // All of these fail only if the process or the folder is gone.
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = self.folder.as_ref().map(fs::remove_dir_all);
    }
}

//! Who is raced: each a server, its clients, and a way to write.

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
use crate::helper::Helper;
use crate::serving::Forebay;

/// From a server's start until it listens.
const PATIENCE: Duration = Duration::from_secs(20);
const INSERT: &str =
    "INSERT INTO news (note) VALUES ('~ sixty-four bytes or so, as a price or a line of a chat has them')";
/// The same, for who has no Postgres.
const EVENT: &str =
    "{\"id\":\"12345\",\"note\":\"~ sixty-four bytes or so, as a price or a line of a chat has them\"}";

/// A server and its clients.
pub(super) struct House {
    pub(super) name: &'static str,
    pub(super) pids: Vec<u32>,
    pub(super) listeners: Helper,
    /// Writes, and returns when it began to.
    pub(super) write: Box<dyn FnMut() -> Result<u64>>,
    /// What a client got, the last time.
    pub(super) bytes: usize,
    _held: Box<dyn std::any::Any>,
}

pub(super) fn sse(clients: u64) -> Result<Vec<House>> {
    let ours = forebay(clients, STREAM, |forebay| forebay.live("table=news", "&live_sse=true"))?;
    let [node, durable] = [node(clients)?, durable_streams(clients, STREAM, "/news?offset=now&live=sse")?];
    with_the_bare_thread(clients, ours, [durable, node])
}

pub(super) fn long_poll(clients: u64) -> Result<Vec<House>> {
    let ours = forebay(clients, "electric-offset", |forebay| {
        let (handle, offset) = forebay.now("table=news")?;
        Ok(format!("/v1/shape?table=news&handle={handle}&live=true&offset=OFFSET#{offset}"))
    })?;
    let target = "/news?live=long-poll&offset=OFFSET#now";
    let durable = durable_streams(clients, "stream-next-offset", target)?;
    with_the_bare_thread(clients, ours, [durable])
}

/// It writes as many bytes as one of our clients gets.
fn with_the_bare_thread(
    clients: u64,
    mut ours: House,
    others: impl IntoIterator<Item = House>,
) -> Result<Vec<House>> {
    ours.turn(1)?;
    let mut process = Helper::start(RACE.name, &format!("direct {clients} {}", ours.bytes))?;
    let address = process.hear("listening")?.parse()?;
    let listeners = listen(clients, address, STREAM, "/")?;
    let pids = vec![process.pid()];
    let write = move || {
        process.order("write")?;
        Ok(process.hear("wrote")?.parse()?)
    };
    let (name, bytes) = (direct::NAME, ours.bytes);
    let bare = House { name, pids, listeners, write: Box::new(write), bytes, _held: Box::new(()) };
    Ok([ours, bare].into_iter().chain(others).collect())
}

fn listen(clients: u64, address: SocketAddr, header: &str, target: &str) -> Result<Helper> {
    let mut listeners =
        Helper::start(RACE.name, &format!("listeners {clients} {address} {header} {target}"))?;
    listeners.hear("ready")?;
    Ok(listeners)
}

fn forebay(clients: u64, header: &str, target: impl Fn(&Forebay) -> Result<String>) -> Result<House> {
    let postgres = news()?;
    let forebay = Forebay::start(RACE.name, &postgres, "postgres")?;
    let listeners = listen(clients, forebay.address(), header, &target(&forebay)?)?;
    let (pids, write) = (vec![forebay.pid()], Box::new(writer(&postgres)?));
    let _held = Box::new((forebay, postgres));
    Ok(House { name: "forebay", pids, listeners, write, bytes: 0, _held })
}

fn news() -> Result<Postgres> {
    let postgres = Postgres::start()?;
    let table = "CREATE TABLE news (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, note text)";
    postgres.execute("postgres", table)?;
    Ok(postgres)
}

/// Inserts a row, and waits for the commit.
fn writer(postgres: &Postgres) -> Result<impl FnMut() -> Result<u64> + use<>> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let (client, connection) = runtime.block_on(tokio_postgres::connect(&postgres.url("postgres"), NoTls))?;
    runtime.spawn(connection);
    Ok(move || {
        let began = now();
        runtime.block_on(client.batch_execute(INSERT))?;
        Ok(began)
    })
}

fn node(clients: u64) -> Result<House> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("peers/fanout.mjs");
    let packages = script.with_file_name("node_modules");
    ensure!(packages.exists(), "{} is missing: run script/bootstrap races", packages.display());
    let postgres = news()?;
    postgres.execute("postgres", "CREATE PUBLICATION news FOR TABLE news")?;
    postgres.execute("postgres", "SELECT pg_create_logical_replication_slot('news', 'pgoutput')")?;
    let mut command = Command::new("node");
    command.arg(script).arg(postgres.url("postgres"));
    let program = Program::start(command, None)?;
    let listeners = listen(clients, program.address, STREAM, "/")?;
    let (pids, write) = (vec![program.child.id()], Box::new(writer(&postgres)?));
    let _held = Box::new((program, postgres));
    Ok(House { name: "node", pids, listeners, write, bytes: 0, _held })
}

fn durable_streams(clients: u64, header: &str, target: &str) -> Result<House> {
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/peers/bin/durable-streams-server");
    ensure!(program.exists(), "{} is missing: run script/bootstrap races", program.display());
    let folder = std::env::temp_dir().join(format!("forebay-races-durable-{}", std::process::id()));
    let mut command = Command::new(program);
    command.arg("--data-dir").arg(&folder).arg("--port");
    let program = Program::start(command, Some(folder))?;
    let mut socket = TcpStream::connect(program.address)?;
    socket.set_nodelay(true)?;
    say(&mut socket, "PUT", "")?;
    let listeners = listen(clients, program.address, header, target)?;
    let write = Box::new(move || {
        let began = now();
        say(&mut socket, "POST", EVENT)?;
        Ok(began)
    });
    let pids = vec![program.child.id()];
    Ok(House { name: "durable-streams", pids, listeners, write, bytes: 0, _held: Box::new(program) })
}

/// To durable-streams, about its stream.
fn say(socket: &mut TcpStream, method: &str, body: &str) -> Result<()> {
    let length = body.len();
    let request = format!(
        "{method} /news HTTP/1.1\r\nhost: race\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
    );
    socket.write_all(request.as_bytes())?;
    let mut answer = [0; 4096];
    let read = socket.read(&mut answer)?;
    ensure!(
        answer.starts_with(b"HTTP/1.1 20"),
        "{method} is answered with {}",
        answer[..read].escape_ascii()
    );
    Ok(())
}

/// A program that isn't ours, on a free port that is its last argument; ended when dropped, and its folder with it.
struct Program {
    child: Child,
    address: SocketAddr,
    folder: Option<PathBuf>,
}

impl Program {
    fn start(mut command: Command, folder: Option<PathBuf>) -> Result<Program> {
        let port = forebay_sandbox::free_port();
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        command.arg(port.to_string()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().with_context(|| format!("starting {command:?}"))?;
        let program = Program { child, address, folder };
        let began = Instant::now();
        while TcpStream::connect(address).is_err() {
            ensure!(began.elapsed() < PATIENCE, "{command:?} doesn't listen after {PATIENCE:?}");
            thread::sleep(Duration::from_millis(10));
        }
        Ok(program)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // All of these fail only for what is gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = self.folder.as_ref().map(fs::remove_dir_all);
    }
}

//! Runs the examples of all crates against temporary servers: `run-examples FOLDER`, with the
//! folder of the built examples.
//!
//! Invariant: every file `crates/*/examples/*.rs` is run, and fails the run if it fails.
//! Enforced by: the runner lists the source folders. An example that isn't built is an error.
//!
//! An example whose source names `REDIS_URL`, `DATABASE_URL` or `UPSTREAM` gets this variable, and
//! a server of its own (Postgres: a database of its own). An example in [`SERVERS`] prints its
//! address. The runner sends it requests, compares the responses, and ends it with SIGINT. All
//! others must end by themselves. The examples run at the same time, each in a temporary folder.

#![allow(clippy::print_stdout, reason = "prints the result")]

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use forebay_testkit::TEST_TIMEOUT;
use forebay_testkit::sandbox::{Postgres, Redis, TempFolder};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// Arguments of examples that run forever without them.
const ARGUMENTS: &[(&str, &str)] = &[("llm_stream", "--check")];

/// A request to an example, and a text that its response must contain.
struct HttpCheck {
    request: &'static str,
    header: &'static str,
    contains: &'static str,
}

const fn check(request: &'static str, header: &'static str, contains: &'static str) -> HttpCheck {
    HttpCheck { request, header, contains }
}

/// Examples that are HTTP servers, each with its requests. Responses stay open until the last
/// request.
const SERVERS: &[(&str, &[HttpCheck])] = &[
    ("stream_readme", &[check("GET /news", "", "data: hello\n\n")]),
    (
        "gate_readme",
        &[
            check("GET /about", "", "200 OK\r\n"),
            check("POST /api/v1/stream", "", "data: hello\n\n"),
            check("POST /api/v1/stream", "", "503 Service Unavailable\r\n"),
        ],
    ),
    (
        "serve_readme",
        &[
            check("GET /", "", "an app"),
            check("GET /v1/shape?table=items&offset=-1", "", r#""value":{"id":"1","name":"chair"}"#),
        ],
    ),
    (
        "admission_readme",
        &[
            check("GET /chat", "x-api-key: s3cr3t", "data: hello\n\n"),
            check("GET /report", "x-api-key: s3cr3t", "data: hello\n\n"),
            check("GET /chat", "x-api-key: s3cr3t", "data: hello\n\n"),
            check("GET /chat", "x-api-key: s3cr3t", "429 Too Many Requests\r\n"),
            check("GET /chat", "x-api-key: guessed", "401 Unauthorized\r\n"),
            check("GET /chat", "x-api-key: t0p", "data: hello\n\n"),
            check("GET /about", "x-api-key: s3cr3t", "\r\n\r\n4"),
        ],
    ),
];

fn main() -> ExitCode {
    // Shells start background commands with SIGINT ignored, and children inherit that.
    // SAFETY: the default action is no handler.
    unsafe { libc::signal(libc::SIGINT, libc::SIG_DFL) };
    match std::env::args_os().nth(1) {
        Some(folder) => run_all(Path::new(&folder)),
        None => Err("usage: run-examples FOLDER".into()),
    }
    .unwrap_or_else(|error| {
        eprintln!("{error}");
        ExitCode::FAILURE
    })
}

fn run_all(built: &Path) -> Result<ExitCode> {
    let sources = example_sources()?;
    let postgres = Postgres::start()?;
    let failures: Vec<String> = thread::scope(|scope| {
        let postgres = &postgres;
        let run = |source| scope.spawn(move || run_example(source, built, postgres));
        let running: Vec<_> = sources.iter().map(|source| (source, run(source))).collect();
        let failure = |(source, running): (&PathBuf, thread::ScopedJoinHandle<'_, _>)| match running.join() {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some(format!("{}: {error}", source.display())),
            Err(_) => Some(format!("{}: the runner panicked", source.display())),
        };
        running.into_iter().filter_map(failure).collect()
    });
    println!("{} examples, {} failed", sources.len(), failures.len());
    failures.iter().for_each(|failure| eprintln!("{failure}"));
    Ok(if failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Returns the source of every example of every crate.
fn example_sources() -> Result<Vec<PathBuf>> {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut sources = Vec::new();
    for folder in fs::read_dir(crates)? {
        let examples = folder?.path().join("examples");
        if examples.is_dir() {
            let files = fs::read_dir(examples)?.map(|entry| Ok(entry?.path()));
            sources.extend(files.collect::<io::Result<Vec<_>>>()?);
        }
    }
    sources.retain(|path| path.extension().is_some_and(|extension| extension == "rs"));
    sources.sort();
    Ok(sources)
}

fn run_example(source: &Path, built: &Path, postgres: &Postgres) -> Result<()> {
    let name = source.file_stem().and_then(|name| name.to_str()).ok_or("no name")?;
    let text = fs::read_to_string(source)?;
    let folder = TempFolder::create()?; // ends the example when dropped
    let output = folder.path().join("output");
    let mut command = Command::new(built.canonicalize()?.join(name));
    command.current_dir(folder.path()).stdin(Stdio::null());
    command.args(ARGUMENTS.iter().filter(|(of, _)| *of == name).map(|(_, argument)| argument));

    let redis = text.contains("REDIS_URL").then(Redis::start).transpose()?;
    redis.iter().for_each(|redis| _ = command.env("REDIS_URL", redis.url()));
    if text.contains("DATABASE_URL") {
        let database = postgres.create_database("example")?;
        let items =
            "CREATE TABLE items (id int PRIMARY KEY, name text); INSERT INTO items VALUES (1, 'chair')";
        postgres.execute(&database, items)?;
        command.env("DATABASE_URL", postgres.url(&database));
    }
    if text.contains("UPSTREAM") {
        command.env("UPSTREAM", start_upstream()?.to_string());
    }
    command.stdout(File::create(&output)?).stderr(File::options().append(true).open(&output)?);
    let checks = SERVERS.iter().find(|(of, _)| *of == name).map(|(_, checks)| checks);
    let outcome = match checks {
        Some(checks) => run_server(&mut command, checks, &output),
        None => wait(&mut command.spawn()?),
    };
    match outcome {
        Ok(status) if status.success() => Ok(()),
        // A server without a shutdown of its own.
        Ok(status) if checks.is_some() && status.signal() == Some(libc::SIGINT) => Ok(()),
        Ok(status) => Err(format!("{status}\n{}", fs::read_to_string(output)?).into()),
        Err(error) => Err(format!("{error}\n{}", fs::read_to_string(output)?).into()),
    }
}

/// Starts a server, sends it the requests, and ends it.
fn run_server(command: &mut Command, checks: &[HttpCheck], output: &Path) -> Result<ExitStatus> {
    let mut child = command.spawn()?;
    let started_at = Instant::now();
    let address: SocketAddr = loop {
        let printed = fs::read_to_string(output)?;
        if let Some((address, _)) = printed.strip_prefix("http://").and_then(|rest| rest.split_once('\n')) {
            break address.parse()?;
        }
        if child.try_wait()?.is_some() || started_at.elapsed() > TEST_TIMEOUT {
            return Err("the example printed no address".into());
        }
        thread::sleep(Duration::from_millis(20));
    };
    let open = checks.iter().map(|check| send(address, check)).collect::<Result<Vec<_>>>()?;
    drop(open);
    // SAFETY: `kill` has no memory effects. The child isn't reaped yet, so the pid is its own.
    unsafe { libc::kill(child.id().cast_signed(), libc::SIGINT) };
    wait(&mut child)
}

/// Sends a request, and reads until the response contains the text. Returns the open connection.
fn send(address: SocketAddr, check: &HttpCheck) -> Result<TcpStream> {
    let HttpCheck { request, header, contains } = check;
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(TEST_TIMEOUT))?;
    let header = if header.is_empty() { String::new() } else { format!("{header}\r\n") };
    let head = format!("{request} HTTP/1.1\r\nhost: localhost\r\ncontent-length: 0\r\n{header}\r\n");
    stream.write_all(head.as_bytes())?;
    read_until(&mut stream, contains)
        .map_err(|response| format!("{request}: no {contains:?} in {response:?}"))?;
    Ok(stream)
}

/// Reads until the text arrives. If it doesn't, returns all that arrived.
fn read_until(stream: &mut TcpStream, text: &str) -> std::result::Result<(), String> {
    let (mut received, mut part) = (String::new(), [0; 4096]);
    while !received.contains(text) {
        match stream.read(&mut part) {
            Ok(read) if read > 0 => received += &String::from_utf8_lossy(&part[..read]),
            Ok(_) => return Err(received),
            Err(error) => return Err(format!("{received} ({error})")),
        }
    }
    Ok(())
}

/// Waits until the child has ended; kills it after [`TEST_TIMEOUT`].
fn wait(child: &mut Child) -> Result<ExitStatus> {
    let started_at = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        if started_at.elapsed() > TEST_TIMEOUT {
            child.kill()?;
            return Ok(child.wait()?);
        }
        thread::sleep(Duration::from_millis(20));
    }
}

/// Starts a service that answers the first request of each connection with an event stream that
/// stays open.
fn start_upstream() -> io::Result<SocketAddr> {
    const RESPONSE: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\
        transfer-encoding: chunked\r\n\r\nd\r\ndata: hello\n\n\r\n";
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    thread::spawn(move || {
        let mut open = Vec::new();
        for mut stream in listener.incoming().flatten() {
            if read_until(&mut stream, "\r\n\r\n").is_ok() && stream.write_all(RESPONSE).is_ok() {
                open.push(stream);
            }
        }
    });
    Ok(address)
}

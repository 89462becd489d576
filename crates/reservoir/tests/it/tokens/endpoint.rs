//! An HTTP endpoint that says what it is told to, as a container's or an instance's.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

/// On 127.0.0.1, until the test's process ends.
pub(super) struct Endpoint {
    pub(super) addr: SocketAddr,
    seen: Arc<Mutex<Vec<String>>>,
}

impl Endpoint {
    /// Answers each path (with its method before it) with the text beside it, and any other with 404.
    pub(super) fn start(answers: &'static [(&'static str, &'static str)]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = Endpoint { addr: listener.local_addr().unwrap(), seen: Arc::default() };
        let seen = endpoint.seen.clone();
        thread::spawn(move || {
            for stream in listener.incoming() {
                serve(stream.unwrap(), answers, &seen);
            }
        });
        endpoint
    }

    /// The requests, each with its headers, in lower case.
    pub(super) fn seen(&self) -> Vec<String> {
        self.seen.lock().unwrap().clone()
    }
}

fn serve(mut stream: TcpStream, answers: &[(&str, &str)], seen: &Mutex<Vec<String>>) {
    let lines = BufReader::new(stream.try_clone().unwrap()).lines().map(Result::unwrap);
    let head: Vec<String> = lines.take_while(|line| !line.is_empty()).collect();
    let Some(request) = head.first() else { return };
    let answer = answers.iter().find(|(asked, _)| request.starts_with(&format!("{asked} ")));
    let (status, text) = answer.map_or(("404 Not Found", ""), |(_, text)| ("200 OK", text));
    seen.lock().unwrap().push(head.join("\n").to_lowercase());
    // The header is for the token of an instance's endpoint; the others don't mind.
    let ttl = "x-aws-ec2-metadata-token-ttl-seconds: 21600";
    let length = text.len();
    write!(
        stream,
        "HTTP/1.1 {status}\r\ncontent-length: {length}\r\n{ttl}\r\nconnection: close\r\n\r\n{text}"
    )
    .unwrap();
}

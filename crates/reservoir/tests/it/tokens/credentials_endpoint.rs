//! HTTP endpoint for AWS credentials, as of a container or an instance.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;

use parking_lot::Mutex;

/// Listens on 127.0.0.1 until the test process ends.
pub(super) struct CredentialsEndpoint {
    pub(super) addr: SocketAddr,
    requests: Arc<Mutex<Vec<String>>>,
}

impl CredentialsEndpoint {
    /// Responds to each method and path with the given text, and with 404 otherwise.
    pub(super) fn start(responses: &'static [(&'static str, &'static str)]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = CredentialsEndpoint { addr: listener.local_addr().unwrap(), requests: Arc::default() };
        let requests = endpoint.requests.clone();
        thread::spawn(move || {
            for stream in listener.incoming() {
                serve(stream.unwrap(), responses, &requests);
            }
        });
        endpoint
    }

    /// Returns the requests with their headers, in lower case.
    pub(super) fn requests(&self) -> Vec<String> {
        self.requests.lock().clone()
    }
}

fn serve(mut stream: TcpStream, responses: &[(&str, &str)], requests: &Mutex<Vec<String>>) {
    let lines = BufReader::new(stream.try_clone().unwrap()).lines().map(Result::unwrap);
    let head: Vec<String> = lines.take_while(|line| !line.is_empty()).collect();
    let Some(request) = head.first() else { return };
    let response = responses.iter().find(|(path, _)| request.starts_with(&format!("{path} ")));
    let (status, text) = response.map_or(("404 Not Found", ""), |(_, text)| ("200 OK", text));
    requests.lock().push(head.join("\n").to_lowercase());
    // Only the token of an instance endpoint needs this header.
    let ttl = "x-aws-ec2-metadata-token-ttl-seconds: 21600";
    let length = text.len();
    write!(
        stream,
        "HTTP/1.1 {status}\r\ncontent-length: {length}\r\n{ttl}\r\nconnection: close\r\n\r\n{text}"
    )
    .unwrap();
}

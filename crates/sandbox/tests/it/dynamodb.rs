use std::io::{Read, Write};
use std::net::TcpStream;

use forebay_sandbox::DynamoDb;

use super::{folder_of, runs};

/// Calls an operation and returns the whole response.
fn call(dynamodb: &DynamoDb, operation: &str, body: &str) -> String {
    let mut stream = TcpStream::connect(dynamodb.addr()).expect("the server listens");
    let head = format!(
        "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-amz-json-1.0\r\n\
         X-Amz-Target: DynamoDB_20120810.{operation}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all((head + body).as_bytes()).expect("the server reads");
    let mut response = String::new();
    stream.read_to_string(&mut response).expect("the server responds and closes");
    response
}

#[test]
fn a_dynamodb_responds_on_its_port_and_ends_with_its_handle() {
    let dynamodb = DynamoDb::start().unwrap();
    assert_eq!(dynamodb.url(), format!("http://127.0.0.1:{}", dynamodb.port()));
    let tables = call(&dynamodb, "ListTables", "{}");
    assert!(tables.starts_with("HTTP/1.1 200") && tables.contains(r#""TableNames""#), "{tables}");

    let (pid, folder) = (dynamodb.pid(), folder_of(dynamodb.pid()));
    drop(dynamodb);
    assert!(!runs(pid));
    assert!(!folder.exists());
}

#[test]
fn a_killed_dynamodb_is_revived_on_its_port() {
    let dynamodb = DynamoDb::start().unwrap();
    let before = (dynamodb.port(), dynamodb.pid());
    dynamodb.kill();
    assert!(!runs(before.1));
    dynamodb.revive().unwrap();
    assert_eq!(dynamodb.port(), before.0);
    assert!(call(&dynamodb, "ListTables", "{}").starts_with("HTTP/1.1 200"));
}

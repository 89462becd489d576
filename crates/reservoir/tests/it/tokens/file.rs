//! Passwords from files.

use std::fs;
use std::os::unix::fs::symlink;
use std::process::Command;

use forebay_reservoir::PasswordFile;

use super::{TempFolder, refusal, secret};

#[tokio::test]
async fn a_rotated_password_is_used_at_once() {
    let folder = TempFolder::new();
    let file = PasswordFile::new(folder.write("password", "hunter2\n"));
    assert_eq!(secret(&file).await, "hunter2");
    folder.write("new", "hunter3");
    fs::rename(folder.path("new"), folder.path("password")).unwrap();
    assert_eq!(secret(&file).await, "hunter3");
}

/// Rotation as in Kubernetes: a link to a link to a directory that changes.
#[tokio::test]
async fn a_rotated_link_is_followed() {
    let folder = TempFolder::new();
    for (version, password) in [("v1", "hunter2"), ("v2", "hunter3")] {
        fs::create_dir(folder.path(version)).unwrap();
        folder.write(&format!("{version}/password"), password);
    }
    symlink("v1", folder.path("current")).unwrap();
    symlink("current/password", folder.path("password")).unwrap();
    let file = PasswordFile::new(folder.path("password"));
    assert_eq!(secret(&file).await, "hunter2");
    symlink("v2", folder.path("next")).unwrap();
    fs::rename(folder.path("next"), folder.path("current")).unwrap();
    assert_eq!(secret(&file).await, "hunter3");
}

#[tokio::test]
async fn an_error_names_the_path_and_the_reason_and_never_the_content() {
    let folder = TempFolder::new();
    let refusal = async |name| {
        let error = refusal(&PasswordFile::new(folder.path(name))).await;
        let path = folder.path(name);
        error.strip_prefix(&format!("password file {}: ", path.display())).unwrap().to_string()
    };
    assert!(refusal("missing").await.starts_with("No such file or directory"));

    folder.write("empty", "\n");
    assert_eq!(refusal("empty").await, "is empty");
    folder.write("binary", b"hunter2\xff");
    assert_eq!(refusal("binary").await, "isn't UTF-8");
    folder.write("long", "hunter2".repeat(10_000));
    assert_eq!(refusal("long").await, "is longer than 64 KiB");

    assert_eq!(refusal(".").await, "isn't a regular file");
    assert!(Command::new("mkfifo").arg(folder.path("pipe")).status().unwrap().success());
    assert_eq!(refusal("pipe").await, "isn't a regular file", "opening the pipe would block");
}

#[tokio::test]
async fn a_secret_may_fill_its_bound() {
    let folder = TempFolder::new();
    let password = "x".repeat(64 * 1024);
    assert_eq!(secret(&PasswordFile::new(folder.write("password", &password))).await, password);
}

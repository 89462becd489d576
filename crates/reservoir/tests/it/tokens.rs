//! Passwords and tokens from real files, programs and endpoints.

mod command;
#[cfg(feature = "aws")]
mod credentials_endpoint;
#[cfg(feature = "aws")]
mod dsql;
mod file;
#[cfg(feature = "aws")]
mod rds;
mod token_cache;

use std::fmt::Debug;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use forebay_reservoir::{PasswordFile, StaticPassword, TokenProvider};

/// A temporary directory of one test; removed on drop.
struct TempFolder(PathBuf);

impl TempFolder {
    fn new() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let name = format!("tokens-{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        fs::create_dir_all(&path).unwrap();
        TempFolder(path)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    fn write(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        fs::write(self.path(name), content).unwrap();
        self.path(name)
    }
}

impl Drop for TempFolder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Returns the secret; its validity must be unknown.
async fn secret(provider: &impl TokenProvider) -> String {
    let token = provider.token().await.unwrap();
    assert_eq!(token.valid_for, None);
    token.secret.reveal().to_string()
}

/// Returns the error text.
async fn refusal(provider: &(impl TokenProvider + Debug)) -> String {
    let error = provider.token().await.unwrap_err();
    let shown = format!("{error} {error:?} {provider:?}");
    assert!(!shown.contains("hunter2"), "{shown}");
    error.to_string()
}

#[tokio::test]
async fn a_static_password_is_not_shown() {
    let password = StaticPassword::new("hunter2");
    assert_eq!(secret(&password).await, "hunter2");
    assert_eq!(secret(&password).await, "hunter2");
    assert!(!format!("{password:?}").contains("hunter2"));
}

#[tokio::test]
async fn providers_can_be_chosen_at_run_time() {
    let folder = TempFolder::new();
    let file = PasswordFile::new(folder.write("password", "from a file"));
    let providers: Vec<Box<dyn TokenProvider>> =
        vec![Box::new(StaticPassword::new("hunter2")), Box::new(file)];
    assert_eq!(secret(&providers[0]).await, "hunter2");
    assert_eq!(secret(&providers[1]).await, "from a file");
}

//! Lua scripts, sent by their hash.

use crate::client::Client;
use crate::command::ToArgs;
use crate::error::ExecError;
use crate::reply::FromReply;

/// A Lua script. The server is sent its hash; only a server that doesn't know it yet is sent the source.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let server = forebay_sandbox::Redis::start()?;
/// # let client = forebay_redis::Client::connect(server.url()).await?;
/// use forebay_redis::Script;
///
/// let add = Script::new("return redis.call('INCRBY', KEYS[1], ARGV[1])");
/// let total: i64 = add.run(&client, ["total"], [5]).await?;
/// assert_eq!(total, 5);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Script {
    source: String,
    sha1: String,
}

impl Script {
    /// A script with this source.
    pub fn new(source: impl Into<String>) -> Self {
        let source = source.into();
        let sha1 = sha1_smol::Sha1::from(&source).digest().to_string();
        Script { source, sha1 }
    }

    /// Runs it. Asking again with the source after `NOSCRIPT` repeats nothing: the server has run nothing.
    pub async fn run<T: FromReply>(
        &self,
        client: &Client,
        keys: impl ToArgs,
        args: impl ToArgs,
    ) -> Result<T, ExecError> {
        let count = keys.count();
        match client.exec(("EVALSHA", &self.sha1, count, &keys, &args)).await {
            Err(error) if error.server().is_some_and(|error| error.code() == "NOSCRIPT") => {
                client.exec(("EVAL", &self.source, count, &keys, &args)).await
            }
            result => result,
        }
    }
}

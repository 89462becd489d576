//! Lua scripts, called by their SHA-1 hash.

use crate::args::ToArgs;
use crate::client::RedisClient;
use crate::error::ExecError;
use crate::reply::FromReply;

/// A Lua script. The client sends its hash; it sends the source only to a server that does not have
/// the script.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let server = forebay_sandbox::Redis::start()?;
/// # let client = forebay_redis::RedisClient::connect(server.url()).await?;
/// use forebay_redis::LuaScript;
///
/// let add = LuaScript::new("return redis.call('INCRBY', KEYS[1], ARGV[1])");
/// let total: i64 = add.run(&client, ["total"], [5]).await?;
/// assert_eq!(total, 5);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct LuaScript {
    source: String,
    sha1: String,
}

impl LuaScript {
    /// Creates a script with this source.
    pub fn new(source: impl Into<String>) -> Self {
        let source = source.into();
        let sha1 = sha1_smol::Sha1::from(&source).digest().to_string();
        LuaScript { source, sha1 }
    }

    /// Runs the script. After `NOSCRIPT` it is sent again with its source; the server did not run
    /// it before.
    pub async fn run<T: FromReply>(
        &self,
        client: &RedisClient,
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

//! Settings of `[redis]`.

use std::path::PathBuf;

use forebay_settings::SecretText;

use crate::config::settings_macro::settings;

settings! {
    /// The Redis server that instances share.
    RedisSection: "redis" {
        /// URL of the Redis that instances share: `redis://`, `rediss://` or `unix://`. An instance
        /// starts even if Redis can't be reached. Other users of this machine can see flags: put a
        /// URL with a password into the variable or into the file.
        url: Option<SecretText>,
            unset("none, the limits are for this instance alone, counted in memory"),
            example("redis://127.0.0.1:6379"),
            flag("--redis", "URL");

        /// File with the password. It is read for each connection, so that the password can change.
        /// The user is that of the URL.
        password_file: Option<PathBuf>,
            unset("the password in the URL"),
            example("/run/secrets/redis-password");

        /// Prefix of all keys. Instances with the same namespace share their limits.
        namespace: String = "forebay", rule(check_namespace);
    }
}

fn check_namespace(namespace: &str) -> Result<(), String> {
    if namespace.is_empty() || namespace.contains(['{', '}']) || namespace.chars().any(char::is_whitespace) {
        let why = "must not be empty and must not contain white space or braces, which mark the hash slot";
        return Err(why.to_owned());
    }
    Ok(())
}

//! Connection strings in libpq's syntax, URL or keyword/value, split into pairs.
//!
//! Invariant: no error shows a value, because any value may be part of an unquoted password.
//! Out of scope: the meaning of the keys; see `settings.rs`.

use super::error::PostgresConfigError;

/// A key and its decoded value.
pub(super) type ConninfoPair = (String, String);

/// Returns all pairs in the order in which they were written; for duplicate keys the last one
/// applies.
pub(super) fn pairs(text: &str) -> Result<Vec<ConninfoPair>, PostgresConfigError> {
    let url = ["postgres://", "postgresql://"].iter().find_map(|scheme| text.strip_prefix(scheme));
    match url {
        Some(rest) => url_pairs(rest),
        None => keyword_pairs(text),
    }
}

fn broken(problem: impl Into<String>) -> PostgresConfigError {
    PostgresConfigError::new("the connection string", problem)
}

/// `user:password@host:port,host:port/dbname?key=value&key=value`
fn url_pairs(rest: &str) -> Result<Vec<ConninfoPair>, PostgresConfigError> {
    let mut pairs = Vec::new();
    // As in libpq, user and password end at the first `@` before the first `/`, so they may contain
    // `?`.
    let path_at = rest.find('/').unwrap_or(rest.len());
    let rest = match rest[..path_at].find('@') {
        Some(at) => {
            let (user, password) = split(&rest[..at], ':');
            pairs.push(("user".to_owned(), decode("user", user)?));
            if let Some(password) = password {
                pairs.push(("password".to_owned(), decode("password", password)?));
            }
            &rest[at + 1..]
        }
        None => rest,
    };
    let (location, query) = split(rest, '?');
    let (hosts, database) = split(location, '/');
    // Such text is probably part of a password. It must not become a host or database name, because
    // errors show those.
    if hosts.contains('@') || database.is_some_and(|database| database.contains(['@', '/'])) {
        return Err(broken("an '@' or '/' in the user, the password or the name must be written %40 or %2F"));
    }
    if let Some(database) = database {
        pairs.push(("dbname".to_owned(), decode("dbname", database)?));
    }
    host_pairs(hosts, &mut pairs)?;
    for part in query.unwrap_or_default().split('&').filter(|part| !part.is_empty()) {
        let (key, Some(value)) = split(part, '=') else {
            return Err(broken("after the '?' there must be key=value, joined by '&'"));
        };
        let key = decode("a key", key)?;
        let value = decode(&key, value)?;
        pairs.push((key, value));
    }
    Ok(pairs)
}

fn host_pairs(hosts: &str, pairs: &mut Vec<ConninfoPair>) -> Result<(), PostgresConfigError> {
    if hosts.is_empty() {
        return Ok(());
    }
    let (mut names, mut ports) = (Vec::new(), Vec::new());
    for chunk in hosts.split(',') {
        let (name, port) = match chunk.strip_prefix('[') {
            None => split(chunk, ':'),
            Some(bracketed) => match split(bracketed, ']') {
                (name, Some("")) => (name, None),
                (name, Some(rest)) if rest.starts_with(':') => (name, Some(&rest[1..])),
                _ => return Err(PostgresConfigError::new("host", "an IPv6 address is written [::1]:5432")),
            },
        };
        names.push(decode("host", name)?);
        ports.push(decode("port", port.unwrap_or_default())?);
    }
    pairs.push(("host".to_owned(), names.join(",")));
    pairs.push(("port".to_owned(), ports.join(",")));
    Ok(())
}

fn split(text: &str, at: char) -> (&str, Option<&str>) {
    text.split_once(at).map_or((text, None), |(before, after)| (before, Some(after)))
}

fn decode(key: &str, text: &str) -> Result<String, PostgresConfigError> {
    let bad =
        || PostgresConfigError::new(key, "a '%' must begin two hexadecimal digits, and the whole be UTF-8");
    let digit = |byte: Option<u8>| byte.and_then(|byte| char::from(byte).to_digit(16));
    let (mut bytes, mut decoded) = (text.bytes(), Vec::with_capacity(text.len()));
    while let Some(byte) = bytes.next() {
        decoded.push(match byte {
            b'%' => match (digit(bytes.next()), digit(bytes.next())) {
                (Some(high), Some(low)) => (high * 16 + low) as u8,
                _ => return Err(bad()),
            },
            byte => byte,
        });
    }
    match String::from_utf8(decoded) {
        // Values are sent or used as names with a terminating zero byte.
        Ok(decoded) if decoded.contains('\0') => {
            Err(PostgresConfigError::new(key, "it can't hold a zero byte"))
        }
        decoded => decoded.map_err(|_| bad()),
    }
}

/// `key = value key='a value'`, with `\` before a quote or another `\`.
fn keyword_pairs(text: &str) -> Result<Vec<ConninfoPair>, PostgresConfigError> {
    let (mut pairs, mut rest) = (Vec::new(), text.trim_start());
    while !rest.is_empty() {
        let end = rest.find(|c: char| c == '=' || c.is_whitespace()).unwrap_or(rest.len());
        let (key, after) = rest.split_at(end);
        let Some(after) = after.trim_start().strip_prefix('=').filter(|_| !key.is_empty()) else {
            return Err(broken(
                "it must be postgres://user@host:port/dbname, or key=value words; a value with spaces needs 'quotes'",
            ));
        };
        let (value, after) = keyword_value(key, after.trim_start())?;
        pairs.push((key.to_owned(), value));
        rest = after.trim_start();
    }
    Ok(pairs)
}

fn keyword_value<'t>(key: &str, text: &'t str) -> Result<(String, &'t str), PostgresConfigError> {
    let quoted = text.starts_with('\'');
    let (mut value, mut chars) = (String::new(), text.char_indices());
    if quoted {
        chars.next();
    }
    while let Some((at, c)) = chars.next() {
        match c {
            '\'' if quoted => return Ok((value, &text[at + 1..])),
            '\\' => value.extend(chars.next().map(|(_, c)| c)),
            c if !quoted && c.is_whitespace() => return Ok((value, &text[at..])),
            '\0' => return Err(PostgresConfigError::new(key, "it can't hold a zero byte")),
            c => value.push(c),
        }
    }
    match quoted {
        true => Err(PostgresConfigError::new(key, "the closing quote is missing")),
        false => Ok((value, "")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owned(pairs: &[(&str, &str)]) -> Vec<ConninfoPair> {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn a_url_is_split_into_pairs() {
        let found =
            pairs("postgresql://u%40x:p%2Fw?d@[::1]:1,b,%2Frun:3/my%20db?sslmode=require&options=-c a=b");
        let wanted = [
            ("user", "u@x"),
            ("password", "p/w?d"),
            ("dbname", "my db"),
            ("host", "::1,b,/run"),
            ("port", "1,,3"),
            ("sslmode", "require"),
            ("options", "-c a=b"),
        ];
        assert_eq!(found.unwrap(), owned(&wanted));
        assert_eq!(pairs("postgres://").unwrap(), []);
        assert_eq!(pairs("postgres://h?user=a@b").unwrap()[0], ("user".to_owned(), "h?user=a".to_owned()));
        let wanted = [("dbname", ""), ("host", "/run"), ("user", "a@b")];
        assert_eq!(pairs("postgres:///?host=/run&user=a@b").unwrap(), owned(&wanted));
    }

    #[test]
    fn keywords_are_split_into_pairs() {
        let found = pairs(r" host = a,b  password='it\'s \\ a' user=x\ y dbname='' ").unwrap();
        let wanted = [("host", "a,b"), ("password", r"it's \ a"), ("user", "x y"), ("dbname", "")];
        assert_eq!(found, owned(&wanted));
        assert_eq!(pairs("  ").unwrap(), []);
    }

    #[test]
    fn no_error_shows_a_part_of_a_password() {
        let broken = [
            "postgres://u:hunter2/x@h/db",
            "postgres://u:one@hunter2@h/db",
            "postgres://u:hunter2%zz@h/db",
            "postgres://u:hunter2%ff@h/db",
            "postgres://u:hunter2%00@h/db",
            "postgres://u@h/db?hunter2",
            "password=my hunter2 host=h",
            "password='hunter2",
            "password=hunter2\0",
            "=hunter2",
        ];
        for text in broken {
            let error = pairs(text).unwrap_err().to_string();
            assert!(!error.contains("hunter2"), "{text}: {error}");
        }
    }
}

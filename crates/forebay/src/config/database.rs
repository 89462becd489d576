//! Which database is followed, and how.
//!
//! Invariant: no complaint shows a URL or a part of one, since it may hold a password.

use std::path::PathBuf;
use std::time::Duration;

use forebay_replication::reservoir::{PasswordCommand, PasswordFile, PostgresConnect, PostgresTls};
use forebay_replication::{LockTimeouts, ManagerConfig};

use super::check::{Check, ValueError};
use super::hidden::Hidden;
use super::serve_file::DatabaseSection;

/// The longest name that Postgres keeps.
const MAX_NAME: usize = 63;
const POOL_SIZE: u32 = 20;
/// Who asks more often is a burden to the server that it waits for.
const LEAST_PATIENCE_MS: u64 = 100;

pub(super) fn check_database(section: &DatabaseSection, check: &Check) -> Result<ManagerConfig, ValueError> {
    let password = Password::check(section, check)?;
    // The builder reads it, too, but wouldn't say which key is wrong.
    check.read("database.ca_file", section.ca_file.as_ref())?;
    let connect = |key, url: &Hidden| connect(key, url, &password, section.ca_file.as_ref(), check);
    let Some(url) = &section.url else {
        let why = "is missing: say which database to follow, such as \
                   `DATABASE_URL=postgres://user:password@localhost:5432/name forebay serve`";
        return Err(check.wrong("database.url", None, why));
    };
    let mut manager = ManagerConfig::new(connect("database.url", url)?)
        .publish_partitions()
        .pool_size(pool_size(section, check)?)
        .lock_timeouts(patience(section, check)?);
    if let Some(url) = &section.pooled_url {
        manager = manager.pooled(connect("database.pooled_url", url)?);
    }
    if let Some(name) = check_slot(section, check)? {
        manager = manager.slot(name);
    }
    if let Some(name) = check_publication(section, check)? {
        manager = manager.publication(name);
    }
    if section.manual_publication == Some(true) {
        manager = manager.manual_publication();
    }
    if section.temporary_slot == Some(true) {
        manager = manager.temporary_slot();
    }
    if section.failover_slot == Some(true) {
        if section.temporary_slot == Some(true) {
            let why = "can't be kept in step by standbys while database.temporary_slot ends it with its connection: \
                       choose one";
            return Err(check.wrong("database.failover_slot", "true".to_owned(), why));
        }
        manager = manager.failover_slot();
    }
    Ok(match section.idle_timeout_ms {
        None | Some(0) => manager,
        given => manager.idle_after(check.duration("database.idle_timeout_ms", given, Duration::ZERO)?),
    })
}

/// How many snapshots the pool has connections for: all of them, without the quarter (1 to 4) that is for metadata.
pub(super) fn snapshots(section: &DatabaseSection, check: &Check) -> Result<u32, ValueError> {
    let size = pool_size(section, check)?;
    Ok(size - (size / 4).clamp(1, 4))
}

fn pool_size(section: &DatabaseSection, check: &Check) -> Result<u32, ValueError> {
    const KEY: &str = "database.pool_size";
    match section.pool_size {
        Some(size) if !(2..=10_000).contains(&size) => {
            let why = "must be 2 to 10000: one for metadata and one for snapshots, at least";
            Err(check.wrong(KEY, size.to_string(), why))
        }
        given => Ok(given.unwrap_or(POOL_SIZE)),
    }
}

/// Where a password comes from, if not from the URL.
enum Password<'a> {
    OfTheUrl,
    File(&'a PathBuf),
    Command(&'a str, &'a [String]),
}

impl<'a> Password<'a> {
    fn check(section: &'a DatabaseSection, check: &Check) -> Result<Password<'a>, ValueError> {
        const FILE: &str = "database.password_file";
        const COMMAND: &str = "database.password_command";
        check.read(FILE, section.password_file.as_ref())?;
        match (&section.password_file, section.password_command.as_deref()) {
            (None, None | Some([])) => Ok(Password::OfTheUrl),
            (Some(path), None | Some([])) => Ok(Password::File(path)),
            (None, Some([program, args @ ..])) => Ok(Password::Command(program, args)),
            (Some(_), Some(_)) => {
                let why = "is not alone: of password_file and password_command, name one";
                Err(check.wrong(COMMAND, None, why))
            }
        }
    }
}

fn connect(
    key: &'static str,
    url: &Hidden,
    password: &Password<'_>,
    ca_file: Option<&PathBuf>,
    check: &Check,
) -> Result<PostgresConnect, ValueError> {
    let wrong = |error| check.wrong(key, None, format_args!("can't be used: {error}"));
    let mut builder = PostgresConnect::builder(url.reveal()).map_err(wrong)?;
    builder = match password {
        Password::OfTheUrl => builder,
        Password::File(path) => builder.password_from(PasswordFile::new(path)),
        Password::Command(program, args) => {
            builder.password_from(PasswordCommand::new(program).args(args.iter().cloned()))
        }
    };
    if let Some(path) = ca_file {
        builder = builder.tls(PostgresTls::new().ca_file(path));
    }
    builder.build().map_err(|error| match ca_file {
        Some(path) if error.key() == "sslrootcert" => check.wrong(
            "database.ca_file",
            path.display().to_string(),
            format_args!("can't be used: {error}"),
        ),
        Some(_) | None => wrong(error),
    })
}

fn check_slot<'a>(section: &'a DatabaseSection, check: &Check) -> Result<Option<&'a String>, ValueError> {
    let fits = |name: &String| {
        let may = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_');
        (1..=MAX_NAME).contains(&name.len()) && name.bytes().all(may)
    };
    let why = "can't be the name of a slot: Postgres takes 1 to 63 of a-z, 0-9 and _";
    match &section.slot {
        Some(name) if !fits(name) => Err(check.wrong("database.slot", name.clone(), why)),
        given => Ok(given.as_ref()),
    }
}

fn check_publication<'a>(
    section: &'a DatabaseSection,
    check: &Check,
) -> Result<Option<&'a String>, ValueError> {
    let fits = |name: &String| (1..=MAX_NAME).contains(&name.len()) && !name.contains('\0');
    let why = "can't be the name of a publication: Postgres takes 1 to 63 bytes";
    match &section.publication {
        Some(name) if !fits(name) => Err(check.wrong("database.publication", name.clone(), why)),
        given => Ok(given.as_ref()),
    }
}

fn patience(section: &DatabaseSection, check: &Check) -> Result<LockTimeouts, ValueError> {
    let duration = |key, given: Option<u64>, default| match given {
        Some(ms) if ms < LEAST_PATIENCE_MS => {
            let why = format!("must be at least {LEAST_PATIENCE_MS} milliseconds");
            Err(check.wrong(key, ms.to_string(), why))
        }
        given => check.duration(key, given, default),
    };
    let LockTimeouts { check_interval, silence_timeout } = LockTimeouts::default();
    Ok(LockTimeouts {
        check_interval: duration("database.lock_check_ms", section.lock_check_ms, check_interval)?,
        silence_timeout: duration("database.lock_silence_ms", section.lock_silence_ms, silence_timeout)?,
    })
}

#[cfg(test)]
mod tests {
    use forebay_replication::reservoir::{Connect as _, SslMode};

    use super::*;

    const AUTHORITY: &str = "\
-----BEGIN CERTIFICATE-----
MIIBkjCCATegAwIBAgIUJzKu91baCoUrq5Y5wfY+5axnWbswCgYIKoZIzj0EAwIw
HTEbMBkGA1UEAwwSYSB0ZXN0J3MgYXV0aG9yaXR5MCAXDTI2MTExNjExMjQyMloY
DzIxMjYxMDIzMTEyNDIyWjAdMRswGQYDVQQDDBJhIHRlc3QncyBhdXRob3JpdHkw
WTATBgcqhkjOPQIBBggqhkjOPQMBBwNCAASLpUqZQeOHmC1WrYyadDQOQSTJBxg0
3i/hiz1VRExu2NuaRqAjgdAiTg8SR2icd3C8SkFLYQFjJw1pv430XkXLo1MwUTAd
BgNVHQ4EFgQUj+FDCj/PPGYfFfHfN4io2WuW2qkwHwYDVR0jBBgwFoAUj+FDCj/P
PGYfFfHfN4io2WuW2qkwDwYDVR0TAQH/BAUwAwEB/zAKBggqhkjOPQQDAgNJADBG
AiEAgehSNt2GCcs93CnlElE/otBkqhlAVJuX67JKep66rmACIQCdx5SL2PGyWc1y
c1ttTMLmlg7kn+o1nJQF04N4X8fArw==
-----END CERTIFICATE-----
";

    fn written(name: &str, text: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("forebay-{name}-{}", std::process::id()));
        std::fs::write(&path, text).unwrap();
        path
    }

    fn connects(section: &DatabaseSection) -> Result<PostgresConnect, ValueError> {
        let (check, url) = (Check::default(), "postgres://me:of-the-url@h/db".parse().unwrap());
        let password = Password::check(section, &check)?;
        connect("database.url", &url, &password, section.ca_file.as_ref(), &check)
    }

    async fn password(section: &DatabaseSection) -> String {
        connects(section).unwrap().credentials().await.unwrap().unwrap().reveal().to_owned()
    }

    #[tokio::test]
    async fn the_password_comes_from_where_it_is_said_to() {
        let mut section = DatabaseSection::default();
        assert_eq!(password(&section).await, "of-the-url");
        section.password_command = Some(["echo", "of", "a", "program"].map(str::to_owned).into());
        assert_eq!(password(&section).await, "of a program");
        let file = written("password", "of-a-file\n");
        section.password_file = Some(file.clone());
        let error = connects(&section).unwrap_err().to_string();
        assert!(error.contains("database.password_command") && error.contains("password_file"), "{error}");
        section.password_command = Some(Vec::new());
        assert_eq!(password(&section).await, "of-a-file", "an empty list asks for nothing");
        std::fs::write(&file, "another").unwrap();
        assert_eq!(password(&section).await, "another", "it is read anew");
        std::fs::remove_file(file).unwrap();
    }

    #[test]
    fn an_authority_is_trusted_alone_and_a_bad_one_is_named() {
        let mut section = DatabaseSection::default();
        assert_eq!(connects(&section).unwrap().ssl_mode(), SslMode::Prefer);
        let file = written("authority", AUTHORITY);
        section.ca_file = Some(file.clone());
        assert_eq!(connects(&section).unwrap().ssl_mode(), SslMode::VerifyFull);
        std::fs::write(&file, "no PEM").unwrap();
        let error = connects(&section).unwrap_err();
        assert_eq!((error.key, error.value), ("database.ca_file", Some(file.display().to_string())));
        std::fs::remove_file(file).unwrap();
    }

    #[test]
    fn a_quarter_of_the_pool_is_for_metadata() {
        let most = |size| {
            let section = DatabaseSection { pool_size: Some(size), ..DatabaseSection::default() };
            snapshots(&section, &Check::default()).unwrap()
        };
        // As forebay_replication parts them.
        assert_eq!([2, 4, 8, 20, 100].map(most), [1, 3, 6, 16, 96]);
    }
}

//! Checked settings of `[database]`.
//!
//! Invariant: no error contains a URL or a part of one, because it may contain a password.

use std::path::PathBuf;
use std::time::Duration;

use forebay_replication::reservoir::{PasswordCommand, PasswordFile, PostgresConnect, PostgresTls};
use forebay_replication::{LockTimeouts, ManagerConfig};

use super::secret_text::SecretText;
use super::serve_file::DatabaseSection;
use super::value_reader::{ValueError, ValueReader};

/// Maximum length of a name in Postgres, in bytes.
const MAX_NAME: usize = 63;
const POOL_SIZE: u32 = 20;
/// Minimum interval of lock checks. Shorter intervals would load the server.
const MIN_LOCK_INTERVAL_MS: u64 = 100;

/// Checks the section and builds the settings of the replication manager.
pub(super) fn check_database(
    section: &DatabaseSection,
    reader: &ValueReader,
) -> Result<ManagerConfig, ValueError> {
    let password = PasswordSource::check(section, reader)?;
    // The builder reads the file, too, but its error would not name the key.
    reader.read_file("database.ca_file", section.ca_file.as_ref())?;
    let connect = |key, url: &SecretText| connect(key, url, &password, section.ca_file.as_ref(), reader);
    let Some(url) = &section.url else {
        let why = "is missing: set the URL of the database, such as \
                   `DATABASE_URL=postgres://user:password@localhost:5432/name forebay serve`";
        return Err(reader.error("database.url", None, why));
    };
    let mut manager = ManagerConfig::new(connect("database.url", url)?)
        .publish_partitions()
        .pool_size(pool_size(section, reader)?)
        .lock_timeouts(check_lock_timeouts(section, reader)?);
    if let Some(url) = &section.pooled_url {
        manager = manager.pooled(connect("database.pooled_url", url)?);
    }
    if let Some(name) = check_slot(section, reader)? {
        manager = manager.slot(name);
    }
    if let Some(name) = check_publication(section, reader)? {
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
            let why = "conflicts with database.temporary_slot: a temporary slot can't be synchronized to standbys: \
                       set only one";
            return Err(reader.error("database.failover_slot", "true".to_owned(), why));
        }
        manager = manager.failover_slot();
    }
    Ok(match section.idle_timeout_ms {
        None | Some(0) => manager,
        given => manager.idle_after(reader.duration("database.idle_timeout_ms", given, Duration::ZERO)?),
    })
}

/// Returns the number of pool connections for snapshots: all but the quarter (1 to 4) for metadata.
pub(super) fn max_snapshots(section: &DatabaseSection, reader: &ValueReader) -> Result<u32, ValueError> {
    let size = pool_size(section, reader)?;
    Ok(size - (size / 4).clamp(1, 4))
}

fn pool_size(section: &DatabaseSection, reader: &ValueReader) -> Result<u32, ValueError> {
    const KEY: &str = "database.pool_size";
    match section.pool_size {
        Some(size) if !(2..=10_000).contains(&size) => {
            let why = "must be 2 to 10000: at least one connection for metadata and one for snapshots";
            Err(reader.error(KEY, size.to_string(), why))
        }
        given => Ok(given.unwrap_or(POOL_SIZE)),
    }
}

/// Source of the database password.
enum PasswordSource<'a> {
    Url,
    File(&'a PathBuf),
    Command(&'a str, &'a [String]),
}

impl<'a> PasswordSource<'a> {
    fn check(section: &'a DatabaseSection, reader: &ValueReader) -> Result<PasswordSource<'a>, ValueError> {
        const FILE: &str = "database.password_file";
        const COMMAND: &str = "database.password_command";
        reader.read_file(FILE, section.password_file.as_ref())?;
        match (&section.password_file, section.password_command.as_deref()) {
            (None, None | Some([])) => Ok(PasswordSource::Url),
            (Some(path), None | Some([])) => Ok(PasswordSource::File(path)),
            (None, Some([program, args @ ..])) => Ok(PasswordSource::Command(program, args)),
            (Some(_), Some(_)) => {
                let why = "conflicts with password_file: set only one of password_file and password_command";
                Err(reader.error(COMMAND, None, why))
            }
        }
    }
}

fn connect(
    key: &'static str,
    url: &SecretText,
    password: &PasswordSource<'_>,
    ca_file: Option<&PathBuf>,
    reader: &ValueReader,
) -> Result<PostgresConnect, ValueError> {
    let url_error = |error| reader.error(key, None, format_args!("is invalid: {error}"));
    let mut builder = PostgresConnect::builder(url.reveal()).map_err(url_error)?;
    builder = match password {
        PasswordSource::Url => builder,
        PasswordSource::File(path) => builder.password_from(PasswordFile::new(path)),
        PasswordSource::Command(program, args) => {
            builder.password_from(PasswordCommand::new(program).args(args.iter().cloned()))
        }
    };
    if let Some(path) = ca_file {
        builder = builder.tls(PostgresTls::new().ca_file(path));
    }
    builder.build().map_err(|error| match ca_file {
        Some(path) if error.key() == "sslrootcert" => {
            reader.error("database.ca_file", path.display().to_string(), format_args!("is invalid: {error}"))
        }
        Some(_) | None => url_error(error),
    })
}

fn check_slot<'a>(
    section: &'a DatabaseSection,
    reader: &ValueReader,
) -> Result<Option<&'a String>, ValueError> {
    let fits = |name: &String| {
        let is_allowed = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_');
        (1..=MAX_NAME).contains(&name.len()) && name.bytes().all(is_allowed)
    };
    let why = "is not a valid slot name: Postgres allows 1 to 63 of a-z, 0-9 and _";
    match &section.slot {
        Some(name) if !fits(name) => Err(reader.error("database.slot", name.clone(), why)),
        given => Ok(given.as_ref()),
    }
}

fn check_publication<'a>(
    section: &'a DatabaseSection,
    reader: &ValueReader,
) -> Result<Option<&'a String>, ValueError> {
    let fits = |name: &String| (1..=MAX_NAME).contains(&name.len()) && !name.contains('\0');
    let why = "is not a valid publication name: Postgres allows 1 to 63 bytes";
    match &section.publication {
        Some(name) if !fits(name) => Err(reader.error("database.publication", name.clone(), why)),
        given => Ok(given.as_ref()),
    }
}

fn check_lock_timeouts(section: &DatabaseSection, reader: &ValueReader) -> Result<LockTimeouts, ValueError> {
    let duration = |key, given: Option<u64>, default| match given {
        Some(ms) if ms < MIN_LOCK_INTERVAL_MS => {
            let why = format!("must be at least {MIN_LOCK_INTERVAL_MS} milliseconds");
            Err(reader.error(key, ms.to_string(), why))
        }
        given => reader.duration(key, given, default),
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

    fn write_file(name: &str, text: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("forebay-{name}-{}", std::process::id()));
        std::fs::write(&path, text).unwrap();
        path
    }

    fn connect_with(section: &DatabaseSection) -> Result<PostgresConnect, ValueError> {
        let (reader, url) = (ValueReader::default(), "postgres://me:of-the-url@h/db".parse().unwrap());
        let password = PasswordSource::check(section, &reader)?;
        connect("database.url", &url, &password, section.ca_file.as_ref(), &reader)
    }

    async fn password(section: &DatabaseSection) -> String {
        connect_with(section).unwrap().credentials().await.unwrap().unwrap().reveal().to_owned()
    }

    #[tokio::test]
    async fn the_password_comes_from_the_configured_source() {
        let mut section = DatabaseSection::default();
        assert_eq!(password(&section).await, "of-the-url");
        section.password_command = Some(["echo", "of", "a", "program"].map(str::to_owned).into());
        assert_eq!(password(&section).await, "of a program");
        let file = write_file("password", "of-a-file\n");
        section.password_file = Some(file.clone());
        let error = connect_with(&section).unwrap_err().to_string();
        assert!(error.contains("database.password_command") && error.contains("password_file"), "{error}");
        section.password_command = Some(Vec::new());
        assert_eq!(password(&section).await, "of-a-file", "an empty list has no effect");
        std::fs::write(&file, "another").unwrap();
        assert_eq!(password(&section).await, "another", "the file is read for each connection");
        std::fs::remove_file(file).unwrap();
    }

    #[test]
    fn a_ca_file_enables_full_verification_and_an_invalid_one_is_an_error() {
        let mut section = DatabaseSection::default();
        assert_eq!(connect_with(&section).unwrap().ssl_mode(), SslMode::Prefer);
        let file = write_file("authority", AUTHORITY);
        section.ca_file = Some(file.clone());
        assert_eq!(connect_with(&section).unwrap().ssl_mode(), SslMode::VerifyFull);
        std::fs::write(&file, "no PEM").unwrap();
        let error = connect_with(&section).unwrap_err();
        assert_eq!((error.key, error.value), ("database.ca_file", Some(file.display().to_string())));
        std::fs::remove_file(file).unwrap();
    }

    #[test]
    fn a_quarter_of_the_pool_is_reserved_for_metadata() {
        let most = |size| {
            let section = DatabaseSection { pool_size: Some(size), ..DatabaseSection::default() };
            max_snapshots(&section, &ValueReader::default()).unwrap()
        };
        // The same split as in forebay_replication.
        assert_eq!([2, 4, 8, 20, 100].map(most), [1, 3, 6, 16, 96]);
    }
}

//! Programs of the installed Postgres versions.
//!
//! The version is that of `postgres --version`, not of a folder's name.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::{env, fs};

use crate::error::StartError;
use crate::program::is_program;

const DISTRIBUTION: &str = "/usr/lib/postgresql";
/// Folder below which script/bootstrap installs versions that Debian doesn't have.
pub(super) const WORKSPACE_TARGET: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../target");

/// Folder with `initdb` and `postgres` of one version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Programs {
    pub(super) folder: PathBuf,
    /// Major version, such as 15.
    pub(super) version: u32,
    /// Output of `postgres --version`.
    pub(super) release: String,
}

impl Programs {
    /// Finds a major version; or else the first on the PATH, then the distribution's newest. Each
    /// process searches once.
    pub(super) fn find(version: Option<u32>) -> Result<Programs, StartError> {
        static CACHE: Mutex<BTreeMap<Option<u32>, Programs>> = Mutex::new(BTreeMap::new());
        let mut cache = CACHE.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(programs) = cache.get(&version) {
            return Ok(programs.clone());
        }
        let programs = search(version)?;
        cache.insert(version, programs.clone());
        Ok(programs)
    }

    pub(super) fn initdb(&self) -> PathBuf {
        self.folder.join("initdb")
    }

    pub(super) fn postgres(&self) -> PathBuf {
        self.folder.join("postgres")
    }
}

fn search(version: Option<u32>) -> Result<Programs, StartError> {
    let variable = version.map_or("FOREBAY_PG_BIN".to_owned(), |version| format!("FOREBAY_PG{version}_BIN"));
    let path = env::var_os("PATH").unwrap_or_default();
    let mut searched = format!("{variable}, PATH={}, {DISTRIBUTION}/*/bin", path.to_string_lossy());
    let general = env::var_os("FOREBAY_PG_BIN").map(PathBuf::from);
    let mut folders: Vec<_> =
        general.into_iter().chain(env::split_paths(&path)).chain(distribution_folders()).collect();
    if let Some(version) = version {
        let ours = Path::new(WORKSPACE_TARGET).join(format!("postgres-{version}/bin"));
        searched = format!("{searched}, {}", ours.display());
        folders.push(ours);
    }
    if let Some(chosen) = env::var_os(&variable) {
        searched = format!("{variable}={}", chosen.to_string_lossy());
        folders = vec![PathBuf::from(chosen)];
    }
    let mut all = folders.iter().filter_map(|folder| programs_in(folder));
    let found = all.find(|programs| version.is_none_or(|version| version == programs.version));
    found.ok_or_else(|| StartError::NotFound {
        program: version.map_or("Postgres".to_owned(), |version| format!("Postgres {version}")),
        searched,
    })
}

fn programs_in(folder: &Path) -> Option<Programs> {
    let postgres = folder.join("postgres");
    if !(is_program(&folder.join("initdb")) && is_program(&postgres)) {
        return None;
    }
    let output = Command::new(postgres).arg("--version").output().ok()?;
    let release = String::from_utf8(output.stdout).ok()?.trim().to_owned();
    Some(Programs { folder: folder.to_owned(), version: major_version(&release)?, release })
}

/// Parses `postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)`, or a number like `19beta1`.
fn major_version(release: &str) -> Option<u32> {
    let number = release.strip_prefix("postgres (PostgreSQL) ")?;
    number.split(|char: char| !char.is_ascii_digit()).next()?.parse().ok()
}

/// Returns Debian's folders, which are not on the PATH, the newest version first.
fn distribution_folders() -> Vec<PathBuf> {
    let entries = fs::read_dir(DISTRIBUTION).into_iter().flatten().flatten();
    let version =
        |entry: fs::DirEntry| Some((entry.file_name().to_str()?.parse().ok()?, entry.path().join("bin")));
    let mut versions: Vec<(u32, PathBuf)> = entries.filter_map(version).collect();
    versions.sort_unstable_by(|a, b| b.cmp(a));
    versions.into_iter().map(|(_, folder)| folder).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_major_version_is_the_first_number() {
        for (release, version) in [
            ("postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)", Some(15)),
            ("postgres (PostgreSQL) 18.4", Some(18)),
            ("postgres (PostgreSQL) 19beta1", Some(19)),
            ("postgres (EnterpriseDB) 18.4", None),
        ] {
            assert_eq!(major_version(release), version, "{release}");
        }
    }

    #[test]
    fn a_missing_version_is_reported_with_what_to_do() {
        let error = Programs::find(Some(9)).expect_err("not installed").to_string();
        assert!(error.starts_with("Postgres 9 not found: run script/bootstrap"), "{error}");
        assert!(error.contains("FOREBAY_PG9_BIN"), "{error}");
    }
}

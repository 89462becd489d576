//! Programs of the installed Postgres versions.
//!
//! The version comes from `postgres --version`, not from a folder's name.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use parking_lot::Mutex;

use crate::error::StartError;
use crate::program::is_program;

/// Folder below which Debian's packages install each version.
const DISTRIBUTION_FOLDER: &str = "/usr/lib/postgresql";
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
    /// Returns the programs of a major version. Without a version, returns the first programs found
    /// in `FOREBAY_PG_BIN`, on the PATH, or in the distribution's folders. Caches the result.
    pub(super) fn find(version: Option<u32>) -> Result<Programs, StartError> {
        static CACHE: Mutex<BTreeMap<Option<u32>, Programs>> = Mutex::new(BTreeMap::new());
        let mut cache = CACHE.lock();
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
    let mut searched = format!("{variable}, PATH={}, {DISTRIBUTION_FOLDER}/*/bin", path.to_string_lossy());
    let configured = env::var_os("FOREBAY_PG_BIN").map(PathBuf::from);
    let mut folders: Vec<_> =
        configured.into_iter().chain(env::split_paths(&path)).chain(distribution_folders()).collect();
    if let Some(version) = version {
        let bootstrapped = Path::new(WORKSPACE_TARGET).join(format!("postgres-{version}/bin"));
        searched = format!("{searched}, {}", bootstrapped.display());
        folders.push(bootstrapped);
    }
    if let Some(chosen) = env::var_os(&variable) {
        searched = format!("{variable}={}", chosen.to_string_lossy());
        folders = vec![PathBuf::from(chosen)];
    }
    let mut candidates = folders.iter().filter_map(|folder| programs_in(folder));
    let found = candidates.find(|programs| version.is_none_or(|version| version == programs.version));
    found.ok_or_else(|| StartError::NotFound {
        program: version.map_or("Postgres".to_owned(), |version| format!("Postgres {version}")),
        searched,
    })
}

/// Returns the programs in a folder; `None` if one is missing or the version is unknown.
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
    let entries = fs::read_dir(DISTRIBUTION_FOLDER).into_iter().flatten().flatten();
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

//! Whom a server runs as. Postgres and PgBouncer refuse to run as root.

use std::os::unix::fs::{MetadataExt, chown};
use std::path::Path;
use std::{fs, io};

/// A user and group to run as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct User {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
}

/// Somebody else when we are root, and nobody in particular when we aren't. There is always somebody else: where
/// `postgres` isn't a user, `nobody` is.
pub(crate) fn other_than_root() -> Option<User> {
    let us = fs::metadata("/proc/self").map_or(u32::MAX, |meta| meta.uid());
    if us != 0 {
        return None;
    }
    let users = fs::read_to_string("/etc/passwd").unwrap_or_default();
    find(&users, "postgres").or_else(|| find(&users, "nobody")).or(Some(User { uid: 65_534, gid: 65_534 }))
}

/// Makes a file or folder that user's own.
pub(crate) fn give(path: &Path, user: Option<User>) -> io::Result<()> {
    user.map_or(Ok(()), |user| chown(path, Some(user.uid), Some(user.gid)))
}

fn find(users: &str, name: &str) -> Option<User> {
    let line = users.lines().find(|line| line.split(':').next() == Some(name))?;
    let mut fields = line.split(':').skip(2);
    Some(User { uid: fields.next()?.parse().ok()?, gid: fields.next()?.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_is_found_by_its_whole_name() {
        let users =
            "root:x:0:0::/root:/bin/sh\npostgres2:x:7:8::/:/bin/sh\npostgres:x:101:104:,,,:/var:/bin/sh\n";
        assert_eq!(find(users, "postgres"), Some(User { uid: 101, gid: 104 }));
        assert_eq!(find(users, "nobody"), None);
    }
}

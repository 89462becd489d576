//! System user of a server. Postgres and PgBouncer refuse to run as root.

use std::os::unix::fs::{MetadataExt, chown};
use std::path::Path;
use std::{fs, io};

/// User id and group id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SystemUser {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
}

/// Returns an unprivileged system user if this process runs as root; otherwise `None`.
pub(crate) fn unprivileged_user() -> Option<SystemUser> {
    let us = fs::metadata("/proc/self").map_or(u32::MAX, |meta| meta.uid());
    if us != 0 {
        return None;
    }
    let users = fs::read_to_string("/etc/passwd").unwrap_or_default();
    find(&users, "postgres")
        .or_else(|| find(&users, "nobody"))
        .or(Some(SystemUser { uid: 65_534, gid: 65_534 }))
}

/// Changes the owner of a file or folder to `user`.
pub(crate) fn change_owner(path: &Path, user: Option<SystemUser>) -> io::Result<()> {
    user.map_or(Ok(()), |user| chown(path, Some(user.uid), Some(user.gid)))
}

fn find(users: &str, name: &str) -> Option<SystemUser> {
    let line = users.lines().find(|line| line.split(':').next() == Some(name))?;
    let mut fields = line.split(':').skip(2);
    Some(SystemUser { uid: fields.next()?.parse().ok()?, gid: fields.next()?.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_is_found_by_its_whole_name() {
        let users =
            "root:x:0:0::/root:/bin/sh\npostgres2:x:7:8::/:/bin/sh\npostgres:x:101:104:,,,:/var:/bin/sh\n";
        assert_eq!(find(users, "postgres"), Some(SystemUser { uid: 101, gid: 104 }));
        assert_eq!(find(users, "nobody"), None);
    }
}

//! Snapshot-end message: tells clients which transactions the snapshot sees.

use super::SEPARATOR;
use crate::store::record::SnapshotVisibility;

/// Returns the last message of a snapshot, with its separator.
pub(crate) fn snapshot_end(seen: &SnapshotVisibility) -> Vec<u8> {
    let message = serde_json::json!({"headers": {
        "control": "snapshot-end",
        "xmin": seen.xmin.to_string(),
        "xmax": seen.xmax.to_string(),
        "xip_list": seen.xip.iter().map(u64::to_string).collect::<Vec<_>>(),
    }});
    [message.to_string().as_bytes(), SEPARATOR].concat()
}

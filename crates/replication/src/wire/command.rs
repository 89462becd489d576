//! Text of replication commands.
//!
//! Invariant: names and values can't end their command. They are quoted for the scanner of
//! replication commands, which has no backslash escapes.

use forebay_pgoutput::Lsn;

/// Returns `START_REPLICATION` for a logical slot.
pub(super) fn start_replication(slot: &str, from: Lsn, options: &[(&str, &str)]) -> String {
    let mut command = format!("START_REPLICATION SLOT {} LOGICAL {from}", quoted(slot, '"'));
    let options: Vec<_> = options
        .iter()
        .map(|(name, value)| format!("{} {}", quoted(name, '"'), quoted(value, '\'')))
        .collect();
    if !options.is_empty() {
        command.push_str(&format!(" ({})", options.join(", ")));
    }
    command
}

fn quoted(text: &str, quote: char) -> String {
    let doubled = [quote, quote].iter().collect::<String>();
    format!("{quote}{}{quote}", text.replace(quote, &doubled))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn start_replication_has_slot_position_and_options() {
        let from = Lsn(0x16_B374_D848);
        assert_eq!(start_replication("s", from, &[]), r#"START_REPLICATION SLOT "s" LOGICAL 16/B374D848"#);
        let options = [("proto_version", "1"), ("publication_names", r#""it's""#)];
        assert_eq!(
            start_replication("a\"b", Lsn(0), &options),
            r#"START_REPLICATION SLOT "a""b" LOGICAL 0/0 ("proto_version" '1', "publication_names" '"it''s"')"#
        );
    }
}

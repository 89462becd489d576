use super::*;

fn transaction() -> OpenTransaction {
    OpenTransaction::new(1000, 700, TransactionReceipt::First, &StoreConfig::new("/nowhere"))
}

#[test]
fn deferrable_keys_beyond_the_bound_are_ambiguous() {
    let mut transaction = transaction();
    let is_exact = |transaction: &mut OpenTransaction, left, entered| {
        transaction.move_deferrable_key(left, entered).is_ok()
    };
    assert!((0..MAX_ENTERED as u64).all(|key| is_exact(&mut transaction, None, Some(key))));
    assert!(!is_exact(&mut transaction, None, Some(u64::MAX)), "the key can't be remembered");
    assert!(is_exact(&mut transaction, Some(u64::MAX), None), "no row got this key");
    assert!(!is_exact(&mut transaction, Some(0), None));
    assert_eq!(transaction.entered_keys.len(), MAX_ENTERED);
}

#[test]
fn key_changes_beyond_the_bound_are_counted_before_the_commit() {
    let mut transaction = transaction();
    let keys = RowChangeKeys { old: Some(1), new: Some(2) };
    for shape in 0..MAX_KEY_CHANGES as u64 / 2 {
        transaction.add_key_changes(shape % 3, RowEffect::Rekey, &keys);
    }
    transaction.add_key_changes(0, RowEffect::Update, &keys);
    assert!(!transaction.has_many_keys());
    transaction.add_key_changes(0, RowEffect::Delete, &keys);
    assert!(transaction.has_many_keys());
    let counted = transaction.take_key_changes();
    assert_eq!(counted.values().map(Vec::len).sum::<usize>(), MAX_KEY_CHANGES + 1);
    assert!(!transaction.has_many_keys());
}

//! What the items hold, and how it is written down.
//!
//! Names of attributes are those that DynamoDB doesn't reserve, except `ttl`, which operators look for.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use aws_sdk_dynamodb::types::AttributeValue;

use super::Item;
use crate::core::bucket::Level;
use crate::core::ledger::Held;
use crate::store::{MemberId, StoreError};

/// Nobody has touched it for so long: DynamoDB may clear it away. Far beyond any member's life, and any clock's error.
const SHELF_LIFE: Duration = Duration::from_secs(7 * 24 * 3600);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Generation {
    pub(super) number: u64,
    pub(super) rebuilding: bool,
    /// For how long members tell what they hold.
    pub(super) life: Duration,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Member {
    pub(super) id: MemberId,
    pub(super) generation: u64,
    pub(super) beats: u64,
    pub(super) life: Duration,
    pub(super) replaced: bool,
    pub(super) sequence: u64,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Account {
    pub(super) shares: BTreeMap<MemberId, Held>,
    pub(super) pressed: Option<Pressed>,
}

/// That somebody was refused, and for how long it matters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Pressed {
    pub(super) stamp: String,
    pub(super) lasts: Duration,
}

/// Times since 1970.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Bucket {
    pub(super) level: Level,
    /// The latest time that anybody presented.
    pub(super) clock: Duration,
}

/// An item that was read: its content, and the stamp that a write must find unchanged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Stamped<T> {
    pub(super) stamp: String,
    pub(super) expires: u64,
    pub(super) content: T,
}

impl<T> Stamped<T> {
    /// Whether it should be written again though nothing has changed, so that it isn't cleared away.
    pub(super) fn is_old(&self, wall: Duration) -> bool {
        self.expires < (wall + SHELF_LIFE / 2).as_secs()
    }
}

/// The wall clock.
#[expect(
    clippy::disallowed_methods,
    reason = "for DynamoDB's own expiry, in days, and for buckets, where a skew costs at most a burst (draw.rs)"
)]
pub(super) fn wall() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// The attribute `ttl` of something that is written now.
pub(super) fn ttl() -> AttributeValue {
    number((wall() + SHELF_LIFE).as_secs())
}

pub(super) fn number(number: u64) -> AttributeValue {
    AttributeValue::N(number.to_string())
}

pub(super) fn text(text: impl Into<String>) -> AttributeValue {
    AttributeValue::S(text.into())
}

pub(super) fn millis(duration: Duration) -> AttributeValue {
    number(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX))
}

fn nanos(duration: Duration) -> AttributeValue {
    number(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX))
}

impl Generation {
    pub(super) fn read(item: &Item) -> Result<Self, StoreError> {
        let fields = Fields(item);
        Ok(Generation {
            number: fields.number("gen")?,
            rebuilding: fields.flag("rebuilding")?,
            life: fields.millis("life_ms")?,
        })
    }

    /// Without an expiry: it is one small item for each namespace, and losing it means to rebuild.
    pub(super) fn write(&self, item: &mut Item) {
        item.insert("gen".into(), number(self.number));
        item.insert("rebuilding".into(), AttributeValue::Bool(self.rebuilding));
        item.insert("life_ms".into(), millis(self.life));
    }
}

impl Member {
    pub(super) fn read(id: &str, item: &Item) -> Result<Self, StoreError> {
        let fields = Fields(item);
        Ok(Member {
            id: read_id(id)?,
            generation: fields.number("gen")?,
            beats: fields.number("beats")?,
            life: fields.millis("life_ms")?,
            replaced: fields.flag("replaced")?,
            sequence: fields.number("seq")?,
        })
    }

    pub(super) fn write(&self, item: &mut Item) {
        item.insert("gen".into(), number(self.generation));
        item.insert("beats".into(), number(self.beats));
        item.insert("life_ms".into(), millis(self.life));
        item.insert("replaced".into(), AttributeValue::Bool(self.replaced));
        item.insert("seq".into(), number(self.sequence));
        item.insert("ttl".into(), ttl());
    }
}

impl Stamped<Account> {
    pub(super) fn read(item: &Item) -> Result<Self, StoreError> {
        let fields = Fields(item);
        let shares = fields.map("shares")?.iter().map(|(id, share)| {
            let share = Fields(share.as_m().map_err(|_| odd("shares"))?);
            let held = Held { count: share.small("held")?, used: share.small("lent")? };
            Ok((read_id(id)?, held))
        });
        let shares = shares.collect::<Result<_, StoreError>>()?;
        let pressed = match item.get("pressed") {
            None => None,
            Some(_) => Some(Pressed { stamp: fields.text("pressed")?, lasts: fields.millis("pressed_ms")? }),
        };
        let content = Account { shares, pressed };
        Ok(Stamped { stamp: fields.text("stamp")?, expires: fields.number("ttl")?, content })
    }
}

impl Account {
    pub(super) fn is_blank(&self) -> bool {
        self.shares.is_empty() && self.pressed.is_none()
    }

    pub(super) fn write(&self, stamp: String, item: &mut Item) {
        let share = |held: &Held| {
            let fields = [("held", held.count), ("lent", held.used)];
            AttributeValue::M(fields.map(|(name, count)| (name.into(), number(count.into()))).into())
        };
        let shares = self.shares.iter().map(|(id, held)| (id.as_str().into(), share(held)));
        item.insert("stamp".into(), text(stamp));
        item.insert("shares".into(), AttributeValue::M(shares.collect()));
        item.insert("ttl".into(), ttl());
        if let Some(Pressed { stamp, lasts }) = &self.pressed {
            item.insert("pressed".into(), text(stamp));
            item.insert("pressed_ms".into(), millis(*lasts));
        }
    }
}

impl Stamped<Bucket> {
    pub(super) fn read(item: &Item) -> Result<Self, StoreError> {
        let fields = Fields(item);
        let time = |name| fields.number(name).map(Duration::from_nanos);
        // Release 0.1 writes no depth.
        let depth = if item.contains_key("depth") { time("depth")? } else { Duration::ZERO };
        let content = Bucket { level: Level { full_at: time("full_at")?, depth }, clock: time("clock")? };
        Ok(Stamped { stamp: fields.text("stamp")?, expires: fields.number("ttl")?, content })
    }
}

impl Bucket {
    pub(super) fn write(&self, stamp: String, item: &mut Item) {
        item.insert("stamp".into(), text(stamp));
        item.insert("full_at".into(), nanos(self.level.full_at));
        item.insert("depth".into(), nanos(self.level.depth));
        item.insert("clock".into(), nanos(self.clock));
        item.insert("ttl".into(), ttl());
    }
}

fn read_id(id: &str) -> Result<MemberId, StoreError> {
    MemberId::parse(id).ok_or_else(|| StoreError::Unexpected(format!("the member {id:?}")))
}

fn odd(name: &str) -> StoreError {
    StoreError::Unexpected(format!("an item whose attribute {name:?} is missing or of another kind"))
}

/// Reads an item's attributes. Errors name the attribute, not what it held.
struct Fields<'a>(&'a Item);

impl Fields<'_> {
    fn number(&self, name: &str) -> Result<u64, StoreError> {
        let value = self.0.get(name).and_then(|value| value.as_n().ok());
        value.and_then(|number| number.parse().ok()).ok_or_else(|| odd(name))
    }

    fn small(&self, name: &str) -> Result<u32, StoreError> {
        u32::try_from(self.number(name)?).map_err(|_| odd(name))
    }

    fn millis(&self, name: &str) -> Result<Duration, StoreError> {
        self.number(name).map(Duration::from_millis)
    }

    fn flag(&self, name: &str) -> Result<bool, StoreError> {
        self.0.get(name).and_then(|value| value.as_bool().ok()).copied().ok_or_else(|| odd(name))
    }

    fn text(&self, name: &str) -> Result<String, StoreError> {
        self.0.get(name).and_then(|value| value.as_s().ok()).cloned().ok_or_else(|| odd(name))
    }

    fn map(&self, name: &str) -> Result<&Item, StoreError> {
        self.0.get(name).and_then(|value| value.as_m().ok()).ok_or_else(|| odd(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_again() {
        let generation = Generation { number: u64::MAX, rebuilding: true, life: Duration::from_millis(1) };
        let mut item = Item::new();
        generation.write(&mut item);
        assert_eq!(Generation::read(&item).unwrap(), generation);

        let id = MemberId::new("a:b", 7);
        let life = Duration::from_secs(10);
        let member = Member { id: id.clone(), generation: 1, beats: 2, life, replaced: true, sequence: 3 };
        let mut item = Item::new();
        member.write(&mut item);
        assert_eq!(Member::read(id.as_str(), &item).unwrap(), member);

        let pressed = Some(Pressed { stamp: "p".into(), lasts: life });
        let account = Account { shares: [(id, Held { count: u32::MAX, used: 0 })].into(), pressed };
        let mut item = Item::new();
        account.write("s".into(), &mut item);
        let read = Stamped::<Account>::read(&item).unwrap();
        assert!(!read.is_old(wall()) && read.is_old(wall() + SHELF_LIFE));
        assert_eq!((read.stamp.as_str(), read.content), ("s", account));

        let level = Level { full_at: Duration::new(1_800_000_000, 123_456_789), depth: life };
        let bucket = Bucket { level, clock: Duration::ZERO };
        let mut item = Item::new();
        bucket.write("s".into(), &mut item);
        assert_eq!(Stamped::<Bucket>::read(&item).unwrap().content, bucket);
    }

    #[test]
    fn an_item_of_another_kind_is_an_error_that_names_the_attribute() {
        let mut item = Item::new();
        let error = Generation::read(&item).unwrap_err().to_string();
        assert!(error.contains(r#""gen""#), "{error}");
        for odd in [text("1"), AttributeValue::N("-1".into()), AttributeValue::N("1e40".into())] {
            item.insert("gen".into(), odd);
            assert!(Generation::read(&item).is_err());
        }
        assert!(Member::read("no-epoch", &item).is_err());
    }
}

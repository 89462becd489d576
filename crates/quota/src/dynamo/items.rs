//! The items in the table, and their attributes.
//!
//! Attribute names avoid DynamoDB's reserved words, except `ttl`, the name that operators expect.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use aws_sdk_dynamodb::types::AttributeValue;

use super::AttributeMap;
use crate::core::bucket::BucketLevel;
use crate::core::grant::Holding;
use crate::store::{MemberId, StoreError};

/// DynamoDB may delete an item after this time without writes. Far longer than any member's TTL and
/// any clock error.
const ITEM_TTL: Duration = Duration::from_secs(7 * 24 * 3600);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct GenerationItem {
    pub(super) number: u64,
    pub(super) rebuilding: bool,
    /// How long members have to report what they hold.
    pub(super) ttl: Duration,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct MemberItem {
    pub(super) id: MemberId,
    pub(super) generation: u64,
    pub(super) heartbeats: u64,
    pub(super) ttl: Duration,
    pub(super) replaced: bool,
    pub(super) sequence: u64,
    /// Live members before the rebuild, by the member's last reply before it. Zero if it wasn't a
    /// member then.
    pub(super) members_before: u32,
    /// Whether the member was alive before the rebuild and has reported all that it holds.
    pub(super) has_reported: bool,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct AccountItem {
    pub(super) shares: BTreeMap<MemberId, Holding>,
    pub(super) pressed: Option<PressureMark>,
}

/// Marks that a member was refused, and for how long that matters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PressureMark {
    pub(super) stamp: String,
    pub(super) lasts: Duration,
}

/// Times are since the Unix epoch.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct BucketItem {
    pub(super) level: BucketLevel,
    /// The latest time that a member has used.
    pub(super) clock: Duration,
}

/// An item that was read: its content, and the stamp that a write must find unchanged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct StampedItem<T> {
    pub(super) stamp: String,
    pub(super) expires: u64,
    pub(super) content: T,
}

impl<T> StampedItem<T> {
    /// Returns whether to write the item again although nothing has changed, so that DynamoDB
    /// doesn't delete it.
    pub(super) fn needs_rewrite(&self, wall_clock: Duration) -> bool {
        self.expires < (wall_clock + ITEM_TTL / 2).as_secs()
    }
}

/// Returns the wall clock since the Unix epoch.
#[expect(
    clippy::disallowed_methods,
    reason = "for DynamoDB's own expiry, in days, and for buckets, where a skew costs at most a burst (draw.rs)"
)]
pub(super) fn wall_clock() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// Returns the attribute `ttl` of an item that is written now.
pub(super) fn expiry_attribute() -> AttributeValue {
    number((wall_clock() + ITEM_TTL).as_secs())
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

impl GenerationItem {
    pub(super) fn read(item: &AttributeMap) -> Result<Self, StoreError> {
        let fields = ItemReader(item);
        Ok(GenerationItem {
            number: fields.number("gen")?,
            rebuilding: fields.flag("rebuilding")?,
            ttl: fields.millis("life_ms")?,
        })
    }

    /// Writes no expiry: it is one small item per namespace, and losing it starts a rebuild.
    pub(super) fn write(&self, item: &mut AttributeMap) {
        item.insert("gen".into(), number(self.number));
        item.insert("rebuilding".into(), AttributeValue::Bool(self.rebuilding));
        item.insert("life_ms".into(), millis(self.ttl));
    }
}

impl MemberItem {
    pub(super) fn read(id: &str, item: &AttributeMap) -> Result<Self, StoreError> {
        let fields = ItemReader(item);
        // Release 0.1 writes neither: such a member doesn't shorten a rebuild.
        let reports = item.contains_key("reported");
        Ok(MemberItem {
            id: read_id(id)?,
            generation: fields.number("gen")?,
            heartbeats: fields.number("beats")?,
            ttl: fields.millis("life_ms")?,
            replaced: fields.flag("replaced")?,
            sequence: fields.number("seq")?,
            members_before: if reports { fields.small("members_before")? } else { 0 },
            has_reported: reports && fields.flag("reported")?,
        })
    }

    pub(super) fn write(&self, item: &mut AttributeMap) {
        item.insert("gen".into(), number(self.generation));
        item.insert("beats".into(), number(self.heartbeats));
        item.insert("life_ms".into(), millis(self.ttl));
        item.insert("replaced".into(), AttributeValue::Bool(self.replaced));
        item.insert("seq".into(), number(self.sequence));
        item.insert("members_before".into(), number(self.members_before.into()));
        item.insert("reported".into(), AttributeValue::Bool(self.has_reported));
        item.insert("ttl".into(), expiry_attribute());
    }
}

impl StampedItem<AccountItem> {
    pub(super) fn read(item: &AttributeMap) -> Result<Self, StoreError> {
        let fields = ItemReader(item);
        let shares = fields.map("shares")?.iter().map(|(id, share)| {
            let share = ItemReader(share.as_m().map_err(|_| odd("shares"))?);
            let held = Holding { count: share.small("held")?, used: share.small("lent")? };
            Ok((read_id(id)?, held))
        });
        let shares = shares.collect::<Result<_, StoreError>>()?;
        let pressed = match item.get("pressed") {
            None => None,
            Some(_) => {
                Some(PressureMark { stamp: fields.text("pressed")?, lasts: fields.millis("pressed_ms")? })
            }
        };
        let content = AccountItem { shares, pressed };
        Ok(StampedItem { stamp: fields.text("stamp")?, expires: fields.number("ttl")?, content })
    }
}

impl AccountItem {
    pub(super) fn is_empty(&self) -> bool {
        self.shares.is_empty() && self.pressed.is_none()
    }

    pub(super) fn write(&self, stamp: String, item: &mut AttributeMap) {
        let share = |held: &Holding| {
            let fields = [("held", held.count), ("lent", held.used)];
            AttributeValue::M(fields.map(|(name, count)| (name.into(), number(count.into()))).into())
        };
        let shares = self.shares.iter().map(|(id, held)| (id.as_str().into(), share(held)));
        item.insert("stamp".into(), text(stamp));
        item.insert("shares".into(), AttributeValue::M(shares.collect()));
        item.insert("ttl".into(), expiry_attribute());
        if let Some(PressureMark { stamp, lasts }) = &self.pressed {
            item.insert("pressed".into(), text(stamp));
            item.insert("pressed_ms".into(), millis(*lasts));
        }
    }
}

impl StampedItem<BucketItem> {
    pub(super) fn read(item: &AttributeMap) -> Result<Self, StoreError> {
        let fields = ItemReader(item);
        let time = |name| fields.number(name).map(Duration::from_nanos);
        // Release 0.1 writes no depth.
        let depth = if item.contains_key("depth") { time("depth")? } else { Duration::ZERO };
        let content =
            BucketItem { level: BucketLevel { full_at: time("full_at")?, depth }, clock: time("clock")? };
        Ok(StampedItem { stamp: fields.text("stamp")?, expires: fields.number("ttl")?, content })
    }
}

impl BucketItem {
    pub(super) fn write(&self, stamp: String, item: &mut AttributeMap) {
        item.insert("stamp".into(), text(stamp));
        item.insert("full_at".into(), nanos(self.level.full_at));
        item.insert("depth".into(), nanos(self.level.depth));
        item.insert("clock".into(), nanos(self.clock));
        item.insert("ttl".into(), expiry_attribute());
    }
}

fn read_id(id: &str) -> Result<MemberId, StoreError> {
    MemberId::parse(id).ok_or_else(|| StoreError::Unexpected(format!("the member {id:?}")))
}

fn odd(name: &str) -> StoreError {
    StoreError::Unexpected(format!("an item whose attribute {name:?} is missing or of another kind"))
}

/// Reads an item's attributes. Errors name the attribute, never its value.
struct ItemReader<'a>(&'a AttributeMap);

impl ItemReader<'_> {
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

    fn map(&self, name: &str) -> Result<&AttributeMap, StoreError> {
        self.0.get(name).and_then(|value| value.as_m().ok()).ok_or_else(|| odd(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_items_are_read_back_unchanged() {
        let generation = GenerationItem { number: u64::MAX, rebuilding: true, ttl: Duration::from_millis(1) };
        let mut item = AttributeMap::new();
        generation.write(&mut item);
        assert_eq!(GenerationItem::read(&item).unwrap(), generation);

        let id = MemberId::new("a:b", 7);
        let ttl = Duration::from_secs(10);
        let member = MemberItem {
            id: id.clone(),
            generation: 1,
            heartbeats: 2,
            ttl,
            replaced: true,
            sequence: 3,
            members_before: 4,
            has_reported: true,
        };
        let mut item = AttributeMap::new();
        member.write(&mut item);
        assert_eq!(MemberItem::read(id.as_str(), &item).unwrap(), member);
        item.retain(|name, _| !["members_before", "reported"].contains(&name.as_str())); // release 0.1
        let older = MemberItem { members_before: 0, has_reported: false, ..member };
        assert_eq!(MemberItem::read(id.as_str(), &item).unwrap(), older);

        let pressed = Some(PressureMark { stamp: "p".into(), lasts: ttl });
        let account = AccountItem { shares: [(id, Holding { count: u32::MAX, used: 0 })].into(), pressed };
        let mut item = AttributeMap::new();
        account.write("s".into(), &mut item);
        let read = StampedItem::<AccountItem>::read(&item).unwrap();
        assert!(!read.needs_rewrite(wall_clock()) && read.needs_rewrite(wall_clock() + ITEM_TTL));
        assert_eq!((read.stamp.as_str(), read.content), ("s", account));

        let level = BucketLevel { full_at: Duration::new(1_800_000_000, 123_456_789), depth: ttl };
        let bucket = BucketItem { level, clock: Duration::ZERO };
        let mut item = AttributeMap::new();
        bucket.write("s".into(), &mut item);
        assert_eq!(StampedItem::<BucketItem>::read(&item).unwrap().content, bucket);
    }

    #[test]
    fn an_invalid_item_is_an_error_that_names_the_attribute() {
        let mut item = AttributeMap::new();
        let error = GenerationItem::read(&item).unwrap_err().to_string();
        assert!(error.contains(r#""gen""#), "{error}");
        for odd in [text("1"), AttributeValue::N("-1".into()), AttributeValue::N("1e40".into())] {
            item.insert("gen".into(), odd);
            assert!(GenerationItem::read(&item).is_err());
        }
        assert!(MemberItem::read("no-epoch", &item).is_err());
    }
}

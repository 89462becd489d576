//! The table: its keys, and how it is made.

use std::fmt::Write;
use std::time::Duration;

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::error::ProvideErrorMetadata;
use aws_sdk_dynamodb::types::{
    AttributeDefinition, BillingMode, KeySchemaElement, KeyType, ScalarAttributeType, TableStatus,
    TimeToLiveSpecification, TimeToLiveStatus,
};
use sha2::{Digest, Sha256};

use super::fault::failed;
use super::items::text;
use super::{DynamoStore, Item};
use crate::store::{MemberId, StoreError};

pub(super) const GENERATION: &str = "generation";
pub(super) const MEMBER: &str = "member#";
const READY_WITHIN: Duration = Duration::from_secs(60);
const READY_POLL: Duration = Duration::from_millis(200);
/// DynamoDB takes 2,048 bytes in a key; users choose some of our names.
const MAX_NAME_BYTES: usize = 1024;

impl DynamoStore {
    pub(super) fn namespace_key(&self) -> String {
        format!("namespace#{}", self.namespace)
    }

    pub(super) fn generation_key(&self) -> Item {
        key(self.namespace_key(), GENERATION.to_string())
    }

    pub(super) fn member_key(&self, id: &MemberId) -> Item {
        key(self.namespace_key(), format!("{MEMBER}{id}"))
    }

    /// The namespace is a key of its own, so that no name of the one can be mistaken for a part of the other.
    pub(super) fn account_key(&self, account: &str) -> Item {
        key(partition("account", account), format!("in#{}", self.namespace))
    }

    pub(super) fn bucket_key(&self, bucket: &str) -> Item {
        key(partition("bucket", bucket), format!("in#{}", self.namespace))
    }
}

fn key(partition: String, sort: String) -> Item {
    [("pk".into(), text(partition)), ("sk".into(), text(sort))].into()
}

/// A name that is too long for a key stands there by its hash.
pub(super) fn partition(kind: &str, name: &str) -> String {
    if name.len() <= MAX_NAME_BYTES {
        return format!("{kind}#{name}");
    }
    let mut partition = format!("{kind}~");
    for byte in Sha256::digest(name.as_bytes()) {
        let _ = write!(partition, "{byte:02x}");
    }
    partition
}

/// Makes the table if there is none, and waits until it can be used.
pub(super) async fn create(client: &Client, table: &str) -> Result<(), StoreError> {
    let attribute = |name| {
        AttributeDefinition::builder()
            .attribute_name(name)
            .attribute_type(ScalarAttributeType::S)
            .build()
            .expect("every required part is set")
    };
    let element = |name, kind| {
        KeySchemaElement::builder()
            .attribute_name(name)
            .key_type(kind)
            .build()
            .expect("every required part is set")
    };
    let created = client
        .create_table()
        .table_name(table)
        .billing_mode(BillingMode::PayPerRequest)
        .attribute_definitions(attribute("pk"))
        .attribute_definitions(attribute("sk"))
        .key_schema(element("pk", KeyType::Hash))
        .key_schema(element("sk", KeyType::Range))
        .send()
        .await;
    match created {
        Ok(_) => {}
        Err(error) if error.code() == Some("ResourceInUseException") => {} // it is there, or somebody makes it
        Err(error) => return Err(failed(error)),
    }
    tokio::time::timeout(READY_WITHIN, ready(client, table))
        .await
        .map_err(|_| StoreError::Timeout(READY_WITHIN))??;
    expire_by_ttl(client, table).await
}

async fn ready(client: &Client, table: &str) -> Result<(), StoreError> {
    loop {
        let described = client.describe_table().table_name(table).send().await;
        let status = match &described {
            Ok(described) => described.table().and_then(|table| table.table_status()),
            // What was just made may not be known everywhere yet.
            Err(error) if error.code() == Some("ResourceNotFoundException") => None,
            Err(_) => return described.map(drop).map_err(failed),
        };
        if status == Some(&TableStatus::Active) {
            return Ok(());
        }
        tokio::time::sleep(READY_POLL).await;
    }
}

async fn expire_by_ttl(client: &Client, table: &str) -> Result<(), StoreError> {
    let described = client.describe_time_to_live().table_name(table).send().await.map_err(failed)?;
    let status = described.time_to_live_description().and_then(|described| described.time_to_live_status());
    if matches!(status, Some(TimeToLiveStatus::Enabled | TimeToLiveStatus::Enabling)) {
        return Ok(());
    }
    let by_ttl = TimeToLiveSpecification::builder().enabled(true).attribute_name("ttl").build();
    let by_ttl = by_ttl.expect("every required part is set");
    let enabled = client.update_time_to_live().table_name(table).time_to_live_specification(by_ttl);
    match enabled.send().await {
        Ok(_) => Ok(()),
        // Somebody else has just done it.
        Err(error) if error.code() == Some("ValidationException") => Ok(()),
        Err(error) => Err(failed(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_of_any_length_makes_a_key_of_bounded_length_and_its_own() {
        assert_eq!(partition("account", "b:streams"), "account#b:streams");
        let long = partition("account", &"x".repeat(1 << 20));
        assert_eq!(long.len(), "account~".len() + 64);
        assert_ne!(long, partition("account", &"x".repeat((1 << 20) + 1)));
        assert_ne!(long, partition("bucket", &"x".repeat(1 << 20)));
    }
}

//! The table: its keys and its creation.

use std::fmt::Write;
use std::time::Duration;

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::error::ProvideErrorMetadata;
use aws_sdk_dynamodb::types::{
    AttributeDefinition, BillingMode, KeySchemaElement, KeyType, ScalarAttributeType, TableStatus,
    TimeToLiveSpecification, TimeToLiveStatus,
};
use sha2::{Digest, Sha256};

use super::items::text;
use super::outcome::failed;
use super::{AttributeMap, DynamoStore};
use crate::store::{MemberId, StoreError};

pub(super) const GENERATION: &str = "generation";
pub(super) const MEMBER: &str = "member#";
const READY_TIMEOUT: Duration = Duration::from_secs(60);
const READY_POLL: Duration = Duration::from_millis(200);
/// DynamoDB allows 2,048 bytes in a key. Some names are chosen by users.
const MAX_NAME_BYTES: usize = 1024;

impl DynamoStore {
    pub(super) fn namespace_key(&self) -> String {
        format!("namespace#{}", self.namespace)
    }

    pub(super) fn generation_key(&self) -> AttributeMap {
        key(self.namespace_key(), GENERATION.to_string())
    }

    pub(super) fn member_key(&self, id: &MemberId) -> AttributeMap {
        key(self.namespace_key(), format!("{MEMBER}{id}"))
    }

    /// Returns the key of an account. The namespace is the sort key, so that no account name can be
    /// read as a part of the namespace.
    pub(super) fn account_key(&self, account: &str) -> AttributeMap {
        key(partition("account", account), format!("in#{}", self.namespace))
    }

    pub(super) fn bucket_key(&self, bucket: &str) -> AttributeMap {
        key(partition("bucket", bucket), format!("in#{}", self.namespace))
    }
}

fn key(partition: String, sort: String) -> AttributeMap {
    [("pk".into(), text(partition)), ("sk".into(), text(sort))].into()
}

/// Returns the partition key of a name. A name that is too long is replaced by its hash.
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

/// Creates the table if it is missing, and waits until it is active.
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
        // The table exists, or is being created.
        Err(error) if error.code() == Some("ResourceInUseException") => {}
        Err(error) => return Err(failed(error)),
    }
    tokio::time::timeout(READY_TIMEOUT, ready(client, table))
        .await
        .map_err(|_| StoreError::Timeout(READY_TIMEOUT))??;
    expire_by_ttl(client, table).await
}

async fn ready(client: &Client, table: &str) -> Result<(), StoreError> {
    loop {
        let described = client.describe_table().table_name(table).send().await;
        let status = match &described {
            Ok(described) => described.table().and_then(|table| table.table_status()),
            // DynamoDB may not find a new table yet.
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
        // Another process has enabled it meanwhile.
        Err(error) if error.code() == Some("ValidationException") => Ok(()),
        Err(error) => Err(failed(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_of_any_length_makes_a_unique_key_of_bounded_length() {
        assert_eq!(partition("account", "b:streams"), "account#b:streams");
        let long = partition("account", &"x".repeat(1 << 20));
        assert_eq!(long.len(), "account~".len() + 64);
        assert_ne!(long, partition("account", &"x".repeat((1 << 20) + 1)));
        assert_ne!(long, partition("bucket", &"x".repeat(1 << 20)));
    }
}

//! DynamoDB table as the store of the quota (feature `aws`).

use aws_config::BehaviorVersion;
use aws_sdk_dynamodb::Client;
use aws_smithy_http_client::Builder;
use aws_smithy_http_client::tls::Provider;
use aws_smithy_http_client::tls::rustls_provider::CryptoMode;
use forebay_quota::DynamoStore;

use crate::run::StartError;

/// Returns a store in a table, which must exist. Region, credentials and endpoint come from the
/// sources of the AWS SDK. Sends no request to the table.
///
/// # Errors
/// Fails if no source has a region.
pub(crate) async fn open(table: &str, namespace: &str) -> Result<DynamoStore, StartError> {
    let http = Builder::new().tls_provider(Provider::Rustls(CryptoMode::Ring)).build_https();
    let sdk = aws_config::defaults(BehaviorVersion::latest()).http_client(http).load().await;
    if sdk.region().is_none() {
        return Err(StartError::AwsRegion { table: table.to_owned() });
    }
    let mut config = DynamoStore::client_config();
    config
        .set_region(sdk.region().cloned())
        .set_credentials_provider(sdk.credentials_provider())
        .set_endpoint_url(sdk.endpoint_url().map(ToOwned::to_owned));
    Ok(DynamoStore::new(Client::from_conf(config.build()), table, namespace))
}

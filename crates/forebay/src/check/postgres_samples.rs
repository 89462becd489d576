//! Sample requirements and catalog rows, for the tests of the checks of Postgres.

use super::catalog_row::CatalogRow;
use super::postgres_server::DatabaseRequirements;

pub(super) const REQUIREMENTS: DatabaseRequirements<'_> = DatabaseRequirements {
    slot: "forebay",
    publication: "forebay",
    manual_publication: false,
    pool_size: 20,
    max_pool_connections: 22,
    most_connections: None,
    is_pooled: false,
};

pub(super) fn row(pairs: &[(&str, &str)]) -> CatalogRow {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

//! Members that share a DynamoDB.

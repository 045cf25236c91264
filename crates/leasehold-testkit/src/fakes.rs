//! In-memory servers for tests. They implement just enough for a lock, and misbehave as the test asks.

pub mod gcs;
pub mod s3;

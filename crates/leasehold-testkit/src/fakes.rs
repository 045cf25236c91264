//! Servers in the memory of a test: they speak just enough for a lock, and are wrong in the ways that it asks for.

pub mod gcs;
pub mod s3;

//! Streams, shards, segments, ownership and retention.

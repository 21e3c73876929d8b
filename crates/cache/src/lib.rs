//! A replicated in-memory cache that is read one-sidedly.

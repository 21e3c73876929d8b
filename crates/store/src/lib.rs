//! Durable segments: local files filled behind the journal.

//! End-to-end load, the papers' experiments, peers side by side.

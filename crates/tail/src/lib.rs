//! One growing file in two layers: its writer, and its reader over any durable source.

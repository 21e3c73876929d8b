//! One server process: configuration, roles, wiring, admin HTTP, metrics.

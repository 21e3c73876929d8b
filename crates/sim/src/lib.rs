//! The seeded world behind env: its executor, disk, regions and checkers.

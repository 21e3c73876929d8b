//! One sequential write-ahead file with group commit, recovery and latched failure.

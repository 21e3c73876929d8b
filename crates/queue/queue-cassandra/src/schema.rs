//! The tables.
//!
//! | table | partition | row |
//! |---|---|---|
//! | `tuples` | queue, bucket of visible_at, part | visible_at, number |
//! | `bodies` | queue, bucket of when it was sent, part | number |
//! | `buckets` | queue, kind | bucket |
//! | `floors` | queue, kind | |
//! | `forwards` | queue, number | receive; gone after half a day |
//! | `letters` | queue, number | queue and number as a dead letter, the latest first; gone after half a day |
//! | `records` | space | key; written by conditional writes only |
//! | `groups` | queue, group | cell; written by conditional writes only, of several cells at once |
//! | `reports` | one | front end; gone after a quarter of an hour |
//!
//! What was deleted is kept for a day before its deletion is forgotten: a replica that was down for longer has to be
//! repaired, or made anew, before it comes back.

use crate::CassandraConfig;

/// How many copies a keyspace has, as CQL says it.
pub(crate) fn replication(config: &CassandraConfig) -> String {
    if config.datacenters.is_empty() {
        return format!("{{'class': 'SimpleStrategy', 'replication_factor': {}}}", config.replicas);
    }
    let copies = config.datacenters.iter().map(|(name, copies)| format!(", '{name}': {copies}"));
    format!("{{'class': 'NetworkTopologyStrategy'{}}}", copies.collect::<String>())
}

/// What is created in the keyspace.
pub(crate) const TABLES: [(&str, &str); 9] = [
    (
        "tuples",
        "(queue bigint, bucket bigint, part int, visible_at bigint, number bigint, moves int, receives int, \
         first_received_at bigint, received_at bigint, PRIMARY KEY ((queue, bucket, part), visible_at, number)) \
         WITH gc_grace_seconds = 86400",
    ),
    (
        "bodies",
        "(queue bigint, bucket bigint, part int, number bigint, content blob, source text, origin bigint, \
         grp bigint, PRIMARY KEY ((queue, bucket, part), number)) WITH gc_grace_seconds = 86400",
    ),
    (
        "buckets",
        "(queue bigint, kind int, bucket bigint, PRIMARY KEY ((queue, kind), bucket)) \
         WITH gc_grace_seconds = 86400",
    ),
    ("floors", "(queue bigint, kind int, bucket bigint, PRIMARY KEY ((queue, kind)))"),
    (
        "forwards",
        "(queue bigint, number bigint, receive bigint, visible_at bigint, moves bigint, \
         PRIMARY KEY ((queue, number), receive)) WITH default_time_to_live = 50000 AND gc_grace_seconds = 86400",
    ),
    (
        "letters",
        "(queue bigint, number bigint, target bigint, letter bigint, bucket bigint, part int, \
         PRIMARY KEY ((queue, number), target, letter)) \
         WITH CLUSTERING ORDER BY (target DESC, letter DESC) AND default_time_to_live = 50000 AND gc_grace_seconds = 86400",
    ),
    (
        "groups",
        "(queue bigint, grp bigint, cell blob, value blob, version bigint, PRIMARY KEY ((queue, grp), cell)) \
         WITH gc_grace_seconds = 86400",
    ),
    (
        "reports",
        "(part int, front bigint, number bigint, value blob, PRIMARY KEY ((part), front)) \
         WITH gc_grace_seconds = 3600",
    ),
    ("records", "(space text, key text, value blob, version bigint, PRIMARY KEY ((space), key))"),
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn copies_are_counted_by_data_center_where_some_are_named() {
        let anywhere = CassandraConfig::default();
        assert_eq!(replication(&anywhere), "{'class': 'SimpleStrategy', 'replication_factor': 3}");
        let eu = CassandraConfig { datacenters: BTreeMap::from([("eu".to_owned(), 2)]), ..anywhere };
        assert_eq!(replication(&eu), "{'class': 'NetworkTopologyStrategy', 'eu': 2}");
    }
}

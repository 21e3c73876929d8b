//! What a fuzzer runs: plans that other clusters send, and clusters as the metadata has them.

use tailwater_format::{Offset, StreamId};
use tailwater_log::{CopyRecord, LogStreamInfo, StreamConfig};
use uuid::Uuid;

use crate::clusters::KnownCluster;
use crate::plan::{CopyTree, Fork, TreeEdge};

/// A plan.
pub fn plans(data: &[u8]) {
    let plan = match CopyTree::decode(data) {
        Ok(plan) => plan,
        Err(why) => return assert!(!why.is_empty()),
    };
    assert_eq!(CopyTree::decode(&plan.to_bytes()).as_ref(), Ok(&plan));
    assert!(!plan.is_later_than(&plan) && plan.common_ends(&plan).is_none());
    let before = CopyTree { forks: vec![], moves: 0, ..plan.clone() };
    let ends = before.common_ends(&plan);
    assert_eq!(ends.is_some(), !plan.forks.is_empty());
    plan.lineage();
    for edge in &plan.hops {
        assert_eq!(plan.above(&edge.to), Some(&*edge.from), "nobody has two clusters above");
        plan.address(&edge.to);
        // Each cluster of the tree may become its source, and be left out.
        assert_eq!(plan.hops_from(&edge.to).len(), plan.hops.len());
        plan.hops_around(&edge.to);
    }
}

/// A cluster: its name, a zero, and what is kept of it.
pub fn clusters(data: &[u8]) {
    let Some(at) = data.iter().position(|byte| *byte == 0) else { return };
    let Ok(name) = std::str::from_utf8(&data[..at]) else { return };
    let key = KnownCluster::key(name);
    match KnownCluster::decode(&key, &data[at + 1..]) {
        Ok(known) => assert_eq!(KnownCluster::decode(&key, &known.encode()).as_ref(), Ok(&known)),
        Err(why) => assert!(!why.to_string().is_empty()),
    }
}

/// Bytes for [`plans`], and for [`clusters`].
pub fn seeds() -> (Vec<Vec<u8>>, Vec<Vec<u8>>) {
    let known = |name: &str| KnownCluster::new(name, "10.0.0.5:7420").expect("an address");
    let stream = LogStreamInfo {
        id: StreamId(Uuid::from_u128(7)),
        name: "news".to_owned(),
        created_ms: 3,
        config: StreamConfig::default(),
        source: None,
    };
    let edge = |from: &str, to: &str| TreeEdge { from: from.to_owned(), to: to.to_owned() };
    let plan = CopyTree {
        moves: 1,
        number: 5,
        source: "a".to_owned(),
        stream: CopyRecord::new(&stream, "a"),
        hops: vec![edge("a", "b"), edge("b", "c"), edge("a", "d")],
        clusters: ["a", "b", "c", "d"].map(known).to_vec(),
        forks: vec![Fork { lineage: 9, ends: vec![Offset(4)] }],
    };
    let alone = CopyTree { hops: vec![], forks: vec![], moves: 0, ..plan.clone() };
    let cluster = [b"a\0".as_slice(), &known("a").encode()].concat();
    (vec![plan.to_bytes().to_vec(), alone.to_bytes().to_vec()], vec![cluster])
}

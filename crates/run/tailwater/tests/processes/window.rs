//! The window: one process that reads for others.

use std::fs::File;
use std::path::PathBuf;
use std::process::Stdio;

use rustix::process::{Pid, Signal, kill_process};

use crate::support::{Follower, Node, wait_for};

/// A consumer in a process of its own, and what it tells of how it reads.
pub(crate) struct Reader {
    follower: Follower,
    stats: PathBuf,
    next_offset: [u64; 2],
}

impl Reader {
    pub(crate) fn start(node: &Node, name: &str) -> Self {
        let stats = node.dir.with_extension(name);
        let mut command = node.command(&["consume", "s", "--format", "%s %o %v\\n", "--stats=1"]);
        let errors = Stdio::from(File::create(&stats).expect("a file"));
        Self { follower: Follower::with_errors_to(&mut command, errors), stats, next_offset: [0; 2] }
    }

    /// Reads so many records, which have to be the next ones of their shards.
    pub(crate) fn read(&mut self, count: usize) {
        for _ in 0..count {
            let line = self.follower.next();
            let mut words = line.split(' ');
            let mut number = || words.next().and_then(|word| word.parse::<u64>().ok()).expect("a number");
            let (shard, offset) = (number() as usize, number());
            assert_eq!(offset, self.next_offset[shard], "of shard {shard}: {line}");
            assert_eq!(words.next(), Some("value"));
            self.next_offset[shard] += 1;
        }
    }

    /// Bytes that it says came through a window.
    pub(crate) fn window_bytes(&self) -> u64 {
        self.told(|line| line.strip_suffix(" through a window")?.rsplit(' ').next()?.parse().ok())
    }

    /// Bytes that it says it read from the cells by itself.
    pub(crate) fn own_bytes(&self) -> u64 {
        self.told(|line| line.split_once("bytes: ")?.1.split_once(" from cells")?.0.parse().ok())
    }

    fn told(&self, number: impl FnMut(&str) -> Option<u64>) -> u64 {
        let told = std::fs::read_to_string(&self.stats).expect("its standard error");
        told.lines().rev().find_map(number).unwrap_or(0)
    }
}

/// The process id of a node's window.
fn window_of(node: &Node) -> Option<Pid> {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", node.process.id())).expect("the node runs");
    let children =
        tasks.flatten().filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok());
    let children: Vec<i32> = children
        .flat_map(|ids| ids.split(' ').filter_map(|id| id.parse().ok()).collect::<Vec<_>>())
        .collect();
    let is_window = |id: &i32| {
        let command = std::fs::read(format!("/proc/{id}/cmdline")).unwrap_or_default();
        command.split(|byte| *byte == 0).nth(1) == Some(b"window")
    };
    children.into_iter().find(is_window).and_then(Pid::from_raw)
}

/// A window that reads for so many processes and more.
fn window_from(processes: &str) -> [(&str, &str); 2] {
    [("TAILWATER_LISTEN__WINDOW", "true"), ("TAILWATER_LISTEN__WINDOW_FROM", processes)]
}

/// Records of a [`round`].
pub(crate) const ROUND: usize = 200;

/// Appends some records.
pub(crate) fn round(node: &Node) {
    node.produce("s", &vec!["value".to_owned(); ROUND]);
}

#[test]
fn consumers_that_read_through_a_window_get_every_record_in_order_however_often_it_is_killed() {
    let dir = tempfile::tempdir().expect("a directory");
    let node = Node::start_with(&dir.path().join("data"), &[], &window_from("1"));
    node.run(&["stream", "create", "s", "--shards", "2"]);
    let mut readers: Vec<_> =
        (0..4).map(|number| Reader::start(&node, &format!("reader-{number}"))).collect();
    let mut killed = None;
    for _ in 0..3 {
        // It is there, and another one than before.
        let window = wait_for("a window", || window_of(&node).filter(|window| Some(*window) != killed));
        let before: Vec<u64> = readers.iter().map(Reader::window_bytes).collect();
        wait_for("the window to serve all readers", || {
            round(&node);
            readers.iter_mut().for_each(|reader| reader.read(ROUND));
            let mut served = readers.iter().zip(&before);
            served.all(|(reader, before)| reader.window_bytes() > *before).then_some(())
        });
        round(&node);
        kill_process(window, Signal::KILL).expect("it is there");
        readers.iter_mut().for_each(|reader| reader.read(ROUND));
        killed = Some(window);
    }
    assert!(node.process.log().contains("the window ended"), "{}", node.process.log());
}

/// More than one bell of a window wakes, which is 16.
const READERS_OF_TWO_BELLS: usize = 18;

#[test]
fn readers_of_several_bells_get_every_record_in_order_also_when_all_of_one_bell_leave() {
    let dir = tempfile::tempdir().expect("a directory");
    let node = Node::start_with(&dir.path().join("data"), &[], &window_from("1"));
    node.run(&["stream", "create", "s", "--shards", "2"]);
    wait_for("a window", || window_of(&node));
    let mut readers: Vec<_> =
        (0..READERS_OF_TWO_BELLS).map(|number| Reader::start(&node, &format!("reader-{number}"))).collect();
    let serves = |readers: &mut Vec<Reader>, what: &str| {
        let before: Vec<u64> = readers.iter().map(Reader::window_bytes).collect();
        wait_for(what, || {
            round(&node);
            readers.iter_mut().for_each(|reader| reader.read(ROUND));
            let mut served = readers.iter().zip(&before);
            served.all(|(reader, before)| reader.window_bytes() > *before).then_some(())
        });
    };
    serves(&mut readers, "the window to serve the readers of two bells");
    // Those that came first have the first bell.
    readers.drain(..READERS_OF_TWO_BELLS - 2);
    serves(&mut readers, "the window to serve those of the second bell");
    readers.push(Reader::start(&node, "late"));
    let read_by_others = readers[0].next_offset.iter().sum::<u64>() as usize;
    readers[2].read(read_by_others);
    serves(&mut readers, "the window to serve one that came into the place of those who left");
}

#[test]
fn a_window_that_is_stopped_and_answers_nobody_costs_its_readers_no_record() {
    let dir = tempfile::tempdir().expect("a directory");
    let node = Node::start_with(&dir.path().join("data"), &[], &window_from("1"));
    node.run(&["stream", "create", "s", "--shards", "2"]);
    let mut reader = Reader::start(&node, "reader");
    let window = wait_for("a window", || window_of(&node));
    wait_for("the window to serve", || {
        round(&node);
        reader.read(ROUND);
        (reader.window_bytes() > 0).then_some(())
    });
    kill_process(window, Signal::STOP).expect("it is there");
    for _ in 0..3 {
        round(&node);
        reader.read(ROUND);
    }
    kill_process(window, Signal::CONT).expect("it is there");
    let before = reader.window_bytes();
    wait_for("the window to serve again", || {
        round(&node);
        reader.read(ROUND);
        (reader.window_bytes() > before).then_some(())
    });
}

#[test]
fn a_window_reads_for_others_once_there_are_enough_of_them_and_leaves_the_few_to_themselves() {
    let dir = tempfile::tempdir().expect("a directory");
    let node = Node::start_with(&dir.path().join("data"), &[], &window_from("3"));
    node.run(&["stream", "create", "s", "--shards", "2"]);
    wait_for("a window", || window_of(&node));
    let mut readers: Vec<_> = (0..2).map(|number| Reader::start(&node, &format!("few-{number}"))).collect();
    for _ in 0..3 {
        round(&node);
        readers.iter_mut().for_each(|reader| reader.read(ROUND));
    }
    assert!(readers.iter().all(|reader| reader.window_bytes() == 0), "two are too few");
    readers.push(Reader::start(&node, "third"));
    // It begins where the others began.
    readers[2].read(3 * ROUND);
    wait_for("the window to serve all three", || {
        round(&node);
        readers.iter_mut().for_each(|reader| reader.read(ROUND));
        readers.iter().all(|reader| reader.window_bytes() > 0).then_some(())
    });
    let metric = |name: &str| node.metric(name).expect("it is on the page");
    wait_for("the metrics to tell of them", || {
        let told = ["up", "readers", "readers_fed", "shards"]
            .map(|what| metric(&format!("tailwater_window_{what}")));
        (told == [1.0, 3.0, 3.0, 2.0]).then_some(())
    });
    assert!(metric("tailwater_window_publications_total") > 0.0);
    assert!(metric("tailwater_window_bytes_total") > 0.0);
    readers.truncate(1);
    // The window hears that two have left, and says so to the one that stays. It reads on by itself, without a gap.
    let before = readers[0].own_bytes();
    wait_for("the one that stays to read by itself", || {
        round(&node);
        readers[0].read(ROUND);
        (readers[0].own_bytes() > before).then_some(())
    });
}

#[test]
fn a_node_without_a_window_starts_none_and_its_consumers_read_by_themselves() {
    let dir = tempfile::tempdir().expect("a directory");
    let node = Node::start_with(&dir.path().join("data"), &[], &[("TAILWATER_LISTEN__WINDOW", "false")]);
    node.run(&["stream", "create", "s", "--shards", "2"]);
    let mut reader = Reader::start(&node, "reader");
    for _ in 0..3 {
        round(&node);
        reader.read(ROUND);
    }
    assert_eq!(window_of(&node), None);
    assert!(!node.dir.join("node.window").exists());
    assert_eq!(reader.window_bytes(), 0);
}

#[test]
fn a_window_ends_with_its_node_however_that_ends() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut node = Node::start_with(&dir.path().join("data"), &[], &window_from("8"));
    let is_gone = |window: Pid| {
        let state = std::fs::read_to_string(format!("/proc/{}/stat", window.as_raw_nonzero()));
        // One that nobody has asked for its end is there, and runs no more.
        state.map_or(true, |state| state.rsplit_once(')').is_some_and(|(_, rest)| rest.starts_with(" Z")))
    };
    let window = wait_for("a window", || window_of(&node));
    node.process.kill();
    wait_for("the window to end", || is_gone(window).then_some(()));
    node.restart();
    let window = wait_for("a window", || window_of(&node));
    assert!(node.process.stop(), "the window does not keep it");
    wait_for("the window to end", || is_gone(window).then_some(()));
}

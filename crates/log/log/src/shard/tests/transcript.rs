//! Transcripts: what happens to a shard, line by line, and below each line what the shard puts out (`->`).
//!
//! | a line | is |
//! |---|---|
//! | `append a 3` | an append of three records, called `a` in its reply |
//! | ` ... as 7/0/2` | it has a producer, that one's epoch, and a sequence number |
//! | ` ... term 3`, ` ... ids 5,9`, ` ... explicit` | it expects a term, has timestamps, and they are transaction ids |
//! | `begun with a 3 ...` | that append as the first one of a new shard, and `all`: one entry, in the first segment |
//! | `filled 2` | appends that make two full segments of 30 records, and an open one of 15; what is put out is not shown |
//! | `entry a 3 at 7 of 2` | a copy is given its source's entry of three records, at offset 7, of term 2 |
//! | `begin 40` | a copy is to go on at offset 40, as its source has removed what is before it |
//! | `truncate 40`, `close`, `proceed`, `tick`, `delete`, `lost WHY` | that input |
//! | `wrote` | the store takes the entry; its record in the journal ends ten bytes behind the last one |
//! | `refused busy` | it does not; or it is `full`, `failed`, `fenced`, or the segment is `over` |
//! | `written 20`, `synced 20` | the journal is written or synced up to there; without a number, all of it |
//! | `committed` | metadata does what it was asked to, or finds a conflict |
//! | `uncommitted WHY` | nothing is done (`unavailable`, `refused`), or it is and nobody answers (`unanswered`) |
//! | `replaced 5` | another owner claims term 5 in metadata |
//! | `cold 50` | the node has cold storage, and keeps copies of removed segments for 50 ms |
//! | `copied 3` | segment 3 was copied to cold storage |
//! | `restore 40` | somebody wants what was removed back, from offset 40 on |
//! | `+20` | 20 ms pass |
//! | `all` | `proceed`; `wrote` and `committed` as often as asked; `synced`; and again |
//! | `restart` | the process is killed, and the next one recovers the shard and opens it |
//! | `restart unanswered` | the same, after metadata has done what it was asked to, and before the shard hears of it |
//! | `lead 7` | the closed shard is taken from its owner, and opened as its stream's source, whose terms are 7 at least |
//! | `follow` | the same, as a copy of another cluster's |
//!
//! Several in one line are separated by `;`, what stands behind `#` is a remark. A segment is `NUMBER.TERM`, `4.2@345`
//! byte 345 of it, and `3..5` are the records with offsets 3 and 4.

use super::super::*;
use super::world::{World, batch, checked};
use crate::batches::TransactionIds;
use crate::stream::ShardRecord;

fn segment(id: &SegmentId) -> String {
    format!("{}.{}", id.number, id.term)
}

/// A tail on one line.
pub(super) fn tail(what: &str, tail: &Tail) -> String {
    let sealed = if tail.sealed { ", sealed" } else { "" };
    let previous = tail.previous.map(|(number, term, end)| format!(", behind {number}.{term}@{end}"));
    format!(
        "{what} {}.{}@{}{sealed}, records {}..{}{}",
        tail.segment,
        tail.term,
        tail.durable,
        tail.log_start,
        tail.next_offset,
        previous.unwrap_or_default()
    )
}

fn completed(segment: &SegmentRecord) -> String {
    let SegmentRecord { number, term, length, base_offset, next_offset, cold, .. } = segment;
    let cold = cold.map_or("", |cold| if cold.is_released { ", cold" } else { ", copied" });
    format!("{number}.{term}@{length} of {base_offset}..{next_offset}{cold}")
}

/// The completed segments on one line.
pub(super) fn list<'a>(segments: impl Iterator<Item = &'a SegmentRecord>) -> String {
    let segments: Vec<String> = segments.map(completed).collect();
    format!("show completed [{}]", segments.join("; "))
}

fn change(change: &Change) -> String {
    let ShardRecord { term, log_start, next_segment, .. } = &change.record;
    let mut text = format!(
        "commit behind {}: term {term}, starts {log_start}, next segment {next_segment}",
        change.version
    );
    for segment in &change.completed {
        text += &format!("; completed {}", completed(segment));
    }
    for number in &change.deleted {
        text += &format!("; deleted {number}");
    }
    for segment in &change.updated {
        text += &format!("; now {}", completed(segment));
    }
    for truncated in &change.truncated {
        text += &format!("; kept {}", truncated.segment.number);
    }
    for number in &change.forgotten {
        text += &format!("; forgotten {number}");
    }
    for segment in &change.restored {
        text += &format!("; restored {}", completed(segment));
    }
    if let Some(producers) = change.producers.as_ref().filter(|producers| !producers.producers.is_empty()) {
        text += &format!("; producers up to {}: {}", producers.upto, producers.producers.len());
    }
    text
}

/// A reply on one line.
pub(super) fn reply(name: &str, result: &Result<AppendAnswer, AppendError>) -> String {
    match result {
        Ok(AppendAnswer { base_offset, last_offset, term, dlsn, .. }) => {
            let dlsn = dlsn.map_or_else(|| "a duplicate".to_owned(), |dlsn| dlsn.to_string());
            format!("reply {name}: {base_offset} to {last_offset} in term {term}, {dlsn}")
        }
        Err(error) => format!("reply {name}: {error}"),
    }
}

/// An output on one line, but for a reply.
pub(super) fn output(output: &Output) -> Option<String> {
    Some(match output {
        Output::Write(Write { segment: id, create, position, bytes, sync, .. }) => {
            let header = tailwater_format::parse_entry_header(bytes).expect("an entry");
            let (base, next, transaction) = (header.base_offset, header.next_offset(), header.transaction_id);
            let create = if *create { "create and " } else { "" };
            let sync = if *sync { ", sync" } else { "" };
            format!("{create}write {}@{position} of {base}..{next} up to id {transaction}{sync}", segment(id))
        }
        Output::Sync(upto) => format!("sync {}", upto.0),
        Output::Commit(wanted) => change(wanted),
        Output::WakeAt(None) => "wake never".to_owned(),
        Output::WakeAt(Some(at)) => format!("wake at {} ms", at.as_ns() / 1_000_000),
        Output::Reply(..) => return None,
        Output::Extend { segment: id, base_offset, bytes, durable, tail, .. } => {
            let from = durable.get().0 - bytes.len() as u64;
            format!("extend {}@{from} with {base_offset}..{}", segment(id), tail.next_offset)
        }
        Output::Took { base_offset, next_offset, .. } => format!("took {base_offset}..{next_offset}"),
        Output::Ahead { segment: id, bytes, source_durable, .. } => {
            let from = source_durable.get().0 - bytes.len() as u64;
            let header = tailwater_format::parse_entry_header(bytes).expect("an entry");
            format!("ahead {}@{from} with {}..{}", segment(id), header.base_offset, header.next_offset())
        }
        Output::CaughtUp(update, _) => tail("caught up", update),
        Output::Update(update) => tail("update", update),
        Output::Seal(id, length) => format!("seal {}@{length}", segment(id)),
        Output::Delete(id) => format!("delete {}", segment(id)),
        Output::Discard(id) => format!("discard {}", segment(id)),
        Output::NameCopy(id, ..) => format!("name the copy of {}", segment(id)),
        Output::HideCopy(id) => format!("hide the copy of {}", segment(id)),
        Output::RemoveCopy(id, _) => format!("remove the copy of {}", segment(id)),
        Output::Truncated(truncation, Ok(start)) => {
            format!("truncated {}: starts {start}", truncation.before)
        }
        Output::Truncated(truncation, Err(error)) => format!("truncated {}: {error}", truncation.before),
        Output::Restored(_, Ok(start)) => format!("restored: starts {start}"),
        Output::Restored(_, Err(error)) => format!("restored: {error}"),
        Output::Begun(begin, Ok(())) => format!("begun at {}", begin.offset),
        Output::Begun(begin, Err(error)) => format!("begun at {}: {error}", begin.offset),
        Output::Closed => "closed".to_owned(),
    })
}

/// Goes through a transcript with a new shard.
pub(super) fn transcript(config: StreamConfig, text: &str) -> World {
    let mut world = World::new(config);
    go_on(&mut world, text);
    world
}

/// Goes through a transcript with a new shard of a copy.
pub(super) fn copy_transcript(config: StreamConfig, text: &str) -> World {
    let mut world = World::new(config).of_copy();
    go_on(&mut world, text);
    world
}

/// Goes through a transcript.
fn go_on(world: &mut World, text: &str) {
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let mut found = Vec::new();
    for line in lines.iter().filter(|line| !line.starts_with("->")) {
        found.push((*line).to_owned());
        world.lines.lock().clear();
        take_in(world, line.split('#').next().unwrap_or_default());
        found.extend(world.lines.lock().drain(..).map(|line| format!("-> {line}")));
    }
    // Shown whole, so that it can be compared by eye, and put in place of what was there.
    assert!(lines == found, "this is what happens:\n{}\n", found.join("\n"));
}

/// Goes through what a line says happens.
pub(super) fn take_in(world: &mut World, line: &str) {
    for event in line.split(';').map(str::trim).filter(|event| !event.is_empty()) {
        happens(world, event);
    }
}

fn happens(world: &mut World, event: &str) {
    happen(world, event);
    world.check_readable();
}

fn happen(world: &mut World, event: &str) {
    let (what, rest) = event.split_once(' ').unwrap_or((event, ""));
    let number = || rest.parse::<u64>().expect("a number");
    let upto = |world: &World| EntryPlace(if rest.is_empty() { world.journal } else { number() });
    match what {
        "append" => append(world, rest),
        "begun" => begun(world, rest.strip_prefix("with ").expect("what it begins with")),
        "filled" => filled(world, number()),
        "entry" => entry(world, rest),
        "begin" => world.begin(Offset(number())),
        "truncate" => {
            let (reply, _) = tokio::sync::oneshot::channel();
            world.step(ShardInput::Truncate(Truncation { before: Offset(number()), reply }));
        }
        "cold" => world.shard.cold = Some(ShardCold { kept_ms: number() }),
        "copied" => world.copied(SegmentNumber(number())),
        "restore" => world.restore(Offset(number())),
        "close" => world.step(ShardInput::Close),
        "proceed" => world.step(ShardInput::Proceed),
        "tick" => world.step(ShardInput::Tick),
        "delete" => world.step(ShardInput::Delete),
        "lost" => world.lose(rest),
        "wrote" => world.wrote(),
        "refused" => world.refuse(match rest {
            "busy" => WriteError::Busy("slow disk"),
            "full" => WriteError::NoSpace("3 bytes free".into()),
            "failed" => WriteError::Unavailable("broken disk".into()),
            "fenced" => WriteError::Fenced,
            "over" => WriteError::Over("the journal lost records".into()),
            _ => panic!("no such refusal: {rest}"),
        }),
        "written" => world.step(ShardInput::Written(upto(world))),
        "synced" => world.step(ShardInput::Synced(upto(world))),
        "committed" => world.commit(),
        "uncommitted" => {
            let error = match rest {
                "unavailable" => ChangeError::Unavailable("no answer".into()),
                "unanswered" => {
                    world.commit_unanswered().expect("nobody else is there");
                    ChangeError::Unavailable("no answer".into())
                }
                "refused" => ChangeError::Refused("the value has 2 MiB".into()),
                _ => panic!("no such answer: {rest}"),
            };
            world.asked_meta = None;
            world.step(ShardInput::Committed(Err(error)));
        }
        "replaced" => {
            let (record, version) = world.record.unwrap_or_default();
            let term = Term(u32::try_from(number()).expect("a term"));
            world.record = Some((ShardRecord { term, owner: 1, ..record }, version + 1));
        }
        "all" => world.settle_all(),
        "lead" => world.move_source(None, Term(u32::try_from(number()).expect("a term"))),
        "follow" => world.move_source(Some("elsewhere".to_owned()), Term(0)),
        "restart" => {
            if rest == "unanswered" {
                world.commit_unanswered().expect("nobody else is there");
            }
            world.restart();
        }
        _ => {
            let later_ms = what.strip_prefix('+').and_then(|ms| ms.parse::<u64>().ok());
            world.now_ms += later_ms.unwrap_or_else(|| panic!("nothing happens like this: {event}"));
        }
    }
}

/// A first append, which is answered. What is put out for it is always the same, and not shown.
fn begun(world: &mut World, text: &str) {
    append(world, text);
    world.settle_all();
    let Tail { durable, next_offset, .. } = world.shard.tail();
    let name = text.split(' ').next().unwrap_or_default();
    let expected = [
        "commit behind 0: term 1, starts 0, next segment 0".to_owned(),
        format!("create and write 0.1@0 of 0..{next_offset} up to id 5, sync"),
        format!("show 0.1@{durable}, records 0..{next_offset}"),
        format!("extend 0.1@0 with 0..{next_offset}"),
        format!("reply {name}: 0 to {} in term 1, 0/0/0", next_offset.0 - 1),
    ];
    assert_eq!(world.lines.lock().drain(..).collect::<Vec<_>>(), expected);
}

/// Full segments and an open one, of a shard with segments of two entries of 15 records.
fn filled(world: &mut World, segments: u64) {
    for _ in 0..segments * 2 + 1 {
        append(world, "a 15");
        world.settle_all();
    }
    assert_eq!(world.shard.completed().count() as u64, segments, "segments are short");
    world.lines.lock().clear();
}

/// An entry of a copy's source.
fn entry(world: &mut World, text: &str) {
    let [name, count, "at", offset, "of", term] = text.split(' ').collect::<Vec<_>>()[..] else {
        panic!("no entry is like this: {text}")
    };
    let number = |text: &str| text.parse::<u32>().expect("a number");
    let copied = CopiedTo { base_offset: Offset(number(offset).into()), term: Term(number(term)) };
    let bytes = batch(&vec![5; number(count) as usize], None);
    drop(world.offer_copied(name, checked(bytes, TransactionIds::RunningMaximum), copied));
}

fn append(world: &mut World, text: &str) {
    let mut words = text.split(' ');
    let name = words.next().expect("a name");
    let count = words.next().and_then(|count| count.parse().ok()).expect("a count");
    let (mut timestamps, mut producer, mut term) = (vec![5; count], None, None);
    let mut ids = TransactionIds::RunningMaximum;
    while let Some(word) = words.next() {
        let mut numbers = |by: char| -> Vec<i64> {
            let numbers = words.next().expect("numbers").split(by);
            numbers.map(|number| number.parse().expect("a number")).collect()
        };
        match word {
            "as" => {
                let [id, epoch, sequence] = numbers('/')[..] else { panic!("producer, epoch and sequence") };
                producer = Some((id, epoch as i16, sequence as i32));
            }
            "term" => term = Some(Term(numbers(' ')[0] as u32)),
            "ids" => timestamps = numbers(','),
            "explicit" => ids = TransactionIds::Explicit,
            _ => panic!("no append is like this: {text}"),
        }
    }
    world.offer(name, checked(batch(&timestamps, producer), ids), term);
}

//! Every input that there is, and new ones made of them: what the fuzzer has found stays found.

#![allow(clippy::disallowed_methods)] // it looks at the real clock, and runs threads of its own

use std::path::Path;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use tailwater_env::panics;
use tailwater_fuzz::corpus::{findings, inputs};
use tailwater_fuzz::mutate::Mutator;
use tailwater_fuzz::{FuzzTarget, find, targets};

/// How long new inputs are made for each target, unless `FUZZ_SECONDS` says otherwise.
const SECONDS: u64 = 5;

/// Runs an input; how to repeat it, if something does not hold.
fn run(target: &FuzzTarget, input: &[u8], what: &str) -> Result<(), String> {
    panics::catch(|| target.check(input)).map_err(|panic| {
        let why = panic.downcast_ref::<String>().map(String::as_str);
        let why = why.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic");
        let path = std::env::temp_dir().join(format!("tailwater-fuzz-{}", target.name));
        let kept = std::fs::write(&path, input)
            .map_or_else(|error| error.to_string(), |()| path.display().to_string());
        format!(
            "{what} of {}: {why}\n  cargo run -p tailwater-fuzz --bin tailwater-fuzz -- run {} {kept}",
            target.name, target.name
        )
    })
}

/// Runs `check` for each target, on as many threads as there are cores.
fn for_each_target(check: impl Fn(&FuzzTarget) -> Result<(), String> + Sync) {
    let (left, failed) = (Mutex::new(targets()), Mutex::new(Vec::new()));
    let threads = std::thread::available_parallelism().map_or(2, usize::from);
    let work = || {
        loop {
            let Some(target) = left.lock().expect("nobody panics with it").pop() else { return };
            if let Err(why) = check(&target) {
                failed.lock().expect("nobody panics with it").push(why);
            }
        }
    };
    std::thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(work))));
    let failed = failed.into_inner().expect("nobody panicked with it");
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

#[test]
fn what_is_in_a_corpus_or_was_once_found_is_read_or_refused() {
    for_each_target(|target| {
        for (name, input) in findings(target) {
            run(target, &input, &format!("the finding {name}"))?;
        }
        inputs(target).iter().try_for_each(|input| run(target, input, "an input"))
    });
}

/// Otherwise nobody would run what is kept under the name that a target had once.
#[test]
fn each_corpus_and_each_directory_of_findings_is_of_a_target() {
    for kept in ["corpus", "findings"] {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join(kept);
        for entry in std::fs::read_dir(dir).expect("it is there") {
            let name = entry.expect("an entry").file_name();
            let is_known = name.to_str().is_some_and(|name| find(name).is_some());
            assert!(is_known, "{kept}/{} is of no target: rename it as the target", name.display());
        }
    }
}

/// The same ones each time, as far as it gets.
#[test]
fn new_inputs_made_of_those_are_read_or_refused() {
    let seconds = std::env::var("FUZZ_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(SECONDS);
    for_each_target(|target| {
        let (inputs, mut mutator) = (inputs(target), Mutator::new(1));
        let until = Instant::now() + Duration::from_secs(seconds);
        while Instant::now() < until {
            run(target, &mutator.next(&inputs), "a new input")?;
        }
        Ok(())
    });
}

#[test]
fn a_target_that_takes_more_memory_than_it_may_is_told() {
    let target = FuzzTarget {
        run: |data| drop(vec![0_u8; data.len() << 20]),
        memory_bytes: 1 << 20,
        memory_per_byte: 64,
        ..targets().remove(0)
    };
    run(&target, &[0], "a small input").expect("a megabyte may be taken");
    let told = run(&target, &[0; 3], "an input").expect_err("three megabytes");
    assert!(told.contains("bytes of memory for 3 given"), "{told}");
}

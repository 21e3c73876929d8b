//! Many consumers over TCP: how many of them keep up.

use serde_json::Value;

use super::Effort;
use super::append::PeerGathering;
use super::markdown::MarkdownTable;
use super::peers::{Peer, Server, words};
use super::runner::{Missing, Runner, number};
use super::search::largest;
use super::series::Series;
use crate::charts::{self, Curve, Row};

const RATE_MBIT: u32 = 240;
/// No search goes beyond it.
const CONSUMERS_MAX: usize = 4_096;
/// How long a run that does not keep up may take longer than it should, in seconds, beside what every run may.
const BEHIND_S: u64 = 120;

#[derive(Clone, Copy, PartialEq, Eq)]
enum ComparedSystem {
    TailwaterEach,
    TailwaterShared,
    KafkaClient,
    KafkaMinimal,
    Nats,
}

const SYSTEMS: [ComparedSystem; 5] = [
    ComparedSystem::TailwaterEach,
    ComparedSystem::KafkaClient,
    ComparedSystem::KafkaMinimal,
    ComparedSystem::TailwaterShared,
    ComparedSystem::Nats,
];

/// What a system is run with: arguments, and the same for people.
#[derive(Clone)]
struct Setting {
    args: Vec<String>,
    name: String,
}

impl Setting {
    /// In the names of files.
    fn label(&self) -> String {
        let kept = |c: char| c.is_ascii_alphanumeric();
        let words = self.name.split(|c| !kept(c)).filter(|word| !word.is_empty());
        words.collect::<Vec<_>>().join("-")
    }
}

/// One run with some consumers.
struct FanoutAttempt {
    consumers: usize,
    keeps_up: bool,
    value: Value,
}

/// What a system brought.
struct Of {
    system: ComparedSystem,
    setting: Setting,
    /// How many consumers the next round begins with.
    begins_with: usize,
    /// The most consumers of each round; `None`: not even one.
    most: Vec<Option<usize>>,
    attempts: Vec<FanoutAttempt>,
    /// Why runs have no result.
    missing: Vec<Missing>,
}

/// What all of them brought.
pub struct Results(Vec<Of>);

/// Runs all of them.
pub fn run(runner: &mut Runner, effort: &Effort) -> anyhow::Result<Results> {
    let mut results = Vec::new();
    for system in SYSTEMS {
        eprintln!("== fan-out over TCP, settings of {}", system.label());
        results.push(choose(runner, effort, system)?);
    }
    for round in 0..effort.rounds {
        runner.begin_round("fan-out over TCP", round);
        for of in &mut results {
            search(runner, effort, of)?;
        }
    }
    Ok(Results(results))
}

/// Searches the most consumers of every setting, and takes the setting that carries the most. Among those that carry as
/// many it is the one with the least CPU time.
fn choose(runner: &mut Runner, effort: &Effort, system: ComparedSystem) -> anyhow::Result<Of> {
    let settings = system.settings();
    let mut of = Of {
        system,
        setting: settings[0].clone(),
        begins_with: system.first(),
        most: Vec::new(),
        attempts: Vec::new(),
        missing: Vec::new(),
    };
    if settings.len() == 1 {
        return Ok(of);
    }
    let server = match system.start(runner)? {
        Ok(server) => server,
        Err(missing) => {
            of.missing.push(missing);
            return Ok(of);
        }
    };
    let mut best = (None, f64::MAX);
    let mut search = ConsumerSearch {
        effort,
        system,
        server: server.as_ref(),
        warmup_s: system.first_warmup_s(effort),
        duration_s: effort.choose_s,
    };
    for setting in settings.into_iter().take(effort.settings) {
        let label = format!("choose-{}-{}", system.label(), setting.label());
        let found = search.run(runner, (&label, &setting), system.first())?;
        let last = found.attempts.iter().find(|attempt| Some(attempt.consumers) == found.most);
        let carries = (found.most, last.map_or(f64::MAX, |attempt| cores(&attempt.value)));
        if is_better(carries, best) {
            best = carries;
            of.setting = setting;
            of.begins_with = found.most.unwrap_or(of.begins_with);
        }
        of.missing.extend(found.missing);
    }
    stop(runner, server);
    Ok(of)
}

/// Whether a setting that carries so many consumers, with so many cores, is better than another one.
fn is_better((most, cores): (Option<usize>, f64), (other, others_cores): (Option<usize>, f64)) -> bool {
    most > other || most == other && cores < others_cores
}

/// One round of one system.
fn search(runner: &mut Runner, effort: &Effort, of: &mut Of) -> anyhow::Result<()> {
    let system = of.system;
    let server = match system.start(runner)? {
        Ok(server) => server,
        Err(missing) => {
            of.missing.push(missing);
            return Ok(());
        }
    };
    let mut search = ConsumerSearch {
        effort,
        system,
        server: server.as_ref(),
        warmup_s: system.first_warmup_s(effort),
        duration_s: effort.attempt_s,
    };
    let found = search.run(runner, (system.label(), &of.setting), of.begins_with)?;
    if !found.attempts.is_empty() {
        of.most.push(found.most);
        // The next round begins where this one ended.
        of.begins_with = found.most.unwrap_or(of.begins_with);
    }
    of.attempts.extend(found.attempts);
    of.missing.extend(found.missing);
    stop(runner, server);
    Ok(())
}

/// What searches of a system have in common.
struct ConsumerSearch<'a> {
    effort: &'a Effort,
    system: ComparedSystem,
    server: Option<&'a Server>,
    /// Warm-up of the next run, in seconds.
    warmup_s: u64,
    duration_s: u64,
}

/// What a search found.
struct FoundConsumers {
    /// The most that keep up; `None`: not even one.
    most: Option<usize>,
    attempts: Vec<FanoutAttempt>,
    missing: Vec<Missing>,
}

impl ConsumerSearch<'_> {
    /// Searches the most consumers of a setting, `first` at first. Its runs have `label` in their names.
    fn run(
        &mut self,
        runner: &mut Runner,
        what: (&str, &Setting),
        first: usize,
    ) -> anyhow::Result<FoundConsumers> {
        let (mut attempts, mut missing) = (Vec::new(), Vec::new());
        let most = largest(first, CONSUMERS_MAX, self.effort.exact, |consumers| {
            let times = (self.warmup_s, self.duration_s);
            self.warmup_s = self.system.next_warmup_s(self.effort);
            match attempt(runner, self.system, self.server, what, consumers, times)? {
                Ok(value) => {
                    let keeps_up = value["keeps_up"] == true;
                    attempts.push(FanoutAttempt { consumers, keeps_up, value });
                    anyhow::Ok(keeps_up)
                }
                // A run that breaks does not keep up; that it broke is told besides.
                Err(why) => {
                    missing.push(why);
                    Ok(false)
                }
            }
        })?;
        Ok(FoundConsumers { most, attempts, missing })
    }
}

fn attempt(
    runner: &mut Runner,
    system: ComparedSystem,
    server: Option<&Server>,
    (label, setting): (&str, &Setting),
    consumers: usize,
    (warmup_s, duration_s): (u64, u64),
) -> anyhow::Result<Result<Value, Missing>> {
    let mut load =
        format!("fanout --consumers {consumers} --rate-mbit {RATE_MBIT} --duration-s {duration_s}");
    if system != ComparedSystem::Nats {
        load += &format!(" --warmup-s {warmup_s}");
    }
    let args = [words(&load), words(system.args()), setting.args.clone()].concat();
    let label = format!("tcp-{label}-{consumers}");
    let takes_s = 2 * (warmup_s + duration_s) + BEHIND_S;
    match server {
        None => runner.tailwater(&label, &args, takes_s),
        Some(server) => server.load(runner, &label, &args, takes_s),
    }
}

fn stop(runner: &mut Runner, server: Option<Server>) {
    if let Some(server) = server {
        server.stop(runner);
    }
}

/// Server and clients together, in cores.
fn cores(value: &Value) -> f64 {
    let [server, clients] = parts(value);
    server + clients
}

/// Server and clients, in cores. Tailwater's server is node and backends.
fn parts(value: &Value) -> [f64; 2] {
    match value.get("cpu_cores") {
        Some(_) => {
            let clients = number(value, "/cpu_cores/consumers") + number(value, "/cpu_cores/producer");
            [number(value, "/cpu_cores/node"), clients]
        }
        None => ["/cpu_s/server", "/cpu_s/clients"].map(|of| number(value, of) / number(value, "/wall_s")),
    }
}

impl ComparedSystem {
    /// In the names of files.
    fn label(self) -> &'static str {
        match self {
            ComparedSystem::TailwaterEach => "tailwater-connection-each",
            ComparedSystem::TailwaterShared => "tailwater-shared-reader",
            ComparedSystem::KafkaClient => "kafka-client",
            ComparedSystem::KafkaMinimal => "kafka-minimal",
            ComparedSystem::Nats => "nats",
        }
    }

    /// For people.
    fn name(self, runner: &Runner) -> String {
        let title = |peer: Peer, name| peer.title(name, runner.root());
        match self {
            ComparedSystem::TailwaterEach => "Tailwater, a connection for each".to_owned(),
            ComparedSystem::TailwaterShared => "Tailwater, a process shares its reader".to_owned(),
            ComparedSystem::KafkaClient => title(Peer::Kafka, "Kafka") + ", its Java client",
            ComparedSystem::KafkaMinimal => title(Peer::Kafka, "Kafka") + ", minimal reader",
            ComparedSystem::Nats => title(Peer::Nats, "NATS JetStream"),
        }
    }

    fn synced(self) -> &'static str {
        match self {
            ComparedSystem::TailwaterEach | ComparedSystem::TailwaterShared => "before readers see it",
            ComparedSystem::KafkaClient | ComparedSystem::KafkaMinimal => "before the acknowledgement",
            ComparedSystem::Nats => "not synced (its default)",
        }
    }

    /// What it is run with besides the load.
    fn args(self) -> &'static str {
        match self {
            // A process reads on one thread: two of them for two cores.
            ComparedSystem::TailwaterEach => {
                "--transport tcp --connection-each --processes 2 --every-us 5000"
            }
            ComparedSystem::TailwaterShared => "--transport tcp --every-us 5000 --validate consumer",
            ComparedSystem::KafkaClient => "--reader client",
            ComparedSystem::KafkaMinimal => "--reader minimal",
            ComparedSystem::Nats => "",
        }
    }

    /// Consumers that its search begins with: near what it is known to manage, so that few runs are wasted.
    fn first(self) -> usize {
        match self {
            ComparedSystem::TailwaterEach | ComparedSystem::KafkaClient => 16,
            ComparedSystem::TailwaterShared => 320,
            ComparedSystem::KafkaMinimal => 48,
            ComparedSystem::Nats => 4,
        }
    }

    /// How records are gathered: the same choice for everybody who has it.
    fn settings(self) -> Vec<Setting> {
        match self {
            ComparedSystem::TailwaterEach => [
                "--flush 5 --chunk-bytes 65536 --lengths-every-us 80000 --window-kib 4096",
                "--flush 5 --chunk-bytes 65536 --lengths-every-us 20000 --window-kib 2048",
                "--flush 5 --window-kib 2048",
                "--flush 20 --chunk-bytes 65536 --lengths-every-us 50000 --window-kib 2048",
            ]
            .map(|args| Setting { args: words(args), name: args.to_owned() })
            .to_vec(),
            ComparedSystem::TailwaterShared => ["5", "immediate", "1"]
                .map(|flush| Setting {
                    args: words(&format!("--flush {flush}")),
                    name: format!("--flush {flush}"),
                })
                .to_vec(),
            ComparedSystem::KafkaClient | ComparedSystem::KafkaMinimal => {
                PeerGathering::all().map(|one| Setting { args: one.args(), name: one.name() }).collect()
            }
            ComparedSystem::Nats => vec![Setting { args: Vec::new(), name: "-".to_owned() }],
        }
    }

    /// Its server, if that does not come with the load.
    fn start(self, runner: &mut Runner) -> anyhow::Result<Result<Option<Server>, Missing>> {
        let (peer, fsync) = match self {
            ComparedSystem::TailwaterEach | ComparedSystem::TailwaterShared => return Ok(Ok(None)),
            ComparedSystem::KafkaClient | ComparedSystem::KafkaMinimal => (Peer::Kafka, true),
            ComparedSystem::Nats => (Peer::Nats, false),
        };
        Ok(Server::start(runner, peer, fsync)?.map(Some))
    }

    /// Warm-up behind the start of its server. Tailwater's is started for each run, and has no longer than a client of
    /// Kafka's beside a broker that is warm.
    fn first_warmup_s(self, effort: &Effort) -> u64 {
        match self {
            ComparedSystem::KafkaClient | ComparedSystem::KafkaMinimal => effort.cold_jvm_s,
            ComparedSystem::TailwaterEach | ComparedSystem::TailwaterShared => effort.warm_jvm_s,
            ComparedSystem::Nats => effort.warmup_s,
        }
    }

    /// Warm-up of later runs.
    fn next_warmup_s(self, effort: &Effort) -> u64 {
        match self {
            ComparedSystem::Nats => effort.warmup_s,
            _ => effort.warm_jvm_s,
        }
    }
}

impl Of {
    fn series(&self) -> Series {
        Series::of(self.most.iter().map(|most| most.unwrap_or(0) as f64))
    }

    /// The run with most consumers that kept up.
    fn best(&self) -> Option<&FanoutAttempt> {
        self.attempts.iter().filter(|attempt| attempt.keeps_up).max_by_key(|attempt| attempt.consumers)
    }

    /// A delay by the number of consumers, of runs that kept up.
    fn curve(&self, name: &str, pointer: &str, quantile: &str) -> Curve {
        let mut numbers: Vec<_> =
            self.attempts.iter().filter(|one| one.keeps_up).map(|one| one.consumers).collect();
        numbers.sort_unstable();
        numbers.dedup();
        let point = |consumers: usize| {
            let same = self.attempts.iter().filter(|one| one.keeps_up && one.consumers == consumers);
            (consumers as f64, Series::of(same.map(|one| number(&one.value, pointer))).median())
        };
        let points = numbers.into_iter().map(point).filter(|point| point.1 > 0.0).collect();
        Curve { name: format!("{name}, {quantile}"), points }
    }
}

/// The table and the plots.
pub fn show(runner: &Runner, effort: &Effort, results: &Results) -> anyhow::Result<String> {
    let columns = [
        "system",
        "synced",
        "consumers that keep up",
        "Gbit/s",
        "delay p50, p99, ms",
        "cores: server, clients",
        "setting",
    ];
    let title = "TCP: most consumers that keep up with 240 Mbit/s of 1 KiB messages, each reads everything";
    let mut table = MarkdownTable::new(title, &columns);
    let (mut rows, mut curves, mut notes) = (Vec::new(), Vec::new(), String::new());
    for of in &results.0 {
        let name = of.system.name(runner);
        if of.most.is_empty() {
            table.missing(&name, of.missing.first().map_or("not run", |missing| &missing.0));
            continue;
        }
        let best = of.best().map(|attempt| &attempt.value);
        let cell = |show: fn(&Value) -> String| best.map_or_else(|| "-".to_owned(), show);
        table.row(&[
            &name,
            of.system.synced(),
            &of.series().show(0),
            &cell(|value| format!("{:.1}", number(value, "/delivered_gbit_s"))),
            &cell(|value| {
                format!("{:.1}, {:.1}", number(value, "/delay_ms/p50"), number(value, "/delay_ms/p99"))
            }),
            &cell(|value| format!("{:.2}, {:.2}", parts(value)[0], parts(value)[1])),
            &of.setting.name,
        ]);
        for missing in &of.missing {
            notes += &format!("- {name}: a run {}\n", missing.0);
        }
        rows.push(Row { label: name.clone(), values: vec![("consumers", of.series().median())] });
        if of.system != ComparedSystem::Nats {
            curves.push(of.curve(&name, "/delay_ms/p50", "p50"));
            curves.push(of.curve(&name, "/delay_ms/p99", "p99"));
        }
    }
    let find = |system| results.0.iter().find(|of| of.system == system);
    let pairs = [
        (ComparedSystem::TailwaterEach, ComparedSystem::KafkaClient),
        (ComparedSystem::TailwaterEach, ComparedSystem::KafkaMinimal),
        (ComparedSystem::TailwaterShared, ComparedSystem::KafkaClient),
    ];
    for (own, other) in pairs {
        if let (Some(a), Some(b)) = (find(own), find(other)) {
            let ratios = Series::ratios(a.series().values(), b.series().values());
            notes += &format!("- {} over {}: {}\n", own.name(runner), other.name(runner), ratios.show(2));
        }
    }
    runner.write(
        "consumers-that-keep-up.svg",
        &charts::bars("Consumers that keep up, 240 Mbit/s over TCP", "", true, &rows),
    )?;
    curves.retain(|curve| !curve.points.is_empty());
    let plot = charts::curves("Delay of runs that kept up, 240 Mbit/s over TCP", "consumers", "ms", &curves);
    runner.write("delay-by-consumers.svg", &plot)?;
    Ok(table.end(&format!(
        "Keeps up: the producer held its rate within 1 %, every consumer ended within 1 s of the last append, nothing \
         was lost. The number is found by doubling and bisecting; Gbit/s, delays and cores are of the run with most \
         consumers that kept up. Settings of Tailwater and Kafka are those that carry the most consumers, of {} and \
         {} that were searched, and with the least cores where they carry as many. Kafka: `log.flush.interval.messages=1`. NATS: sync at its default, every 2 minutes, \
         because synced always it does not hold the rate.\n\n{notes}\n![](consumers-that-keep-up.svg)\n\n\
         ![](delay-by-consumers.svg)",
        ComparedSystem::TailwaterEach.settings().len().min(effort.settings),
        ComparedSystem::KafkaClient.settings().len().min(effort.settings),
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_setting_that_carries_the_most_is_chosen_though_another_one_takes_less_cpu() {
        assert!(is_better((Some(64), 1.9), (Some(36), 0.4)));
        assert!(!is_better((Some(36), 0.4), (Some(64), 1.9)));
        assert!(is_better((Some(36), 0.4), (Some(36), 0.5)) && !is_better((Some(36), 0.5), (Some(36), 0.4)));
        assert!(is_better((Some(1), 2.0), (None, f64::MAX)), "one that keeps up is better than none");
    }
}

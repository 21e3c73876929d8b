//! `tailwater doctor`: does this machine suit a node?

#![allow(clippy::disallowed_methods)] // it looks at the real machine, and at nothing else

use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::thread::CpuSet;
use serde::Serialize;
use tailwater_env::Env;
use tailwater_node::Config;
use tailwater_node::priority::NICE;
use tailwater_rma::{Backing, Region};
use tailwater_tls::Certificates;

use crate::output::{self, Format};

/// Flags of `doctor`.
#[derive(clap::Args)]
pub struct Args {
    /// The directory that a node would use.
    #[arg(long, value_name = "DIR", default_value = ".")]
    data: PathBuf,
    /// Form of the output.
    #[arg(short, long, value_enum, default_value_t = Format::Table)]
    output: Format,
}

/// How a check came out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum DoctorVerdict {
    Ok,
    /// It works, but not as well as it could.
    Warn,
    /// A node would not work.
    Fail,
}

#[derive(Debug, Serialize)]
struct Check {
    name: &'static str,
    verdict: DoctorVerdict,
    found: String,
    /// What to do about it.
    mend: Option<String>,
}

impl Check {
    fn new(name: &'static str, verdict: DoctorVerdict, found: impl Into<String>) -> Self {
        Self { name, verdict, found: found.into(), mend: None }
    }

    fn mend(mut self, mend: impl Into<String>) -> Self {
        if self.verdict != DoctorVerdict::Ok {
            self.mend = Some(mend.into());
        }
        self
    }
}

/// Runs all checks; an error if a node would not work.
pub fn run(args: Args, config: Option<&PathBuf>) -> anyhow::Result<()> {
    let mut checks = vec![
        shared_memory(),
        descriptors(),
        fsync(&args.data),
        free_space(&args.data),
        sockets(&args.data),
        congestion(),
        io_uring(),
        idle_wake(),
        priority(),
        clock(),
        clock_synchronised(synchronised().as_deref()),
    ];
    if let Some(file) = config {
        checks.extend(certificate(file));
    }
    match args.output {
        Format::Json => output::print_json(&checks)?,
        Format::Table => {
            let mut table = output::table(&["", "check", "found"]);
            for check in &checks {
                let verdict = match check.verdict {
                    DoctorVerdict::Ok => "ok",
                    DoctorVerdict::Warn => "warn",
                    DoctorVerdict::Fail => "FAIL",
                };
                table.add_row([verdict, check.name, &check.found]);
                if let Some(mend) = &check.mend {
                    table.add_row(["", "", &format!("-> {mend}")]);
                }
            }
            output::print(&table)?;
        }
    }
    let failed = checks.iter().filter(|check| check.verdict == DoctorVerdict::Fail).count();
    anyhow::ensure!(failed == 0, "{failed} of {} checks failed", checks.len());
    Ok(())
}

fn shared_memory() -> Check {
    const NAME: &str = "shared memory";
    // What a node has: memory that is reserved, mapped and sealed, so that others can only read it.
    match Region::create("doctor", 64 << 20, 0, Backing::Shared) {
        Ok(region) => {
            let mut read = [0; 2];
            region.write(region.len() - 2, b"ok");
            region.read(region.len() - 2, &mut read);
            let verdict = if &read == b"ok" { DoctorVerdict::Ok } else { DoctorVerdict::Fail };
            Check::new(NAME, verdict, "64 MiB reserved, mapped and sealed")
        }
        Err(error) => {
            Check::new(NAME, DoctorVerdict::Fail, format!("64 MiB can't be reserved, mapped and sealed: {error}")).mend(
                "raise the memory limit, or lower capacity_bytes of the cells; in a container, allow the memfd_create \
                 system call; seals need Linux 5.1",
            )
        }
    }
}

fn sockets(dir: &std::path::Path) -> Check {
    const NAME: &str = "path of the sockets";
    let config = Config { data: dir.to_owned(), ..Config::default() };
    match config.check_sockets() {
        Ok(()) => Check::new(NAME, DoctorVerdict::Ok, "short enough"),
        Err(error) => Check::new(NAME, DoctorVerdict::Fail, error.to_string())
            .mend("choose another --data, or link to it"),
    }
}

fn descriptors() -> Check {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(u64::MAX);
    let verdict = match limit {
        0..1_024 => DoctorVerdict::Fail,
        1_024..10_000 => DoctorVerdict::Warn,
        _ => DoctorVerdict::Ok,
    };
    Check::new("file descriptors", verdict, format!("{limit} allowed"))
        .mend("raise it: `ulimit -n 65536`, or LimitNOFILE=65536 in the systemd unit")
}

fn fsync(dir: &std::path::Path) -> Check {
    const NAME: &str = "append of 4 KiB + fdatasync";
    match fsync_times(dir) {
        Err(error) => Check::new(NAME, DoctorVerdict::Fail, format!("{}: {error}", dir.display()))
            .mend("choose a directory that can be written with --data"),
        Ok(mut times) => {
            times.sort();
            let (median, slow) = (times[times.len() / 2], times[times.len() * 99 / 100]);
            let verdict = match median {
                // No disk that keeps its promise is this fast.
                median if median < Duration::from_micros(5) => DoctorVerdict::Warn,
                median if median > Duration::from_millis(10) => DoctorVerdict::Warn,
                _ => DoctorVerdict::Ok,
            };
            Check::new(NAME, verdict, format!("p50 {median:.0?}, p99 {slow:.0?}")).mend(
                if median < Duration::from_millis(1) {
                    "is this a memory file system? Nothing on it survives a restart of the machine"
                } else {
                    "every acknowledgement waits for this: use a faster disk, or streams with --durability interval"
                },
            )
        }
    }
}

fn fsync_times(dir: &std::path::Path) -> std::io::Result<Vec<Duration>> {
    let path = dir.join(format!("tailwater-doctor-{}", std::process::id()));
    let mut file = fs::File::create_new(&path)?;
    let times = (0..200)
        .map(|_| {
            let start = Instant::now();
            file.write_all(&[0x5a; 4_096])?;
            file.sync_data()?;
            Ok(start.elapsed())
        })
        .collect();
    fs::remove_file(&path)?;
    times
}

fn free_space(dir: &std::path::Path) -> Check {
    const NAME: &str = "free disk space";
    match rustix::fs::statvfs(dir) {
        Err(error) => Check::new(NAME, DoctorVerdict::Fail, format!("{}: {error}", dir.display())),
        Ok(stat) => {
            let free = stat.f_bavail.saturating_mul(stat.f_frsize);
            let verdict = match free {
                0..0x2000_0000 => DoctorVerdict::Fail,
                0x2000_0000..0x1_0000_0000 => DoctorVerdict::Warn,
                _ => DoctorVerdict::Ok,
            };
            let journal = Config::default().journal;
            let journal = output::bytes(journal.file_bytes * u64::from(journal.files_max));
            Check::new(NAME, verdict, output::bytes(free)).mend(format!(
                "make room, or set --retention-bytes on streams; the journal alone takes up to {journal}"
            ))
        }
    }
}

fn congestion() -> Check {
    const NAME: &str = "TCP congestion control";
    let read = |name: &str| fs::read_to_string(format!("/proc/sys/net/ipv4/{name}")).unwrap_or_default();
    let (used, available) = (read("tcp_congestion_control"), read("tcp_available_congestion_control"));
    let has_cubic = available.split_whitespace().any(|name| name == "cubic");
    // The node asks for cubic on its own sockets, so only its absence is worth a word.
    let verdict = if has_cubic || used.trim() == "cubic" { DoctorVerdict::Ok } else { DoctorVerdict::Warn };
    Check::new(NAME, verdict, format!("{} (available: {})", used.trim(), available.trim()))
        .mend("load the cubic module: some others cap a loopback or data-centre stream near 10 Gbit/s")
}

fn io_uring() -> Check {
    let disabled = fs::read_to_string("/proc/sys/kernel/io_uring_disabled").unwrap_or_default();
    match disabled.trim() {
        "0" => Check::new("io_uring", DoctorVerdict::Ok, "enabled"),
        "" => Check::new(
            "io_uring",
            DoctorVerdict::Warn,
            "the kernel does not say; epoll is used if it is missing",
        ),
        _ => Check::new("io_uring", DoctorVerdict::Warn, "disabled: epoll is used")
            .mend("sysctl kernel.io_uring_disabled=0 lets TCP readers be served with less CPU"),
    }
}

/// Whether a node of this user can go before applications that take all processors.
fn priority() -> Check {
    const NAME: &str = "priority";
    let before = rustix::process::getpriority_process(None).unwrap_or(0);
    let allowed = rustix::process::setpriority_process(None, NICE).is_ok();
    // Back, which everybody may.
    let _ = rustix::process::setpriority_process(None, before);
    match allowed {
        true => Check::new(
            NAME,
            DoctorVerdict::Ok,
            format!("a node may have niceness {NICE}; a producer beside many readers is held back less with it, too: nice -n {NICE}"),
        ),
        false => Check::new(NAME, DoctorVerdict::Warn, format!("a node may not have niceness {NICE}")).mend(
            "where readers take all processors, appends wait behind them: LimitNICE=-10 in the systemd unit (or `Nice=-10`), \
             `--ulimit nice=30` or `--cap-add SYS_NICE` for a container",
        ),
    }
}

/// How long a thread that waits takes to run once it is woken, where nothing else runs: a record goes through several.
fn idle_wake() -> Check {
    const NAME: &str = "wake of a waiting thread";
    const POLL: &str = "/sys/module/haltpoll/parameters/guest_halt_poll_ns";
    let mut times = wake_times();
    times.sort();
    let Some(median) = times.get(times.len() / 2) else {
        return Check::new(NAME, DoctorVerdict::Ok, "not measured: it takes two processors");
    };
    let verdict = if *median > Duration::from_micros(30) { DoctorVerdict::Warn } else { DoctorVerdict::Ok };
    let check = Check::new(NAME, verdict, format!("p50 {median:.0?}, on a processor that is idle"));
    check.mend(if fs::read_to_string(POLL).is_ok_and(|ns| ns.trim() == "0") {
        format!(
            "this virtual machine gives its processor away whenever it is idle, and has to get it back; \
             `echo 200000 > {POLL}` lets it wait 0.2 ms first, which costs CPU time and takes that off the delay"
        )
    } else {
        "idle processors sleep deeply: keep them from it, as `tuned-adm profile latency-performance` does".into()
    })
}

/// Each with the two threads on processors of their own: without that, the one that waits is mostly given the processor
/// of the one that wakes it, which is awake. Empty if there is no second processor, or no thread can be started.
fn wake_times() -> Vec<Duration> {
    const TIMES: usize = 200;
    let Some([waker, waiter]) = two_processors() else { return Vec::new() };
    let (wakes, woken) = std::sync::mpsc::channel::<Instant>();
    let waits = move || {
        stay_on(waiter);
        woken.iter().map(|since| since.elapsed()).collect()
    };
    let wake = move || {
        stay_on(waker);
        for _ in 0..TIMES {
            // So long that the other processor is idle by then.
            std::thread::sleep(Duration::from_millis(1));
            if wakes.send(Instant::now()).is_err() {
                break;
            }
        }
    };
    let Ok(waiting) = std::thread::Builder::new().spawn(waits) else { return Vec::new() };
    // If it fails, its end of the channel is dropped, and nobody waits.
    let waking = std::thread::Builder::new().spawn(wake);
    let times = waiting.join().unwrap_or_default();
    let _ = waking.map(std::thread::JoinHandle::join);
    times
}

/// Two of those that this process may run on, as its set of processors with only that one in it.
fn two_processors() -> Option<[CpuSet; 2]> {
    let ours = rustix::thread::sched_getaffinity(None).ok()?;
    let mut each = (0..CpuSet::MAX_CPU).filter(|number| ours.is_set(*number)).map(|number| {
        let mut only = CpuSet::new();
        only.set(number);
        only
    });
    Some([each.next()?, each.next()?])
}

/// Keeps the calling thread on a processor; at worst the kernel moves it.
fn stay_on(processor: CpuSet) {
    let _ = rustix::thread::sched_setaffinity(None, &processor);
}

/// How long the certificate of a node with this configuration is good, if it has one.
fn certificate(config: &PathBuf) -> Option<Check> {
    const NAME: &str = "certificate";
    let config = match Config::load(Some(config), toml::Table::new()) {
        Ok(config) => config,
        Err(error) => {
            let check = Check::new("configuration", DoctorVerdict::Fail, format!("{error:#}"));
            return Some(
                check.mend("a node would not start with it: `tailwater serve --config-check` says the same"),
            );
        }
    };
    // As a node does, which has a world of its own for it.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().ok()?;
    let _entered = runtime.enter();
    let env = Env::real();
    match Certificates::open(&env, &config.tls) {
        Ok(certificates) => Some(certificate_left(certificates?.expires_ms() - env.wall_ms())),
        Err(error) => Some(
            Check::new(NAME, DoctorVerdict::Fail, error.to_string())
                .mend("a node does not start without it: mend the file, or what [tls] says of it"),
        ),
    }
}

fn certificate_left(left_ms: i64) -> Check {
    const NAME: &str = "certificate";
    let warning_ms = i64::try_from(tailwater_tls::limits::EXPIRY_WARNING.as_millis()).unwrap_or(i64::MAX);
    let days = left_ms / 86_400_000;
    let (verdict, found) = match left_ms {
        ..=0 => (DoctorVerdict::Fail, "it has expired".to_owned()),
        left if left < warning_ms => (DoctorVerdict::Warn, format!("it expires in {days} days")),
        _ => (DoctorVerdict::Ok, format!("it is good for {days} days")),
    };
    Check::new(NAME, verdict, found)
        .mend("replace the files that [tls] names: a running node takes the new ones within a second")
}

fn clock() -> Check {
    const NAME: &str = "clock";
    let year_2024_s = 1_704_067_200;
    let wall_s = std::time::SystemTime::now()
        .duration_since(std::time::SystemTime::UNIX_EPOCH)
        .map_or(0, |since| since.as_secs());
    if wall_s < year_2024_s {
        return Check::new(NAME, DoctorVerdict::Fail, format!("{wall_s} s since 1970"))
            .mend("set the clock: timestamps and retention follow it");
    }
    let source = fs::read_to_string("/sys/devices/system/clocksource/clocksource0/current_clocksource")
        .unwrap_or_default();
    let start = Instant::now();
    for _ in 0..1_000 {
        std::hint::black_box(Instant::now());
    }
    let cost = start.elapsed() / 1_000;
    let verdict = if cost > Duration::from_nanos(500) { DoctorVerdict::Warn } else { DoctorVerdict::Ok };
    Check::new(NAME, verdict, format!("{}, {cost:.0?} a reading", source.trim()))
        .mend("a clock source that needs system calls slows every record: prefer tsc or kvm-clock")
}

/// `said` is what [`synchronised`] heard.
fn clock_synchronised(said: Option<&str>) -> Check {
    const NAME: &str = "clock synchronised";
    match said.map(str::trim) {
        Some("yes") => Check::new(NAME, DoctorVerdict::Ok, "yes, as the kernel has it"),
        Some("no") => Check::new(NAME, DoctorVerdict::Warn, "no, as the kernel has it").mend(
            "run chrony, ntpd or systemd-timesyncd: positions by time, and retention, follow the clock, and nodes that share \
             queues in Cassandra need theirs within clock_skew_ms",
        ),
        _ => Check::new(NAME, DoctorVerdict::Ok, "not known: there is no timedatectl that says"),
    }
}

/// What systemd says that the kernel says; nothing where it is not there, or says nothing within two seconds.
fn synchronised() -> Option<String> {
    let mut asking = Command::new("timedatectl")
        .args(["show", "--property=NTPSynchronized", "--value"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .ok()?;
    let until = Instant::now() + Duration::from_secs(2);
    while Instant::now() < until {
        match asking.try_wait() {
            Ok(None) => std::thread::sleep(Duration::from_millis(10)),
            Ok(Some(ended)) if ended.success() => {
                return asking.stdout.take().and_then(|said| std::io::read_to_string(said).ok());
            }
            Ok(Some(_)) | Err(_) => return None,
        }
    }
    let _ = asking.kill();
    let _ = asking.wait();
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_is_worth_a_warning_in_its_last_thirty_days_and_fails_when_it_is_over() {
        let verdict = |days: i64| certificate_left(days * 86_400_000).verdict;
        let verdicts = [31, 29, 0, -1].map(verdict);
        let [ok, warn, fail] = [DoctorVerdict::Ok, DoctorVerdict::Warn, DoctorVerdict::Fail];
        assert_eq!(verdicts, [ok, warn, fail, fail]);
    }

    #[test]
    fn a_clock_that_is_not_synchronised_is_worth_advice_and_one_of_which_nobody_knows_is_not() {
        let verdict = |said| {
            let check = clock_synchronised(said);
            (check.verdict, check.mend.is_some())
        };
        assert_eq!(verdict(Some("yes\n")), (DoctorVerdict::Ok, false));
        assert_eq!(verdict(Some("no\n")), (DoctorVerdict::Warn, true));
        assert_eq!(verdict(Some("")), (DoctorVerdict::Ok, false));
        assert_eq!(verdict(None), (DoctorVerdict::Ok, false));
    }
}

//! `tailwater window`: the process beside a node that reads its cells for all processes of its user; and what the node
//! does to have one.

use std::ffi::OsStr;
use std::io::Write;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use tailwater_client::{Dialer, DialerConfig, Transport};
use tailwater_env::Env;
use tailwater_node::{Config, LogFormat, Logging, Node};
use tailwater_window::{WindowConfig, WindowReport, WindowStats};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::process::Command;

use crate::values;

/// First and longest pause before a window that ended is started again; doubled in between.
const RESTART_PAUSE_MIN: Duration = Duration::from_millis(200);
/// See [`RESTART_PAUSE_MIN`].
const RESTART_PAUSE_MAX: Duration = Duration::from_secs(10);

/// Flags of `window`.
#[derive(clap::Args)]
pub struct Args {
    /// The address of the node.
    #[arg(long, value_name = "unix:PATH|HOST:PORT")]
    node: String,
    /// Where readers connect.
    #[arg(long, value_name = "PATH")]
    unix: PathBuf,
    /// How many processes have to follow a shard before the window reads it for them.
    #[arg(long, value_name = "PROCESSES", default_value_t = 1, value_parser = values::number::<usize>(0..=usize::MAX as u64))]
    from: usize,
    /// File in PEM with the CA of the cells' certificates, if the cells are in TLS.
    #[arg(long, value_name = "FILE")]
    cells_ca: Option<PathBuf>,
    /// File in PEM with the certificate to show to the cells.
    #[arg(long, value_name = "FILE")]
    cells_certificate: Option<PathBuf>,
    /// File in PEM with the certificate's key.
    #[arg(long, value_name = "FILE")]
    cells_key: Option<PathBuf>,
    /// Which log lines are written, as in `info,tailwater_window=debug`.
    #[arg(long, value_name = "FILTER", default_value = "info")]
    log: String,
}

/// Reads for others until standard input ends, which is when the node does that started it.
pub fn run(args: Args) -> anyhow::Result<()> {
    tailwater_node::logging::init(&Logging { filter: args.log, format: LogFormat::Text })?;
    tailwater_node::panics::end_the_process();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let done = runtime.block_on(async {
        let env = Env::real();
        let trusted = DialerConfig {
            ca: args.cells_ca,
            certificate: args.cells_certificate,
            key: args.cells_key,
            names: Vec::new(),
        };
        let dialer = Dialer::open(&env, &trusted)?;
        let config = WindowConfig {
            name: "window",
            node: args.node,
            listen: Some(args.unix),
            fed_from: args.from,
            streams: Vec::new(),
            transport: Transport::Auto,
            dialer,
            // It is a process of the node's own user.
            login: None,
        };
        let mut told = WindowStats::default();
        let tell = |report: WindowReport| {
            if report.stats != std::mem::replace(&mut told, report.stats) {
                tell(report.stats);
            }
        };
        tokio::select! {
            done = tailwater_window::run(env, config, tell) => done,
            () = input_ended() => Ok(()),
        }
    });
    // A thread waits in a read of standard input, which nothing ends.
    runtime.shutdown_background();
    done
}

/// Writes what the window does to standard output, a line each time, for the node that started it.
fn tell(stats: WindowStats) {
    // Nobody has to listen.
    let _ = writeln!(std::io::stdout(), "{stats}");
}

async fn input_ended() {
    let (mut input, mut buffer) = (tokio::io::stdin(), [0; 64]);
    while let Ok(1..) = input.read(&mut buffer).await {}
}

/// The window that a node is to have, if it is to have one.
pub struct WantedWindow(Option<WindowWanted>);

/// How it is started.
struct WindowWanted {
    node: String,
    listen: PathBuf,
    fed_from: usize,
    /// Whom it trusts where cells are in TLS, and what it shows there.
    trusted: DialerConfig,
}

impl WantedWindow {
    /// As it is configured.
    pub fn of(config: &Config) -> Self {
        let absolute = |path: PathBuf| std::path::absolute(&path).unwrap_or(path);
        Self(config.window_socket().map(|socket| WindowWanted {
            node: format!("unix:{}", absolute(config.node_socket()).display()),
            listen: absolute(socket),
            fed_from: config.listen.window_from,
            trusted: config.tls.dialer(),
        }))
    }
}

/// Runs it, and again whenever it ends, and has `node` show what it does. Dropping this ends it.
pub async fn supervise(WantedWindow(wanted): WantedWindow, node: &Node) {
    let Some(WindowWanted { node: address, listen, fed_from, trusted }) = wanted else {
        return std::future::pending().await;
    };
    let env = Env::real();
    let mut pause = RESTART_PAUSE_MIN;
    loop {
        let begun = env.now();
        let program = std::env::current_exe().unwrap_or_else(|_| "tailwater".into());
        let mut command = Command::new(program);
        command.args(["window", "--node", &address, "--from", &fed_from.to_string(), "--unix"]).arg(&listen);
        let files = [
            ("--cells-ca", &trusted.ca),
            ("--cells-certificate", &trusted.certificate),
            ("--cells-key", &trusted.key),
        ];
        for (option, file) in files {
            command.args(file.iter().flat_map(|file| [OsStr::new(option), file.as_os_str()]));
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        // It has no settings of its own, and refuses none.
        for (name, _) in
            std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("TAILWATER_"))
        {
            command.env_remove(name);
        }
        match command.spawn() {
            Ok(mut child) => {
                // Its standard input is kept with it: it ends when this process does, however that is.
                let input = child.stdin.take();
                node.window_runs(Some(WindowStats::default()));
                if let Some(output) = child.stdout.take() {
                    // It ends with the process.
                    let mut lines = BufReader::new(output).lines();
                    while let Ok(Some(line)) = lines.next_line().await {
                        if let Ok(stats) = line.parse() {
                            node.window_runs(Some(stats));
                        }
                    }
                }
                let ended = child.wait().await;
                node.window_runs(None);
                drop(input);
                let how = ended.map_or_else(|why| why.to_string(), |status| status.to_string());
                tracing::warn!(%how, "the window ended; readers read by themselves until it is there again");
            }
            Err(why) => tracing::warn!(%why, "the window can't be started; readers read by themselves"),
        }
        pause = if env.now().since(begun) > RESTART_PAUSE_MAX { RESTART_PAUSE_MIN } else { pause };
        env.sleep(pause).await;
        pause = (pause * 2).min(RESTART_PAUSE_MAX);
    }
}

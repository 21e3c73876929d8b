//! The command line: an index of what the program can do. Each command is a file in `commands/`.

mod admin;
mod allocator;
mod commands;
mod lines;
mod output;
mod settings;
mod template;
mod values;

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

use settings::Parsed;

/// An ordered log whose readers never touch the broker.
#[derive(Parser)]
#[command(name = "tailwater", version, propagate_version = true, max_term_width = 110)]
struct Cli {
    #[command(flatten)]
    server: admin::Server,
    /// Configuration file (TOML) of a node. The other commands read its section [client].
    #[arg(long, global = true, env = "TAILWATER_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    /// Print the configuration that would be used, in the form of a file, and stop.
    #[arg(long, global = true)]
    print_config: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run a node: a log, with its cells, on one data directory.
    Serve(commands::serve::Args),
    /// Make a CA, certificates and a configuration for a secured node.
    Init(commands::init::Args),
    /// Create, alter, list, describe, place, delete, truncate and restore streams.
    #[command(subcommand)]
    Stream(commands::stream::Command),
    /// List, describe and drain the nodes that share metadata in ZooKeeper.
    #[cfg(feature = "bookkeeper")]
    #[command(subcommand)]
    Node(commands::node::Command),
    /// List and describe nodes that share metadata. This build leaves it out; the build of `make dist` has it.
    #[cfg(not(feature = "bookkeeper"))]
    Node(commands::left_out::Args),
    /// List, describe, recover, verify and clean up the segments of a replicated store: BookKeeper's ledgers.
    #[cfg(feature = "bookkeeper")]
    #[command(subcommand)]
    Segment(commands::segment::Command),
    /// Look after segments of a replicated store. This build leaves it out; the build of `make dist` has it.
    #[cfg(not(feature = "bookkeeper"))]
    Segment(commands::left_out::Args),
    /// Move what is in a data directory to BookKeeper and ZooKeeper, where several nodes share it.
    ///
    /// No node runs on the directory meanwhile. Streams go with their records, offsets, terms and producers, and so do
    /// positions of groups, users, tokens, rules and quotas. The configuration says where they go, as the nodes will
    /// have it. A run that is killed is gone on with by the next one.
    #[cfg(feature = "bookkeeper")]
    Migrate(commands::migrate::Args),
    /// Move a data directory to BookKeeper and ZooKeeper. This build leaves it out; the build of `make dist` has it.
    #[cfg(not(feature = "bookkeeper"))]
    Migrate(commands::left_out::Args),
    /// Add, list, describe, drain and remove clusters that streams are copied to.
    #[command(subcommand)]
    Cluster(commands::cluster::Command),
    /// Plan the copy trees of streams, and show how far the copies are.
    #[command(subcommand)]
    Tree(commands::tree::Command),
    /// Copy parts of streams for the node of this cluster, from the clusters above it.
    ///
    /// The node divides what is copied among its workers, and runs what none of them can. A worker keeps nothing: stop
    /// it, or kill it, and others go on.
    Worker(commands::worker::Args),
    /// Consume streams in every cluster that has them, and report delays, stopped producers and stuck copies.
    Monitor(commands::monitor::Args),
    /// Append lines of a file, or of standard input, to a stream.
    Produce(commands::produce::Args),
    /// Read records of a stream, one-sidedly.
    Consume(commands::consume::Args),
    /// Publish, list and load snapshots of streams, so that consumers of their state start in seconds.
    #[command(subcommand)]
    Snapshot(commands::snapshot::Command),
    /// Read the cells of a node once for all consumers of this user on this host.
    ///
    /// Consumers find the sidecar by themselves, and read its memory. When it ends they read the cells by themselves.
    Sidecar(commands::sidecar::Args),
    /// List, describe, reset and delete consumer groups.
    #[command(subcommand)]
    Group(commands::group::Command),
    /// Create, list, describe, purge and delete queues; send, receive, look at and move their messages.
    Queue(commands::queue::Args),
    /// Publish events in broadcast streams, listen to them, and look at the replicas that carry them.
    #[command(subcommand)]
    Broadcast(commands::broadcast::Command),
    /// Add, list and remove users with passwords.
    #[command(subcommand)]
    User(commands::user::Command),
    /// Add, list and remove rules about the rights of users.
    #[command(subcommand)]
    Acl(commands::acl::Command),
    /// Make, list and remove tokens, which programs show in place of a user's name and password.
    #[command(subcommand)]
    Token(commands::token::Command),
    /// Make, list and remove accounts, with whose keys Amazon SQS's clients sign.
    #[command(subcommand)]
    Account(commands::account::Command),
    /// Set, list and remove quotas: what a user, a client or an address may take in a second.
    #[command(subcommand)]
    Quota(commands::quota::Command),
    /// Show requests that were refused, and changes.
    #[command(subcommand)]
    Audit(commands::audit::Command),
    /// Run a cache backend as a process of its own; get, set and forget values of cells.
    #[command(subcommand)]
    Cache(commands::cache::Command),
    /// Create, resize, drain, list and describe cells.
    #[command(subcommand)]
    Cell(commands::cell::Command),
    /// Measure Tailwater on this machine.
    #[cfg(feature = "bench")]
    #[command(subcommand)]
    Bench(tailwater_bench::Command),
    /// Measure Tailwater. This build leaves it out; the build of `make dist` has it.
    #[cfg(not(feature = "bench"))]
    Bench(commands::left_out::Args),
    /// Show Tailwater at work: a node with replicated cells, a producer, and a thousand consumers that verify what they
    /// read.
    Demo(tailwater_load::demo::Args),
    /// Show a stream copied over three continents, emulated on this machine: five clusters, consumers in each that
    /// verify what they read, a line that is cut, and a cluster that is killed.
    DemoClusters(tailwater_load::clusters::Args),
    /// A process of the demo's, or of a bench's.
    #[command(hide = true, subcommand)]
    Load(tailwater_load::Command),
    /// Check whether this machine suits a node, and say what to mend.
    Doctor(commands::doctor::Args),
    /// Read the cells of a node once for all processes of this user; a node starts it by itself.
    #[command(hide = true)]
    Window(commands::window::Args),
    /// Print a completion script for a shell.
    Completion {
        /// Which shell.
        shell: clap_complete::Shell,
    },
}

/// Exit status where a cell can't say whether there is a value.
const INCONCLUSIVE: u8 = 3;

fn main() -> ExitCode {
    allocator::keep_freed_memory();
    match settings::parse(&values::with_negative_numbers(Cli::command())).and_then(run) {
        Ok(()) => ExitCode::SUCCESS,
        // Whoever reads our output has seen enough (`| head`).
        Err(error) if output::is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("tailwater: {error:#}");
            if let Some(hint) = output::hint(&error) {
                eprintln!("{hint}");
            }
            match error.downcast_ref::<tailwater_cache::CellFailure>() {
                Some(_) => ExitCode::from(INCONCLUSIVE),
                None => ExitCode::FAILURE,
            }
        }
    }
}

fn run(parsed: Parsed) -> anyhow::Result<()> {
    let matches = match parsed {
        Parsed::Run(matches) => matches,
        Parsed::Print(config) => return output::print(&toml::to_string_pretty(&config)?.trim_end()),
    };
    let cli =
        Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.format(&mut Cli::command()).exit());
    anyhow::ensure!(
        !cli.print_config || matches!(cli.command, Command::Serve(_)),
        "this command has no configuration to print: it has flags only"
    );
    match cli.command {
        Command::Serve(args) => commands::serve::run(args, cli.config.as_ref(), cli.print_config),
        Command::Init(args) => commands::init::run(args),
        Command::Stream(command) => commands::stream::run(&cli.server, command),
        #[cfg(feature = "bookkeeper")]
        Command::Node(command) => commands::node::run(&cli.server, command, cli.config.as_ref()),
        #[cfg(not(feature = "bookkeeper"))]
        Command::Node(_) => commands::left_out::run("client of ZooKeeper", "bookkeeper"),
        #[cfg(feature = "bookkeeper")]
        Command::Segment(command) => commands::segment::run(command, cli.config.as_ref()),
        #[cfg(not(feature = "bookkeeper"))]
        Command::Segment(_) => commands::left_out::run("client of BookKeeper", "bookkeeper"),
        #[cfg(feature = "bookkeeper")]
        Command::Migrate(args) => commands::migrate::run(args, cli.config.as_ref()),
        #[cfg(not(feature = "bookkeeper"))]
        Command::Migrate(_) => commands::left_out::run("client of BookKeeper", "bookkeeper"),
        Command::Cluster(command) => commands::cluster::run(&cli.server, command),
        Command::Tree(command) => commands::tree::run(&cli.server, command),
        Command::Worker(args) => commands::worker::run(&cli.server, args),
        Command::Produce(args) => commands::produce::run(&cli.server, args),
        Command::Consume(args) => commands::consume::run(&cli.server, args),
        Command::Snapshot(command) => commands::snapshot::run(&cli.server, command),
        Command::Sidecar(args) => commands::sidecar::run(&cli.server, args),
        Command::Group(command) => commands::group::run(&cli.server, command),
        Command::Queue(args) => commands::queue::run(&cli.server, args),
        Command::Broadcast(command) => commands::broadcast::run(&cli.server, command),
        Command::User(command) => commands::user::run(&cli.server, command),
        Command::Acl(command) => commands::acl::run(&cli.server, command),
        Command::Token(command) => commands::token::run(&cli.server, command),
        Command::Account(command) => commands::account::run(&cli.server, command),
        Command::Quota(command) => commands::quota::run(&cli.server, command),
        Command::Audit(command) => commands::audit::run(&cli.server, command),
        Command::Cache(command) => commands::cache::run(&cli.server, command),
        Command::Cell(command) => commands::cell::run(&cli.server, command),
        #[cfg(feature = "bench")]
        Command::Bench(command) => tailwater_bench::run(command),
        #[cfg(not(feature = "bench"))]
        Command::Bench(_) => commands::left_out::run("benches", "bench"),
        Command::Monitor(args) => commands::monitor::run(&cli.server, args),
        Command::Demo(args) => tailwater_load::demo::run(args),
        Command::DemoClusters(args) => tailwater_load::clusters::run(args),
        Command::Load(command) => tailwater_load::run(command),
        Command::Doctor(args) => commands::doctor::run(args, cli.config.as_ref()),
        Command::Window(args) => commands::window::run(args),
        Command::Completion { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "tailwater", &mut script);
            std::io::stdout().write_all(&script).map_err(anyhow::Error::from)
        }
    }
}

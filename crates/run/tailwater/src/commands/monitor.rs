//! `tailwater monitor`: a consumer of each stream in each cluster, which measures and does nothing else.
//!
//! What it tells of a cluster without records is by what the cluster of the source has: a producer that has stopped is
//! told from a copy, or a reader, that stands still. What it reads is compared with what was written at the source.
//!
//! ```text
//!   cells of each cluster --> a consumer each -----> delays, hops (arrivals), shares of layers (budget)
//!                                           `-----> checked <--.
//!   segments of the source --> one more consumer --------------'   what was written
//!   the tree's operations ---> whose hop stands still (standing, watched)
//! ```

mod budget;
mod checked;
mod line;
mod page;
mod standing;
mod watched;

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, ensure};
use tailwater_client::{ClientLogin, Dialer};
use tailwater_env::{Env, Task};
use tailwater_node::api::{ClusterView, CopyTreeView};
use tailwater_node::is_of_this_host;
use tailwater_node::probes::{self, ProbeRead};
use tokio::net::TcpListener;
use tokio::sync::oneshot;

use self::budget::ErrorBudget;
use self::line::{MonitorBudgets, MonitorLine, head, lines};
use self::page::MonitorPage;
use self::watched::{FollowedPlace, SharedWatch, WatchedStream};
use crate::admin::{AdminRefused, Server, escaped};
use crate::output::{self, Format};
use crate::values::{self, number};

/// How often the tree of each stream is asked for, at most.
const TREE_EVERY_MAX: Duration = Duration::from_secs(10);

/// Flags of `monitor`.
#[derive(clap::Args)]
pub struct Args {
    /// The streams.
    #[arg(required = true)]
    names: Vec<String>,
    /// Consume in these clusters, separated by commas, and in the source's. By default in all clusters that have a
    /// stream.
    #[arg(long, value_name = "CLUSTERS", value_delimiter = ',')]
    clusters: Vec<String>,
    /// How often to write a line for each stream and cluster, in seconds.
    #[arg(long, default_value_t = 10, value_name = "SECONDS", value_parser = number::<u32>(1..=3_600))]
    every: u32,
    /// End after this many lines for each. The exit status is 1 if an objective is broken then, or if what was read is
    /// not what was written.
    #[arg(short = 'n', long, value_name = "N", value_parser = number::<u64>(1..=u64::MAX))]
    count: Option<u64>,
    /// Shards that stand still for so many seconds are stuck, if they should not.
    #[arg(long, default_value_t = 3, value_name = "SECONDS", value_parser = number::<u32>(1..=3_600))]
    stuck_after: u32,
    /// The part of the bytes that the cells have to have, as in 0.999.
    #[arg(long, value_name = "SHARE", value_parser = share)]
    slo: Option<f64>,
    /// The longest that a record may take, in milliseconds.
    #[arg(long, value_name = "MS", value_parser = number::<u64>(1..=3_600_000))]
    delay_ms: Option<u64>,
    /// The part of the records that has to come within --delay-ms.
    #[arg(long, value_name = "SHARE", default_value_t = 0.99, value_parser = share, requires = "delay_ms")]
    delay_slo: f64,
    /// The time over which objectives have to be kept, in seconds.
    #[arg(long, default_value_t = 3_600, value_name = "SECONDS", value_parser = number::<u32>(1..=86_400))]
    slo_window: u32,
    /// Leave out the comparison with what was written. Otherwise the source's node serves each byte once more, from its
    /// segments.
    #[arg(long)]
    unchecked: bool,
    /// Answer /healthz, /readyz and /metrics there.
    #[arg(long, value_name = "IP:PORT", value_parser = values::address)]
    http: Option<SocketAddr>,
    /// Let other hosts ask at --http.
    #[arg(long, requires = "http")]
    insecure: bool,
    /// Form of the output.
    #[arg(short, long, value_enum, default_value_t = Format::Table)]
    output: Format,
}

impl Args {
    fn budgets(&self) -> MonitorBudgets {
        let steps = (self.slo_window / self.every).max(1) as usize;
        MonitorBudgets {
            cache: self.slo.map(|target| ErrorBudget::new(target, steps)),
            delay: self.delay_ms.map(|_| ErrorBudget::new(self.delay_slo, steps)),
        }
    }
}

/// A part of a whole.
fn share(text: &str) -> Result<f64, String> {
    let share = text.parse::<f64>().ok().filter(|share| *share > 0.0 && *share <= 1.0);
    share.ok_or_else(|| "use a part of 1, above 0, as in 0.999".to_owned())
}

/// Where a stream is consumed.
struct MonitoredPlaces {
    /// Its tree, if it has one.
    tree: Option<CopyTreeView>,
    /// Names and addresses of clusters, that of the source first.
    clusters: Vec<(String, String)>,
}

/// A stream that is consumed.
struct Monitored {
    stream: String,
    watch: SharedWatch,
    /// In the order of its clusters.
    budgets: Vec<MonitorBudgets>,
    _tasks: Vec<Task>,
}

/// Runs it, until it is interrupted.
pub fn run(server: &Server, args: Args) -> anyhow::Result<()> {
    if let Some(http) = args.http.filter(|http| !args.insecure && !is_of_this_host(*http)) {
        anyhow::bail!(
            "--http {http} would answer other hosts, unencrypted: listen on 127.0.0.1, or say that it is meant: --insecure"
        );
    }
    let known: Vec<ClusterView> = server.get("/v1/clusters")?;
    let here = server.data_address(Duration::ZERO)?;
    let places = args.names.iter().map(|name| places(server, name, &args.clusters, &known, &here));
    let places: Vec<_> = places.collect::<anyhow::Result<_>>()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let done = runtime.block_on(monitor(server, &args, places));
    // A thread may wait for the node.
    runtime.shutdown_background();
    done
}

async fn monitor(server: &Server, args: &Args, places: Vec<MonitoredPlaces>) -> anyhow::Result<()> {
    let env = Env::real();
    let opens = (server.dialer(&env)?, server.login()?);
    let page = Arc::<Mutex<MonitorPage>>::default();
    // Its drop ends the probes.
    let _probes = match args.http {
        Some(http) => Some(answer_probes(&env, http, Arc::clone(&page)).await?),
        None => None,
    };
    let streams = args.names.iter().zip(places);
    let mut streams: Vec<_> =
        streams.map(|(name, places)| Monitored::start(&env, &opens, args, name, places)).collect();
    watch_trees(server.clone(), args, &streams)?;
    if args.output == Format::Table {
        output::print(&head())?;
    }
    let stuck_after = Duration::from_secs(args.stuck_after.into());
    let mut left = args.count.unwrap_or(u64::MAX);
    let mut told = Vec::new();
    while left > 0 {
        left -= 1;
        env.sleep(Duration::from_secs(args.every.into())).await;
        told = streams
            .iter_mut()
            .flat_map(|of| lines(&of.stream, &mut of.watch.lock(), &mut of.budgets, env.now(), stuck_after))
            .collect();
        for line in &told {
            match args.output {
                Format::Json => output::print_json(line)?,
                Format::Table => output::print(&line.row())?,
            }
        }
        page.lock().unwrap_or_else(PoisonError::into_inner).set(told.clone());
    }
    verdict(&told)
}

/// What the exit status tells, by the last lines.
fn verdict(told: &[MonitorLine]) -> anyhow::Result<()> {
    let broken: Vec<_> = told.iter().filter(|line| line.is_broken()).map(MonitorLine::place).collect();
    ensure!(broken.is_empty(), "not as it has to be: {}", broken.join(", "));
    Ok(())
}

async fn answer_probes(
    env: &Env,
    http: SocketAddr,
    page: Arc<Mutex<MonitorPage>>,
) -> anyhow::Result<oneshot::Sender<()>> {
    let listener =
        TcpListener::bind(http).await.with_context(|| format!("--http {http} can't be listened on"))?;
    let (stop, stopped) = oneshot::channel();
    let read: ProbeRead = Arc::new(move || page.lock().unwrap_or_else(PoisonError::into_inner).told());
    env.spawn("monitor-probes", probes::serve(env.clone(), listener, read, stopped)).detach();
    Ok(stop)
}

/// Asks for the trees of streams now and then, on a thread that ends with the process. A node that does not answer
/// leaves what was known.
fn watch_trees(server: Server, args: &Args, streams: &[Monitored]) -> anyhow::Result<()> {
    let every = Duration::from_secs(args.every.into()).min(TREE_EVERY_MAX);
    let is_placed = |of: &&Monitored| of.watch.lock().tree.is_some();
    let placed = streams.iter().filter(is_placed);
    let placed: Vec<_> = placed.map(|of| (tree_path(&of.stream), of.watch.clone())).collect();
    if placed.is_empty() {
        return Ok(());
    }
    let ask = move || loop {
        for (path, watch) in &placed {
            if let Ok(tree) = server.get(path) {
                watch.lock().set_tree(tree);
            }
        }
        std::thread::park_timeout(every);
    };
    std::thread::Builder::new().name("monitor-trees".to_owned()).spawn(ask)?;
    Ok(())
}

fn tree_path(stream: &str) -> String {
    format!("/v1/streams/{}/tree", escaped(stream))
}

/// Where a stream is to be consumed.
fn places(
    server: &Server,
    stream: &str,
    wanted: &[String],
    known: &[ClusterView],
    here: &str,
) -> anyhow::Result<MonitoredPlaces> {
    let tree: anyhow::Result<CopyTreeView> = server.get(&tree_path(stream));
    let (names, tree) = match tree {
        Ok(tree) => {
            let to: Vec<String> = tree.hops.iter().map(|hop| hop.to.clone()).collect();
            if let Some(name) = wanted.iter().find(|name| **name != tree.source && !to.contains(name)) {
                anyhow::bail!("cluster {name} has no copy of {stream}: name one of {}", to.join(", "));
            }
            let is_wanted = |name: &&String| wanted.is_empty() || wanted.contains(name);
            let to: Vec<String> = to.iter().filter(is_wanted).cloned().collect();
            let names: Vec<String> = std::iter::once(tree.source.clone()).chain(to).collect();
            (names, Some(tree))
        }
        // It is nowhere else.
        Err(error) => match error.downcast_ref::<AdminRefused>() {
            Some(AdminRefused(refused)) if refused.error == "not_placed" => {
                ensure!(wanted.is_empty(), "{stream} is copied to no cluster");
                let here = known.iter().find(|known| known.is_here).map_or("-", |here| &here.name);
                (vec![here.to_owned()], None)
            }
            _ => return Err(error),
        },
    };
    let place = |name: String| {
        let of = known.iter().find(|known| known.name == name);
        let address = match of {
            Some(ClusterView { is_here: false, address: Some(address), .. }) => address.clone(),
            Some(ClusterView { is_here: true, .. }) => here.to_owned(),
            None if name == "-" => here.to_owned(),
            _ => {
                return Err(anyhow::anyhow!(
                    "the node does not know cluster {name}: ask that of the cluster of the source"
                ));
            }
        };
        Ok((name, address))
    };
    let places = names.into_iter().map(place).collect::<anyhow::Result<Vec<_>>>();
    Ok(MonitoredPlaces { tree, clusters: places.with_context(|| format!("stream {stream}"))? })
}

impl Monitored {
    fn start(
        env: &Env,
        (dialer, login): &(Dialer, Option<ClientLogin>),
        args: &Args,
        stream: &str,
        places: MonitoredPlaces,
    ) -> Self {
        let MonitoredPlaces { tree, clusters: places } = places;
        let names = places.iter().map(|(cluster, _)| cluster.clone());
        let mut watched = WatchedStream::new(names, args.delay_ms);
        if let Some(tree) = tree {
            watched.set_tree(tree);
        }
        let watch = SharedWatch::of(watched);
        let follow = |cluster: Option<usize>, address: &str| {
            let place = FollowedPlace {
                address: address.to_owned(),
                stream: stream.to_owned(),
                cluster,
                dialer: dialer.clone(),
                login: login.clone(),
                watch: watch.clone(),
            };
            env.spawn("monitor", place.follow(env.clone()))
        };
        let mut tasks: Vec<_> =
            places.iter().enumerate().map(|(at, (_, address))| follow(Some(at), address)).collect();
        if let Some((_, source)) = places.first().filter(|_| !args.unchecked) {
            tasks.push(follow(None, source));
        }
        let budgets = places.iter().map(|_| args.budgets()).collect();
        Self { stream: stream.to_owned(), watch, budgets, _tasks: tasks }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_objective_is_a_part_of_one_and_what_is_none_is_told_with_what_would_be() {
        assert_eq!(share("0.999"), Ok(0.999));
        assert_eq!(share("1"), Ok(1.0));
        for wrong in ["0", "-0.1", "1.01", "99.9%", "nan", "inf", ""] {
            assert!(share(wrong).is_err_and(|why| why.contains("as in 0.999")), "{wrong}");
        }
    }
}

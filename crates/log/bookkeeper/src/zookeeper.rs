//! What the Java client keeps in ZooKeeper, as it keeps it there: which bookies there are, numbers for new ledgers, and
//! each ledger's metadata.
//!
//! ```text
//!  ROOT/LAYOUT                        how ledgers' paths are made; hierarchical here
//!  ROOT/available/BOOKIE              an ephemeral node for each bookie; its data may say where the bookie listens
//!  ROOT/available/readonly/BOOKIE     for one that takes no entries
//!  ROOT/idgen/ID-0000000042           a sequence node, made for its number and removed
//!  ROOT/00/0000/L0042                 the metadata of ledger 42: its number in ten digits
//!  ROOT/000/0000/0030/0000/L0000      of a ledger whose number does not fit in 31 bits: nineteen digits
//! ```

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::future::{Either, select};
use prost::Message;
use tailwater_access::EngineLogin;
use tailwater_env::Env;
use tailwater_tls::{Dialer, Relays};
use tokio::sync::{Mutex, OnceCell};
use zookeeper_client::{Acl, Acls, Client, CreateMode, Error as ZkError, SaslOptions};

use crate::ids::{BookieId, EntryId, LedgerId};
use crate::metadata::LedgerMetadata;
use crate::step::{LedgerFault, ReplaceFault, VersionedMetadata};

/// How long a session outlives its connection: nothing that lasts hangs on one.
const SESSION_TIMEOUT: Duration = Duration::from_secs(10);
/// How long ZooKeeper may take to answer a request, before the request is given up.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// The port of a server of ZooKeeper that is named without one.
const ZOOKEEPER_PORT: &str = "2181";
/// What may stand before `://`: ours, and those that the Java client has for these ledgers.
const SCHEMES: [&str; 3] = ["bookkeeper", "zk", "zk+hierarchical"];

/// Where BookKeeper's metadata are: `bookkeeper://HOST[:PORT][,HOST[:PORT]...]/PATH`, with the servers of ZooKeeper.
/// The Java client's `zk+hierarchical://HOST:PORT[;HOST:PORT...]/PATH` is the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LedgersUri {
    servers: String,
    root: String,
}

/// Why a text is no place of ledgers.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not of the form bookkeeper://HOST[:PORT][,HOST[:PORT]...]/PATH, with the servers of ZooKeeper"
)]
pub struct LedgersUriFault(String);

impl std::str::FromStr for LedgersUri {
    type Err = LedgersUriFault;

    fn from_str(text: &str) -> Result<Self, LedgersUriFault> {
        let parsed = || {
            let (scheme, rest) = text.split_once("://")?;
            let (servers, path) = rest.split_once('/')?;
            let path = path.trim_end_matches('/');
            if !SCHEMES.contains(&scheme) || path.split('/').any(str::is_empty) {
                return None;
            }
            let servers: Option<Vec<String>> = servers.split([',', ';']).map(with_port).collect();
            Some(Self { servers: servers?.join(","), root: format!("/{path}") })
        };
        parsed().ok_or_else(|| LedgersUriFault(text.to_owned()))
    }
}

fn with_port(server: &str) -> Option<String> {
    let (host, port) = server.rsplit_once(':').unwrap_or((server, ZOOKEEPER_PORT));
    let is_named = !host.is_empty() && host.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'@');
    (is_named && port.parse::<u16>().is_ok()).then(|| format!("{host}:{port}"))
}

impl std::fmt::Display for LedgersUri {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "bookkeeper://{}{}", self.servers, self.root)
    }
}

struct LedgersInner {
    env: Env,
    uri: LedgersUri,
    login: Option<EngineLogin>,
    dialer: Dialer,
    /// The ways to the servers, once they were needed.
    relays: OnceCell<Relays>,
    /// The session, and a new one after it expired.
    client: Mutex<Option<Client>>,
}

/// A handle on all of it. Cheap to clone.
#[derive(Clone)]
pub struct Ledgers(Arc<LedgersInner>);

/// The ledgers that there were at a moment, and the session that saw them. By another session a ledger that is there
/// might not be found: its server may not have it yet.
pub struct LedgerScan {
    of: Ledgers,
    client: Client,
    ledgers: Vec<LedgerId>,
}

impl LedgerScan {
    /// Their numbers, in order: of all that were created before the scan, by whomever. Those that were created or
    /// deleted meanwhile may be among them or not.
    pub fn ledgers(&self) -> &[LedgerId] {
        &self.ledgers
    }

    /// A ledger's metadata, which are at most as old as the scan.
    ///
    /// # Errors
    /// `NoLedger` of one that was deleted since; another one where the session has ended.
    pub async fn read(&self, ledger: LedgerId) -> Result<VersionedMetadata, LedgerFault> {
        self.of.read_by(&self.client, ledger).await
    }
}

fn fault(error: ZkError) -> LedgerFault {
    match error {
        ZkError::NoNode => LedgerFault::NoLedger,
        ZkError::AuthFailed | ZkError::NoAuth => LedgerFault::ZooKeeper(format!(
            "{error}: it does not let in the user and password of [zookeeper]"
        )),
        other => LedgerFault::ZooKeeper(other.to_string()),
    }
}

impl Ledgers {
    /// Connects, logs in if there is a login, and checks that there is a layout that this client knows.
    pub async fn connect(
        env: Env,
        uri: LedgersUri,
        login: Option<EngineLogin>,
        dialer: Dialer,
    ) -> Result<Self, LedgerFault> {
        let (relays, client) = (OnceCell::new(), Mutex::new(None));
        let ledgers = Self(Arc::new(LedgersInner { env, uri, login, dialer, relays, client }));
        let root = &ledgers.0.uri.root;
        let layout = match ledgers.read_node(&format!("{root}/LAYOUT")).await {
            Err(LedgerFault::NoLedger) => {
                return Err(LedgerFault::ZooKeeper(format!(
                    "{root}/LAYOUT is not there: BookKeeper was never formatted there (bookkeeper shell initnewcluster)"
                )));
            }
            other => other?.0,
        };
        let layout = String::from_utf8_lossy(&layout);
        // Two lines: the layout's own version, and factory:version.
        if layout.contains(".HierarchicalLedgerManagerFactory:")
            || layout.contains(".LegacyHierarchicalLedgerManagerFactory:")
        {
            return Ok(ledgers);
        }
        Err(LedgerFault::ZooKeeper(format!(
            "{root}/LAYOUT is {:?}; this client knows the hierarchical one only",
            layout.trim()
        )))
    }

    /// One of a place that nobody was asked about.
    #[cfg(test)]
    pub(crate) fn unconnected(env: Env, uri: LedgersUri) -> Self {
        let (relays, client) = (OnceCell::new(), Mutex::new(None));
        Self(Arc::new(LedgersInner { env, uri, login: None, dialer: Dialer::plain(), relays, client }))
    }

    /// A session that has not ended, as far as is known.
    async fn client(&self) -> Result<Client, LedgerFault> {
        let mut client = self.0.client.lock().await;
        if let Some(client) = client.as_ref().filter(|client| !client.state().is_terminated()) {
            return Ok(client.clone());
        }
        let mut connector = Client::connector().with_session_timeout(SESSION_TIMEOUT);
        if let Some(EngineLogin { user, password }) = &self.0.login {
            connector =
                connector.with_sasl(SaslOptions::digest_md5(user.clone(), password.text().to_owned()));
        }
        let relaying = || Relays::open(&self.0.env, &self.0.dialer, &self.0.uri.servers);
        let told = |why: std::io::Error| LedgerFault::ZooKeeper(format!("it can't be reached in TLS: {why}"));
        let relays = self.0.relays.get_or_try_init(relaying).await.map_err(told)?;
        // Of a connection in TLS that does not come to be the library hears only that it has ended.
        let connecting = pin!(self.timed(connector.connect(relays.servers())));
        let new = match select(connecting, pin!(relays.all_refused())).await {
            Either::Left((connected, _)) => {
                connected.map_err(|fault| relays.refusal().map_or(fault, LedgerFault::ZooKeeper))?
            }
            Either::Right((why, _)) => return Err(LedgerFault::ZooKeeper(why)),
        };
        *client = Some(new.clone());
        Ok(new)
    }

    async fn timed<T>(&self, future: impl Future<Output = Result<T, ZkError>>) -> Result<T, LedgerFault> {
        self.timed_raw(future).await.map_err(fault)
    }

    async fn timed_raw<T>(&self, future: impl Future<Output = Result<T, ZkError>>) -> Result<T, ZkError> {
        self.0.env.timeout(ANSWER_TIMEOUT, future).await.unwrap_or(Err(ZkError::Timeout))
    }

    /// Whose the nodes are that are made here: whose the ledgers' root is. So bookies can read and change them, whether
    /// BookKeeper was told to keep others out (`zkEnableSecurity`) or not.
    async fn acls(&self) -> Result<Vec<Acl>, LedgerFault> {
        let client = self.client().await?;
        Ok(self.timed(client.get_acl(&self.0.uri.root)).await?.0)
    }

    async fn read_node(&self, path: &str) -> Result<(Vec<u8>, i32), LedgerFault> {
        let client = self.client().await?;
        let (data, stat) = self.timed(client.get_data(path)).await?;
        Ok((data, stat.version))
    }

    async fn children(&self, path: &str) -> Result<Vec<String>, LedgerFault> {
        let client = self.client().await?;
        self.children_seen_by(&client, path).await
    }

    async fn children_seen_by(&self, client: &Client, path: &str) -> Result<Vec<String>, LedgerFault> {
        match self.timed(client.list_children(path)).await {
            Err(LedgerFault::NoLedger) => Ok(Vec::new()),
            other => other,
        }
    }

    /// The bookies that take entries, in the order of their names.
    pub async fn bookies(&self) -> Result<Vec<BookieId>, LedgerFault> {
        self.bookies_below("available").await
    }

    /// The bookies that are up and take no entries: their disks are full, or they were told so.
    pub async fn read_only_bookies(&self) -> Result<Vec<BookieId>, LedgerFault> {
        self.bookies_below("available/readonly").await
    }

    async fn bookies_below(&self, below: &str) -> Result<Vec<BookieId>, LedgerFault> {
        let mut names = self.children(&format!("{}/{below}", self.0.uri.root)).await?;
        names.retain(|name| name != "readonly");
        names.sort();
        Ok(names.iter().map(|name| BookieId::new(name)).collect())
    }

    /// The numbers of all ledgers, in order: of all that were created before the call, by whomever. Those that are
    /// created or deleted meanwhile may be among them or not.
    pub async fn list(&self) -> Result<Vec<LedgerId>, LedgerFault> {
        Ok(self.scan().await?.ledgers)
    }

    /// The same, to read them as they were then, or later.
    pub async fn scan(&self) -> Result<LedgerScan, LedgerFault> {
        // One session for all of it: another one's server may not have what this one has synced.
        let client = self.client().await?;
        self.timed(client.sync(&self.0.uri.root)).await?;
        let mut ledgers = Vec::new();
        let mut below = vec![String::new()];
        while let Some(path) = below.pop() {
            for name in self.children_seen_by(&client, &format!("{}{path}", self.0.uri.root)).await? {
                let child = format!("{path}/{name}");
                if let Some(ledger) = ledger_at(&child) {
                    ledgers.push(ledger);
                } else if leads_to_ledgers(&child) {
                    below.push(child);
                }
            }
        }
        ledgers.sort_unstable();
        Ok(LedgerScan { of: self.clone(), client, ledgers })
    }

    /// Where a bookie listens: as it registered itself, or its name if that is an address.
    pub(crate) async fn address_of(&self, bookie: &BookieId) -> Result<String, LedgerFault> {
        let name = bookie.name();
        if name.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok()) {
            return Ok(name.to_owned());
        }
        let root = &self.0.uri.root;
        for at in ["available", "available/readonly"] {
            match self.read_node(&format!("{root}/{at}/{name}")).await {
                Ok((data, _)) => {
                    if let Some(address) = registered_address(&data) {
                        return Ok(address);
                    }
                }
                Err(LedgerFault::NoLedger) => {}
                Err(other) => return Err(other),
            }
        }
        Err(LedgerFault::ZooKeeper(format!(
            "the bookie {name:?} is not registered, and its name is no address"
        )))
    }

    fn path_of(&self, ledger: LedgerId) -> String {
        format!("{}/{}", self.0.uri.root, path_below(ledger))
    }

    /// A ledger's metadata, as new as any change that was answered before, to whomever. What decides about a change is
    /// read like this: a server of ZooKeeper answers reads from what it has, which may be old.
    ///
    /// # Errors
    /// `NoLedger` only where there is none by then.
    pub async fn read_latest(&self, ledger: LedgerId) -> Result<VersionedMetadata, LedgerFault> {
        let client = self.client().await?;
        self.timed(client.sync(&self.path_of(ledger))).await?;
        // By the session that has synced: another one's server may be behind.
        self.read_by(&client, ledger).await
    }

    /// A ledger's metadata. They may be a moment old.
    ///
    /// # Errors
    /// `NoLedger` also of one that was created a moment ago.
    pub async fn read(&self, ledger: LedgerId) -> Result<VersionedMetadata, LedgerFault> {
        let client = self.client().await?;
        self.read_by(&client, ledger).await
    }

    async fn read_by(&self, client: &Client, ledger: LedgerId) -> Result<VersionedMetadata, LedgerFault> {
        let (data, stat) = self.timed(client.get_data(&self.path_of(ledger))).await?;
        Ok(VersionedMetadata { metadata: LedgerMetadata::decode(&data)?, version: stat.version })
    }

    /// Replaces them if they have `version`; the new one.
    pub(crate) async fn replace(
        &self,
        ledger: LedgerId,
        metadata: &LedgerMetadata,
        version: i32,
    ) -> Result<i32, ReplaceFault> {
        let client = self.client().await.map_err(|_| ReplaceFault::Unknown)?;
        let (path, data) = (self.path_of(ledger), metadata.encode());
        match self.timed_raw(client.set_data(&path, &data, Some(version))).await {
            Ok(stat) => Ok(stat.version),
            Err(ZkError::BadVersion) => Err(ReplaceFault::Conflict),
            Err(_) => Err(ReplaceFault::Unknown),
        }
    }

    /// A number that no ledger has.
    async fn new_id(&self) -> Result<LedgerId, LedgerFault> {
        let client = self.client().await?;
        let prefix = format!("{}/idgen/ID-", self.0.uri.root);
        let acls = self.acls().await?;
        let options = CreateMode::EphemeralSequential.with_acls(Acls::new(&acls));
        let created = match self.timed_raw(client.create(&prefix, b"", &options)).await {
            Err(ZkError::NoNode) => {
                self.make_parents(&prefix).await?;
                self.timed(client.create(&prefix, b"", &options)).await?
            }
            other => other.map_err(fault)?,
        };
        let sequence = created.1.into_i64();
        // It goes with the session in any case.
        let _ = self.timed(client.delete(&format!("{prefix}{}", created.1), None)).await;
        if sequence >= i64::from(i32::MAX) {
            return Err(LedgerFault::ZooKeeper("no short numbers of ledgers are left".to_owned()));
        }
        LedgerId::new(sequence).ok_or_else(|| LedgerFault::ZooKeeper("a negative sequence number".to_owned()))
    }

    /// Makes the nodes above `path` that are not there.
    async fn make_parents(&self, path: &str) -> Result<(), LedgerFault> {
        let client = self.client().await?;
        let acls = self.acls().await?;
        let options = CreateMode::Persistent.with_acls(Acls::new(&acls));
        let ends = path.match_indices('/').map(|(at, _)| at).filter(|at| *at > self.0.uri.root.len());
        for end in ends {
            match self.timed_raw(client.create(&path[..end], b"", &options)).await {
                Ok(_) | Err(ZkError::NodeExists) => {}
                Err(other) => return Err(fault(other)),
            }
        }
        Ok(())
    }

    /// Creates a ledger with these metadata, whose token is a new one.
    pub(crate) async fn create(
        &self,
        metadata: &LedgerMetadata,
    ) -> Result<(LedgerId, VersionedMetadata), LedgerFault> {
        let ledger = self.new_id().await?;
        let client = self.client().await?;
        let (path, data) = (self.path_of(ledger), metadata.encode());
        let acls = self.acls().await?;
        let options = CreateMode::Persistent.with_acls(Acls::new(&acls));
        let mut created = self.timed_raw(client.create(&path, &data, &options)).await;
        if matches!(created, Err(ZkError::NoNode)) {
            self.make_parents(&path).await?;
            created = self.timed_raw(client.create(&path, &data, &options)).await;
        }
        match created {
            Ok((stat, _)) => {
                Ok((ledger, VersionedMetadata { metadata: metadata.clone(), version: stat.version }))
            }
            // The answer to our own request may have been lost.
            Err(ZkError::NodeExists) => {
                let found = self.read(ledger).await?;
                if found.metadata.token == metadata.token {
                    Ok((ledger, found))
                } else {
                    Err(LedgerFault::ZooKeeper(format!("ledger {ledger} is there already")))
                }
            }
            Err(other) => Err(fault(other)),
        }
    }

    /// Deletes a ledger if its metadata have `version`; whether they had. One that is gone is deleted.
    ///
    /// # Errors
    /// Those of ZooKeeper. It is not known then whether the ledger is deleted.
    pub async fn delete_version(&self, ledger: LedgerId, version: i32) -> Result<bool, LedgerFault> {
        let client = self.client().await?;
        match self.timed_raw(client.delete(&self.path_of(ledger), Some(version))).await {
            Ok(()) | Err(ZkError::NoNode) => Ok(true),
            Err(ZkError::BadVersion) => Ok(false),
            Err(other) => Err(fault(other)),
        }
    }

    /// Deletes a ledger: its bookies remove its entries by and by.
    pub async fn delete(&self, ledger: LedgerId) -> Result<(), LedgerFault> {
        let client = self.client().await?;
        self.timed(client.delete(&self.path_of(ledger), None)).await
    }
}

pub(crate) fn path_below(ledger: LedgerId) -> String {
    let number = ledger.get();
    if number < i64::from(i32::MAX) {
        let digits = format!("{number:010}");
        return format!("{}/{}/L{}", &digits[..2], &digits[2..6], &digits[6..]);
    }
    let digits = format!("{number:019}");
    let parts = [&digits[..3], &digits[3..7], &digits[7..11], &digits[11..15]];
    format!("{}/L{}", parts.join("/"), &digits[15..])
}

/// The ledger whose metadata are at this path below the root.
pub(crate) fn ledger_at(path: &str) -> Option<LedgerId> {
    let digits: String = path.strip_prefix('/')?.split('/').collect();
    let number = digits.replacen('L', "", 1).parse().ok().and_then(LedgerId::new)?;
    // So nothing else is taken for one.
    (path[1..] == path_below(number)).then_some(number)
}

/// Whether ledgers' metadata may be below this path: `/00/0000`, or `/000/0000/0000/0000`.
pub(crate) fn leads_to_ledgers(path: &str) -> bool {
    let parts: Vec<usize> = path.split('/').skip(1).map(str::len).collect();
    let shapes: [&[usize]; 2] = [&[2, 4], &[3, 4, 4, 4]];
    let fits = shapes.iter().any(|shape| shape.starts_with(&parts));
    fits && path.bytes().all(|byte| byte == b'/' || byte.is_ascii_digit())
}

/// `BookieServiceInfoFormat` of `DataFormats.proto`.
#[derive(Clone, PartialEq, Message)]
struct BookieRegistration {
    #[prost(message, repeated, tag = "6")]
    endpoints: Vec<RegisteredEndpoint>,
}

#[derive(Clone, PartialEq, Message)]
struct RegisteredEndpoint {
    #[prost(string, required, tag = "1")]
    id: String,
    #[prost(int32, required, tag = "2")]
    port: i32,
    #[prost(string, required, tag = "3")]
    host: String,
    #[prost(string, required, tag = "4")]
    protocol: String,
}

pub(crate) fn registered_address(data: &[u8]) -> Option<String> {
    let registration = BookieRegistration::decode(data).ok()?;
    let endpoint = registration.endpoints.into_iter().find(|endpoint| endpoint.protocol == "bookie-rpc")?;
    Some(format!("{}:{}", endpoint.host, endpoint.port))
}

/// The last entry of a closed ledger, `None` of another one.
pub(crate) fn closed_at(metadata: &LedgerMetadata) -> Option<EntryId> {
    match metadata.state {
        crate::metadata::LedgerStatus::Closed { last, .. } => Some(last),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ledgers_are_where_the_java_client_looks_for_them() {
        let path = |number| path_below(LedgerId::new(number).expect("not negative"));
        assert_eq!(path(0), "00/0000/L0000");
        assert_eq!(path(1_234_567_890), "12/3456/L7890");
        assert_eq!(path(i64::from(i32::MAX)), "000/0000/0021/4748/L3647");
        assert_eq!(path(i64::MAX), "922/3372/0368/5477/L5807");
    }

    #[test]
    fn ledgers_are_told_from_what_else_is_there() {
        for number in [0, 7, 1_234_567_890, i64::from(i32::MAX), i64::MAX] {
            let ledger = LedgerId::new(number).expect("not negative");
            let path = format!("/{}", path_below(ledger));
            assert_eq!(ledger_at(&path), Some(ledger));
            let above: Vec<usize> = path.match_indices('/').map(|(at, _)| at).skip(1).collect();
            assert!(above.iter().all(|end| leads_to_ledgers(&path[..*end])), "{path}");
        }
        for other in [
            "/available",
            "/LAYOUT",
            "/idgen",
            "/underreplication",
            "/00/0000/x",
            "/00/0000/L00x0",
            "/cookies",
        ] {
            assert!(ledger_at(other).is_none() && !leads_to_ledgers(other), "{other}");
        }
    }

    #[test]
    fn a_place_of_ledgers_is_servers_and_a_path() {
        let uri = |text: &str| text.parse::<LedgersUri>();
        let one = uri("bookkeeper://a:1,b/ledgers").expect("well-formed");
        assert_eq!(one.to_string(), "bookkeeper://a:1,b:2181/ledgers");
        assert_eq!(uri("zk+hierarchical://a:1;b:2181/ledgers/"), Ok(one));
        for wrong in [
            "a:1/ledgers",
            "zk://a:1",
            "zk://a:1/",
            "zk://:1/x",
            "http://a:1/x",
            "zk://a:1//x",
            "zk://a:x/y",
            "zk://a,/y",
        ] {
            assert!(uri(wrong).is_err_and(|fault| fault.to_string().contains(wrong)), "{wrong}");
        }
    }

    #[test]
    fn a_bookie_with_a_name_of_its_own_is_found_where_it_registered() {
        let endpoint = |protocol: &str, port| RegisteredEndpoint {
            id: "x".to_owned(),
            port,
            host: "10.0.0.1".to_owned(),
            protocol: protocol.to_owned(),
        };
        let registration =
            BookieRegistration { endpoints: vec![endpoint("http", 80), endpoint("bookie-rpc", 3181)] };
        assert_eq!(registered_address(&registration.encode_to_vec()).as_deref(), Some("10.0.0.1:3181"));
        assert_eq!(registered_address(b"\xff\xff"), None);
        assert_eq!(registered_address(b""), None);
    }
}

//! Where the segments of streams are: `segments`, and `[ledgers]` for those in BookKeeper.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tailwater_access::SecretText;
use tailwater_env::Env;
use tailwater_store::OpenSegments;

use super::ZooKeeperSection;

/// `segments` of a node that keeps them in its data directory.
pub(super) const EMBEDDED: &str = "embedded";

/// What a build without the client of BookKeeper says to whoever wants segments there.
#[cfg(not(feature = "bookkeeper"))]
const NO_BOOKKEEPER: &str = "segments names a BookKeeper cluster, but this build has no client of BookKeeper: `make dist` makes \
    target/dist/tailwater, which has it, as has one of `cargo build --release -p tailwater --features bookkeeper`; or use \
    \"embedded\"";

/// A store, and what new ledgers in it are like.
#[cfg(feature = "bookkeeper")]
type LedgersPlace =
    (tailwater_bookkeeper::LedgersUri, tailwater_bookkeeper::Quorums, tailwater_bookkeeper::BookiePlaces);

/// How many bookies a new segment's ledger is on, how many copies an entry has, and how many of them acknowledge it. A
/// segment keeps what it began with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LedgersSection {
    /// Bookies of a ledger.
    pub ensemble: usize,
    /// Copies of each entry.
    pub write_quorum: usize,
    /// Copies that are durable before an entry is acknowledged.
    pub ack_quorum: usize,
    /// Regions that the copies which acknowledge an entry are in, whichever they are. It had another name before.
    #[serde(alias = "regions_min")]
    pub min_regions: usize,
    /// The region of this node, by whose bookies it reads first; empty if there is none.
    pub region: String,
    /// Where bookies are: `/REGION/RACK` of each, by its name.
    pub places: BTreeMap<String, String>,
    /// How often it is looked for ledgers that no record names, in milliseconds; 0 is never. Of nodes that are all
    /// active one looks.
    pub sweep_ms: u64,
    /// Who to log in to bookies as, where they have users; empty is nobody.
    pub user: String,
    /// The password.
    pub password: SecretText,
    /// A file that has the password in its first line.
    pub password_file: Option<PathBuf>,
    /// A PEM file with the CAs of bookies' certificates. None is no TLS.
    pub ca: Option<PathBuf>,
    /// A PEM file with the certificate that is shown to bookies, for those that want one.
    pub certificate: Option<PathBuf>,
    /// A PEM file with its key. None is the file of the certificate.
    pub key: Option<PathBuf>,
}

impl Default for LedgersSection {
    fn default() -> Self {
        Self {
            ensemble: 3,
            write_quorum: 3,
            ack_quorum: 2,
            min_regions: 1,
            region: String::new(),
            places: BTreeMap::new(),
            sweep_ms: 3_600 * 1_000,
            user: String::new(),
            password: SecretText::default(),
            password_file: None,
            ca: None,
            certificate: None,
            key: None,
        }
    }
}

impl LedgersSection {
    /// Whether `segments` names a store, and the rest makes sense. Files are not read.
    ///
    /// # Errors
    /// If it names none, or the quorums are out of order.
    #[cfg(feature = "bookkeeper")]
    pub(super) fn check(&self, segments: &str) -> anyhow::Result<()> {
        self.place(segments).map(drop)
    }

    /// The store that `segments` names; `None` for the one in the data directory.
    ///
    /// # Errors
    /// If it names none, the quorums are out of order, or a certificate can't be read.
    #[cfg(feature = "bookkeeper")]
    pub(super) fn opening(
        &self,
        env: &Env,
        segments: &str,
        zookeeper: &ZooKeeperSection,
    ) -> anyhow::Result<Option<Arc<dyn OpenSegments>>> {
        let Some((uri, quorums, places)) = self.place(segments)? else { return Ok(None) };
        Ok(Some(Arc::new(tailwater_ledgers::LedgerOpening {
            uri,
            security: self.security(env, zookeeper)?,
            quorums,
            places,
            times: tailwater_bookkeeper::LedgerTimes::default(),
        })))
    }

    /// Where bookies are, and in how many regions copies are to be.
    #[cfg(feature = "bookkeeper")]
    fn bookie_places(&self) -> anyhow::Result<tailwater_bookkeeper::BookiePlaces> {
        use anyhow::Context;
        use tailwater_bookkeeper::{BookieId, BookiePlace, BookiePlaces};

        let place = |(bookie, place): (&String, &String)| -> anyhow::Result<_> {
            let place = place.parse().with_context(|| format!("[ledgers.places] {bookie:?}"))?;
            Ok((BookieId::new(bookie), place))
        };
        let of: BTreeMap<BookieId, BookiePlace> =
            self.places.iter().map(place).collect::<anyhow::Result<_>>()?;
        let own_region = (!self.region.is_empty()).then(|| self.region.as_str().into());
        Ok(BookiePlaces { places: Arc::new(of), own_region, min_regions: self.min_regions })
    }

    /// Where the ledgers of new segments are, and how many copies.
    #[cfg(feature = "bookkeeper")]
    fn place(&self, segments: &str) -> anyhow::Result<Option<LedgersPlace>> {
        use tailwater_bookkeeper::Quorums;
        use tailwater_bookkeeper::limits::{ENSEMBLE_MAX, ENTRY_BYTES_MAX};

        // What the log appends at once is at most an append and its header: a bookie takes each.
        const _: () = assert!(
            tailwater_format::limits::APPEND_BYTES_MAX + tailwater_format::ENTRY_HEADER_BYTES
                <= ENTRY_BYTES_MAX
        );

        let Self { ensemble, write_quorum, ack_quorum, min_regions, .. } = *self;
        let quorums = Quorums::new(ensemble, write_quorum, ack_quorum);
        let quorums = quorums.ok_or_else(|| {
            anyhow::anyhow!(
                "[ledgers] has ensemble = {ensemble}, write_quorum = {write_quorum}, ack_quorum = {ack_quorum}, and needs \
                 1 <= ack_quorum <= write_quorum <= ensemble <= {ENSEMBLE_MAX}"
            )
        })?;
        let places = self.bookie_places()?;
        anyhow::ensure!(
            min_regions <= ack_quorum,
            "[ledgers] has min_regions = {min_regions} and ack_quorum = {ack_quorum}: so few copies are not in so many regions"
        );
        anyhow::ensure!(
            self.sweep_ms == 0 || (1_000..=1 << 50).contains(&self.sweep_ms),
            "[ledgers] sweep_ms = {} is neither 0 nor between 1000 and {}",
            self.sweep_ms,
            1_u64 << 50
        );
        if segments == EMBEDDED {
            return Ok(None);
        }
        let uri = segments.parse().map_err(|_| no_place(segments))?;
        Ok(Some((uri, quorums, places)))
    }

    /// How the servers are reached that have ledgers.
    ///
    /// # Errors
    /// A user without a password, and a certificate that can't be read.
    #[cfg(feature = "bookkeeper")]
    fn security(
        &self,
        env: &Env,
        zookeeper: &ZooKeeperSection,
    ) -> anyhow::Result<tailwater_bookkeeper::LedgersSecurity> {
        let files = [&self.ca, &self.certificate, &self.key];
        let bookies = tailwater_bookkeeper::BookieSecurity {
            login: super::secrets::engine_login("[ledgers]", &self.user, &self.password)?,
            dialer: super::secrets::engine_dialer(env, "[ledgers]", "bookies'", files)?,
        };
        Ok(tailwater_bookkeeper::LedgersSecurity {
            zookeeper: zookeeper.login()?,
            zookeeper_dialer: zookeeper.dialer(env)?,
            bookies,
        })
    }

    /// The same in a build that has the data directory only.
    ///
    /// # Errors
    /// If `segments` names anything else.
    #[cfg(not(feature = "bookkeeper"))]
    pub(super) fn check(&self, segments: &str) -> anyhow::Result<()> {
        match segments {
            EMBEDDED => Ok(()),
            _ if segments.starts_with("bookkeeper://") => anyhow::bail!(NO_BOOKKEEPER),
            _ => Err(no_place(segments)),
        }
    }

    /// The store in the data directory: a build without the client of BookKeeper has no other one.
    ///
    /// # Errors
    /// As [`Self::check`].
    #[cfg(not(feature = "bookkeeper"))]
    pub(super) fn opening(
        &self,
        _: &Env,
        segments: &str,
        _: &ZooKeeperSection,
    ) -> anyhow::Result<Option<Arc<dyn OpenSegments>>> {
        self.check(segments).map(|()| None)
    }
}

#[cfg(feature = "bookkeeper")]
impl super::Config {
    /// Where ledgers are, how their servers are reached, and where bookies are: `store`, or what `segments` names.
    ///
    /// # Errors
    /// If there is no store, a secret can't be read, or a certificate, or a place of a bookie is none.
    pub fn ledgers_at(
        &mut self,
        env: &Env,
        store: Option<tailwater_bookkeeper::LedgersUri>,
    ) -> anyhow::Result<(
        tailwater_bookkeeper::LedgersUri,
        tailwater_bookkeeper::LedgersSecurity,
        tailwater_bookkeeper::BookiePlaces,
    )> {
        self.read_secrets()?;
        let store = match store {
            Some(store) => store,
            None => self.segments.parse().map_err(|_| {
                anyhow::anyhow!(
                    "no store is named: give --store bookkeeper://HOST/PATH, or --config with the file of a node that has its \
                     segments there"
                )
            })?,
        };
        Ok((store, self.ledgers.security(env, &self.zookeeper)?, self.ledgers.bookie_places()?))
    }
}

fn no_place(segments: &str) -> anyhow::Error {
    anyhow::anyhow!(
        "segments = {segments:?} is no place for segments: use \"{EMBEDDED}\", or \
         bookkeeper://HOST[:PORT][,HOST[:PORT]...]/PATH with the servers of ZooKeeper"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn opened(section: &LedgersSection, segments: &str) -> anyhow::Result<Option<Arc<dyn OpenSegments>>> {
        section.opening(&Env::real(), segments, &ZooKeeperSection::default())
    }

    #[tokio::test]
    async fn segments_are_in_the_data_directory_or_where_a_url_says() {
        let section = LedgersSection::default();
        assert!(opened(&section, EMBEDDED).expect("a place").is_none());
        for wrong in ["", "bookeeper://zk1/ledgers", "http://zk1/ledgers", "/ledgers"] {
            let error = opened(&section, wrong).expect_err("refused").to_string();
            assert!(
                error.contains(&format!("segments = {wrong:?}")) && error.contains("embedded"),
                "{error}"
            );
        }
        let named = opened(&section, "bookkeeper://zk1,zk2:2182/ledgers");
        if cfg!(feature = "bookkeeper") {
            assert!(named.expect("a place").is_some());
        } else {
            assert!(named.expect_err("refused").to_string().contains("make dist"));
        }
    }

    #[cfg(feature = "bookkeeper")]
    #[tokio::test]
    async fn quorums_out_of_order_and_sweeps_without_a_pause_are_refused_by_name() {
        let section = LedgersSection { write_quorum: 4, ..LedgersSection::default() };
        let error = opened(&section, "bookkeeper://zk1/ledgers").expect_err("refused").to_string();
        assert!(error.contains("write_quorum = 4"), "{error}");
        let section = LedgersSection { sweep_ms: 999, ..LedgersSection::default() };
        let error = opened(&section, "bookkeeper://zk1/ledgers").expect_err("refused").to_string();
        assert!(error.contains("sweep_ms = 999"), "{error}");
    }

    #[cfg(feature = "bookkeeper")]
    #[tokio::test]
    async fn half_of_a_login_and_a_certificate_that_nobody_is_shown_are_refused() {
        let store = "bookkeeper://zk1/ledgers";
        let user = LedgersSection { user: "tailwater".to_owned(), ..LedgersSection::default() };
        assert!(opened(&user, store).expect_err("refused").to_string().contains("[ledgers]"));
        let certificate =
            LedgersSection { certificate: Some("client.pem".into()), ..LedgersSection::default() };
        assert!(opened(&certificate, store).expect_err("refused").to_string().contains("`ca`"));
        let zookeeper =
            ZooKeeperSection { password: SecretText::new("secret"), ..ZooKeeperSection::default() };
        let refused = LedgersSection::default().opening(&Env::real(), store, &zookeeper);
        assert!(refused.expect_err("refused").to_string().contains("[zookeeper]"));
        let zookeeper =
            ZooKeeperSection { certificate: Some("client.pem".into()), ..ZooKeeperSection::default() };
        let refused = LedgersSection::default().opening(&Env::real(), store, &zookeeper);
        let refused = refused.expect_err("refused").to_string();
        assert!(refused.contains("[zookeeper]") && refused.contains("`ca`"), "{refused}");
    }
}

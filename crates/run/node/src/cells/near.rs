//! How a node's own clients reach the backends that it runs itself: in the process.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tailwater_cache::{BackendPlace, Connecting, Connector};

use crate::backend::{NearBackend, ServedBackend};

/// Connections to a backend in this process, whatever its number and its address are.
pub(super) struct ToOwn(Weak<NearBackend>);

impl ToOwn {
    /// To this one.
    pub(super) fn new(served: &ServedBackend) -> Self {
        Self(served.near())
    }
}

impl Connector for ToOwn {
    fn connect<'a>(&'a self, _: &'a BackendPlace) -> Connecting<'a> {
        let connected = self.0.upgrade().map(|near| near.connect());
        Box::pin(std::future::ready(connected.ok_or_else(|| "this node's backend has ended".to_owned())))
    }
}

/// The backends that a node runs, by their addresses on this host. Others are at other ones, so one that a cell's
/// configuration has elsewhere by now is not mistaken for the node's own of that number.
#[derive(Default)]
pub(super) struct NearBackends(Mutex<BTreeMap<String, Weak<NearBackend>>>);

impl NearBackends {
    /// One that was started. The one before at this address has ended.
    pub(super) fn note(&self, address: String, started: Weak<NearBackend>) {
        let mut near = self.0.lock();
        near.retain(|_, of| of.strong_count() > 0);
        near.insert(address, started);
    }

    fn at(&self, place: &BackendPlace) -> Option<Arc<NearBackend>> {
        let near = self.0.lock();
        place.addresses.iter().find_map(|address| near.get(address)?.upgrade())
    }
}

/// Connections to the backends that the node runs, and to others by their addresses.
pub(super) struct NearFirst {
    near: Arc<NearBackends>,
    far: Arc<dyn Connector>,
}

impl NearFirst {
    /// `far` connects to the others.
    pub(super) fn new(near: &Arc<NearBackends>, far: Arc<dyn Connector>) -> Self {
        Self { near: Arc::clone(near), far }
    }
}

impl Connector for NearFirst {
    fn connect<'a>(&'a self, place: &'a BackendPlace) -> Connecting<'a> {
        match self.near.at(place) {
            Some(near) => Box::pin(std::future::ready(Ok(near.connect()))),
            None => self.far.connect(place),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use bytes::Bytes;
    use tailwater_cache::{Backend, BackendConfig, Cell, CellConfig, Configuration, Lookup, Mode};
    use tailwater_env::Env;
    use tailwater_rma::Backing;

    use super::*;

    const ADDRESS: &str = "unix:/nowhere/tiles.0.sock";

    struct Nowhere;

    impl Connector for Nowhere {
        fn connect<'a>(&'a self, place: &'a BackendPlace) -> Connecting<'a> {
            Box::pin(std::future::ready(Err(format!("nobody listens at {:?}", place.addresses))))
        }
    }

    fn started(env: &Env) -> (Arc<Backend>, Arc<NearBackend>) {
        let config = BackendConfig::data(1 << 20, 64, 0, Backing::Private);
        let backend = Backend::start(env, config).expect("memory");
        backend.is_for("tiles");
        let near = NearBackend::new(env, &backend);
        (backend, near)
    }

    fn in_runtime<F: Future<Output = ()>>(test: impl FnOnce(Env) -> F) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime").block_on(async {
            let env = Env::real();
            let ended = env.timeout(Duration::from_secs(600), test(env.clone())).await;
            assert!(ended.is_some(), "the test never ends");
        });
    }

    async fn client(env: &Env, near: &Arc<NearBackends>, address: &str) -> Cell {
        let addresses = vec![vec![address.to_owned()]];
        let configuration = Configuration::first(7, "tiles", Mode::R1, addresses).expect("a configuration");
        let connector = Arc::new(NearFirst::new(near, Arc::new(Nowhere)));
        let mut config = CellConfig::of(configuration, connector, 1);
        config.deadline = Duration::from_secs(60);
        Cell::connect(env, config).await.expect("its configuration is good")
    }

    #[test]
    fn a_client_of_a_backend_that_is_replaced_in_the_process_goes_on_with_the_one_in_its_place() {
        in_runtime(|env| async move {
            let near = Arc::new(NearBackends::default());
            let (first, its_near) = started(&env);
            near.note(ADDRESS.to_owned(), Arc::downgrade(&its_near));
            let cell = client(&env, &near, ADDRESS).await;
            let tea = Bytes::from_static(b"tea");
            let set = async |value: &'static str| cell.set(vec![(tea.clone(), value.into())]).await.remove(0);
            set("1").await.expect("it is there");
            assert_eq!(first.stats().sets, 1);

            let (second, _its_near) = started(&env);
            drop(its_near);
            near.note(ADDRESS.to_owned(), Arc::downgrade(&_its_near));
            while set("2").await.is_err() {
                env.sleep(Duration::from_millis(1)).await;
            }
            assert_eq!(
                (first.stats().sets, second.stats().sets),
                (1, 1),
                "none was acknowledged by the first"
            );
            let got = cell.get_consistent(std::slice::from_ref(&tea)).await.remove(0);
            assert!(matches!(&got, Lookup::Hit { value, .. } if value == "2"), "{got:?}");
            // Nobody holds its memory any more.
            while Arc::strong_count(&first) > 1 {
                env.sleep(Duration::from_millis(1)).await;
            }
        });
    }

    #[test]
    fn a_backend_that_the_cell_has_elsewhere_is_none_of_the_node_s_own() {
        in_runtime(|env| async move {
            let near = Arc::new(NearBackends::default());
            let (_, its_near) = started(&env);
            near.note(ADDRESS.to_owned(), Arc::downgrade(&its_near));
            let elsewhere = BackendPlace::new(0, vec!["unix:/elsewhere/tiles.0.sock".to_owned()]);
            let own = BackendPlace::new(0, vec!["tcp:10.0.0.1:7500".to_owned(), ADDRESS.to_owned()]);
            let connector = NearFirst::new(&near, Arc::new(Nowhere));
            assert!(connector.connect(&elsewhere).await.is_err());
            assert!(connector.connect(&own).await.is_ok());
            drop(its_near);
            assert!(connector.connect(&own).await.is_err(), "it has ended");
        });
    }
}

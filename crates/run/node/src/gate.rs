//! How whoever connects comes in: what is encrypted, and who may do what.

use std::sync::Arc;

use tailwater_access::Authorizer;
use tailwater_env::{Env, Task};
use tailwater_kafka::KafkaConfig;
use tailwater_tls::{Acceptor, Certificates, Dialer, TlsConfig};

/// What all listeners of a node have in common.
pub(crate) struct FrontGate {
    pub(crate) authorizer: Arc<dyn Authorizer>,
    config: TlsConfig,
    certificates: Option<Arc<Certificates>>,
    /// What the node's own connections are made with.
    pub(crate) dialer: Dialer,
    /// Looks whether their files change.
    _watch: Option<Task>,
}

impl FrontGate {
    /// Reads the certificates that are configured, which blocks, and watches their files from then on.
    ///
    /// # Errors
    /// What is wrong with a file.
    pub(crate) fn open(
        env: &Env,
        config: &TlsConfig,
        authorizer: Arc<dyn Authorizer>,
    ) -> anyhow::Result<Self> {
        let certificates = Certificates::open(env, config)?;
        let dialer = Dialer::open(env, &config.dialer())?;
        let watch = certificates.as_ref().map(Certificates::watch);
        Ok(Self { authorizer, config: config.clone(), certificates, dialer, _watch: watch })
    }

    /// What takes the connections of a listener that says `tls` of itself, or nothing. The log calls it `name`.
    pub(crate) fn acceptor(&self, name: &'static str, tls: Option<bool>) -> Acceptor {
        match &self.certificates {
            Some(certificates) if self.config.covers(tls) => Acceptor::secured(name, certificates),
            _ => Acceptor::plain(),
        }
    }

    /// What takes the connections of `[listen] data`, and of the node's own cells, where that says `tls` or nothing.
    pub(crate) fn data_acceptor(&self, tls: Option<bool>) -> Acceptor {
        self.acceptor("[listen] data", tls)
    }

    /// What takes the connections of `[broadcast] listen`, where that says `tls` or nothing, and what makes those to
    /// other replicas: both are in TLS or neither is.
    pub(crate) fn broadcast(&self, tls: Option<bool>) -> (Acceptor, Dialer) {
        match self.config.covers_replicas(tls) {
            true => (self.acceptor("[broadcast] listen", Some(true)), self.dialer.clone()),
            false => (Acceptor::plain(), Dialer::plain()),
        }
    }

    /// The configuration of Kafka's protocol in which each listener says what it does.
    pub(crate) fn kafka(&self, config: &KafkaConfig) -> KafkaConfig {
        let mut config = config.clone();
        let said = config.listeners.iter_mut().map(|listener| &mut listener.tls).chain([&mut config.tls]);
        for tls in said {
            *tls = Some(self.config.covers(*tls));
        }
        config
    }

    /// The node's certificates, if it has any.
    pub(crate) fn certificates(&self) -> Option<&Arc<Certificates>> {
        self.certificates.as_ref()
    }
}

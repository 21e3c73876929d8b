//! What a load is put on, as flags say it: a node of ours that the bench starts, or a broker that is there.

use std::path::PathBuf;

use serde::Serialize;
use tailwater_load::address::LoadAddress;
use tailwater_load::messages::MessageProtocol;
use tailwater_load::system::{CellProcesses, PeerDurability, System, SystemArgs};

/// Flags about the server and how it is spoken to.
#[derive(clap::Args, Clone)]
pub struct TargetArgs {
    /// What clients speak.
    #[arg(long, value_enum, default_value_t = MessageProtocol::Tailwater)]
    protocol: MessageProtocol,
    /// With --protocol kafka: load this broker, and start no node.
    #[arg(long, value_name = "HOST:PORT")]
    bootstrap: Option<String>,
    /// The broker's process. The report has its CPU time then.
    #[arg(long, value_name = "PID", requires = "bootstrap")]
    server_pid: Option<u32>,
    /// With --bootstrap: reach the broker in TLS. FILE has the CA of its certificate.
    #[arg(long, value_name = "FILE", requires = "bootstrap")]
    broker_ca: Option<PathBuf>,
    /// Encrypt connections over TCP: those to the node and its cells, and those of Kafka's protocol.
    #[arg(long, conflicts_with = "bootstrap")]
    pub tls: bool,
    /// When the node acknowledges.
    #[arg(long, value_enum, default_value_t = PeerDurability::Fsync, conflicts_with = "bootstrap")]
    durability: PeerDurability,
    /// Requests of the producer that wait for their answers, in Kafka's protocol.
    #[arg(long, default_value_t = 5, value_name = "REQUESTS")]
    pub requests_in_flight: usize,
    #[command(flatten)]
    system: SystemArgs,
}

/// What is told of it.
#[derive(Clone, Debug, Serialize)]
pub struct LoadTarget {
    protocol: MessageProtocol,
    /// Nothing where a node was started.
    #[serde(skip_serializing_if = "Option::is_none")]
    bootstrap: Option<String>,
    /// Nothing where a broker is what it is.
    cells: Option<CellProcesses>,
    durability: Option<PeerDurability>,
    /// Whether connections over TCP are encrypted.
    tls: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    requests_in_flight: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    chunk_bytes: Option<u32>,
}

impl TargetArgs {
    /// What clients speak.
    pub fn protocol(&self) -> MessageProtocol {
        self.protocol
    }

    /// Starts the node, or finds the broker.
    pub fn start(&self) -> anyhow::Result<System> {
        let kafka = self.protocol == MessageProtocol::Kafka;
        match &self.bootstrap {
            Some(_) if !kafka => anyhow::bail!("--bootstrap needs --protocol kafka"),
            Some(address) => {
                let address = LoadAddress::from(address.clone()).with_ca(self.broker_ca.clone());
                System::connect(&self.system, address, self.server_pid)
            }
            None => System::start_for(&self.system(), kafka, self.durability),
        }
    }

    /// Kafka's clients read nothing from cells: three copies in six processes would only cost.
    fn system(&self) -> SystemArgs {
        let system = match self.protocol {
            MessageProtocol::Kafka => self.system.clone().or_cells(CellProcesses::R1),
            MessageProtocol::Tailwater => self.system.clone(),
        };
        if self.tls { system.secured() } else { system }
    }

    /// What is told of it.
    pub fn told(&self) -> LoadTarget {
        let own = self.bootstrap.is_none();
        LoadTarget {
            protocol: self.protocol,
            bootstrap: self.bootstrap.clone(),
            cells: own.then(|| self.system().cells()),
            durability: own.then_some(self.durability),
            tls: self.tls || self.broker_ca.is_some(),
            requests_in_flight: (self.protocol == MessageProtocol::Kafka).then_some(self.requests_in_flight),
            chunk_bytes: self.system.chunk_bytes(),
        }
    }
}

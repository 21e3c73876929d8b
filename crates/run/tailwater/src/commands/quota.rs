//! `tailwater quota …`

use std::collections::BTreeMap;

use clap::{ArgGroup, Subcommand};
use tailwater_node::api::{QUOTA_MAX, QuotaBound, QuotaEntity, QuotaView, SetQuota};

use crate::admin::{Server, escaped};
use crate::output::{self, Format, ListArgs};
use crate::values::number;

/// What to do with quotas.
#[derive(Subcommand)]
pub enum Command {
    /// Bound what a user, a client or an address may take in a second. Bounds that you do not give stay as they are.
    #[command(group = ArgGroup::new("bounds").multiple(true).required(true).args(
        ["producer_byte_rate", "consumer_byte_rate", "request_rate", "connection_creation_rate"]
    ))]
    Set {
        #[command(flatten)]
        about: About,
        /// Bytes of requests that append, in a second.
        #[arg(long, value_name = "BYTES", value_parser = number::<u64>(1..=QUOTA_MAX))]
        producer_byte_rate: Option<u64>,
        /// Bytes of records that requests read, and bytes of one-sided reads over TCP from the node's own cells, in a
        /// second. What a process reads by itself does not count.
        #[arg(long, value_name = "BYTES", value_parser = number::<u64>(1..=QUOTA_MAX))]
        consumer_byte_rate: Option<u64>,
        /// Requests of all kinds, in a second.
        #[arg(long, value_name = "COUNT", value_parser = number::<u64>(1..=QUOTA_MAX))]
        request_rate: Option<u64>,
        /// Connections that an address makes to Kafka's listeners, in a second.
        #[arg(long, value_name = "COUNT", value_parser = number::<u64>(1..=QUOTA_MAX))]
        connection_creation_rate: Option<u64>,
    },
    /// List quotas.
    #[command(visible_alias = "list")]
    Ls(ListArgs),
    /// Remove the quota about exactly this.
    #[command(visible_alias = "remove")]
    Rm {
        #[command(flatten)]
        about: About,
    },
}

/// The subject of a quota: a user, a client, both, or an address.
#[derive(clap::Args)]
#[group(required = true, multiple = true)]
pub struct About {
    /// A user, as the audit names it; * for each one without a quota of its own.
    #[arg(long, value_name = "NAME")]
    user: Option<String>,
    /// A client, by its own name (client.id in Kafka); * for each one without a quota of its own.
    #[arg(long, value_name = "ID")]
    client: Option<String>,
    /// An address; * for each one without a quota of its own.
    #[arg(long, value_name = "ADDRESS", conflicts_with_all = ["user", "client"])]
    address: Option<String>,
}

impl From<About> for QuotaEntity {
    fn from(About { user, client, address }: About) -> Self {
        Self { user, client_id: client, ip: address }
    }
}

/// Does it.
pub fn run(server: &Server, command: Command) -> anyhow::Result<()> {
    match command {
        Command::Set {
            about,
            producer_byte_rate,
            consumer_byte_rate,
            request_rate,
            connection_creation_rate,
        } => {
            let given = [
                (QuotaBound::ProducerByteRate, producer_byte_rate),
                (QuotaBound::ConsumerByteRate, consumer_byte_rate),
                (QuotaBound::RequestRate, request_rate),
                (QuotaBound::ConnectionCreationRate, connection_creation_rate),
            ];
            let bounds: BTreeMap<_, _> = given.into_iter().filter(|(_, most)| most.is_some()).collect();
            let set: QuotaView = server.put("/v1/quotas", &SetQuota { entity: about.into(), bounds })?;
            output::print(&said(&set))
        }
        Command::Ls(ListArgs { output }) => {
            let quotas: Vec<QuotaView> = server.get("/v1/quotas")?;
            match output {
                Format::Json => output::print_json(&quotas),
                Format::Table => table(&quotas),
            }
        }
        Command::Rm { about } => {
            let QuotaEntity { user, client_id, ip } = about.into();
            let named = [("user", user), ("client_id", client_id), ("ip", ip)];
            let named =
                named.into_iter().filter_map(|(part, name)| Some(format!("{part}={}", escaped(&name?))));
            let path = format!("/v1/quotas?{}", named.collect::<Vec<_>>().join("&"));
            let _: QuotaView = server.delete(&path)?;
            Ok(())
        }
    }
}

fn said(QuotaView { entity, bounds }: &QuotaView) -> String {
    let bounds = bounds.iter().map(|(bound, most)| format!("{} {most}", bound.name()));
    format!("{entity}: {}", bounds.collect::<Vec<_>>().join(", "))
}

fn table(quotas: &[QuotaView]) -> anyhow::Result<()> {
    let mut table = output::table(&["user", "client", "address", "bound", "in a second"]);
    for QuotaView { entity, bounds } in quotas {
        let [user, client, address] =
            [&entity.user, &entity.client_id, &entity.ip].map(|part| part.clone().unwrap_or_default());
        for (bound, most) in bounds {
            table.add_row([&user, &client, &address, bound.name(), &most.to_string()]);
        }
    }
    output::print(&table)
}

//! `tailwater account …`

use clap::Subcommand;
use tailwater_node::api::{AccountBounds, AccountView, CreateAccountKey, CreatedAccountKey, RemoveAccount};

use crate::admin::{Server, escaped};
use crate::output::{self, Format, ListArgs};
use crate::values;

/// What to do with accounts.
#[derive(Subcommand)]
pub enum Command {
    /// Make a key of an account, and print it. An account that is not there is made. Nobody is shown the secret again.
    Add {
        /// The account's number, of 12 digits.
        id: String,
        #[command(flatten)]
        bounds: AccountOptions,
    },
    /// List accounts with the ids of their keys.
    #[command(visible_alias = "list")]
    Ls(ListArgs),
    /// Remove an account. Its requests are refused from then on; its queues stay.
    #[command(visible_alias = "remove")]
    Rm {
        /// The account's number.
        id: String,
        /// Only this key of it.
        #[arg(long, value_name = "ID")]
        key: Option<String>,
        /// Remove it also if it is the last one: nobody has to sign then, and everybody is let in.
        #[arg(long, conflicts_with = "key")]
        everybody: bool,
    },
}

/// Bounds of an account. Bounds that you leave out stay as they are.
#[derive(clap::Args)]
pub struct AccountOptions {
    /// Requests in a second; 0 is any number, here and for the others.
    #[arg(long, value_name = "COUNT", value_parser = values::number::<u64>(0..=u64::MAX))]
    requests_per_s: Option<u64>,
    /// Bytes of requests in a second.
    #[arg(long, value_name = "BYTES", value_parser = values::number::<u64>(0..=u64::MAX))]
    bytes_per_s: Option<u64>,
    /// Queues.
    #[arg(long, value_name = "COUNT", value_parser = values::number::<usize>(0..=usize::MAX as u64))]
    queues_max: Option<usize>,
    /// Messages in flight, in all its queues.
    #[arg(long, value_name = "COUNT", value_parser = values::number::<u64>(0..=u64::MAX))]
    in_flight_max: Option<u64>,
    /// Receives that wait at the same time.
    #[arg(long, value_name = "COUNT", value_parser = values::number::<usize>(0..=usize::MAX as u64))]
    waiting_max: Option<usize>,
}

impl From<AccountOptions> for AccountBounds {
    fn from(bounds: AccountOptions) -> Self {
        let AccountOptions { requests_per_s, bytes_per_s, queues_max, in_flight_max, waiting_max } = bounds;
        Self { requests_per_s, bytes_per_s, queues_max, in_flight_max, waiting_max }
    }
}

/// Does it.
pub fn run(server: &Server, command: Command) -> anyhow::Result<()> {
    match command {
        Command::Add { id, bounds } => {
            let asked = CreateAccountKey { id, bounds: bounds.into() };
            let CreatedAccountKey { key, secret, .. } = server.post("/v1/accounts", &asked)?;
            // As AWS's clients read them from their environment.
            output::print(&format!("AWS_ACCESS_KEY_ID={key}\nAWS_SECRET_ACCESS_KEY={secret}"))?;
            Ok(())
        }
        Command::Ls(ListArgs { output }) => {
            let accounts: Vec<AccountView> = server.get("/v1/accounts")?;
            match output {
                Format::Json => output::print_json(&accounts),
                Format::Table => table(&accounts),
            }
        }
        Command::Rm { id, key, everybody } => {
            let key = key.map(|key| format!("&key={}", escaped(&key))).unwrap_or_default();
            let path = format!("/v1/accounts/{}?everybody={everybody}{key}", escaped(&id));
            let _: RemoveAccount = server.delete(&path)?;
            Ok(())
        }
    }
}

fn table(accounts: &[AccountView]) -> anyhow::Result<()> {
    let mut table = output::table(&["account", "keys", "from"]);
    for AccountView { id, keys, is_configured } in accounts {
        let from = if *is_configured { "configuration" } else { "account add" };
        table.add_row([id, &keys.join(", "), from]);
    }
    output::print(&table)
}

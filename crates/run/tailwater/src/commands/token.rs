//! `tailwater token …`

use std::time::{Duration, SystemTime};

use anyhow::Context;
use clap::Subcommand;
use tailwater_node::api::{CreateToken, CreatedToken, Enforcement, Operation, TokenView};

use super::acl::Resources;
use crate::admin::{Server, escaped};
use crate::output::{self, Format, ListArgs};

/// What to do with tokens.
#[derive(Subcommand)]
pub enum Command {
    /// Make a token, and print it once. The token has the rights that are named here, and no others.
    Create {
        /// The token's name.
        name: String,
        /// Allowed operations: read, write, create, delete, alter, describe, and the others of `acl add`. Separate
        /// several by commas.
        #[arg(long, value_name = "OPERATIONS", value_delimiter = ',', required = true)]
        allow: Vec<Operation>,
        #[command(flatten)]
        resources: Resources,
        /// How long it is good: 90s, 30m, 12h, 30d.
        #[arg(long, value_name = "TIME", value_parser = crate::values::span)]
        expires: Option<Duration>,
    },
    /// List tokens. Their rights are rules about token:NAME.
    #[command(visible_alias = "list")]
    Ls(ListArgs),
    /// Remove a token with its rights. Everything that it has open ends.
    #[command(visible_alias = "remove")]
    Rm {
        /// The token's name.
        name: String,
    },
}

/// Does it.
pub fn run(server: &Server, command: Command) -> anyhow::Result<()> {
    match command {
        Command::Create { name, allow, resources, expires } => {
            let expires_ms =
                expires.map(|span| Ok::<_, anyhow::Error>(now_ms()? + millis(span)?)).transpose()?;
            let rules = resources.allowed_to(&format!("token:{name}"), &allow);
            let created: CreatedToken =
                server.post("/v1/tokens", &CreateToken { name, expires_ms, rules })?;
            output::print(&created.token)?;
            if created.enforcement != Enforcement::Enforce {
                eprintln!(
                    "tailwater: the node refuses nobody yet: [access] rules has to be \"enforce\" for that"
                );
            }
            Ok(())
        }
        Command::Ls(ListArgs { output }) => {
            let tokens: Vec<TokenView> = server.get("/v1/tokens")?;
            match output {
                Format::Json => output::print_json(&tokens),
                Format::Table => table(&tokens),
            }
        }
        Command::Rm { name } => {
            let _: TokenView = server.delete(&format!("/v1/tokens/{}", escaped(&name)))?;
            Ok(())
        }
    }
}

fn table(tokens: &[TokenView]) -> anyhow::Result<()> {
    let mut table = output::table(&["token", "expires"]);
    let now = now_ms()?;
    for TokenView { name, expires_ms } in tokens {
        let left = expires_ms.map(|until| u64::try_from((until - now) / 1_000).unwrap_or(0));
        let expires = left.map_or_else(|| "never".to_owned(), |left| format!("in {left} s"));
        table.add_row([name, &expires]);
    }
    output::print(&table)
}

fn millis(span: Duration) -> anyhow::Result<i64> {
    i64::try_from(span.as_millis()).context("that is too long")
}

fn now_ms() -> anyhow::Result<i64> {
    #[allow(clippy::disallowed_methods)] // A command goes by its host's clock.
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).context("the clock is before 1970")?;
    millis(now)
}

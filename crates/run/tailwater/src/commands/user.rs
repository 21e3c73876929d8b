//! `tailwater user …`

use std::io::{IsTerminal, Read};
use std::path::PathBuf;

use anyhow::Context;
use clap::Subcommand;
use tailwater_node::api::{SetUser, UserView};

use crate::admin::{Server, escaped};
use crate::output::{self, Format, ListArgs};

/// The variable that a password may be in.
const PASSWORD: &str = "TAILWATER_PASSWORD";

/// Bytes of a file or of standard input that are read for a password: more than one has.
const PASSWORD_FILE_BYTES_MAX: u64 = 4_096;

/// What to do with users.
#[derive(Subcommand)]
pub enum Command {
    /// Add a user, or change a user's password. The password comes from --password-file, TAILWATER_PASSWORD, or the
    /// first line of standard input.
    Add {
        /// The user's name.
        name: String,
        /// File with the password in its first line.
        #[arg(long, value_name = "FILE")]
        password_file: Option<PathBuf>,
    },
    /// Remove a user, and end its connections.
    #[command(visible_alias = "remove")]
    Rm {
        /// The user's name.
        name: String,
    },
    /// List users.
    #[command(visible_alias = "list")]
    Ls(ListArgs),
}

/// Does it.
pub fn run(server: &Server, command: Command) -> anyhow::Result<()> {
    match command {
        Command::Add { name, password_file } => {
            let password = password(password_file)?;
            let added: UserView =
                server.put(&format!("/v1/users/{}", escaped(&name)), &SetUser { password })?;
            output::print(&added.name)
        }
        Command::Rm { name } => {
            let _: UserView = server.delete(&format!("/v1/users/{}", escaped(&name)))?;
            Ok(())
        }
        Command::Ls(ListArgs { output }) => {
            let users: Vec<UserView> = server.get("/v1/users")?;
            match output {
                Format::Json => output::print_json(&users),
                Format::Table => users.iter().try_for_each(|user| output::print(&user.name)),
            }
        }
    }
}

/// Not from the command line: everybody on the host can read that.
fn password(file: Option<PathBuf>) -> anyhow::Result<String> {
    let text = match (file, std::env::var(PASSWORD)) {
        (Some(file), _) => {
            #[allow(clippy::disallowed_methods)] // A command reads its user's files.
            let opened =
                std::fs::File::open(&file).with_context(|| format!("{} can't be read", file.display()))?;
            read(opened)?
        }
        (None, Ok(password)) => password,
        (None, Err(_)) => {
            let input = std::io::stdin();
            // It would be seen while it is typed.
            anyhow::ensure!(
                !input.is_terminal(),
                "no password was given: name a file with --password-file, set {PASSWORD}, or pipe it in"
            );
            read(input.lock())?
        }
    };
    Ok(text.lines().next().unwrap_or_default().to_owned())
}

fn read(from: impl Read) -> anyhow::Result<String> {
    let mut text = String::new();
    from.take(PASSWORD_FILE_BYTES_MAX).read_to_string(&mut text).context("the password is no text")?;
    Ok(text)
}

//! `tailwater init`: what a secured node needs, in one directory.

#![allow(clippy::disallowed_methods)] // it writes its user's files, and nothing else

use std::path::PathBuf;

/// Flags of `init`.
#[derive(clap::Args)]
pub struct Args {
    /// Make certificates, and a configuration that uses them.
    #[arg(long, required = true)]
    tls: bool,
    /// The directory for all of it. It is created if it is missing.
    #[arg(long, value_name = "DIR", default_value = ".")]
    dir: PathBuf,
    /// A further name or IP address of the node for its clients. The certificate has localhost and this host's own name
    /// anyway. Give it again for each further one.
    #[arg(long, value_name = "NAME|IP")]
    host: Vec<String>,
    /// Make a certificate for a client of this name. Give it again for each further one. If the directory has a CA
    /// already, that CA signs it, and the command makes nothing else.
    #[arg(long, value_name = "NAME", value_parser = client_name)]
    client: Vec<String>,
}

/// A name that a file can have, too.
fn client_name(text: &str) -> Result<String, String> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.@".contains(&byte);
    match text.bytes().all(is_plain) && (1..=64).contains(&text.len()) && !text.starts_with('.') {
        true if ["ca", "node", "admin"].contains(&text) => {
            Err("that is what other files are called".to_owned())
        }
        true => Ok(text.to_owned()),
        false => Err("use 1 to 64 letters, digits, '-', '_', '.' or '@'".to_owned()),
    }
}

/// Says that this build can't.
#[cfg(not(feature = "tls"))]
pub fn run(args: Args) -> anyhow::Result<()> {
    let Args { tls: _, dir, host: _, client: _ } = args;
    anyhow::bail!(
        "nothing was made in {}: this build has no TLS. `make dist` makes target/dist/tailwater, which has it, as has one of \
         `cargo build --release -p tailwater --features tls`",
        dir.display()
    )
}

#[cfg(feature = "tls")]
pub use made::run;

#[cfg(feature = "tls")]
mod made {
    use std::fs::{self, OpenOptions};
    use std::io::Write;
    use std::os::unix::fs::OpenOptionsExt;
    use std::path::Path;
    use std::time::SystemTime;

    use anyhow::Context;
    use tailwater_tls::authority::{Authority, CertificateWanted, ISSUED_DAYS, Issued};

    use super::Args;
    use crate::output;

    /// What the administrator's certificate calls him.
    const ADMIN: &str = "admin";

    /// A file to be.
    struct InitFile {
        name: String,
        text: String,
        is_secret: bool,
    }

    impl InitFile {
        fn open(name: &str, text: &str) -> Self {
            Self { name: name.to_owned(), text: text.to_owned(), is_secret: false }
        }

        fn secret(name: &str, text: &str) -> Self {
            Self { is_secret: true, ..Self::open(name, text) }
        }

        /// A client's certificate and its key in one file, as Kafka's clients in Java want it.
        fn client(name: &str, Issued { certificate, key }: &Issued) -> Self {
            Self::secret(&format!("{name}.pem"), &format!("{certificate}{key}"))
        }
    }

    /// Makes it all, or the certificates of further clients; nothing that is there is changed.
    pub fn run(args: Args) -> anyhow::Result<()> {
        fs::create_dir_all(&args.dir).with_context(|| format!("{} can't be created", args.dir.display()))?;
        let dir = args.dir.canonicalize().with_context(|| format!("{} is not there", args.dir.display()))?;
        let now =
            SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).context("the clock is before 1970")?;
        let now_ms = i64::try_from(now.as_millis())?;
        let is_more = !args.client.is_empty() && dir.join("ca.pem").exists();
        let authority = match is_more {
            true => {
                let read = |name: &str| {
                    let path = dir.join(name);
                    fs::read_to_string(&path).with_context(|| format!("{} can't be read", path.display()))
                };
                Authority::load(&read("ca.pem")?, &read("ca.key")?)?
            }
            false => Authority::create(&format!("Tailwater CA of {}", host_name()), now_ms)?,
        };
        let mut made = if is_more { Vec::new() } else { node(&authority, &args, &dir, now_ms)? };
        let admin = (!is_more).then(|| ADMIN.to_owned());
        let clients: std::collections::BTreeSet<String> = args.client.iter().cloned().collect();
        for name in admin.into_iter().chain(clients) {
            let wanted = CertificateWanted {
                name: name.clone(),
                hosts: Vec::new(),
                is_server: false,
                days: ISSUED_DAYS,
            };
            made.push(InitFile::client(&name, &authority.issue(&wanted, now_ms)?));
        }
        write(&dir, &made)?;
        for file in &made {
            let what = if file.is_secret { " (for its owner only)" } else { "" };
            output::print(&format!("{}{what}", dir.join(&file.name).display()))?;
        }
        if !is_more {
            let config = dir.join("tailwater.toml");
            eprintln!(
                "\nA node with it: tailwater serve --config {0}\nAnd commands:    tailwater stream ls --config {0}\n\
                 Keep {1} elsewhere: whoever has it can make certificates that the node takes.",
                config.display(),
                dir.join("ca.key").display()
            );
        }
        Ok(())
    }

    /// What is made for a node.
    fn node(authority: &Authority, args: &Args, dir: &Path, now_ms: i64) -> anyhow::Result<Vec<InitFile>> {
        let mut hosts = vec!["localhost".to_owned(), "127.0.0.1".to_owned(), "::1".to_owned(), host_name()];
        hosts.extend(args.host.iter().cloned());
        let mut seen = std::collections::BTreeSet::new();
        hosts.retain(|host| !host.is_empty() && seen.insert(host.clone()));
        let name = args.host.first().cloned().unwrap_or_else(host_name);
        let wanted = CertificateWanted { name, hosts, is_server: true, days: ISSUED_DAYS };
        let Issued { certificate, key } = authority.issue(&wanted, now_ms)?;
        Ok(vec![
            InitFile::open("ca.pem", &authority.certificate),
            InitFile::secret("ca.key", &authority.key),
            InitFile::open("node.pem", &certificate),
            InitFile::secret("node.key", &key),
            InitFile::open("tailwater.toml", &configuration(dir)?),
        ])
    }

    /// The configuration that uses it. Paths are whole, so that it does not matter where the node is started.
    fn configuration(dir: &Path) -> anyhow::Result<String> {
        let quoted = |name: &str| {
            let path = dir.join(name).into_os_string().into_string();
            path.map(|path| toml::Value::String(path).to_string())
                .map_err(|path| anyhow::anyhow!("{path:?} is no text that a configuration can have"))
        };
        let [data, ca, node, key, admin] =
            ["data", "ca.pem", "node.pem", "node.key", "admin.pem"].map(quoted);
        let (data, ca, node, key, admin) = (data?, ca?, node?, key?, admin?);
        Ok(format!(
            "# A node whose listeners are encrypted, and that lets in whoever has a certificate of its CA.\n\
             # What there is besides: docs/configuration.md, and `tailwater serve --print-config`.\n\
             data = {data}\n\n\
             [tls]\n\
             certificate = {node}\n\
             key = {key}\n\
             client_ca = {ca}\n\
             # \"optional\" lets clients in that show none.\n\
             client_certificates = \"required\"\n\n\
             # For the commands: they read this section of the same file.\n\
             [client]\n\
             server = \"https://localhost:7421\"\n\
             ca = {ca}\n\
             certificate = {admin}\n"
        ))
    }

    fn host_name() -> String {
        rustix::system::uname().nodename().to_string_lossy().into_owned()
    }

    /// Writes all files, or none if one of them is there.
    fn write(dir: &Path, made: &[InitFile]) -> anyhow::Result<()> {
        for InitFile { name, .. } in made {
            let path = dir.join(name);
            anyhow::ensure!(
                !path.exists(),
                "{} is there already, and nothing was made: move it away, or choose another --dir; --client NAME makes a \
                 certificate for a further client",
                path.display()
            );
        }
        for InitFile { name, text, is_secret } in made {
            let path = dir.join(name);
            let written = || -> std::io::Result<()> {
                let mode = if *is_secret { 0o600 } else { 0o644 };
                let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&path)?;
                file.write_all(text.as_bytes())?;
                file.sync_all()
            };
            written().with_context(|| format!("{} can't be written", path.display()))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_s_name_can_be_a_file_s_and_is_none_that_is_taken() {
        for good in ["orders", "alice@example.com", "a"] {
            assert_eq!(client_name(good), Ok(good.to_owned()));
        }
        for bad in ["", "a/b", "..", ".hidden", "a b", "ca", "node", &"a".repeat(65)] {
            client_name(bad).expect_err(bad);
        }
    }
}

//! Secrets that files of their own have, and errors that show none.

use std::io::Read;
use std::path::Path;

use anyhow::Context;
use figment::error::{Actual, Kind};
use tailwater_access::SecretText;

use super::Config;

/// Bytes of a file that are read for a secret: more than one has.
const SECRET_FILE_BYTES_MAX: u64 = 4_096;

/// Where the configuration has secrets.
const SECRETS: [&[&str]; 4] = [
    &["sqs", "accounts"],
    &["queues", "cassandra", "password"],
    &["zookeeper", "password"],
    &["ledgers", "password"],
];

impl Config {
    /// Reads the secrets of which files of their own are named; those that were read before are not read again.
    ///
    /// # Errors
    /// A file that can't be read or has no secret in its first line, and a secret that is there beside its file.
    pub(crate) fn read_secrets(&mut self) -> anyhow::Result<()> {
        let cassandra = &mut self.queues.cassandra;
        let file = cassandra.password_file.as_deref();
        fill(&mut cassandra.password, "password", file).context("[queues.cassandra]")?;
        let zookeeper = &mut self.zookeeper;
        fill(&mut zookeeper.password, "password", zookeeper.password_file.as_deref())
            .context("[zookeeper]")?;
        let ledgers = &mut self.ledgers;
        fill(&mut ledgers.password, "password", ledgers.password_file.as_deref()).context("[ledgers]")?;
        for account in &mut self.sqs.accounts {
            for key in &mut account.keys {
                fill(&mut key.secret, "secret", key.secret_file.as_deref())
                    .with_context(|| format!("[sqs] accounts: {}, key {}", account.id, key.id))?;
            }
        }
        Ok(())
    }
}

fn fill(secret: &mut SecretText, name: &str, file: Option<&Path>) -> anyhow::Result<()> {
    let Some(path) = file else { return Ok(()) };
    if secret.is_of_file() {
        return Ok(());
    }
    anyhow::ensure!(
        secret.is_empty(),
        "{name} and {name}_file are both given, and only one of them can count: leave the other one out"
    );
    *secret = read(path).with_context(|| format!("{name}_file = {path:?}"))?;
    Ok(())
}

#[allow(clippy::disallowed_methods)] // Its user's file, before there is any world.
fn read(path: &Path) -> anyhow::Result<SecretText> {
    let mut bytes = Vec::new();
    let file = std::fs::File::open(path).context("the file can't be read")?;
    file.take(SECRET_FILE_BYTES_MAX + 1).read_to_end(&mut bytes).context("the file can't be read")?;
    anyhow::ensure!(
        bytes.len() as u64 <= SECRET_FILE_BYTES_MAX,
        "the file has more than {SECRET_FILE_BYTES_MAX} bytes, which no secret has"
    );
    let text = std::str::from_utf8(&bytes).ok().context("the file is no text in UTF-8")?;
    SecretText::of_file(text).map_err(|why| anyhow::anyhow!(why))
}

/// Who is shown to servers that others run: nobody, if there is no user.
///
/// # Errors
/// A password that is nobody's, and a user without one.
#[cfg(feature = "bookkeeper")]
pub(super) fn engine_login(
    section: &str,
    user: &str,
    password: &SecretText,
) -> anyhow::Result<Option<tailwater_access::EngineLogin>> {
    anyhow::ensure!(
        user.is_empty() == password.is_empty(),
        "{section} has a user or a password, and the one is of no use without the other: give both, or none"
    );
    anyhow::ensure!(
        user.is_ascii() && password.text().is_ascii(),
        "{section} has a user or a password with a character that is not of ASCII: servers do not agree how to hash one"
    );
    let login = || tailwater_access::EngineLogin { user: user.to_owned(), password: password.clone() };
    Ok((!user.is_empty()).then(login))
}

/// What makes connections to servers that others run: in TLS, if a CA of `whose` certificates is named. `files` are
/// those of the CA, of the certificate that is shown, and of its key.
///
/// # Errors
/// A certificate that is shown to nobody, and a file that can't be used.
#[cfg(feature = "bookkeeper")]
pub(super) fn engine_dialer(
    env: &tailwater_env::Env,
    section: &str,
    whose: &str,
    files: [&Option<std::path::PathBuf>; 3],
) -> anyhow::Result<tailwater_tls::Dialer> {
    let [ca, certificate, key] = files.map(Clone::clone);
    anyhow::ensure!(
        ca.is_some() || certificate.is_none(),
        "{section} has a certificate that is shown to nobody: name the CA of {whose} certificates with `ca`"
    );
    let config = tailwater_tls::DialerConfig { ca, certificate, key, names: Vec::new() };
    tailwater_tls::Dialer::open(env, &config).with_context(|| section.to_owned())
}

/// What an error says, without the value that it is about where that could be a secret, or have one in it.
pub(super) fn told(mut error: figment::Error) -> String {
    let has_secret = |secret: &&[&str]| error.path.iter().zip(*secret).all(|(part, of)| part == of);
    if SECRETS.iter().any(has_secret)
        && let Kind::InvalidType(found, _) | Kind::InvalidValue(found, _) = &mut error.kind
    {
        *found = Actual::Other("what is not shown, as it may have a secret in it".to_owned());
    }
    error.to_string()
}

#[cfg(test)]
#[allow(clippy::disallowed_methods)] // Files of the test's own, which are no node's.
mod tests {
    use figment::Figment;
    use figment::providers::Serialized;

    use super::*;

    const ACCOUNT: &str = "[[sqs.accounts]]\nid = '123456789012'\n";

    fn parsed(text: &str) -> Config {
        toml::from_str(text).expect("TOML")
    }

    #[test]
    fn secrets_are_not_printed_and_what_is_printed_for_them_is_no_secret() {
        let own = format!(
            "{ACCOUNT}[[sqs.accounts.keys]]\nid = 'AK'\nsecret = 'hidden one'\n\
             [queues.cassandra]\nuser = 'u'\npassword = 'hidden two'\n"
        );
        let config = parsed(&own);
        let printed = config.to_toml().expect("printable");
        assert!(!printed.contains("hidden") && printed.matches("\"***\"").count() == 2, "{printed}");
        assert!(!format!("{config:?} {config:#?}").contains("hidden"));
        let error = toml::from_str::<Config>(&printed).expect_err("refused").to_string();
        assert!(error.contains("stands for a secret"), "{error}");
    }

    #[test]
    fn secrets_of_files_are_read_and_printed_as_their_files() {
        let dir = tempfile::tempdir().expect("a directory");
        let [secret, password] = ["secret", "password"].map(|name| dir.path().join(name));
        std::fs::write(&secret, "hidden one\n").expect("written");
        std::fs::write(&password, "hidden two").expect("written");
        let mut config = parsed(&format!(
            "{ACCOUNT}[[sqs.accounts.keys]]\nid = 'AK'\nsecret_file = {secret:?}\n\
             [queues.cassandra]\npassword_file = {password:?}\n"
        ));
        config.read_secrets().expect("readable");
        assert_eq!(config.sqs.accounts[0].keys[0].secret.text(), "hidden one");
        assert_eq!(config.queues.cassandra.password.text(), "hidden two");
        // They may be gone by now.
        std::fs::remove_file(&secret).expect("removed");
        config.read_secrets().expect("they were read");
        let printed = config.to_toml().expect("printable");
        assert!(!printed.contains("hidden") && !printed.contains("***"), "{printed}");
        let again = parsed(&printed);
        assert_eq!(again.sqs.accounts[0].keys[0].secret_file, Some(secret));
        assert_eq!(again.to_toml().expect("printable"), printed);
    }

    #[test]
    fn a_file_without_a_secret_and_a_secret_beside_its_file_are_refused_with_the_key_that_names_it() {
        let dir = tempfile::tempdir().expect("a directory");
        let at = |name: &str, content: &[u8]| {
            let path = dir.path().join(name);
            std::fs::write(&path, content).expect("written");
            path
        };
        let none = dir.path().join("none");
        let good = at("good", b"hidden");
        for (path, beside, why) in [
            (&none, "", "can't be read"),
            (&at("empty", b"\n"), "", "first line is empty"),
            (&at("long", &[b'x'; 4_097]), "", "more than 4096 bytes"),
            (&at("no-text", b"\xff\xfe"), "", "no text"),
            (&good, "password = 'hidden'\n", "password and password_file are both given"),
        ] {
            let mut config = parsed(&format!("[queues.cassandra]\n{beside}password_file = {path:?}\n"));
            let error = format!("{:#}", config.read_secrets().expect_err(why));
            assert!(error.contains("[queues.cassandra]") && error.contains(why), "{error}");
            assert!(!error.contains("hidden"), "{error}");
        }
        let mut config =
            parsed(&format!("{ACCOUNT}[[sqs.accounts.keys]]\nid = 'AK'\nsecret_file = {none:?}\n"));
        let error = format!("{:#}", config.read_secrets().expect_err("refused"));
        assert!(error.contains("123456789012, key AK") && error.contains("secret_file ="), "{error}");
    }

    #[test]
    fn what_is_of_a_wrong_kind_is_not_shown_where_secrets_are_and_is_shown_elsewhere() {
        let refused = |key: &str, value: &str| {
            let figment = Figment::from(Serialized::defaults(Config::default()));
            let error =
                figment.merge(Serialized::default(key, value)).extract::<Config>().expect_err("refused");
            told(error)
        };
        for key in ["sqs", "sqs.accounts", "queues", "queues.cassandra"] {
            let error = refused(key, "hidden");
            assert!(!error.contains("hidden") && error.contains("not shown"), "{error}");
        }
        assert!(refused("listen", "visible").contains("visible"));
        assert!(refused("queues.cassandra.password", "***").contains("queues.cassandra.password"));
    }
}

//! Who can reach a node's listeners, and whether that is meant.
//!
//! What others can reach is encrypted, and lets in only whom it knows, unless the configuration says that it is meant
//! otherwise.

use std::net::SocketAddr;

use tailwater_tls::ClientCertificates;

use super::Config;

/// Certificates of clients, as what is missing.
const CERTIFICATES: &str = "client_ca = \"FILE\" and client_certificates = \"required\" below [tls]";

/// A listener that others can reach, and that lets in whoever connects, or that is not encrypted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ExposedListener {
    /// What `insecure` calls it.
    name: &'static str,
    /// Its section and key.
    pub(crate) key: String,
    /// Where it listens.
    pub(crate) listen: SocketAddr,
    /// What to write.
    missing: Vec<String>,
}

impl ExposedListener {
    fn told(&self) -> String {
        let Self { key, listen, missing, .. } = self;
        format!("{key} = \"{listen}\": write {}", missing.join(", and "))
    }
}

/// Whether only processes of this host can connect to an address.
pub fn is_of_this_host(listen: SocketAddr) -> bool {
    listen.ip().to_canonical().is_loopback()
}

impl Config {
    /// # Errors
    /// Every listener that others can reach unencrypted, or unknown, where that is not said to be meant, and what to
    /// write.
    pub(crate) fn check_exposure(&self) -> anyhow::Result<()> {
        let mut exposed = self.exposed();
        exposed.retain(|listener| !self.listen.insecure.covers(listener.name));
        if exposed.is_empty() {
            return Ok(());
        }
        let told: String = exposed.iter().map(|listener| format!("\n  {}", listener.told())).collect();
        let mut names: Vec<String> = exposed.iter().map(|listener| format!("{:?}", listener.name)).collect();
        names.dedup();
        let names = names.join(", ");
        anyhow::bail!(
            "others than this host could connect, unencrypted or without being known:{told}\n\
             `tailwater init --tls` makes the files and a configuration. Or listen on 127.0.0.1. Where it is meant that \
             whoever can connect may do everything, say so: insecure = [{names}] below [listen], or for all listeners \
             --insecure, insecure = true, or TAILWATER_LISTEN__INSECURE=true"
        )
    }

    /// The listeners that need to be meant.
    pub(crate) fn exposed(&self) -> Vec<ExposedListener> {
        let mut exposed = Vec::new();
        let mut look = |name, key: &str, listen, missing: Vec<String>| {
            if !is_of_this_host(listen) && !missing.is_empty() {
                exposed.push(ExposedListener { name, key: key.to_owned(), listen, missing });
            }
        };
        let certificates = |section, tls| self.missing(section, tls, false, CERTIFICATES);
        let data =
            self.missing("[listen]", self.listen.tls, self.listen.login, "login = true below [listen]");
        look("data", "[listen] data", self.listen.data, data);
        look("admin", "[listen] admin", self.listen.admin, certificates("[admin]", self.admin.tls));
        if self.kafka.enabled {
            for (index, listener) in self.kafka.all_listeners().into_iter().enumerate() {
                let section = if index == 0 { "[kafka]" } else { "[[kafka.listeners]]" };
                let login = match index {
                    0 => format!("login = true below {section}"),
                    _ => format!("login = true in its table of {section}"),
                };
                let missing = self.missing(section, listener.tls, listener.login, &login);
                look("kafka", &format!("{section} listen"), listener.listen, missing);
            }
        }
        if self.sqs.enabled {
            let accounts = "[[sqs.accounts]] with keys, or login = true below [sqs], so that every request has to be signed";
            let signs = self.sqs.login || !self.sqs.accounts.is_empty();
            let missing = self.missing("[sqs]", self.sqs.tls, signs, accounts);
            look("sqs", "[sqs] listen", self.sqs.listen, missing);
        }
        if self.memcached.enabled {
            let section = &self.memcached;
            let missing =
                self.missing("[memcached]", section.tls, section.login, "login = true below [memcached]");
            look("memcached", "[memcached] listen", section.listen, missing);
        }
        if self.broadcast.enabled {
            // With certificates of clients there is the CA, too, that replicas in TLS need.
            let missing = certificates("[broadcast]", self.broadcast.tls);
            look("broadcast", "[broadcast] listen", self.broadcast.listen, missing);
            let section = &self.broadcast.http;
            if section.enabled {
                look(
                    "broadcast.http",
                    "[broadcast.http] listen",
                    section.listen,
                    certificates("[broadcast.http]", section.tls),
                );
            }
        }
        exposed
    }

    /// What is missing for a listener that can be encrypted: `tls` is what it says of that. Its clients are known if
    /// it `knows` them by itself, which `how` would make it do, or where all have to show certificates.
    fn missing(&self, section: &str, tls: Option<bool>, knows: bool, how: &str) -> Vec<String> {
        let mut missing = Vec::new();
        if self.tls.certificate.is_none() {
            missing.push("certificate = \"FILE\" and key = \"FILE\" below [tls]".to_owned());
        } else if !self.tls.covers(tls) {
            missing.push(format!("tls = true below {section}"));
        }
        if !knows && self.tls.client_certificates != ClientCertificates::Required {
            missing.push(how.to_owned());
        }
        missing
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CERTIFICATE: &str = "[tls]\ncertificate = 'node.pem'\n";
    const REQUIRED: &str =
        "[tls]\ncertificate = 'node.pem'\nclient_ca = 'ca.pem'\nclient_certificates = 'required'\n";
    const OPTIONAL: &str =
        "[tls]\ncertificate = 'node.pem'\nclient_ca = 'ca.pem'\nclient_certificates = 'optional'\n";
    const ACCOUNT: &str =
        "[[sqs.accounts]]\nid = '123456789012'\nkeys = [{ id = 'AK', secret = 'hidden' }]\n";

    fn refusal(text: &str) -> Option<String> {
        let config: Config = toml::from_str(text).expect("TOML");
        config.check_exposure().err().map(|error| error.to_string())
    }

    fn refused(text: &str, named: &[&str]) {
        let error = refusal(text).expect(text);
        assert!(
            error.contains("below [listen], or for all listeners --insecure, insecure = true"),
            "{error}"
        );
        assert!(error.contains("TAILWATER_LISTEN__INSECURE=true"), "{error}");
        for named in named {
            assert!(error.contains(named), "{named} is not in: {error}");
        }
    }

    fn fine(text: &str) {
        assert_eq!(refusal(text), None, "{text}");
    }

    #[test]
    fn on_loopback_everything_may_be_open() {
        fine("");
        fine("[listen]\ndata = '[::1]:1'\nadmin = '127.8.9.1:1'\n[kafka]\nlisten = '[::ffff:127.0.0.1]:1'\n");
    }

    #[test]
    fn any_address_off_loopback_is_refused_unless_it_is_meant() {
        for address in ["0.0.0.0:1", "[::]:1", "10.0.0.5:1", "[2001:db8::1]:1"] {
            let named = format!("[broadcast] listen = \"{address}\": write");
            refused(
                &format!("[broadcast]\nlisten = '{address}'\n"),
                &[&named, "insecure = [\"broadcast\"] below"],
            );
        }
        fine("[listen]\ndata = '10.0.0.5:1'\ninsecure = true\n[broadcast]\nlisten = '10.0.0.5:1'\n");
        fine(
            "[broadcast]\nenabled = false\nlisten = '10.0.0.5:1'\n[broadcast.http]\nlisten = '10.0.0.5:2'\n",
        );
    }

    #[test]
    fn what_is_meant_of_some_listeners_is_not_of_others() {
        let open = "data = '10.0.0.5:1'\nadmin = '10.0.0.5:2'\n[kafka]\nlisten = '10.0.0.5:3'\n";
        let error = refusal(&format!("[listen]\ninsecure = ['data', 'kafka']\n{open}")).expect("refused");
        assert!(error.contains("[listen] admin") && error.contains("insecure = [\"admin\"]"), "{error}");
        assert!(!error.contains("[listen] data") && !error.contains("[kafka] listen"), "{error}");
        fine(&format!("[listen]\ninsecure = ['data', 'kafka', 'admin']\n{open}"));
        let config: Config = toml::from_str("[listen]\ninsecure = ['kafak']\n").expect("TOML");
        let error = config.listen.check().expect_err("refused").to_string();
        assert!(error.contains("\"kafak\"") && error.contains("broadcast.http"), "{error}");
    }

    #[test]
    fn clients_that_do_not_log_in_need_tls_and_certificates_off_loopback() {
        for (section, open) in [
            ("[broadcast]", "[broadcast]\nlisten = '10.0.0.5:1'\n"),
            ("[admin]", "[listen]\nadmin = '10.0.0.5:1'\n"),
            ("[broadcast.http]", "[broadcast.http]\nlisten = '10.0.0.5:1'\n"),
        ] {
            refused(open, &["= \"10.0.0.5:1\": write certificate = \"FILE\"", CERTIFICATES]);
            let of_clients = format!("\"10.0.0.5:1\": write {CERTIFICATES}");
            refused(&format!("{CERTIFICATE}{open}"), &[&of_clients]);
            refused(&format!("{OPTIONAL}{open}"), &[&of_clients]);
            fine(&format!("{REQUIRED}{open}"));
            let named = format!("\"10.0.0.5:1\": write tls = true below {section}\n");
            refused(&format!("{REQUIRED}listeners = 'named'\n{open}"), &[&named]);
        }
        fine("[listen]\nadmin = '10.0.0.5:1'\ninsecure = true\n");
    }

    #[test]
    fn calls_and_one_sided_reads_off_loopback_need_tls_and_a_login_or_certificates_of_clients() {
        let open = "[listen]\ndata = '10.0.0.5:1'\n";
        refused(open, &["[listen] data = \"10.0.0.5:1\": write certificate", "login = true below [listen]"]);
        refused(
            &format!("{open}login = true\n"),
            &["write certificate = \"FILE\" and key = \"FILE\" below [tls]\n"],
        );
        refused(&format!("{CERTIFICATE}{open}"), &["\"10.0.0.5:1\": write login = true below [listen]\n"]);
        refused(&format!("{REQUIRED}{open}tls = false\n"), &["write tls = true below [listen]\n"]);
        fine(&format!("{CERTIFICATE}{open}login = true\n"));
        fine(&format!("{REQUIRED}{open}"));
    }

    #[test]
    fn each_of_kafka_s_listeners_off_loopback_needs_tls_and_a_login_or_certificates_of_clients() {
        let open = "[kafka]\nlisten = '10.0.0.5:1'\n";
        refused(
            open,
            &["[kafka] listen = \"10.0.0.5:1\": write certificate", "and login = true below [kafka]"],
        );
        refused(
            &format!("{open}login = true\n"),
            &["write certificate = \"FILE\" and key = \"FILE\" below [tls]\n"],
        );
        refused(&format!("{CERTIFICATE}{open}"), &["\"10.0.0.5:1\": write login = true below [kafka]\n"]);
        refused(&format!("{REQUIRED}{open}tls = false\n"), &["write tls = true below [kafka]\n"]);
        fine(&format!("{CERTIFICATE}{open}login = true\n"));
        fine(&format!("{OPTIONAL}{open}login = true\n"));
        fine(&format!("{REQUIRED}{open}"));
        let further = "[[kafka.listeners]]\nlisten = '10.0.0.5:2'\n";
        refused(
            &format!("{CERTIFICATE}{open}login = true\n{further}"),
            &["[[kafka.listeners]] listen = \"10.0.0.5:2\": write login = true in its table"],
        );
        fine(&format!("{CERTIFICATE}{open}login = true\n{further}login = true\n"));
        fine("[kafka]\nenabled = false\nlisten = '10.0.0.5:1'\n");
        fine(&format!("[listen]\ninsecure = true\n{open}{further}"));
    }

    #[test]
    fn sqs_off_loopback_needs_tls_and_accounts_or_certificates_of_clients() {
        let open = "[sqs]\nlisten = '10.0.0.5:1'\n";
        refused(open, &["[sqs] listen = \"10.0.0.5:1\": write certificate", "[[sqs.accounts]] with keys"]);
        refused(
            &format!("{open}{ACCOUNT}"),
            &["write certificate = \"FILE\" and key = \"FILE\" below [tls]\n"],
        );
        refused(&format!("{CERTIFICATE}{open}"), &["\"10.0.0.5:1\": write [[sqs.accounts]] with keys"]);
        fine(&format!("{CERTIFICATE}{open}{ACCOUNT}"));
        fine(&format!("{REQUIRED}{open}"));
        fine("[sqs]\nenabled = false\nlisten = '10.0.0.5:1'\n");
    }

    #[test]
    fn memcached_off_loopback_needs_tls_and_a_login_or_certificates_of_clients() {
        let open = "[memcached]\nenabled = true\nlisten = '10.0.0.5:1'\n";
        refused(
            open,
            &["[memcached] listen = \"10.0.0.5:1\": write certificate", "insecure = [\"memcached\"]"],
        );
        refused(&format!("{CERTIFICATE}{open}"), &["\"10.0.0.5:1\": write login = true below [memcached]"]);
        fine(&format!("{CERTIFICATE}{open}login = true\n"));
        fine(&format!("{REQUIRED}{open}"));
        fine("[memcached]\nlisten = '10.0.0.5:1'\n");
    }

    #[test]
    fn all_that_is_open_is_told_at_once() {
        let error = refusal(
            "[listen]\ndata = '10.0.0.5:1'\nadmin = '10.0.0.5:2'\n[kafka]\nlisten = '10.0.0.5:3'\n\
             [sqs]\nlisten = '10.0.0.5:4'\n[broadcast]\nlisten = '10.0.0.5:5'\n[broadcast.http]\nlisten = '10.0.0.5:6'\n",
        );
        let error = error.expect("refused");
        for port in 1..=6 {
            assert!(error.contains(&format!("= \"10.0.0.5:{port}\"")), "{port}: {error}");
        }
    }
}

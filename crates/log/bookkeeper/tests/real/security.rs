//! What servers want to know of their clients, for tests.

use std::path::Path;
use std::time::SystemTime;

use tailwater_tls::DialerConfig;
use tailwater_tls::authority::{Authority, CertificateWanted, ISSUED_DAYS};

/// A CA, the servers' certificate, a client's, and who may log in: what `.ci/bookkeeper` reads.
pub fn write(dir: &Path) -> DialerConfig {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("it is later");
    let now_ms = i64::try_from(now.as_millis()).expect("it is before long");
    let authority = Authority::create("test", now_ms).expect("a CA");
    let write = |name: &str, text: &str| std::fs::write(dir.join(name), text).expect("written");
    write("ca.pem", &authority.certificate);
    for (name, key, is_server) in [("cert.pem", "key.pem", true), ("client.pem", "client.key", false)] {
        let wanted = CertificateWanted {
            name: name.to_owned(),
            hosts: vec!["127.0.0.1".to_owned()],
            is_server,
            days: ISSUED_DAYS,
        };
        let issued = authority.issue(&wanted, now_ms).expect("a certificate");
        write(name, &issued.certificate);
        write(key, &issued.key);
        if is_server {
            // ZooKeeper has both in one file.
            write("zookeeper.pem", &format!("{}{}", issued.certificate, issued.key));
        }
    }
    let module = "org.apache.zookeeper.server.auth.DigestLoginModule required";
    let (server, client) = ("user_tailwater=\"secret\"", "username=\"tailwater\" password=\"secret\"");
    write(
        "jaas.conf",
        &format!(
            "Server {{ {module} {server}; }};\nBookie {{ {module} {server}; }};\nClient {{ {module} {client}; }};\n"
        ),
    );
    let path = |name: &str| Some(dir.join(name));
    DialerConfig {
        ca: path("ca.pem"),
        certificate: path("client.pem"),
        key: path("client.key"),
        names: Vec::new(),
    }
}

//! What a fuzzer runs: certificates, and how connections begin.

use crate::parsed::ParsedCertificate;
use crate::stream::is_hello;

/// A certificate in DER, and the first bytes of a connection. Whoever is called something by a certificate is not
/// called more by it than it says: what separates the parts of a name is escaped in them.
pub fn certificates(data: &[u8]) {
    if is_hello(data) {
        assert_eq!(data.first(), Some(&0x16));
    }
    let certificate = match ParsedCertificate::of(data) {
        Ok(certificate) => certificate,
        Err(why) => return assert!(!why.is_empty()),
    };
    let peer = certificate.identity.peer("fuzz".to_owned());
    assert!(!peer.principal.is_empty());
    for name in peer.names.iter() {
        let is_kind = ["DNS:", "URI:", "email:", "IP:"].iter().any(|kind| name.starts_with(kind));
        assert!(is_kind && !name.contains(char::is_control), "{name:?}");
    }
    assert!(!certificate.identity.subject.contains(char::is_control));
}

/// Bytes for [`certificates`]; the corpus has certificates.
pub fn seeds() -> Vec<Vec<u8>> {
    vec![vec![0x30, 0x82, 0, 0], vec![0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3]]
}

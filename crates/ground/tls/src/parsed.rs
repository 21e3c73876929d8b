//! What is read out of a certificate.

use std::fmt::Write as _;
use std::net::IpAddr;

use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{AttributeTypeAndValue, FromDer, X509Certificate, X509Name};

use crate::identity::ClientIdentity;

/// What is read out of a certificate.
#[derive(Clone, Debug)]
pub(crate) struct ParsedCertificate {
    pub(crate) identity: ClientIdentity,
    /// Until when it is good, in milliseconds since the Unix epoch.
    pub(crate) not_after_ms: i64,
}

impl ParsedCertificate {
    /// Reads a certificate in DER.
    ///
    /// # Errors
    /// Why it is none, to be read behind what it is.
    pub(crate) fn of(der: &[u8]) -> Result<Self, String> {
        let (_, certificate) = X509Certificate::from_der(der).map_err(|why| format!("is none: {why}"))?;
        let alternative = certificate
            .subject_alternative_name()
            .map_err(|why| format!("has alternative names that make no sense: {why}"))?;
        let names = alternative.map_or(&[][..], |names| &names.value.general_names);
        Ok(Self {
            identity: ClientIdentity {
                subject: subject(certificate.subject()),
                names: names.iter().filter_map(alternative_name).collect(),
            },
            not_after_ms: certificate.validity().not_after.timestamp().saturating_mul(1_000),
        })
    }
}

/// A name as RFC 4514 writes it: the last part first.
fn subject(name: &X509Name<'_>) -> String {
    let mut parts: Vec<String> =
        name.iter_rdn().map(|part| part.iter().map(attribute).collect::<Vec<_>>().join("+")).collect();
    parts.reverse();
    parts.join(",")
}

fn attribute(attribute: &AttributeTypeAndValue<'_>) -> String {
    let oid = attribute.attr_type().to_id_string();
    let name = match oid.as_str() {
        "2.5.4.3" => "CN",
        "2.5.4.6" => "C",
        "2.5.4.7" => "L",
        "2.5.4.8" => "ST",
        "2.5.4.9" => "STREET",
        "2.5.4.10" => "O",
        "2.5.4.11" => "OU",
        "0.9.2342.19200300.100.1.1" => "UID",
        "0.9.2342.19200300.100.1.25" => "DC",
        other => other,
    };
    match attribute.as_str() {
        Ok(value) => format!("{name}={}", escaped(value)),
        Err(_) => {
            let bytes = attribute.attr_value().data;
            bytes.iter().fold(format!("{name}=#"), |mut text, byte| {
                let _ = write!(text, "{byte:02x}");
                text
            })
        }
    }
}

/// A value in which nothing looks like the end of it.
fn escaped(value: &str) -> String {
    let last = value.chars().count().saturating_sub(1);
    let mut text = String::with_capacity(value.len());
    for (at, char) in value.chars().enumerate() {
        match char {
            '"' | '+' | ',' | ';' | '<' | '>' | '\\' | '=' => text.extend(['\\', char]),
            '#' if at == 0 => text.push_str("\\#"),
            ' ' if at == 0 || at == last => text.push_str("\\ "),
            char if char.is_control() => {
                for byte in char.encode_utf8(&mut [0; 4]).bytes() {
                    let _ = write!(text, "\\{byte:02X}");
                }
            }
            char => text.push(char),
        }
    }
    text
}

fn alternative_name(name: &GeneralName<'_>) -> Option<String> {
    match name {
        GeneralName::DNSName(name) => Some(format!("DNS:{}", escaped(name))),
        GeneralName::URI(name) => Some(format!("URI:{}", escaped(name))),
        GeneralName::RFC822Name(name) => Some(format!("email:{}", escaped(name))),
        GeneralName::IPAddress(bytes) => {
            let ip: IpAddr = match bytes.len() {
                4 => <[u8; 4]>::try_from(*bytes).ok()?.into(),
                _ => <[u8; 16]>::try_from(*bytes).ok()?.into(),
            };
            Some(format!("IP:{ip}"))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_can_not_be_made_to_look_like_more_of_a_subject() {
        assert_eq!(escaped("alice"), "alice");
        assert_eq!(escaped("alice,O=Example"), "alice\\,O\\=Example");
        assert_eq!(escaped(" #a# "), "\\ #a#\\ ");
        assert_eq!(escaped("#a"), "\\#a");
        assert_eq!(escaped("a\nb"), "a\\0Ab");
        assert_eq!(escaped("München"), "München");
    }

    #[test]
    fn what_is_no_certificate_is_told_and_nothing_else_happens() {
        for garbage in [&[][..], &[0x30, 0x82], &[0xff; 100]] {
            assert!(ParsedCertificate::of(garbage).expect_err("no certificate").starts_with("is none: "));
        }
    }
}

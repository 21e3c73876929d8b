//! What options take, and what is said of anything else: what would be right.

use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::time::Duration;

use clap::Command;

/// How a user logs in.
pub fn mechanism(text: &str) -> Result<tailwater_client::Mechanism, String> {
    tailwater_client::LoginConfig::mechanism_named(text)
}

/// An address to listen on.
pub fn address(text: &str) -> Result<SocketAddr, String> {
    const RIGHT: &str = "use an IP address and a port, as in 127.0.0.1:7420 or [::1]:7420";
    if let Ok(address) = text.parse() {
        return Ok(address);
    }
    if let Ok(ip) = text.trim_matches(['[', ']']).parse::<IpAddr>() {
        let example = SocketAddr::new(ip, 7420);
        return Err(format!("it has no port: add one, as in {example}"));
    }
    let Some((host, port)) = text.rsplit_once(':') else { return Err(RIGHT.to_owned()) };
    check_port(port, 0)?;
    match host {
        "" => Err(format!("it has no IP address: all of this host's are 0.0.0.0:{port}")),
        _ => Err(format!("{host} is no IP address: {RIGHT}")),
    }
}

/// Where something is that is connected to: a name or an IP address, and a port.
pub fn host_and_port(text: &str) -> Result<String, String> {
    /// Bytes of a name and a port, as long as a name in the DNS may be.
    const LENGTH_MAX: usize = 255;
    let is_ipv6 = |host: &str| host.parse::<std::net::Ipv6Addr>().is_ok();
    if text.len() > LENGTH_MAX {
        return Err(format!("it is longer than {LENGTH_MAX} bytes"));
    }
    if is_ipv6(text) {
        return Err("an IPv6 address is in brackets before its port, as in [::1]:7421".to_owned());
    }
    match text.rsplit_once(':').filter(|(_, port)| !port.ends_with(']')) {
        None if text.is_empty() => Err("use HOST:PORT, as in localhost:7421".to_owned()),
        None => Err(format!("it has no port: add one, as in {text}:7421")),
        Some(("", _)) => Err("it has no host: use HOST:PORT, as in localhost:7421".to_owned()),
        Some((_, port)) => check_port(port, 1).map(|()| text.to_owned()),
    }
}

/// A node's admin HTTP: `HOST:PORT`, or a URL, whose port has a default.
pub fn server(text: &str) -> Result<String, String> {
    let Some((scheme, rest)) = text.split_once("://") else { return host_and_port(text) };
    if !matches!(scheme, "http" | "https") {
        return Err(format!("{scheme} is not spoken: use HOST:PORT or http://HOST:PORT"));
    }
    let host = rest.split('/').next().unwrap_or_default();
    match host.rsplit_once(':').filter(|(_, port)| !port.ends_with(']')) {
        None if host.is_empty() => Err("it has no host: use http://HOST:PORT".to_owned()),
        None => Ok(text.to_owned()),
        Some((_, port)) => check_port(port, 1).map(|()| text.to_owned()),
    }
}

/// How long something is: a number of seconds, minutes, hours or days.
pub fn span(text: &str) -> Result<Duration, String> {
    const RIGHT: &str = "use a number with s, m, h or d, as in 90s, 30m, 12h, 30d";
    let unit = match text.chars().last() {
        Some('s') => 1,
        Some('m') => 60,
        Some('h') => 3_600,
        Some('d') => 86_400,
        _ => return Err(RIGHT.to_owned()),
    };
    let count = text[..text.len() - 1].parse::<u32>().ok().filter(|count| *count > 0);
    count.map(|count| Duration::from_secs(u64::from(count) * unit)).ok_or_else(|| RIGHT.to_owned())
}

fn check_port(port: &str, least: u16) -> Result<(), String> {
    match port.parse::<u16>() {
        Ok(number) if number >= least => Ok(()),
        _ => {
            let port: String = port.chars().take(64).collect();
            Err(format!("{port:?} is no port: a number from {least} to {}", u16::MAX))
        }
    }
}

/// A number of this range.
pub fn number<T: TryFrom<u64>>(
    range: RangeInclusive<u64>,
) -> impl Fn(&str) -> Result<T, String> + Clone + Send + Sync + 'static {
    move |text| {
        let given = text.parse().ok().filter(|number| range.contains(number));
        given.and_then(|number| T::try_from(number).ok()).ok_or_else(|| match (range.start(), range.end()) {
            (least, &u64::MAX) => format!("use a whole number, {least} or more"),
            (least, most) => format!("use a whole number from {least} to {most}"),
        })
    }
}

/// The commands, whose options take what looks like a negative number: what would be right is told instead of that
/// there is no such flag.
pub fn with_negative_numbers(command: Command) -> Command {
    let takes = |arg: &clap::Arg| {
        arg.get_long().is_some() && arg.get_action().takes_values() && !arg.is_allow_hyphen_values_set()
    };
    command
        .mut_args(|arg| if takes(&arg) { arg.allow_negative_numbers(true) } else { arg })
        .mut_subcommands(with_negative_numbers)
}

#[cfg(test)]
mod tests {
    use std::any::TypeId;

    use clap::CommandFactory;

    use super::*;
    use crate::Cli;

    #[test]
    fn what_is_no_address_to_listen_on_is_told_with_what_would_be_right() {
        for right in ["127.0.0.1:7420", "[::1]:0", "0.0.0.0:65535"] {
            assert_eq!(address(right), Ok(right.parse().expect("an address")));
        }
        for (wrong, right) in [
            ("127.0.0.1", "no port: add one, as in 127.0.0.1:7420"),
            ("::1", "no port: add one, as in [::1]:7420"),
            ("[::1]", "no port: add one, as in [::1]:7420"),
            ("127.0.0.1:65536", "\"65536\" is no port: a number from 0 to 65535"),
            ("127.0.0.1:http", "\"http\" is no port"),
            ("127.0.0.1:", "\"\" is no port"),
            (":7420", "0.0.0.0:7420"),
            ("localhost:7420", "localhost is no IP address: use an IP address and a port"),
            ("", "as in 127.0.0.1:7420"),
        ] {
            let why = address(wrong).expect_err(wrong);
            assert!(why.contains(right), "{wrong}: {why}");
        }
    }

    #[test]
    fn what_is_no_address_to_connect_to_is_told_with_what_would_be_right() {
        for right in ["localhost:1", "127.0.0.1:7421", "[::1]:65535"] {
            assert_eq!(host_and_port(right).as_deref(), Ok(right));
            assert_eq!(server(right).as_deref(), Ok(right));
        }
        for right in ["http://node", "https://node.example:443/", "http://[::1]", "http://[::1]:7421"] {
            assert_eq!(server(right).as_deref(), Ok(right));
        }
        for (wrong, right) in [
            ("node", "no port: add one, as in node:7421"),
            ("[::1]", "as in [::1]:7421"),
            ("::1", "in brackets"),
            ("node:0", "\"0\" is no port: a number from 1 to 65535"),
            ("node:70000", "\"70000\" is no port"),
            (":7421", "no host"),
            ("", "as in localhost:7421"),
        ] {
            for why in [host_and_port(wrong), server(wrong)].map(|parsed| parsed.expect_err(wrong)) {
                assert!(why.contains(right), "{wrong}: {why}");
            }
        }
        for (wrong, right) in [
            ("http://node:x", "\"x\" is no port"),
            ("http://", "use http://HOST:PORT"),
            ("tcp://node:7420", "tcp is not spoken"),
        ] {
            let why = server(wrong).expect_err(wrong);
            assert!(why.contains(right), "{wrong}: {why}");
        }
    }

    fn refused(line: &[&str]) -> String {
        let command = with_negative_numbers(Cli::command());
        let line = [&["tailwater"], line].concat();
        command.try_get_matches_from(&line).expect_err("refused").to_string()
    }

    #[test]
    fn a_number_out_of_its_range_is_told_with_the_range_also_if_it_is_negative_or_no_number() {
        for given in ["-1", "0", "4097", "many", "1.5", "18446744073709551616"] {
            let told = refused(&["stream", "create", "s", "--shards", given]);
            assert!(told.contains("--shards") && told.contains("from 1 to 4096"), "{given}: {told}");
        }
        for given in ["-5", "few"] {
            let told = refused(&["consume", "s", "-n", given]);
            assert!(told.contains("a whole number, 0 or more"), "{given}: {told}");
        }
        let told = refused(&["queue", "receive", "q", "--wait", "21"]);
        assert!(told.contains("from 0 to 20"), "{told}");
    }

    #[test]
    fn every_option_with_a_number_tells_what_would_be_right() {
        fn look(command: &Command, path: &str, seen: &mut usize) {
            for arg in command.get_arguments().filter(|arg| arg.get_action().takes_values()) {
                let of = arg.get_value_parser().type_id();
                let numeric =
                    [TypeId::of::<u64>(), TypeId::of::<u32>(), TypeId::of::<u16>(), TypeId::of::<usize>()];
                if arg.get_long().is_none() || !numeric.iter().any(|number| of == *number) {
                    continue;
                }
                *seen += 1;
                let long = arg.get_long().expect("it has one");
                let alone = arg.clone().global(false).required(false).allow_negative_numbers(true);
                let alone = alone
                    .conflicts_with(clap::builder::Resettable::<clap::Id>::Reset)
                    .requires(clap::builder::Resettable::<clap::Id>::Reset);
                let command = Command::new("tailwater").no_binary_name(true).arg(alone);
                let told = command.try_get_matches_from([format!("--{long}=x")]).expect_err("refused");
                assert!(told.to_string().contains("use a whole number"), "{path} --{long}: {told}");
            }
            for below in command.get_subcommands() {
                look(below, &format!("{path} {}", below.get_name()), seen);
            }
        }
        let mut seen = 0;
        // What measures and shows is for those who develop it.
        let ours = ["bench", "demo", "demo-clusters", "demo-nodes", "load"];
        for command in Cli::command().get_subcommands().filter(|command| !ours.contains(&command.get_name()))
        {
            look(command, command.get_name(), &mut seen);
        }
        assert!(seen > 25, "only {seen}");
    }
}

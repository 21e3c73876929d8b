//! Several listeners: each client is told the address of the one by which it came.

#![allow(clippy::disallowed_methods)] // a test of real sockets

mod common;

use common::{Client, Tailwater};
use tailwater_kafka::messages::cluster::{
    ApiVersionsRequest, DescribeClusterRequest, FindCoordinatorRequest, MetadataRequest,
};
use tailwater_kafka::messages::configs::{DescribeConfigsRequest, DescribeConfigsResource};
use tailwater_kafka::{KafkaConfig, Listener};

fn listener(listen: &str, advertised: &str) -> Listener {
    Listener {
        listen: listen.parse().expect("an address"),
        advertised: advertised.to_owned(),
        tls: None,
        login: false,
    }
}

/// Brokers and coordinators that a client is told of, in every version that tells it otherwise.
fn told(client: &mut Client) -> Vec<(String, i32)> {
    let mut told = Vec::new();
    for version in [0, 9, 13] {
        let metadata = client.ask(version, &MetadataRequest::default()).expect("an answer");
        told.extend(metadata.brokers.into_iter().map(|broker| (broker.host, broker.port)));
    }
    let key = "group".to_owned();
    let find = FindCoordinatorRequest { key: key.clone(), coordinator_keys: vec![key], ..Default::default() };
    for version in [0, 6] {
        let found = client.ask(version, &find).expect("an answer");
        told.extend(match found.coordinators.into_iter().next() {
            Some(found) => [(found.host, found.port)],
            None => [(found.host, found.port)],
        });
    }
    let cluster = DescribeClusterRequest { endpoint_type: 1, ..Default::default() };
    let described = client.ask(1, &cluster).expect("an answer");
    told.extend(described.brokers.into_iter().map(|broker| (broker.host, broker.port)));
    assert_eq!(told.len(), 6);
    told.dedup();
    told
}

#[test]
fn a_client_is_told_the_address_of_the_listener_by_which_it_came() {
    let tailwater = Tailwater::start(KafkaConfig {
        listeners: vec![listener("127.0.0.1:9093", "kafka.example:19093"), listener("127.0.0.1:9094", "")],
        advertised: "[2001:db8::5]:19092".to_owned(),
        ..KafkaConfig::default()
    });
    let addresses = tailwater.addresses();
    let third = (addresses[2].ip().to_string(), addresses[2].port().into());
    let expected = [("2001:db8::5".to_owned(), 19092), ("kafka.example".to_owned(), 19093), third];
    for (address, expected) in addresses.iter().zip(expected) {
        assert_eq!(told(&mut Client::connect(*address)), [expected]);
    }

    // Whoever looks at the broker's configuration sees all of them.
    let resource =
        DescribeConfigsResource { resource_type: 4, resource_name: "1".to_owned(), configuration_keys: None };
    let describe = DescribeConfigsRequest { resources: vec![resource], ..Default::default() };
    let described = Client::connect(addresses[1]).ask(4, &describe).expect("an answer");
    let value = |name: &str| {
        let configs = &described.results[0].configs;
        configs.iter().find(|config| config.name == name).and_then(|config| config.value.clone())
    };
    let listeners = "PLAINTEXT://127.0.0.1:9092,PLAINTEXT://127.0.0.1:9093,PLAINTEXT://127.0.0.1:9094";
    assert_eq!(value("listeners").as_deref(), Some(listeners));
    let advertised =
        "PLAINTEXT://[2001:db8::5]:19092,PLAINTEXT://kafka.example:19093,PLAINTEXT://127.0.0.1:9094";
    assert_eq!(value("advertised.listeners").as_deref(), Some(advertised));
}

#[test]
fn connections_max_is_of_all_listeners_together() {
    let tailwater = Tailwater::start(KafkaConfig {
        listeners: vec![listener("127.0.0.1:9093", "")],
        connections_max: 2,
        ..KafkaConfig::default()
    });
    let is_answered = |client: &mut Client| client.ask(0, &ApiVersionsRequest::default()).is_some();
    let [one, other] = [0, 1].map(|index| tailwater.addresses()[index]);
    let [mut first, mut second] = [one, other].map(Client::connect);
    assert!(is_answered(&mut first) && is_answered(&mut second));
    for address in [one, other] {
        assert!(!is_answered(&mut Client::connect(address)), "there are two already");
    }
    drop(first);
    // Its place is anybody's, once it is noticed that it is gone; each time over a new connection.
    let mut third = Client::connect(other);
    while !is_answered(&mut third) {}
    assert!(is_answered(&mut second));
}

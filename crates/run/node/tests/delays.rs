//! The node's page of metrics says how long records took: to readers' being told of them, and to consumers.

#![allow(clippy::disallowed_methods)] // a test of real sockets

use std::net::SocketAddr;
use std::time::Duration;

use tailwater_client::{Client, ConsumerConfig, ProducerSettings};
use tailwater_env::{Env, TIMES_BUCKETS};
use tailwater_format::call::{CallErrorCode, DeliveryDelays, Method, encode_call};
use tailwater_node::{Config, Node};
use tailwater_rma::{Address, CallError};

const PUBLISH: &str = "tailwater_tail_publish_seconds";
const DELIVERY: &str = "tailwater_tail_delivery_seconds";

/// How many a histogram has counted, and their sum in seconds.
async fn histogram(admin: SocketAddr, name: &'static str) -> (f64, f64) {
    let asking = move || {
        let mut page = ureq::get(format!("http://{admin}/metrics")).call().unwrap();
        let page = page.body_mut().read_to_string().unwrap();
        let [count, sum] = ["count", "sum"].map(|part| {
            let line = page.lines().find_map(|line| line.strip_prefix(&format!("{name}_{part} ")));
            line.unwrap_or_else(|| panic!("{name}_{part}")).parse::<f64>().unwrap()
        });
        (count, sum)
    };
    tokio::task::spawn_blocking(asking).await.unwrap()
}

async fn until_counted(env: &Env, admin: SocketAddr, name: &'static str) -> f64 {
    loop {
        let (count, sum) = histogram(admin, name).await;
        if count > 0.0 {
            return sum;
        }
        env.sleep(Duration::from_millis(20)).await;
    }
}

#[test]
fn how_long_records_take_is_told_from_their_append_to_the_cell_and_by_clients_to_their_consumers() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let mut config = Config { data: dir.path().to_owned(), ..Config::default() };
    (config.listen.data, config.listen.admin) =
        (tailwater_load::free_address().unwrap(), tailwater_load::free_address().unwrap());
    (config.kafka.enabled, config.sqs.enabled, config.broadcast.enabled) = (false, false, false);
    let (data, admin) = (config.listen.data, config.listen.admin);
    runtime.block_on(async {
        let node = Node::start(config).await.unwrap();
        let env = Env::real();
        let create = move || {
            let post = ureq::post(format!("http://{admin}/v1/streams")).content_type("application/json");
            post.send("{\"name\":\"s\"}").unwrap();
        };
        tokio::task::spawn_blocking(create).await.unwrap();
        let client = Client::connect(&data.to_string()).await.unwrap();
        let mut consumer = client.consumer("s", ConsumerConfig::default()).await.unwrap();
        let producer = client.producer("s", ProducerSettings::default()).await.unwrap();
        assert_eq!(histogram(admin, DELIVERY).await.0, 0.0);
        producer.send(None, b"value").unwrap().await.unwrap();
        let batch = consumer.next().await.unwrap().unwrap();
        assert_eq!(batch.records().count(), 1);
        assert!(until_counted(&env, admin, PUBLISH).await > 0.0);
        until_counted(&env, admin, DELIVERY).await;
        assert_eq!(histogram(admin, DELIVERY).await.0, 1.0, "one batch was delivered");

        let address: Address = format!("tcp:{data}").parse().unwrap();
        let connection = tailwater_rma::connect(&env, &address).await.unwrap();
        let tell = async |counts: Vec<u64>, sum_ns| {
            let told = encode_call(&DeliveryDelays { counts, sum_ns });
            connection.call(Method::DeliveryDelays.number(), told).await
        };
        let malformed = CallErrorCode::Malformed.number();
        for counts in [vec![1; TIMES_BUCKETS + 1], vec![u64::MAX, 1], vec![1 << 33]] {
            let refused = tell(counts, 1).await;
            let is_malformed = matches!(&refused, Err(CallError::Refused { code, .. }) if *code == malformed);
            assert!(is_malformed, "{refused:?}");
        }
        for _ in 0..2 {
            tell(vec![0, 1], u64::MAX).await.unwrap();
        }
        let (count, sum) = histogram(admin, DELIVERY).await;
        assert_eq!(count, 3.0);
        assert!(sum > 1e9, "no counter goes over its end: {sum}");
        node.stop().await.unwrap();
    });
}

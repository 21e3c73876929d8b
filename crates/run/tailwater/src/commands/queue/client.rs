//! SQS's API as the command line uses it: the client library's, one action after the other.

use std::time::Duration;

use anyhow::{Context, anyhow};
use serde_json::{Value, json};
use tailwater_client::Error;
use tailwater_client::queue::{self, Credentials};
use tailwater_env::{Env, Instant};
use tailwater_node::api::NodeView;

use crate::admin::Server;

/// How long an answer may take; a receive waits up to 20 s.
const DEADLINE: Duration = Duration::from_secs(60);
/// Pause before a node that is not there is asked again.
const ASK_AGAIN_AFTER: Duration = Duration::from_millis(200);

/// Where the queues are.
#[derive(clap::Args, Clone)]
pub struct EndpointFlags {
    /// Address of SQS's protocol. By default the node at --server tells it. Requests are signed if AWS_ACCESS_KEY_ID
    /// and AWS_SECRET_ACCESS_KEY are set.
    #[arg(long, global = true, env = "AWS_ENDPOINT_URL_SQS", value_name = "URL")]
    endpoint: Option<String>,
}

/// A client of one endpoint.
pub struct Client {
    /// There until it is dropped.
    runtime: Option<tokio::runtime::Runtime>,
    env: Env,
    endpoint: queue::Endpoint,
    /// Until when somebody who answers is waited for.
    waits_until: Instant,
}

impl Drop for Client {
    fn drop(&mut self) {
        // A read of standard input goes on after a Ctrl-C, and nobody waits for it.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl Client {
    /// A client of the endpoint, or of the node's, which is waited for until `patience` is over.
    pub fn new(server: &Server, endpoint: EndpointFlags, patience: Duration) -> anyhow::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let env = {
            let _inside = runtime.enter();
            Env::real()
        };
        // Longer than a year is for ever.
        let waits_until = env.now() + patience.min(Duration::from_secs(366 * 86_400));
        let address = match endpoint.endpoint {
            Some(given) => given,
            None => {
                let node: NodeView = server.get_within(patience, "/v1/node")?;
                let address = node.sqs.context("the node does not speak SQS's protocol: [sqs] enabled")?;
                format!("{}://{address}", if node.sqs_tls { "https" } else { "http" })
            }
        };
        let dialer = server.dialer(&env)?;
        let endpoint = queue::Endpoint::with_dialer(&env, &address, Credentials::from_env(), dialer)
            .context("--endpoint, AWS_ENDPOINT_URL_SQS, or what the node tells")?;
        Ok(Self { runtime: Some(runtime), env, endpoint, waits_until })
    }

    /// The library's client.
    pub fn endpoint(&self) -> &queue::Endpoint {
        &self.endpoint
    }

    /// Runs something that waits.
    pub fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        self.runtime.as_ref().expect("not dropped").block_on(future)
    }

    /// Waits a while.
    pub fn pause(&self, pause: Duration) {
        self.block_on(async { self.env.sleep(pause).await });
    }

    /// An action of SQS.
    pub fn call(&self, action: &str, parameters: &Value) -> anyhow::Result<Value> {
        self.block_on(self.endpoint.call_within(action, parameters, DEADLINE)).map_err(explained)
    }

    /// An action that only Tailwater has.
    pub fn call_own(&self, action: &str, parameters: &Value) -> anyhow::Result<Value> {
        self.call(&format!("Tailwater.{action}"), parameters)
    }

    /// The address of a queue, by its name. Somebody who answers is waited for first.
    pub fn url(&self, name: &str) -> anyhow::Result<String> {
        let parameters = json!({"QueueName": name});
        let mut told = false;
        let answer = loop {
            let asked = self.endpoint.call_within("GetQueueUrl", &parameters, DEADLINE);
            match self.block_on(asked) {
                Err(Error::Unreachable { address, .. }) if self.env.now() < self.waits_until => {
                    if !std::mem::replace(&mut told, true) {
                        eprintln!("tailwater: nobody answers at {address} yet; waiting for it");
                    }
                    self.pause(ASK_AGAIN_AFTER);
                }
                answered => break answered.map_err(explained)?,
            }
        };
        answer["QueueUrl"].as_str().map(str::to_owned).context("the answer has no QueueUrl")
    }

    /// The name (ARN) of a queue.
    pub fn arn(&self, name: &str) -> anyhow::Result<String> {
        let url = self.url(name)?;
        let answer =
            self.call("GetQueueAttributes", &json!({"QueueUrl": url, "AttributeNames": ["QueueArn"]}))?;
        answer["Attributes"]["QueueArn"].as_str().map(str::to_owned).context("the answer has no QueueArn")
    }
}

/// An error, with what to do about it.
pub fn explained(error: Error) -> anyhow::Error {
    match error {
        Error::Unreachable { address, reason } => anyhow!(
            "nobody answers SQS's protocol at {address} ({reason}): start a node with `tailwater serve --data DIR`, or name \
             another address with --endpoint or AWS_ENDPOINT_URL_SQS"
        ),
        other => other.into(),
    }
}

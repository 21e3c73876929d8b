//! SQS's API as the command line uses it: JSON over HTTP, signed if there are credentials.

use anyhow::{Context, anyhow};
use serde_json::{Value, json};
use tailwater_node::api::NodeView;
use tailwater_sqs::signature::{self, Signed};

use crate::admin::Server;

/// What a node answered instead of doing it.
#[derive(Debug)]
pub struct Refused {
    /// SQS's code.
    pub code: String,
    /// In words.
    pub message: String,
}

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Refused {}

/// Where the queues are.
#[derive(clap::Args, Clone)]
pub struct Endpoint {
    /// Address of SQS's protocol; by default the one that the node at --server tells. Requests are signed if
    /// AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY are set.
    #[arg(long, global = true, env = "AWS_ENDPOINT_URL_SQS", value_name = "URL")]
    endpoint: Option<String>,
}

/// A client of one endpoint.
pub struct Client {
    base: String,
    credentials: Option<(String, String)>,
    agent: ureq::Agent,
}

impl Client {
    /// A client of the endpoint, or of the node's.
    pub fn new(server: &Server, endpoint: Endpoint) -> anyhow::Result<Self> {
        let base = match endpoint.endpoint {
            Some(given) if given.contains("://") => given.trim_end_matches('/').to_owned(),
            Some(given) => format!("http://{given}"),
            None => {
                let node: NodeView = server.get("/v1/node")?;
                let address = node.sqs.context("the node does not speak SQS's protocol: [sqs] enabled")?;
                format!("http://{address}")
            }
        };
        let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let credentials = variable("AWS_ACCESS_KEY_ID").zip(variable("AWS_SECRET_ACCESS_KEY"));
        let agent = ureq::Agent::config_builder().http_status_as_error(false).proxy(None).build().into();
        Ok(Self { base, credentials, agent })
    }

    /// An action of SQS.
    pub fn call(&self, action: &str, parameters: &Value) -> anyhow::Result<Value> {
        self.call_target(&format!("AmazonSQS.{action}"), parameters)
    }

    /// An action that only Tailwater has.
    pub fn call_own(&self, action: &str, parameters: &Value) -> anyhow::Result<Value> {
        self.call_target(&format!("Tailwater.{action}"), parameters)
    }

    fn call_target(&self, target: &str, parameters: &Value) -> anyhow::Result<Value> {
        let body = parameters.to_string();
        let mut request = self.agent.post(format!("{}/", self.base));
        request = request.header("content-type", "application/x-amz-json-1.0").header("x-amz-target", target);
        if let Some((key, secret)) = &self.credentials {
            let host = self.base.split("://").nth(1).unwrap_or_default();
            let headers = hyper::HeaderMap::new();
            let bytes = body.clone().into();
            let signed = Signed { method: "POST", path: "/", query: "", headers: &headers, body: &bytes };
            let now = jiff::Timestamp::now();
            let (date, authorization) = signature::sign(&signed, host, now, (key, secret), "us-east-1");
            request = request.header("x-amz-date", date).header("authorization", authorization);
        }
        let mut answer = request.send(&body).map_err(|error| {
            anyhow!(
                "nobody answers SQS's protocol at {} ({error}): start a node with `tailwater serve --data DIR`, or name \
                 another address with --endpoint or AWS_ENDPOINT_URL_SQS",
                self.base
            )
        })?;
        if answer.status().is_success() {
            return answer
                .body_mut()
                .with_config()
                .limit(64 << 20)
                .read_json()
                .context("the answer makes no sense");
        }
        let code = answer.headers().get("x-amzn-query-error").and_then(|value| value.to_str().ok());
        let code = code.and_then(|code| code.split(';').next()).unwrap_or_default().to_owned();
        let status = answer.status();
        let body: Value = answer.body_mut().read_json().unwrap_or_default();
        let message =
            body["message"].as_str().map_or_else(|| format!("the answer is {status}"), str::to_owned);
        Err(Refused { code, message }.into())
    }

    /// The address of a queue, by its name.
    pub fn url(&self, name: &str) -> anyhow::Result<String> {
        let answer = self.call("GetQueueUrl", &json!({"QueueName": name}))?;
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

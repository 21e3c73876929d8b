//! `queue receive --exec`: a command handles each message, which stays invisible for as long as that runs.

use std::process::Stdio;
use std::time::Duration;

use anyhow::Context;
use serde_json::{Value, json};
use tailwater_env::Env;
use tokio::io::AsyncWriteExt;

use super::client::Client;

/// Runs `command` in a shell, the message's body on its standard input. While it runs, the message's visibility timeout of
/// `visibility_s` seconds is begun anew each time a third of it is over. If it ends well the message is deleted; if not, it
/// is visible again at once. Whether it ended well.
pub async fn handle(
    env: &Env,
    client: &Client,
    url: &str,
    message: &Value,
    command: &str,
    visibility_s: u64,
) -> anyhow::Result<bool> {
    let text = |name: &str| message[name].as_str().unwrap_or_default().to_owned();
    let mut child = tokio::process::Command::new("sh")
        .arg("-c")
        .arg(command)
        .stdin(Stdio::piped())
        .env("TAILWATER_MESSAGE_ID", text("MessageId"))
        .env(
            "TAILWATER_RECEIVE_COUNT",
            message["Attributes"]["ApproximateReceiveCount"].as_str().unwrap_or("1"),
        )
        .env("TAILWATER_GROUP", message["Attributes"]["MessageGroupId"].as_str().unwrap_or_default())
        .spawn()
        .with_context(|| format!("sh can't be started for {command:?}"))?;
    let mut stdin = child.stdin.take().expect("piped");
    let body = text("Body");
    let write = async move {
        // A command may end without reading all of it.
        let _ = stdin.write_all(body.as_bytes()).await;
        drop(stdin);
    };
    let receipt = text("ReceiptHandle");
    let beat = Duration::from_secs(visibility_s.max(3)) / 3;
    let heartbeats = async {
        loop {
            env.sleep(beat).await;
            let parameters =
                json!({"QueueUrl": url, "ReceiptHandle": receipt, "VisibilityTimeout": visibility_s});
            if let Err(error) = client.call("ChangeMessageVisibility", &parameters) {
                // It goes on: the message may be handled twice, which is better than never.
                eprintln!("tailwater: the message may become visible while it is handled: {error:#}");
            }
        }
    };
    let ended = async {
        let ((), status) = futures::join!(write, child.wait());
        status
    };
    let status = tokio::select! {
        biased;
        status = ended => status?,
        () = heartbeats => unreachable!("they go on for ever"),
    };
    if status.success() {
        client.call("DeleteMessage", &json!({"QueueUrl": url, "ReceiptHandle": receipt}))?;
    } else {
        eprintln!("tailwater: {} was not handled ({status}) and is visible again", text("MessageId"));
        let parameters = json!({"QueueUrl": url, "ReceiptHandle": receipt, "VisibilityTimeout": 0});
        client.call("ChangeMessageVisibility", &parameters)?;
    }
    Ok(status.success())
}

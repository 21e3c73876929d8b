//! Queues: messages that stay invisible for as long as they are worked on, over SQS's protocol, so with any server of
//! it.
//!
//! ```no_run
//! # async fn example() -> Result<(), tailwater_client::Error> {
//! use tailwater_client::queue::{Credentials, Endpoint};
//!
//! let endpoint = Endpoint::new(&tailwater_env::Env::real(), "http://127.0.0.1:9324", Credentials::from_env())?;
//! let jobs = endpoint.queue("jobs").await?;
//! loop {
//!     for message in jobs.receive(1).await? {
//!         let work = async { std::fs::write("/tmp/job", &message.body) };     // may take as long as it likes
//!         jobs.handle(&message, work).await.unwrap_or_else(|failed| eprintln!("{failed}"));
//!     }
//! }
//! # }
//! ```
//!
//! What holds of [`Queue::handle`]:
//! - While the work runs the message's visibility timeout begins anew each time a third of it is over: two of these
//!   beats in a row may fail before somebody else can receive the message.
//! - Work that succeeded is deleted; work that failed is given back, and visible at once.
//! - No beat comes after either: one that is on its way is waited for.
//! - Whoever drops the future, or dies, leaves the message to its timeout.
//!
//! [`Endpoint`] is what speaks to the server, and has all the other actions of SQS as [`Endpoint::call`].

mod endpoint;
mod halt;
mod handle;

use std::time::Duration;

pub use endpoint::{Credentials, Endpoint};
pub use handle::Unhandled;
use serde_json::{Value, json};
use tailwater_env::Instant;

use crate::error::Error;

/// How long an answer may take, beyond what a receive is told to wait.
const CALL_DEADLINE: Duration = Duration::from_secs(30);

/// Longest time that SQS lets a receive wait.
pub const WAIT_MAX: Duration = Duration::from_secs(20);

/// A queue of an endpoint.
#[derive(Clone, Debug)]
pub struct Queue {
    endpoint: Endpoint,
    url: String,
    visibility_s: u64,
    wait: Duration,
}

/// A message, in the hand of whoever received it.
#[derive(Clone, Debug)]
pub struct Message {
    /// What was sent.
    pub body: String,
    /// Its id, the same at each receive.
    pub id: String,
    /// How often it was received, this time included.
    pub receives: u64,
    /// All that SQS's answer says of it: attributes, checksums.
    pub answer: Value,
    receipt: String,
    /// Not later than when its visibility timeout began.
    received_at: Instant,
}

impl Endpoint {
    /// The queue of that name.
    pub async fn queue(&self, name: &str) -> Result<Queue, Error> {
        let answer = self.call("GetQueueUrl", &json!({"QueueName": name})).await?;
        let url = text(&answer["QueueUrl"], "QueueUrl")?;
        let asked = json!({"QueueUrl": url, "AttributeNames": ["VisibilityTimeout"]});
        let answer = self.call("GetQueueAttributes", &asked).await?;
        let visibility = text(&answer["Attributes"]["VisibilityTimeout"], "VisibilityTimeout")?;
        let visibility_s =
            visibility.parse().map_err(|_| Error::Malformed(format!("a timeout of {visibility}")))?;
        Ok(Queue { endpoint: self.clone(), url, visibility_s, wait: WAIT_MAX })
    }
}

impl Queue {
    /// Its address.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// How long what is received is invisible at first, and after each beat, in seconds; by default what the queue
    /// says.
    pub fn with_visibility_s(mut self, visibility_s: u64) -> Self {
        self.visibility_s = visibility_s;
        self
    }

    /// How long a receive waits for a message, at most and by default [`WAIT_MAX`], in whole seconds.
    pub fn with_wait(mut self, wait: Duration) -> Self {
        self.wait = wait.min(WAIT_MAX);
        self
    }

    /// Receives up to `most` messages, 1 to 10; none if none came in time. Those that are handled one after the other
    /// wait for their turn without beats, so that long work is better received one by one. Dropping it may leave
    /// messages to their timeout, which [`Queue::receive_until`] does not.
    pub async fn receive(&self, most: usize) -> Result<Vec<Message>, Error> {
        self.receive_until(most, std::future::pending()).await
    }

    /// The same until `stop` completes. The server is told then that nobody waits any more, and what it had received
    /// for this by then is answered: whoever stops can give that back with [`Queue::change_visibility`]. A server that
    /// does not end the connection is heard for two seconds more.
    pub async fn receive_until(
        &self,
        most: usize,
        stop: impl Future<Output = ()>,
    ) -> Result<Vec<Message>, Error> {
        let asked = json!({
            "QueueUrl": self.url, "MaxNumberOfMessages": most, "VisibilityTimeout": self.visibility_s,
            "WaitTimeSeconds": self.wait.as_secs(), "AttributeNames": ["All"], "MessageAttributeNames": ["All"],
        });
        let received_at = self.endpoint.env().now();
        let deadline = CALL_DEADLINE + self.wait;
        let answer = self.endpoint.call_until("ReceiveMessage", &asked, deadline, stop).await?;
        let messages = match answer.map(|mut answer| answer["Messages"].take()) {
            Some(Value::Array(messages)) => messages,
            _ => Vec::new(),
        };
        messages
            .into_iter()
            .map(|answer| {
                let receives = answer["Attributes"]["ApproximateReceiveCount"].as_str();
                Ok(Message {
                    body: text(&answer["Body"], "Body")?,
                    id: text(&answer["MessageId"], "MessageId")?,
                    receives: receives.and_then(|count| count.parse().ok()).unwrap_or(1),
                    receipt: text(&answer["ReceiptHandle"], "ReceiptHandle")?,
                    received_at,
                    answer,
                })
            })
            .collect()
    }

    /// Deletes a message.
    pub async fn delete(&self, message: &Message) -> Result<(), Error> {
        let asked = json!({"QueueUrl": self.url, "ReceiptHandle": message.receipt});
        self.endpoint.call("DeleteMessage", &asked).await.map(drop)
    }

    /// Makes a message visible in so many seconds from now.
    pub async fn change_visibility(&self, message: &Message, visibility_s: u64) -> Result<(), Error> {
        self.change_visibility_within(message, visibility_s, CALL_DEADLINE).await
    }

    async fn change_visibility_within(
        &self,
        message: &Message,
        visibility_s: u64,
        deadline: Duration,
    ) -> Result<(), Error> {
        let asked = json!({"QueueUrl": self.url, "ReceiptHandle": message.receipt, "VisibilityTimeout": visibility_s});
        self.endpoint.call_within("ChangeMessageVisibility", &asked, deadline).await.map(drop)
    }
}

fn text(value: &Value, name: &str) -> Result<String, Error> {
    value.as_str().map(str::to_owned).ok_or_else(|| Error::Malformed(format!("no {name}")))
}

#[cfg(test)]
mod tests;

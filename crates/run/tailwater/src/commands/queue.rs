//! `tailwater queue …`

mod client;
mod handle;

use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use clap::Subcommand;
use serde_json::{Map, Value, json};
use tailwater_client::Error;
use tailwater_sqs::limits;
use tokio::io::AsyncReadExt;
use tokio::signal::unix::{SignalKind, signal};

use crate::admin::Server;
use crate::lines::Lines;
use crate::output::{self, Format};
use crate::values;
use client::{Client, EndpointFlags};

/// Messages of one batch.
const BATCH: usize = 10;

/// Bytes of bodies in one batch, beyond which a further one is begun.
const BATCH_BYTES: usize = 512 << 10;

/// Longest body that a queue takes, in bytes; each may take less.
const BODY_BYTES_MAX: usize = *limits::MESSAGE_BYTES.end() as usize;

/// What to do with queues, and where they are.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    endpoint: EndpointFlags,
    #[command(subcommand)]
    command: Command,
}

/// What to do with queues.
#[derive(Subcommand)]
pub enum Command {
    /// Create a queue.
    Create(Create),
    /// List queues.
    #[command(visible_alias = "list")]
    Ls {
        /// List only queues whose names begin like this.
        #[arg(default_value = "")]
        prefix: String,
        /// Form of the output.
        #[arg(short, long, value_enum, default_value_t = Format::Table)]
        output: Format,
    },
    /// Show a queue's attributes and tags.
    Describe {
        /// The queue's name.
        name: String,
        /// Form of the output.
        #[arg(short, long, value_enum, default_value_t = Format::Table)]
        output: Format,
    },
    /// Send messages: the given ones, the lines of standard input, or a file as one message. The command ends at the
    /// first batch with a message that can't be sent, such as an empty line. It says which message that is and how many
    /// were sent.
    Send(SendArgs),
    /// Receive messages. Without --delete or --exec a message is visible again after its timeout.
    Receive(ReceiveArgs),
    /// Look at messages without receiving them.
    Peek {
        /// The queue.
        name: String,
        /// How many messages at most.
        #[arg(short = 'n', long, value_name = "N", default_value_t = 10,
            value_parser = values::number::<usize>(0..=u64::MAX))]
        count: usize,
        /// Form of the output.
        #[arg(short, long, value_enum, default_value_t = Format::Table)]
        output: Format,
    },
    /// Move the messages of a dead-letter queue back.
    Move {
        /// The dead-letter queue.
        source: String,
        /// The queue that gets them. By default the queue from which each message came.
        #[arg(long, value_name = "QUEUE")]
        to: Option<String>,
        /// How many messages a second at most.
        #[arg(long, value_name = "N", value_parser = values::number::<u32>(1..=500))]
        rate: Option<u32>,
        /// Form of the output.
        #[arg(short, long, value_enum, default_value_t = Format::Table)]
        output: Format,
    },
    /// Delete all messages of a queue.
    Purge {
        /// The queue's name.
        name: String,
        /// Form of the output.
        #[arg(short, long, value_enum, default_value_t = Format::Table)]
        output: Format,
    },
    /// Delete a queue and all its messages.
    Delete {
        /// The queue's name.
        name: String,
        /// Form of the output.
        #[arg(short, long, value_enum, default_value_t = Format::Table)]
        output: Format,
    },
}

/// A queue to be created.
#[derive(clap::Args)]
pub struct Create {
    /// The queue's name: 1 to 80 of a-z A-Z 0-9 _ -
    name: String,
    /// Create a FIFO queue. Its name ends with .fifo.
    #[arg(long)]
    fifo: bool,
    /// In a FIFO queue: take messages with the same body within five minutes for one.
    #[arg(long, requires = "fifo")]
    deduplicate_by_content: bool,
    /// Receive a random one of the oldest K visible messages. 1 is the best order. `auto`, the default, is 1 in a
    /// node's own store. If several front ends share the queue, it is the smallest K that keeps duplicates rare.
    /// `infinity` is no order at all.
    #[arg(long, value_name = "K")]
    order_hint: Option<tailwater_queue::OrderHint>,
    /// For queues in Cassandra: how many replicas have to answer, `one` or `quorum`. By default as the node is
    /// configured.
    #[arg(long, value_name = "LEVEL")]
    consistency: Option<tailwater_queue::Consistency>,
    /// How long a received message is invisible, in seconds. By default 30.
    #[arg(long, value_name = "S", value_parser = within::<u32>(limits::VISIBILITY_S))]
    visibility_timeout: Option<u32>,
    /// How long a message is invisible after it was sent, in seconds. By default 0.
    #[arg(long, value_name = "S", value_parser = within::<u32>(limits::DELAY_S))]
    delay: Option<u32>,
    /// How long a message is kept, in seconds. By default 345600, which is four days.
    #[arg(long, value_name = "S", value_parser = within::<u32>(limits::RETENTION_S))]
    retention: Option<u32>,
    /// How long a receive waits for messages, in seconds, if it does not say so itself. By default 0.
    #[arg(long, value_name = "S", value_parser = within::<u32>(limits::WAIT_S))]
    wait: Option<u32>,
    // `requires` would count only what is on the command line: `create` looks whether both are given.
    /// The queue that gets messages that were received --max-receives times.
    #[arg(long, value_name = "QUEUE")]
    dead_letter_queue: Option<String>,
    /// How often a message may be received before it goes to --dead-letter-queue. Each of the two options needs the
    /// other.
    #[arg(long, value_name = "N", value_parser = within::<u32>(limits::RECEIVES))]
    max_receives: Option<u32>,
    /// A tag. It may be given several times.
    #[arg(long, value_name = "KEY=VALUE", value_parser = pair)]
    tag: Vec<(String, String)>,
    /// Form of the output.
    #[arg(short, long, value_enum, default_value_t = Format::Table)]
    output: Format,
}

/// Messages to be sent.
#[derive(clap::Args)]
pub struct SendArgs {
    /// The queue.
    name: String,
    /// The messages. By default each line of standard input is one. A line ends with LF or CR LF, which the message
    /// does not have. Its other bytes are kept, and have to be text in UTF-8. It has 1,048,576 bytes at most.
    bodies: Vec<String>,
    /// A file that is sent as one message, with its last line's end: text in UTF-8 of 1,048,576 bytes at most. - is
    /// standard input.
    #[arg(short, long, value_name = "FILE", conflicts_with = "bodies")]
    file: Option<PathBuf>,
    /// The group of the messages, in a FIFO queue.
    #[arg(long)]
    group: Option<String>,
    /// The deduplication id, if there is one message.
    #[arg(long, value_name = "ID")]
    deduplication_id: Option<String>,
    /// How long the messages are invisible at first, in seconds.
    #[arg(long, value_name = "S", value_parser = within::<u32>(limits::DELAY_S))]
    delay: Option<u32>,
    /// An attribute, as text. It may be given several times.
    #[arg(long, value_name = "NAME=VALUE", value_parser = pair)]
    attribute: Vec<(String, String)>,
    /// How long to wait for a node that is not there yet, in milliseconds.
    #[arg(long, value_name = "MS", default_value_t = 120_000, value_parser = values::number::<u64>(0..=u64::MAX))]
    deadline_ms: u64,
    /// Form of the output.
    #[arg(short, long, value_enum, default_value_t = Format::Table)]
    output: Format,
}

/// Messages to be received.
#[derive(clap::Args)]
pub struct ReceiveArgs {
    /// The queue.
    name: String,
    /// How many messages at most. The command ends earlier when there are none. By default one. With --exec the command
    /// by default goes on for ever.
    #[arg(short = 'n', long, value_name = "N", value_parser = values::number::<usize>(0..=u64::MAX))]
    count: Option<usize>,
    /// How long to wait for messages, in seconds, at most 20. By default 0; 20 where the command goes on for ever.
    #[arg(long, value_name = "S", value_parser = within::<u32>(limits::WAIT_S))]
    wait: Option<u32>,
    /// How long received messages are invisible, in seconds. By default as long as the queue says.
    #[arg(long, value_name = "S", value_parser = within::<u64>(limits::VISIBILITY_S))]
    visibility_timeout: Option<u64>,
    /// Delete the messages once they are printed.
    #[arg(long, conflicts_with = "exec")]
    delete: bool,
    /// Run a command for each message, with the body on standard input. The message stays invisible for as long as the
    /// command runs. If the command ends well the message is deleted. If not it is visible again.
    #[arg(long, value_name = "COMMAND")]
    exec: Option<String>,
    /// Form of the output.
    #[arg(short, long, value_enum, default_value_t = Format::Table)]
    output: Format,
}

/// A number within a limit of SQS's.
fn within<T: TryFrom<u64>>(
    limit: RangeInclusive<u32>,
) -> impl Fn(&str) -> Result<T, String> + Clone + Send + Sync + 'static {
    values::number((*limit.start()).into()..=(*limit.end()).into())
}

fn pair(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("use KEY=VALUE")?;
    Ok((key.to_owned(), value.to_owned()))
}

/// Runs one of them.
pub fn run(server: &Server, args: Args) -> anyhow::Result<()> {
    let patience = match &args.command {
        Command::Send(send) => Duration::from_millis(send.deadline_ms),
        _ => Duration::ZERO,
    };
    let client = Client::new(server, args.endpoint, patience)?;
    match args.command {
        Command::Create(create) => self::create(&client, create),
        Command::Ls { prefix, output } => list(&client, &prefix, output),
        Command::Describe { name, output } => describe(&client, &name, output),
        Command::Send(send) => self::send(&client, send),
        Command::Receive(receive) => self::receive(&client, receive),
        Command::Peek { name, count, output } => peek(&client, &name, count, output),
        Command::Move { source, to, rate, output } => {
            move_back(&client, &source, to.as_deref(), rate, output)
        }
        Command::Purge { name, output } => call_with_queue(&client, "PurgeQueue", "purged", &name, output),
        Command::Delete { name, output } => call_with_queue(&client, "DeleteQueue", "deleted", &name, output),
    }
}

fn create(client: &Client, create: Create) -> anyhow::Result<()> {
    let mut attributes = Map::new();
    for (name, seconds) in [
        ("VisibilityTimeout", create.visibility_timeout),
        ("DelaySeconds", create.delay),
        ("MessageRetentionPeriod", create.retention),
        ("ReceiveMessageWaitTimeSeconds", create.wait),
    ] {
        attributes.extend(seconds.map(|seconds| (name.to_owned(), seconds.to_string().into())));
    }
    if create.fifo {
        attributes.insert("FifoQueue".to_owned(), "true".into());
    }
    if create.deduplicate_by_content {
        attributes.insert("ContentBasedDeduplication".to_owned(), "true".into());
    }
    match (&create.dead_letter_queue, create.max_receives) {
        (Some(target), Some(most)) => {
            let policy = json!({"deadLetterTargetArn": client.arn(target)?, "maxReceiveCount": most});
            attributes.insert("RedrivePolicy".to_owned(), policy.to_string().into());
        }
        (Some(_), None) => anyhow::bail!("--dead-letter-queue is given without --max-receives"),
        (None, Some(_)) => anyhow::bail!("--max-receives is given without --dead-letter-queue"),
        (None, None) => {}
    }
    let mut tags: Map<String, Value> =
        create.tag.into_iter().map(|(key, value)| (key, value.into())).collect();
    let hint =
        create.order_hint.map(|hint| (tailwater_sqs::ORDER_HINT_TAG.to_owned(), hint.to_string().into()));
    tags.extend(hint);
    let consistency = create.consistency.map(|level| serde_json::to_value(level).expect("a word"));
    tags.extend(consistency.map(|level| (tailwater_sqs::CONSISTENCY_TAG.to_owned(), level)));
    let parameters = json!({"QueueName": create.name, "Attributes": attributes, "tags": tags});
    let created = client.call("CreateQueue", &parameters)?;
    match create.output {
        Format::Json => output::print_json(&created),
        Format::Table => output::print(&created["QueueUrl"].as_str().unwrap_or_default()),
    }
}

/// Does something with a queue that answers nothing.
fn call_with_queue(
    client: &Client,
    action: &str,
    done: &str,
    name: &str,
    format: Format,
) -> anyhow::Result<()> {
    let url = client.url(name)?;
    client.call(action, &json!({"QueueUrl": url}))?;
    match format {
        Format::Json => output::print_json(&json!({"name": name, "url": url})),
        Format::Table => output::print(&format!("queue {name} {done}")),
    }
}

fn list(client: &Client, prefix: &str, format: Format) -> anyhow::Result<()> {
    let mut table = output::table(&["name", "messages", "in flight", "delayed", "url"]);
    let mut parameters = json!({"QueueNamePrefix": prefix, "MaxResults": 1000});
    loop {
        let page = client.call("ListQueues", &parameters)?;
        for url in page["QueueUrls"].as_array().into_iter().flatten().filter_map(Value::as_str) {
            let name = url.rsplit('/').next().unwrap_or_default();
            let attributes = match attributes(client, url) {
                Ok(attributes) => attributes,
                // It was deleted meanwhile.
                Err(error) if is_no_queue(&error) => continue,
                Err(error) => return Err(error),
            };
            let count = |name: &str| attributes[name].as_str().and_then(|count| count.parse::<u64>().ok());
            let counts = [
                count("ApproximateNumberOfMessages"),
                count("ApproximateNumberOfMessagesNotVisible"),
                count("ApproximateNumberOfMessagesDelayed"),
            ];
            match format {
                Format::Json => output::print_json(&json!({
                    "name": name, "url": url, "messages": counts[0], "in_flight": counts[1], "delayed": counts[2],
                }))?,
                Format::Table => {
                    let [visible, in_flight, delayed] = counts;
                    let counts = [visible, in_flight, delayed].map(|count| count.unwrap_or(0).to_string());
                    let [visible, in_flight, delayed] = counts;
                    table.add_row([name.to_owned(), visible, in_flight, delayed, url.to_owned()]);
                }
            }
        }
        match page["NextToken"].as_str() {
            Some(token) => parameters["NextToken"] = token.into(),
            None => break,
        }
    }
    match format {
        Format::Json => Ok(()),
        Format::Table => output::print(&table),
    }
}

/// Whether an error says that there is no such queue.
fn is_no_queue(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        matches!(
            cause.downcast_ref(),
            Some(tailwater_client::Error::Queue { code, .. }) if code == "AWS.SimpleQueueService.NonExistentQueue"
        )
    })
}

fn attributes(client: &Client, url: &str) -> anyhow::Result<Value> {
    let answer = client.call("GetQueueAttributes", &json!({"QueueUrl": url, "AttributeNames": ["All"]}))?;
    Ok(answer["Attributes"].clone())
}

fn describe(client: &Client, name: &str, format: Format) -> anyhow::Result<()> {
    let url = client.url(name)?;
    let attributes = attributes(client, &url)?;
    let tags = client.call("ListQueueTags", &json!({"QueueUrl": url}))?["Tags"].clone();
    match format {
        Format::Json => output::print_json(&json!({
            "name": name, "url": url, "attributes": attributes, "tags": if tags.is_null() { json!({}) } else { tags },
        })),
        Format::Table => {
            let mut table = output::table(&["attribute", "value"]);
            table.add_row(["url", &url]);
            for (key, value) in attributes.as_object().into_iter().flatten() {
                table.add_row([key.as_str(), value.as_str().unwrap_or_default()]);
            }
            for (key, value) in tags.as_object().into_iter().flatten() {
                table.add_row([format!("tag {key}"), value.as_str().unwrap_or_default().to_owned()]);
            }
            output::print(&table)
        }
    }
}

fn send(client: &Client, send: SendArgs) -> anyhow::Result<()> {
    let url = client.url(&send.name)?;
    let is_lines = send.file.is_none() && send.bodies.is_empty();
    let unit = if is_lines { "line" } else { "message" };
    let mut batch =
        Batch { client, url: &url, send: &send, unit, entries: Vec::new(), bytes: 0, read: 0, sent: 0 };
    match &send.file {
        Some(file) => batch.push(client.block_on(read_whole(file))?)?,
        None if send.bodies.is_empty() => send_lines(client, &mut batch)?,
        None => send.bodies.iter().try_for_each(|body| batch.push(body.clone()))?,
    }
    batch.flush()?;
    match send.output {
        Format::Json => Ok(()),
        Format::Table => output::print(&format!("{} sent", batch.sent)),
    }
}

/// Sends each line of standard input.
fn send_lines(client: &Client, batch: &mut Batch<'_>) -> anyhow::Result<()> {
    let mut lines = client.block_on(Lines::open(None, BODY_BYTES_MAX))?;
    let mut interrupts = client.block_on(async { signal(SignalKind::interrupt()) })?;
    loop {
        let line = client.block_on(async {
            tokio::select! {
                biased;
                _ = interrupts.recv() => Err(anyhow::anyhow!("interrupted")),
                line = lines.next() => line,
            }
        });
        match line {
            Ok(Some(line)) => match std::str::from_utf8(line) {
                Ok(line) => batch.push(line.to_owned())?,
                Err(_) => {
                    batch.stop("is no text in UTF-8, which a message has to be: encode it, as with base64")?
                }
            },
            Ok(None) => return Ok(()),
            Err(error) => {
                batch.flush()?;
                return Err(error.context(batch.ended()));
            }
        }
    }
}

/// A file, or standard input for `-`, as one message.
async fn read_whole(file: &Path) -> anyhow::Result<String> {
    let is_stdin = file.as_os_str() == "-";
    let name = if is_stdin { "standard input".into() } else { file.to_string_lossy() };
    let mut bytes = Vec::new();
    let most = BODY_BYTES_MAX as u64 + 1;
    let read = match is_stdin {
        true => tokio::io::stdin().take(most).read_to_end(&mut bytes).await,
        false => match tokio::fs::File::open(file).await {
            Ok(file) => file.take(most).read_to_end(&mut bytes).await,
            Err(error) => Err(error),
        },
    };
    read.with_context(|| format!("{name} can't be read"))?;
    anyhow::ensure!(bytes.len() <= BODY_BYTES_MAX, "{name} is longer than {BODY_BYTES_MAX} bytes");
    String::from_utf8(bytes).with_context(|| format!("{name} is no text in UTF-8: encode it, as with base64"))
}

/// Messages that go out together.
struct Batch<'a> {
    client: &'a Client,
    url: &'a str,
    send: &'a SendArgs,
    /// What they are called where one can't be sent.
    unit: &'static str,
    entries: Vec<Value>,
    bytes: usize,
    /// All that there were, these included.
    read: usize,
    sent: usize,
}

impl Batch<'_> {
    fn push(&mut self, body: String) -> anyhow::Result<()> {
        if self.entries.len() >= BATCH || self.bytes + body.len() > BATCH_BYTES {
            self.flush()?;
        }
        if body.is_empty() {
            return self.stop("is empty, which a message can't be");
        }
        self.read += 1;
        self.bytes += body.len();
        let mut entry = json!({"Id": self.entries.len().to_string(), "MessageBody": body});
        let optional = [
            ("MessageGroupId", self.send.group.clone().map(Value::from)),
            ("MessageDeduplicationId", self.send.deduplication_id.clone().map(Value::from)),
            ("DelaySeconds", self.send.delay.map(Value::from)),
        ];
        for (name, value) in optional.into_iter().filter_map(|(name, value)| Some((name, value?))) {
            entry[name] = value;
        }
        for (name, value) in &self.send.attribute {
            entry["MessageAttributes"][name] = json!({"DataType": "String", "StringValue": value});
        }
        self.entries.push(entry);
        Ok(())
    }

    /// Sends what there is, and says why the next one is not.
    fn stop(&mut self, why: &str) -> anyhow::Result<()> {
        self.flush()?;
        anyhow::bail!("{} {} {why}: {}", self.unit, self.read + 1, self.ended())
    }

    /// What became of all that was read.
    fn ended(&self) -> String {
        format!("{} {} sent, and nothing from there on", self.sent, output::were(self.sent as u64))
    }

    fn flush(&mut self) -> anyhow::Result<()> {
        if self.entries.is_empty() {
            return Ok(());
        }
        let entries = std::mem::take(&mut self.entries);
        self.bytes = 0;
        let Self { unit, read, .. } = *self;
        let first = read + 1 - entries.len();
        let parameters = json!({"QueueUrl": self.url, "Entries": entries});
        let answer = self.client.call("SendMessageBatch", &parameters).with_context(|| {
            format!(
                "{} {} sent; of {unit} {first} to {read} it is not known, and nothing behind was",
                self.sent,
                output::were(self.sent as u64)
            )
        })?;
        for sent in answer["Successful"].as_array().into_iter().flatten() {
            self.sent += 1;
            if self.send.output == Format::Json {
                output::print_json(sent)?;
            }
        }
        let failed = answer["Failed"].as_array().into_iter().flatten();
        let failed: Vec<String> = failed.map(|failed| self.why_not_sent(first, failed)).collect();
        anyhow::ensure!(
            failed.is_empty(),
            "{}; {} of the first {read} {} sent, and nothing behind",
            failed.join("; "),
            self.sent,
            output::were(self.sent as u64)
        );
        Ok(())
    }

    fn why_not_sent(&self, first: usize, failed: &Value) -> String {
        let text = |name: &str| failed[name].as_str().unwrap_or_default().to_owned();
        let number = first + text("Id").parse::<usize>().unwrap_or_default();
        let error = Error::Queue { code: text("Code"), message: text("Message") };
        format!("{} {number} was not sent: {error}", self.unit)
    }
}

fn receive(client: &Client, receive: ReceiveArgs) -> anyhow::Result<()> {
    if let Some(command) = &receive.exec {
        return client.block_on(handle::work_off(client, &receive, command));
    }
    let url = client.url(&receive.name)?;
    let wanted = receive.count.unwrap_or(1);
    let mut received = 0;
    while received < wanted {
        let mut parameters = json!({
            "QueueUrl": url, "MaxNumberOfMessages": BATCH.min(wanted - received), "WaitTimeSeconds": receive.wait.unwrap_or(0),
            "AttributeNames": ["All"], "MessageAttributeNames": ["All"],
        });
        if let Some(seconds) = receive.visibility_timeout {
            parameters["VisibilityTimeout"] = seconds.into();
        }
        let answer = client.call("ReceiveMessage", &parameters)?;
        let messages = answer["Messages"].as_array().cloned().unwrap_or_default();
        if messages.is_empty() {
            break;
        }
        for message in messages {
            received += 1;
            match receive.output {
                Format::Json => output::print_json(&message)?,
                Format::Table => output::print(&message["Body"].as_str().unwrap_or_default())?,
            }
            if receive.delete {
                let receipt = &message["ReceiptHandle"];
                client.call("DeleteMessage", &json!({"QueueUrl": url, "ReceiptHandle": receipt}))?;
            }
        }
    }
    Ok(())
}

fn peek(client: &Client, name: &str, count: usize, format: Format) -> anyhow::Result<()> {
    let url = client.url(name)?;
    let mut table = output::table(&["sent at", "receives", "visible in s", "body"]);
    let (mut from, mut left) = (0, count);
    let now = jiff::Timestamp::now().as_millisecond();
    while left > 0 {
        let parameters = json!({"QueueUrl": url, "From": from, "MaxNumberOfMessages": left.min(100)});
        let answer = client.call_own("PeekMessages", &parameters)?;
        for message in answer["Messages"].as_array().into_iter().flatten() {
            left -= 1;
            if format == Format::Json {
                output::print_json(message)?;
                continue;
            }
            let sent_at = message["Attributes"]["SentTimestamp"].as_str().and_then(|text| text.parse().ok());
            let sent_at = sent_at.and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok());
            let visible_in = message["VisibleAt"].as_i64().map_or(0, |at| (at - now).max(0) / 1_000);
            table.add_row([
                sent_at.map(|at| at.to_string()).unwrap_or_default(),
                message["Attributes"]["ApproximateReceiveCount"].as_str().unwrap_or_default().to_owned(),
                visible_in.to_string(),
                message["Body"].as_str().unwrap_or_default().to_owned(),
            ]);
        }
        match answer["Next"].as_u64() {
            Some(next) => from = next,
            None => break,
        }
    }
    match format {
        Format::Json => Ok(()),
        Format::Table => output::print(&table),
    }
}

fn move_back(
    client: &Client,
    source: &str,
    to: Option<&str>,
    rate: Option<u32>,
    format: Format,
) -> anyhow::Result<()> {
    let arn = client.arn(source)?;
    let mut parameters = json!({"SourceArn": arn});
    if let Some(to) = to {
        parameters["DestinationArn"] = client.arn(to)?.into();
    }
    if let Some(rate) = rate {
        parameters["MaxNumberOfMessagesPerSecond"] = rate.into();
    }
    client.call("StartMessageMoveTask", &parameters)?;
    let task = loop {
        let listed = client.call("ListMessageMoveTasks", &json!({"SourceArn": arn}))?;
        let task = listed["Results"][0].clone();
        if task["Status"] != "RUNNING" {
            break task;
        }
        client.pause(Duration::from_millis(50));
    };
    match format {
        Format::Json => output::print_json(&task)?,
        Format::Table => output::print(&format!("{} moved", task["ApproximateNumberOfMessagesMoved"]))?,
    }
    let failure = task["FailureReason"].as_str().unwrap_or("it was cancelled");
    anyhow::ensure!(task["Status"] == "COMPLETED", "not all messages were moved: {failure}");
    Ok(())
}

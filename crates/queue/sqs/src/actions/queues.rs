//! Queues: creating, deleting, listing; their attributes.

use std::collections::BTreeMap;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize};
use tailwater_queue::{QueueError, QueueRecord, QueueView, Redrive, Settings};

use super::changing::check_record;
use super::tags::check_tags;
use crate::attributes::{self, AllowPolicy};
use crate::error::{Code, ErrorRefusal};
use crate::front::RequestContext;
use crate::limits::PAGE_MAX;
use crate::protocol::{Nothing, or_default};

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Parameters {
    queue_url: Option<String>,
    queue_name: Option<String>,
    #[serde(rename = "QueueOwnerAWSAccountId")]
    owner: Option<String>,
    queue_name_prefix: Option<String>,
    attributes: Option<BTreeMap<String, String>>,
    #[serde(deserialize_with = "or_default")]
    attribute_names: Vec<String>,
    #[serde(alias = "tags")]
    tags: Option<BTreeMap<String, String>>,
    max_results: Option<i64>,
    next_token: Option<String>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct UrlAnswer {
    queue_url: String,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct UrlsAnswer {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    queue_urls: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    next_token: Option<String>,
}

#[derive(Debug, Serialize)]
pub(super) struct SourcesAnswer {
    #[serde(rename = "queueUrls")]
    queue_urls: Vec<String>,
    #[serde(rename = "NextToken", skip_serializing_if = "Option::is_none")]
    next_token: Option<String>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct AttributesAnswer {
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    attributes: BTreeMap<String, String>,
}

pub(super) async fn create(context: &RequestContext<'_>) -> Result<UrlAnswer, ErrorRefusal> {
    let parameters: Parameters = context.asked.parameters()?;
    let name = parameters.queue_name.ok_or_else(|| ErrorRefusal::missing("QueueName"))?;
    context.ask_for_queue(context.account(), &name)?;
    let wanted = parameters.attributes.unwrap_or_default();
    let tags = parameters.tags.unwrap_or_default();
    let (mut settings, attributes) = attributes::create(&name, &wanted, context.account())?;
    check_tags(&name, &tags)?;
    attributes::set_by_tags(&mut settings, &tags);
    if let Some(known) = context.front.queues.find(context.account(), &name).await? {
        return same(context, &known, &wanted);
    }
    check_redrive(context, &name, &settings, &wanted).await?;
    context.front.accounts.admit_queue(context.account(), context.front.queues.as_ref()).await?;
    let record = QueueRecord { attributes, tags, ..QueueRecord::new(context.account(), name, settings) };
    check_record(&record)?;
    match context.front.queues.create(record).await {
        Ok(queue) => Ok(UrlAnswer { queue_url: context.url(&queue) }),
        Err(QueueError::Exists(known)) => same(context, &known, &wanted),
        Err(error) => Err(error.into()),
    }
}

/// A queue that is there is created again, if it has the attributes that were asked for.
fn same(
    context: &RequestContext<'_>,
    known: &QueueView,
    wanted: &BTreeMap<String, String>,
) -> Result<UrlAnswer, ErrorRefusal> {
    let all = attributes::all(&known.record(), &context.front.config.region);
    for (name, value) in wanted {
        let is_same = match (all.get(name), name.as_str()) {
            // Written differently, it may be the same.
            (Some(known), "RedrivePolicy") => same_policy(known, value),
            (known, _) => same_value(known.map_or(attributes::untold(name), String::as_str), value),
        };
        if !is_same {
            let message = format!(
                "A queue already exists with the same name and a different value for attribute {name}"
            );
            return Err(ErrorRefusal::new(Code::QueueNameExists, message));
        }
    }
    Ok(UrlAnswer { queue_url: context.url(known) })
}

/// Whether these are the same text, number, boolean or JSON.
fn same_value(one: &str, other: &str) -> bool {
    let json = |text: &str| serde_json::from_str::<serde_json::Value>(text).ok();
    let is_boolean = matches!(one, "true" | "false");
    one == other
        || is_boolean && one.eq_ignore_ascii_case(other)
        || one.parse::<u32>().is_ok_and(|one| other.parse() == Ok(one))
        || json(one).is_some_and(|one| json(other) == Some(one))
}

fn same_policy(one: &str, other: &str) -> bool {
    let fields = |text: &str| {
        let policy: serde_json::Value = serde_json::from_str(text).ok()?;
        let most = match policy.get("maxReceiveCount")? {
            serde_json::Value::String(text) => text.clone(),
            value => value.to_string(),
        };
        let arn = policy.get("deadLetterTargetArn")?.as_str()?.to_owned();
        Some((crate::names::of_arn(&arn).map(|(account, name)| format!("{account}/{name}")), most))
    };
    fields(one).is_some() && fields(one) == fields(other)
}

/// Whether a queue may have its dead letters go where its settings say.
async fn check_redrive(
    context: &RequestContext<'_>,
    name: &str,
    settings: &Settings,
    wanted: &BTreeMap<String, String>,
) -> Result<(), ErrorRefusal> {
    let (Some(Redrive { target, .. }), Some(policy)) = (&settings.redrive, wanted.get("RedrivePolicy"))
    else {
        return Ok(());
    };
    let refuse = |reason: &str| ErrorRefusal::value(policy, "RedrivePolicy", reason);
    context.ask_for_queue(context.account(), target)?;
    let dead = context.front.queues.find(context.account(), target).await?;
    let dead = dead.ok_or_else(|| refuse("Dead letter target does not exist."))?.record();
    if dead.settings.fifo.is_some() != settings.fifo.is_some() {
        return Err(refuse("Dead-letter queue must be same type of queue as the source."));
    }
    let own_arn = crate::names::arn(&context.front.config.region, context.account(), name);
    let allowed =
        dead.attributes.get("RedriveAllowPolicy").and_then(|policy| attributes::allow_policy(policy));
    match allowed {
        Some(AllowPolicy::Nobody) => {}
        Some(AllowPolicy::Only(arns)) if !arns.contains(&own_arn) => {}
        _ => return Ok(()),
    }
    Err(refuse(&format!("Queue {name} does not have permission to use {target} as its dead letter queue.")))
}

pub(super) async fn delete(context: &RequestContext<'_>) -> Result<Nothing, ErrorRefusal> {
    let parameters: Parameters = context.asked.parameters()?;
    let queue = context.queue(parameters.queue_url.as_deref()).await?;
    context.front.queues.delete_queue(&queue).await?;
    Ok(Nothing {})
}

pub(super) async fn purge(context: &RequestContext<'_>) -> Result<Nothing, ErrorRefusal> {
    let parameters: Parameters = context.asked.parameters()?;
    let queue = context.queue(parameters.queue_url.as_deref()).await?;
    match context.front.queues.purge(&queue).await {
        Err(QueueError::PurgedRecently) => {
            let message =
                format!("Only one PurgeQueue operation on {} is allowed every 60 seconds.", queue.name);
            Err(ErrorRefusal::new(Code::PurgeQueueInProgress, message))
        }
        purged => Ok(purged.map(|()| Nothing {})?),
    }
}

pub(super) async fn get_url(context: &RequestContext<'_>) -> Result<UrlAnswer, ErrorRefusal> {
    let parameters: Parameters = context.asked.parameters()?;
    let name = parameters.queue_name.ok_or_else(|| ErrorRefusal::missing("QueueName"))?;
    let account = parameters.owner.unwrap_or_else(|| context.account().to_owned());
    let queue = context.find(&account, &name).await?;
    Ok(UrlAnswer { queue_url: context.url(&queue) })
}

pub(super) async fn list(context: &RequestContext<'_>) -> Result<UrlsAnswer, ErrorRefusal> {
    let parameters: Parameters = context.asked.parameters()?;
    let prefix = parameters.queue_name_prefix.unwrap_or_default();
    let page = ListPage::read(parameters.max_results, parameters.next_token.as_deref())?;
    let (mut queues, mut after) = (Vec::new(), page.after.clone());
    loop {
        let found =
            context.front.queues.list(context.account(), &prefix, after.as_deref(), page.most + 1).await?;
        let is_last = found.len() <= page.most;
        after = found.last().map(|queue| queue.name.clone());
        queues.extend(found.into_iter().filter(|queue| context.shows(queue)));
        if is_last || queues.len() > page.most {
            break;
        }
    }
    let (queues, next_token) = page.cut(queues);
    Ok(UrlsAnswer { queue_urls: queues.iter().map(|queue| context.url(queue)).collect(), next_token })
}

pub(super) async fn list_sources(context: &RequestContext<'_>) -> Result<SourcesAnswer, ErrorRefusal> {
    let parameters: Parameters = context.asked.parameters()?;
    let dead = context.queue(parameters.queue_url.as_deref()).await?;
    let page = ListPage::read(parameters.max_results, parameters.next_token.as_deref())?;
    let mut queues = context.front.queues.list(&dead.account, "", page.after.as_deref(), usize::MAX).await?;
    queues.retain(|queue| {
        let record = queue.record();
        let redrive = record.settings.redrive.as_ref();
        redrive.is_some_and(|redrive| redrive.target == dead.name) && context.shows(queue)
    });
    let (queues, next_token) = page.cut(queues);
    Ok(SourcesAnswer { queue_urls: queues.iter().map(|queue| context.url(queue)).collect(), next_token })
}

/// A part of a list.
struct ListPage {
    most: usize,
    /// The name of the last one of the page before.
    after: Option<String>,
    /// Whether there is more is told only to whoever asked for pages.
    is_asked: bool,
}

impl ListPage {
    fn read(max_results: Option<i64>, next_token: Option<&str>) -> Result<Self, ErrorRefusal> {
        let most = max_results.map(|given| {
            let most = usize::try_from(given).ok().filter(|most| (1..=PAGE_MAX).contains(most));
            most.ok_or_else(|| {
                ErrorRefusal::value(given, "MaxResults", "Must be an integer from 1 to 1000, if provided.")
            })
        });
        let after = next_token.map(|token| {
            let name = URL_SAFE_NO_PAD.decode(token).ok().and_then(|bytes| String::from_utf8(bytes).ok());
            name.ok_or_else(|| ErrorRefusal::value(token, "NextToken", "Must be one that was answered."))
        });
        let is_asked = max_results.is_some();
        Ok(Self { most: most.transpose()?.unwrap_or(PAGE_MAX), after: after.transpose()?, is_asked })
    }

    fn cut(&self, mut queues: Vec<Arc<QueueView>>) -> (Vec<Arc<QueueView>>, Option<String>) {
        let is_more = queues.len() > self.most;
        queues.truncate(self.most);
        let last = queues.last().filter(|_| is_more && self.is_asked);
        let next = last.map(|last| URL_SAFE_NO_PAD.encode(&last.name));
        (queues, next)
    }
}

pub(super) async fn get_attributes(context: &RequestContext<'_>) -> Result<AttributesAnswer, ErrorRefusal> {
    let parameters: Parameters = context.asked.parameters()?;
    let queue = context.queue(parameters.queue_url.as_deref()).await?;
    let names = &parameters.attribute_names;
    if let Some(unknown) = names.iter().find(|name| !attributes::is_known(name)) {
        return Err(ErrorRefusal::new(Code::InvalidAttributeName, format!("Unknown Attribute {unknown}.")));
    }
    let is_wanted = |name: &str| names.iter().any(|wanted| wanted == name || wanted == "All");
    let mut all = attributes::all(&queue.record(), &context.front.config.region);
    if is_wanted("All") || names.iter().any(|name| name.starts_with("Approximate")) {
        let counts = context.front.queues.figures(&queue).await?.counts;
        for (name, count) in [
            ("ApproximateNumberOfMessages", counts.visible),
            ("ApproximateNumberOfMessagesNotVisible", counts.in_flight),
            ("ApproximateNumberOfMessagesDelayed", counts.delayed),
        ] {
            all.insert(name.to_owned(), count.to_string());
        }
    }
    all.retain(|name, _| is_wanted(name));
    Ok(AttributesAnswer { attributes: all })
}

pub(super) async fn set_attributes(context: &RequestContext<'_>) -> Result<Nothing, ErrorRefusal> {
    let parameters: Parameters = context.asked.parameters()?;
    let queue = context.queue(parameters.queue_url.as_deref()).await?;
    let wanted = parameters.attributes.ok_or_else(|| ErrorRefusal::missing("Attribute.Name"))?;
    let record = queue.record();
    let (mut settings, mut kept) = (record.settings.clone(), record.attributes.clone());
    attributes::set(&mut settings, &mut kept, &wanted, &queue.account)?;
    check_redrive(context, &queue.name, &settings, &wanted).await?;
    let account = queue.account.clone();
    let set = move |record: &mut QueueRecord| {
        attributes::set(&mut record.settings, &mut record.attributes, &wanted, &account)
    };
    context.change(&queue, set).await?;
    Ok(Nothing {})
}

//! Permissions: statements of a queue's policy.

use serde::Deserialize;
use tailwater_queue::QueueRecord;

use crate::error::ErrorRefusal;
use crate::front::RequestContext;
use crate::policy;
use crate::protocol::{Nothing, or_default};

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Parameters {
    queue_url: Option<String>,
    label: Option<String>,
    #[serde(rename = "AWSAccountIds", deserialize_with = "or_default")]
    accounts: Vec<String>,
    #[serde(deserialize_with = "or_default")]
    actions: Vec<String>,
}

pub(super) async fn add(context: &RequestContext<'_>) -> Result<Nothing, ErrorRefusal> {
    let Parameters { queue_url, label, accounts, actions } = context.asked.parameters()?;
    let queue = context.queue(queue_url.as_deref()).await?;
    let label = label.ok_or_else(|| ErrorRefusal::missing("Label"))?;
    if actions.is_empty() {
        return Err(ErrorRefusal::missing("Actions"));
    }
    let arn = context.arn(&queue);
    let permit = move |record: &mut QueueRecord| {
        let policy = record.attributes.get("Policy").map(String::as_str);
        let policy = policy::with_permission(policy, &arn, &label, &accounts, &actions)?;
        record.attributes.insert("Policy".to_owned(), policy);
        Ok(())
    };
    context.change(&queue, permit).await?;
    Ok(Nothing {})
}

pub(super) async fn remove(context: &RequestContext<'_>) -> Result<Nothing, ErrorRefusal> {
    let Parameters { queue_url, label, .. } = context.asked.parameters()?;
    let queue = context.queue(queue_url.as_deref()).await?;
    let label = label.ok_or_else(|| ErrorRefusal::missing("Label"))?;
    let forbid = move |record: &mut QueueRecord| {
        let policy = record.attributes.get("Policy").map(String::as_str);
        match policy::without_permission(policy, &label)? {
            Some(policy) => record.attributes.insert("Policy".to_owned(), policy),
            None => record.attributes.remove("Policy"),
        };
        Ok(())
    };
    context.change(&queue, forbid).await?;
    Ok(Nothing {})
}

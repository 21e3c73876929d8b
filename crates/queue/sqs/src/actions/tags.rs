//! Tags of queues.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tailwater_queue::QueueRecord;

use crate::attributes::{consistency, order_hint, set_by_tags};
use crate::error::{Code, ErrorRefusal};
use crate::front::RequestContext;
use crate::limits::{TAG_KEY_CHARS_MAX, TAG_VALUE_CHARS_MAX, TAGS_MAX};
use crate::protocol::Nothing;

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Parameters {
    queue_url: Option<String>,
    tags: Option<BTreeMap<String, String>>,
    tag_keys: Option<Vec<String>>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct TagsAnswer {
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    tags: BTreeMap<String, String>,
}

/// Whether a queue may have these tags.
pub(super) fn check_tags(queue: &str, tags: &BTreeMap<String, String>) -> Result<(), ErrorRefusal> {
    if tags.len() > TAGS_MAX {
        let message = format!("Too many tags added for queue {queue}.");
        return Err(ErrorRefusal::new(Code::InvalidParameterValue, message));
    }
    for (key, value) in tags {
        if key.is_empty() || key.chars().count() > TAG_KEY_CHARS_MAX {
            return Err(ErrorRefusal::value(key, "TagKey", "Must be 1 to 128 in length."));
        }
        if value.chars().count() > TAG_VALUE_CHARS_MAX {
            return Err(ErrorRefusal::value(value, "TagValue", "Must be at most 256 in length."));
        }
    }
    order_hint(tags)?;
    consistency(tags).map(|_| ())
}

pub(super) async fn tag(context: &RequestContext<'_>) -> Result<Nothing, ErrorRefusal> {
    let parameters: Parameters = context.asked.parameters()?;
    let queue = context.queue(parameters.queue_url.as_deref()).await?;
    let tags =
        parameters.tags.filter(|tags| !tags.is_empty()).ok_or_else(|| ErrorRefusal::missing("Tags"))?;
    let set = move |record: &mut QueueRecord| {
        record.tags.extend(tags.clone());
        check_tags(&record.name, &record.tags)?;
        set_by_tags(&mut record.settings, &record.tags);
        Ok(())
    };
    context.change(&queue, set).await?;
    Ok(Nothing {})
}

pub(super) async fn untag(context: &RequestContext<'_>) -> Result<Nothing, ErrorRefusal> {
    let parameters: Parameters = context.asked.parameters()?;
    let queue = context.queue(parameters.queue_url.as_deref()).await?;
    let keys = parameters.tag_keys.filter(|keys| !keys.is_empty()).ok_or_else(|| {
        let message = "Tag keys must be between 1 and 128 characters in length.";
        ErrorRefusal::new(Code::InvalidParameterValue, message)
    })?;
    let remove = move |record: &mut QueueRecord| {
        record.tags.retain(|key, _| !keys.contains(key));
        set_by_tags(&mut record.settings, &record.tags);
        Ok(())
    };
    context.change(&queue, remove).await?;
    Ok(Nothing {})
}

pub(super) async fn list(context: &RequestContext<'_>) -> Result<TagsAnswer, ErrorRefusal> {
    let parameters: Parameters = context.asked.parameters()?;
    let queue = context.queue(parameters.queue_url.as_deref()).await?;
    Ok(TagsAnswer { tags: queue.record().tags.clone() })
}

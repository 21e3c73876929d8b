//! Queues, and SQS's protocol in front of them.

use std::fmt;

use tailwater_queue::Figures;

use super::MetricsPage;
use crate::NodeShared;

/// What the queues' owners say, asked before the page is written.
pub(super) struct QueuesRead {
    count: usize,
    /// Of the first ones by account and name.
    figures: Vec<(String, Figures)>,
}

impl QueuesRead {
    pub(super) async fn of(shared: &NodeShared) -> Self {
        // A store that does not answer has nothing to tell.
        let all = shared.queues.all().await.unwrap_or_default();
        let mut figures = Vec::new();
        for queue in all.iter().take(shared.queues_told_max) {
            // One that is deleted meanwhile has nothing.
            if let Ok(of_one) = shared.queues.figures(queue).await {
                figures.push((format!("{}/{}", queue.account, queue.name), of_one));
            }
        }
        Self { count: all.len(), figures }
    }
}

/// Name, help, and what it is.
type QueueSeries = (&'static str, &'static str, fn(&Figures) -> u64);

pub(super) fn queues(read: &QueuesRead, page: &mut MetricsPage<'_>) -> fmt::Result {
    page.gauge("tailwater_queues", "Queues.", read.count as u64)?;
    let omitted = "Queues without series of their own: beyond metrics.queues_max, by account and name.";
    page.gauge(
        "tailwater_queues_omitted",
        omitted,
        (read.count - read.figures.len().min(read.count)) as u64,
    )?;
    let of = |read_one: fn(&Figures) -> u64| {
        read.figures.iter().map(move |(queue, figures)| (queue.clone(), read_one(figures)))
    };
    let gauges: [QueueSeries; 5] = [
        ("tailwater_queue_messages", "Messages that can be received.", |of| of.counts.visible),
        ("tailwater_queue_in_flight", "Messages received and not deleted yet.", |of| of.counts.in_flight),
        ("tailwater_queue_delayed", "Messages whose delay is not over.", |of| of.counts.delayed),
        ("tailwater_queue_waiting", "Receives that wait for a message.", |of| of.waiting as u64),
        ("tailwater_queue_oldest_age_seconds", "Age of the oldest message; 0 without one.", |of| {
            of.oldest_sent_at.map_or(0, |sent_at| of.now.saturating_sub(sent_at) / 1_000)
        }),
    ];
    for (name, help, read_one) in gauges {
        page.gauges(name, help, "queue", of(read_one))?;
    }
    let counters: [QueueSeries; 9] = [
        ("tailwater_queue_sent", "Messages sent since the start.", |of| of.happened.sent),
        ("tailwater_queue_received", "Messages received, as often as they were.", |of| of.happened.received),
        ("tailwater_queue_deleted", "Messages deleted.", |of| of.happened.deleted),
        ("tailwater_queue_timeouts", "Messages not deleted within their visibility timeout.", |of| {
            of.happened.timeouts
        }),
        ("tailwater_queue_expired", "Messages removed for their age.", |of| of.happened.expired),
        ("tailwater_queue_redriven", "Messages moved to the dead-letter queue.", |of| of.happened.redriven),
        ("tailwater_queue_displacement", "Older visible messages that receives passed over.", |of| {
            of.happened.displaced
        }),
        ("tailwater_queue_duplicate_looks", "Receives looked after for duplicates.", |of| of.happened.looked),
        ("tailwater_queue_duplicates", "Of these, messages that another receiver took too.", |of| {
            of.happened.duplicates
        }),
    ];
    for (name, help, read_one) in counters {
        page.counters(name, help, "queue", of(read_one))?;
    }
    Ok(())
}

pub(super) fn sqs(shared: &NodeShared, page: &mut MetricsPage<'_>) -> fmt::Result {
    let Some(server) = &shared.sqs else { return Ok(()) };
    let stats = server.front().stats();
    page.gauge("tailwater_sqs_connections", "Connections of SQS's clients.", stats.connections)?;
    let requests = stats.requests.iter().map(|(action, count)| ((*action).to_owned(), *count));
    page.counters("tailwater_sqs_requests", "Requests that arrived.", "action", requests)?;
    page.counter("tailwater_sqs_requests_refused", "Requests answered with an error.", stats.refused)?;
    let throttled = "Requests refused because their account's quota was used up.";
    page.counter("tailwater_sqs_requests_throttled", throttled, stats.throttled)?;
    let front_ends = "Front ends that share the accounts' quotas, as far as this one knows.";
    page.gauge("tailwater_sqs_front_ends", front_ends, server.front().accounts().front_ends())?;
    page.counter("tailwater_sqs_request_bytes", "Bytes of their bodies.", stats.request_bytes)?;
    page.gauge(
        "tailwater_sqs_answer_bytes",
        "Bytes of large answers that were not sent yet.",
        stats.answer_bytes,
    )
}

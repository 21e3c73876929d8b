//! Kafka's groups: how far behind the first ones by name are.

use std::fmt;

use tailwater_kafka::GroupInfo;

use super::Page;
use crate::Shared;

/// The groups, read for one page.
pub(super) struct Groups {
    count: usize,
    told: Vec<GroupInfo>,
}

impl Groups {
    pub(super) async fn read(shared: &Shared) -> Self {
        let Some(server) = &shared.kafka else { return Self { count: 0, told: Vec::new() } };
        let names = server.broker().group_names();
        let mut told = Vec::new();
        for name in names.iter().take(shared.groups_told_max) {
            // One that is deleted meanwhile has nothing.
            told.extend(server.broker().describe_group(name).await.ok());
        }
        Self { count: names.len(), told }
    }

    pub(super) fn tell(&self, page: &mut Page<'_>) -> fmt::Result {
        page.gauge("tailwater_groups", "Kafka's groups.", self.count as u64)?;
        let omitted = "Groups without series of their own: beyond metrics.groups_max, by name.";
        page.gauge("tailwater_groups_omitted", omitted, (self.count - self.told.len()) as u64)?;
        let members = self.of(|group| group.members.len() as u64);
        page.gauges("tailwater_group_members", "Members.", "group", members)?;
        let records = self.of(GroupInfo::lag_records);
        let help = "Records that are there and not consumed, going by what was committed.";
        page.gauges("tailwater_group_lag_records", help, "group", records)?;
        let seconds = self.of(|group| group.lag_time().as_secs_f64());
        page.gauges("tailwater_group_lag_seconds", "Age of the oldest of them.", "group", seconds)
    }

    fn of<V>(&self, read: impl Fn(&GroupInfo) -> V) -> impl Iterator<Item = (String, V)> {
        self.told.iter().map(move |group| (group.name.clone(), read(group)))
    }
}

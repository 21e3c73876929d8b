//! Kafka's groups: how far behind the first ones by name are, and the first of their shards.

use std::fmt;

use tailwater_kafka::{GroupInfo, ShardLag};

use super::MetricsPage;
use crate::NodeShared;

/// The groups, read for one page.
pub(super) struct GroupMetrics {
    count: usize,
    told: Vec<GroupInfo>,
    shards_max: usize,
}

impl GroupMetrics {
    pub(super) async fn read(shared: &NodeShared) -> Self {
        let shards_max = shared.group_shards_told_max;
        let Some(server) = &shared.kafka else { return Self { count: 0, told: Vec::new(), shards_max } };
        let names = server.broker().group_names();
        let mut told = Vec::new();
        for name in names.iter().take(shared.groups_told_max) {
            // One that is deleted meanwhile has nothing.
            told.extend(server.broker().describe_group(name).await.ok());
        }
        Self { count: names.len(), told, shards_max }
    }

    pub(super) fn tell(&self, page: &mut MetricsPage<'_>) -> fmt::Result {
        page.gauge("tailwater_groups", "Kafka's groups.", self.count as u64)?;
        let omitted = "Groups without series of their own: beyond metrics.groups_max, by name.";
        page.gauge("tailwater_groups_omitted", omitted, (self.count - self.told.len()) as u64)?;
        let members = self.of(|group| group.members.len() as u64);
        page.gauges("tailwater_group_members", "Members.", "group", members)?;
        let records = self.of(GroupInfo::lag_records);
        let help = "Records that are there and not consumed, going by what was committed.";
        page.gauges("tailwater_group_lag_records", help, "group", records)?;
        let seconds = self.of(|group| group.lag_time().as_secs_f64());
        page.gauges("tailwater_group_lag_seconds", "Age of the oldest of them.", "group", seconds)?;

        let omitted = "Shards of those groups without series of their own: beyond metrics.group_shards_max.";
        let count = self.told.iter().map(|group| group.shards.len()).sum::<usize>();
        page.gauge("tailwater_group_shards_omitted", omitted, count.saturating_sub(self.shards_max) as u64)?;
        let labels = ["group", "stream", "shard"];
        let records = self.of_shards(|shard| Some(shard.records));
        page.gauges_by("tailwater_group_shard_lag_records", help, labels, records)?;
        let seconds = self.of_shards(|shard| shard.time.map(|time| time.as_secs_f64()));
        page.gauges_by("tailwater_group_shard_lag_seconds", "Age of the oldest of them.", labels, seconds)
    }

    /// Of the first shards by group, stream and number, where it is known.
    fn of_shards<V>(&self, read: impl Fn(&ShardLag) -> Option<V>) -> impl Iterator<Item = ([String; 3], V)> {
        let shards = self.told.iter().flat_map(|group| group.shards.iter().map(move |shard| (group, shard)));
        shards.take(self.shards_max).filter_map(move |(group, shard)| {
            Some(([group.name.clone(), shard.stream.clone(), shard.shard.to_string()], read(shard)?))
        })
    }

    fn of<V>(&self, read: impl Fn(&GroupInfo) -> V) -> impl Iterator<Item = (String, V)> {
        self.told.iter().map(move |group| (group.name.clone(), read(group)))
    }
}

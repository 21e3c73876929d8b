//! Random clients that do as they are told, in their own time, over connections that lose answers.

use proptest::prelude::*;

use super::*;

#[derive(Clone, Debug)]
enum Step {
    Join { who: usize, topics: u8, name: bool, lost: bool },
    Beat { who: usize, tells: bool, lost: bool },
    Settle { who: usize },
    Leave { who: usize, for_now: bool },
    Pass { ms: u64 },
    Topic { number: u128, count: u32 },
}

fn step() -> impl Strategy<Value = Step> {
    let lost = || prop::bool::weighted(0.2);
    prop_oneof![
        3 => (0..5_usize, 1..8_u8, prop::bool::weighted(0.3), lost())
            .prop_map(|(who, topics, name, lost)| Step::Join { who, topics, name, lost }),
        8 => (0..5_usize, prop::bool::weighted(0.8), lost())
            .prop_map(|(who, tells, lost)| Step::Beat { who, tells, lost }),
        5 => (0..5_usize).prop_map(|who| Step::Settle { who }),
        1 => (0..5_usize, any::<bool>()).prop_map(|(who, for_now)| Step::Leave { who, for_now }),
        2 => prop_oneof![0..3_000_u64, 0..70_000_u64].prop_map(|ms| Step::Pass { ms }),
        1 => (0..3_u128, 0..6_u32).prop_map(|(number, count)| Step::Topic { number, count }),
    ]
}

/// A client, as it is itself.
#[derive(Default)]
struct Client {
    /// Its incarnation: one that joins under its name again has another id.
    life: usize,
    name: bool,
    epoch: Option<i32>,
    has: Partitions,
    /// What it was told to have.
    told: Partitions,
    topics: Vec<String>,
    /// Whether it says everything the next time, because an answer did not come.
    says_all: bool,
}

struct World {
    group: ConsumerGroup,
    now: Instant,
    catalog: Catalog,
    clients: Vec<Client>,
}

fn without(one: &Partitions, other: &Partitions) -> Partitions {
    let mut rest = one.clone();
    for (topic, partitions) in other {
        if let Some(kept) = rest.get_mut(topic) {
            kept.retain(|number| !partitions.contains(number));
        }
    }
    rest.retain(|_, partitions| !partitions.is_empty());
    rest
}

impl World {
    fn new() -> Self {
        let session = Duration::from_secs(45);
        let limits = Limits { session, heartbeat: session / 9, members_max: 4, bytes_max: 1_000 };
        Self {
            group: ConsumerGroup::new(Arc::new(limits), 0),
            now: Instant::from_ns(0),
            catalog: Catalog::new(),
            clients: (0..5).map(|_| Client::default()).collect(),
        }
    }

    fn id(&self, who: usize) -> String {
        format!("m{who}-{}", self.clients[who].life)
    }

    fn name(&self, who: usize) -> Option<String> {
        self.clients[who].name.then(|| format!("name{who}"))
    }

    fn beat(&mut self, who: usize, beat: Beat, lost: bool) {
        let before = self.group.epoch;
        let answer = self.group.heartbeat(self.now, beat, &self.catalog);
        assert!(self.group.epoch >= before && self.group.target_epoch <= self.group.epoch);
        let client = &mut self.clients[who];
        client.says_all = lost;
        match answer {
            Ok(told) => {
                assert!(told.epoch <= self.group.target_epoch);
                assert!(client.epoch.is_none_or(|epoch| told.epoch >= epoch || epoch == JOINING));
                if lost {
                    return;
                }
                client.epoch = Some(told.epoch);
                if let Some(assignment) = told.assignment {
                    // What is new it takes at once; what it has to give up it gives up when it gets to it.
                    for (topic, partitions) in &assignment {
                        client.has.entry(*topic).or_default().extend(partitions);
                    }
                    client.told = assignment;
                }
            }
            // It is out, and drops everything.
            Err(_) => (client.epoch, client.has, client.told) = Default::default(),
        }
    }

    fn take(&mut self, step: Step) {
        match step {
            Step::Join { who, topics, name, lost } => {
                let client = &mut self.clients[who];
                if client.epoch.is_none() {
                    client.life += 1;
                    client.name = name;
                }
                (client.epoch, client.has, client.told) = (None, Partitions::new(), Partitions::new());
                let wanted = (0..3).filter(|bit| topics & (1 << bit) != 0).map(|bit| format!("t{bit}"));
                client.topics = wanted.collect();
                let topics = client.topics.clone();
                let beat = Beat {
                    member_id: self.id(who),
                    instance: self.name(who),
                    epoch: JOINING,
                    rebalance: Some(Duration::from_secs(20)),
                    topics: Some(topics),
                    owned: Some(Partitions::new()),
                    ..Beat::default()
                };
                self.beat(who, beat, lost);
            }
            Step::Beat { who, tells, lost } => {
                let client = &self.clients[who];
                let Some(epoch) = client.epoch else { return };
                let says_all = client.says_all;
                let beat = Beat {
                    member_id: self.id(who),
                    instance: self.name(who),
                    epoch,
                    owned: (tells || says_all).then(|| client.has.clone()),
                    rebalance: says_all.then_some(Duration::from_secs(20)),
                    topics: says_all.then(|| client.topics.clone()),
                    ..Beat::default()
                };
                self.beat(who, beat, lost);
            }
            Step::Settle { who } => self.clients[who].has = self.clients[who].told.clone(),
            Step::Leave { who, for_now } => {
                if self.clients[who].epoch.is_none() {
                    return;
                }
                let client = &mut self.clients[who];
                (client.epoch, client.has, client.told) = Default::default();
                let epoch = if for_now && self.clients[who].name { LEAVING_FOR_NOW } else { LEAVING };
                let (member_id, instance) = (self.id(who), self.name(who));
                let leave = Beat { member_id, instance, epoch, ..Beat::default() };
                let _ = self.group.heartbeat(self.now, leave, &self.catalog);
            }
            Step::Pass { ms } => {
                self.now = self.now + Duration::from_millis(ms);
                self.group.tick(self.now);
                assert!(self.group.next_deadline().is_none_or(|next| next > self.now));
                // Who is out has noticed by then that its session is over.
                for who in 0..self.clients.len() {
                    if !self.group.members.contains_key(&self.id(who)) {
                        let client = &mut self.clients[who];
                        (client.epoch, client.has, client.told) = Default::default();
                    }
                }
            }
            Step::Topic { number, count: 0 } => _ = self.catalog.remove(&format!("t{number}")),
            Step::Topic { number, count } => {
                let topic = StreamId(uuid::Uuid::from_u128(number));
                let known = self.catalog.get(&format!("t{number}")).map_or(0, |(_, count)| *count);
                self.catalog.insert(format!("t{number}"), (topic, count.max(known)));
            }
        }
        self.check();
    }

    fn check(&self) {
        let mut owners: BTreeMap<(StreamId, u32), usize> = BTreeMap::new();
        for (who, client) in self.clients.iter().enumerate() {
            for (topic, partitions) in &client.has {
                for number in partitions {
                    let other = owners.insert((*topic, *number), who);
                    assert_eq!(other, None, "{topic}/{number} is {who}'s and another's");
                }
            }
        }
        let mut given = BTreeSet::new();
        for member in self.group.members.values() {
            assert!(member.epoch <= self.group.target_epoch);
            for (topic, partitions) in member.assigned.iter().chain(&member.revoking) {
                assert!(partitions.iter().all(|number| given.insert((*topic, *number))), "given twice");
            }
        }
        assert!(self.group.members.len() <= 4);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn no_partition_has_two_owners_and_everybody_gets_its_target_in_the_end(
        steps in prop::collection::vec(step(), 0..120)
    ) {
        let mut world = World::new();
        for step in steps {
            world.take(step);
        }
        // Whoever is there goes on, and the others time out.
        for _ in 0..40 {
            world.take(Step::Pass { ms: 5_000 });
            for who in 0..5 {
                world.take(Step::Beat { who, tells: true, lost: false });
                world.take(Step::Settle { who });
            }
        }
        let mut covered = BTreeSet::new();
        for (who, client) in world.clients.iter().enumerate() {
            if client.epoch.is_none() {
                continue;
            }
            let target = world.group.target.get(&world.id(who)).cloned().unwrap_or_default();
            prop_assert!(without(&client.has, &target).is_empty() && without(&target, &client.has).is_empty());
            covered.extend(client.has.iter().flat_map(|(topic, all)| all.iter().map(|one| (*topic, *one))));
        }
        let wanted = world.group.members.values().flat_map(|member| member.wanted(&world.catalog));
        let wanted: BTreeSet<(StreamId, u32)> =
            wanted.flat_map(|(topic, count)| (0..count).map(move |number| (topic, number))).collect();
        prop_assert_eq!(covered, wanted);
        prop_assert!(matches!(world.group.state(), "Stable" | "Empty"));
    }
}

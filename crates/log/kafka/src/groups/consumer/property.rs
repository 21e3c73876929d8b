//! Random clients of both protocols that do as they are told, in their own time, over connections that lose answers, to
//! a node that is killed now and then, and has not written all by then of what nobody was told.

use proptest::prelude::*;
use tailwater_kafka_wire::consumer::{Subscription, assigned, encode};

use super::classic::{by_id, by_name};
use super::*;
use crate::groups::classic::{Join, Sync};
use crate::groups::members::{KeptMembers, MemberChanges, MemberPart};
use bytes::Bytes;

/// What a client speaks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Speaks {
    #[default]
    Kip848,
    /// The classic protocol, giving up everything before it joins again.
    Eager,
    /// The classic protocol, giving up what it has to.
    Cooperative,
}

#[derive(Clone, Debug)]
enum Step {
    Join {
        who: usize,
        speaks: Speaks,
        topics: u8,
        name: bool,
        lost: bool,
    },
    Beat {
        who: usize,
        tells: bool,
        lost: bool,
    },
    Settle {
        who: usize,
    },
    Leave {
        who: usize,
        for_now: bool,
    },
    Pass {
        ms: u64,
    },
    Topic {
        number: u128,
        count: u32,
    },
    /// Of what was not written, a bit for each says whether it was.
    Restart {
        written: u64,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let lost = || prop::bool::weighted(0.2);
    let speaks = prop_oneof![Just(Speaks::Kip848), Just(Speaks::Eager), Just(Speaks::Cooperative)];
    prop_oneof![
        3 => (0..5_usize, speaks, 1..8_u8, prop::bool::weighted(0.3), lost())
            .prop_map(|(who, speaks, topics, name, lost)| Step::Join { who, speaks, topics, name, lost }),
        8 => (0..5_usize, prop::bool::weighted(0.8), lost())
            .prop_map(|(who, tells, lost)| Step::Beat { who, tells, lost }),
        5 => (0..5_usize).prop_map(|who| Step::Settle { who }),
        1 => (0..5_usize, any::<bool>()).prop_map(|(who, for_now)| Step::Leave { who, for_now }),
        2 => prop_oneof![0..3_000_u64, 0..70_000_u64].prop_map(|ms| Step::Pass { ms }),
        1 => (0..3_u128, 0..6_u32).prop_map(|(number, count)| Step::Topic { number, count }),
        1 => prop_oneof![Just(0), Just(u64::MAX), any::<u64>()].prop_map(|written| Step::Restart { written }),
    ]
}

/// A client, as it is itself.
#[derive(Default)]
struct Client {
    /// Its incarnation: one that joins under its name again has another id.
    life: usize,
    name: bool,
    speaks: Speaks,
    /// In the classic protocol: whether it has joined and fetches its assignment next.
    syncs: bool,
    epoch: Option<i32>,
    has: Partitions,
    /// What it was told to have.
    told: Partitions,
    topics: Vec<String>,
    /// Whether it says everything the next time, because an answer did not come; in the classic protocol, whether it
    /// joins again.
    says_all: bool,
}

impl Client {
    /// It is in no group, and drops everything.
    fn is_out(&mut self) {
        (self.epoch, self.has, self.told, self.syncs) = Default::default();
    }
}

struct World {
    group: ConsumerGroup,
    now: Instant,
    catalog: Catalog,
    topics_made: u128,
    clients: Vec<Client>,
    kept: KeptMembers,
    /// What is durable: the group's epochs, and its members.
    disk: ((i32, i32), BTreeMap<MemberPart, Bytes>),
    unwritten: MemberChanges,
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
        let limits = Limits {
            session,
            heartbeat: session / 9,
            classic_session_ms: 1..=60_000,
            members_max: 4,
            bytes_max: 1 << 20,
        };
        Self {
            group: ConsumerGroup::new(Arc::new(limits), 0),
            now: Instant::from_ns(0),
            catalog: Catalog::default(),
            topics_made: 0,
            clients: (0..5).map(|_| Client::default()).collect(),
            kept: KeptMembers::default(),
            disk: Default::default(),
            unwritten: MemberChanges::new(),
        }
    }

    /// As after every step of a group: what has changed is to be kept.
    fn keep(&mut self) {
        for id in self.group.take_touched() {
            self.kept.keep(&id, self.group.record_of(&id).as_ref(), &mut self.unwritten);
        }
        // Whatever has no mark is as it is kept.
        let mut unmarked = MemberChanges::new();
        for id in self.group.members.keys() {
            self.kept.clone().keep(id, self.group.record_of(id).as_ref(), &mut unmarked);
        }
        assert_eq!(unmarked, MemberChanges::new(), "nobody said that this is to be kept");
    }

    fn write(&mut self, written: u64) {
        for (bit, (part, value)) in std::mem::take(&mut self.unwritten).into_iter().enumerate() {
            match value {
                _ if written.rotate_right(1 + bit as u32) & 1 == 0 => {}
                Some(value) => _ = self.disk.1.insert(part, value),
                None => _ = self.disk.1.remove(&part),
            }
        }
        if written & 1 == 1 {
            self.disk.0 = (self.group.epoch, self.group.target_epoch);
        }
    }

    /// As before an answer.
    fn write_all(&mut self) {
        self.keep();
        self.write(u64::MAX);
    }

    fn restart(&mut self, written: u64) {
        self.keep();
        self.write(written);
        let (epochs, members) = self.disk.clone();
        let limits = Arc::clone(&self.group.limits);
        let (kept, records) = KeptMembers::restore(&members, &mut self.unwritten);
        self.kept = kept;
        self.group = ConsumerGroup::restore(self.now, limits, epochs, records, &self.catalog);
    }

    fn change(&mut self, change: impl FnOnce(&mut Topics)) {
        let mut topics = self.catalog.topics.clone();
        change(&mut topics);
        self.catalog = self.catalog.next(topics);
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
                self.write_all();
                let client = &mut self.clients[who];
                client.epoch = Some(told.epoch);
                if let Some(assignment) = told.assignment {
                    // What is new it takes at once; what it has to give up it gives up when it gets to it.
                    for (topic, partitions) in &assignment {
                        client.has.entry(*topic).or_default().extend(partitions);
                    }
                    client.told = assignment;
                }
            }
            Err(_) => client.is_out(),
        }
    }

    fn classic_join(&mut self, who: usize, lost: bool) {
        let (id, instance) = (self.id(who), self.name(who));
        let client = &mut self.clients[who];
        if client.speaks == Speaks::Eager {
            client.has.clear();
        }
        let owned_partitions = by_name(&client.has, &self.catalog);
        let said = Subscription { topics: client.topics.clone(), user_data: None, owned_partitions };
        let join = Join {
            member_id: if client.epoch.is_some() { id.clone() } else { String::new() },
            new_id: id,
            instance,
            client_id: "c".into(),
            client_host: "/h".to_owned(),
            session_ms: 45_000,
            rebalance_ms: 20_000,
            protocol_type: "consumer".to_owned(),
            protocols: vec![("range".to_owned(), encode(&said, 1))],
            id_required: false,
            skips_assignment: true,
        };
        let answer = self.group.join(self.now, join, &self.catalog);
        client.says_all = lost;
        match answer.error_code {
            0 if lost => {}
            0 => {
                (client.epoch, client.syncs) = (Some(answer.generation_id), true);
                self.write_all();
            }
            _ => client.is_out(),
        }
    }

    fn classic_sync(&mut self, who: usize) {
        let (member_id, instance) = (self.id(who), self.name(who));
        let client = &mut self.clients[who];
        let Some(generation) = client.epoch.filter(|_| client.syncs) else { return };
        let sync = Sync { member_id, instance, generation, ..Sync::default() };
        let answer = self.group.sync(self.now, &sync, &self.catalog);
        assert_eq!(answer.error_code, 0, "it has just joined");
        self.write_all();
        let client = &mut self.clients[who];
        client.told = by_id(&assigned(answer.assignment).expect("an assignment"), &self.catalog);
        // One that gave something up says so.
        client.says_all |= !without(&client.has, &client.told).is_empty();
        client.has = client.told.clone();
        client.syncs = false;
    }

    fn classic_beat(&mut self, who: usize, lost: bool) {
        let Some(generation) = self.clients[who].epoch else { return };
        self.classic_sync(who);
        if self.clients[who].says_all {
            return self.classic_join(who, lost);
        }
        let (id, instance) = (self.id(who), self.name(who));
        let heard =
            self.group.classic_heartbeat(self.now, &id, instance.as_deref(), generation, &self.catalog);
        let client = &mut self.clients[who];
        match heard {
            Ok(()) => {}
            _ if lost => {}
            Err(ErrorCode::RebalanceInProgress) => client.says_all = true,
            Err(_) => client.is_out(),
        }
    }

    fn take(&mut self, step: Step) {
        match step {
            Step::Join { who, speaks, topics, name, lost } => {
                let client = &mut self.clients[who];
                if client.epoch.is_none() {
                    client.life += 1;
                    client.name = name;
                    client.speaks = speaks;
                }
                client.is_out();
                let wanted = (0..3).filter(|bit| topics & (1 << bit) != 0).map(|bit| format!("t{bit}"));
                client.topics = wanted.collect();
                let topics = client.topics.clone();
                if client.speaks != Speaks::Kip848 {
                    return self.classic_join(who, lost);
                }
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
            Step::Beat { who, lost, .. } if self.clients[who].speaks != Speaks::Kip848 => {
                self.classic_beat(who, lost);
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
            Step::Settle { who } if self.clients[who].speaks != Speaks::Kip848 => self.classic_sync(who),
            Step::Settle { who } => self.clients[who].has = self.clients[who].told.clone(),
            Step::Leave { who, for_now } => {
                if self.clients[who].epoch.is_none() {
                    return;
                }
                self.clients[who].is_out();
                if self.clients[who].speaks != Speaks::Kip848 {
                    let _ = self.group.classic_leave(&self.id(who), self.name(who).as_deref());
                    return;
                }
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
                        self.clients[who].is_out();
                    }
                }
            }
            Step::Restart { written } => self.restart(written),
            Step::Topic { number, count: 0 } => {
                self.change(|topics| _ = topics.remove(&format!("t{number}")))
            }
            Step::Topic { number, count } => {
                let known = self.catalog.get(&format!("t{number}")).copied();
                // One that comes back under its name is another one.
                self.topics_made += u128::from(known.is_none());
                let new = (StreamId(uuid::Uuid::from_u128(self.topics_made)), 0);
                let (topic, before) = known.unwrap_or(new);
                self.change(|topics| _ = topics.insert(format!("t{number}"), (topic, count.max(before))));
            }
        }
        self.keep();
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
        let (_, wanted) = world.group.wanted(&world.catalog);
        let wanted: BTreeSet<(StreamId, u32)> =
            wanted.into_iter().flat_map(|(topic, count)| (0..count).map(move |number| (topic, number))).collect();
        prop_assert_eq!(covered, wanted);
        prop_assert!(matches!(world.group.state(), "Stable" | "Empty"));
    }
}

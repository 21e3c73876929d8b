//! Random clients and random time: what holds, holds after every step.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

#[derive(Clone, Debug)]
enum Step {
    Join { who: usize, instance: Option<u8>, protocols: u8, known: bool, id_required: bool, bytes: usize },
    Sync { who: usize, stale: bool, bytes: usize },
    Beat { who: usize },
    Leave { who: usize, by_name: Option<u8> },
    Pass { ms: u64 },
    Delete,
}

fn step() -> impl Strategy<Value = Step> {
    let instance = || prop::option::weighted(0.3, 0..3_u8);
    prop_oneof![
        5 => (0..8_usize, instance(), 1..8_u8, any::<bool>(), any::<bool>(), 0..400_usize).prop_map(
            |(who, instance, protocols, known, id_required, bytes)| Step::Join {
                who, instance, protocols, known, id_required, bytes
            }
        ),
        4 => (0..8_usize, prop::bool::weighted(0.1), 0..400_usize)
            .prop_map(|(who, stale, bytes)| Step::Sync { who, stale, bytes }),
        3 => (0..8_usize).prop_map(|who| Step::Beat { who }),
        1 => (0..8_usize, instance()).prop_map(|(who, by_name)| Step::Leave { who, by_name }),
        4 => prop_oneof![0..2_000_u64, 0..70_000_u64].prop_map(|ms| Step::Pass { ms }),
        1 => prop::bool::weighted(0.05)
            .prop_map(|delete| if delete { Step::Delete } else { Step::Pass { ms: 1 } }),
    ]
}

struct World {
    group: ClassicGroup,
    now: Instant,
    tickets: u64,
    waiting: BTreeSet<u64>,
    /// The ids that were given out, with the names that they were given for.
    ids: Vec<(String, Option<String>)>,
}

impl World {
    fn new() -> Self {
        let limits = Limits {
            session_ms: 1_000..=30_000,
            initial_delay: Duration::from_secs(3),
            members_max: 5,
            bytes_max: 4_000,
        };
        let group = ClassicGroup::new(Arc::new(limits), 0, None);
        Self { group, now: Instant::from_ns(0), tickets: 0, waiting: BTreeSet::new(), ids: Vec::new() }
    }

    fn ticket(&mut self) -> Ticket {
        self.tickets += 1;
        self.waiting.insert(self.tickets);
        Ticket(self.tickets)
    }

    fn id(&self, who: usize) -> (String, Option<String>) {
        let known = self.ids.len().checked_sub(1 + who);
        known.map(|at| self.ids[at].clone()).unwrap_or_else(|| ("nobody".to_owned(), None))
    }

    fn take(&mut self, step: Step) {
        let generation = self.group.generation;
        let mut out = Vec::new();
        match step {
            Step::Join { who, instance, protocols, known, id_required, bytes } => {
                let (member_id, mut name) = if known { self.id(who) } else { (String::new(), None) };
                if !known {
                    name = instance.map(|number| number.to_string());
                }
                let new_id = format!("m{}", self.tickets);
                let names = ["range", "sticky", "other"].into_iter().enumerate();
                let protocols = names.filter(|(bit, _)| protocols & (1 << bit) != 0);
                let join = Join {
                    member_id,
                    new_id: new_id.clone(),
                    instance: name.clone(),
                    client_id: "c".into(),
                    client_host: "/h".to_owned(),
                    session_ms: 10_000,
                    rebalance_ms: 20_000,
                    protocol_type: "consumer".to_owned(),
                    protocols: protocols.map(|(_, name)| (name.to_owned(), vec![0; bytes].into())).collect(),
                    id_required,
                    skips_assignment: bytes % 2 == 0,
                };
                self.ids.push((new_id, name));
                let ticket = self.ticket();
                self.group.join(self.now, join, ticket, &mut out);
            }
            Step::Sync { who, stale, bytes } => {
                let (member_id, instance) = self.id(who);
                let assignment = |id: &String| (id.clone(), Bytes::from(vec![0; bytes]));
                let sync = Sync {
                    member_id,
                    instance,
                    generation: generation - i32::from(stale),
                    assignments: self.group.members.keys().map(assignment).collect(),
                    ..Sync::default()
                };
                let ticket = self.ticket();
                self.group.sync(self.now, sync, ticket, &mut out);
            }
            Step::Beat { who } => {
                let (id, instance) = self.id(who);
                let _ = self.group.heartbeat(self.now, &id, instance.as_deref(), generation);
            }
            Step::Leave { who, by_name } => {
                let (id, instance) = match by_name {
                    Some(name) => (String::new(), Some(name.to_string())),
                    None => self.id(who),
                };
                let _ = self.group.leave(self.now, &id, instance.as_deref(), &mut out);
            }
            Step::Pass { ms } => {
                self.now = self.now + Duration::from_millis(ms);
                self.group.tick(self.now, &mut out);
                if let Some(next) = self.group.next_deadline() {
                    assert!(next > self.now, "what time demands was done");
                }
            }
            Step::Delete => {
                let _ = self.group.delete();
            }
        }
        for output in out {
            let (ticket, error) = match output {
                ClassicOutput::Join(ticket, answer) => (ticket, answer.error_code),
                ClassicOutput::Sync(ticket, answer) => (ticket, answer.error_code),
            };
            assert!(self.waiting.remove(&ticket.0), "answered twice, with {error}");
        }
        assert!((generation..=generation + 1).contains(&self.group.generation));
        self.check();
    }

    fn check(&self) {
        let group = &self.group;
        let held = group.members.values().flat_map(|member| [member.joining, member.syncing]).flatten();
        let held: BTreeSet<u64> = held.map(|ticket| ticket.0).collect();
        assert_eq!(held, self.waiting, "who waits for an answer is held by a member");
        assert_eq!(group.members.is_empty(), matches!(group.phase, ClassicPhase::Empty | ClassicPhase::Dead));
        assert!(group.members.len() + group.pending.len() <= group.limits.members_max);
        assert!(group.bytes() <= group.limits.bytes_max);
        assert!(group.pending.keys().all(|id| !group.members.contains_key(id)));
        let named =
            group.members.iter().filter_map(|(id, member)| Some((member.instance.clone()?, id.clone())));
        assert_eq!(named.collect::<BTreeMap<_, _>>(), group.instances);
        if group.members.is_empty() {
            return;
        }
        assert!(group.leader.as_ref().is_some_and(|leader| group.members.contains_key(leader)));
        let in_use = matches!(group.phase, ClassicPhase::Completing | ClassicPhase::Stable);
        for member in group.members.values() {
            assert!(member.joining.is_none() || matches!(group.phase, ClassicPhase::Preparing { .. }));
            assert!(member.syncing.is_none() || group.phase == ClassicPhase::Completing);
            if let (true, Some(protocol)) = (in_use, &group.protocol) {
                assert!(member.protocols.iter().any(|(name, _)| name == protocol), "all have it");
            }
        }
        assert!(!in_use || group.protocol.is_some());
        assert!(group.next_deadline().is_some(), "nobody is waited for without end");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn whatever_clients_do_every_answer_comes_once_and_the_group_stays_sound(
        steps in prop::collection::vec(step(), 0..120)
    ) {
        let mut world = World::new();
        for step in steps {
            world.take(step);
        }
        // With time alone everybody is answered, and nobody is left.
        for _ in 0..400 {
            let Some(next) = world.group.next_deadline() else { break };
            let ms = next.since(world.now).as_millis() as u64 + 1;
            world.take(Step::Pass { ms });
        }
        prop_assert!(world.waiting.is_empty() && world.group.members.is_empty());
    }
}

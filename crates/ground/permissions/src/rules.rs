//! The rules of a node, kept in its metadata, and the authorizer that goes by them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use futures::channel::oneshot;
use parking_lot::RwLock;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tailwater_access::{AccessRequest, Authorizer, Denied, Peer, Protocol, RightsBell, RightsChanges};
use tailwater_env::{Env, Task};
use tailwater_meta::{Expect, Meta, MetaError, Op, follow_whole};

use crate::audit::{Audit, AuditEvent};
use crate::limits::{CHANGES_MAX, CONFLICTS_MAX, RULES_MAX};
use crate::need::{Need, need};
use crate::rule::{ALL, AccessRule, Effect, Operation, ResourceKind, RuleError};
use crate::subject::SubjectMapping;

/// Where all of them are: one key for each, by a hash of what it says, so that none is there twice.
const RULES: &str = "access/rule/";

/// What rules are for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Enforcement {
    /// Nothing: everybody may do everything.
    #[default]
    Off,
    /// What they would refuse is done, and is in the audit.
    Report,
    /// What they don't let is refused.
    Enforce,
}

/// Which rules are meant: those that say this where this says something.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuleFilter {
    /// About this principal, in these letters.
    pub principal: Option<String>,
    /// With this effect.
    pub effect: Option<Effect>,
    /// With this operation.
    pub operation: Option<Operation>,
    /// About resources of this kind.
    pub kind: Option<ResourceKind>,
    /// With this name.
    pub name: Option<String>,
    /// Whether the name is a beginning.
    pub is_prefix: Option<bool>,
    /// About this name in any way, in place of the two before: by it, by a beginning of it, or by all.
    pub about: Option<String>,
    /// From this host, in these letters.
    pub host: Option<String>,
}

impl RuleFilter {
    /// Whether this rule is meant.
    pub fn takes(&self, rule: &AccessRule) -> bool {
        fn is<T: PartialEq>(wanted: &Option<T>, own: &T) -> bool {
            wanted.as_ref().is_none_or(|wanted| wanted == own)
        }
        is(&self.principal, &rule.principal)
            && is(&self.effect, &rule.effect)
            && is(&self.operation, &rule.operation)
            && is(&self.kind, &rule.kind)
            && is(&self.name, &rule.name)
            && is(&self.is_prefix, &rule.is_prefix)
            && self.about.as_ref().is_none_or(|name| rule.covers(name))
            && is(&self.host, &rule.host)
    }
}

/// What was counted since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RulesStats {
    /// Rules that there are.
    pub rules: usize,
    /// Requests that were refused, or would have been.
    pub refused: u64,
}

/// All rules, as they are looked at.
#[derive(Default)]
struct RuleSet {
    /// By principal and kind.
    about: BTreeMap<(String, ResourceKind), Vec<AccessRule>>,
    all: BTreeSet<AccessRule>,
}

impl RuleSet {
    fn of(all: BTreeSet<AccessRule>) -> Self {
        let mut about: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for rule in &all {
            about.entry((rule.principal.clone(), rule.kind)).or_default().push(rule.clone());
        }
        Self { about, all }
    }

    /// Whether someone with these names may do this: something lets, and nothing forbids.
    fn lets(
        &self,
        names: &[&str],
        host: Option<IpAddr>,
        (operation, kind, name): (Operation, ResourceKind, &str),
    ) -> bool {
        let of_kind = |kind| {
            let lists = names
                .iter()
                .chain(&[ALL])
                .filter_map(move |name| self.about.get(&((*name).to_owned(), kind)));
            lists.flatten().filter(move |rule| rule.is_from(host))
        };
        let mut allowed = false;
        for rule in of_kind(kind).filter(|rule| rule.is_about(operation)) {
            match rule.effect {
                // What is about all of a kind is refused where anything of it is forbidden.
                Effect::Deny if name == ALL || rule.covers(name) => return false,
                Effect::Allow if rule.covers(name) => allowed = true,
                _ => {}
            }
        }
        let allows = |rule: &AccessRule, operation| rule.effect == Effect::Allow && rule.is_about(operation);
        allowed
            || match (operation, kind) {
                (Operation::IdempotentWrite, _) => {
                    of_kind(ResourceKind::Stream).any(|rule| allows(rule, Operation::Write))
                }
                // As Kafka has it: whoever may create on the cluster may create any topic.
                (Operation::Create, ResourceKind::Stream) => {
                    of_kind(ResourceKind::Node).any(|rule| allows(rule, Operation::Create))
                }
                _ => false,
            }
    }
}

/// The rules of a node. What is changed is durable before it holds; changes are made one at a time.
pub struct Rules {
    env: Env,
    enforcement: Enforcement,
    super_users: Vec<String>,
    audit: Option<Audit>,
    subjects: OnceLock<Vec<SubjectMapping>>,
    set: RwLock<Arc<RuleSet>>,
    /// Rings after it changed.
    bell: RightsBell,
    kept: OnceLock<KeptRules>,
    changing: tokio::sync::Mutex<()>,
    refused: AtomicU64,
}

struct KeptRules {
    meta: Arc<dyn Meta>,
    _watch: Task,
}

impl std::fmt::Debug for Rules {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Rules").field("count", &self.set.read().all.len()).finish_non_exhaustive()
    }
}

impl Rules {
    /// None yet: until [`Rules::keep_in`] only super users may do anything, where rules are enforced. `super_users` are
    /// principals as rules name them; `audit` is told what is refused, and what is changed.
    pub fn new(
        env: &Env,
        enforcement: Enforcement,
        super_users: Vec<String>,
        audit: Option<Audit>,
    ) -> Arc<Self> {
        Arc::new(Self {
            env: env.clone(),
            enforcement,
            super_users,
            audit,
            subjects: OnceLock::new(),
            set: RwLock::default(),
            bell: RightsBell::default(),
            kept: OnceLock::new(),
            changing: tokio::sync::Mutex::default(),
            refused: AtomicU64::new(0),
        })
    }

    /// Takes whoever shows a certificate for the user that the first of these says, too. It is said once.
    ///
    /// # Errors
    /// What is wrong with one.
    pub fn map_subjects(&self, subjects: Vec<SubjectMapping>) -> Result<(), RuleError> {
        subjects.iter().try_for_each(SubjectMapping::check).map_err(RuleError::Invalid)?;
        let _ = self.subjects.set(subjects);
        Ok(())
    }

    /// Reads the rules from `meta`, where they are kept from then on, and follows what others change there.
    ///
    /// # Errors
    /// Metadata that can't be read, or has something else where a rule should be.
    pub async fn keep_in(self: &Arc<Self>, meta: Arc<dyn Meta>) -> Result<(), RuleError> {
        let unavailable = |error: tailwater_meta::MetaError| RuleError::Unavailable(error.to_string());
        // Before they are read, so that nothing is missed between.
        let watch = meta.watch(RULES).await.map_err(unavailable)?;
        let (all, unread) = stored_rules(&*meta).await?;
        if let Some(key) = unread.first() {
            return Err(RuleError::Unavailable(told_of_unread(key)));
        }
        self.replace(all);
        let of = Arc::clone(&meta);
        let following = follow_whole(&self.env, "access-rules", watch, Arc::downgrade(self), move |rules| {
            let of = Arc::clone(&of);
            Box::pin(async move {
                let _turn = rules.changing.lock().await;
                rules.read(&*of).await
            })
        });
        let _ = self.kept.set(KeptRules { meta, _watch: following });
        Ok(())
    }

    /// Goes by the rules that metadata has by now. While one of them can't be read, which may forbid something, nothing
    /// is let that was not let before: what lets somebody is removed, and what forbids is added.
    async fn read(&self, meta: &dyn Meta) -> Result<(), RuleError> {
        let (mut all, unread) = stored_rules(meta).await?;
        if !unread.is_empty() {
            unread.iter().for_each(|key| tracing::error!("{}", told_of_unread(key)));
            let before = Arc::clone(&self.set.read());
            all.retain(|rule| rule.effect == Effect::Deny || before.all.contains(rule));
            all.extend(before.all.iter().filter(|rule| rule.effect == Effect::Deny).cloned());
        }
        self.replace(all);
        Ok(())
    }

    /// Goes by these from now on.
    fn replace(&self, all: BTreeSet<AccessRule>) {
        // What was changed here is read again once the metadata tells of it.
        if self.set.read().all == all {
            return;
        }
        *self.set.write() = Arc::new(RuleSet::of(all));
        self.bell.ring();
    }

    /// What rules are for.
    pub fn enforcement(&self) -> Enforcement {
        self.enforcement
    }

    /// Who may do everything.
    pub fn super_users(&self) -> &[String] {
        &self.super_users
    }

    /// The audit, if there is one.
    pub fn audit(&self) -> Option<&Audit> {
        self.audit.as_ref()
    }

    /// What was counted since the start.
    pub fn stats(&self) -> RulesStats {
        RulesStats { rules: self.set.read().all.len(), refused: self.refused.load(Ordering::Relaxed) }
    }

    /// Those that are meant, in order.
    pub fn list(&self, filter: &RuleFilter) -> Vec<AccessRule> {
        let set = Arc::clone(&self.set.read());
        set.all.iter().filter(|rule| filter.takes(rule)).cloned().collect()
    }

    /// Adds rules, all or none; those that are there stay.
    ///
    /// # Errors
    /// A rule that can't be one, rules too many, metadata that does not answer.
    pub async fn add(self: &Arc<Self>, rules: Vec<AccessRule>) -> Result<(), RuleError> {
        rules.iter().try_for_each(AccessRule::check)?;
        let rules: BTreeSet<AccessRule> = rules.into_iter().collect();
        if rules.len() > CHANGES_MAX {
            return Err(RuleError::Invalid(format!("one request adds {CHANGES_MAX} rules at most")));
        }
        let decide = move |known: &BTreeSet<_>| match known.union(&rules).count() > RULES_MAX {
            true => Err(RuleError::Invalid(format!("a node has {RULES_MAX} rules at most"))),
            false => Ok((rules.clone(), BTreeSet::new())),
        };
        self.change(decide, None).await.map(drop)
    }

    /// Removes those that any of the filters means, all or none, and tells which those were.
    ///
    /// # Errors
    /// More than one request may change, metadata that does not answer.
    pub async fn remove(self: &Arc<Self>, filters: Vec<RuleFilter>) -> Result<Vec<AccessRule>, RuleError> {
        Ok(self.remove_if(filters, None).await?.unwrap_or_default())
    }

    /// Removes them as long as `holds`, whose key is of others, is the case; whether it is. Nothing is removed
    /// otherwise.
    ///
    /// # Errors
    /// Those of [`Rules::remove`].
    pub async fn remove_while(
        self: &Arc<Self>,
        holds: Op,
        filters: Vec<RuleFilter>,
    ) -> Result<bool, RuleError> {
        Ok(self.remove_if(filters, Some(holds)).await?.is_some())
    }

    async fn remove_if(
        self: &Arc<Self>,
        filters: Vec<RuleFilter>,
        holds: Option<Op>,
    ) -> Result<Option<Vec<AccessRule>>, RuleError> {
        let decide = move |known: &BTreeSet<AccessRule>| {
            let meant = known.iter().filter(|rule| filters.iter().any(|filter| filter.takes(rule)));
            let meant: BTreeSet<_> = meant.cloned().collect();
            match meant.len() > CHANGES_MAX {
                true => Err(RuleError::Invalid(format!(
                    "that are {} rules, and one request removes {CHANGES_MAX} at most",
                    meant.len()
                ))),
                false => Ok((BTreeSet::new(), meant)),
            }
        };
        Ok(self.change(decide, holds).await?.map(|removed| removed.into_iter().collect()))
    }

    /// Carries a change out, also if nobody waits for it any more; which rules went. None, and nothing else, if it is
    /// not the case what has to hold.
    async fn change(
        self: &Arc<Self>,
        decide: impl Fn(&BTreeSet<AccessRule>) -> Result<(BTreeSet<AccessRule>, BTreeSet<AccessRule>), RuleError>
        + Send
        + Sync
        + 'static,
        holds: Option<Op>,
    ) -> Result<Option<BTreeSet<AccessRule>>, RuleError> {
        let (done, answer) = oneshot::channel();
        let rules = Arc::clone(self);
        let changing = async move {
            // Whoever asked may be gone.
            let _ = done.send(rules.change_now(decide, holds).await);
        };
        self.env.spawn("access-rules", changing).detach();
        answer.await.unwrap_or_else(|_| Err(RuleError::Unavailable("the node stops".to_owned())))
    }

    async fn change_now(
        &self,
        decide: impl Fn(&BTreeSet<AccessRule>) -> Result<(BTreeSet<AccessRule>, BTreeSet<AccessRule>), RuleError>,
        holds: Option<Op>,
    ) -> Result<Option<BTreeSet<AccessRule>>, RuleError> {
        let kept = self
            .kept
            .get()
            .ok_or_else(|| RuleError::Unavailable("the node has not started yet".to_owned()))?;
        let _turn = self.changing.lock().await;
        for _ in 0..CONFLICTS_MAX {
            let mut all = self.set.read().all.clone();
            let (there, gone) = decide(&all)?;
            let (known, new): (Vec<_>, Vec<_>) = there.into_iter().partition(|rule| all.contains(rule));
            // What this node knows may be behind. A rule is all that its key is made of: it needs no version.
            let checks = known.iter().map(|rule| Op::Check { key: key(rule), expect: Expect::Present });
            let puts = new.iter().map(|rule| Op::Put {
                key: key(rule),
                value: encode(rule).into(),
                expect: Expect::Absent,
            });
            let deletes = gone.iter().map(|rule| Op::Delete { key: key(rule), expect: Expect::Present });
            let ops: Vec<Op> = holds.iter().cloned().chain(checks).chain(puts).chain(deletes).collect();
            if ops.is_empty() {
                return Ok(Some(gone));
            }
            match kept.meta.commit(ops).await {
                Ok(_) => {
                    all.extend(new);
                    all.retain(|rule| !gone.contains(rule));
                    self.replace(all);
                    return Ok(Some(gone));
                }
                Err(MetaError::Conflict { key }) if holds.as_ref().is_some_and(|op| op.key() == key) => {
                    return Ok(None);
                }
                // Another node has added or removed one of them.
                Err(MetaError::Conflict { .. }) => self.read(&*kept.meta).await?,
                Err(error) => return Err(RuleError::Unavailable(error.to_string())),
            }
        }
        Err(RuleError::Unavailable("others change these rules all the time: try it again".to_owned()))
    }

    /// Whether nobody has to be asked.
    fn is_super_user(&self, names: &[&str]) -> bool {
        self.super_users.iter().any(|own| names.contains(&own.as_str()))
    }

    /// Whether `peer` has the right that `request` needs, whatever rules are for.
    fn has_right(&self, peer: &Peer, request: &AccessRequest<'_>) -> bool {
        let Need::Right { operation, kind, name } = need(request) else { return true };
        let subjects = self.subjects.get().into_iter().flatten();
        let mapped = subjects.filter_map(|subject| subject.user_of(&peer.principal)).next();
        let mut names = names_of(peer);
        names.extend(mapped.as_deref());
        self.is_super_user(&names) || {
            let set = Arc::clone(&self.set.read());
            set.lets(&names, peer.ip(), (operation, kind, &name))
        }
    }

    fn tell(&self, outcome: &str, peer: &Peer, request: &AccessRequest<'_>) {
        let (Some(audit), Need::Right { operation, kind, name }) = (&self.audit, need(request)) else {
            return;
        };
        audit.tell(AuditEvent {
            time_ms: self.env.wall_ms(),
            number: 0,
            outcome: outcome.to_owned(),
            principal: peer.principal.to_string(),
            address: peer.address.clone(),
            protocol: protocol_name(request.protocol).to_owned(),
            request: request.operation.to_owned(),
            operation: operation.name().to_owned(),
            kind: kind.name().to_owned(),
            name: name.into_owned(),
            dropped: 0,
        });
    }
}

impl Authorizer for Rules {
    fn authorize(&self, peer: &Peer, request: AccessRequest<'_>) -> Result<(), Denied> {
        if self.enforcement == Enforcement::Off {
            return Ok(());
        }
        let Need::Right { operation, kind, .. } = need(&request) else { return Ok(()) };
        if self.has_right(peer, &request) {
            let changes = !operation.only_looks()
                && !matches!(operation, Operation::Write | Operation::IdempotentWrite);
            if changes {
                self.tell("allowed", peer, &request);
            }
            return Ok(());
        }
        self.refused.fetch_add(1, Ordering::Relaxed);
        if self.enforcement == Enforcement::Report {
            self.tell("would_refuse", peer, &request);
            return Ok(());
        }
        self.tell("refused", peer, &request);
        Err(Denied(format!("{} has no right to {} this {}", peer.principal, operation.name(), kind.name())))
    }

    /// That something is not shown is nothing to tell of.
    fn shows(&self, peer: &Peer, request: AccessRequest<'_>) -> bool {
        self.enforcement != Enforcement::Enforce || self.has_right(peer, &request)
    }

    fn changes(&self) -> RightsChanges {
        match self.enforcement {
            Enforcement::Off => RightsChanges::never(),
            _ => self.bell.changes(),
        }
    }
}

/// By what a rule may name whoever asks.
fn names_of(peer: &Peer) -> Vec<&str> {
    std::iter::once(&*peer.principal).chain(peer.names.iter().map(String::as_str)).collect()
}

const fn protocol_name(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::Call => "call",
        Protocol::Cell => "cell",
        Protocol::Http => "http",
        Protocol::Kafka => "kafka",
        Protocol::Broadcast => "broadcast",
        Protocol::Sqs => "sqs",
        Protocol::Memcached => "memcached",
    }
}

/// The rules that metadata has, and the keys of those that can't be read.
async fn stored_rules(meta: &dyn Meta) -> Result<(BTreeSet<AccessRule>, Vec<String>), RuleError> {
    let stored = meta.list(RULES).await.map_err(|error| RuleError::Unavailable(error.to_string()))?;
    let (mut all, mut unread) = (BTreeSet::new(), Vec::new());
    for (key, stored) in stored {
        match serde_json::from_slice(&stored.value) {
            Ok(rule) => _ = all.insert(rule),
            Err(_) => unread.push(key),
        }
    }
    Ok((all, unread))
}

fn told_of_unread(key: &str) -> String {
    format!(
        "the rule at {key} can't be read, and may forbid something: a later version has written it, or it is damaged; \
         upgrade this node, or remove the rule on one that can read it"
    )
}

fn encode(rule: &AccessRule) -> Vec<u8> {
    serde_json::to_vec(rule).expect("texts and enums are JSON")
}

fn key(rule: &AccessRule) -> String {
    let hash = Sha256::digest(encode(rule));
    let hex: String = hash.iter().take(16).map(|byte| format!("{byte:02x}")).collect();
    format!("{RULES}{hex}")
}

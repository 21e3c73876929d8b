//! Quotas of those who make CALLs: what a CALL takes is taken before it is carried out, and its answer is kept back
//! until its user and its address owe nothing.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tailwater_env::Env;
use tailwater_format::call::{CallErrorCode, CallRefusal, Method};
use tailwater_quotas::{ClientQuotas, QuotaBound, QuotaTaker};
use tailwater_rma::{LoginDemand, LoginDialogue, Peer, Refusal, Region, Reply, ScarHit, ScarOp, Service};

use crate::calls::{NodeService, refusal};

/// How long an answer is kept back at most: less than a client, or another cluster, waits for one. Of whoever owes more
/// no CALL is begun.
const HELD_MAX: Duration = Duration::from_secs(2);

const _: () = assert!(
    HELD_MAX.as_millis() < tailwater_copy::limits::ASK_MAX.as_millis(),
    "clusters hear of each other"
);

/// A service whose clients have quotas.
pub(crate) struct HeldCalls {
    env: Env,
    quotas: Arc<ClientQuotas>,
    service: Arc<NodeService>,
}

impl HeldCalls {
    /// Has the CALLs of `service` taken from `quotas`.
    pub(crate) fn new(env: &Env, quotas: &Arc<ClientQuotas>, service: Arc<NodeService>) -> Self {
        Self { env: env.clone(), quotas: Arc::clone(quotas), service }
    }

    /// Takes a CALL and what it appends; the bound that its answer counts against as well.
    fn take(
        &self,
        taker: QuotaTaker<'_>,
        method: u16,
        bytes: u64,
    ) -> Result<Option<QuotaBound>, CallRefusal> {
        let bound = match Method::from_number(method) {
            Some(Method::Append) => Some(QuotaBound::ProducerByteRate),
            Some(Method::ReadDurable | Method::CopyNext) => Some(QuotaBound::ConsumerByteRate),
            _ => None,
        };
        let bounds = [Some(QuotaBound::RequestRate), bound];
        let owed = bounds.into_iter().flatten().map(|bound| self.quotas.owed(bound, taker)).max();
        if let Some(owed) = owed.filter(|owed| *owed > HELD_MAX) {
            let why = format!("{taker} has used up its quota, and owes {} s of it", owed.as_secs());
            return Err(CallRefusal::new(CallErrorCode::Overloaded, why));
        }
        self.quotas.take(QuotaBound::RequestRate, taker, 1);
        if bound == Some(QuotaBound::ProducerByteRate) {
            self.quotas.take(QuotaBound::ProducerByteRate, taker, bytes);
        }
        Ok(bound)
    }
}

impl Service for HeldCalls {
    fn login_demand(&self, peer: &Peer) -> Option<LoginDemand> {
        self.service.login_demand(peer)
    }

    fn begin_login(&self, peer: &Peer, is_private: bool) -> Result<Box<dyn LoginDialogue>, Refusal> {
        self.service.begin_login(peer, is_private)
    }

    fn admit(&self, peer: &Peer) -> Result<(), Refusal> {
        self.service.admit(peer)
    }

    fn regions(&self) -> Vec<Arc<Region>> {
        self.service.regions()
    }

    fn scar(&self, op: &ScarOp) -> Option<ScarHit> {
        self.service.scar(op)
    }

    fn owed_for_reads(&self, peer: &Peer, bytes: usize) -> Duration {
        self.service.owed_for_reads(peer, bytes)
    }

    fn is_short(&self, method: u16, payload: &Bytes) -> bool {
        self.service.is_short(method, payload)
    }

    fn call(&self, peer: &Peer, method: u16, payload: Bytes, reply: Reply) {
        // Without a greeting nobody learns where the cells are, and it is one for each connection.
        if !self.quotas.is_any() || Method::from_number(method) == Some(Method::Hello) {
            return self.service.call(peer, method, payload, reply);
        }
        let taker = QuotaTaker::of(peer, "");
        let bound = match self.take(taker, method, payload.len() as u64) {
            Ok(bound) => bound,
            // What comes behind a refused append must not be before it.
            Err(refused) if Method::from_number(method) == Some(Method::Append) => {
                let refused = self.service.refuse_append(peer, payload).err().unwrap_or(refused);
                return reply.send(Err(refusal(refused)));
            }
            Err(refused) => return reply.send(Err(refusal(refused))),
        };
        let (env, quotas, owing) = (self.env.clone(), Arc::clone(&self.quotas), peer.clone());
        let held = Reply::new(move |answer| {
            let taker = QuotaTaker::of(&owing, "");
            if let (Some(QuotaBound::ConsumerByteRate), Ok(bytes)) = (bound, &answer) {
                quotas.take(QuotaBound::ConsumerByteRate, taker, bytes.len() as u64);
            }
            let bounds = [Some(QuotaBound::RequestRate), bound];
            let owed = bounds.into_iter().flatten().map(|bound| quotas.owed(bound, taker)).max();
            let Some(owed) = owed.filter(|owed| !owed.is_zero()) else { return reply.send(answer) };
            // Who answers may be a thread whose timers nobody turns, or one that ends earlier: the task has its own.
            let clock = env.clone();
            let send = async move {
                clock.sleep(owed.min(HELD_MAX)).await;
                reply.send(answer);
            };
            env.spawn("held-call", send).detach();
        });
        self.service.call(peer, method, payload, held);
    }
}

//! For tests, of other crates too: a service that answers the CALLs of copying, and nothing else.

use std::sync::Arc;

use bytes::Bytes;
use tailwater_env::Env;
use tailwater_format::call::{CallErrorCode, CallMessage, CallRefusal, Method, decode_call, encode_call};
use tailwater_rma::{Peer, Refusal, Region, Reply, ScarHit, ScarOp, Service};

use crate::copies::Copies;

/// Answers the CALLs of copying as a node does that asks nobody for rights.
pub struct CopyService {
    env: Env,
    copies: Copies,
}

impl CopyService {
    /// One in front of `copies`.
    pub fn new(env: &Env, copies: &Copies) -> Arc<Self> {
        Arc::new(Self { env: env.clone(), copies: copies.clone() })
    }
}

fn message<M: CallMessage>(payload: Bytes) -> Result<M, CallRefusal> {
    decode_call(payload).map_err(|error| CallRefusal::new(CallErrorCode::Malformed, error.to_string()))
}

impl Service for CopyService {
    fn regions(&self) -> Vec<Arc<Region>> {
        Vec::new()
    }

    fn scar(&self, _op: &ScarOp) -> Option<ScarHit> {
        None
    }

    fn is_short(&self, _method: u16, _payload: &Bytes) -> bool {
        true
    }

    fn call(&self, _peer: &Peer, method: u16, payload: Bytes, reply: Reply) {
        let copies = self.copies.clone();
        let method = Method::from_number(method);
        // What a session is asked, it is asked in the order in which it comes.
        let next = match method {
            Some(Method::CopyNext) => message(payload.clone()).map(|asked| Some(copies.next(asked))),
            _ => Ok(None),
        };
        let answer = async move {
            match (method, next?) {
                (_, Some(next)) => next.await,
                (Some(Method::CopyOpen), _) => {
                    copies.open(&message(payload)?).map(|opened| encode_call(&opened))
                }
                (Some(Method::CopyPlan), _) => {
                    copies.keep_plan(&message(payload)?).await.map(|kept| encode_call(&kept))
                }
                (Some(Method::CopyLead), _) => {
                    copies.take_lead(&message(payload)?).await.map(|kept| encode_call(&kept))
                }
                (Some(Method::CopyOffsets), _) => {
                    copies.offsets(&message(payload)?).map(|told| encode_call(&told))
                }
                (Some(Method::CopyReport), _) => {
                    copies.work(message(payload)?).await.map(|tasks| encode_call(&tasks))
                }
                (Some(Method::CopyPush), _) => {
                    copies.push(message(payload)?).await.map(|pushed| encode_call(&pushed))
                }
                (Some(Method::CopyState), _) => {
                    copies.state(&message(payload)?).map(|hops| encode_call(&hops))
                }
                _ => Err(CallRefusal::new(CallErrorCode::UnknownMethod, "another method")),
            }
        };
        let refusal =
            |refused: CallRefusal| Refusal { code: refused.code.number(), message: refused.message };
        let task = async move { reply.send(answer.await.map_err(refusal)) };
        self.env.spawn("call", task).detach();
    }
}

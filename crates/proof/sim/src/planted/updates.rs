//! A connection to a backend that promises nothing: updates over it are reads, and then writes.

use std::sync::Arc;

use bytes::Bytes;
use prost::Message;
use tailwater_cache::Version;
use tailwater_cache::layout::Item;
use tailwater_cache::protocol::{
    Looked, LookupReply, LookupRequest, METHOD_ACCEPT, METHOD_LOOKUP, METHOD_MUTATE, METHOD_PROMISE,
    PromiseReply, PromiseRequest, PromiseState,
};
use tailwater_rma::testing::{ConnectionHooks, Decorated};
use tailwater_rma::{CallDone, CallError, Connection};

pub(super) struct PlantedUpdates;

impl PlantedUpdates {
    pub(super) fn in_front_of(inner: Arc<dyn Connection>) -> Arc<dyn Connection> {
        Arc::new(Decorated { inner, hooks: Self })
    }

    /// Answers as if it had promised: with what the backend holds at that moment.
    async fn promise(inner: &dyn Connection, payload: Bytes) -> Result<Bytes, CallError> {
        let request = PromiseRequest::decode(payload.clone()).ok();
        let Some((request, (hash, _))) = request.and_then(|of| of.parts().map(|parts| (of, parts))) else {
            return inner.call(METHOD_PROMISE, payload).await;
        };
        let lookup = LookupRequest::of(request.config_id, std::iter::once(hash)).encode_to_vec();
        let reply = inner.call(METHOD_LOOKUP, lookup.into()).await?;
        let parts = LookupReply::decode(reply).ok().and_then(|reply| reply.parts(1)).unwrap_or_default();
        let state = match parts.into_iter().next() {
            Some(Looked::Item(item)) if Item::parse(&item).is_ok() => PromiseState::Held(item),
            _ => PromiseState::Gone(Version::ZERO),
        };
        Ok(PromiseReply::of(Ok(state)).encode_to_vec().into())
    }
}

impl ConnectionHooks for PlantedUpdates {
    fn call<'a>(&'a self, inner: &'a dyn Connection, method: u16, payload: Bytes) -> CallDone<'a> {
        Box::pin(async move {
            match method {
                METHOD_PROMISE => Self::promise(inner, payload).await,
                METHOD_ACCEPT => inner.call(METHOD_MUTATE, payload).await,
                _ => inner.call(method, payload).await,
            }
        })
    }
}

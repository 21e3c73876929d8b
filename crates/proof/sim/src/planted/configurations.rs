//! A connection to a backend that changes what client and backend tell each other of their cell's configuration.

use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use prost::Message;
use tailwater_cache::Configuration;
use tailwater_cache::protocol::{
    ConfigReply, ConfigureRequest, METHOD_CONFIG, METHOD_CONFIGURE, METHOD_MUTATE, MutateRequest,
    encode_mutate,
};
use tailwater_rma::testing::{ConnectionHooks, Decorated};
use tailwater_rma::{CallDone, CallError, Connection};

use super::Plant;

pub(super) struct PlantedExchange {
    plant: Plant,
    /// The configuration that was told first.
    first: Mutex<Option<Configuration>>,
}

impl PlantedExchange {
    pub(super) fn in_front_of(inner: Arc<dyn Connection>, plant: Plant) -> Arc<dyn Connection> {
        Arc::new(Decorated { inner, hooks: Self { plant, first: Mutex::default() } })
    }

    /// Mutations under the configuration that the backend goes by, whichever the client meant.
    async fn under_its_own(inner: &dyn Connection, payload: Bytes) -> Result<Bytes, CallError> {
        let told = inner.call(METHOD_CONFIG, Bytes::new()).await?;
        let told =
            ConfigReply::decode(told).ok().and_then(|told| Configuration::decode(&told.configuration).ok());
        match (told, MutateRequest::decode(payload.clone())) {
            (Some(told), Ok(request)) => Ok(encode_mutate(told.id, [request.items].iter()).concat().into()),
            _ => Ok(payload),
        }
    }

    /// Whether a request configures a backend that is not in the configuration.
    fn is_for_one_that_left(payload: &Bytes) -> bool {
        let Ok(request) = ConfigureRequest::decode(payload.clone()) else { return false };
        let configuration = Configuration::decode(&request.configuration);
        configuration.is_ok_and(|configuration| configuration.place_of(request.number).is_none())
    }

    /// The answer with the backends before a change that is under way.
    fn without_change(answer: Bytes) -> Bytes {
        let Ok(reply) = ConfigReply::decode(answer.clone()) else { return answer };
        let Ok(told) = Configuration::decode(&reply.configuration) else { return answer };
        let changed = Configuration { change: None, ..told };
        ConfigReply { configuration: changed.encode(), ..reply }.encode_to_vec().into()
    }

    /// The answer with the backends of the first one.
    fn with_old_backends(&self, answer: Bytes) -> Bytes {
        let Ok(reply) = ConfigReply::decode(answer.clone()) else { return answer };
        let Ok(told) = Configuration::decode(&reply.configuration) else { return answer };
        let mut first = self.first.lock();
        let backends = first.get_or_insert_with(|| told.clone()).backends.clone();
        let changed = Configuration { backends, ..told };
        ConfigReply { configuration: changed.encode(), ..reply }.encode_to_vec().into()
    }
}

impl ConnectionHooks for PlantedExchange {
    fn call<'a>(&'a self, inner: &'a dyn Connection, method: u16, payload: Bytes) -> CallDone<'a> {
        Box::pin(async move {
            match (self.plant, method) {
                (Plant::SetUnderAnyConfiguration, METHOD_MUTATE) => {
                    let payload = Self::under_its_own(inner, payload).await?;
                    inner.call(method, payload).await
                }
                // Who is told at once SETs nothing under another one.
                (Plant::SetUnderAnyConfiguration, METHOD_CONFIG) if !payload.is_empty() => {
                    std::future::pending().await
                }
                (Plant::ConfigurationNotTold, METHOD_CONFIG | METHOD_CONFIGURE) => {
                    inner.call(method, payload).await?;
                    Ok(ConfigReply::default().encode_to_vec().into())
                }
                (Plant::LeaveNotTold, METHOD_CONFIGURE) if Self::is_for_one_that_left(&payload) => {
                    Ok(ConfigReply::default().encode_to_vec().into())
                }
                (Plant::ChangeNotTold, METHOD_CONFIG | METHOD_CONFIGURE) => {
                    inner.call(method, payload).await.map(Self::without_change)
                }
                (Plant::OldBackendsTold, METHOD_CONFIG | METHOD_CONFIGURE) => {
                    inner.call(method, payload).await.map(|answer| self.with_old_backends(answer))
                }
                _ => inner.call(method, payload).await,
            }
        })
    }
}

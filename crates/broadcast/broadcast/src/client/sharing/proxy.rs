//! The connection to the tail of the region's chain, which is made again when it ends or the chain changes.

use std::sync::Arc;
use std::time::Duration;

use tailwater_env::Env;

use super::connection;
use super::inputs::{Ended, Input, SharingInputs};
use super::outbox::outbox;
use super::socket::WriteHalf;
use crate::client::asking::{Asking, Next};
use crate::client::link::{self, CLIENT, Link, LinkEnd, ReplicasAt};
use crate::message::Message;
use crate::positions::Positions;
use crate::region::Member;

/// A pause between two tries to reach the tail.
const RETRY: Duration = Duration::from_millis(50);

pub(super) struct Proxy {
    env: Env,
    replicas: ReplicasAt,
    me: Member,
    /// Where the listener began; what "now" is once the tail has said it, and where a region has begun anew since.
    positions: Positions,
    ask_every: Duration,
    inputs: SharingInputs,
}

impl Proxy {
    pub(super) fn new(
        env: &Env,
        replicas: ReplicasAt,
        me: Member,
        positions: &Positions,
        ask_every: Duration,
        inputs: SharingInputs,
    ) -> Self {
        Self { env: env.clone(), replicas, me, positions: positions.clone(), ask_every, inputs }
    }

    /// Runs until it is dropped, or the listener has ended.
    pub(super) async fn run(mut self) {
        loop {
            match link::connect(&self.env, &self.replicas, (u128::from(self.me.id), CLIENT), LinkEnd::Tail)
                .await
            {
                Ok(link) => match self.serve(link).await {
                    Ok(Ended) => return,
                    Err(error) => tracing::debug!(%error, "a listener that shares looks for the tail again"),
                },
                Err(error) => tracing::debug!(%error, "a listener that shares finds no tail"),
            }
            self.env.sleep(RETRY).await;
        }
    }

    async fn serve(&mut self, link: Link) -> anyhow::Result<Ended> {
        let id = connection::next_id();
        let (outbox, written) = outbox();
        let outbox = Arc::new(outbox);
        let Link { reader, writer, chain, address } = link;
        let mut reader = reader.sparing();
        let tail = chain.tail().ok_or_else(|| anyhow::anyhow!("{address} is in no chain"))?;
        let proxy = Member { id: tail, address: address.as_str().into() };
        let inputs = self.inputs.clone();
        let writer = WriteHalf::to_proxy(&self.env, writer.into_inner())?;
        let reading = async {
            written.send(&self.share());
            let mut asking = Asking::new(&self.env, self.ask_every);
            loop {
                let message = match asking.next(&mut reader, &address).await? {
                    Next::Ask(ask) => {
                        written.send(&ask);
                        continue;
                    }
                    Next::Said(message) => message,
                };
                let input = match message {
                    Message::Listening { mut positions } => {
                        let (anew, writer) =
                            (self.positions.hear_begins(&mut positions), Arc::clone(&outbox));
                        Input::Proxy { link: id, proxy: proxy.clone(), began: positions, anew, writer }
                    }
                    message @ (Message::Region(_) | Message::Advertise { .. }) => Input::Message(id, message),
                    Message::Chain(chain) if chain.tail() == Some(tail) => {
                        // It is the tail, or about to be: the token may be on its way.
                        self.env.sleep(RETRY).await;
                        written.send(&self.share());
                        continue;
                    }
                    Message::Chain(_) => anyhow::bail!("{address} is not the tail any more"),
                    other => anyhow::bail!("{address} sent {other:?}"),
                };
                if let Err(ended) = self.inputs.give([input]) {
                    return Ok(ended);
                }
            }
        };
        let result = tokio::select! {
            biased;
            result = reading => result,
            result = written.write(id, writer, &inputs) => match result {
                Ok(()) => Ok(Ended),
                Err(error) => Err(error.into()),
            },
        };
        let _ = inputs.give([Input::Closed(id)]);
        result
    }

    fn share(&self) -> Message {
        let positions = self.positions.streams.iter().map(|(stream, position)| (stream.clone(), *position));
        Message::Share { member: self.me.clone(), positions: positions.collect() }
    }
}

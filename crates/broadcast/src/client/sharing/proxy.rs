//! The connection to the tail of the region's chain, which is made again when it ends or the chain changes.

use std::time::Duration;

use tailwater_env::Env;
use tokio::sync::mpsc;

use super::outbox::outbox;
use super::{Input, connection};
use crate::client::asking::{Asking, Next};
use crate::client::link::{self, CLIENT, End, Link};
use crate::message::Message;
use crate::positions::Positions;
use crate::region::Member;

/// A pause between two tries to reach the tail.
const RETRY: Duration = Duration::from_millis(50);

pub(super) struct Proxy {
    env: Env,
    addresses: Vec<String>,
    me: Member,
    /// Where the listener began; what "now" is once the tail has said it, and where a region has begun anew since.
    positions: Positions,
    ask_every: Duration,
    inputs: mpsc::Sender<Input>,
}

impl Proxy {
    pub(super) fn new(
        env: &Env,
        addresses: Vec<String>,
        me: Member,
        positions: &Positions,
        ask_every: Duration,
        inputs: mpsc::Sender<Input>,
    ) -> Self {
        Self { env: env.clone(), addresses, me, positions: positions.clone(), ask_every, inputs }
    }

    /// Runs until it is dropped, or nobody takes its inputs any more.
    pub(super) async fn run(mut self) {
        while !self.inputs.is_closed() {
            match link::connect(&self.env, &self.addresses, (u128::from(self.me.id), CLIENT), End::Tail).await
            {
                Ok(link) => {
                    if let Err(error) = self.serve(link).await {
                        tracing::debug!(%error, "a listener that shares looks for the tail again");
                    }
                }
                Err(error) => tracing::debug!(%error, "a listener that shares finds no tail"),
            }
            self.env.sleep(RETRY).await;
        }
    }

    async fn serve(&mut self, link: Link) -> anyhow::Result<()> {
        let id = connection::next_id();
        let (outbox, written) = outbox();
        let Link { mut reader, writer, chain, address } = link;
        let tail = chain.tail().ok_or_else(|| anyhow::anyhow!("{address} is in no chain"))?;
        let proxy = Member { id: tail, address: address.as_str().into() };
        let inputs = self.inputs.clone();
        let reading = async {
            outbox.send(self.share());
            let mut asking = Asking::new(&self.env, self.ask_every);
            loop {
                let message = match asking.next(&mut reader, &address).await? {
                    Next::Ask(ask) => {
                        outbox.send(ask);
                        continue;
                    }
                    Next::Said(message) => message,
                };
                let input = match message {
                    Message::Listening { mut positions } => {
                        let (anew, writer) = (self.positions.hear_begins(&mut positions), outbox.clone());
                        Input::Proxy { link: id, proxy: proxy.clone(), began: positions, anew, writer }
                    }
                    message @ (Message::Region(_) | Message::Advertise { .. }) => Input::Message(id, message),
                    Message::Chain(chain) if chain.tail() == Some(tail) => {
                        // It is the tail, or about to be: the token may be on its way.
                        self.env.sleep(RETRY).await;
                        outbox.send(self.share());
                        continue;
                    }
                    Message::Chain(_) => anyhow::bail!("{address} is not the tail any more"),
                    other => anyhow::bail!("{address} sent {other:?}"),
                };
                if self.inputs.send(input).await.is_err() {
                    return Ok(());
                }
            }
        };
        let result = tokio::select! {
            biased;
            result = reading => result,
            result = written.write(id, writer, &inputs) => result,
        };
        let _ = inputs.send(Input::Closed(id)).await;
        result
    }

    fn share(&self) -> Message {
        let positions = self.positions.streams.iter().map(|(stream, position)| (stream.clone(), *position));
        Message::Share { member: self.me.clone(), positions: positions.collect() }
    }
}

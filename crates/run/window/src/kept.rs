//! The streams that a window reads whether somebody follows them or not: who comes finds them read.

use std::collections::BTreeMap;
use std::future::pending;

use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use tailwater_client::{Client, Error, Stream};

use crate::limits::{KEPT_LOOK_BEATS, START_PAUSE_BEATS};

/// A stream that was asked for by its name, or why there is none.
pub(crate) type FoundStream = (String, Result<Stream, Error>);

/// What is to be kept from now on, and what not any more.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct KeptChange {
    pub(crate) gone: Option<Stream>,
    pub(crate) new: Option<Stream>,
}

/// How it is with one of them.
#[derive(Debug, Default)]
struct KeptStream {
    found: Option<Stream>,
    /// Why it is not read.
    why: Option<String>,
    is_asked: bool,
    /// Beats until it is asked for again.
    pause: u32,
}

/// All of them, by their names.
pub(crate) struct KeptStreams {
    client: Client,
    streams: BTreeMap<String, KeptStream>,
    asking: FuturesUnordered<BoxFuture<'static, FoundStream>>,
}

impl KeptStreams {
    pub(crate) fn new(client: Client, names: Vec<String>) -> Self {
        let streams = names.into_iter().map(|name| (name, KeptStream::default())).collect();
        let mut kept = Self { client, streams, asking: FuturesUnordered::new() };
        kept.ask();
        kept
    }

    /// Asks for those whose time has come: those that are missing, and now and then for the others, as one may have
    /// been deleted and created anew.
    fn ask(&mut self) {
        for (name, kept) in self.streams.iter_mut().filter(|(_, kept)| !kept.is_asked && kept.pause == 0) {
            kept.is_asked = true;
            let (client, name) = (self.client.clone(), name.clone());
            self.asking.push(Box::pin(async move {
                let found = client.stream(&name).await;
                (name, found)
            }));
        }
    }

    /// The next answer. Cancelling it loses nothing.
    pub(crate) async fn found(&mut self) -> FoundStream {
        match self.asking.next().await {
            Some(found) => found,
            None => pending().await,
        }
    }

    /// Takes in an answer.
    pub(crate) fn take(&mut self, (name, found): FoundStream) -> KeptChange {
        match self.streams.get_mut(&name) {
            Some(kept) => kept.take(&name, found),
            None => KeptChange::default(),
        }
    }

    pub(crate) fn beat(&mut self) {
        for kept in self.streams.values_mut() {
            kept.pause = kept.pause.saturating_sub(1);
        }
        self.ask();
    }

    /// Why one of them is not read.
    pub(crate) fn missing(&self) -> Option<String> {
        let missing = |(name, kept): (&String, &KeptStream)| match (&kept.found, &kept.why) {
            (Some(_), _) => None,
            (None, Some(why)) => Some(format!("stream {name}: {why}")),
            (None, None) => Some(format!("stream {name} is looked for")),
        };
        self.streams.iter().find_map(missing)
    }
}

impl KeptStream {
    fn take(&mut self, name: &str, found: Result<Stream, Error>) -> KeptChange {
        self.is_asked = false;
        match found {
            Ok(stream) => {
                (self.pause, self.why) = (KEPT_LOOK_BEATS, None);
                if self.found.as_ref() == Some(&stream) {
                    return KeptChange::default();
                }
                KeptChange { gone: self.found.replace(stream.clone()), new: Some(stream) }
            }
            // It is most likely there still: its shards are read on.
            Err(why) if why.is_retriable() && self.found.is_some() => {
                self.pause = START_PAUSE_BEATS;
                KeptChange::default()
            }
            Err(why) => {
                tracing::debug!(stream = name, %why, "a stream is not read");
                (self.pause, self.why) = (START_PAUSE_BEATS, Some(why.to_string()));
                KeptChange { gone: self.found.take(), new: None }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tailwater_format::StreamId;

    use super::*;

    fn stream(id: u8) -> Stream {
        Stream { name: "s".into(), id: StreamId(bytes16(id)), shards: 2 }
    }

    fn bytes16(id: u8) -> uuid::Uuid {
        uuid::Uuid::from_bytes([id; 16])
    }

    #[test]
    fn a_stream_that_is_created_anew_takes_the_place_of_the_one_before_and_one_that_can_t_be_asked_for_stays()
    {
        let mut kept = KeptStream::default();
        let took = kept.take("s", Ok(stream(1)));
        assert_eq!(took, KeptChange { gone: None, new: Some(stream(1)) });
        assert_eq!(kept.take("s", Ok(stream(1))), KeptChange::default());
        let away = || Error::Unreachable { address: "a".to_owned(), reason: "none".to_owned() };
        assert_eq!(kept.take("s", Err(away())), KeptChange::default());
        assert_eq!((kept.pause, kept.why.is_none()), (START_PAUSE_BEATS, true));
        assert_eq!(kept.take("s", Ok(stream(2))), KeptChange { gone: Some(stream(1)), new: Some(stream(2)) });
        let gone = Error::Malformed("no such stream".to_owned());
        assert_eq!(kept.take("s", Err(gone)), KeptChange { gone: Some(stream(2)), new: None });
        assert!(kept.why.is_some());
    }
}

//! All that lies below a URL of an object store, through the client that copies of segments go by.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::Context;
use bytes::Bytes;
use futures::stream::{BoxStream, StreamExt};
use tailwater_cache::limits::VALUE_BYTES_MAX;
use tailwater_cold::limits::COPY_TIMEOUT;
use tailwater_cold::{ColdError, ObjectStoreObjects, StoredObject};
use tailwater_env::Env;

/// Objects that are read at the same time, of 1 MiB at most each. With a round trip of 50 ms that is 320 in a second.
const READS_MAX: usize = 16;

/// Keys and values, as far as they were read.
type CorpusReads = BoxStream<'static, anyhow::Result<Option<(Bytes, Bytes)>>>;

/// Objects as keys and values.
pub(super) struct CorpusObjects {
    url: String,
    /// Of those that come next the first one, if it was read already.
    first: Option<(Bytes, Bytes)>,
    reads: Option<CorpusReads>,
}

impl CorpusObjects {
    pub(super) fn of(url: &str) -> Self {
        Self { url: url.to_owned(), first: None, reads: None }
    }

    /// Reads the first one. A URL, a bucket or credentials that are wrong are told here.
    pub(super) async fn begin(&mut self) -> anyhow::Result<()> {
        let told = || format!("{} can't be read", self.url);
        // What is no secret can be in the environment, too.
        let opened = ObjectStoreObjects::open(&Env::real(), &self.url, &BTreeMap::new());
        let objects = opened.map_err(anyhow::Error::msg).with_context(told)?;
        self.reads = Some(reads_of(objects));
        self.first = self.next().await?;
        anyhow::ensure!(self.first.is_some(), "no object lies below {}: what the cell holds stays", self.url);
        Ok(())
    }

    pub(super) async fn next(&mut self) -> anyhow::Result<Option<(Bytes, Bytes)>> {
        if let Some(first) = self.first.take() {
            return Ok(Some(first));
        }
        let Some(reads) = &mut self.reads else { return Ok(None) };
        while let Some(read) = reads.next().await {
            if let Some(item) = read.with_context(|| format!("{} can't be read", self.url))? {
                return Ok(Some(item));
            }
        }
        Ok(None)
    }
}

fn reads_of(objects: ObjectStoreObjects) -> CorpusReads {
    let objects = Arc::new(objects);
    let listed = futures::stream::unfold(objects.all(), async |mut all| {
        let next = in_time(async { Ok(all.next().await) }).await.unwrap_or_else(|error| Some(Err(error)));
        next.map(|next| (next, all))
    });
    let read = move |listed: Result<StoredObject, ColdError>| {
        let objects = Arc::clone(&objects);
        async move { whole(&objects, listed?).await }
    };
    listed.map(read).buffered(READS_MAX).boxed()
}

/// Its key and its value.
async fn whole(objects: &ObjectStoreObjects, object: StoredObject) -> anyhow::Result<Option<(Bytes, Bytes)>> {
    let (name, bytes) = (&object.name, object.bytes);
    anyhow::ensure!(
        bytes <= VALUE_BYTES_MAX as u64,
        "{name} has {bytes} bytes, and a value has {VALUE_BYTES_MAX} at most"
    );
    let value = in_time(objects.whole(&object)).await?;
    Ok(value.map(|value| (object.name.into(), value)))
}

/// What an object store answers to one request.
async fn in_time<T>(asked: impl Future<Output = Result<T, ColdError>>) -> Result<T, ColdError> {
    let late = || ColdError::Unavailable(format!("it did not answer within {} s", COPY_TIMEOUT.as_secs()));
    Env::real().timeout(COPY_TIMEOUT, asked).await.unwrap_or_else(|| Err(late()))
}

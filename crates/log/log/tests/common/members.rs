//! Processes that share the shards of logs: on the same metadata, and the same segments in memory.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tailwater_env::Env;
use tailwater_format::{ShardNumber, StreamId, Term};
use tailwater_log::{AppendError, Log, LogConfig, ShardMember, ShardSharing, SharedMetadata, StreamConfig};
use tailwater_meta::Meta;
use tailwater_store::OpenSegments;

use super::told::ToldStore;
use super::{config, open_with, shard};

pub const SHARDS: u32 = 12;

/// What processes share.
pub struct World {
    pub env: Env,
    pub dir: tempfile::TempDir,
    pub store: ToldStore,
    /// Whose own metadata is the others', too.
    pub meta: Log,
}

/// A process.
pub struct Member {
    pub log: Log,
    pub sharing: ShardSharing,
    pub member: ShardMember,
}

impl World {
    pub async fn new(env: &Env) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let meta = open_with(env, &dir.path().join("meta"), config()).await;
        Self { env: env.clone(), dir, store: ToldStore::default(), meta }
    }

    pub async fn start(&self, id: &str) -> Member {
        self.start_on(id, Arc::clone(self.meta.meta())).await
    }

    /// One that reaches metadata by `meta`.
    pub async fn start_on(&self, id: &str, meta: Arc<dyn Meta>) -> Member {
        let log = self.open(id, meta, true).await;
        let member = ShardMember { id: id.to_owned(), owner: log.owner_number(), takes: true };
        Member { sharing: ShardSharing::new(&log).expect("it shares"), log, member }
    }

    pub async fn open(&self, id: &str, meta: Arc<dyn Meta>, is_shared: bool) -> Log {
        let segments: Option<Arc<dyn OpenSegments>> = Some(Arc::new(self.store.clone()));
        let metadata =
            SharedMetadata { meta, place: "here".to_owned(), cluster: uuid::Uuid::from_u128(7), is_shared };
        let config = LogConfig { segments, metadata: Some(metadata), ..config() };
        open_with(&self.env, &self.dir.path().join(id), config).await
    }

    /// Lets `there` look, as if they and nobody else were there, until it is as `wanted`.
    pub async fn look_until(&self, there: &mut [&mut Member], wanted: impl Fn(&[&mut Member]) -> bool) {
        while !wanted(there) {
            let members: Vec<ShardMember> = there.iter().map(|member| member.member.clone()).collect();
            for member in &mut *there {
                member.sharing.seen().look(self.env.now(), &members);
                member.sharing.look(&members).await.expect("metadata answers");
            }
            self.env.sleep(Duration::from_millis(20)).await;
        }
    }
}

pub fn in_world<F: Future<Output = ()>>(test: impl FnOnce(World) -> F) {
    super::in_world(|env| async move { test(World::new(&env).await).await });
}

impl Member {
    pub fn owns(&self, stream: StreamId, number: u32) -> bool {
        self.log.tails(stream, &[ShardNumber(number)]).is_ok()
    }

    pub async fn append(&self, stream: StreamId, number: u32, batches: Bytes) -> Result<Term, AppendError> {
        self.log.append(stream, ShardNumber(number), batches).await.map(|answer| answer.term)
    }
}

pub async fn stream(member: &Member) -> StreamId {
    let config = StreamConfig { shards: SHARDS, ..StreamConfig::default() };
    member.log.create_stream("s", config).await.expect("created").id
}

/// Whether every shard has its owner, and all know which it is.
pub fn all_owned(there: &[&mut Member]) -> bool {
    let Ok(stream) = there[0].log.stream("s") else { return false };
    let numbers = (0..SHARDS).map(|number| shard(stream.id, number));
    let is_known = |member: &&mut Member| {
        numbers.clone().all(|shard| {
            let owner = member.log.shard_owner(shard).map(|owner| owner.owner);
            there.iter().any(|member| Some(member.member.owner) == owner)
        })
    };
    let owned = there.iter().map(|member| member.log.shards_owned()).sum::<usize>();
    owned == SHARDS as usize && there.iter().all(is_known)
}

//! Statements, and their levels.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt;
use scylla::client::execution_profile::ExecutionProfile;
use scylla::client::session::Session;
use scylla::client::session_builder::SessionBuilder;
use scylla::deserialize::row::DeserializeRow;
use scylla::response::query_result::QueryResult;
use scylla::serialize::row::SerializeRow;
use scylla::statement::batch::{Batch, BatchType};
use scylla::statement::prepared::PreparedStatement;
use scylla::statement::{Consistency as Level, SerialConsistency};
use scylla::value::{CqlValue, MaybeUnset, Row};
use tailwater_queue::limits::REPORT_S;
use tailwater_queue::shared::rows::{
    Body, Done, GroupKey, Letter, Record, RowCell, RowKind, RowPartition, Rows, RowsError, Tuple, stamp,
};
use tailwater_queue::{Consistency, FrontReport, Number, QueueId};

use crate::config::CassandraConfig;
use crate::schema::{TABLES, replication};

/// How long a change of the schema may take.
const SETUP_TIMEOUT: Duration = Duration::from_secs(30);

/// A statement, at both levels.
struct Statement {
    one: PreparedStatement,
    quorum: PreparedStatement,
}

/// The rows of one keyspace.
pub struct CassandraRows {
    session: Session,
    tuples: Statement,
    tuple: Statement,
    put_tuple: Statement,
    delete_tuple: Statement,
    body: Statement,
    put_body: Statement,
    delete_body: Statement,
    bodies: Statement,
    put_bucket: Statement,
    buckets: Statement,
    delete_bucket: Statement,
    clear_tuples: Statement,
    clear_bodies: Statement,
    floor: Statement,
    put_floor: Statement,
    forward: Statement,
    put_forward: Statement,
    letters: Statement,
    put_letter: Statement,
    put_report: Statement,
    reports: Statement,
    fifo: ConditionalStatements,
}

/// What FIFO queues, names and settings need: statements that compare, at one level each.
struct ConditionalStatements {
    record: PreparedStatement,
    records: PreparedStatement,
    insert_record: PreparedStatement,
    update_record: PreparedStatement,
    delete_record: PreparedStatement,
    cells: PreparedStatement,
    cells_from: PreparedStatement,
    first_cell: PreparedStatement,
    put_cell: PreparedStatement,
    delete_cell: PreparedStatement,
}

/// What the columns of a row are taken as.
trait AnyRow: for<'frame, 'metadata> DeserializeRow<'frame, 'metadata> {}

impl<R: for<'frame, 'metadata> DeserializeRow<'frame, 'metadata>> AnyRow for R {}

impl std::fmt::Debug for CassandraRows {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("CassandraRows")
    }
}

fn error(error: impl std::fmt::Display) -> RowsError {
    RowsError(format!("Cassandra: {error}"))
}

/// CQL has signed numbers only. All of ours are below 2^63: times, numbers with times in them, counts.
fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn unsigned(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}

fn kind_of(kind: RowKind) -> i32 {
    match kind {
        RowKind::Tuples => 0,
        RowKind::Bodies => 1,
    }
}

/// Queue, bucket, part, as statements want them.
fn partition(at: RowPartition) -> (i64, i64, i32) {
    (signed(at.queue.0), signed(at.bucket), at.part.into())
}

impl ConditionalStatements {
    async fn prepare(session: &Session, keyspace: &str) -> Result<Self, RowsError> {
        // A majority decides about a write, and a read at a majority sees what was decided. One whose outcome nobody
        // knows may be decided later: whoever compares by it finds out.
        let conditional = async |cql: String| {
            let mut prepared = session.prepare(cql).await.map_err(error)?;
            prepared.set_consistency(Level::Quorum);
            Ok::<_, RowsError>(prepared)
        };
        let k = keyspace;
        Ok(Self {
            record: conditional(format!(
                "SELECT value, version FROM {k}.records WHERE space = ? AND key = ?"
            ))
            .await?,
            records: conditional(format!("SELECT key, value, version FROM {k}.records WHERE space = ?"))
                .await?,
            insert_record: conditional(format!(
                "INSERT INTO {k}.records (space, key, value, version) VALUES (?, ?, ?, 1) IF NOT EXISTS \
                 USING TTL ?"
            ))
            .await?,
            update_record: conditional(format!(
                "UPDATE {k}.records USING TTL ? SET value = ?, version = ? WHERE space = ? AND key = ? \
                 IF version = ?"
            ))
            .await?,
            delete_record: conditional(format!(
                "DELETE FROM {k}.records WHERE space = ? AND key = ? IF version = ?"
            ))
            .await?,
            cells: conditional(format!(
                "SELECT cell, value, version FROM {k}.groups WHERE queue = ? AND grp = ? AND cell IN ?"
            ))
            .await?,
            cells_from: conditional(format!(
                "SELECT cell, value, version FROM {k}.groups WHERE queue = ? AND grp = ? AND cell >= ? \
                 AND cell < ? LIMIT ?"
            ))
            .await?,
            // Of one that is not there the version is null, and that is what it is compared with.
            first_cell: conditional(format!(
                "UPDATE {k}.groups USING TTL ? SET value = ?, version = ? \
                 WHERE queue = ? AND grp = ? AND cell = ? IF version = ?"
            ))
            .await?,
            put_cell: conditional(format!(
                "INSERT INTO {k}.groups (queue, grp, cell, value) VALUES (?, ?, ?, ?) USING TTL ?"
            ))
            .await?,
            delete_cell: conditional(format!(
                "DELETE FROM {k}.groups WHERE queue = ? AND grp = ? AND cell = ?"
            ))
            .await?,
        })
    }
}

impl CassandraRows {
    /// Connects, and creates keyspace and tables if they are not there.
    pub async fn connect(config: &CassandraConfig) -> Result<Self, RowsError> {
        let timeout = Duration::from_millis(config.request_timeout_ms);
        let profile = ExecutionProfile::builder()
            .request_timeout(Some(timeout))
            .serial_consistency(Some(SerialConsistency::Serial))
            .build();
        let mut builder = SessionBuilder::new()
            .known_nodes(&config.contact_points)
            .default_execution_profile_handle(profile.into_handle())
            .connection_timeout(timeout.max(Duration::from_secs(5)))
            .schema_agreement_timeout(SETUP_TIMEOUT);
        if !config.user.is_empty() {
            builder = builder.user(&config.user, config.password.text());
        }
        if !config.local_datacenter.is_empty() {
            builder = builder.prefer_datacenter(config.local_datacenter.clone());
        }
        let session = builder.build().await.map_err(error)?;
        create(&session, config).await?;
        Self::prepare(session, &config.keyspace).await
    }

    async fn prepare(session: Session, keyspace: &str) -> Result<Self, RowsError> {
        let at = "queue = ? AND bucket = ? AND part = ?";
        let both = async |cql: String| {
            let mut one = session.prepare(cql).await.map_err(error)?;
            // All of them can be done twice.
            one.set_is_idempotent(true);
            let mut quorum = one.clone();
            one.set_consistency(Level::One);
            quorum.set_consistency(Level::Quorum);
            Ok::<_, RowsError>(Statement { one, quorum })
        };
        let k = keyspace;
        let columns = "visible_at, number, moves, receives, first_received_at, received_at";
        Ok(Self {
            tuples: both(format!(
                "SELECT {columns} FROM {k}.tuples WHERE {at} AND visible_at >= ? AND visible_at <= ? LIMIT ?"
            ))
            .await?,
            tuple: both(format!(
                "SELECT {columns} FROM {k}.tuples WHERE {at} AND visible_at = ? AND number = ?"
            ))
            .await?,
            put_tuple: both(format!(
                "INSERT INTO {k}.tuples (queue, bucket, part, {columns}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) \
                 USING TIMESTAMP ?"
            ))
            .await?,
            delete_tuple: both(format!(
                "DELETE FROM {k}.tuples USING TIMESTAMP ? WHERE {at} AND visible_at = ? AND number = ?"
            ))
            .await?,
            body: both(format!(
                "SELECT content, source, origin, grp FROM {k}.bodies WHERE {at} AND number = ?"
            ))
            .await?,
            put_body: both(format!(
                "INSERT INTO {k}.bodies (queue, bucket, part, number, content, source, origin, grp) \
                 VALUES (?, ?, ?, ?, ?, ?, ?, ?) USING TIMESTAMP ?"
            ))
            .await?,
            delete_body: both(format!("DELETE FROM {k}.bodies USING TIMESTAMP ? WHERE {at} AND number = ?"))
                .await?,
            bodies: both(format!("SELECT number, grp FROM {k}.bodies WHERE {at} AND number > ? LIMIT ?"))
                .await?,
            put_bucket: both(format!(
                "INSERT INTO {k}.buckets (queue, kind, bucket) VALUES (?, ?, ?) USING TIMESTAMP ?"
            ))
            .await?,
            buckets: both(format!(
                "SELECT bucket FROM {k}.buckets WHERE queue = ? AND kind = ? AND bucket >= ? LIMIT ?"
            ))
            .await?,
            delete_bucket: both(format!(
                "DELETE FROM {k}.buckets USING TIMESTAMP ? WHERE queue = ? AND kind = ? AND bucket = ?"
            ))
            .await?,
            clear_tuples: both(format!("DELETE FROM {k}.tuples USING TIMESTAMP ? WHERE {at}")).await?,
            clear_bodies: both(format!("DELETE FROM {k}.bodies USING TIMESTAMP ? WHERE {at}")).await?,
            floor: both(format!("SELECT bucket FROM {k}.floors WHERE queue = ? AND kind = ?")).await?,
            put_floor: both(format!(
                "INSERT INTO {k}.floors (queue, kind, bucket) VALUES (?, ?, ?) USING TIMESTAMP ?"
            ))
            .await?,
            forward: both(format!(
                "SELECT visible_at, moves FROM {k}.forwards WHERE queue = ? AND number = ? AND receive = ?"
            ))
            .await?,
            put_forward: both(format!(
                "INSERT INTO {k}.forwards (queue, number, receive, visible_at, moves) VALUES (?, ?, ?, ?, ?) \
                 USING TIMESTAMP ?"
            ))
            .await?,
            letters: both(format!(
                "SELECT target, bucket, part, letter FROM {k}.letters WHERE queue = ? AND number = ? LIMIT ?"
            ))
            .await?,
            put_letter: both(format!(
                "INSERT INTO {k}.letters (queue, number, target, letter, bucket, part) VALUES (?, ?, ?, ?, ?, ?) \
                 USING TIMESTAMP ?"
            ))
            .await?,
            put_report: both(format!(
                "INSERT INTO {k}.reports (part, front, number, value) VALUES (0, ?, ?, ?) \
                 USING TTL ? AND TIMESTAMP ?"
            ))
            .await?,
            reports: both(format!("SELECT front, number, value FROM {k}.reports WHERE part = 0")).await?,
            fifo: ConditionalStatements::prepare(&session, keyspace).await?,
            session,
        })
    }

    async fn execute(
        &self,
        prepared: &PreparedStatement,
        values: impl SerializeRow,
    ) -> Result<QueryResult, RowsError> {
        self.session.execute_unpaged(prepared, values).await.map_err(error)
    }

    /// The rows that a statement reads.
    async fn read<R: AnyRow>(
        &self,
        prepared: &PreparedStatement,
        values: impl SerializeRow,
    ) -> Result<Vec<R>, RowsError> {
        let rows = self.execute(prepared, values).await?.into_rows_result().map_err(error)?;
        rows.rows::<R>().map_err(error)?.map(|row| row.map_err(error)).collect()
    }

    /// The row that a statement reads, if it is there.
    async fn read_one<R: AnyRow>(
        &self,
        prepared: &PreparedStatement,
        values: impl SerializeRow,
    ) -> Result<Option<R>, RowsError> {
        let rows = self.execute(prepared, values).await?.into_rows_result().map_err(error)?;
        rows.maybe_first_row::<R>().map_err(error)
    }

    async fn write(&self, prepared: &PreparedStatement, values: impl SerializeRow) -> Result<(), RowsError> {
        self.execute(prepared, values).await.map(|_| ())
    }

    /// Whether a conditional write was done: the first column says it.
    async fn applied(
        &self,
        prepared: &PreparedStatement,
        values: impl SerializeRow,
    ) -> Result<bool, RowsError> {
        is_applied(self.execute(prepared, values).await?)
    }
}

fn is_applied(result: QueryResult) -> Result<bool, RowsError> {
    let rows = result.into_rows_result().map_err(error)?;
    let row: Row = rows.first_row().map_err(error)?;
    let applied = row.columns.first().and_then(Option::as_ref).and_then(|value| value.as_boolean());
    applied.ok_or_else(|| error("a conditional write did not say whether it was done"))
}

fn cell_of((key, value, version): (Bytes, Option<Bytes>, Option<i64>)) -> RowCell {
    RowCell { key, value: value.unwrap_or_default(), version: version.map_or(0, unsigned), ttl_s: 0 }
}

fn record_of(value: Option<Bytes>, version: Option<i64>) -> Option<Record> {
    Some(Record { value: value?, version: unsigned(version?) })
}

impl Statement {
    fn at(&self, level: Consistency) -> &PreparedStatement {
        match level {
            Consistency::One => &self.one,
            Consistency::Quorum => &self.quorum,
        }
    }
}

/// Creates what is not there. Looking first: that many front ends create the same at once is what Cassandra likes
/// least.
async fn create(session: &Session, config: &CassandraConfig) -> Result<(), RowsError> {
    let keyspace = &config.keyspace;
    let there = session
        .query_unpaged("SELECT table_name FROM system_schema.tables WHERE keyspace_name = ?", (keyspace,))
        .await
        .map_err(error)?
        .into_rows_result()
        .map_err(error)?;
    let there: Vec<String> = there
        .rows::<(String,)>()
        .map_err(error)?
        .map(|row| Ok(row.map_err(error)?.0))
        .collect::<Result<_, RowsError>>()?;
    if TABLES.iter().all(|(table, _)| there.iter().any(|name| name == table)) {
        return Ok(());
    }
    let replication = replication(config);
    let mut statements =
        vec![format!("CREATE KEYSPACE IF NOT EXISTS {keyspace} WITH replication = {replication}")];
    statements.extend(
        TABLES
            .iter()
            .map(|(table, columns)| format!("CREATE TABLE IF NOT EXISTS {keyspace}.{table} {columns}")),
    );
    for cql in statements {
        let mut statement = scylla::statement::unprepared::Statement::new(cql);
        statement.set_request_timeout(Some(SETUP_TIMEOUT));
        session.query_unpaged(statement, ()).await.map_err(error)?;
    }
    Ok(())
}

type TupleRow = (i64, i64, i32, i32, i64, i64);
type BodyRow = (Option<Bytes>, Option<String>, Option<i64>, Option<i64>);

fn tuple_of((visible_at, number, moves, receives, first_received_at, received_at): TupleRow) -> Tuple {
    Tuple {
        visible_at: unsigned(visible_at),
        number: Number(unsigned(number)),
        moves: moves.unsigned_abs(),
        receives: u16::try_from(receives).unwrap_or(u16::MAX),
        first_received_at: unsigned(first_received_at),
        received_at: unsigned(received_at),
    }
}

impl Rows for CassandraRows {
    fn tuples(
        &self,
        level: Consistency,
        at: RowPartition,
        from: u64,
        upto: u64,
        most: usize,
    ) -> Done<'_, Vec<Tuple>> {
        let (queue, bucket, part) = partition(at);
        let most = i32::try_from(most).unwrap_or(i32::MAX);
        let values = (queue, bucket, part, signed(from), signed(upto), most);
        async move {
            let rows = self.read(self.tuples.at(level), values).await?;
            Ok(rows.into_iter().map(tuple_of).collect())
        }
        .boxed()
    }

    fn tuple(
        &self,
        level: Consistency,
        at: RowPartition,
        visible_at: u64,
        number: Number,
    ) -> Done<'_, Option<Tuple>> {
        let (queue, bucket, part) = partition(at);
        async move {
            let values = (queue, bucket, part, signed(visible_at), signed(number.0));
            Ok(self.read_one(self.tuple.at(level), values).await?.map(tuple_of))
        }
        .boxed()
    }

    fn put_tuple(&self, level: Consistency, at: RowPartition, tuple: Tuple) -> Done<'_, ()> {
        let (queue, bucket, part) = partition(at);
        let Tuple { visible_at, number, moves, receives, first_received_at, received_at } = tuple;
        let values = (
            (queue, bucket, part, signed(visible_at), signed(number.0)),
            (i32::try_from(moves).unwrap_or(i32::MAX), i32::from(receives)),
            (signed(first_received_at), signed(received_at), stamp(number, moves)),
        );
        async move {
            let ((queue, bucket, part, visible_at, number), (moves, receives), (first, last, stamp)) = values;
            let values = (queue, bucket, part, visible_at, number, moves, receives, first, last, stamp);
            self.write(self.put_tuple.at(level), values).await
        }
        .boxed()
    }

    fn delete_tuple(&self, level: Consistency, at: RowPartition, tuple: Tuple) -> Done<'_, ()> {
        let (queue, bucket, part) = partition(at);
        let stamp = stamp(tuple.number, tuple.moves) + 1;
        async move {
            let values = (stamp, queue, bucket, part, signed(tuple.visible_at), signed(tuple.number.0));
            self.write(self.delete_tuple.at(level), values).await
        }
        .boxed()
    }

    fn body(&self, level: Consistency, at: RowPartition, number: Number) -> Done<'_, Option<Body>> {
        let (queue, bucket, part) = partition(at);
        async move {
            let values = (queue, bucket, part, signed(number.0));
            let row: Option<BodyRow> = self.read_one(self.body.at(level), values).await?;
            let Some((Some(content), source, origin, group)) = row else { return Ok(None) };
            let source = source.zip(origin).map(|(source, origin)| (source, Number(unsigned(origin))));
            Ok(Some(Body { content, source, group: group.map(|group| GroupKey(unsigned(group))) }))
        }
        .boxed()
    }

    fn put_body(&self, level: Consistency, at: RowPartition, number: Number, body: Body) -> Done<'_, ()> {
        let (queue, bucket, part) = partition(at);
        async move {
            let (source, origin) = body.source.map(|(source, origin)| (source, signed(origin.0))).unzip();
            // Not null, which would be a deletion of its own.
            let (source, origin) = (MaybeUnset::from_option(source), MaybeUnset::from_option(origin));
            let group = MaybeUnset::from_option(body.group.map(|group| signed(group.0)));
            let (content, number_stamp) = (body.content, stamp(number, 0));
            let values =
                (queue, bucket, part, signed(number.0), content, source, origin, group, number_stamp);
            self.write(self.put_body.at(level), values).await
        }
        .boxed()
    }

    fn delete_body(&self, level: Consistency, at: RowPartition, number: Number) -> Done<'_, ()> {
        let (queue, bucket, part) = partition(at);
        async move {
            let values = (stamp(number, 0) + 1, queue, bucket, part, signed(number.0));
            self.write(self.delete_body.at(level), values).await
        }
        .boxed()
    }

    fn bodies(
        &self,
        level: Consistency,
        at: RowPartition,
        after: Number,
        most: usize,
    ) -> Done<'_, Vec<(Number, Option<GroupKey>)>> {
        let (queue, bucket, part) = partition(at);
        async move {
            let most = i32::try_from(most).unwrap_or(i32::MAX);
            let values = (queue, bucket, part, signed(after.0), most);
            let rows: Vec<(i64, Option<i64>)> = self.read(self.bodies.at(level), values).await?;
            let group = |group: Option<i64>| group.map(|group| GroupKey(unsigned(group)));
            Ok(rows.into_iter().map(|(number, of)| (Number(unsigned(number)), group(of))).collect())
        }
        .boxed()
    }

    fn put_bucket(&self, level: Consistency, queue: QueueId, kind: RowKind, bucket: u64) -> Done<'_, ()> {
        async move {
            // One that was taken from the list does not come back.
            let values = (signed(queue.0), kind_of(kind), signed(bucket), 2_i64);
            self.write(self.put_bucket.at(level), values).await
        }
        .boxed()
    }

    fn buckets(
        &self,
        level: Consistency,
        queue: QueueId,
        kind: RowKind,
        from: u64,
        most: usize,
    ) -> Done<'_, Vec<u64>> {
        async move {
            let most = i32::try_from(most).unwrap_or(i32::MAX);
            let values = (signed(queue.0), kind_of(kind), signed(from), most);
            let rows: Vec<(i64,)> = self.read(self.buckets.at(level), values).await?;
            Ok(rows.into_iter().map(|(bucket,)| unsigned(bucket)).collect())
        }
        .boxed()
    }

    fn clear(&self, level: Consistency, kind: RowKind, at: RowPartition, upto_us: i64) -> Done<'_, ()> {
        let (queue, bucket, part) = partition(at);
        async move {
            let statement = match kind {
                RowKind::Tuples => &self.clear_tuples,
                RowKind::Bodies => &self.clear_bodies,
            };
            self.write(statement.at(level), (upto_us, queue, bucket, part)).await
        }
        .boxed()
    }

    fn delete_bucket(&self, level: Consistency, queue: QueueId, kind: RowKind, bucket: u64) -> Done<'_, ()> {
        async move {
            let values = (3_i64, signed(queue.0), kind_of(kind), signed(bucket));
            self.write(self.delete_bucket.at(level), values).await
        }
        .boxed()
    }

    fn floor(&self, level: Consistency, queue: QueueId, kind: RowKind) -> Done<'_, u64> {
        async move {
            let values = (signed(queue.0), kind_of(kind));
            Ok(self.read_one(self.floor.at(level), values).await?.map_or(0, |(floor,)| unsigned(floor)))
        }
        .boxed()
    }

    fn put_floor(&self, level: Consistency, queue: QueueId, kind: RowKind, bucket: u64) -> Done<'_, ()> {
        async move {
            // Its timestamp is what it says: the greatest stays.
            let bucket = signed(bucket);
            let values = (signed(queue.0), kind_of(kind), bucket, bucket);
            self.write(self.put_floor.at(level), values).await
        }
        .boxed()
    }

    fn forward(
        &self,
        level: Consistency,
        queue: QueueId,
        number: Number,
        token: u32,
    ) -> Done<'_, Option<(u64, u32)>> {
        async move {
            let values = (signed(queue.0), signed(number.0), i64::from(token));
            let place = |(visible_at, moves): (i64, i64)| {
                (unsigned(visible_at), u32::try_from(moves).unwrap_or(u32::MAX))
            };
            Ok(self.read_one(self.forward.at(level), values).await?.map(place))
        }
        .boxed()
    }

    fn put_forward(
        &self,
        level: Consistency,
        queue: QueueId,
        number: Number,
        token: u32,
        (visible_at, moves): (u64, u32),
    ) -> Done<'_, ()> {
        async move {
            let token = i64::from(token);
            let values = (
                signed(queue.0),
                signed(number.0),
                token,
                signed(visible_at),
                i64::from(moves),
                stamp(number, moves),
            );
            self.write(self.put_forward.at(level), values).await
        }
        .boxed()
    }

    fn put_letter(&self, level: Consistency, queue: QueueId, number: Number, letter: Letter) -> Done<'_, ()> {
        let (target, bucket, part) = partition(letter.at);
        let (queue, number, of) = (signed(queue.0), signed(number.0), signed(letter.number.0));
        async move {
            let values = (queue, number, target, of, bucket, part, stamp(letter.number, 0));
            self.write(self.put_letter.at(level), values).await
        }
        .boxed()
    }

    fn letters(
        &self,
        level: Consistency,
        queue: QueueId,
        number: Number,
        most: usize,
    ) -> Done<'_, Vec<Letter>> {
        async move {
            let most = i32::try_from(most).unwrap_or(i32::MAX);
            let values = (signed(queue.0), signed(number.0), most);
            let rows: Vec<(i64, i64, i32, i64)> = self.read(self.letters.at(level), values).await?;
            let letters = rows.into_iter().map(|(target, bucket, part, number)| {
                let part = u16::try_from(part).map_err(error)?;
                let at = RowPartition { queue: QueueId(unsigned(target)), bucket: unsigned(bucket), part };
                Ok(Letter { at, number: Number(unsigned(number)) })
            });
            letters.collect()
        }
        .boxed()
    }

    fn put_report(&self, FrontReport { front, number, value }: FrontReport) -> Done<'_, ()> {
        async move {
            let ttl_s = i32::try_from(REPORT_S).unwrap_or(i32::MAX);
            // Its number is its timestamp, too: of two that are late the last one stays.
            let values = (signed(front), signed(number), value, ttl_s, signed(number));
            self.write(&self.put_report.quorum, values).await
        }
        .boxed()
    }

    fn reports(&self) -> Done<'_, Vec<FrontReport>> {
        async move {
            let rows: Vec<(i64, Option<i64>, Option<Bytes>)> = self.read(&self.reports.quorum, ()).await?;
            let reports = rows.into_iter().filter_map(|(front, number, value)| {
                let (front, number) = (unsigned(front), unsigned(number?));
                Some(FrontReport { front, number, value: value? })
            });
            Ok(reports.collect())
        }
        .boxed()
    }

    fn record<'a>(&'a self, space: &'a str, key: &'a str) -> Done<'a, Option<Record>> {
        async move {
            let row = self.read_one(&self.fifo.record, (space, key)).await?;
            Ok(row.and_then(|(value, version)| record_of(value, version)))
        }
        .boxed()
    }

    fn records<'a>(&'a self, space: &'a str) -> Done<'a, Vec<(String, Record)>> {
        async move {
            let rows = self.read(&self.fifo.records, (space,)).await?.into_iter();
            Ok(rows.filter_map(|(key, value, version)| Some((key, record_of(value, version)?))).collect())
        }
        .boxed()
    }

    fn write_record<'a>(
        &'a self,
        space: &'a str,
        key: &'a str,
        value: Option<Bytes>,
        expected: Option<u64>,
        ttl_s: u32,
    ) -> Done<'a, bool> {
        async move {
            let ttl_s = i32::try_from(ttl_s).unwrap_or(i32::MAX);
            match (value, expected) {
                (Some(value), None) => {
                    self.applied(&self.fifo.insert_record, (space, key, value, ttl_s)).await
                }
                (Some(value), Some(expected)) => {
                    let (version, expected) = (signed(expected + 1), signed(expected));
                    self.applied(&self.fifo.update_record, (ttl_s, value, version, space, key, expected))
                        .await
                }
                (None, Some(expected)) => {
                    self.applied(&self.fifo.delete_record, (space, key, signed(expected))).await
                }
                (None, None) => Ok(self.record(space, key).await?.is_none()),
            }
        }
        .boxed()
    }

    fn cells(&self, queue: QueueId, group: GroupKey, keys: Vec<Bytes>) -> Done<'_, Vec<RowCell>> {
        async move {
            let values = (signed(queue.0), signed(group.0), keys);
            let cells = self.read(&self.fifo.cells, values).await?;
            Ok(cells.into_iter().map(cell_of).collect())
        }
        .boxed()
    }

    fn cells_from(
        &self,
        queue: QueueId,
        group: GroupKey,
        from: Bytes,
        upto: Bytes,
        most: usize,
    ) -> Done<'_, Vec<RowCell>> {
        async move {
            let most = i32::try_from(most).unwrap_or(i32::MAX);
            let values = (signed(queue.0), signed(group.0), from, upto, most);
            let cells = self.read(&self.fifo.cells_from, values).await?;
            Ok(cells.into_iter().map(cell_of).collect())
        }
        .boxed()
    }

    fn write_cells(
        &self,
        queue: QueueId,
        group: GroupKey,
        expected: u64,
        cells: Vec<RowCell>,
        gone: Vec<Bytes>,
    ) -> Done<'_, bool> {
        async move {
            // Statements of one partition, one of which compares: all are done, or none.
            let mut batch = Batch::new(BatchType::Unlogged);
            batch.set_consistency(Level::Quorum);
            batch.set_serial_consistency(Some(SerialConsistency::Serial));
            let mut values: Vec<Vec<Option<CqlValue>>> = Vec::with_capacity(cells.len() + gone.len());
            let big = |number: u64| Some(CqlValue::BigInt(signed(number)));
            let blob = |bytes: &Bytes| Some(CqlValue::Blob(bytes.to_vec()));
            for (number, cell) in cells.iter().enumerate() {
                let ttl = Some(CqlValue::Int(i32::try_from(cell.ttl_s).unwrap_or(i32::MAX)));
                let (key, value) = (blob(&cell.key), blob(&cell.value));
                if number == 0 {
                    batch.append_statement(self.fifo.first_cell.clone());
                    let before = Some(expected).filter(|expected| *expected > 0).and_then(big);
                    values.push(vec![ttl, value, big(cell.version), big(queue.0), big(group.0), key, before]);
                } else {
                    batch.append_statement(self.fifo.put_cell.clone());
                    values.push(vec![big(queue.0), big(group.0), key, value, ttl]);
                }
            }
            for key in &gone {
                batch.append_statement(self.fifo.delete_cell.clone());
                values.push(vec![big(queue.0), big(group.0), blob(key)]);
            }
            is_applied(self.session.batch(&batch, values).await.map_err(error)?)
        }
        .boxed()
    }
}

/// Connects, as what the shared store stands on.
impl CassandraRows {
    /// As [`CassandraRows::connect`], to be shared.
    pub async fn shared(config: &CassandraConfig) -> Result<Arc<dyn Rows>, RowsError> {
        Ok(Arc::new(Self::connect(config).await?))
    }
}

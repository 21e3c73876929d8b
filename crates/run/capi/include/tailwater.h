// libtailwater: cells and the one-sided consumer of the log.
//
// Everything that may fail or take time is an operation. It begins in the call that starts it, on the caller's thread,
// and may be done when that returns. Otherwise it goes on
//  - with a notifier, on the library's threads: the notifier says when it is done;
//  - without one, in tailwater_operation_wait. While nobody waits it stands still.
// An operation that is done has a status, a text that says what went wrong, and what it brought. Starting one never
// answers null.
//
// Ownership. What a function answers without const is the caller's, who frees it once. What was read is good until the
// handle that it came from is freed. What a call is given is copied, and may be freed when the call returns.
//
// Threads. Any threads may use a client, a cell, a consumer or a notifier at the same time. Calls about one operation
// must not overlap. Freeing a handle must not overlap with any other call about it.
//
// Forks. The child of a process that has used the library can't use it: operations end as TailwaterStatus_Forked. What
// it frees is left as it is. Children that are forked before the first use can use it.
//
// Choices are handed in as uint32_t, with the numbers of the enumeration that the parameter's description names.


#ifndef TAILWATER_H
#define TAILWATER_H

// Made from the crate `capi`: UPDATE=1 cargo test -p tailwater-capi --test abi.

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

// The version of this ABI that the header describes.
//
// A program that was built against another one must not go on: a field or a function may mean something else.
#define TAILWATER_ABI_VERSION 1

// Keys, items, seeds or shards in one call, at most: far more than one lookup asks for at once.
#define TAILWATER_ITEMS_MAX 65536

// Operations of one notifier that are under way, or done and not taken, at most. Each may wait for a backend that is
// gone as long as its deadline.
#define TAILWATER_NOTIFIER_OPERATIONS_MAX 65536

// The longest text that is taken, in bytes: an address, a name or a path.
#define TAILWATER_TEXT_BYTES_MAX 4096

// The longest deadline of a cell's operations, in milliseconds: an hour, as on the command line.
#define TAILWATER_DEADLINE_MS_MAX 3600000

// How a key's lookup ended.
typedef enum TailwaterFound {
  // With a value.
  TailwaterFound_Hit = 0,
  // There is none.
  TailwaterFound_Miss = 1,
  // Nothing can be said: there may be a value.
  TailwaterFound_Inconclusive = 2,
} TailwaterFound;

// What came of a change of a key.
typedef enum TailwaterChanged {
  // A quorum has it.
  TailwaterChanged_Applied = 0,
  // Nothing has changed: the key is at another version, which is told.
  TailwaterChanged_OtherVersion = 1,
  // Nothing has changed: the key has no value.
  TailwaterChanged_Absent = 2,
  // It was not acknowledged, for the reason that is told.
  TailwaterChanged_Failed = 3,
  // It may have been done, may be done later, or never.
  TailwaterChanged_Unknown = 4,
} TailwaterChanged;

// How an operation stands, or why it was not done.
typedef enum TailwaterStatus {
  // Done. What it brought may be taken.
  TailwaterStatus_Ok = 0,
  // Not done yet.
  TailwaterStatus_Pending = 1,
  // What was asked for makes no sense. The text says what to do.
  TailwaterStatus_InvalidArgument = 2,
  // Nobody answers there. The same may work later.
  TailwaterStatus_Unreachable = 3,
  // There was no answer in time. What was asked for may have been done.
  TailwaterStatus_Deadline = 4,
  // The caller may not do this.
  TailwaterStatus_NotAuthorized = 5,
  // There is no stream or cell of that name.
  TailwaterStatus_NotFound = 6,
  // Too much is under way. The same may work later.
  TailwaterStatus_Overloaded = 7,
  // Records that were due are removed. The consumer goes on with the oldest ones that are left.
  TailwaterStatus_Truncated = 8,
  // The stream was deleted.
  TailwaterStatus_Deleted = 9,
  // What is stored is damaged, or can't be read.
  TailwaterStatus_Corrupt = 10,
  // Another poll of the consumer is under way, or its batch was not taken.
  TailwaterStatus_Busy = 11,
  // The process is a fork of one that used the library.
  TailwaterStatus_Forked = 12,
  // The node refused for another reason.
  TailwaterStatus_Refused = 13,
  // A defect of the library.
  TailwaterStatus_Internal = 14,
} TailwaterStatus;

// How a cell looks keys up.
typedef enum TailwaterLookupMode {
  // What a majority of the replicas agrees on.
  TailwaterLookupMode_Consistent = 0,
  // What one replica has. It may be old.
  TailwaterLookupMode_Relaxed = 1,
} TailwaterLookupMode;

// Which way a client takes to a cell's memory.
typedef enum TailwaterTransport {
  // Shared memory on this host, TCP elsewhere.
  TailwaterTransport_Auto = 0,
  // Shared memory or nothing.
  TailwaterTransport_Shm = 1,
  // TCP even on this host.
  TailwaterTransport_Tcp = 2,
} TailwaterTransport;

// Where a consumer begins in a shard.
typedef enum TailwaterStartKind {
  // The oldest record there is.
  TailwaterStartKind_Earliest = 0,
  // Behind the newest record.
  TailwaterStartKind_Latest = 1,
  // The record at the offset `value`.
  TailwaterStartKind_Offset = 2,
  // `value` records before the end.
  TailwaterStartKind_Last = 3,
  // The first record at or after the time `value`, in milliseconds since 1970.
  TailwaterStartKind_TimeMs = 4,
} TailwaterStartKind;

// Records of one shard that come next. Opaque. What it says is good until it is freed. Any threads may read it.
typedef struct TailwaterBatch TailwaterBatch;

// A cell. Opaque. Any threads may use it at the same time.
typedef struct TailwaterCell TailwaterCell;

// A connection to a node. Opaque. All consumers of one read each record once.
typedef struct TailwaterClient TailwaterClient;

// Reads shards of a stream, in order for each. Opaque. Any threads may use it; one poll at a time is under way.
typedef struct TailwaterConsumer TailwaterConsumer;

// Says which operations are done. Opaque.
//
// Any number of threads may start operations with it. One at a time takes what it says.
typedef struct TailwaterNotifier TailwaterNotifier;

// Something that was asked for. Opaque.
//
// Calls about one operation must not overlap. Different operations are independent of each other.
typedef struct TailwaterOperation TailwaterOperation;

// Bytes somewhere in memory. `data` is null where there are none to be had, which is not the same as no bytes.
typedef struct TailwaterBytes {
  // The first one.
  const uint8_t *data;
  // How many.
  size_t len;
} TailwaterBytes;

// One header of a record.
typedef struct TailwaterHeader {
  // Its name, in UTF-8 and without a 0 at its end.
  struct TailwaterBytes name;
  // Its value. `data` is null if it has none.
  struct TailwaterBytes value;
} TailwaterHeader;

// One record. The bytes are where the library has read and checked them: nothing is copied.
typedef struct TailwaterRecord {
  // Its offset in the shard.
  uint64_t offset;
  // Its time in milliseconds since 1970; -1: it has none.
  int64_t timestamp_ms;
  // Its key. `data` is null if it has none.
  struct TailwaterBytes key;
  // Its value. `data` is null if it has none.
  struct TailwaterBytes value;
  // Its headers, in order; null if it has none.
  const struct TailwaterHeader *headers;
  // How many there are.
  size_t header_count;
} TailwaterRecord;

// How to connect. All zeros are the defaults, and so is a null pointer in place of it. A login is in the variables
// TAILWATER_LOGIN, TAILWATER_LOGIN_PASSWORD, TAILWATER_LOGIN_TOKEN and their like with _FILE.
typedef struct TailwaterOptions {
  // What the node's logs call this program. May be null.
  const char *name;
  // A PEM file with the CA of the servers' certificates: connections may be in TLS then. Null: they are not.
  const char *ca_file;
  // A PEM file with the certificate to show. May be null.
  const char *certificate_file;
  // A PEM file with its key. Null: it is in the certificate's file.
  const char *key_file;
  // Which way to the cells' memory: a number of TailwaterTransport. Cells that are opened by addresses go by those.
  uint32_t transport;
  // The longest that an operation of a cell takes, in milliseconds. 0: half a second, or as the node says.
  uint32_t deadline_ms;
} TailwaterOptions;

// A key, the value that it is to have, and for how long.
typedef struct TailwaterItem {
  // The key: 1 KiB at most.
  struct TailwaterBytes key;
  // The value: 1 MiB at most.
  struct TailwaterBytes value;
  // Milliseconds after which the key has no value any more. 0: it keeps it as long as the cell has room.
  uint64_t ttl_ms;
} TailwaterItem;

// Which change of a key a value is of. Versions are unique. A later one is greater: by time, then by client, then by
// sequence.
typedef struct TailwaterVersion {
  // Microseconds since 1970, by the clock of the client that made it.
  uint64_t timestamp_us;
  // Which client.
  uint32_t client_id;
  // Tells one client's versions of the same microsecond apart.
  uint32_t sequence;
} TailwaterVersion;

// What a lookup says of one key.
typedef struct TailwaterLookup {
  // How it ended.
  enum TailwaterFound found;
  // The version of the value, for a hit.
  struct TailwaterVersion version;
  // The value, for a hit. Good until the operation is freed.
  struct TailwaterBytes value;
  // When the value expires, in milliseconds since 1970; 0: it does not.
  uint64_t expires_ms;
  // Why nothing can be said, or an empty text. Good until the operation is freed.
  const char *why;
} TailwaterLookup;

// What came of the change of one key.
typedef struct TailwaterChange {
  // What.
  enum TailwaterChanged changed;
  // The version that the key has since, or the other one that it is at.
  struct TailwaterVersion version;
  // Why it was not made, or not known to be; an empty text if it was. Good until the operation is freed.
  const char *why;
} TailwaterChange;

// Where to begin.
typedef struct TailwaterStart {
  // A shard of the stream.
  uint32_t shard;
  // What `value` means: a number of TailwaterStartKind.
  uint32_t kind;
  // An offset, a number of records or a time, as `kind` says; else nothing.
  int64_t value;
} TailwaterStart;

// Where a consumer goes on in a shard.
typedef struct TailwaterPosition {
  // The shard.
  uint32_t shard;
  // The offset of the record that is handed out next.
  uint64_t next_offset;
} TailwaterPosition;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// The version of the ABI that the library has. Compare it with `TAILWATER_ABI_VERSION` of your header before anything
// else.
uint32_t tailwater_abi_version(void);

// The version of the library for people, as "0.1.0". Static.
const char *tailwater_version(void);

// Takes the records out of a poll that is done; null if nothing came in time. The caller frees the batch.
//
// Safety
// As `tailwater_operation_wait`.
struct TailwaterBatch *tailwater_operation_batch(struct TailwaterOperation *operation);

// The shard that the records are of; 0 for a null pointer.
//
// Safety
// `batch` is null, or is not freed.
uint32_t tailwater_batch_shard(const struct TailwaterBatch *batch);

// The offset behind the last record; 0 for a null pointer.
//
// Safety
// As `tailwater_batch_shard`.
uint64_t tailwater_batch_next_offset(const struct TailwaterBatch *batch);

// The records, and in `count` how many there are. Good until the batch is freed. Null and 0 for a null pointer.
//
// Safety
// As `tailwater_batch_shard`; `count` can be written to.
const struct TailwaterRecord *tailwater_batch_records(const struct TailwaterBatch *batch,
                                                      size_t *count);

// Frees the batch, and the memory that its records are in if nothing else reads there. A null pointer is nothing.
//
// Safety
// `batch` is null, or was made by this library and is not used again: neither are its records' bytes.
void tailwater_batch_free(struct TailwaterBatch *batch);

// Opens the cell that a backend at one of `seeds` belongs to: `unix:PATH`, `tcp:HOST:PORT` or `tls:HOST:PORT`, as
// `tailwater cell describe` shows them. The first one that answers tells of the others; each has two seconds.
// `tailwater_operation_cell` takes what it brings.
//
// Safety
// There are `count` texts at `seeds`, each ending with a 0; `options` is null or valid, `notifier` null or not freed.
struct TailwaterOperation *tailwater_cell_at(const char *const *seeds,
                                             size_t count,
                                             const struct TailwaterOptions *options,
                                             const struct TailwaterNotifier *notifier,
                                             uint64_t tag);

// Opens the cell of that name, which was created at the client's node. `deadline_ms` is the longest that one of its
// operations takes; 0: as the node says. The cell needs the client no more. `tailwater_operation_cell` takes what it
// brings.
//
// Safety
// `client` is not freed, `name` ends with a 0, `notifier` is null or not freed.
struct TailwaterOperation *tailwater_client_cell(const struct TailwaterClient *client,
                                                 const char *name,
                                                 uint32_t deadline_ms,
                                                 const struct TailwaterNotifier *notifier,
                                                 uint64_t tag);

// Looks `count` keys up, at once. `mode` is a number of TailwaterLookupMode. `tailwater_operation_lookups` has what it
// brings, in the order of the keys.
//
// Safety
// `cell` is not freed, there are `count` keys, `notifier` is null or not freed.
struct TailwaterOperation *tailwater_cell_get(const struct TailwaterCell *cell,
                                              const struct TailwaterBytes *keys,
                                              size_t count,
                                              uint32_t mode,
                                              const struct TailwaterNotifier *notifier,
                                              uint64_t tag);

// Sets `count` keys, at once. `tailwater_operation_changes` has what came of it, in their order.
//
// Safety
// `cell` is not freed, there are `count` items, `notifier` is null or not freed.
struct TailwaterOperation *tailwater_cell_set(const struct TailwaterCell *cell,
                                              const struct TailwaterItem *items,
                                              size_t count,
                                              const struct TailwaterNotifier *notifier,
                                              uint64_t tag);

// Sets a key if it is at the version `expected`, or has no value where that is null.
// `tailwater_operation_changes` has what came of it.
//
// Safety
// `cell` is not freed, `item` is valid, `expected` is null or valid, `notifier` is null or not freed.
struct TailwaterOperation *tailwater_cell_cas(const struct TailwaterCell *cell,
                                              const struct TailwaterItem *item,
                                              const struct TailwaterVersion *expected,
                                              const struct TailwaterNotifier *notifier,
                                              uint64_t tag);

// Deletes `count` keys, at once. `tailwater_operation_changes` has what came of it, in their order. A key that
// has no value is deleted, too.
//
// Safety
// As `tailwater_cell_get`.
struct TailwaterOperation *tailwater_cell_delete(const struct TailwaterCell *cell,
                                                 const struct TailwaterBytes *keys,
                                                 size_t count,
                                                 const struct TailwaterNotifier *notifier,
                                                 uint64_t tag);

// Takes the cell out of an operation that is done; null if there is none. The caller frees it.
//
// Safety
// As `tailwater_operation_wait`.
struct TailwaterCell *tailwater_operation_cell(struct TailwaterOperation *operation);

// What a lookup that is done says of each key, and in `count` of how many; null and 0 if there is nothing. Good until
// the operation is freed.
//
// Safety
// As `tailwater_operation_wait`; `count` can be written to.
const struct TailwaterLookup *tailwater_operation_lookups(struct TailwaterOperation *operation,
                                                          size_t *count);

// What came of the change of each key, and in `count` of how many; null and 0 if there is nothing. Good until the
// operation is freed.
//
// Safety
// As `tailwater_operation_lookups`.
const struct TailwaterChange *tailwater_operation_changes(struct TailwaterOperation *operation,
                                                          size_t *count);

// Frees the cell. A null pointer is nothing.
//
// Safety
// `cell` is null, or was made by this library and is not used again.
void tailwater_cell_free(struct TailwaterCell *cell);

// Connects to the node at `address`: `IP:PORT`, `tcp:IP:PORT`, `tls:IP:PORT` or `unix:/path`, as its `[listen] data`
// says. Gives up after five seconds. `tailwater_operation_client` takes what it brings.
//
// Safety
// `address` ends with a 0, `options` is null or valid, `notifier` is null or not freed.
struct TailwaterOperation *tailwater_client_open(const char *address,
                                                 const struct TailwaterOptions *options,
                                                 const struct TailwaterNotifier *notifier,
                                                 uint64_t tag);

// Takes the client out of an operation that is done; null if there is none. The caller frees it.
//
// Safety
// As `tailwater_operation_wait`.
struct TailwaterClient *tailwater_operation_client(struct TailwaterOperation *operation);

// Frees the client. Its consumers and cells go on. A null pointer is nothing.
//
// Safety
// `client` is null, or was made by this library and is not used again.
void tailwater_client_free(struct TailwaterClient *client);

// Opens a consumer of the stream of that name. It reads the `count` shards at `starts`, each from its own place on.
// With `is_every_shard` there is one start, whose shard means nothing: that of all shards.
// `tailwater_operation_consumer` takes what it brings.
//
// Safety
// `client` is not freed, `stream` ends with a 0, there are `count` starts, `notifier` is null or not freed.
struct TailwaterOperation *tailwater_consumer_open(const struct TailwaterClient *client,
                                                   const char *stream,
                                                   const struct TailwaterStart *starts,
                                                   size_t count,
                                                   bool is_every_shard,
                                                   const struct TailwaterNotifier *notifier,
                                                   uint64_t tag);

// Asks for the next records of any shard. It is done when there are some, or after `timeout_ms` milliseconds without
// any; a negative number is as long as it takes, and 0 takes only what is there. `tailwater_operation_batch` takes
// what it brings.
//
// One poll is under way at a time, and its batch is taken, or its operation freed, before the next one: else that one
// ends as `Busy`. After `Truncated` the next poll goes on with the oldest records that are left.
//
// Safety
// `consumer` is not freed, `notifier` is null or not freed.
struct TailwaterOperation *tailwater_consumer_poll(const struct TailwaterConsumer *consumer,
                                                   int64_t timeout_ms,
                                                   const struct TailwaterNotifier *notifier,
                                                   uint64_t tag);

// Where the consumer goes on in each shard, behind what was taken of it: what to store in order to go on from here.
// Writes `capacity` positions at most, and answers how many shards there are.
//
// Safety
// `consumer` is not freed, and there is room for so many positions. With null pointers nothing is written.
size_t tailwater_consumer_positions(const struct TailwaterConsumer *consumer,
                                    struct TailwaterPosition *positions,
                                    size_t capacity);

// Takes the consumer out of an operation that is done; null if there is none. The caller frees it.
//
// Safety
// As `tailwater_operation_wait`.
struct TailwaterConsumer *tailwater_operation_consumer(struct TailwaterOperation *operation);

// Frees the consumer. Batches that were taken stay as they are. A null pointer is nothing.
//
// Safety
// `consumer` is null, or was made by this library and is not used again.
void tailwater_consumer_free(struct TailwaterConsumer *consumer);

// A new notifier; null if the process has no file descriptor left.
struct TailwaterNotifier *tailwater_notifier_new(void);

// A file descriptor that can be read from while there are tags to be taken: for `poll`, `epoll` and the like. It is
// the notifier's: do not read, write or close it. -1 for a null pointer.
//
// Safety
// `notifier` is null, or is not freed.
int tailwater_notifier_fd(const struct TailwaterNotifier *notifier);

// Writes the tags of operations that are done to `tags`, `capacity` of them at most, and answers how many. They are
// the numbers that the operations were started with, in the order in which those ended. An operation that was done
// when it was started has none. One that was freed meanwhile may have one.
//
// Safety
// `notifier` is not freed, and there is room for so many numbers at `tags`. Null pointers take nothing.
size_t tailwater_notifier_take(const struct TailwaterNotifier *notifier,
                               uint64_t *tags,
                               size_t capacity);

// Frees the notifier. Operations that were started with it go on; nobody hears of them. A null pointer is nothing.
//
// Safety
// `notifier` is null, or was made by this library and is not used again.
void tailwater_notifier_free(struct TailwaterNotifier *notifier);

// Waits until the operation is done, for `timeout_ms` milliseconds at most; a negative number is as long as it takes.
// Answers how it stands: `Pending` if it is not done. It may be waited for again.
//
// An operation without a notifier is carried out in here.
//
// Safety
// `operation` is not freed, and no other call is about it meanwhile. A null pointer is an invalid argument.
enum TailwaterStatus tailwater_operation_wait(struct TailwaterOperation *operation,
                                              int64_t timeout_ms);

// How the operation stands. Never waits.
//
// Safety
// As `tailwater_operation_wait`.
enum TailwaterStatus tailwater_operation_status(struct TailwaterOperation *operation);

// Why the operation was not done, in words and in UTF-8; an empty text if there is nothing to say. Good until the
// operation is freed, or is waited for again.
//
// Safety
// As `tailwater_operation_wait`.
const char *tailwater_operation_error(const struct TailwaterOperation *operation);

// Frees the operation, and what it brought and was not taken. One that is not done is cancelled: a change of a key
// may have been made all the same. Records that a poll brought come with the next poll. A null pointer is nothing.
//
// Safety
// `operation` is null, or was made by this library and is not used again.
void tailwater_operation_free(struct TailwaterOperation *operation);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* TAILWATER_H */

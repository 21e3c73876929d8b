package tailwater

/*
#include <stdlib.h>
#include <tailwater.h>
*/
import "C"

import (
	"context"
	"time"
	"unsafe"
)

// Start is where a consumer begins in a shard.
type Start struct {
	kind  C.uint32_t
	value int64
}

var (
	// Earliest begins at the oldest record there is.
	Earliest = Start{kind: C.TailwaterStartKind_Earliest}
	// Latest begins behind the newest record.
	Latest = Start{kind: C.TailwaterStartKind_Latest}
)

// Offset begins at that offset.
func Offset(offset uint64) Start {
	// A number that is none of an offset's is refused as what it becomes.
	return Start{kind: C.TailwaterStartKind_Offset, value: int64(offset)}
}

// Last begins so many records before the end.
func Last(records uint32) Start { return Start{kind: C.TailwaterStartKind_Last, value: int64(records)} }

// At begins at the first record of that time or later.
func At(when time.Time) Start {
	return Start{kind: C.TailwaterStartKind_TimeMs, value: when.UnixMilli()}
}

// Consumer reads shards of a stream, in order for each. One poll at a time is under way.
type Consumer struct{ handle handle }

// Consumer opens a consumer of all shards of the stream of that name.
func (c *Client) Consumer(ctx context.Context, stream string, start Start) (*Consumer, error) {
	return c.consumer(ctx, stream, map[uint32]Start{0: start}, true)
}

// ConsumerOf opens a consumer of some shards of a stream, which begins in each at a place of its own.
func (c *Client) ConsumerOf(ctx context.Context, stream string, starts map[uint32]Start) (*Consumer, error) {
	return c.consumer(ctx, stream, starts, false)
}

func (c *Client) consumer(ctx context.Context, stream string, starts map[uint32]Start, every bool) (*Consumer, error) {
	var a arena
	defer a.free()
	first := (*C.TailwaterStart)(a.room(len(starts) * C.sizeof_TailwaterStart))
	array := unsafe.Slice(first, len(starts))
	at := 0
	for shard, start := range starts {
		array[at] = C.TailwaterStart{shard: C.uint32_t(shard), kind: start.kind, value: C.int64_t(start.value)}
		at++
	}
	return run(ctx, func(notifier *C.TailwaterNotifier, tag C.uint64_t) *C.TailwaterOperation {
		return c.handle.use(func(client unsafe.Pointer) *C.TailwaterOperation {
			given, count := (*C.TailwaterClient)(client), C.size_t(len(starts))
			return C.tailwater_consumer_open(given, a.text(stream), first, count, C.bool(every), notifier, tag)
		})
	}, func(operation *C.TailwaterOperation) (*Consumer, error) {
		consumer := &Consumer{}
		consumer.handle.pointer = unsafe.Pointer(C.tailwater_operation_consumer(operation))
		consumer.handle.release = func(pointer unsafe.Pointer) { C.tailwater_consumer_free((*C.TailwaterConsumer)(pointer)) }
		return consumer, nil
	})
}

// Poll waits for the next records of any shard, until the context ends. After an Error that says Truncated the next poll
// goes on with the oldest records that are left. Release the batch.
func (c *Consumer) Poll(ctx context.Context) (*Batch, error) {
	return run(ctx, func(notifier *C.TailwaterNotifier, tag C.uint64_t) *C.TailwaterOperation {
		return c.handle.use(func(consumer unsafe.Pointer) *C.TailwaterOperation {
			return C.tailwater_consumer_poll((*C.TailwaterConsumer)(consumer), -1, notifier, tag)
		})
	}, func(operation *C.TailwaterOperation) (*Batch, error) {
		pointer := C.tailwater_operation_batch(operation)
		var count C.size_t
		first := C.tailwater_batch_records(pointer, &count)
		return &Batch{
			Shard:      uint32(C.tailwater_batch_shard(pointer)),
			NextOffset: uint64(C.tailwater_batch_next_offset(pointer)),
			pointer:    pointer,
			records:    unsafe.Slice(first, int(count)),
		}, nil
	})
}

// Positions are the offsets that come next in each shard, behind what was polled: what to store in order to go on from
// here, with ConsumerOf and Offset.
func (c *Consumer) Positions() map[uint32]uint64 {
	positions := map[uint32]uint64{}
	c.handle.use(func(consumer unsafe.Pointer) *C.TailwaterOperation {
		array := make([]C.TailwaterPosition, C.tailwater_consumer_positions((*C.TailwaterConsumer)(consumer), nil, 0))
		if len(array) > 0 {
			C.tailwater_consumer_positions((*C.TailwaterConsumer)(consumer), &array[0], C.size_t(len(array)))
		}
		for _, position := range array {
			positions[uint32(position.shard)] = uint64(position.next_offset)
		}
		return nil
	})
	return positions
}

// Close lets go of the consumer. Batches stay good. A poll that is under way goes on until its context ends.
func (c *Consumer) Close() { c.handle.close() }

// Batch is records of one shard that come next, in order.
type Batch struct {
	// Shard is the shard.
	Shard uint32
	// NextOffset is the offset behind the last record.
	NextOffset uint64

	pointer *C.TailwaterBatch
	records []C.TailwaterRecord
}

// Record is one record. Its bytes are not copied: they are where the library has read and checked them, are not to be
// written to, and are good until the batch is released.
type Record struct {
	// Offset is its offset in the shard.
	Offset uint64
	// Time is its time, or zero if it has none.
	Time time.Time
	// Key and Value are nil if it has none.
	Key, Value []byte
	// Headers are in order.
	Headers []Header
}

// Header is one header of a record, whose bytes are as a record's.
type Header struct {
	Name  string
	Value []byte
}

// Len is how many records there are; 0 once the batch is released.
func (b *Batch) Len() int { return len(b.records) }

// Record is the record at that place, from 0 on and below Len.
func (b *Batch) Record(at int) Record { return recordOf(&b.records[at]) }

func recordOf(told *C.TailwaterRecord) Record {
	record := Record{Offset: uint64(told.offset), Key: lent(told.key), Value: lent(told.value)}
	if told.timestamp_ms >= 0 {
		record.Time = time.UnixMilli(int64(told.timestamp_ms))
	}
	for _, header := range unsafe.Slice(told.headers, int(told.header_count)) {
		record.Headers = append(record.Headers, Header{Name: string(lent(header.name)), Value: lent(header.value)})
	}
	return record
}

// Release frees the batch: bytes of its records are not to be used any more. Releasing twice is nothing.
func (b *Batch) Release() {
	if b.pointer != nil {
		C.tailwater_batch_free(b.pointer)
		b.pointer, b.records = nil, nil
	}
}

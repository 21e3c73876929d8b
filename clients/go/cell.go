package tailwater

/*
#include <stdlib.h>
#include <tailwater.h>
*/
import "C"

import (
	"context"
	"fmt"
	"time"
	"unsafe"
)

// Cell is keys and values in memory. Keys have at most 1 KiB, values 1 MiB.
type Cell struct{ handle handle }

// Hit is a key's value.
type Hit struct {
	// Value is a copy.
	Value []byte
	// Version is the version that it was set at.
	Version Version
	// Expires is when it expires, or zero if it does not.
	Expires time.Time
}

// Item is a key and the value that it is to have.
type Item struct {
	Key, Value []byte
	// TTL is for how long; 0: as long as the cell has room.
	TTL time.Duration
}

// Lookup is what GetMany says of a key: a Hit, nothing, or ErrInconclusive.
type Lookup struct {
	Hit *Hit
	Err error
}

// Change is what came of the change of a key: its version, or an error.
type Change struct {
	Version Version
	Err     error
}

// Cell opens the cell of that name, which was created at the node. deadline is the longest that an operation takes; 0: as
// the node says.
func (c *Client) Cell(ctx context.Context, name string, deadline time.Duration) (*Cell, error) {
	var a arena
	defer a.free()
	return run(ctx, func(notifier *C.TailwaterNotifier, tag C.uint64_t) *C.TailwaterOperation {
		return c.handle.use(func(client unsafe.Pointer) *C.TailwaterOperation {
			return C.tailwater_client_cell((*C.TailwaterClient)(client), a.text(name), deadlineMs(deadline), notifier, tag)
		})
	}, cellOf)
}

// OpenCell opens the cell that a backend at one of the addresses belongs to: unix:PATH, tcp:HOST:PORT or tls:HOST:PORT, as
// `tailwater cell describe` shows them.
func OpenCell(ctx context.Context, seeds []string, options Options) (*Cell, error) {
	var a arena
	defer a.free()
	first := (**C.char)(a.room(len(seeds) * int(unsafe.Sizeof((*C.char)(nil)))))
	texts := unsafe.Slice(first, len(seeds))
	for at, seed := range seeds {
		texts[at] = a.text(seed)
	}
	return run(ctx, func(notifier *C.TailwaterNotifier, tag C.uint64_t) *C.TailwaterOperation {
		return C.tailwater_cell_at(first, C.size_t(len(seeds)), options.given(&a), notifier, tag)
	}, cellOf)
}

func cellOf(operation *C.TailwaterOperation) (*Cell, error) {
	cell := &Cell{}
	cell.handle.pointer = unsafe.Pointer(C.tailwater_operation_cell(operation))
	cell.handle.release = func(pointer unsafe.Pointer) { C.tailwater_cell_free((*C.TailwaterCell)(pointer)) }
	return cell, nil
}

// Close lets go of the cell.
func (c *Cell) Close() { c.handle.close() }

// Get is the key's value; nil if it has none. The error is ErrInconclusive if nothing can be said.
func (c *Cell) Get(ctx context.Context, key []byte) (*Hit, error) {
	lookups, err := c.GetMany(ctx, [][]byte{key})
	if err != nil {
		return nil, err
	}
	return lookups[0].Hit, lookups[0].Err
}

// GetMany is the same for many keys, at once and in their order.
func (c *Cell) GetMany(ctx context.Context, keys [][]byte) ([]Lookup, error) {
	return c.lookup(ctx, keys, C.TailwaterLookupMode_Consistent)
}

// GetManyRelaxed asks one replica for each key, and what it answers may be old.
func (c *Cell) GetManyRelaxed(ctx context.Context, keys [][]byte) ([]Lookup, error) {
	return c.lookup(ctx, keys, C.TailwaterLookupMode_Relaxed)
}

func (c *Cell) lookup(ctx context.Context, keys [][]byte, mode C.uint32_t) ([]Lookup, error) {
	var a arena
	defer a.free()
	start := func(notifier *C.TailwaterNotifier, tag C.uint64_t) *C.TailwaterOperation {
		return c.handle.use(func(cell unsafe.Pointer) *C.TailwaterOperation {
			return C.tailwater_cell_get((*C.TailwaterCell)(cell), a.keys(keys), C.size_t(len(keys)), mode, notifier, tag)
		})
	}
	return run(ctx, start, func(operation *C.TailwaterOperation) ([]Lookup, error) {
		var count C.size_t
		first := C.tailwater_operation_lookups(operation, &count)
		lookups := make([]Lookup, count)
		for at, told := range unsafe.Slice(first, int(count)) {
			switch told.found {
			case C.TailwaterFound_Hit:
				hit := &Hit{Value: append([]byte{}, lent(told.value)...), Version: versionOf(told.version)}
				if told.expires_ms != 0 {
					hit.Expires = time.UnixMilli(int64(told.expires_ms))
				}
				lookups[at].Hit = hit
			case C.TailwaterFound_Inconclusive:
				lookups[at].Err = fmt.Errorf("%w: %s", ErrInconclusive, C.GoString(told.why))
			}
		}
		return lookups, nil
	})
}

// Set sets the key, and answers its version.
func (c *Cell) Set(ctx context.Context, item Item) (Version, error) {
	return only(c.SetMany(ctx, []Item{item}))
}

// SetMany is the same for many keys, at once and in their order.
func (c *Cell) SetMany(ctx context.Context, items []Item) ([]Change, error) {
	var a arena
	defer a.free()
	first := (*C.TailwaterItem)(a.room(len(items) * C.sizeof_TailwaterItem))
	array := unsafe.Slice(first, len(items))
	for at, item := range items {
		array[at] = item.given(&a)
	}
	return run(ctx, func(notifier *C.TailwaterNotifier, tag C.uint64_t) *C.TailwaterOperation {
		return c.handle.use(func(cell unsafe.Pointer) *C.TailwaterOperation {
			return C.tailwater_cell_set((*C.TailwaterCell)(cell), first, C.size_t(len(items)), notifier, tag)
		})
	}, changesOf)
}

func (i Item) given(a *arena) C.TailwaterItem {
	return C.TailwaterItem{key: a.bytes(i.Key), value: a.bytes(i.Value), ttl_ms: C.uint64_t(milliseconds(i.TTL))}
}

// CAS sets the key if it is at the version expected, or has no value where that is nil, and answers its new version. The
// error is a Conflict if it is not.
func (c *Cell) CAS(ctx context.Context, item Item, expected *Version) (Version, error) {
	var a arena
	defer a.free()
	given := (*C.TailwaterItem)(a.room(C.sizeof_TailwaterItem))
	*given = item.given(&a)
	var version *C.TailwaterVersion
	if expected != nil {
		version = (*C.TailwaterVersion)(a.room(C.sizeof_TailwaterVersion))
		version.timestamp_us = C.uint64_t(expected.TimestampUs)
		version.client_id, version.sequence = C.uint32_t(expected.ClientID), C.uint32_t(expected.Sequence)
	}
	return only(run(ctx, func(notifier *C.TailwaterNotifier, tag C.uint64_t) *C.TailwaterOperation {
		return c.handle.use(func(cell unsafe.Pointer) *C.TailwaterOperation {
			return C.tailwater_cell_cas((*C.TailwaterCell)(cell), given, version, notifier, tag)
		})
	}, changesOf))
}

// Delete deletes the key, and answers the version at which it was.
func (c *Cell) Delete(ctx context.Context, key []byte) (Version, error) {
	return only(c.DeleteMany(ctx, [][]byte{key}))
}

// DeleteMany is the same for many keys, at once and in their order.
func (c *Cell) DeleteMany(ctx context.Context, keys [][]byte) ([]Change, error) {
	var a arena
	defer a.free()
	return run(ctx, func(notifier *C.TailwaterNotifier, tag C.uint64_t) *C.TailwaterOperation {
		return c.handle.use(func(cell unsafe.Pointer) *C.TailwaterOperation {
			return C.tailwater_cell_delete((*C.TailwaterCell)(cell), a.keys(keys), C.size_t(len(keys)), notifier, tag)
		})
	}, changesOf)
}

func changesOf(operation *C.TailwaterOperation) ([]Change, error) {
	var count C.size_t
	first := C.tailwater_operation_changes(operation, &count)
	changes := make([]Change, count)
	for at, told := range unsafe.Slice(first, int(count)) {
		version := versionOf(told.version)
		switch told.changed {
		case C.TailwaterChanged_Applied:
			changes[at].Version = version
		case C.TailwaterChanged_OtherVersion:
			changes[at].Err = &Conflict{Held: &version}
		case C.TailwaterChanged_Absent:
			changes[at].Err = &Conflict{}
		case C.TailwaterChanged_Unknown:
			changes[at].Err = fmt.Errorf("%w: %s", ErrUnknownOutcome, C.GoString(told.why))
		default:
			changes[at].Err = fmt.Errorf("%w: %s", ErrNotApplied, C.GoString(told.why))
		}
	}
	return changes, nil
}

func only(changes []Change, err error) (Version, error) {
	if err != nil {
		return Version{}, err
	}
	return changes[0].Version, changes[0].Err
}

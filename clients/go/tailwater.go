// Package tailwater reads cells and the log of Tailwater one-sidedly: reads ask no server, and records are not copied.
// It links libtailwater; docs/languages.md says how to build with it.
//
// Any goroutines may use a client, a cell or a consumer. No thread waits for an operation. Cancelling a context cancels
// the operation: a change of a key may have been made all the same, and records that a poll has got come with the next
// poll.
package tailwater

/*
#include <stdlib.h>
#include <tailwater.h>
*/
import "C"

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"
	"unsafe"
)

// Status says why something was not done.
type Status int

// What an Error may say. Those of retriable errors are Unreachable, Deadline, Overloaded, Truncated and Busy.
const (
	InvalidArgument Status = C.TailwaterStatus_InvalidArgument
	Unreachable     Status = C.TailwaterStatus_Unreachable
	Deadline        Status = C.TailwaterStatus_Deadline
	NotAuthorized   Status = C.TailwaterStatus_NotAuthorized
	NotFound        Status = C.TailwaterStatus_NotFound
	Overloaded      Status = C.TailwaterStatus_Overloaded
	Truncated       Status = C.TailwaterStatus_Truncated
	Deleted         Status = C.TailwaterStatus_Deleted
	Corrupt         Status = C.TailwaterStatus_Corrupt
	Busy            Status = C.TailwaterStatus_Busy
	Forked          Status = C.TailwaterStatus_Forked
	Refused         Status = C.TailwaterStatus_Refused
	Internal        Status = C.TailwaterStatus_Internal
)

// Error is why something was not done: the status to act on, the text for a person.
type Error struct {
	Status Status
	Text   string
}

func (e *Error) Error() string { return e.Text }

// Retriable says whether the same thing may work a while later.
func (e *Error) Retriable() bool {
	switch e.Status {
	case Unreachable, Deadline, Overloaded, Truncated, Busy:
		return true
	}
	return false
}

var (
	// ErrClosed is answered by what was closed.
	ErrClosed = errors.New("it is closed")
	// ErrInconclusive says that nothing can be said of a key: there may be a value.
	ErrInconclusive = errors.New("nothing can be said")
	// ErrNotApplied says that a change was not acknowledged.
	ErrNotApplied = errors.New("not applied")
	// ErrUnknownOutcome says that a change may have been made, may be made later, or never.
	ErrUnknownOutcome = errors.New("it is not known whether it was made")
)

// Conflict says that nothing has changed: the key is at another version than was expected.
type Conflict struct {
	// Held is that version; nil: the key has no value.
	Held *Version
}

func (c *Conflict) Error() string {
	if c.Held == nil {
		return "the key has no value"
	}
	return fmt.Sprintf("the key is at version %v", *c.Held)
}

// Version says which change of a key a value is of.
type Version struct {
	// TimestampUs are microseconds since 1970, by the clock of the client that made it.
	TimestampUs uint64
	// ClientID says which client.
	ClientID uint32
	// Sequence tells one client's versions of the same microsecond apart.
	Sequence uint32
}

// Compare is below 0 if v is the earlier of two versions of a key.
func (v Version) Compare(other Version) int {
	switch {
	case v == other:
		return 0
	case v.TimestampUs != other.TimestampUs:
		return sign(v.TimestampUs < other.TimestampUs)
	case v.ClientID != other.ClientID:
		return sign(v.ClientID < other.ClientID)
	}
	return sign(v.Sequence < other.Sequence)
}

func sign(isLess bool) int {
	if isLess {
		return -1
	}
	return 1
}

func (v Version) String() string {
	return fmt.Sprintf("%d.%d.%d", v.TimestampUs, v.ClientID, v.Sequence)
}

func versionOf(v C.TailwaterVersion) Version {
	return Version{uint64(v.timestamp_us), uint32(v.client_id), uint32(v.sequence)}
}

// Transport is a way to the cells' memory.
type Transport uint32

// The ways there are: shared memory where that is on this host and TCP elsewhere, one of both alone.
const (
	Auto Transport = C.TailwaterTransport_Auto
	Shm  Transport = C.TailwaterTransport_Shm
	TCP  Transport = C.TailwaterTransport_Tcp
)

// Options say how to connect. None are the defaults.
type Options struct {
	// Name is what the node's logs call this program.
	Name string
	// CAFile is a PEM file with the CA of the servers' certificates: connections may be in TLS then.
	CAFile string
	// CertificateFile is a PEM file with the certificate to show, KeyFile one with its key.
	CertificateFile, KeyFile string
	// Transport is the way to the cells' memory. Cells that are opened by addresses go by those.
	Transport Transport
	// Deadline is the longest that an operation of a cell takes, for cells that are opened by addresses.
	Deadline time.Duration
}

func (o Options) given(a *arena) *C.TailwaterOptions {
	given := (*C.TailwaterOptions)(a.room(C.sizeof_TailwaterOptions))
	given.name = a.text(o.Name)
	given.ca_file = a.text(o.CAFile)
	given.certificate_file = a.text(o.CertificateFile)
	given.key_file = a.text(o.KeyFile)
	given.transport = C.uint32_t(o.Transport)
	given.deadline_ms = deadlineMs(o.Deadline)
	return given
}

// milliseconds are those of a duration, of which a part counts as one.
func milliseconds(duration time.Duration) uint64 {
	if duration <= 0 {
		return 0
	}
	return uint64((duration-1)/time.Millisecond) + 1
}

// deadlineMs is a deadline for the library, which refuses one that is too long.
func deadlineMs(duration time.Duration) C.uint32_t {
	if ms := milliseconds(duration); ms < math.MaxUint32 {
		return C.uint32_t(ms)
	}
	return math.MaxUint32
}

// Client is a connection to a node. All consumers of one client read each record once.
type Client struct{ handle handle }

// Connect connects to the node at address: IP:PORT, tls:IP:PORT or unix:/path, as its [listen] data says.
func Connect(ctx context.Context, address string, options Options) (*Client, error) {
	var a arena
	defer a.free()
	start := func(notifier *C.TailwaterNotifier, tag C.uint64_t) *C.TailwaterOperation {
		return C.tailwater_client_open(a.text(address), options.given(&a), notifier, tag)
	}
	return run(ctx, start, func(operation *C.TailwaterOperation) (*Client, error) {
		client := &Client{}
		client.handle.pointer = unsafe.Pointer(C.tailwater_operation_client(operation))
		client.handle.release = func(pointer unsafe.Pointer) { C.tailwater_client_free((*C.TailwaterClient)(pointer)) }
		return client, nil
	})
}

// Close lets go of the connection. Cells and consumers of it stay good.
func (c *Client) Close() { c.handle.close() }

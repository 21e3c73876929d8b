package tailwater

/*
#cgo CFLAGS: -I${SRCDIR}/../../crates/run/capi/include
#cgo LDFLAGS: -ltailwater
#include <stdlib.h>
#include <tailwater.h>
*/
import "C"

import (
	"context"
	"fmt"
	"os"
	"sync"
	"syscall"
	"unsafe"
)

// notifier hears of all operations of the process that are done. One goroutine waits for it, by Go's own poller: no
// thread waits for an operation.
var notifier struct {
	once    sync.Once
	waiters *waiters
	err     error
}

func theWaiters() (*waiters, error) {
	notifier.once.Do(func() { notifier.waiters, notifier.err = newWaiters() })
	return notifier.waiters, notifier.err
}

func newWaiters() (*waiters, error) {
	if found := C.tailwater_abi_version(); found != C.TAILWATER_ABI_VERSION {
		text := fmt.Sprintf("libtailwater has version %d of its ABI, and this package is for another: build both anew", found)
		return nil, &Error{Status: Internal, Text: text}
	}
	pointer := C.tailwater_notifier_new()
	if pointer == nil {
		return nil, &Error{Status: Internal, Text: "the process has no file descriptor left"}
	}
	// A descriptor of our own, which os.File may close. It shares that it does not block.
	descriptor, err := syscall.Dup(int(C.tailwater_notifier_fd(pointer)))
	if err != nil {
		return nil, err
	}
	syscall.CloseOnExec(descriptor)
	file := os.NewFile(uintptr(descriptor), "tailwater")
	raw, err := file.SyscallConn()
	if err != nil {
		return nil, err
	}
	w := &waiters{pointer: pointer, file: file, done: map[uint64]chan struct{}{}}
	go raw.Read(func(uintptr) bool {
		w.take()
		// Waits until there are more.
		return false
	})
	return w, nil
}

type waiters struct {
	pointer *C.TailwaterNotifier
	file    *os.File // kept open
	mutex   sync.Mutex
	next    uint64
	done    map[uint64]chan struct{}
}

// take tells those who wait for what is done.
func (w *waiters) take() {
	var tags [256]C.uint64_t
	for {
		count := C.tailwater_notifier_take(w.pointer, &tags[0], C.size_t(len(tags)))
		w.mutex.Lock()
		for _, tag := range tags[:count] {
			if done, ok := w.done[uint64(tag)]; ok {
				delete(w.done, uint64(tag))
				close(done)
			}
		}
		w.mutex.Unlock()
		if int(count) < len(tags) {
			return
		}
	}
}

// expect makes a tag, and what is closed when its operation is done.
func (w *waiters) expect() (uint64, chan struct{}) {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	w.next++
	done := make(chan struct{})
	w.done[w.next] = done
	return w.next, done
}

func (w *waiters) forget(tag uint64) {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	delete(w.done, tag)
}

type starter func(notifier *C.TailwaterNotifier, tag C.uint64_t) *C.TailwaterOperation

// run carries an operation out. Its result is read before the operation is freed. Cancelling the context cancels it.
func run[T any](ctx context.Context, start starter, result func(*C.TailwaterOperation) (T, error)) (T, error) {
	var none T
	if err := ctx.Err(); err != nil {
		return none, err
	}
	w, err := theWaiters()
	if err != nil {
		return none, err
	}
	tag, done := w.expect()
	defer w.forget(tag)
	operation := start(w.pointer, C.uint64_t(tag))
	if operation == nil {
		return none, ErrClosed
	}
	defer C.tailwater_operation_free(operation)
	if C.tailwater_operation_status(operation) == C.TailwaterStatus_Pending {
		select {
		case <-done:
		case <-ctx.Done():
			return none, ctx.Err()
		}
	}
	if status := C.tailwater_operation_status(operation); status != C.TailwaterStatus_Ok {
		return none, &Error{Status: Status(status), Text: C.GoString(C.tailwater_operation_error(operation))}
	}
	return result(operation)
}

// arena is memory of C's for what a call is given: the library copies it before the call that starts something returns.
type arena struct{ pieces []unsafe.Pointer }

func (a *arena) free() {
	for _, piece := range a.pieces {
		C.free(piece)
	}
}

// room is memory of so many bytes, and one more: none at all may have no address.
func (a *arena) room(bytes int) unsafe.Pointer {
	piece := C.calloc(C.size_t(bytes)+1, 1)
	a.pieces = append(a.pieces, piece)
	return piece
}

func (a *arena) text(text string) *C.char {
	if text == "" {
		return nil
	}
	piece := C.CString(text)
	a.pieces = append(a.pieces, unsafe.Pointer(piece))
	return piece
}

func (a *arena) bytes(data []byte) C.TailwaterBytes {
	piece := a.room(len(data))
	copy(unsafe.Slice((*byte)(piece), len(data)), data)
	return C.TailwaterBytes{data: (*C.uint8_t)(piece), len: C.size_t(len(data))}
}

func (a *arena) keys(keys [][]byte) *C.TailwaterBytes {
	first := (*C.TailwaterBytes)(a.room(len(keys) * C.sizeof_TailwaterBytes))
	array := unsafe.Slice(first, len(keys))
	for at, key := range keys {
		array[at] = a.bytes(key)
	}
	return first
}

// lent is memory that the library lends; nil if there is none.
func lent(bytes C.TailwaterBytes) []byte {
	if bytes.data == nil {
		return nil
	}
	return unsafe.Slice((*byte)(bytes.data), int(bytes.len))
}

// handle is something of the library's, until it is closed. No call uses it while it is freed.
type handle struct {
	mutex   sync.RWMutex
	pointer unsafe.Pointer
	release func(unsafe.Pointer)
}

// use calls with the pointer, unless it is closed.
func (h *handle) use(call func(unsafe.Pointer) *C.TailwaterOperation) *C.TailwaterOperation {
	h.mutex.RLock()
	defer h.mutex.RUnlock()
	if h.pointer == nil {
		return nil
	}
	return call(h.pointer)
}

func (h *handle) close() {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	if h.pointer != nil {
		h.release(h.pointer)
		h.pointer = nil
	}
}

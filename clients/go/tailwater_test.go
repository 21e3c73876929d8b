package tailwater

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"
)

const lines = 2_000

// world is a node with a cell `tiles` and a stream `news`, as `cargo test -p tailwater --test processes languages` starts it.
func world(t *testing.T) (context.Context, *Client) {
	address := os.Getenv("TAILWATER_TEST_NODE")
	if address == "" {
		t.Skip("TAILWATER_TEST_NODE names no node")
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	t.Cleanup(cancel)
	client, err := Connect(ctx, address, Options{Name: t.Name()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	return ctx, client
}

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

func TestAKeyIsSetGotExchangedAndDeletedAndWhatDidNotHappenIsTold(t *testing.T) {
	ctx, client := world(t)
	cell := must(client.Cell(ctx, "tiles", time.Minute))
	defer cell.Close()
	tea := func(value string) Item { return Item{Key: []byte("go tea"), Value: []byte(value), TTL: time.Hour} }
	first := must(cell.Set(ctx, tea("Assam")))
	hit := must(cell.Get(ctx, []byte("go tea")))
	if string(hit.Value) != "Assam" || hit.Version != first || time.Until(hit.Expires) > time.Hour {
		t.Fatal(hit)
	}
	second := must(cell.CAS(ctx, tea("Ceylon"), &first))
	if second.Compare(first) <= 0 {
		t.Fatal(first, second)
	}
	var conflict *Conflict
	// An exchange that changes nothing writes back what one replica lacks, at a new version.
	if _, err := cell.CAS(ctx, tea("Oolong"), &first); !errors.As(err, &conflict) || conflict.Held.Compare(second) < 0 {
		t.Fatal(err)
	}
	must(cell.Delete(ctx, []byte("go tea")))
	if hit := must(cell.Get(ctx, []byte("go tea"))); hit != nil {
		t.Fatal(hit)
	}
	if _, err := cell.CAS(ctx, tea("Oolong"), &second); !errors.As(err, &conflict) || conflict.Held != nil {
		t.Fatal(err)
	}
	must(cell.CAS(ctx, tea("Oolong"), nil))
	if _, err := cell.Set(ctx, Item{Key: make([]byte, 2_000)}); !errors.Is(err, ErrNotApplied) {
		t.Fatal(err)
	}
	lookups := must(cell.GetMany(ctx, [][]byte{[]byte("nothing"), []byte("go tea"), nil}))
	if lookups[0].Hit != nil || string(lookups[1].Hit.Value) != "Oolong" || lookups[2].Hit != nil || len(lookups) != 3 {
		t.Fatal(lookups)
	}
}

func TestManyGoroutinesUseOneCell(t *testing.T) {
	ctx, client := world(t)
	cell := must(client.Cell(ctx, "tiles", time.Minute))
	var group sync.WaitGroup
	for number := 0; number < 100; number++ {
		group.Add(1)
		go func(number int) {
			defer group.Done()
			key := []byte(fmt.Sprint("go ", number))
			version := must(cell.Set(ctx, Item{Key: key, Value: key}))
			if hit := must(cell.Get(ctx, key)); hit.Version != version || string(hit.Value) != string(key) {
				t.Error(hit)
			}
		}(number)
	}
	group.Wait()
	cell.Close()
	if _, err := cell.Get(ctx, []byte("go 1")); err != ErrClosed {
		t.Fatal(err)
	}
}

func TestAllRecordsComeInOrderAndAPollThatIsGivenUpLosesNothing(t *testing.T) {
	ctx, client := world(t)
	consumer := must(client.Consumer(ctx, "news", Earliest))
	defer consumer.Close()
	next := map[uint32]uint64{}
	for next[0]+next[1] < 2*lines {
		// Given up before or behind its end: the same records come again.
		short, cancel := context.WithCancel(ctx)
		go cancel()
		batch, err := consumer.Poll(short)
		cancel()
		var failed *Error
		if errors.Is(err, context.Canceled) || errors.As(err, &failed) && failed.Status == Busy {
			// The poll before may hold the consumer for a moment.
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		for at := 0; at < batch.Len(); at++ {
			record := batch.Record(at)
			expected := fmt.Sprint(batch.Shard, " ", next[batch.Shard])
			if record.Offset != next[batch.Shard] || string(record.Value) != expected || record.Time.IsZero() {
				t.Fatal(expected, record)
			}
			next[batch.Shard]++
		}
		if batch.NextOffset != next[batch.Shard] || consumer.Positions()[batch.Shard] != batch.NextOffset {
			t.Fatal(batch.NextOffset, next, consumer.Positions())
		}
		batch.Release()
		batch.Release()
	}
	some := must(client.ConsumerOf(ctx, "news", map[uint32]Start{1: Offset(lines - 1)}))
	batch := must(some.Poll(ctx))
	defer batch.Release()
	if batch.Len() != 1 || batch.Shard != 1 {
		t.Fatal(batch)
	}
	headed := must(must(client.Consumer(ctx, "headed", Earliest)).Poll(ctx))
	for at := 0; at < headed.Len(); at++ {
		record := headed.Record(at)
		if len(record.Headers) != 2 || record.Headers[0].Name != "colour" || string(record.Headers[0].Value) != "red" {
			t.Fatal(record.Headers)
		}
	}
	headed.Release()
}

func TestWhatCantBeDoneSaysWhy(t *testing.T) {
	ctx, client := world(t)
	says := func(err error, status Status, words string) {
		t.Helper()
		var failed *Error
		if !errors.As(err, &failed) || failed.Status != status || !strings.Contains(failed.Text, words) {
			t.Error(err)
		}
	}
	_, err := client.Cell(ctx, "nowhere", 0)
	says(err, NotFound, "no cell nowhere")
	_, err = client.Consumer(ctx, "nowhere", Latest)
	says(err, NotFound, "nowhere")
	_, err = Connect(ctx, "here", Options{})
	says(err, InvalidArgument, "IP:PORT")
	_, err = OpenCell(ctx, nil, Options{})
	says(err, InvalidArgument, "no seed")
	_, err = OpenCell(ctx, []string{"unix:/nowhere.sock"}, Options{})
	says(err, Unreachable, "/nowhere.sock")
	_, err = client.ConsumerOf(ctx, "news", nil)
	says(err, InvalidArgument, "starts")
	seeds := []string{os.Getenv("TAILWATER_TEST_SEED")}
	seeded, err := OpenCell(ctx, seeds, Options{Deadline: time.Minute})
	for failed := (*Error)(nil); errors.As(err, &failed) && failed.Retriable(); {
		// The backend was too busy to answer.
		seeded, err = OpenCell(ctx, seeds, Options{Deadline: time.Minute})
	}
	seeded = must(seeded, err)
	defer seeded.Close()
	must(seeded.Set(ctx, Item{Key: []byte("seeded")}))
	if hit := must(seeded.Get(ctx, []byte("seeded"))); len(hit.Value) != 0 {
		t.Error(hit)
	}
}

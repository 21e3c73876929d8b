// franz-go: `clients SERVER SCENARIO`. Ends with 0 if all that the scenario says held.
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl/oauth"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

const begin = 1_700_000_000_000

var server = os.Args[1]

func main() {
	log.SetFlags(0)
	scenarios := map[string]func(context.Context){"records": records, "admin": admin, "group": group, "logins": logins}
	ctx, cancel := context.WithTimeout(context.Background(), 500*time.Second)
	defer cancel()
	scenarios[os.Args[2]](ctx)
}

func check(holds bool, what string, args ...any) {
	if !holds {
		log.Fatalf(what, args...)
	}
}

func must[T any](value T, err error) T {
	check(err == nil, "%v", err)
	return value
}

func client(options ...kgo.Opt) *kgo.Client {
	return must(kgo.NewClient(append(options, kgo.SeedBrokers(server))...))
}

// In TLS by each mechanism, and by a certificate alone: `clients SERVER logins FILE`, which has files and secrets.
func logins(ctx context.Context) {
	at := map[string]string{}
	for _, line := range strings.Split(strings.TrimSpace(string(must(os.ReadFile(os.Args[3])))), "\n") {
		name, value, _ := strings.Cut(line, "=")
		at[name] = value
	}
	roots := x509.NewCertPool()
	check(roots.AppendCertsFromPEM(must(os.ReadFile(at["ca"]))), "a CA")
	encrypted := &tls.Config{RootCAs: roots}
	shown := &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{must(tls.LoadX509KeyPair(at["certificate"], at["certificate"]))}}
	password := scram.Auth{User: at["user"], Pass: at["password"]}
	for mechanism, login := range map[string][]kgo.Opt{
		"PLAIN":         {kgo.DialTLSConfig(encrypted), kgo.SASL(plain.Auth{User: at["user"], Pass: at["password"]}.AsMechanism())},
		"SCRAM-SHA-256": {kgo.DialTLSConfig(encrypted), kgo.SASL(password.AsSha256Mechanism())},
		"SCRAM-SHA-512": {kgo.DialTLSConfig(encrypted), kgo.SASL(password.AsSha512Mechanism())},
		"OAUTHBEARER":   {kgo.DialTLSConfig(encrypted), kgo.SASL(oauth.Auth{Token: at["token"]}.AsMechanism())},
		"certificate":   {kgo.DialTLSConfig(shown), kgo.SeedBrokers(at["certificates"])},
	} {
		open := func(more ...kgo.Opt) *kgo.Client {
			return must(kgo.NewClient(append(append([]kgo.Opt{kgo.SeedBrokers(server)}, login...), more...)...))
		}
		producer := open(kgo.RecordPartitioner(kgo.ManualPartitioner()))
		record := &kgo.Record{Topic: "logins", Partition: 0, Value: []byte(mechanism)}
		check(producer.ProduceSync(ctx, record).FirstErr() == nil, "%s writes", mechanism)
		producer.Close()
		from := map[string]map[int32]kgo.Offset{"logins": {0: kgo.NewOffset().At(record.Offset)}}
		consumer := open(kgo.ConsumePartitions(from))
		fetches := consumer.PollFetches(ctx)
		check(fetches.Err() == nil, "%s: %v", mechanism, fetches.Err())
		check(string(fetches.Records()[0].Value) == mechanism, "%s reads", mechanism)
		consumer.Close()
	}
}

// Every codec comes back whole, in order and with its time; producers are idempotent by default.
func records(ctx context.Context) {
	codecs := []kgo.CompressionCodec{
		kgo.NoCompression(), kgo.GzipCompression(), kgo.SnappyCompression(), kgo.Lz4Compression(), kgo.ZstdCompression(),
	}
	const count = 2000
	adm := kadm.NewClient(client())
	defer adm.Close()
	must(adm.CreateTopic(ctx, int32(len(codecs)), 1, nil, "go"))
	for partition, codec := range codecs {
		partition := partition
		producer := client(kgo.ProducerBatchCompression(codec), kgo.RecordPartitioner(kgo.ManualPartitioner()))
		for number := 0; number < count; number++ {
			number := number
			producer.Produce(ctx, &kgo.Record{
				Topic: "go", Partition: int32(partition), Timestamp: time.UnixMilli(begin + int64(number)),
				Key: fmt.Appendf(nil, "key %d", number), Value: fmt.Appendf(nil, "value %d", number),
				Headers: []kgo.RecordHeader{{Key: "number", Value: fmt.Appendf(nil, "%d", number)}},
			}, func(record *kgo.Record, err error) {
				check(err == nil, "record %d: %v", number, err)
				check(record.Offset == int64(number), "record %d got offset %d", number, record.Offset)
			})
		}
		check(producer.Flush(ctx) == nil, "flushed")
		producer.Close()
	}
	offsets := map[int32]kgo.Offset{}
	for partition := range codecs {
		offsets[int32(partition)] = kgo.NewOffset().AtStart()
	}
	consumer := client(kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{"go": offsets}))
	defer consumer.Close()
	next := make([]int64, len(codecs))
	for seen := 0; seen < count*len(codecs); {
		fetches := consumer.PollFetches(ctx)
		check(fetches.Err() == nil, "%v", fetches.Err())
		fetches.EachRecord(func(record *kgo.Record) {
			number := next[record.Partition]
			check(record.Offset == number, "offset %d where %d comes next", record.Offset, number)
			check(string(record.Key) == fmt.Sprintf("key %d", number), "key %s", record.Key)
			check(string(record.Value) == fmt.Sprintf("value %d", number), "value %s", record.Value)
			check(record.Timestamp.UnixMilli() == begin+number, "time %v", record.Timestamp)
			check(string(record.Headers[0].Value) == fmt.Sprint(number), "headers %v", record.Headers)
			next[record.Partition]++
			seen++
		})
	}
	found := must(adm.ListOffsetsAfterMilli(ctx, begin+1234, "go"))
	found.Each(func(offset kadm.ListedOffset) {
		check(offset.Err == nil && offset.Offset == 1234, "%v", offset)
	})
}

func admin(ctx context.Context) {
	adm := kadm.NewClient(client())
	defer adm.Close()
	keep := "5000"
	must(adm.CreateTopic(ctx, 2, 1, map[string]*string{"retention.ms": &keep}, "t"))
	_, err := adm.CreateTopic(ctx, 2, 1, nil, "t")
	check(err == kerr.TopicAlreadyExists, "%v", err)
	compact := "compact"
	_, err = adm.CreateTopic(ctx, 2, 1, map[string]*string{"cleanup.policy": &compact}, "u")
	check(err == kerr.InvalidConfig, "%v", err)
	check(must(adm.CreatePartitions(ctx, 2, "t")).Error() == nil, "two more")
	details := must(adm.ListTopics(ctx, "t"))
	check(len(details["t"].Partitions) == 4, "%v", details)
	longer := "7000"
	must(adm.AlterTopicConfigs(ctx, []kadm.AlterConfig{{Op: kadm.SetConfig, Name: "retention.ms", Value: &longer}}, "t"))
	configs := must(adm.DescribeTopicConfigs(ctx, "t"))
	kept := ""
	for _, config := range configs[0].Configs {
		if config.Key == "retention.ms" {
			kept = config.MaybeValue()
		}
	}
	check(kept == "7000", "retention.ms is %q", kept)
	brokers := must(adm.ListBrokers(ctx))
	check(len(brokers) == 1, "%v", brokers)
	directories := must(adm.DescribeAllLogDirs(ctx, nil))
	check(len(directories) == 1, "%v", directories)
	check(must(adm.DeleteTopics(ctx, "t")).Error() == nil, "deleted")
}

// A member of a group: notes what it reads, and commits it.
type member struct {
	client *kgo.Client
	mu     sync.Mutex
	owned  map[int32]bool
	cancel context.CancelFunc
	done   chan struct{}
}

var (
	nextMu sync.Mutex
	next   = map[int32]int64{}
)

func join(ctx context.Context) *member {
	m := &member{owned: map[int32]bool{}, done: make(chan struct{})}
	m.client = client(
		kgo.ConsumerGroup("g"), kgo.ConsumeTopics("shared"), kgo.DisableAutoCommit(),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.HeartbeatInterval(200*time.Millisecond),
		kgo.OnPartitionsAssigned(func(_ context.Context, _ *kgo.Client, places map[string][]int32) { m.own(places, true) }),
		kgo.OnPartitionsRevoked(func(ctx context.Context, client *kgo.Client, places map[string][]int32) {
			check(client.CommitUncommittedOffsets(ctx) == nil, "committed before it is given up")
			m.own(places, false)
		}),
		kgo.OnPartitionsLost(func(_ context.Context, _ *kgo.Client, places map[string][]int32) { m.own(places, false) }),
	)
	ctx, m.cancel = context.WithCancel(ctx)
	go func() {
		defer close(m.done)
		for ctx.Err() == nil {
			m.client.PollFetches(ctx).EachRecord(func(record *kgo.Record) {
				nextMu.Lock()
				defer nextMu.Unlock()
				// Each partition in its order; what was not committed in time may come again.
				expected := next[record.Partition]
				check(record.Offset <= expected, "offset %d of %d after %d", record.Offset, record.Partition, expected)
				if record.Offset == expected {
					next[record.Partition]++
				}
			})
			// One that fails because of a rebalance is made good when partitions are given up.
			_ = m.client.CommitUncommittedOffsets(ctx)
		}
	}()
	return m
}

func (m *member) own(places map[string][]int32, owns bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, partition := range places["shared"] {
		if owns {
			m.owned[partition] = true
		} else {
			delete(m.owned, partition)
		}
	}
}

func (m *member) count() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.owned)
}

func (m *member) leave() {
	m.cancel()
	<-m.done
	m.client.Close()
}

func waitFor(ctx context.Context, what string, holds func() bool) {
	for !holds() {
		check(ctx.Err() == nil, "waited for %s", what)
		time.Sleep(20 * time.Millisecond)
	}
}

// Three members come and go, as cooperative ones, which is franz-go's default.
func group(ctx context.Context) {
	adm := kadm.NewClient(client())
	defer adm.Close()
	must(adm.CreateTopic(ctx, 6, 1, nil, "shared"))
	producer := client(kgo.RecordPartitioner(kgo.ManualPartitioner()))
	defer producer.Close()
	var written int64
	write := func() {
		for number := 0; number < 600; number++ {
			producer.Produce(ctx, &kgo.Record{Topic: "shared", Partition: int32(number % 6), Value: []byte("value")}, nil)
		}
		check(producer.Flush(ctx) == nil, "flushed")
		written += 100
	}
	read := func() bool {
		nextMu.Lock()
		defer nextMu.Unlock()
		for partition := int32(0); partition < 6; partition++ {
			if next[partition] != written {
				return false
			}
		}
		return true
	}
	share := func(members ...*member) {
		waitFor(ctx, "an even share", func() bool {
			for _, m := range members {
				if m.count() != 6/len(members) {
					return false
				}
			}
			return true
		})
	}
	write()
	one := join(ctx)
	share(one)
	waitFor(ctx, "the first records", read)
	two := join(ctx)
	three := join(ctx)
	share(one, two, three)
	write()
	waitFor(ctx, "records of three", read)
	described := must(adm.DescribeGroups(ctx, "g"))
	check(len(described["g"].Members) == 3, "%v", described)
	two.leave()
	share(one, three)
	write()
	waitFor(ctx, "records after one left", read)
	one.leave()
	share(three)
	write()
	waitFor(ctx, "records of the last one", read)
	three.leave()
	lags := must(adm.Lag(ctx, "g"))
	check(lags["g"].Lag.Total() == 0, "%v", lags)
	check(must(adm.DeleteGroups(ctx, "g"))["g"].Err == nil, "deleted")
}

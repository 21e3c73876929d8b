// franz-go: `clients SERVER SCENARIO`. Ends with 0 if all that the scenario says held.
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

const begin = 1_700_000_000_000

var server = os.Args[1]

func main() {
	log.SetFlags(0)
	scenarios := map[string]func(context.Context){"records": records, "admin": admin}
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Second)
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
		producer := client(kgo.ProducerBatchCompression(codec), kgo.RecordPartitioner(kgo.ManualPartitioner()))
		for number := range count {
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

package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

const (
	// keptUp is how long after the last publish a consumer may end and still have kept up.
	keptUp = time.Second
	// giveUp is how long after it consumers are waited for before what they lack counts as lost.
	giveUp = 20 * time.Second
)

// lane is what one consumer saw; written by its own callback alone, but for the two atomics.
type lane struct {
	delays              histogram
	expected, delivered int64
	lost, reordered     int64
	progress            atomic.Int64 // messages handed out and checked
	lastAt              atomic.Int64 // ns since `epoch`
}

var epoch = time.Now()

func (l *lane) take(data []byte) {
	number := int64(binary.BigEndian.Uint64(data))
	sentAt := int64(binary.BigEndian.Uint64(data[8:]))
	now := int64(time.Since(epoch))
	if number >= l.expected {
		l.lost += number - l.expected
		l.expected = number + 1
		l.delivered++
		l.delays.record(time.Duration(now - sentAt))
	} else {
		l.reordered++
	}
	l.lastAt.Store(now)
	l.progress.Store(l.expected)
}

type fanoutResult struct {
	Peer           string      `json:"peer"`
	Mode           string      `json:"mode"`
	Consumers      int         `json:"consumers"`
	RateMbit       int         `json:"rate_mbit"`
	MessageBytes   int         `json:"message_bytes"`
	DurationS      int         `json:"duration_s"`
	Produced       int64       `json:"produced"`
	Delivered      int64       `json:"delivered"`
	Lost           int64       `json:"lost"`
	Reordered      int64       `json:"reordered"`
	RateHeld       float64     `json:"rate_held"`
	DeliveredGbitS float64     `json:"delivered_gbit_s"`
	DelayMs        percentiles `json:"delay_ms"`
	CPUS           cpuSeconds  `json:"cpu_s"`
	WallS          float64     `json:"wall_s"`
	LastBehindS    float64     `json:"last_behind_s"`
	KeepsUp        bool        `json:"keeps_up"`
}

func fanout(o options) (*fanoutResult, error) {
	if o.messageBytes < 16 {
		return nil, fmt.Errorf("-message-bytes %d: at least 16", o.messageBytes)
	}
	nc, err := connect(o)
	if err != nil {
		return nil, err
	}
	defer nc.Close()
	js, err := jetstream.New(nc, jetstream.WithPublishAsyncMaxPending(65536))
	if err != nil {
		return nil, err
	}
	ctx := context.Background()
	if err := newStream(ctx, js); err != nil {
		return nil, err
	}
	lanes := make([]*lane, o.consumers)
	for i := range lanes {
		lanes[i] = &lane{}
		stop, err := follow(ctx, o, lanes[i])
		if err != nil {
			return nil, err
		}
		defer stop()
	}

	server, client := cpuTicks(o.serverPid), cpuTicks(selfPid())
	begin := time.Now()
	produced, err := produce(o, js, begin)
	if err != nil {
		return nil, err
	}
	lastAppend := time.Now()
	slowest := func() int64 {
		least := produced
		for _, l := range lanes {
			least = min(least, l.progress.Load())
		}
		return least
	}
	for slowest() < produced && time.Since(lastAppend) < giveUp {
		time.Sleep(5 * time.Millisecond)
	}

	producedS := lastAppend.Sub(begin).Seconds()
	r := &fanoutResult{
		Peer: "nats", Mode: "fanout", Consumers: o.consumers, RateMbit: o.rateMbit, MessageBytes: o.messageBytes, DurationS: o.durationS, Produced: produced,
		RateHeld: float64(produced) / producedS / perSecond(o),
		CPUS:     cpuSeconds{Server: secondsSince(server, o.serverPid), Clients: secondsSince(client, selfPid())},
	}
	nc.Close()
	var all histogram
	var lastAt int64
	for _, l := range lanes {
		all.add(&l.delays)
		r.Delivered += l.delivered
		r.Lost += l.lost + produced - l.expected
		r.Reordered += l.reordered
		lastAt = max(lastAt, l.lastAt.Load())
	}
	r.LastBehindS = max(0, (time.Duration(lastAt) - lastAppend.Sub(epoch)).Seconds())
	r.WallS = producedS + r.LastBehindS
	r.DeliveredGbitS = float64(r.Delivered) * 8 * float64(o.messageBytes) / r.WallS / 1e9
	r.DelayMs = all.percentiles()
	r.KeepsUp = r.RateHeld >= 0.99 && r.Lost == 0 && r.LastBehindS <= keptUp.Seconds()
	return r, nil
}

// follow starts one ordered consumer on a connection of its own.
func follow(ctx context.Context, o options, l *lane) (stop func(), err error) {
	nc, err := connect(o)
	if err != nil {
		return nil, err
	}
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, err
	}
	consumer, err := js.OrderedConsumer(ctx, streamName, jetstream.OrderedConsumerConfig{DeliverPolicy: jetstream.DeliverAllPolicy})
	if err != nil {
		return nil, err
	}
	consuming, err := consumer.Consume(func(m jetstream.Msg) { l.take(m.Data()) })
	if err != nil {
		return nil, err
	}
	return func() { consuming.Stop(); nc.Close() }, nil
}

func perSecond(o options) float64 {
	return float64(o.rateMbit) * 1e6 / 8 / float64(o.messageBytes)
}

// produce sends on a fixed schedule; what is due is sent at once, so a late tick is made up for. At twice the planned time the rate
// is long missed, and it ends.
func produce(o options, js jetstream.JetStream, begin time.Time) (int64, error) {
	total := int64(perSecond(o) * float64(o.durationS))
	limit := 2 * time.Duration(o.durationS) * time.Second
	var produced int64
	for produced < total && time.Since(begin) < limit {
		due := min(total, int64(time.Since(begin).Seconds()*perSecond(o)))
		for produced < due && time.Since(begin) < limit {
			payload := make([]byte, o.messageBytes)
			binary.BigEndian.PutUint64(payload, uint64(produced))
			binary.BigEndian.PutUint64(payload[8:], uint64(time.Since(epoch)))
			if _, err := js.PublishAsync(subject, payload); err != nil {
				if err == jetstream.ErrTooManyStalledMsgs {
					continue // the server is behind: the rate shows it
				}
				return produced, err
			}
			produced++
		}
		time.Sleep(500 * time.Microsecond)
	}
	return produced, nil
}

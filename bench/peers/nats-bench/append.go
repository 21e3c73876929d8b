package main

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	streamName = "BENCH"
	subject    = "bench.load"
	// answerWait bounds how long the run waits for the last acknowledgements.
	answerWait = 20 * time.Second
)

func ready(o options) error {
	nc, err := connect(o)
	if err != nil {
		return err
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	_, err = js.AccountInfo(ctx)
	return err
}

// newStream makes an empty stream in files, one replica.
func newStream(ctx context.Context, js jetstream.JetStream) error {
	if err := js.DeleteStream(ctx, streamName); err != nil && err != jetstream.ErrStreamNotFound {
		return err
	}
	_, err := js.CreateStream(ctx, jetstream.StreamConfig{Name: streamName, Subjects: []string{subject}, Storage: jetstream.FileStorage, Replicas: 1})
	return err
}

type appendResult struct {
	Peer        string      `json:"peer"`
	Mode        string      `json:"mode"`
	RecordBytes int         `json:"record_bytes"`
	InFlight    int         `json:"in_flight"`
	DurationS   int         `json:"duration_s"`
	RecordsPerS float64     `json:"records_per_s"`
	MbyteS      float64     `json:"mbyte_s"`
	AckMs       percentiles `json:"ack_ms"`
	CPUS        cpuSeconds  `json:"cpu_s"`
	Failed      int         `json:"failed"`
}

// appendLoad keeps inFlight records unacknowledged for warmupS and then durationS, in which acknowledgements count: the server
// answers many at a time, the first ones late. JetStream acknowledges each message by itself, so one goroutine
// takes the acknowledgements in the order of sending; one that overtakes another is timed when its turn comes.
func appendLoad(o options) (*appendResult, error) {
	nc, err := connect(o)
	if err != nil {
		return nil, err
	}
	defer nc.Close()
	js, err := jetstream.New(nc, jetstream.WithPublishAsyncMaxPending(o.inFlight))
	if err != nil {
		return nil, err
	}
	if err := newStream(context.Background(), js); err != nil {
		return nil, err
	}

	type sent struct {
		at  time.Time
		ack jetstream.PubAckFuture
	}
	pending := make(chan sent, o.inFlight)
	permits := make(chan struct{}, o.inFlight)
	done := make(chan struct{})
	var delays histogram
	var acknowledged, failed int
	var server, client atomic.Int64
	warmup := time.Duration(o.warmupS) * time.Second
	begin := time.Now().Add(warmup)
	end := begin.Add(time.Duration(o.durationS) * time.Second)
	time.AfterFunc(warmup, func() {
		server.Store(cpuTicks(o.serverPid))
		client.Store(cpuTicks(selfPid()))
	})
	go func() {
		defer close(done)
		for s := range pending {
			select {
			case <-s.ack.Ok():
				if now := time.Now(); now.After(begin) && now.Before(end) {
					acknowledged++
					delays.record(now.Sub(s.at))
				}
			case <-s.ack.Err():
				failed++
			case <-time.After(answerWait):
				failed++
			}
			<-permits
		}
	}()
	payload := make([]byte, o.recordBytes)
	for time.Now().Before(end) {
		permits <- struct{}{}
		at := time.Now()
		ack, err := js.PublishMsgAsync(&nats.Msg{Subject: subject, Data: payload})
		if err != nil {
			return nil, err
		}
		pending <- sent{at, ack}
	}
	close(pending)
	<-done
	rate := float64(acknowledged) / float64(o.durationS)
	return &appendResult{
		Peer: "nats", Mode: "append", RecordBytes: o.recordBytes, InFlight: o.inFlight, DurationS: o.durationS,
		RecordsPerS: rate, MbyteS: rate * float64(o.recordBytes) / 1e6, AckMs: delays.percentiles(),
		CPUS: cpuSeconds{Server: secondsSince(server.Load(), o.serverPid), Clients: secondsSince(client.Load(), selfPid())}, Failed: failed,
	}, nil
}

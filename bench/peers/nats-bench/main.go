// Command nats-bench loads one NATS JetStream server on loopback and ends with one JSON object on the last line of standard output.
//
//	nats-bench ready                                          exits 0 once JetStream answers
//	nats-bench append -record-bytes 128 -in-flight 4096       file store, one replica; acknowledgement delays
//	nats-bench fanout -consumers 4 -rate-mbit 240             one producer, one stream, every consumer reads everything
//
// Each consumer of a fan-out is an ordered consumer with a connection of its own. A message carries its number and the time just
// before it was published; producer and consumers share this process and its clock.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/nats-io/nats.go"
)

// options are the flags of all modes; each mode reads what concerns it.
type options struct {
	port, serverPid                   int
	durationS, warmupS                int
	recordBytes, inFlight             int
	consumers, rateMbit, messageBytes int
}

func main() {
	log.SetFlags(0)
	if len(os.Args) < 2 {
		log.Fatal("usage: nats-bench ready|append|fanout [flags]")
	}
	var o options
	flags := flag.NewFlagSet(os.Args[1], flag.ExitOnError)
	flags.IntVar(&o.port, "port", 4222, "the server's client port")
	flags.IntVar(&o.serverPid, "server-pid", 0, "report this process's CPU time")
	flags.IntVar(&o.durationS, "duration-s", 10, "seconds of load")
	flags.IntVar(&o.warmupS, "warmup-s", 3, "append: seconds of load before, which do not count")
	flags.IntVar(&o.recordBytes, "record-bytes", 128, "append: bytes of one record")
	flags.IntVar(&o.inFlight, "in-flight", 4096, "append: records without acknowledgement at a time")
	flags.IntVar(&o.consumers, "consumers", 1, "fanout: how many read everything")
	flags.IntVar(&o.rateMbit, "rate-mbit", 240, "fanout: what the producer sends, in Mbit/s")
	flags.IntVar(&o.messageBytes, "message-bytes", 1024, "fanout: bytes of one message, at least 16")
	if err := flags.Parse(os.Args[2:]); err != nil {
		log.Fatal(err)
	}

	var result any
	var err error
	switch os.Args[1] {
	case "ready":
		err = ready(o)
	case "append":
		result, err = appendLoad(o)
	case "fanout":
		result, err = fanout(o)
	default:
		err = fmt.Errorf("mode %s: ready, append or fanout", os.Args[1])
	}
	if err != nil {
		log.Fatal(err)
	}
	if result != nil {
		line, err := json.Marshal(result)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(string(line))
	}
}

// connect opens one connection of its own; a lost one is an error of the run and is not made again.
func connect(o options) (*nats.Conn, error) {
	return nats.Connect(fmt.Sprintf("nats://127.0.0.1:%d", o.port), nats.NoReconnect(), nats.Timeout(2*time.Second))
}

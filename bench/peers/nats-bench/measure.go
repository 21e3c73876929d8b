package main

import (
	"fmt"
	"math/bits"
	"os"
	"strconv"
	"strings"
	"time"
)

// histogram counts delays in buckets of a sixty-fourth of a power of two: within 1.6 % of the true value, up to 2^48 ns.
type histogram struct {
	counts [48 * 64]int64
	total  int64
	most   int64
}

func (h *histogram) record(d time.Duration) {
	ns := max(int64(d), 1)
	h.counts[bucket(ns)]++
	h.total++
	h.most = max(h.most, ns)
}

func (h *histogram) add(other *histogram) {
	for i, n := range other.counts {
		h.counts[i] += n
	}
	h.total += other.total
	h.most = max(h.most, other.most)
}

// bucket takes the position of the highest bit and the six bits below it.
func bucket(ns int64) int {
	high := min(bits.Len64(uint64(ns))-1, 47)
	if high < 6 {
		return int(ns)
	}
	return high*64 + int(ns>>(high-6))&63
}

// floor is the least delay of a bucket.
func floor(bucket int) int64 {
	high := bucket / 64
	if high < 6 {
		return int64(bucket)
	}
	return int64(64+bucket%64) << (high - 6)
}

func (h *histogram) at(quantile float64) float64 {
	want := int64(float64(h.total) * quantile)
	var seen int64
	for i, n := range h.counts {
		seen += n
		if n > 0 && seen > want {
			return float64(floor(i)) / 1e6
		}
	}
	return float64(h.most) / 1e6
}

// percentiles in milliseconds.
type percentiles struct {
	P50  float64 `json:"p50"`
	P99  float64 `json:"p99"`
	P999 float64 `json:"p999"`
	Max  float64 `json:"max"`
}

func (h *histogram) percentiles() percentiles {
	return percentiles{h.at(0.5), h.at(0.99), h.at(0.999), float64(h.most) / 1e6}
}

// cpuSeconds a run took.
type cpuSeconds struct {
	Server  float64 `json:"server"`
	Clients float64 `json:"clients"`
}

const ticksPerSecond = 100

func selfPid() int { return os.Getpid() }

// cpuTicks is the CPU time of a process and all its threads, from /proc; 0 for process 0.
func cpuTicks(pid int) int64 {
	if pid == 0 {
		return 0
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	text := string(stat)
	fields := strings.Fields(text[strings.LastIndex(text, ")")+1:])
	var ticks int64
	for _, field := range fields[11:13] {
		n, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return 0
		}
		ticks += n
	}
	return ticks
}

func secondsSince(ticks int64, pid int) float64 {
	return float64(cpuTicks(pid)-ticks) / ticksPerSecond
}

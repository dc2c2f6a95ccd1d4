// SPDX-License-Identifier: Apache-2.0

package load

import (
	"bytes"
	"os"
	"strconv"
	"syscall"
	"time"
)

const memoryInterval = 100 * time.Millisecond

// Memory is what the process held while a loop ran: resident, in bytes.
type Memory struct {
	First int64   `json:"first_bytes"`
	Last  int64   `json:"last_bytes"`
	Max   int64   `json:"most_bytes"`
	Slope float64 `json:"slope_bytes_per_second"` // of the second half: what it grew by once it was warm
}

// processorTime is how much time of the processors this process has had; 0 if nobody says.
func processorTime() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// sampleMemory looks at the process until what it returns is called. Where no
// system says what a process holds, all is 0.
func sampleMemory() (stop func() Memory) {
	stopped, ended := make(chan struct{}), make(chan struct{})
	samples := []int64{resident()}
	go func() {
		defer close(ended)
		ticker := time.NewTicker(memoryInterval)
		defer ticker.Stop()
		for {
			select {
			case <-ticker.C:
				samples = append(samples, resident())
			case <-stopped:
				return
			}
		}
	}()
	return func() Memory {
		close(stopped)
		<-ended
		m := Memory{First: samples[0], Last: samples[len(samples)-1], Slope: slope(samples[len(samples)/2:]) / memoryInterval.Seconds()}
		for _, n := range samples {
			m.Max = max(m.Max, n)
		}
		return m
	}
}

// slope is that of the line which lies nearest to the points, per point.
func slope(points []int64) float64 {
	n := float64(len(points))
	var x, y, xx, xy float64
	for i, p := range points {
		x, y = x+float64(i), y+float64(p)
		xx, xy = xx+float64(i)*float64(i), xy+float64(i)*float64(p)
	}
	if denominator := n*xx - x*x; denominator > 0 {
		return (n*xy - x*y) / denominator
	}
	return 0
}

// resident is how much of the process is in memory; 0 if nobody says.
func resident() int64 {
	text, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0
	}
	fields := bytes.Fields(text)
	if len(fields) < 2 {
		return 0
	}
	pages, _ := strconv.ParseInt(string(fields[1]), 10, 64)
	return pages * int64(os.Getpagesize())
}

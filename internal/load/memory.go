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

// Memory is the resident memory of the process during a loop, in bytes.
type Memory struct {
	First int64   `json:"first_bytes"`
	Last  int64   `json:"last_bytes"`
	Max   int64   `json:"most_bytes"`
	Slope float64 `json:"slope_bytes_per_second"` // growth in the second half, after the warm-up
}

// processorTime returns the processor time used by this process; 0 if unavailable.
func processorTime() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// sampleMemory samples the resident memory every memoryInterval until stop is called.
// All values are 0 where the system does not report it.
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

// slope returns the slope of the least-squares line through the points, per point.
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

// resident returns the resident memory of the process in bytes; 0 if unavailable.
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

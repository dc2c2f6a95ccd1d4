// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"strconv"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/host/engine"
)

const (
	// childFlag makes this program measure one population, or simulations, in its own
	// process and print the result.
	childFlag = "-child-measures"
	// idBytes is the length of a printed actor ID, in bytes.
	idBytes = 24
	// memoryFloor is the maximum memory of an actor, in bytes.
	memoryFloor = 300
	// memoryRounds is the maximum number of rounds. Memory varies little and a
	// round takes long. No round starts after memoryWithin.
	memoryRounds = 5
	memoryWithin = time.Minute
	// fillWithin is the maximum time spent creating actors. The result refers to
	// the actors created by then.
	fillWithin = 90 * time.Second
	// repeatedAsks is the number of actors that are asked a second time, to check
	// that they are still usable.
	repeatedAsks = 10_000

	passivateAfter = time.Second
)

// populations maps each kind of idle actor to the function that measures it. Each
// actor has processed one message.
var populations = map[string]func(n int) (footprint, error){
	"resident":   residentActors,
	"passivated": passivatedActors,
	"channels":   channelGoroutines,
}

// footprint is the memory of one actor in bytes, and the number of actors measured.
type footprint struct {
	RSS    float64 `json:"rss"`
	Heap   float64 `json:"heap"` // including stacks
	Actors int     `json:"actors"`
}

// studyMemory measures the memory of idle actors. Each population is created in a
// process of its own.
func studyMemory(b *bench) ([]row, error) {
	const by = "a goroutine and its channel, each"
	rounds, began := min(b.rounds, memoryRounds), time.Now()
	found := map[string][]footprint{}
	for i := 0; i < rounds && (i == 0 || time.Since(began) < memoryWithin); i++ {
		for _, kind := range []string{"resident", "channels"} {
			b.progress("%s: round %d of %d", kind, i+1, rounds)
			f, err := measureInChild[footprint](b, kind, b.actors)
			if err != nil {
				return nil, err
			}
			found[kind] = append(found[kind], f)
		}
	}
	b.progress("passivated")
	p, err := measureInChild[footprint](b, "passivated", b.actors)
	if err != nil {
		return nil, err
	}
	found["passivated"] = []footprint{p}
	return []row{memoryRow("memory of an idle actor that is resident", by, found["resident"], found["channels"]),
		memoryRow("memory of an idle actor that left memory", by, found["passivated"], found["channels"])}, nil
}

// memoryRow returns the row that compares two populations.
func memoryRow(name, counterpart string, ours, theirs []footprint) row {
	values := func(all []footprint, of func(footprint) float64) (out []float64) {
		for _, f := range all {
			out = append(out, of(f))
		}
		return out
	}
	rss := func(f footprint) float64 { return f.RSS }
	heap := func(f footprint) float64 { return f.Heap }
	a, c := values(ours, rss), values(theirs, rss)
	r := row{Name: name, Counterpart: counterpart, Floor: atMost(memoryFloor),
		Ours: figure{median(a), bytesEach}, Theirs: figure{median(c), bytesEach}, Low: a[0], High: a[0]}
	for _, v := range a {
		r.Low, r.High = min(r.Low, v), max(r.High, v)
	}
	if r.Ours.Value > 0 {
		r.Ratio = r.Theirs.Value / r.Ours.Value
	}
	r.addNote("%s actors, measured %d times; counterpart %s", groupDigits(int64(ours[0].Actors)), len(ours), groupDigits(int64(theirs[0].Actors)))
	r.addNote("heap and stacks: ours %v, counterpart %v", figure{median(values(ours, heap)), bytesEach}, figure{median(values(theirs, heap)), bytesEach})
	return r.withVerdict()
}

// measureInChild runs this program as a child process that measures one population of n
// actors, or n simulations.
func measureInChild[T any](b *bench, kind string, n int) (f T, err error) {
	self, err := os.Executable()
	if err != nil {
		return f, err
	}
	cmd := exec.CommandContext(b.ctx, self, childFlag, kind, strconv.Itoa(n))
	cmd.Env = os.Environ()
	if b.dir != "" {
		cmd.Env = append(cmd.Env, "TMPDIR="+b.dir)
	}
	var recorded bytes.Buffer
	cmd.Stderr = &recorded
	out, err := cmd.Output()
	if err != nil {
		return f, fmt.Errorf("%s: %w: %s", kind, err, recorded.String())
	}
	return f, json.Unmarshal(out, &f)
}

// runChild measures one population or simulations, and prints the result. It runs in the
// child process and returns the exit code.
func runChild(kind, count string) int {
	n, err := strconv.Atoi(count)
	of, options := populations[kind], simulations[kind]
	if err != nil || of == nil && options == nil || n < 1 {
		fmt.Fprintf(os.Stderr, "bench: %s %s: want a population or simulations, and a number\n", kind, count)
		return 2
	}
	var f any
	if of != nil {
		f, err = of(n)
	} else {
		f, err = simulate(*options, n)
	}
	if err == nil {
		err = json.MarshalWrite(os.Stdout, f)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		return 1
	}
	return 0
}

// residentActors measures volatile actors that stay in memory.
func residentActors(n int) (f footprint, err error) {
	b := &bench{ctx: context.Background()}
	err = b.withNode(nil, func(node *node) error {
		ask := func(i int) error { return node.ask(b.ctx, numberedActor("echo", i), payload) }
		if f, err = fillAndMeasure(n, func(from, to int) error {
			_, err := runConcurrent(1, to-from, func(_, i int) error { return ask(from + i) })
			return err
		}, noSettle); err != nil {
			return err
		}
		reached := warmUpActors + f.Actors
		if in := actorsInMemory(node.Engine); in != reached {
			return fmt.Errorf("%d of %d actors are in memory", in, reached)
		}
		for i := range min(f.Actors, repeatedAsks) {
			if err := ask(i); err != nil {
				return err
			}
		}
		if in := actorsInMemory(node.Engine); in != reached {
			return fmt.Errorf("%d of %d actors are in memory after repeated asks", in, reached)
		}
		return nil
	}, echo("echo", actor.Volatile))
	return f, err
}

// passivatedActors measures journaled actors that have left memory.
func passivatedActors(n int) (f footprint, err error) {
	b := &bench{ctx: context.Background()}
	const callers = 64
	err = b.withNode(func(c *engine.Config) { c.Limits.PassivateAfter = passivateAfter }, func(node *node) error {
		send := func(from, to int) error {
			_, err := runConcurrent(callers, to-from, func(caller, i int) error {
				return node.ask(b.ctx, numberedActor("echo", from+callers*i+caller), payload)
			})
			return err
		}
		if f, err = fillAndMeasure(n, send, func() error { return waitUntilPassivated(node.Engine) }); err != nil {
			return err
		}
		return send(0, min(f.Actors, repeatedAsks)) // they are recovered from the log
	}, echo("echo", actor.Journaled))
	return f, err
}

// waitUntilPassivated waits for at most a minute until no actor is in memory.
func waitUntilPassivated(e *engine.Engine) error {
	for range 600 { // 600 intervals of 100 ms
		if actorsInMemory(e) == 0 {
			return nil
		}
		time.Sleep(passivateAfter / 10)
	}
	return fmt.Errorf("%d actors are still in memory", actorsInMemory(e))
}

// channelGoroutines measures goroutines behind channels.
func channelGoroutines(n int) (footprint, error) {
	channels := newChannelActors(0, 1, 1)
	return fillAndMeasure(n, func(from, to int) error {
		for range to - from {
			channels.actors = append(channels.actors, startChain(1))
			if len(channels.ask(0, len(channels.actors)-1, payload)) != len(payload) {
				return errLostMessage
			}
		}
		return nil
	}, noSettle)
}

// noSettle is the settle function of actors that stay in memory.
func noSettle() error { return nil }

// warmUpActors is the number of actors created before the measurement. They fill
// buffers and pools.
const warmUpActors = 1000

// fillAndMeasure sends messages to actors -warmUpActors to n-1 in batches, and
// calls the function settle before each measurement. It returns the footprint of
// the actors 0 to n-1.
func fillAndMeasure(n int, send func(from, to int) error, settle func() error) (footprint, error) {
	const some = 10_000
	if err := errors.Join(send(-warmUpActors, 0), settle()); err != nil {
		return footprint{}, err
	}
	before, began, reached := measureMemory(), time.Now(), 0
	for reached < n && (reached == 0 || time.Since(began) < fillWithin) {
		next := min(reached+some, n)
		if err := send(reached, next); err != nil {
			return footprint{}, err
		}
		reached = next
	}
	if err := settle(); err != nil {
		return footprint{}, err
	}
	return measureMemory().since(before, reached), nil
}

// numberedActor returns the i-th actor of an agent, with an ID of idBytes.
func numberedActor(agent string, i int) actor.ID {
	return actor.NewID(agent, fmt.Sprintf("%0*d", idBytes-len(agent)-1, i+warmUpActors))
}

func actorsInMemory(e *engine.Engine) (n int) {
	for _, c := range e.Stats().Cells {
		n += c.Actors
	}
	return n
}

// measureMemory collects garbage and returns the memory that the process uses.
func measureMemory() footprint {
	runtime.GC()
	debug.FreeOSMemory()
	sample := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}, {Name: "/memory/classes/heap/stacks:bytes"}}
	metrics.Read(sample)
	return footprint{RSS: residentBytes(), Heap: float64(sample[0].Value.Uint64() + sample[1].Value.Uint64())}
}

func (f footprint) since(before footprint, n int) footprint {
	return footprint{(f.RSS - before.RSS) / float64(n), (f.Heap - before.Heap) / float64(n), n}
}

// residentBytes returns the resident set size of the process, in bytes.
func residentBytes() float64 {
	var size, pages int
	b, _ := os.ReadFile("/proc/self/statm")
	fmt.Sscan(string(b), &size, &pages) //nolint:errcheck // on failure the result is 0, which is conspicuous
	return float64(pages * os.Getpagesize())
}

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
	// childFlag has this program measure its own memory, and print it.
	childFlag = "-child-measures-memory"
	// idBytes is how long the id of an actor is, written out.
	idBytes = 24
	// memoryFloor is in bytes for each actor.
	memoryFloor = 300
	// memoryRounds is enough for what hardly varies and takes long, and if all of
	// them took longer than memoryWithin, fewer are.
	memoryRounds = 5
	memoryWithin = time.Minute
	// swellWithin is how long actors are made, at most; those that there are then count.
	swellWithin = 90 * time.Second
	// askedAgain is how many of them are asked a second time.
	askedAgain = 10_000

	passivateAfter = time.Second
)

// crowded is what many idle actors take up, by what holds them. Each has dealt
// with one message.
var crowded = map[string]func(n int) (footprint, error){
	"resident":   residents,
	"passivated": passivated,
	"channels":   goroutines,
}

// footprint is what an actor takes up, in bytes, of so many that there were.
type footprint struct {
	RSS    float64 `json:"rss"`
	Heap   float64 `json:"heap"` // and stacks
	Actors int     `json:"actors"`
}

// studyMemory measures what idle actors take up, each crowd in a process of its own.
func studyMemory(b *bench) ([]row, error) {
	const by = "a goroutine and its channel, each"
	rounds, began := min(b.rounds, memoryRounds), time.Now()
	found := map[string][]footprint{}
	for i := 0; i < rounds && (i == 0 || time.Since(began) < memoryWithin); i++ {
		for _, kind := range []string{"resident", "channels"} {
			b.progress("%s: round %d of %d", kind, i+1, rounds)
			f, err := b.measure(kind)
			if err != nil {
				return nil, err
			}
			found[kind] = append(found[kind], f)
		}
	}
	b.progress("passivated")
	p, err := b.measure("passivated")
	if err != nil {
		return nil, err
	}
	found["passivated"] = []footprint{p}
	return []row{weighed("memory of an idle actor that is resident", by, found["resident"], found["channels"]),
		weighed("memory of an idle actor that left memory", by, found["passivated"], found["channels"])}, nil
}

// weighed is the row of two footprints.
func weighed(name, counterpart string, ours, theirs []footprint) row {
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
	r.beside("%s actors, measured %d times; counterpart %s", grouped(int64(ours[0].Actors)), len(ours), grouped(int64(theirs[0].Actors)))
	r.beside("heap and stacks: ours %v, counterpart %v", figure{median(values(ours, heap)), bytesEach}, figure{median(values(theirs, heap)), bytesEach})
	return r.judged()
}

// measure runs this program once more, for one crowd.
func (b *bench) measure(kind string) (f footprint, err error) {
	self, err := os.Executable()
	if err != nil {
		return f, err
	}
	cmd := exec.CommandContext(b.ctx, self, childFlag, kind, strconv.Itoa(b.actors))
	cmd.Env = os.Environ()
	if b.dir != "" {
		cmd.Env = append(cmd.Env, "TMPDIR="+b.dir)
	}
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		return f, fmt.Errorf("%s: %w: %s", kind, err, said.String())
	}
	return f, json.Unmarshal(out, &f)
}

// child is the other process: it measures itself.
func child(kind, count string) int {
	n, err := strconv.Atoi(count)
	of := crowded[kind]
	if err != nil || of == nil || n < 1 {
		fmt.Fprintf(os.Stderr, "bench: %s %s: want a kind of crowd and a number\n", kind, count)
		return 2
	}
	f, err := of(n)
	if err == nil {
		err = json.MarshalWrite(os.Stdout, f)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		return 1
	}
	return 0
}

// residents are actors that write nothing down, and stay.
func residents(n int) (f footprint, err error) {
	b := &bench{ctx: context.Background()}
	err = b.in(nil, func(node *node) error {
		say := func(i int) error { return node.ask(b.ctx, numbered("echo", i), payload) }
		if f, err = swell(n, func(from, to int) error {
			_, err := crowd(1, to-from, func(_, i int) error { return say(from + i) })
			return err
		}, stay); err != nil {
			return err
		}
		there := warmUp + f.Actors
		if in := inMemory(node.Engine); in != there {
			return fmt.Errorf("%d of %d actors are in memory", in, there)
		}
		for i := range min(f.Actors, askedAgain) {
			if err := say(i); err != nil {
				return err
			}
		}
		if in := inMemory(node.Engine); in != there {
			return fmt.Errorf("%d of %d actors are in memory, after some were asked again", in, there)
		}
		return nil
	}, echo("echo", actor.Volatile))
	return f, err
}

// passivated are actors that were written down and left memory.
func passivated(n int) (f footprint, err error) {
	b := &bench{ctx: context.Background()}
	const callers = 64
	err = b.in(func(c *engine.Config) { c.Limits.PassivateAfter = passivateAfter }, func(node *node) error {
		tell := func(from, to int) error {
			_, err := crowd(callers, to-from, func(caller, i int) error {
				return node.ask(b.ctx, numbered("echo", from+callers*i+caller), payload)
			})
			return err
		}
		if f, err = swell(n, tell, func() error { return empty(node.Engine) }); err != nil {
			return err
		}
		return tell(0, min(f.Actors, askedAgain)) // they can still be had
	}, echo("echo", actor.Journaled))
	return f, err
}

// empty waits until no actor is in memory.
func empty(e *engine.Engine) error {
	for range 600 { // a minute
		if inMemory(e) == 0 {
			return nil
		}
		time.Sleep(passivateAfter / 10)
	}
	return fmt.Errorf("%d actors do not leave memory", inMemory(e))
}

// goroutines are actors behind channels.
func goroutines(n int) (footprint, error) {
	channels := newBare(0, 1, 1)
	return swell(n, func(from, to int) error {
		for range to - from {
			channels.actors = append(channels.actors, linked(1))
			if len(channels.ask(0, len(channels.actors)-1, payload)) != len(payload) {
				return errSilent
			}
		}
		return nil
	}, stay)
}

// stay is how actors settle that are not to leave.
func stay() error { return nil }

// warmUp is how many actors there are before one counts: buffers are made, and
// pools filled.
const warmUp = 1000

// swell has actors -warmUp to n-1 told something, some at a time, and weighs those
// from 0 on, each time when they have settled.
func swell(n int, tell func(from, to int) error, settle func() error) (footprint, error) {
	const some = 10_000
	if err := errors.Join(tell(-warmUp, 0), settle()); err != nil {
		return footprint{}, err
	}
	before, began, there := weigh(), time.Now(), 0
	for there < n && (there == 0 || time.Since(began) < swellWithin) {
		next := min(there+some, n)
		if err := tell(there, next); err != nil {
			return footprint{}, err
		}
		there = next
	}
	if err := settle(); err != nil {
		return footprint{}, err
	}
	return weigh().since(before, there), nil
}

// numbered is an actor with a long id.
func numbered(agent string, i int) actor.ID {
	return actor.NewID(agent, fmt.Sprintf("%0*d", idBytes-len(agent)-1, i+warmUp))
}

func inMemory(e *engine.Engine) (n int) {
	for _, c := range e.Stats().Cells {
		n += c.Actors
	}
	return n
}

// weigh is what the process takes up now, with all garbage gone.
func weigh() footprint {
	runtime.GC()
	debug.FreeOSMemory()
	sample := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}, {Name: "/memory/classes/heap/stacks:bytes"}}
	metrics.Read(sample)
	return footprint{RSS: resident(), Heap: float64(sample[0].Value.Uint64() + sample[1].Value.Uint64())}
}

func (f footprint) since(before footprint, n int) footprint {
	return footprint{(f.RSS - before.RSS) / float64(n), (f.Heap - before.Heap) / float64(n), n}
}

// resident is how much of the process is in memory.
func resident() float64 {
	var size, pages int
	b, _ := os.ReadFile("/proc/self/statm")
	fmt.Sscan(string(b), &size, &pages) //nolint:errcheck // else it is 0, and nobody can miss that
	return float64(pages * os.Getpagesize())
}

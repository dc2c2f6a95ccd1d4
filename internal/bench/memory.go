// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
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
	// memoryRounds is enough for what hardly varies and takes long.
	memoryRounds = 5

	passivateAfter = time.Second
)

// crowded is what many idle actors take up, by what holds them. Each has dealt
// with one message.
var crowded = map[string]func(n int) (footprint, error){
	"resident":   residents,
	"passivated": passivated,
	"channels":   goroutines,
}

// footprint is what an actor takes up, in bytes.
type footprint struct {
	RSS  float64 `json:"rss"`
	Heap float64 `json:"heap"` // and stacks
}

// studyMemory measures what idle actors take up, each crowd in a process of its own.
func studyMemory(b *bench) ([]row, error) {
	const by = "a goroutine and its channel, each"
	rounds := min(b.rounds, memoryRounds)
	var found = map[string][]footprint{}
	for i := range rounds {
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
	name := func(what string) string {
		return fmt.Sprintf("memory of an idle actor %s, of %s", what, grouped(int64(b.actors)))
	}
	rows := []row{weighed(name("that is resident"), by, found["resident"], found["channels"]),
		weighed(name("that left memory"), by, found["passivated"], found["channels"])}
	rows[1].beside("measured once")
	return rows, nil
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
		if f, err = swell(n, func(i int) error { return node.ask(b.ctx, numbered("echo", i), payload) }); err != nil {
			return err
		}
		if stay := inMemory(node.Engine); stay < n {
			return fmt.Errorf("%d of %d are in memory", stay, n)
		}
		for i := range n {
			if err := node.ask(b.ctx, numbered("echo", i), payload); err != nil {
				return err
			}
		}
		if stay := inMemory(node.Engine); stay != n+warmUp {
			return fmt.Errorf("%d are in memory, of %d", stay, n+warmUp)
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
		empty := func() error {
			for range 600 { // a minute
				if inMemory(node.Engine) == 0 {
					return nil
				}
				time.Sleep(passivateAfter / 10)
			}
			return fmt.Errorf("%d actors do not leave memory", inMemory(node.Engine))
		}
		tell := func(from, to int) error {
			_, err := crowd(callers, to-from, func(caller, i int) error {
				return node.ask(b.ctx, numbered("echo", from+callers*i+caller), payload)
			})
			if err == nil {
				err = empty()
			}
			return err
		}
		if err := tell(-warmUp, 0); err != nil {
			return err
		}
		before := weigh()
		if err := tell(0, n); err != nil {
			return err
		}
		f = weigh().since(before, n)
		return tell(0, min(n, 1000)) // they can still be had
	}, echo("echo", actor.Journaled))
	return f, err
}

// goroutines are actors behind channels.
func goroutines(n int) (footprint, error) {
	channels := newBare(warmUp, 1, 1)
	return swell(n, func(i int) error {
		if i >= 0 {
			channels.actors = append(channels.actors, linked(1))
		}
		if len(channels.ask(0, i+warmUp, payload)) != len(payload) {
			return errSilent
		}
		return nil
	})
}

// warmUp is how many actors there are before one counts: buffers are made, and
// pools filled.
const warmUp = 1000

// swell says something to actors -warmUp to n-1, and weighs the last n.
func swell(n int, say func(i int) error) (footprint, error) {
	for i := -warmUp; i < 0; i++ {
		if err := say(i); err != nil {
			return footprint{}, err
		}
	}
	before := weigh()
	for i := range n {
		if err := say(i); err != nil {
			return footprint{}, err
		}
	}
	return weigh().since(before, n), nil
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
	return footprint{(f.RSS - before.RSS) / float64(n), (f.Heap - before.Heap) / float64(n)}
}

// resident is how much of the process is in memory.
func resident() float64 {
	var size, pages int
	b, _ := os.ReadFile("/proc/self/statm")
	fmt.Sscan(string(b), &size, &pages) //nolint:errcheck // else it is 0, and nobody can miss that
	return float64(pages * os.Getpagesize())
}

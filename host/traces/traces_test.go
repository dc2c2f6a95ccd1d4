// SPDX-License-Identifier: Apache-2.0

package traces

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/host/disk"
	"github.com/troupe-run/troupe/host/logs"
	"github.com/troupe-run/troupe/runs"
	"github.com/troupe-run/troupe/upstream"
)

// testLog is a log with a run in each batch.
type testLog struct {
	mu      sync.Mutex
	items   []Item
	changed chan struct{}
	text    string // of the message and the answer of each run
	tools   int    // calls of each run
	deleted bool   // no run is known
}

func (l *testLog) End() uint64              { return uint64(len(l.items)) }
func (l *testLog) Changed() <-chan struct{} { return l.changed }

func (l *testLog) Items(_ context.Context, after uint64, room int) (all []Item, upto uint64, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for upto = after; int(upto) < len(l.items) && len(all) < room; upto++ {
		all = append(all, l.items[upto])
	}
	return all, upto, nil
}

func (l *testLog) Root(_ string, run actor.CallID) (actor.CallID, bool, error) {
	return run, !l.deleted, nil
}

func (l *testLog) Events(_ string, run actor.CallID, upto uint64, each func(*runs.Event)) error {
	now := actor.Time(time.Now().UnixNano())
	all := []runs.Event{{Type: runs.UserInput, Text: l.text}, {Type: runs.RunStarted}}
	for i := range l.tools {
		all = append(all, runs.Event{Type: runs.ToolCallCreated, Step: 1, Index: uint16(i), Name: "pay"}, runs.Event{Type: runs.ToolResult, Step: 1, Index: uint16(i), Name: "pay"})
	}
	for i, e := range append(all, runs.Event{Type: runs.RunDone, Text: l.text}) {
		if e.Run, e.Seq, e.At = run, uint64(i+1), now; e.Seq <= upto {
			each(&e)
		}
	}
	return nil
}

// end adds the end of n runs.
func (l *testLog) end(n int) {
	l.mu.Lock()
	for range n {
		l.items = append(l.items, Item{Batch: uint64(len(l.items) + 1), Owner: testOwner, Run: actor.CallID{0: 1, 14: byte(len(l.items) >> 8), 15: byte(len(l.items))}, Seq: uint64(3 + 2*l.tools)})
	}
	l.mu.Unlock()
	select {
	case l.changed <- struct{}{}:
	default:
	}
}

// collector answers with a status, after a delay.
type collector struct {
	mu     sync.Mutex
	status int
	delay  time.Duration
	calls  int
	spans  map[string]int // times by identifier
	most   int            // spans of a request; more are refused as too large; 0: any
	bytes  int            // of the largest request
	sizes  []int          // spans of each request that was taken
}

func (c *collector) RoundTrip(r *http.Request) (*http.Response, error) {
	b, _ := io.ReadAll(r.Body)
	c.mu.Lock()
	status, delay := c.status, c.delay
	c.calls++
	c.bytes = max(c.bytes, len(b))
	c.mu.Unlock()
	select {
	case <-time.After(delay):
	case <-r.Context().Done():
		return nil, r.Context().Err()
	}
	if status == 0 {
		return nil, errors.New("connection refused")
	}
	var in body
	if err := json.Unmarshal(b, &in); err != nil {
		return nil, err
	}
	c.mu.Lock()
	if c.most > 0 && len(in.Resources[0].Scopes[0].Spans) > c.most {
		status = http.StatusRequestEntityTooLarge
	}
	c.mu.Unlock()
	if status == 200 {
		c.mu.Lock()
		c.sizes = append(c.sizes, len(in.Resources[0].Scopes[0].Spans))
		for _, s := range in.Resources[0].Scopes[0].Spans {
			c.spans[s.Trace+s.ID]++
		}
		c.mu.Unlock()
	}
	return &http.Response{StatusCode: status, Header: http.Header{}, Body: io.NopCloser(strings.NewReader("{}"))}, nil
}

func (c *collector) set(status int, delay time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.status, c.delay = status, delay
}

func (c *collector) got() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.spans)
}

// allow sets the maximum number of spans of a request.
func (c *collector) allow(most int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.most = most
}

// asked returns the number of requests.
func (c *collector) asked() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.calls
}

func openTraces(t *testing.T, dir string, l *testLog, c *collector, log io.Writer, set ...func(*Options)) *Traces {
	t.Helper()
	egress, _ := upstream.NewEgress(upstream.AllowLoopback())
	o := Options{Config: Config{Endpoint: "http://127.0.0.1:4318/"}, Positions: disk.NewPositions(dir, ".json"), Service: "troupe", Transport: c, Egress: egress, Env: os.LookupEnv, Logger: slog.New(slog.NewTextHandler(log, nil))}
	for _, f := range set {
		f(&o)
	}
	traces, err := Open(o, l)
	if err != nil {
		t.Fatal(err)
	}
	traces.Start()
	return traces
}

// Spans arrive once the collector takes them: it was away, slow, or failed. Those that it rejects, and those that wait
// for StaleAfter, are dropped and counted, with a line in the log once a minute.
func TestCollectorThatIsAway(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		l, c, log := &testLog{changed: make(chan struct{}, 1)}, &collector{spans: map[string]int{}}, new(bytes.Buffer)
		traces := openTraces(t, dir, l, c, log)
		for _, away := range []struct {
			status int
			delay  time.Duration
		}{{0, 0}, {500, 0}, {429, 0}, {200, time.Minute}} {
			before := c.got()
			c.set(away.status, away.delay)
			l.end(3)
			<-time.After(3 * time.Minute)
			if c.got() != before {
				t.Errorf("%+v: spans were sent", away)
			}
			c.set(200, 0)
			<-time.After(3 * time.Minute)
			if got := c.got(); got != before+3 {
				t.Errorf("%+v: got %d spans, want 3 more than %d", away, got, before)
			}
		}
		sent := c.got()
		c.set(400, 0)
		l.end(5)
		<-time.After(3 * time.Minute)
		if s := traces.Stats(); s.Dropped != 5 || s.Sent != uint64(sent) || s.Waiting != 0 {
			t.Errorf("rejected: got %+v", s)
		}
		c.set(500, 0)
		l.end(3 * pendingMax)
		calls := c.asked()
		<-time.After(2*StaleAfter + 5*time.Minute)
		s := traces.Stats()
		traces.Close()
		if s.Dropped < 5+pendingMax || s.Waiting > pendingMax {
			t.Errorf("failing for two hours: got %+v", s)
		}
		if n := c.asked() - calls; n > 300 {
			t.Errorf("it was asked %d times in two hours", n)
		}
		if lines := strings.Count(log.String(), "spans are not sent"); lines < 100 || lines > 200 {
			t.Errorf("got %d lines in %s", lines, 2*StaleAfter)
		}
	})
}

// What was not sent before the process ended is sent after the next start, and little of the rest again.
func TestRestartContinues(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		l, c := &testLog{changed: make(chan struct{}, 1)}, &collector{spans: map[string]int{}}
		c.set(200, 0)
		traces := openTraces(t, dir, l, c, io.Discard)
		l.end(1000)
		<-time.After(time.Minute)
		c.set(503, 0)
		l.end(1000)
		<-time.After(time.Minute)
		traces.Close()
		c.set(200, 0)
		traces = openTraces(t, dir, l, c, io.Discard)
		<-time.After(time.Minute)
		traces.Close()
		again := 0
		for _, n := range c.spans {
			again += n - 1
		}
		if c.got() != 2000 || again != 0 {
			t.Errorf("got %d spans, %d of them again", c.got(), again)
		}
	})
}

// lostPositions are those of a log that another process takes after a number of writes. One write before fails.
type lostPositions struct {
	disk.Positions
	left, failing, refused int
}

func (p *lostPositions) Write(name string, value []byte) error {
	p.left--
	switch {
	case p.left == p.failing:
		return errors.New("the database is away")
	case p.left < 0:
		p.refused++
		return logs.ErrNotOwner
	}
	return p.Positions.Write(name, value)
}

// A position that could not be written is tried again, and a process that has lost its log stops to send its spans.
func TestFormerOwnerStops(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		l, c, log := &testLog{changed: make(chan struct{}, 1)}, &collector{spans: map[string]int{}}, &bytes.Buffer{}
		c.set(200, 0)
		p := &lostPositions{disk.NewPositions(dir, ".json"), 3, 1, 0} // at the start, one that fails, and the same again
		traces := openTraces(t, dir, l, c, log, func(o *Options) { o.Positions = p })
		l.end(5)
		<-time.After(time.Minute)
		if b, ok, err := p.Read(positionName); err != nil || !ok || !strings.Contains(string(b), `"batch":5`) {
			t.Errorf("position %s, %v, %v", b, ok, err)
		}
		l.end(1) // is sent, and then the write is refused
		<-time.After(time.Minute)
		for range 20 {
			l.end(10)
			<-time.After(time.Minute)
		}
		synctest.Wait()
		if c.got() != 6 || p.refused == 0 || p.refused > 2 {
			t.Errorf("%d spans were sent, %d writes refused", c.got(), p.refused)
		}
		for _, line := range []string{"cannot be written", "is written again", "another process has the log"} {
			if n := strings.Count(log.String(), line); n != 1 {
				t.Errorf("%d lines with %q, want 1: %s", n, line, log)
			}
		}
		traces.Close()
	})
}

func TestConfigCheck(t *testing.T) {
	env := func(name string) (string, bool) { return map[string]string{"TOKEN": "secret"}[name], name == "TOKEN" }
	egress, _ := upstream.NewEgress(upstream.AllowLoopback())
	for _, c := range []struct {
		config Config
		url    string
		want   string
	}{
		{Config{}, "", ""},
		{Config{Endpoint: "http://127.0.0.1:4318"}, "http://127.0.0.1:4318/v1/traces", ""},
		{Config{Endpoint: "http://127.0.0.1:4318/otlp/v1/traces?key=1", Headers: map[string]string{"X-A": "b"}, HeaderEnv: map[string]string{"authorization": "TOKEN"}}, "http://127.0.0.1:4318/otlp/v1/traces?key=1", ""},
		{Config{Content: true}, "", "endpoint: is missing"},
		{Config{Endpoint: "127.0.0.1:4318"}, "", "endpoint: "},
		{Config{Endpoint: "http://10.0.0.1:4318"}, "", "endpoint: "},
		{Config{Endpoint: "http://127.0.0.1:4318", HeaderEnv: map[string]string{"a": "ABSENT"}}, "", "header_env.a: the environment variable ABSENT is not set"},
		{Config{Endpoint: "http://127.0.0.1:4318", HeaderEnv: map[string]string{"a": "Bearer x"}}, "", "header_env.a: want the name of an environment variable"},
		{Config{Endpoint: "http://127.0.0.1:4318", Headers: map[string]string{"a": "b\nc"}}, "", "headers.a: want one line"},
		{Config{Endpoint: "http://127.0.0.1:4318", Headers: map[string]string{"A": "b"}, HeaderEnv: map[string]string{"a": "TOKEN"}}, "", "header_env.a: is set twice"},
	} {
		got, err := c.config.target(env, egress)
		if c.want == "" && (err != nil || got.url != c.url) || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%+v: got %+v, %v", c.config, got, err)
		}
	}
}

// A log that changes all the time, more often than spans are collected, holds none of them back.
func TestSpansOfBusyLogAreSent(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		l, c := &testLog{changed: make(chan struct{}, 1)}, &collector{spans: map[string]int{}}
		c.set(200, 0)
		traces := openTraces(t, dir, l, c, io.Discard)
		for range 100 {
			l.end(1)
			<-time.After(collectEvery / 5)
		}
		if got := c.got(); got < 90 {
			t.Errorf("got %d of 100 spans while the log changes", got)
		}
		traces.Close()
	})
}

// A collector that refuses a request as too large gets smaller ones, and all spans.
func TestRequestsAreSplit(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		l, c := &testLog{changed: make(chan struct{}, 1)}, &collector{spans: map[string]int{}, most: 10}
		c.set(200, 0)
		traces := openTraces(t, dir, l, c, io.Discard)
		l.end(100)
		<-time.After(30 * time.Minute)
		if got, s := c.got(), traces.Stats(); got != 100 || s.Dropped != 0 {
			t.Errorf("got %d of 100 spans, %+v", got, s)
		}
		c.set(200, 0)
		c.allow(0)
		l.end(10)
		<-time.After(time.Minute)
		c.allow(0)
		l.end(100)
		<-time.After(time.Minute)
		traces.Close()
		if got := c.sizes[len(c.sizes)-1]; got < 50 {
			t.Errorf("got %d spans in a request, after the collector takes large ones again", got)
		}
	})
}

func TestNamesOfTools(t *testing.T) {
	for name, want := range map[string]string{"payments.transfer": "payments.transfer", "call_agent": "call_agent", "": "", "a b": "(unknown)",
		"x\x1b]0;pwn\a": "(unknown)", "müller": "(unknown)", strings.Repeat("x", 1000): "(unknown)"} {
		if got := nameOfTool(name); got != want {
			t.Errorf("%.40q: got %q, want %q", name, got, want)
		}
	}
}

// While the collector is away, the number of spans is bounded, and the bytes of their texts.
func TestSpansInMemoryAreBounded(t *testing.T) {
	for name, l := range map[string]*testLog{"texts": {text: strings.Repeat("x", 400<<10)}, "spans": {tools: 900}} {
		dir := t.TempDir()
		synctest.Test(t, func(t *testing.T) {
			l.changed = make(chan struct{}, 1)
			c := &collector{spans: map[string]int{}}
			c.set(500, 0)
			traces := openTraces(t, dir, l, c, io.Discard, func(o *Options) { o.Content = true })
			l.end(100)
			<-time.After(10 * time.Minute)
			s := traces.Stats()
			counted := traces.Room.bytes.Load()
			traces.Close()
			size := 0
			for i := range traces.pending {
				size += traces.pending[i].size()
			}
			if len(traces.pending) == 0 || len(traces.pending) > pendingMax || size > pendingSize || size != int(counted) || s.Dropped == 0 {
				t.Errorf("%s: %d spans of %d bytes (counted: %d) wait, %+v", name, len(traces.pending), size, counted, s)
			}
			if spans, bytes := traces.Room.spans.Load(), traces.Room.bytes.Load(); spans != 0 || bytes != 0 {
				t.Errorf("%s: %d spans of %d bytes have not left the room of the other logs", name, spans, bytes)
			}
			if c.bytes > 2*batchBytes {
				t.Errorf("%s: a request has %d bytes", name, c.bytes)
			}
		})
	}
}

// The spans of clients are remembered until their runs end or are deleted, and only so many.
func TestParentsAreForgotten(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		l, c := &testLog{changed: make(chan struct{}, 1)}, &collector{spans: map[string]int{}}
		c.set(200, 0)
		traces := openTraces(t, dir, l, c, io.Discard)
		accept := func(n int) {
			l.end(n)
			l.mu.Lock()
			for i := range n {
				one := &l.items[len(l.items)-1-i]
				one.Seq, one.Trace = 0, "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
			}
			l.mu.Unlock()
			<-time.After(time.Minute)
		}
		accept(2)
		l.deleted = true
		l.mu.Lock()
		l.items = append(l.items, Item{Batch: 3, Owner: testOwner, Run: l.items[0].Run, Seq: 3})
		l.mu.Unlock()
		l.changed <- struct{}{}
		<-time.After(time.Minute)
		accept(parentsMax + 10)
		traces.Close()
		if _, left := traces.position.Parents[l.items[0].Run.String()]; left || len(traces.position.Parents) != parentsMax {
			t.Errorf("got %d parents, that of a deleted run: %v", len(traces.position.Parents), left)
		}
	})
}

// All logs of a node have one room for spans that wait.
func TestLogsShareTheRoom(t *testing.T) {
	var r Room
	for range pendingMax {
		if !r.take(1) {
			t.Fatal("no room for a span")
		}
	}
	if r.take(1) {
		t.Error("room for a span too many")
	}
	r.leave(1)
	if r.take(pendingSize) {
		t.Error("room for a byte too many")
	}
	if !r.take(1) {
		t.Error("no room for a span after one has left")
	}
	l, c := &testLog{}, &collector{spans: map[string]int{}}
	c.set(500, 0)
	synctest.Test(t, func(t *testing.T) {
		l.changed = make(chan struct{}, 1)
		traces := openTraces(t, t.TempDir(), l, c, io.Discard, func(o *Options) { o.Room = &r })
		l.end(10)
		<-time.After(time.Minute)
		s := traces.Stats()
		for range pendingMax {
			r.leave(1)
		}
		c.set(200, 0)
		<-time.After(5 * time.Minute)
		later := traces.Stats()
		traces.Close()
		if s.Waiting != 0 || s.Dropped != 0 || later.Sent == 0 || later.Dropped != 0 {
			t.Errorf("without room: %+v, then with it: %+v", s, later)
		}
	})
}

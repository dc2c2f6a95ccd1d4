// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/troupe-run/troupe/runs"
)

// client does one errand after the other. What a kill leaves open is a debt,
// that it asks the next server for.
type client struct {
	*harness
	id        int
	scenarios []scenario
	rng       *rand.Rand
	counter   *atomic.Int64
	pending   *exchange
}

// clientCount is how many ask at the same time.
const clientCount = 32

func newClients(c *harness) []*client {
	var all []*client
	var count atomic.Int64
	for id := range clientCount {
		all = append(all, &client{harness: c, id: id, scenarios: scenariosOf(id), rng: rand.New(rand.NewPCG(c.seed, uint64(id)+1)), counter: &count})
	}
	return all
}

// newExchange is a new errand. Two clients share a session, so that messages queue.
func (c *client) newExchange() *exchange {
	n := int(c.counter.Add(1))
	j := c.scenarios[n%len(c.scenarios)]
	e := &exchange{scenario: j, n: n, session: fmt.Sprintf("s-%d-%d", c.id/2, c.rng.IntN(3))}
	e.content, e.want = j.compose(fmt.Sprintf("word-%d", n))
	if j.agent == coordinator {
		e.session = fmt.Sprintf("c-%d", n) // it holds its session until it is signalled
	}
	if j.agent == coordinator || c.rng.IntN(2) == 0 {
		e.key = fmt.Sprintf("key-%d", n)
	}
	return e
}

// step does one thing: it goes after its debt, looks at what was told earlier,
// or does a new errand.
func (c *client) step(inst *instance) {
	e := c.pending
	c.pending = nil
	if c.id < 2 && inst.changed[c.id].CompareAndSwap(false, true) {
		c.changeResource(inst)
	}
	if e == nil && c.rng.IntN(8) == 0 {
		c.ledger.recheck(inst, c.rng)
		return
	}
	if e == nil {
		e = c.newExchange()
	}
	err := c.perform(inst, e)
	if err != nil && !inst.exitsSoon() {
		c.ledger.report(wrong, "%s: while the server lives: %v", e, err)
		err = nil
	}
	if err != nil && !e.ended() && (e.key != "" || e.run != "") {
		c.pending = e
		return
	}
	c.ledger.add(e)
}

// exitsSoon waits a while for the end of the server; false if it lives on.
func (inst *instance) exitsSoon() bool {
	select {
	case <-inst.exited:
		return true
	case <-inst.ctx.Done():
		return true
	case <-time.After(5 * time.Second):
		return false
	}
}

// perform sends the message, or goes after what it became. The error says that the
// client does not know how it came out.
func (c *client) perform(inst *instance, e *exchange) error {
	if e.run != "" && (e.key == "" || e.n%2 == 0) {
		return c.follow(inst, e)
	}
	q := request{http.MethodPost, "/v1/agents/" + e.agent + "/messages", e.body(), nil}
	if e.key != "" {
		q.headers = append(q.headers, "Idempotency-Key", e.key)
	}
	if e.stream {
		q.headers = append(q.headers, "Accept", "text/event-stream")
		return c.readStream(inst, e, q, 0)
	}
	var a answer
	status, err := inst.ask(q, &a)
	if err != nil {
		return err
	}
	c.ledger.recordAnswer(e, status, a)
	if status == http.StatusAccepted {
		return c.follow(inst, e)
	}
	return nil
}

func (e *exchange) body() string {
	b, err := json.Marshal(map[string]string{"content": e.content, "session": e.session}, json.Deterministic(true))
	if err != nil {
		panic(err)
	}
	return string(b)
}

// follow goes on where the client stopped reading: most listen, some ask page by page.
func (c *client) follow(inst *instance, e *exchange) error {
	if e.needsSignal() {
		if err := c.signal(inst, e); err != nil {
			return err
		}
	}
	if e.n%4 == 0 {
		return c.readPages(inst, e)
	}
	q := request{http.MethodGet, "/v1/runs/" + e.run + "/events", "", []string{"Accept", "text/event-stream"}}
	if n := len(e.events); n > 0 {
		q.headers = append(q.headers, "Last-Event-ID", strconv.Itoa(n))
	}
	return c.readStream(inst, e, q, len(e.events))
}

// readStream reads a stream to its end.
func (c *client) readStream(inst *instance, e *exchange, q request, after int) error {
	inst.open.Add(1)
	response, err := inst.send(q)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if media, _, _ := strings.Cut(response.Header.Get("Content-Type"), ";"); media != "text/event-stream" {
		var a answer
		status, err := readJSON(response, &a)
		if err != nil {
			return err
		}
		inst.open.Add(-1)
		c.ledger.recordAnswer(e, status, a)
		if status == http.StatusAccepted {
			return c.follow(inst, e)
		}
		return nil
	}
	t := newRecorder(e, c.ledger, after, inst)
	err = readFrames(response.Body, func(f frame) bool {
		if f.id < 0 {
			c.ledger.report(wrong, "%s: the stream says %s: %s", e, f.name, f.data)
			return true
		}
		last := t.record(f.id, f.data)
		if e.cancels && !last && t.after == 3 && !e.cancelled {
			e.cancelled = c.cancelRun(inst, e)
		}
		if e.needsSignal() {
			_ = c.signal(inst, e) // if the server is gone, the stream is too
		}
		return last
	})
	if err == nil {
		inst.open.Add(-1)
	}
	return err
}

// readPages reads what there is, and waits for more.
func (c *client) readPages(inst *instance, e *exchange) error {
	t := newRecorder(e, c.ledger, len(e.events), inst)
	for !e.ended() {
		q := request{http.MethodGet, fmt.Sprintf("/v1/runs/%s/events?after=%d&limit=5&wait_ms=5000", e.run, t.after), "", nil}
		var page page
		status, err := inst.ask(q, &page)
		if err != nil {
			return err
		}
		if status != http.StatusOK {
			c.ledger.report(lost, "%s: %d %s", e, status, page.Detail)
			return nil
		}
		for _, raw := range page.Events {
			t.record(t.after+1, string(raw))
		}
		if e.needsSignal() {
			if err := c.signal(inst, e); err != nil {
				return err
			}
		}
	}
	return nil
}

// page is some of a run's events.
type page struct {
	Events []jsontext.Value `json:"events"`
	Detail string           `json:"detail"`
}

// needsSignal tells whether the run waits for a signal that nobody has confirmed yet.
func (e *exchange) needsSignal() bool { return e.waiting && !e.signalled && !e.ended() }

// signal lets the run go on. Under its key it may be sent again.
func (c *client) signal(inst *instance, e *exchange) error {
	var a answer
	status, err := inst.ask(request{http.MethodPost, "/v1/runs/" + e.run + ":signal", `{"name":"go"}`, []string{"Idempotency-Key", fmt.Sprintf("go-%d", e.n)}}, &a)
	if err != nil {
		return err
	}
	if e.signalled = status == http.StatusOK; !e.signalled {
		c.ledger.report(wrong, "%s: waits, and cannot be signalled: %d %s %s", e, status, a.Code, a.Detail)
	}
	return nil
}

// cancelRun cancels the run; true if that was acknowledged, and came before its end.
func (c *client) cancelRun(inst *instance, e *exchange) bool {
	var a answer
	status, err := inst.ask(request{http.MethodPost, "/v1/runs/" + e.run + ":cancel", "", nil}, &a)
	if err == nil && status != http.StatusOK && status != http.StatusAccepted { // it is under way
		c.ledger.report(wrong, "%s: cannot be cancelled: %d %s %s", e, status, a.Code, a.Detail)
	}
	return err == nil && a.Status == any(runs.Cancelled.String())
}

// answer is what comes back as JSON, good or bad.
type answer struct {
	Run     string `json:"run_id"`
	Status  any    `json:"status"` // a word, or the number of a failure
	Content string `json:"content"`
	Code    string `json:"code"`
	Detail  string `json:"detail"`
}

// recordAnswer takes note of an answer.
func (l *ledger) recordAnswer(e *exchange, status int, a answer) {
	if a.Run != "" {
		e.setRun(l, a.Run)
	}
	switch {
	case status == http.StatusOK:
		if e.ended() && e.answer != a.Content {
			l.report(lost, "%s: was told %q, and then %q", e, e.answer, a.Content)
		}
		e.answer, e.done = a.Content, true
	case status == http.StatusAccepted:
	case status == http.StatusTooManyRequests || status == http.StatusServiceUnavailable:
		e.refused = a.Code
		l.mu.Lock()
		l.rejected++
		l.mu.Unlock()
	case a.Run != "" && e.allowsFailure(a.Code):
		e.refused = a.Code
	default:
		e.refused = a.Code
		l.report(wrong, "%s: %d %s: %s", e, status, a.Code, a.Detail)
	}
}

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

// client performs one exchange after another. An exchange that a kill interrupted
// stays pending, and the client resumes it with the next instance.
type client struct {
	*harness
	id        int
	scenarios []scenario
	rng       *rand.Rand
	counter   *atomic.Int64
	pending   *exchange
}

// clientCount is the number of concurrent clients.
const clientCount = 32

func newClients(c *harness) []*client {
	var all []*client
	var count atomic.Int64
	for id := range clientCount {
		all = append(all, &client{harness: c, id: id, scenarios: scenariosOf(id, c.members > 0), rng: rand.New(rand.NewPCG(c.seed, uint64(id)+1)), counter: &count})
	}
	return all
}

// newExchange returns a new exchange. Two clients share each session, so that
// messages queue.
func (c *client) newExchange() *exchange {
	n := int(c.counter.Add(1))
	j := c.scenarios[n%len(c.scenarios)]
	e := &exchange{scenario: j, n: n, session: fmt.Sprintf("s-%d-%d", c.id/2, c.rng.IntN(3))}
	e.content, e.want = j.compose(fmt.Sprintf("word-%d", n))
	if j.agent == coordinator {
		e.session = fmt.Sprintf("c-%d", n) // its run holds the session until it is signalled
	}
	if j.agent == coordinator || c.rng.IntN(2) == 0 {
		e.key = fmt.Sprintf("key-%d", n)
	}
	return e
}

// step performs one action: it resumes the pending exchange, rechecks an earlier
// one, or starts a new one.
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
		c.ledger.report(wrong, "%s: request failed although the server runs: %v", e, err)
		err = nil
	}
	if err != nil && !e.ended() && (e.key != "" || e.run != "") {
		c.pending = e
		return
	}
	c.ledger.add(e)
}

// exitsSoon waits for at most 5 seconds for the server to exit, and reports whether
// it did.
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

// perform sends the message, or continues to read the run that the message created.
// An error means that the client does not know the outcome.
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

// follow reads the events after the last one received. Most exchanges read the
// stream, every fourth reads pages.
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
			c.ledger.report(wrong, "%s: the stream reports %s: %s", e, f.name, f.data)
			return true
		}
		last := t.record(f.id, f.data)
		if e.cancels && !last && t.after == 3 && !e.cancelled {
			e.cancelled = c.cancelRun(inst, e)
		}
		if e.needsSignal() {
			_ = c.signal(inst, e) // if the server is gone, the stream fails as well
		}
		return last
	})
	if err == nil {
		inst.open.Add(-1)
	}
	return err
}

// readPages reads events page by page, and waits for new ones, until the run ends.
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

// page is one page of the events of a run, or a problem.
type page struct {
	Events []jsontext.Value `json:"events"`
	Detail string           `json:"detail"`
}

// needsSignal reports whether the run waits for a signal that no server has
// acknowledged.
func (e *exchange) needsSignal() bool { return e.waiting && !e.signalled && !e.ended() }

// signal sends the signal that the run waits for. Its Idempotency-Key makes
// repetition safe.
func (c *client) signal(inst *instance, e *exchange) error {
	var a answer
	status, err := inst.ask(request{http.MethodPost, "/v1/runs/" + e.run + ":signal", `{"name":"go"}`, []string{"Idempotency-Key", fmt.Sprintf("go-%d", e.n)}}, &a)
	if err != nil {
		return err
	}
	if e.signalled = status == http.StatusOK; !e.signalled {
		c.ledger.report(wrong, "%s: signal rejected: %d %s %s", e, status, a.Code, a.Detail)
	}
	return nil
}

// cancelRun cancels the run. It reports whether the server acknowledged the
// cancellation before the run ended otherwise.
func (c *client) cancelRun(inst *instance, e *exchange) bool {
	var a answer
	status, err := inst.ask(request{http.MethodPost, "/v1/runs/" + e.run + ":cancel", "", nil}, &a)
	if err == nil && status != http.StatusOK && status != http.StatusAccepted { // 202 means that the cancellation is in progress
		c.ledger.report(wrong, "%s: cancellation rejected: %d %s %s", e, status, a.Code, a.Detail)
	}
	return err == nil && a.Status == any(runs.Cancelled.String())
}

// answer is a JSON response: a result or a problem.
type answer struct {
	Run     string `json:"run_id"`
	Status  any    `json:"status"` // a state, or the HTTP status of a problem
	Content string `json:"content"`
	Code    string `json:"code"`
	Detail  string `json:"detail"`
}

// recordAnswer records an answer and compares it with earlier ones.
func (l *ledger) recordAnswer(e *exchange, status int, a answer) {
	if a.Run != "" {
		e.setRun(l, a.Run)
	}
	switch {
	case status == http.StatusOK:
		if e.ended() && e.answer != a.Content {
			l.report(lost, "%s: first answer %q, then %q", e, e.answer, a.Content)
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
		l.report(wrong, "%s: answered with %d %s: %s, want 200 or 202", e, status, a.Code, a.Detail)
	}
}

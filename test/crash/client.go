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
	*crash
	id     int
	jobs   []job
	chance *rand.Rand
	count  *atomic.Int64
	debt   *errand
}

// clientsCount is how many ask at the same time.
const clientsCount = 32

func newClients(c *crash) []*client {
	var all []*client
	var count atomic.Int64
	for id := range clientsCount {
		all = append(all, &client{crash: c, id: id, jobs: jobsOf(id), chance: rand.New(rand.NewPCG(c.seed, uint64(id)+1)), count: &count})
	}
	return all
}

// next is a new errand. Two clients share a session, so that messages queue.
func (c *client) next() *errand {
	n := int(c.count.Add(1))
	j := c.jobs[n%len(c.jobs)]
	e := &errand{job: j, n: n, session: fmt.Sprintf("s-%d-%d", c.id/2, c.chance.IntN(3))}
	e.content, e.want = j.say(fmt.Sprintf("word-%d", n))
	if j.agent == coordinator {
		e.session = fmt.Sprintf("c-%d", n) // it holds its session until it is signalled
	}
	if j.agent == coordinator || c.chance.IntN(2) == 0 {
		e.key = fmt.Sprintf("key-%d", n)
	}
	return e
}

// step does one thing: it goes after its debt, looks at what was told earlier,
// or does a new errand.
func (c *client) step(l *life) {
	e := c.debt
	c.debt = nil
	if c.id < 2 && l.changes[c.id].CompareAndSwap(false, true) {
		c.change(l)
	}
	if e == nil && c.chance.IntN(8) == 0 {
		c.ledger.sample(l, c.chance)
		return
	}
	if e == nil {
		e = c.next()
	}
	err := c.do(l, e)
	if err != nil && !l.ends() {
		c.ledger.found(wrong, "%s: while the server lives: %v", e, err)
		err = nil
	}
	if err != nil && !e.ended() && (e.key != "" || e.run != "") {
		c.debt = e
		return
	}
	c.ledger.keep(e)
}

// ends waits a while for the end of the server; false if it lives on.
func (l *life) ends() bool {
	select {
	case <-l.exited:
		return true
	case <-l.ctx.Done():
		return true
	case <-time.After(5 * time.Second):
		return false
	}
}

// do sends the message, or goes after what it became. The error says that the
// client does not know how it came out.
func (c *client) do(l *life, e *errand) error {
	if e.run != "" && (e.key == "" || e.n%2 == 0) {
		return c.follow(l, e)
	}
	q := request{http.MethodPost, "/v1/agents/" + e.agent + "/messages", e.body(), nil}
	if e.key != "" {
		q.headers = append(q.headers, "Idempotency-Key", e.key)
	}
	if e.stream {
		q.headers = append(q.headers, "Accept", "text/event-stream")
		return c.listen(l, e, q, 0)
	}
	var a answer
	status, err := l.ask(q, &a)
	if err != nil {
		return err
	}
	c.ledger.answered(e, status, a)
	if status == http.StatusAccepted {
		return c.follow(l, e)
	}
	return nil
}

func (e *errand) body() string {
	b, err := json.Marshal(map[string]string{"content": e.content, "session": e.session}, json.Deterministic(true))
	if err != nil {
		panic(err)
	}
	return string(b)
}

// follow goes on where the client stopped reading: most listen, some ask page by page.
func (c *client) follow(l *life, e *errand) error {
	if e.waits() {
		if err := c.signal(l, e); err != nil {
			return err
		}
	}
	if e.n%4 == 0 {
		return c.turnPages(l, e)
	}
	q := request{http.MethodGet, "/v1/runs/" + e.run + "/events", "", []string{"Accept", "text/event-stream"}}
	if n := len(e.events); n > 0 {
		q.headers = append(q.headers, "Last-Event-ID", strconv.Itoa(n))
	}
	return c.listen(l, e, q, len(e.events))
}

// listen reads a stream to its end.
func (c *client) listen(l *life, e *errand, q request, after int) error {
	l.open.Add(1)
	response, err := l.send(q)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if media, _, _ := strings.Cut(response.Header.Get("Content-Type"), ";"); media != "text/event-stream" {
		var a answer
		status, err := read(response, &a)
		if err != nil {
			return err
		}
		l.open.Add(-1)
		c.ledger.answered(e, status, a)
		if status == http.StatusAccepted {
			return c.follow(l, e)
		}
		return nil
	}
	t := newTake(e, c.ledger, after, l)
	err = stream(response.Body, func(f frame) bool {
		if f.id < 0 {
			c.ledger.found(wrong, "%s: the stream says %s: %s", e, f.name, f.data)
			return true
		}
		last := t.event(f.id, f.data)
		if e.cancel && !last && t.after == 3 && !e.cancelled {
			e.cancelled = c.giveUp(l, e)
		}
		if e.waits() {
			_ = c.signal(l, e) // if the server is gone, the stream is too
		}
		return last
	})
	if err == nil {
		l.open.Add(-1)
	}
	return err
}

// turnPages reads what there is, and waits for more.
func (c *client) turnPages(l *life, e *errand) error {
	t := newTake(e, c.ledger, len(e.events), l)
	for !e.ended() {
		q := request{http.MethodGet, fmt.Sprintf("/v1/runs/%s/events?after=%d&limit=5&wait_ms=5000", e.run, t.after), "", nil}
		var page page
		status, err := l.ask(q, &page)
		if err != nil {
			return err
		}
		if status != http.StatusOK {
			c.ledger.found(lost, "%s: %d %s", e, status, page.Detail)
			return nil
		}
		for _, raw := range page.Events {
			t.event(t.after+1, string(raw))
		}
		if e.waits() {
			if err := c.signal(l, e); err != nil {
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

// waits tells whether the run waits for a signal that nobody has confirmed yet.
func (e *errand) waits() bool { return e.waiting && !e.signalled && !e.ended() }

// signal lets the run go on. Under its key it may be sent again.
func (c *client) signal(l *life, e *errand) error {
	var a answer
	status, err := l.ask(request{http.MethodPost, "/v1/runs/" + e.run + ":signal", `{"name":"go"}`, []string{"Idempotency-Key", fmt.Sprintf("go-%d", e.n)}}, &a)
	if err != nil {
		return err
	}
	if e.signalled = status == http.StatusOK; !e.signalled {
		c.ledger.found(wrong, "%s: waits, and cannot be signalled: %d %s %s", e, status, a.Code, a.Detail)
	}
	return nil
}

// giveUp cancels the run; true if that was acknowledged, and came before its end.
func (c *client) giveUp(l *life, e *errand) bool {
	var a answer
	status, err := l.ask(request{http.MethodPost, "/v1/runs/" + e.run + ":cancel", "", nil}, &a)
	if err == nil && status != http.StatusOK && status != http.StatusAccepted { // it is under way
		c.ledger.found(wrong, "%s: cannot be cancelled: %d %s %s", e, status, a.Code, a.Detail)
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

// answered takes note of an answer.
func (l *ledger) answered(e *errand, status int, a answer) {
	if a.Run != "" {
		e.is(l, a.Run)
	}
	switch {
	case status == http.StatusOK:
		if e.ended() && e.answer != a.Content {
			l.found(lost, "%s: was told %q, and then %q", e, e.answer, a.Content)
		}
		e.answer, e.done = a.Content, true
	case status == http.StatusAccepted:
	case status == http.StatusTooManyRequests || status == http.StatusServiceUnavailable:
		e.refused = a.Code
		l.mu.Lock()
		l.busy++
		l.mu.Unlock()
	case a.Run != "" && e.mayFail(a.Code):
		e.refused = a.Code
	default:
		e.refused = a.Code
		l.found(wrong, "%s: %d %s: %s", e, status, a.Code, a.Detail)
	}
}

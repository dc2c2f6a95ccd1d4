// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/host/disk"
	"github.com/troupe-run/troupe/host/gateway"
	"github.com/troupe-run/troupe/runs"
	"github.com/troupe-run/troupe/store"
)

// ledger is what clients were told, which no kill may take back.
type ledger struct {
	mu     sync.Mutex
	acked  map[string]*promise // by run
	open   []*promise          // sent, and not answered when the server died
	inTurn int                 // acknowledged since the last start
}

// promise is one request and what came of it.
type promise struct {
	agent, session, content, key string

	run    string
	held   bool
	answer string
	events []string // as they were read
}

func (p *promise) path() string { return "/v1/agents/" + p.agent + "/messages" }

func (p *promise) body() string {
	return fmt.Sprintf(`{"content":%q,"session":%q}`, p.content, p.session)
}

// send makes the request; false if the server died over it.
func (p *promise) send(s *server) bool {
	var out struct {
		Run     string `json:"run_id"`
		Content string `json:"content"`
		Detail  string `json:"detail"`
	}
	status, err := s.ask("POST", p.path(), p.body(), p.key, &out)
	switch {
	case err != nil:
		return false
	case status != 200 && status != 202:
		s.Errorf("%s %s: %d %s", p.agent, p.content, status, out.Detail)
		return true
	case p.run != "" && p.run != out.Run:
		s.Errorf("%s: run %s, asked again %s", p.content, p.run, out.Run)
	}
	p.run, p.held, p.answer = out.Run, status == 202, out.Content
	return true
}

// read reads the whole stream, and sees that it is one, and that it begins as it did before.
func (p *promise) read(s *server) (record runs.Record, ok bool) {
	var all []string
	for {
		var page struct {
			Events []jsontext.Value `json:"events"`
			Next   int              `json:"next_after"`
		}
		status, err := s.ask("GET", fmt.Sprintf("/v1/runs/%s/events?after=%d&limit=3", p.run, len(all)), "", "", &page)
		if err != nil {
			return record, false
		}
		if status != 200 {
			s.Errorf("run %s (%s) was acknowledged, and is gone: %d", p.run, p.content, status)
			return record, true
		}
		if len(page.Events) == 0 {
			break
		}
		for _, raw := range page.Events {
			e, err := runs.Decode(raw)
			if err == nil {
				err = record.Apply(&e) // dense and legal
			}
			if err != nil {
				s.Errorf("run %s: %v", p.run, err)
				return record, true
			}
			if n := len(all); n < len(p.events) && p.events[n] != string(raw) {
				s.Errorf("run %s: event %d was %s, is %s", p.run, n+1, p.events[n], raw)
			}
			all = append(all, string(raw))
		}
	}
	if len(all) < len(p.events) {
		s.Errorf("run %s: %d events were shown, %d are left", p.run, len(p.events), len(all))
	}
	p.events = all
	return record, true
}

// kept sees that what was acknowledged is as it was said to be.
func (p *promise) kept(s *server) bool {
	record, ok := p.read(s)
	switch {
	case !ok:
	case p.held && record.Status != runs.Done && len(record.Waits) != 1:
		s.Errorf("run %s was held, is %s and waits for %v", p.run, record.Status, record.Waits)
	case !p.held && (record.Status != runs.Done || record.Text != p.answer):
		s.Errorf("run %s was answered with %q, is %s and says %q", p.run, p.answer, record.Status, record.Text)
	}
	return ok
}

// TestKillNineAgainAndAgain kills the real server in the middle of its work.
// Whatever a client was told before is there afterwards, whole; and a request
// that nobody answered can be sent again under its key, and is done once.
func TestKillNineAgainAndAgain(t *testing.T) {
	cycles := 20
	if text := os.Getenv("KILLS"); text != "" {
		var err error
		if cycles, err = strconv.Atoi(text); err != nil {
			t.Fatal("KILLS:", err)
		}
	}
	const clients = 8
	dir := filepath.Join(t.TempDir(), "data")
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	chance := rand.New(rand.NewPCG(seed, 0))
	l := &ledger{acked: map[string]*promise{}}
	next := 0
	var starts []time.Duration
	for cycle := range cycles {
		s := serve(t, dir)
		starts = append(starts, s.took)
		// What was acknowledged last is looked at now, all of it at the end.
		for _, p := range l.open {
			if !p.send(s) {
				t.Fatal("the server died by itself")
			}
			l.acked[p.run] = p
		}
		l.open, l.inTurn = nil, 0
		for _, p := range sample(chance, l.acked, 50) {
			if !p.kept(s) {
				t.Fatal("the server died by itself")
			}
		}
		deadAfter := 1 + chance.IntN(60) // acknowledgements
		var all sync.WaitGroup
		for c := range clients {
			from := next + c*10_000
			agent := []string{"helper", "helper", "helper", "coordinator"}[c%4]
			all.Go(func() {
				for n := from; ; n++ {
					p := &promise{agent: agent, session: fmt.Sprintf("s-%d", n%7+10*c), content: fmt.Sprintf("word-%d", n), key: fmt.Sprintf("key-%d", n)}
					if agent == "coordinator" {
						p.session = fmt.Sprintf("c-%d", n) // it holds its turn
					}
					alive := p.send(s)
					l.mu.Lock()
					if !alive {
						l.open = append(l.open, p)
						l.mu.Unlock()
						return
					}
					l.acked[p.run] = p
					l.inTurn++
					kill := l.inTurn == deadAfter
					l.mu.Unlock()
					if kill {
						_ = s.cmd.Process.Signal(syscall.SIGKILL)
					}
				}
			})
		}
		all.Wait()
		if code := s.end(syscall.SIGKILL); code == 0 {
			t.Fatalf("cycle %d: it was not killed", cycle)
		}
		next += clients * 10_000
	}

	s := serve(t, dir)
	for _, p := range l.open {
		if !p.send(s) {
			t.Fatal("the server died by itself")
		}
		l.acked[p.run] = p
	}
	held := 0
	for _, p := range l.acked {
		if p.held {
			held++
			var out struct {
				Detail string `json:"detail"`
			}
			if status, err := s.ask("POST", "/v1/runs/"+p.run+":signal", `{"name":"go"}`, "", &out); status != 200 || err != nil {
				t.Errorf("run %s waits, and cannot be signalled: %d %s %v", p.run, status, out.Detail, err)
				continue
			}
			p.held, p.answer = false, "I asked the helper. It said: response from helper: "+p.content
		}
		p.kept(s)
	}
	if code := s.end(syscall.SIGTERM); code != 0 {
		t.Errorf("told to stop it ended with %d", code)
	}
	onceEach(t, dir, l.acked)
	t.Logf("%d kills, %d runs acknowledged, %d of them held; started within %v to %v", cycles, len(l.acked), held, minOf(starts), maxOf(starts))
}

func sample(chance *rand.Rand, all map[string]*promise, most int) []*promise {
	var some []*promise
	for _, p := range all { // any order is as good as the other
		if len(some) == most {
			break
		}
		if chance.IntN(2) == 0 || len(all) <= most {
			some = append(some, p)
		}
	}
	return some
}

// onceEach looks into the store: its chain holds from the beginning, and no
// request became two runs, of the agent asked or of the helper below it.
func onceEach(t *testing.T, dir string, acked map[string]*promise) {
	d, err := disk.Open(dir, "", disk.Options{ReadOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if _, err := d.VerifyAll(); err != nil {
		t.Error(err)
	}
	owners, err := store.Runs(d, actor.DefaultTenant, 1<<20, false)
	if err != nil {
		t.Fatal(err)
	}
	view := gateway.View{KV: d}
	roots, below := map[string]string{}, map[actor.CallID]int{}
	for _, o := range owners {
		if o.Run != o.Root {
			below[o.Root]++
			continue
		}
		page, err := store.Events(d, actor.DefaultTenant, o.Run, 0, 1)
		if err != nil || len(page) != 1 {
			t.Fatalf("run %s: %d events, %v", o.Run, len(page), err)
		}
		e, err := runs.Decode(page[0].Body)
		if err != nil {
			t.Fatal(err)
		}
		if other := roots[e.Text]; other != "" {
			t.Errorf("%s became run %s and run %s", e.Text, other, o.Run)
		}
		roots[e.Text] = o.Run.String()
	}
	for run, p := range acked {
		if roots[p.content] != run {
			t.Errorf("%s was run %s, in the store it is %q", p.content, run, roots[p.content])
		}
		id, err := actor.ParseCallID(run)
		if err != nil {
			t.Fatal(err)
		}
		if want := map[string]int{"coordinator": 1}[p.agent]; below[id] != want {
			r, _ := view.Record(id)
			t.Errorf("%s (%s) made %d runs below it, want %d: %+v", run, p.agent, below[id], want, r.Children)
		}
	}
}

func minOf(all []time.Duration) time.Duration {
	m := all[0]
	for _, d := range all {
		m = min(m, d)
	}
	return m
}

func maxOf(all []time.Duration) time.Duration {
	m := all[0]
	for _, d := range all {
		m = max(m, d)
	}
	return m
}

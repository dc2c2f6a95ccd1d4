// SPDX-License-Identifier: Apache-2.0

package webhooks_test

import (
	"cmp"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/host/disk"
	"github.com/troupe-run/troupe/host/outbound"
	"github.com/troupe-run/troupe/host/webhooks"
	"github.com/troupe-run/troupe/runs"
	"github.com/troupe-run/troupe/upstream"
)

const secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"

// source is a log of notices in memory, each in a batch of its own.
type source struct {
	mu      sync.Mutex
	end     uint64
	all     []webhooks.Notice
	changed []chan struct{}
	offers  map[string]string
}

func (s *source) End() uint64 { return s.end }

func (s *source) Notices(_ context.Context, after uint64, room int) (webhooks.Page, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := webhooks.Page{Upto: after}
	for _, n := range s.all {
		if n.Batch > after && len(p.All) < room {
			p.All, p.Upto = append(p.All, n), n.Batch
		}
	}
	return p, nil
}

func (s *source) Changed() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := make(chan struct{}, 1)
	s.changed = append(s.changed, c)
	return c
}

func (s *source) Offers() map[string]string { return s.offers }

// add appends a notice about a run, and returns the id of its delivery.
func (s *source) add(run byte, kind runs.Notice) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	id, n := actor.CallID{run, 15: 1}, uint64(len(s.all)+1)
	e := runs.Event{Run: id, Seq: n, At: actor.Time(time.Now().UnixNano()), Type: runs.ApprovalCreated, Name: "pay", Text: "<script>alert(1)</script>", Until: 1 << 60, Approval: "a"}
	notice := webhooks.Notice{Kind: kind, Batch: n, Root: id, Owner: actor.ID{Tenant: "default", Agent: "front", Key: "s-1"}, User: "ada", Event: e}
	s.all = append(s.all, notice)
	for _, c := range s.changed {
		select {
		case c <- struct{}{}:
		default:
		}
	}
	return notice.ID()
}

// receiver accepts deliveries, unless refuse says otherwise.
type receiver struct {
	*httptest.Server
	mu       sync.Mutex
	accepted []string
	bodies   map[string]string
	news     chan struct{}
}

func newReceiver(t *testing.T, refuse func(id string, attempt int, w http.ResponseWriter) bool) *receiver {
	r := &receiver{bodies: map[string]string{}, news: make(chan struct{}, 1000)}
	attempts := map[string]int{}
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		body, _ := io.ReadAll(q.Body)
		id := q.Header.Get("webhook-id")
		r.mu.Lock()
		attempts[id]++
		n := attempts[id]
		r.mu.Unlock()
		if refuse != nil && refuse(id, n, w) {
			return
		}
		r.mu.Lock()
		r.accepted, r.bodies[id] = append(r.accepted, id), string(body)
		r.mu.Unlock()
		r.news <- struct{}{}
	}))
	t.Cleanup(r.Close)
	return r
}

// wait returns the accepted ids once there are n.
func (r *receiver) wait(t *testing.T, n int) []string {
	t.Helper()
	deadline := time.After(30 * time.Second)
	for {
		r.mu.Lock()
		all := slices.Clone(r.accepted)
		r.mu.Unlock()
		if len(all) >= n {
			return all
		}
		select {
		case <-r.news:
		case <-deadline:
			t.Fatalf("accepted %d deliveries, want %d: %.200v", len(all), n, all)
		}
	}
}

func open(t *testing.T, dir string, s *source, c webhooks.Config) (*webhooks.Webhooks, error) {
	t.Helper()
	return openIn(t, dir, s, c, nil)
}

// openIn opens the webhooks of one of several logs.
func openIn(t *testing.T, dir string, s *source, c webhooks.Config, rooms webhooks.Rooms) (*webhooks.Webhooks, error) {
	t.Helper()
	config := outbound.Config{Allow: upstream.AllowLoopback()}
	transport, err := outbound.NewTransport(config)
	if err != nil {
		t.Fatal(err)
	}
	egress, err := upstream.NewEgress(config.Allow)
	if err != nil {
		t.Fatal(err)
	}
	c.Name, c.SecretEnv = "ops", "SECRET"
	return webhooks.Open(webhooks.Options{Webhooks: []webhooks.Config{c}, Positions: disk.NewPositions(filepath.Join(dir, "webhooks"), ".json"), Transport: transport, Egress: egress,
		Env: func(string) (string, bool) { return secret, true }, Logger: slog.New(slog.DiscardHandler), Rooms: rooms}, s)
}

func start(t *testing.T, dir string, s *source, c webhooks.Config) *webhooks.Webhooks {
	t.Helper()
	w, err := open(t, dir, s, c)
	if err != nil {
		t.Fatal(err)
	}
	w.Start()
	t.Cleanup(w.Close)
	return w
}

// A refused delivery delays those of its object, and no others.
func TestDeliveriesOfAnObjectKeepTheirOrder(t *testing.T) {
	s := &source{}
	first := s.add(1, runs.NoticeApprovalRequired)
	r := newReceiver(t, func(id string, attempt int, w http.ResponseWriter) bool {
		if refused := id == first && attempt == 1; refused {
			w.WriteHeader(http.StatusServiceUnavailable)
			return true
		}
		return false
	})
	second, other := s.add(1, runs.NoticeRunFailed), s.add(2, runs.NoticeRunFailed)
	start(t, t.TempDir(), s, webhooks.Config{URL: r.URL})
	if got, want := r.wait(t, 3), []string{other, first, second}; !slices.Equal(got, want) {
		t.Errorf("accepted %v, want %v", got, want)
	}
}

// A slow receiver answers after all others had their turn.
func TestSlowDeliveryDelaysNoOtherObject(t *testing.T) {
	s := &source{}
	slow, release := s.add(1, runs.NoticeRunFailed), make(chan struct{})
	r := newReceiver(t, func(id string, _ int, _ http.ResponseWriter) bool {
		if id == slow {
			<-release
		}
		return false
	})
	for i := range 50 {
		s.add(byte(i+2), runs.NoticeRunFailed)
	}
	start(t, t.TempDir(), s, webhooks.Config{URL: r.URL})
	r.wait(t, 50)
	close(release)
	if all := r.wait(t, 51); all[50] != slow {
		t.Errorf("the slow delivery was accepted as number %d", slices.Index(all, slow)+1)
	}
}

// After a restart only what was not accepted is delivered, and a webhook that is new begins at the end of the log.
func TestRestartContinues(t *testing.T) {
	s, dir := &source{}, t.TempDir()
	failing := s.add(1, runs.NoticeRunFailed)
	var mu sync.Mutex
	away := true
	r := newReceiver(t, func(id string, _ int, w http.ResponseWriter) bool {
		mu.Lock()
		defer mu.Unlock()
		if id == failing && away {
			w.WriteHeader(http.StatusInternalServerError)
			return true
		}
		return false
	})
	ahead := s.add(2, runs.NoticeRunFailed)
	w := start(t, dir, s, webhooks.Config{URL: r.URL})
	r.wait(t, 1)
	w.Close()
	mu.Lock()
	away = false
	mu.Unlock()
	if spare := w.Spare(); spare != 0 {
		t.Errorf("the log may be cut up to batch %d, want 0: batch 1 was not delivered", spare)
	}
	w = start(t, dir, s, webhooks.Config{URL: r.URL})
	if got, want := r.wait(t, 2), []string{ahead, failing}; !slices.Equal(got, want) {
		t.Errorf("accepted %v, want %v", got, want)
	}
	w.Close()

	s.end = 2
	fresh := s.add(3, runs.NoticeRunFailed)
	start(t, t.TempDir(), s, webhooks.Config{URL: r.URL})
	if got := r.wait(t, 3); got[2] != fresh {
		t.Errorf("a new webhook got %s, want %s", got[2], fresh)
	}
}

// More notices than the window are read from the log as there is room.
func TestManyNotices(t *testing.T) {
	s := &source{}
	const n = 1500
	for i := range n {
		s.add(byte(i%100), runs.NoticeApprovalRequired)
	}
	r := newReceiver(t, nil)
	r.news = make(chan struct{}, 2*n)
	start(t, t.TempDir(), s, webhooks.Config{URL: r.URL})
	all := r.wait(t, n)
	if slices.Sort(all); len(slices.Compact(all)) != n {
		t.Error("a delivery was repeated")
	}
}

// The webhooks of all logs together send as many requests at once as that of one log.
func TestLogsShareRequests(t *testing.T) {
	const most, logs, each = 8, 4, 20
	var mu sync.Mutex
	now, seen, full := 0, 0, make(chan struct{})
	r := newReceiver(t, func(string, int, http.ResponseWriter) bool {
		mu.Lock()
		if now++; now > seen {
			if seen = now; seen == most {
				close(full)
			}
		}
		mu.Unlock()
		<-full
		mu.Lock()
		now--
		mu.Unlock()
		return false
	})
	rooms := webhooks.Rooms{}
	for log := range logs {
		s := &source{}
		for i := range each {
			s.add(byte(log*each+i), runs.NoticeApprovalRequired)
		}
		w, err := openIn(t, t.TempDir(), s, webhooks.Config{URL: r.URL}, rooms)
		if err != nil {
			t.Fatal(err)
		}
		w.Start()
		t.Cleanup(w.Close)
	}
	if all := r.wait(t, logs*each); len(all) != logs*each {
		t.Errorf("%d deliveries, want %d", len(all), logs*each)
	}
	mu.Lock()
	defer mu.Unlock()
	if seen != most {
		t.Errorf("%d requests at once, want %d", seen, most)
	}
}

// A changed list of an MCP server is noticed once, and again after it was withdrawn.
func TestOffersAreNoticedOnce(t *testing.T) {
	s, dir := &source{offers: map[string]string{"files": "h1"}}, t.TempDir()
	r := newReceiver(t, nil)
	w := start(t, dir, s, webhooks.Config{URL: r.URL, Events: []string{"mcp_changed"}})
	r.wait(t, 1)
	w.Close()
	s.offers = map[string]string{"files": "h2"}
	w = start(t, dir, s, webhooks.Config{URL: r.URL})
	want := []string{"mcp_changed-files.h1", "mcp_changed-files.h2"}
	if got := r.wait(t, 2); !slices.Equal(got, want) {
		t.Errorf("accepted %v, want %v", got, want)
	}
	w.Close()
}

// A delivery has contents only if the webhook asks for them.
func TestDetails(t *testing.T) {
	for _, details := range []bool{false, true} {
		s := &source{}
		id := s.add(1, runs.NoticeApprovalRequired)
		r := newReceiver(t, nil)
		start(t, t.TempDir(), s, webhooks.Config{URL: r.URL, Details: details})
		r.wait(t, 1)
		body := r.bodies[id]
		var decoded struct {
			Type, Text string
			Data       map[string]string
		}
		if err := json.Unmarshal([]byte(body), &decoded); err != nil {
			t.Fatal(err)
		}
		if decoded.Type != "approval_required" || decoded.Data["tool_name"] != "pay" || decoded.Data["kind"] != "tool" || decoded.Data["user_id"] != "ada" || decoded.Data["session_id"] != "s-1" {
			t.Errorf("body %s", body)
		}
		if (decoded.Data["args_summary"] != "") != details || strings.Contains(body, "<script>") {
			t.Errorf("details %v: body %s", details, body)
		}
	}
}

// A delivery about a budget says so, with the amounts: they hold nothing that a user wrote.
func TestBudgetInWords(t *testing.T) {
	for _, kind := range []runs.Notice{runs.NoticeApprovalRequired, runs.NoticeApprovalExpired} {
		s := &source{}
		id := s.add(1, kind)
		e := &s.all[0].Event
		e.Kind, e.Name, e.Text = runs.KindBudget, "big", "up to 50 tokens, and 30 are left"
		want := "agent front for ada asks for a larger budget for requests to big. Run " + e.Run.String() + ". up to 50 tokens, and 30 are left"
		if kind == runs.NoticeApprovalExpired {
			e.Type, e.Until = runs.ApprovalExpired, 0
			want = "An approval expired without a decision: agent front for ada asked for a larger budget for requests to big."
		}
		r := newReceiver(t, nil)
		start(t, t.TempDir(), s, webhooks.Config{URL: r.URL})
		r.wait(t, 1)
		if body := r.bodies[id]; !strings.Contains(body, want) || !strings.Contains(body, `"kind":"budget"`) || strings.Contains(body, "to call") {
			t.Errorf("%s: body %s, want %q", kind, body, want)
		}
	}
}

func TestMistakesOfConfigurations(t *testing.T) {
	dir := t.TempDir()
	for _, c := range []struct {
		config webhooks.Config
		want   string
	}{
		{webhooks.Config{}, "url: is missing"},
		{webhooks.Config{URL: "http://192.168.0.1/hook"}, "192.168.0.1"},
		{webhooks.Config{URL: "http://169.254.169.254/"}, "169.254.169.254"},
		{webhooks.Config{URL: "ftp://hooks.example/"}, "want http or https"},
		{webhooks.Config{URL: "https://u:p@hooks.example/"}, "contains a user"},
		{webhooks.Config{URL: "https://hooks.example/", URLEnv: "X"}, "want one of them"},
		{webhooks.Config{URL: "https://hooks.example/", Events: []string{"aproval_required"}}, "did you mean approval_required"},
		{webhooks.Config{URL: "https://hooks.example/", Events: []string{"run_failed", "run_failed"}}, "named twice"},
	} {
		if _, err := open(t, dir, &source{}, c.config); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: got %v, want an error with %q", c.config, err, c.want)
		}
	}
	none, err := upstream.NewEgress(nil)
	if err != nil {
		t.Fatal(err)
	}
	for value, want := range map[string]string{"": "is not set", "short": "want 24 to 128", "whsec_!": "not base64", strings.Repeat("x", 200): "want 24 to 128"} {
		err := webhooks.Check([]webhooks.Config{{Name: "ops", URL: "https://hooks.example/", SecretEnv: "SECRET"}}, func(string) (string, bool) { return value, true }, none)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("secret %q: got %v, want an error with %q", value, err, want)
		}
	}
	two := []webhooks.Config{{Name: "a", URL: "https://hooks.example/", SecretEnv: "SECRET"}, {Name: "a", URL: "https://hooks.example/", SecretEnv: "SECRET"}}
	if err := webhooks.Check(two, func(string) (string, bool) { return secret, true }, none); err == nil || !strings.Contains(err.Error(), "is another webhook already") {
		t.Errorf("two of one name: got %v", err)
	}
}

// A name that resolves to a private address is refused when it is called, and a redirect is not followed.
func TestAddressesAreChecked(t *testing.T) {
	s := &source{}
	s.add(1, runs.NoticeRunFailed)
	inner := newReceiver(t, nil)
	tries := make(chan struct{}, 100)
	r := newReceiver(t, func(_ string, _ int, w http.ResponseWriter) bool {
		w.Header().Set("Location", inner.URL)
		w.WriteHeader(http.StatusTemporaryRedirect)
		tries <- struct{}{}
		return true
	})
	w := start(t, t.TempDir(), s, webhooks.Config{URL: r.URL})
	<-tries
	<-tries // the second attempt, after the first was refused
	w.Close()
	if len(inner.accepted) > 0 {
		t.Error("a redirect was followed")
	}
	if got := cmp.Or(w.Stats()...); got.Delivered != 0 || got.Failed == 0 {
		t.Errorf("figures %+v", got)
	}
}

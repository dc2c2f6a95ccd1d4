// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/go-json-experiment/json"
)

// webhookRun is the run of this program with the flag -webhooks. The runs of a payer wait for approvals, one after
// the other, and some of them fail. The receiver of the webhook is in this process and survives: what it has accepted
// is compared with the events of the acknowledged runs.
type webhookRun struct {
	*harness
	rng *rand.Rand // of the receiver; mu

	mu       sync.Mutex
	accepted map[string]bool     // ids of deliveries
	byRoot   map[string][]string // event ids by root run, in the order of their first acceptance
	repeats  int
	refused  int
	calm     bool     // the receiver takes everything from now on
	runs     []string // that were acknowledged
	pending  int      // kills with notices that were not accepted yet
}

const (
	webhookSecret     = "a secret of the webhook of this test"
	runsPerKill       = 6
	decisionsPerKill  = 4
	webhookKillWithin = 200 * time.Millisecond
	webhookEndWithin  = time.Minute
)

func (c *harness) runWebhooks(ctx context.Context, out, stderr io.Writer) (good bool, err error) {
	if err := c.begin(out, stderr, " with a webhook"); err != nil {
		return false, err
	}
	w := &webhookRun{harness: c, rng: rand.New(rand.NewPCG(c.seed, 1)), accepted: map[string]bool{}, byRoot: map[string][]string{}}
	stop, err := w.serve()
	if err != nil {
		return false, err
	}
	defer stop()
	began := time.Now()
	if err := c.eachKill(ctx, webhookKillWithin, w.send, w.met); err != nil {
		return false, err
	}
	if err := c.withInstance(ctx, func(_ *server, inst *instance) error { return w.finish(ctx, inst) }); err != nil {
		return false, err
	}
	l := c.ledger
	fmt.Fprintf(out, "%d runs, %d notices accepted, %d of them again, %d refused, %d%% of the kills met some that were not accepted, %v\n lost=%d duplicated=%d reordered=%d wrong=%d\n",
		len(w.runs), len(w.accepted), w.repeats, w.refused, 100*w.pending/c.kills, time.Since(began).Round(time.Second),
		l.counts[lost], l.counts[duplicated], l.counts[reordered], l.counts[wrong])
	if w.repeats == 0 || w.refused == 0 || w.pending == 0 {
		return false, errors.New("want some of each")
	}
	return l.counts == [kinds]int{}, nil
}

// serve starts the receiver, and writes the configuration and the agent.
func (w *webhookRun) serve() (stop func(), err error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	dir, config := filepath.Join(w.dir, agentsDir), filepath.Join(w.dir, "troupe.toml")
	err = writeFiles(map[string]string{
		config:                           fmt.Sprintf("write_buffer_mib = 1\n\n[[webhook]]\nname = \"ledger\"\nurl = \"http://%s/hook\"\nsecret_env = \"TROUPE_WEBHOOK_SECRET\"\nevents = [\"approval_required\", \"run_failed\"]\n", listener.Addr()),
		filepath.Join(dir, "payer.toml"): fmt.Sprintf("name = %q\ntools = [%q]\nlimits.call_timeout_ms = 300000\n", payer, payOnce),
		filepath.Join(dir, "pay.toml"):   fmt.Sprintf("[tool]\ntool_name = %q\nurl = \"http://%s/pay\"\npolicy = \"require_approval\"\napproval_timeout_ms = 3600000\non_failure = \"fail_run\"\n", payOnce, listener.Addr()),
	})
	if err != nil {
		return nil, err
	}
	for name, value := range map[string]string{"TROUPE_WEBHOOK_SECRET": webhookSecret, "TROUPE_CONFIG": config} {
		if err := os.Setenv(name, value); err != nil { // of each server
			return nil, err
		}
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /hook", w.receive)
	mux.HandleFunc("POST /pay", func(a http.ResponseWriter, r *http.Request) { // every other payment fails
		w.mu.Lock()
		fails := w.rng.IntN(2) == 0
		w.mu.Unlock()
		if fails {
			http.Error(a, "no", http.StatusUnprocessableEntity)
			return
		}
		_, _ = io.WriteString(a, `{"receipt":"r"}`)
	})
	server := serveHTTP(listener, mux)
	return func() { _ = server.Close() }, nil
}

// receive accepts a delivery, or refuses it, or accepts it without an answer.
func (w *webhookRun) receive(a http.ResponseWriter, r *http.Request) {
	content, err := io.ReadAll(io.LimitReader(r.Body, 1<<20))
	id, stamp := r.Header.Get("webhook-id"), r.Header.Get("webhook-timestamp")
	mac := hmac.New(sha256.New, []byte(webhookSecret))
	mac.Write([]byte(id + "." + stamp + "." + string(content)))
	var in struct {
		Type string `json:"type"`
		Data struct {
			Event string `json:"event_id"`
			Root  string `json:"root_run_id"`
		} `json:"data"`
	}
	if err == nil {
		err = json.Unmarshal(content, &in, json.RejectUnknownMembers(false))
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if want := "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil)); err != nil || r.Header.Get("webhook-signature") != want || id != in.Type+"-"+in.Data.Event {
		w.ledger.report(wrong, "delivery %s: %v, signed %s, want %s: %s", id, err, r.Header.Get("webhook-signature"), want, content)
		return
	}
	chance := w.rng.IntN(10)
	if w.calm {
		chance = 9
	}
	if chance < 2 {
		w.refused++
		http.Error(a, "later", http.StatusServiceUnavailable)
		return
	}
	if w.accepted[id] {
		w.repeats++
	} else {
		w.accepted[id], w.byRoot[in.Data.Root] = true, append(w.byRoot[in.Data.Root], in.Data.Event)
	}
	if chance == 2 {
		panic(http.ErrAbortHandler) // the sender does not learn that it was accepted
	}
}

// send sends the messages of one instance, and decides about some calls.
func (w *webhookRun) send(inst *instance, n int) error {
	for i := range runsPerKill {
		run, err := inst.sendAsync(payer, fmt.Sprintf(`{"content":"use %s {\"word\":\"%[2]s\"}\nthen\nuse %[1]s {\"word\":\"%[2]s-again\"}","session_id":"s-%[2]s"}`, payOnce, fmt.Sprintf("%d-%d", n, i)))
		if err != nil {
			return err
		}
		w.runs = append(w.runs, run)
	}
	return w.decide(inst, decisionsPerKill)
}

// met counts a kill that meets notices which were not accepted.
func (w *webhookRun) met() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.byRoot) < len(w.runs) {
		w.pending++
	}
}

// decide approves the oldest approvals that wait.
func (w *webhookRun) decide(inst *instance, most int) error {
	var list struct {
		Approvals []approval `json:"approvals"`
	}
	if status, err := inst.askOnce(request{http.MethodGet, "/v1/approvals?limit=1000", "", nil}, &list); err != nil || status != http.StatusOK {
		return err // the server is still loading its open runs
	}
	for _, a := range list.Approvals[:min(most, len(list.Approvals))] {
		if _, err := inst.askOnce(request{http.MethodPost, "/v1/approvals/" + a.ID + ":decide", `{"decision":"approve"}`, nil}, nil); err != nil {
			return err
		}
	}
	return nil
}

// finish lets all runs end, and compares what was accepted with their events. The receiver refuses nothing any more, since
// the delays between attempts double and would exceed the time of the test in one of a hundred runs.
func (w *webhookRun) finish(ctx context.Context, inst *instance) error {
	w.mu.Lock()
	w.calm = true
	w.mu.Unlock()
	for end := time.Now().Add(webhookEndWithin); ; {
		missing, open, err := w.compare(inst, false)
		if err != nil {
			return err
		}
		if missing == 0 && open == 0 {
			break
		}
		if err := w.decide(inst, 1000); err != nil {
			return err
		}
		if time.Now().After(end) { // the rest is lost
			_, _, err = w.compare(inst, true)
			return err
		}
		if err := pause(ctx, 300*time.Millisecond); err != nil {
			return err
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for root, events := range w.byRoot {
		last := 0
		for _, id := range events {
			seq := 0
			if _, err := fmt.Sscan(id[strings.LastIndex(id, ".")+1:], &seq); err != nil || !strings.HasPrefix(id, root+".") {
				w.ledger.report(wrong, "event %s of run %s: %v", id, root, err)
			}
			if seq <= last {
				w.ledger.report(reordered, "run %s: event %d was accepted after event %d", root, seq, last)
			}
			last = seq
		}
	}
	return nil
}

// compare counts the notices that the acknowledged runs have and the receiver has not, and the runs that are open.
func (w *webhookRun) compare(inst *instance, report bool) (missing, open int, err error) {
	for _, run := range w.runs {
		var page struct {
			Events []struct {
				Type string `json:"type"`
				Seq  int    `json:"seq"`
			} `json:"events"`
		}
		status, err := inst.askOnce(request{http.MethodGet, "/v1/runs/" + run + "/events?limit=1000", "", []string{"Accept", "application/json"}}, &page)
		if err != nil || status != http.StatusOK {
			return 0, 0, cmp.Or(err, fmt.Errorf("the events of run %s got %d", run, status))
		}
		ended := false
		for _, e := range page.Events {
			ended = ended || strings.HasPrefix(e.Type, "run_done") || e.Type == "run_failed"
			kind := map[string]string{"approval_created": "approval_required", "run_failed": "run_failed"}[e.Type]
			if kind == "" {
				continue
			}
			w.mu.Lock()
			if id := fmt.Sprintf("%s-%s.%d", kind, run, e.Seq); !w.accepted[id] {
				if missing++; report {
					w.ledger.report(lost, "notice %s", id)
				}
			}
			w.mu.Unlock()
		}
		if !ended {
			open++
		}
	}
	return missing, open, nil
}

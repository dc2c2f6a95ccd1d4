// SPDX-License-Identifier: Apache-2.0

package prompts

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"pgregory.net/rapid"

	"github.com/troupe-run/troupe/actor"
)

// kept is a record that a history expects.
type kept struct {
	at      time.Time
	request string
}

// conversation is a session of a history.
type conversation struct {
	owner actor.ID
	runs  []actor.CallID
	sent  []jsontext.Value // messages so far
}

// history is a store with what it has to return.
type history struct {
	*testStore
	draw    *rapid.T
	all     []*conversation
	records map[actor.CallID][]kept
	owners  map[actor.CallID]actor.ID
	next    byte

	deleted map[string]time.Time
	expired time.Time
	backup  string
	copied  map[actor.CallID][]kept
}

// Deleted implements Deletions.
func (h *history) Deleted(session string, upto time.Time) error {
	h.deleted[session] = upto
	return nil
}

// Expired implements Deletions.
func (h *history) Expired(before time.Time) error {
	maps.DeleteFunc(h.deleted, func(_ string, at time.Time) bool { return at.Before(before) })
	h.expired = before
	return nil
}

// texts are parts of messages.
var texts = []string{"a", "é", "\x00\x1b", `"`, `\`, "\u2028", "troupe_0123456789abcdefgh", "4111-1111", strings.Repeat("long ", 300), "\n{\"new\":9}\n", beginning, ""}

// body returns the next request of a conversation: its messages, of which some are new, between its other members.
func (h *history) body(c *conversation) []byte {
	for range rapid.IntRange(0, 3).Draw(h.draw, "new") {
		text := strings.Join(rapid.SliceOfN(rapid.SampledFrom(texts), 0, 3).Draw(h.draw, "text"), "")
		c.sent = append(c.sent, jsontext.Value(fmt.Sprintf(`{"role":"user","content":%s}`, quote(text))))
	}
	if len(c.sent) > 1 && rapid.IntRange(0, 9).Draw(h.draw, "shorten") == 0 { // the conversation was made shorter
		c.sent = c.sent[len(c.sent)/2:]
	}
	all, err := json.Marshal(c.sent)
	if err != nil {
		h.draw.Fatal(err)
	}
	b := fmt.Appendf(nil, `{"model":"m","messages":%s,"tools":[{"name":"look_up"}],"temperature":0.5}`, all)
	switch rapid.IntRange(0, 19).Draw(h.draw, "form") {
	case 0:
		_ = (*jsontext.Value)(&b).Indent()
	case 1:
		b = b[:len(b)/2] // no JSON
	case 2:
		b = bytes.ReplaceAll(b, []byte("é"), []byte("\xff")) // no UTF-8
	case 3:
		b = bytes.ReplaceAll(b, []byte("troupe_"), []byte(`\u0074roupe_`))
	case 4:
		b = []byte{}
	}
	return b
}

// expected returns a request as it is read, without any of the work of a Store.
func (h *history) expected(request []byte) string {
	redact, err := newRedactor(h.Store.Redact)
	if err != nil {
		h.draw.Fatal(err)
	}
	v := jsontext.Value(bytes.Clone(request))
	if v.Compact(lenient...) != nil {
		return string([]rune(string(quote(redact.text(string(request))))))
	}
	return string([]rune(string(redact.value(v)))) // with U+FFFD for bytes that are no UTF-8
}

// ask records a request of a run.
func (h *history) ask() {
	c := rapid.SampledFrom(h.all).Draw(h.draw, "session")
	if len(c.runs) == 0 || rapid.Bool().Draw(h.draw, "new run") {
		h.next++
		c.runs = append(c.runs, runOf(h.next))
	}
	run := rapid.SampledFrom(c.runs).Draw(h.draw, "run")
	owner := c.owner
	owner.Agent = rapid.SampledFrom([]string{"front", "back"}).Draw(h.draw, "agent")
	x := exchange(owner, "")
	x.Request, x.External = h.body(c), rapid.Bool().Draw(h.draw, "external")
	if h.log.of[run] == Unknown {
		h.log.set(run, Running)
	}
	h.Begin(owner, run)(x)
	h.owners[run] = c.owner
	h.records[run] = append(h.records[run], kept{x.Began.Truncate(time.Millisecond), h.expected(x.Request)})
	synctest.Wait()
}

// forget deletes a session from the log and here.
func (h *history) forget() {
	<-time.After(2 * time.Millisecond) // times are recorded in milliseconds
	c := rapid.SampledFrom(h.all).Draw(h.draw, "session")
	h.Forgetting(c.owner.Tenant, sessionOf(c.owner))
	for run, owner := range h.owners {
		if owner == c.owner {
			h.log.set(run, Unknown)
			delete(h.records, run)
		}
	}
	c.runs, c.sent = nil, nil
	if rapid.Bool().Draw(h.draw, "killed before its files") {
		h.restart()
		<-time.After(2 * settleEvery)
		synctest.Wait()
		return
	}
	h.Forget(c.owner.Tenant, sessionOf(c.owner))
	<-time.After(2 * time.Millisecond)
}

// end ends a run, with success or without.
func (h *history) end() {
	c := rapid.SampledFrom(h.all).Draw(h.draw, "session")
	if len(c.runs) == 0 {
		return
	}
	run := rapid.SampledFrom(c.runs).Draw(h.draw, "run")
	state := rapid.SampledFrom([]State{Succeeded, Kept}).Draw(h.draw, "state")
	h.log.set(run, state)
	if state == Succeeded && h.Store.Prompts == Failed {
		delete(h.records, run)
	}
	c.runs = slices.DeleteFunc(c.runs, func(id actor.CallID) bool { return id == run })
	<-time.After(2 * settleEvery)
	synctest.Wait()
}

// wait lets time pass.
func (h *history) wait() {
	<-time.After(time.Duration(rapid.IntRange(1, 40).Draw(h.draw, "minutes")) * time.Minute)
	synctest.Wait()
}

// copy makes a backup, with a server or without one.
func (h *history) copy() {
	h.check()
	h.backup = h.TempDir()
	h.copied = map[actor.CallID][]kept{}
	for run, all := range h.records {
		h.copied[run] = slices.Clone(all)
	}
	if rapid.Bool().Draw(h.draw, "stopped") {
		if err := Copy(h.Store.Dir, h.backup, nil); err != nil {
			h.draw.Fatal(err)
		}
	} else if err := h.CopyTo(context.Background(), h.backup); err != nil {
		h.draw.Fatal(err)
	}
}

// restore compares a restored backup with what it had, without the sessions that were deleted since.
func (h *history) restore() {
	if h.backup == "" {
		return
	}
	dir := h.TempDir()
	err := Copy(h.backup, dir, func(session string, at time.Time) bool { return !at.After(h.deleted[session]) || at.Before(h.expired) })
	if err != nil {
		h.draw.Fatal(err)
	}
	since := time.Now().Add(-h.Store.Keep)
	for run, want := range h.copied {
		owner := h.owners[run]
		want = slices.DeleteFunc(slices.Clone(want), func(k kept) bool { return k.at.Before(since) || h.log.of[run] == Unknown })
		page, err := Read(dir, owner, run, 0, 1000, since)
		if err != nil || len(page.All) != len(want) {
			h.draw.Fatalf("restored, run %s: got %d records, %v, want %d", run, len(page.All), err, len(want))
		}
		for i, p := range page.All {
			if got := requestOf(h.draw, p.JSON); got != want[i].request {
				h.draw.Fatalf("restored, run %s: record %d is\n%s, want\n%s", run, i, got, want[i].request)
			}
		}
	}
}

// requestOf returns the request of a record.
func requestOf(t *rapid.T, b []byte) string {
	var r struct {
		Request jsontext.Value `json:"request"`
	}
	if err := json.Unmarshal(b, &r, lenient...); err != nil {
		t.Fatal(err)
	}
	return string(r.Request)
}

func (h *history) restart() {
	h.Close()
	h.open()
}

func (h *history) open() {
	s, err := Open(Options{Config: h.Store.Config, Dir: h.Store.Dir, Source: h.log, Deletions: h, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		h.draw.Fatal(err)
	}
	h.Store = s
	synctest.Wait()
}

// tear ends the process within the write of a record.
func (h *history) tear() {
	h.Close()
	c := rapid.SampledFrom(h.all).Draw(h.draw, "session")
	if files := h.files(c.owner); len(files) > 0 {
		path := files[len(files)-1]
		b, err := os.ReadFile(path)
		if err != nil {
			h.draw.Fatal(err)
		}
		e := encoder{size: int64(len(b))}
		r, request, err := compose(exchange(c.owner, strings.Repeat("torn ", 20)), redactor{builtin})
		if err != nil {
			h.draw.Fatal(err)
		}
		frame, _, err := e.frame(runOf(0).String(), 1, &r, request)
		if err != nil {
			h.draw.Fatal(err)
		}
		if err := os.WriteFile(path, append(b, frame[:rapid.IntRange(1, len(frame)-1).Draw(h.draw, "bytes")]...), 0o600); err != nil {
			h.draw.Fatal(err)
		}
	}
	h.open()
}

// check compares what is read with what was sent.
func (h *history) check() {
	since := time.Now().Add(-h.Store.Keep)
	for run, want := range h.records {
		want = slices.DeleteFunc(want, func(k kept) bool { return k.at.Before(since) })
		h.records[run] = want
		page, err := h.Store.Read(context.Background(), h.owners[run], run, 0, 1000)
		if err != nil || len(page.All) != len(want) {
			h.draw.Fatalf("run %s: got %d records, %v, want %d", run, len(page.All), err, len(want))
		}
		for i, p := range page.All {
			if got := requestOf(h.draw, p.JSON); got != want[i].request || i > 0 && p.Step <= page.All[i-1].Step {
				h.draw.Fatalf("run %s: record %d, step %d, is\n%s, want\n%s", run, i, p.Step, got, want[i].request)
			}
		}
		if len(want) == 0 {
			continue
		}
		offline, err := Read(h.Store.Dir, h.owners[run], run, page.All[0].Step, 1000, since)
		if err != nil || fmt.Sprint(offline.All) != fmt.Sprint(page.All[1:]) {
			h.draw.Fatalf("run %s, without a server: got %v %v, want %v", run, offline, err, page)
		}
	}
	for _, secret := range []string{"troupe_0123456789abcdefgh", "torn torn"} {
		if found := grep(h.T, h.Store.Dir, secret); len(found) > 0 {
			h.draw.Fatalf("%s is in %v", secret, found)
		}
	}
	h.Store.files.Lock()
	defer h.Store.files.Unlock()
	var bytes int64
	runs, held := 0, 0
	for _, f := range h.each(func(*file) bool { return true }) {
		info, err := os.Stat(f.path)
		if err != nil || info.Size() != f.size {
			h.draw.Fatalf("%s: got %v, want %d bytes, %v", f.path, info, f.size, err)
		}
		bytes, runs, held = bytes+f.size, runs+len(f.runs), held+f.held
	}
	for _, of := range h.known {
		for run := range of.steps {
			if len(of.paths(run)) == 0 {
				h.draw.Fatalf("the number of run %s is kept, which has no record", run)
			}
		}
	}
	if bytes != h.sum.Load() || runs != h.runs || held != h.held {
		h.draw.Fatalf("got %d bytes, %d runs and %d of requests in the sums, want %d, %d and %d", h.sum.Load(), h.runs, h.held, bytes, runs, held)
	}
	if found, err := filepath.Glob(filepath.Join(h.Store.Dir, "*", "*")); err != nil || len(found) != len(h.each(func(*file) bool { return true })) {
		h.draw.Fatalf("got files %v, %v", found, err)
	}
}

// What is read is what was sent, over all histories of conversations, deletions, ends of runs, time and kills.
func TestHistoriesAreRead(t *testing.T) {
	rapid.Check(t, func(draw *rapid.T) {
		var failure any // rapid takes it from its own goroutine only
		synctest.Test(t, func(t *testing.T) {
			defer func() { failure = recover() }()
			runHistory(t, draw)
		})
		if fmt.Sprintf("%T", failure) == "rapid.stopTest" {
			panic(failure)
		}
		if failure != nil {
			panic(failure) // in a line of its own, by which rapid tells failures apart
		}
	})
}

func runHistory(t *testing.T, draw *rapid.T) {
	c := Config{Prompts: rapid.SampledFrom([]string{All, Failed}).Draw(draw, "prompts"), Keep: time.Hour}
	if rapid.Bool().Draw(draw, "patterns") {
		c.Redact = []string{`\d{4}-\d{4}`}
	}
	log := &states{of: map[actor.CallID]State{}}
	h := &history{testStore: &testStore{t, &Store{Options: Options{Config: c, Dir: t.TempDir()}}, log}, draw: draw, records: map[actor.CallID][]kept{}, owners: map[actor.CallID]actor.ID{}, deleted: map[string]time.Time{}}
	h.open()
	defer func() { h.Close() }()
	for i := range 3 {
		h.all = append(h.all, &conversation{owner: ownerOf([]string{"alice", "bob"}[i%2], fmt.Sprintf("s%d", i))})
	}
	steps := map[string]func(*rapid.T){"": func(*rapid.T) { h.check() }}
	for name, step := range map[string]func(){"forget": h.forget, "end": h.end, "wait": h.wait, "restart": h.restart, "tear": h.tear, "copy": h.copy, "restore": h.restore,
		"ask 1": h.ask, "ask 2": h.ask, "ask 3": h.ask, "ask 4": h.ask, "ask 5": h.ask} {
		steps[name] = func(*rapid.T) { step() }
	}
	draw.Repeat(steps)
}

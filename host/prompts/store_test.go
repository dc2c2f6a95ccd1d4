// SPDX-License-Identifier: Apache-2.0

package prompts

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/host/outbound"
	"github.com/troupe-run/troupe/upstream"
)

// states is the log of a test.
type states struct {
	mu sync.Mutex
	of map[actor.CallID]State
}

func (s *states) set(run actor.CallID, state State) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.of[run] = state
}

func (s *states) Tenants() ([]string, error) { return []string{"alice", "bob"}, nil }

func (s *states) State(_ string, run actor.CallID) (State, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.of[run], nil
}

func (s *states) Known(tenant string, run actor.CallID) (bool, error) {
	state, err := s.State(tenant, run)
	return state != Unknown, err
}

// testStore is a store whose runs are numbered.
type testStore struct {
	*testing.T
	*Store
	log *states
}

func openStore(t *testing.T, dir string, c Config, log *states) *testStore {
	t.Helper()
	if log == nil {
		log = &states{of: map[actor.CallID]State{}}
	}
	s, err := Open(Options{Config: c, Dir: dir, Source: log, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	return &testStore{t, s, log}
}

func runOf(n byte) actor.CallID {
	id := actor.NewCallID(actor.Time(time.Now().UnixNano()), 1, 2)
	id[15] = n
	return id
}

func ownerOf(tenant, session string) actor.ID {
	return actor.ID{Tenant: tenant, Agent: "front", Key: session}
}

// files returns the files of a session.
func (s *testStore) files(owner actor.ID) (all []string) {
	s.Helper()
	all, err := filepath.Glob(prefixOf(s.Dir, owner.Tenant, sessionOf(owner)) + "*")
	if err != nil {
		s.Fatal(err)
	}
	return all
}

// exchange returns a request with a text.
func exchange(owner actor.ID, text string) *outbound.Recorded {
	body, _ := json.Marshal(map[string]any{"model": "m", "messages": []any{map[string]any{"role": "user", "content": text}}})
	return &outbound.Recorded{Owner: owner, Began: time.Now(), Took: time.Second, Model: "big", Provider: "big-1", Request: body, Status: 200, Attempts: 1,
		Completion: upstream.Completion{Text: "answer to " + text[:min(len(text), 20)], Finish: upstream.FinishStop, Usage: upstream.Usage{Known: true, Input: 3, Output: 4, Total: 7}}}
}

// add records a request.
func (s *testStore) add(owner actor.ID, run actor.CallID, text string) {
	s.log.mu.Lock()
	if s.log.of[run] == Unknown {
		s.log.of[run] = Running
	}
	s.log.mu.Unlock()
	x := exchange(owner, text)
	x.Run = run
	s.Begin(owner, run)(x)
}

func (s *testStore) read(owner actor.ID, run actor.CallID) (all []Record) {
	s.Helper()
	page, err := s.Store.Read(context.Background(), owner, run, 0, 1000)
	if err != nil {
		s.Fatal(err)
	}
	for _, p := range page.All {
		var r Record
		if err := json.Unmarshal(p.JSON, &r); err != nil {
			s.Fatalf("%v: %s", err, p.JSON)
		}
		all = append(all, r)
	}
	return all
}

// grep returns the files below a folder with a text.
func grep(t *testing.T, dir, text string) (found []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := os.ReadFile(path)
		if bytes.Contains(b, []byte(text)) {
			found = append(found, path)
		}
		return err
	})
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return found
}

func TestRecordIsRead(t *testing.T) {
	s := openStore(t, filepath.Join(t.TempDir(), "prompts"), Config{Prompts: All}, nil)
	defer s.Close()
	owner, run := ownerOf("alice", "s1"), runOf(1)
	for i := range 3 {
		s.add(owner, run, fmt.Sprintf("question %d", i))
	}
	all := s.read(owner, run)
	if len(all) != 3 || !strings.Contains(string(all[1].Request), `"content":"question 1"`) || !strings.Contains(string(all[1].Answer), "answer to question 1") || all[1].Usage.Total != 7 || all[1].Status != 200 {
		t.Errorf("got %+v", all)
	}
	page, err := s.Store.Read(context.Background(), owner, run, 1, 1)
	if err != nil || len(page.All) != 1 || page.All[0].Step != 2 || !page.More {
		t.Errorf("got %+v %v", page, err)
	}
	if other := s.read(ownerOf("bob", "s1"), run); len(other) != 0 {
		t.Errorf("another user reads %v", other)
	}
	if got := s.Stats(); got.Recorded != 3 || got.Dropped != 0 || got.Bytes == 0 {
		t.Errorf("got %+v", got)
	}
}

// What patterns match and keys are in no file, whether the request was answered, refused, or passed on.
func TestNoFileHasSecrets(t *testing.T) {
	const key, card = "sk-live-0123456789abcdef", "4111-1111"
	dir := filepath.Join(t.TempDir(), "prompts")
	s := openStore(t, dir, Config{Prompts: All, Redact: []string{`\d{4}-\d{4}`, `(?i)iban [A-Z0-9]+`}}, nil)
	defer s.Close()
	owner := ownerOf("alice", "s1")
	request := upstream.Request{Headers: []upstream.Header{{Name: "authorization", Value: "Bearer " + key, Secret: true}}}
	for i, change := range []func(*outbound.Recorded){
		func(*outbound.Recorded) {},
		func(x *outbound.Recorded) {
			x.Completion.Text = "your card is " + card + " and " + key
			x.Completion.Calls = []upstream.ToolCall{{ID: "1", Name: "pay", Arguments: `{"card":"` + card + `","note":"IBAN DE99"}`}}
		},
		func(x *outbound.Recorded) {
			x.Refusal = actor.Refuse(actor.ModelRejected, "bad card %s, key %s, IBAN DE99", card, key)
		},
		func(x *outbound.Recorded) {
			x.External, x.Raw = true, []byte("data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"4111\"}}]}\n\ndata: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"-1111 iban \"}}]}\n\n"+
				"data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"DE99 "+key+"\"}}]}\n\ndata: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n")
		},
		func(x *outbound.Recorded) { x.Request = []byte("no JSON: " + card + " " + key) },
		func(x *outbound.Recorded) { x.Completion.Model = "model-" + card },
	} {
		x := exchange(owner, "pay with "+card+", IBAN DE99 and "+key)
		x.Mask = request.Mask
		change(x)
		run := runOf(byte(i))
		s.log.set(run, Running)
		s.Begin(owner, run)(x)
		all := s.read(owner, run)
		if len(all) != 1 || !strings.Contains(string(all[0].Request), redacted) {
			t.Errorf("case %d: got %v", i, all)
		}
	}
	for _, secret := range []string{key, card, "DE99"} {
		if found := grep(t, dir, secret); len(found) > 0 {
			t.Errorf("%s is in %v", secret, found)
		}
	}
}

// An external agent's answer has its text and its tokens, whether it was streamed or not, or its end is missing.
func TestPassedOnAnswers(t *testing.T) {
	s := openStore(t, filepath.Join(t.TempDir(), "prompts"), Config{Prompts: All}, nil)
	defer s.Close()
	chunk := func(text string) string {
		return `data: {"model":"m-1","choices":[{"index":0,"delta":{"content":"` + text + `"}}]}` + "\n\n"
	}
	usage := upstream.Completion{Usage: upstream.Usage{Known: true, Input: 17903, Output: 2, Total: 17905}}
	for i, c := range []struct {
		raw, text, finish string
	}{
		{chunk("Hel") + chunk("lo") + "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n", "Hello", "stop"},
		{chunk("Hel"), "Hel", ""}, // its client has gone
		{`{"model":"m-1","choices":[{"index":0,"message":{"content":"Hello"},"finish_reason":"stop"}],"usage":{"prompt_tokens":17903,"completion_tokens":2,"total_tokens":17905,"prompt_tokens_details":{"cached_tokens":17817}}}`, "Hello", "stop"},
		{"", "", ""},
	} {
		x := exchange(ownerOf("alice", "s"), "q")
		x.External, x.Raw, x.Completion = true, []byte(c.raw), usage
		run := runOf(byte(i))
		s.Begin(x.Owner, run)(x)
		all := s.read(x.Owner, run)
		var a answer
		if len(all) == 1 && all[0].Answer != nil {
			_ = json.Unmarshal(all[0].Answer, &a)
		}
		if len(all) != 1 || a.Text != c.text || a.Finish != c.finish || all[0].Usage == nil || *all[0].Usage != (Usage{17903, 2, 17905}) || !all[0].External {
			t.Errorf("%q: got %+v %+v", c.raw, all, a)
		}
	}
}

// Deleting a session removes its records, those that are queued and those of requests under way.
func TestForgottenSessionLeavesNothing(t *testing.T) {
	const sentinel = "SENTINEL-7c1f"
	dir := filepath.Join(t.TempDir(), "prompts")
	s := openStore(t, dir, Config{Prompts: All}, nil)
	defer s.Close()
	gone, stays := ownerOf("alice", "gone"), ownerOf("alice", "stays")
	a, b := runOf(1), runOf(2)
	s.add(gone, a, sentinel)
	s.add(stays, b, "other")
	if len(s.read(gone, a)) != 1 || len(grep(t, dir, sentinel)) != 1 {
		t.Fatal("it is not recorded")
	}
	late := s.Begin(gone, a)
	s.add(gone, a, sentinel+" queued")
	s.Forget("alice", "gone")
	s.log.set(a, Unknown)
	late(exchange(gone, sentinel+" late"))
	if s.read(gone, a) != nil || len(s.read(stays, b)) != 1 {
		t.Error("the records of the session are left, or those of another are gone")
	}
	if found := grep(t, dir, sentinel); len(found) > 0 {
		t.Errorf("the text is in %v", found)
	}
	again := runOf(3)
	s.add(gone, again, "a new session of that name")
	if len(s.read(gone, again)) != 1 {
		t.Error("a new session of that name is not recorded")
	}
}

// A process that was killed between the deletion of a session and that of its records deletes them at the next start, a
// frame without its end is no record and leaves its file, and so do a file that was being replaced and one of a former format.
func TestStartCompletesWhatWasKilled(t *testing.T) {
	const sentinel = "SENTINEL-7c1f"
	dir := filepath.Join(t.TempDir(), "prompts")
	synctest.Test(t, func(t *testing.T) {
		s := openStore(t, dir, Config{Prompts: All}, nil)
		owner, gone, torn := ownerOf("alice", "s"), runOf(1), runOf(2)
		s.add(ownerOf("alice", "deleted"), gone, sentinel)
		s.add(owner, torn, "first")
		s.add(owner, torn, "second "+sentinel)
		s.Close()
		path := s.files(owner)[0]
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, b[:len(b)-1], 0o600); err != nil {
			t.Fatal(err)
		}
		for _, ending := range []string{tempType, formerType} {
			if err := os.WriteFile(strings.TrimSuffix(path, fileType)+ending, []byte(sentinel), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.WriteFile(prefixOf(dir, "alice", "begun")+"1"+fileType, []byte(beginning+sentinel), 0o600); err != nil {
			t.Fatal(err)
		}
		<-time.After(2 * settleEvery) // so that the entries of its run cannot be missing yet
		log := &states{of: map[actor.CallID]State{torn: Running}}
		s = openStore(t, dir, Config{Prompts: All}, log)
		synctest.Wait() // it has settled
		s.add(owner, torn, "third")
		all := s.read(owner, torn)
		if len(all) != 2 || !strings.Contains(string(all[0].Request), "first") || !strings.Contains(string(all[1].Request), "third") {
			t.Errorf("got %+v", all)
		}
		if found := grep(t, dir, sentinel); len(found) > 0 {
			t.Errorf("the text is in %v", found)
		}
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("got %v %v", info.Mode(), err)
		}
		s.Close()
	})
}

// With "failed" the records of a run leave once it and its root have succeeded, and stay otherwise, also if the server
// was restarted in between.
func TestOnlyFailedRunsAreKept(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "prompts")
	log := &states{of: map[actor.CallID]State{}}
	owner := ownerOf("alice", "s")
	done, failed, open, later := runOf(1), runOf(2), runOf(3), runOf(4)
	synctest.Test(t, func(t *testing.T) {
		s := openStore(t, dir, Config{Prompts: Failed}, log)
		for _, run := range []actor.CallID{done, failed, open, later} {
			s.add(owner, run, "question")
		}
		log.set(done, Succeeded)
		log.set(failed, Kept)
		<-time.After(2 * settleEvery)
		synctest.Wait()
		for run, want := range map[actor.CallID]int{done: 0, failed: 1, open: 1, later: 1} {
			if got := len(s.read(owner, run)); got != want {
				t.Errorf("run %s: got %d records, want %d", run, got, want)
			}
		}
		s.Close()
		log.set(later, Succeeded)
		s = openStore(t, dir, Config{Prompts: Failed}, log)
		synctest.Wait()
		if s.read(owner, later) != nil || len(s.read(owner, failed)) != 1 {
			t.Error("a restart changes what is kept")
		}
		s.Close()
	})
}

func TestOldRecordsLeave(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "prompts")
	synctest.Test(t, func(t *testing.T) {
		owner, idle, busy := ownerOf("alice", "s"), runOf(1), runOf(2)
		s := openStore(t, dir, Config{Prompts: All, Keep: time.Hour}, nil)
		defer s.Close()
		s.add(owner, idle, "old")
		s.add(owner, busy, "old")
		s.read(owner, busy)
		<-time.After(50 * time.Minute)
		s.add(owner, busy, "new")
		s.read(owner, busy)
		if n := len(s.files(owner)); n != 2 {
			t.Errorf("got %d files, want another one after a part of the time for which records are kept", n)
		}
		<-time.After(20 * time.Minute)
		synctest.Wait()
		if found := grep(t, dir, "old"); len(found) > 0 {
			t.Errorf("old records are in %v", found)
		}
		page, err := s.Store.Read(context.Background(), owner, busy, 0, 10)
		if err != nil || len(page.All) != 1 || page.All[0].Step != 2 {
			t.Errorf("got %+v %v", page, err)
		}
	})
}

// Long texts are cut in their middle, a whole request of any size fits, and the oldest records make room.
func TestBounds(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "prompts")
	s := openStore(t, dir, Config{Prompts: All}, nil)
	defer s.Close()
	owner := ownerOf("alice", "s")
	long := strings.Repeat("é", 5<<20)
	oldest, second, first := runOf(1), runOf(2), runOf(3)
	s.add(owner, oldest, "x")
	x := exchange(owner, "q")
	x.Completion.Text, x.Request = strings.Repeat("\x01", 500<<10), []byte(`{"messages":[`+strings.Repeat(`"x",`, 2<<20)+`1]}`)
	s.Begin(owner, second)(x)
	all := s.read(owner, second)
	s.add(owner, first, "begin "+long+" end")
	all = append(all, s.read(owner, first)...)
	if len(all) != 2 {
		t.Fatalf("got %d records", len(all))
	}
	for _, r := range all {
		if b, _ := json.Marshal(r); len(b) > RecordBytesMax || r.Cut == 0 {
			t.Errorf("got a record of %d bytes, of which %d were cut", len(b), r.Cut)
		}
	}
	if got := string(all[1].Request); !strings.Contains(got, "begin é") || !strings.Contains(got, "é end") || !strings.Contains(got, "bytes cut]") {
		t.Errorf("got %.200s", got)
	}
	s.Store.files.Lock()
	s.evict = s.sum.Load()
	s.Store.files.Unlock()
	newest, other := runOf(10), ownerOf("alice", "s2")
	s.add(other, newest, "newest "+long)
	if s.read(other, newest) == nil || s.read(owner, oldest) != nil || s.read(owner, second) != nil || s.sum.Load() > s.evict {
		t.Errorf("got %d bytes, at most %d allowed, or the newest is gone", s.sum.Load(), s.evict)
	}
}

// A record that finds the queue full, or no room on the disk, is dropped and counted, and nothing waits for it.
func TestDroppedRecordsAreCounted(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "prompts")
	s := openStore(t, dir, Config{Prompts: All}, nil)
	defer s.Close()
	owner := ownerOf("alice", "s")
	s.Store.files.Lock() // the writer waits
	x := exchange(owner, "q")
	x.Request = make([]byte, queueBytesMax/4)
	for i := range 8 {
		s.Begin(owner, runOf(byte(i)))(x)
	}
	dropped := s.Stats().Dropped
	s.Store.files.Unlock()
	if dropped < 3 || dropped > 5 {
		t.Errorf("got %d dropped of 8 that are twice the queue", dropped)
	}
	s.read(owner, runOf(0))
	s.Room = func() bool { return false }
	s.add(owner, runOf(20), "q")
	if s.read(owner, runOf(20)) != nil || s.Stats().Dropped != dropped+1 {
		t.Errorf("got %+v", s.Stats())
	}
}

// Nothing is made while nothing is recorded.
func TestOffMakesNoFolder(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "prompts")
	s, err := Open(Options{Dir: dir, Config: Config{Prompts: Off}})
	if s != nil || err != nil {
		t.Fatal(s, err)
	}
	s.Forget("alice", "s")
	if page, err := s.Read(context.Background(), ownerOf("alice", "s"), runOf(1), 0, 10); err != nil || len(page.All) != 0 || s.Mode() != Off {
		t.Error(page, err)
	}
	s.Close()
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("got %v", err)
	}
}

// A session is deleted while one of its records leaves the queue.
func TestSessionIsForgottenWhileItsRecordIsWritten(t *testing.T) {
	dir, log := t.TempDir(), &states{of: map[actor.CallID]State{}}
	writing, forgotten := make(chan struct{}), make(chan struct{})
	s, err := Open(Options{Config: Config{Prompts: All}, Dir: dir, Source: log, Logger: slog.New(slog.DiscardHandler),
		Room: func() bool { close(writing); <-forgotten; return true }})
	if err != nil {
		t.Fatal(err)
	}
	owner := ownerOf("alice", "s1")
	(&testStore{t, s, log}).add(owner, runOf(1), "SENTINEL")
	<-writing
	s.Forget("alice", "s1")
	close(forgotten)
	s.Close()
	if found := grep(t, dir, "SENTINEL"); len(found) > 0 {
		t.Errorf("the deleted session is in %v", found)
	}
}

// noting counts the deletions that are noted, and refuses while it fails.
type noting struct {
	upto []time.Time
	fail bool
}

// Deleted implements Deletions.
func (n *noting) Deleted(_ string, upto time.Time) error {
	if n.fail {
		return errors.ErrUnsupported
	}
	n.upto = append(n.upto, upto)
	return nil
}

// Expired implements Deletions.
func (n *noting) Expired(time.Time) error { return nil }

// A deletion is noted once before it, and once more after it only if a backup may have records of between.
func TestDeletionIsNotedOnce(t *testing.T) {
	for name, c := range map[string]struct {
		between func(s *testStore, n *noting)
		want    int
	}{
		"nothing was written":         {func(*testStore, *noting) {}, 1},
		"another session was written": {func(s *testStore, _ *noting) { s.add(ownerOf("alice", "s2"), runOf(2), "x") }, 1},
		"a record was written":        {func(s *testStore, _ *noting) { s.add(ownerOf("alice", "s1"), runOf(1), "x") }, 2},
		"the session was refused, and is deleted later": {func(s *testStore, _ *noting) {
			s.add(ownerOf("alice", "s1"), runOf(1), "x")
			s.read(ownerOf("alice", "s1"), runOf(1))
			s.Forgetting("alice", "s1")
		}, 2},
		"the first was not noted": {func(_ *testStore, n *noting) { n.upto, n.fail = nil, false }, 1},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			synctest.Test(t, func(t *testing.T) {
				n, log := &noting{}, &states{of: map[actor.CallID]State{}}
				open, err := Open(Options{Config: Config{Prompts: All}, Dir: dir, Source: log, Deletions: n, Logger: slog.New(slog.DiscardHandler)})
				if err != nil {
					t.Fatal(err)
				}
				s := &testStore{t, open, log}
				defer s.Close()
				s.add(ownerOf("alice", "s1"), runOf(1), "x")
				s.read(ownerOf("alice", "s1"), runOf(1))
				n.fail = strings.Contains(name, "not noted")
				s.Forgetting("alice", "s1")
				<-time.After(time.Second)
				c.between(s, n)
				synctest.Wait()
				s.Forget("alice", "s1")
				if len(n.upto) != c.want || len(s.noted) != 0 {
					t.Errorf("noted %v, want %d, and %d are kept", n.upto, c.want, len(s.noted))
				}
			})
		})
	}
}

// A file that cannot be removed when its session is deleted is removed later.
func TestFailedRemovalIsRepeated(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		s := openStore(t, dir, Config{Prompts: All}, nil)
		owner, run := ownerOf("alice", "s1"), runOf(1)
		s.add(owner, run, "SENTINEL")
		s.read(owner, run)
		<-time.After(3 * settleEvery) // it is settled
		path := s.files(owner)[0]
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		if err := os.MkdirAll(filepath.Join(path, "busy"), 0o700); err != nil { // which Remove refuses
			t.Fatal(err)
		}
		s.log.set(run, Unknown)
		s.Forget("alice", "s1")
		if err := os.Remove(filepath.Join(path, "busy")); err != nil {
			t.Fatal(err)
		}
		<-time.After(3 * settleEvery)
		if _, err := os.Stat(path); !os.IsNotExist(err) {
			t.Errorf("it is still there: %v", err)
		}
		s.Close()
	})
}

// A folder that is a link to another disk is bounded after a start too.
func TestFolderMayBeLink(t *testing.T) {
	real, link := t.TempDir(), filepath.Join(t.TempDir(), "prompts")
	if err := os.Symlink(real, link); err != nil {
		t.Fatal(err)
	}
	s := openStore(t, link, Config{Prompts: All}, nil)
	owner, run := ownerOf("alice", "s1"), runOf(1)
	s.add(owner, run, "SENTINEL")
	s.Close()
	s = openStore(t, link, Config{Prompts: All}, s.log)
	if got := s.Stats().Bytes; got == 0 {
		t.Error("the records of before the start are not counted")
	}
	s.Forget("alice", "s1")
	s.Close()
	if found := grep(t, real, "SENTINEL"); len(found) > 0 {
		t.Errorf("the deleted session is in %v", found)
	}
}

// slowRoom is a disk on which each record takes a tenth of a second.
func slowRoom() bool { <-time.After(100 * time.Millisecond); return true }

// A queue that is never empty does not keep records from being removed, and the end of the server waits for a
// part of it only. What is left is counted.
func TestLongQueue(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		log := &states{of: map[actor.CallID]State{}}
		open, err := Open(Options{Config: Config{Prompts: All}, Dir: dir, Source: log, Logger: slog.New(slog.DiscardHandler), Room: slowRoom})
		if err != nil {
			t.Fatal(err)
		}
		s, owner, deleted := &testStore{t, open, log}, ownerOf("alice", "s"), runOf(1)
		s.add(owner, deleted, "SENTINEL")
		for range 3000 {
			s.add(owner, runOf(2), "question")
		}
		log.set(deleted, Unknown)
		<-time.After(200 * time.Second) // the records take 300 s
		if found := grep(t, dir, "SENTINEL"); len(found) > 0 {
			t.Errorf("a run that the log does not have is in %v", found)
		}
		began := time.Now()
		s.Close()
		if took := time.Since(began); took > closeWithin+time.Second {
			t.Errorf("the end took %v", took)
		}
		if got := s.Stats(); got.Dropped == 0 || got.Recorded+got.Dropped != 3001 {
			t.Errorf("got %+v", got)
		}
	})
}

// The files of a session leave from the front, and those that were written to longest ago.
func TestFilesAreBounded(t *testing.T) {
	s := openStore(t, t.TempDir(), Config{Prompts: All}, nil)
	defer s.Close()
	owner, run := ownerOf("alice", "s"), runOf(1)
	for i := range 20 {
		s.add(owner, run, strings.Repeat(string(rune('a'+i))+" ", 400<<10))
	}
	all := s.read(owner, run)
	if n := len(s.files(owner)); n < 3 || n > 6 || len(all) == 0 {
		t.Errorf("got %d records of 16 MB in %d files, of which each takes %d", len(all), n, fileBytesMax)
	}
	s.Store.files.Lock()
	s.session = 10 << 20
	s.Store.files.Unlock()
	s.add(owner, run, "the last one")
	page, err := s.Store.Read(context.Background(), owner, run, 19, 10)
	if got := s.Stats().Bytes; err != nil || got > 10<<20 || got < 2<<20 || len(page.All) != 2 || page.All[1].Step != 21 {
		t.Errorf("got %d bytes of a session, %v, %d records behind the 19th", got, err, len(page.All))
	}
	s.Store.files.Lock()
	s.most = 3
	s.Store.files.Unlock()
	for n := range byte(5) {
		run := runOf(2 + n)
		s.add(ownerOf("alice", fmt.Sprint(n)), run, "question")
		s.read(owner, run)
	}
	s.Store.files.Lock()
	defer s.Store.files.Unlock()
	if n := len(s.each(func(*file) bool { return true })); n > 3 || s.runs != n {
		t.Errorf("got %d files of %d runs, at most 3 allowed", n, s.runs)
	}
}

// The entries of a run may be written after its first record. With Failed a run is looked at again after each record.
func TestRunsAreLookedAtAgain(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		s := openStore(t, dir, Config{Prompts: Failed}, nil)
		owner, late, failed := ownerOf("alice", "s"), runOf(1), runOf(2)
		<-time.After(settleEvery - time.Second)
		s.add(owner, late, "question")
		s.add(owner, failed, "question")
		s.log.set(late, Unknown)
		s.log.set(failed, Kept)
		<-time.After(2 * time.Second)
		synctest.Wait()
		if len(s.read(owner, late)) != 1 {
			t.Error("the record of a run that is not in the log yet is gone")
		}
		s.add(owner, failed, "again")
		s.read(owner, failed)
		s.log.set(failed, Succeeded)
		<-time.After(2 * settleEvery)
		synctest.Wait()
		if got := s.read(owner, failed); got != nil {
			t.Errorf("got %d records of a run that has succeeded after all", len(got))
		}
		s.Close()
	})
}

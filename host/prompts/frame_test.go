// SPDX-License-Identifier: Apache-2.0

package prompts

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/troupe-run/troupe/actor"
)

// transcript returns a request with so many messages between its other members.
func transcript(messages int) []byte {
	var b strings.Builder
	for i := range messages {
		fmt.Fprintf(&b, `,{"role":"user","content":"question %d %s"}`, i, strings.Repeat("x", 500))
	}
	return []byte(`{"model":"m","messages":[{"role":"system","content":"Be brief."}` + b.String() + `],"tools":[{"name":"look_up"}]}`)
}

func (s *testStore) addRequest(owner actor.ID, run actor.CallID, request []byte) {
	x := exchange(owner, "")
	x.Request = request
	s.log.set(run, Running)
	s.Begin(owner, run)(x)
}

// A conversation of 100 requests takes little more than its messages, and each of its requests is read with those of
// a bounded number of others.
func TestConversationIsWrittenOnce(t *testing.T) {
	const requests = 100
	s := openStore(t, t.TempDir(), Config{Prompts: All}, nil)
	defer s.Close()
	owner, whole := ownerOf("alice", "s"), 0
	var run actor.CallID
	for i := range requests {
		if i%4 == 0 { // the conversation goes on over runs
			run = runOf(byte(i))
		}
		b := transcript(i)
		whole += len(b)
		s.addRequest(owner, run, b)
	}
	all := s.read(owner, run)
	if len(all) != 4 || string(all[3].Request) != string(transcript(requests-1)) {
		t.Errorf("got %d records, want 4, of which the last has the last request", len(all))
	}
	if got := s.Stats().Bytes; got > int64(whole/8) {
		t.Errorf("got %d bytes for requests of %d bytes", got, whole)
	}
	c, err := readFile(s.files(owner)[0])
	if err != nil {
		t.Fatal(err)
	}
	chains := map[int64]int{}
	c.each(false, func(at int64, f *framed) bool {
		if f.Base != 0 {
			chains[at] = chains[f.Base] + 1
		}
		if chains[at] > chainMax {
			t.Errorf("the record at %d needs %d others", at, chains[at])
		}
		return true
	})
	if len(chains) < requests*9/10 {
		t.Errorf("%d of %d requests continue others", len(chains), requests)
	}
}

// A file whose requests are together much longer than it is read and rewritten with few of them in memory.
func TestShortFramesOfLongRequests(t *testing.T) {
	const requests = 64
	var e encoder
	var b []byte
	name, want := runOf(1).String(), map[uint64]string{}
	for i := range requests {
		request := []byte(`{"a":"` + strings.Repeat("x", 500<<10) + fmt.Sprint(i) + `"}`)
		frame, next, err := e.frame(name, uint64(i+1), &Record{At: "2026-11-30T00:00:00.000Z"}, request)
		if err != nil {
			t.Fatal(err)
		}
		e.put(frame, "", next)
		b, want[uint64(i+1)] = append(b, frame...), string(request)
	}
	if len(b) > 4<<20 {
		t.Fatalf("got a file of %d bytes for %d requests", len(b), requests)
	}
	for _, each := range []uint64{2, 4} { // is kept
		c := &contents{b: b, requests: map[int64][]byte{}}
		found := 0
		c.each(false, func(at int64, f *framed) bool {
			request, err := c.request(at)
			if err != nil || string(request) != want[f.Step] {
				t.Errorf("record %d is not what was sent: %v", f.Step, err)
			}
			if c.held > requestsBytesMax {
				t.Errorf("%d bytes are kept", c.held)
			}
			found++
			return true
		})
		if found != len(want) {
			t.Errorf("got %d records, want %d", found, len(want))
		}
		s, changed, err := c.selected(func(f *framed) bool { return f.Step%each == 0 })
		if err != nil || !changed {
			t.Fatal(err, changed)
		}
		for step := range want {
			if step%each != 0 {
				delete(want, step)
			}
		}
		b = s.out
	}
}

// Whatever byte of a file is damaged, what is read of a request is what was sent, or nothing.
func TestDamageIsNotRead(t *testing.T) {
	s := openStore(t, t.TempDir(), Config{Prompts: All}, nil)
	owner, run := ownerOf("alice", "s"), runOf(1)
	const requests = 5
	sent := map[string]bool{}
	for i := range requests {
		sent[string(transcript(i))] = true
		s.addRequest(owner, run, transcript(i))
	}
	s.Close()
	path := s.files(owner)[0]
	intact, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	found := map[int]int{}
	for at := 0; at < len(intact); at += 1 + at%13 {
		b := bytes.Clone(intact)
		b[at] ^= 1 << (at % 8)
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		page, err := Read(s.Dir, owner, run, 0, 100, time.Time{})
		if err != nil {
			t.Fatal(err)
		}
		found[len(page.All)]++
		for _, p := range page.All {
			var r struct {
				Request jsontext.Value `json:"request"`
			}
			if err := json.Unmarshal(p.JSON, &r, lenient...); err != nil || !sent[string(r.Request)] {
				t.Fatalf("byte %d: got %s, %v", at, p.JSON, err)
			}
		}
	}
	if found[0] == 0 || found[requests-1] == 0 {
		t.Errorf("got numbers of records %v", found)
	}
}

// A run that goes on after a restart, or in another file, continues its numbers, and so do pages.
func TestNumbersContinue(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, dir, Config{Prompts: All}, nil)
	owner, run := ownerOf("alice", "s"), runOf(1)
	for i := range 6 {
		s.addRequest(owner, run, transcript(i))
		s.addRequest(owner, runOf(2), transcript(i))
		if i%2 == 1 {
			s.Close()
			s = openStore(t, dir, Config{Prompts: All}, s.log)
		}
	}
	defer s.Close()
	if n := len(s.files(owner)); n != 3 {
		t.Errorf("got %d files of 3 processes", n)
	}
	var steps []uint64
	for after, more := uint64(0), true; more; {
		page, err := s.Store.Read(context.Background(), owner, run, after, 2)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range page.All {
			steps = append(steps, p.Step)
		}
		after, more = steps[len(steps)-1], page.More
	}
	if fmt.Sprint(steps) != "[1 2 3 4 5 6]" {
		t.Errorf("got %v", steps)
	}
}

// Files that another program has removed, or replaced by what cannot be read, are left alone.
func TestFilesLeaveUnderTheStore(t *testing.T) {
	s := openStore(t, t.TempDir(), Config{Prompts: All}, nil)
	owner, run := ownerOf("alice", "s"), runOf(1)
	s.addRequest(owner, run, transcript(1))
	s.read(owner, run)
	if err := os.RemoveAll(s.Dir); err != nil {
		t.Fatal(err)
	}
	s.addRequest(owner, run, transcript(2))
	if all := s.read(owner, run); len(all) != 1 || string(all[0].Request) != string(transcript(2)) || s.Stats().Dropped != 0 {
		t.Errorf("got %v, %+v", all, s.Stats())
	}
	s.Close()
	path := s.files(owner)[0]
	for _, content := range []string{"", "x", beginning, beginning + "{}\n", beginning + "{\"new\":-1}\n\n", beginning + "{\"run\":\"" + run.String() + "\",\"step\":1,\"base\":14,\"new\":0}\n\n",
		beginning + `{"run":"` + run.String() + `","step":1,"front":9,"back":9,"new":0,"sum":0}` + "\n\n", strings.Repeat("\n", 100)} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		page, err := Read(s.Dir, owner, run, 0, 100, time.Time{})
		if err != nil {
			t.Error(err)
		}
		for _, p := range page.All {
			if !strings.Contains(string(p.JSON), `"request":""`) {
				t.Errorf("%q: got %s", content, p.JSON)
			}
		}
	}
}

// What two texts have in common never overlaps, and makes one of the other.
func TestShared(t *testing.T) {
	long := strings.Repeat("0123456789", 100)
	for _, c := range []struct {
		a, b        string
		front, back int
	}{
		{"", "", 0, 0}, {"a", "", 0, 0}, {"", "a", 0, 0}, {"a", "a", 1, 0}, {"aa", "a", 1, 0}, {"a", "aa", 1, 0}, {"aba", "abba", 2, 1}, {"xaaay", "xaay", 3, 1},
		{long + "x" + long, long + "y" + long, 1000, 1000}, {long, long, 1000, 0}, {long + long, long, 1000, 0},
	} {
		front, back := shared([]byte(c.a), []byte(c.b))
		if front != c.front || back != c.back || c.a[:front]+c.b[front:len(c.b)-back]+c.a[len(c.a)-back:] != c.b {
			t.Errorf("%.20q and %.20q: got %d and %d, want %d and %d", c.a, c.b, front, back, c.front, c.back)
		}
	}
}

// The short way takes no request that the long one would change.
func TestIgnoredRequestsHaveNoMatch(t *testing.T) {
	r := redactor{builtin}
	for text, want := range map[string]bool{
		"": true, "troupe": true, "a troupe of actors": true, "troupe_": false, "troupe-run.": false, "troupe-running": true,
		"troupe_0123456789abcdef": false, `"\u0074roupe_0123456789abcdef"`: false, `"\\u0074roupe_0123456789abcdef"`: false, `"\u2019"`: true, `"\u001b"`: false,
	} {
		if got := r.ignores([]byte(text)); got != want || got && string(r.value(jsontext.Value(text))) != text {
			t.Errorf("%s: got %v, want %v", text, got, want)
		}
	}
	if (redactor{builtin, builtin}).ignores([]byte("a")) {
		t.Error("a pattern of the configuration is left out")
	}
}

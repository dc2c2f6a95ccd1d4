// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/runs"
)

// listPages runs a list and then each command line that it prints as next. It returns
// the runs of all pages, and the number of pages.
func listPages(t *testing.T, args ...string) (all []string, pages int) {
	t.Helper()
	for {
		code, out, stderr := runProgram(t, append([]string{"runs", "list"}, args...)...)
		if code != 0 {
			t.Fatalf("%q: exit code %d, %s", args, code, stderr)
		}
		for line := range strings.Lines(out) {
			run, _, _ := strings.Cut(line, " ")
			all = append(all, run)
		}
		pages++
		next, more := strings.CutPrefix(strings.TrimSpace(stderr), "next: troupe runs list ")
		if !more {
			return all, pages
		}
		args = strings.Fields(next)
	}
}

func TestRunsListPages(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	s := startServerWithBuiltins(t, dir)
	var roots []string
	for i := range 5 {
		var m messageReply
		agent := []string{"helper", "coordinator"}[i%2]
		if _, err := s.request("POST", "/v1/agents/"+agent+"/messages", fmt.Sprintf(`{"content":"x","session_id":"s-%d"}`, i), "", &m); err != nil || m.Run == "" {
			t.Fatal(err)
		}
		roots = append(roots, m.Run)
	}
	slices.Sort(roots) // two may be of the same millisecond
	slices.Reverse(roots)
	check := func(at ...string) {
		t.Helper()
		got, pages := listPages(t, append([]string{"--limit", "2"}, at...)...)
		if !slices.Equal(got, roots) || pages < 3 {
			t.Errorf("%q: got %v in %d pages, want %v", at, got, pages, roots)
		}
		for want, filter := range map[int][]string{
			5: {"--agent", "helper"},
			2: {"--status", "paused_waiting_approval", "--since", "1h"},
			1: {"--session", "s-4", "--until", "2199-01-01T01:00:00+01:00"},
			0: {"--since=-1h"},
			3: {"--status", "DONE"},
		} {
			if got, _ := listPages(t, append(append(filter, "--limit", "1"), at...)...); len(got) != want {
				t.Errorf("%q: got %v, want %d runs", filter, got, want)
			}
		}
		for flag, want := range map[string]string{"--agent=a/b": "--agent: ", "--session=a/b": "--session: ", "--since=soon": `--since: "soon": want a duration before now such as 1h, or a time such as 2027-`, "--status=ended": "--status: ", "--root=1": "--root: ", "--parent=1": "--parent: ",
			"--cursor=x": "cursor: ", "--agent=": "--agent: ", "--session=": "--session: ", "--status=": "--status: ", "--since=": "--since: ", "--root=": "--root: "} {
			if code, _, stderr := runProgram(t, append([]string{"runs", "list", flag}, at...)...); code != exitFailed || !strings.Contains(stderr, want) {
				t.Errorf("%s: exit code %d, %s", flag, code, stderr)
			}
		}
	}
	check("--server", s.url)
	if code := s.stop(syscall.SIGTERM); code != 0 {
		t.Fatalf("exit code %d", code)
	}
	check("--data", dir)
}

// A list has local times, ages, tokens and the begins of answers, each run on a line. That of several users has
// their names instead of namespaces.
func TestRunsListShowsUsersThatDiffer(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	at := func(ago time.Duration) string { return runs.FormatTime(actor.Time(now.Add(-ago).UnixNano())) }
	local := func(ago time.Duration) string { return now.Add(-ago).Local().Format("2006-01-02 15:04:05") }
	row := func(of, user string) jsontext.Value {
		return jsontext.Value(fmt.Sprintf(`{"run_id":"r","created_at":%q,"actor":%q,"principal":%q,"status":"DONE","text":"one\\ntwo","tree_usage":{"total_tokens":12}}`, at(90*time.Second), of, user))
	}
	for want, rows := range map[string][]jsontext.Value{
		"": {},
		"r  " + local(90*time.Second) + "  1m30s  helper/s-1  12  DONE: one\\ntwo\n": {row("helper/s-1", "alice@example.com")},
		"r  " + local(0) + "  0s  a  -  PARKED: lost\\nbefore: 1\n":                  {jsontext.Value(`{"run_id":"r","created_at":"` + at(0) + `","actor":"a","status":"PAUSED_WAITING_APPROVAL","agent_state":"Parked","error":{"message":"lost\nbefore: 1"}}`)},
		"r  " + local(90*time.Second) + "  1m30s  helper/s-1  alice@example.com  12  DONE: one\\ntwo\nr  " + local(90*time.Second) + "  1m30s  helper/s-1  bob                12  DONE: one\\ntwo\n": {row("u-ff/helper/s-1", "alice@example.com"), row("bob/helper/s-1", "bob")},
	} {
		var out strings.Builder
		if err := printRuns(&out, rows, now); err != nil || out.String() != want {
			t.Errorf("got %q, %v, want %q", out.String(), err, want)
		}
	}
}

// Lists and pages show the times of the server in the time zone of this computer, in seconds. JSON keeps all digits.
func TestTimesAreLocal(t *testing.T) {
	const at = "2026-11-21T09:00:07.123456789Z"
	local := time.Date(2026, 11, 21, 9, 0, 7, 0, time.UTC).Local().Format("2006-01-02 15:04:05")
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch path := r.URL.Path; {
		case path == "/v1/sessions":
			fmt.Fprintf(w, `{"sessions":[{"session_id":"s","title":"t","created_at":%q,"last_message_at":%q,"agents":[],"usage":{}}]}`, at, at)
		case path == "/v1/keys":
			fmt.Fprintf(w, `{"keys":[{"key_id":"k","scopes":["call"],"user":"u","created_at":%q,"expires_at":%q}]}`, at, at)
		case strings.HasPrefix(path, "/v1/approvals/"):
			fmt.Fprintf(w, `{"approval_id":"ap_0190d5b2-7c3e-7a41-8f10-2b6f0c9d4e55.1.0","status":"APPROVED","tool_name":"pay","args":{},"created_at":%q,"expires_at":%q,"decided_by":"u","decided_at":%q}`, at, at, at)
		case strings.HasSuffix(path, "/events"):
			fmt.Fprint(w, `{"events":[]}`)
		default:
			fmt.Fprintf(w, `{"run_id":"01a20010-0000-7000-8000-000000000001","actor":"a/s","status":"DONE","created_at":%q,"ended_at":%q,"text":"x"}`, at, at)
		}
	}))
	defer s.Close()
	for _, c := range []struct {
		times int
		args  []string
	}{
		{1, []string{"sessions", "list"}},
		{2, []string{"keys", "list"}},
		{3, []string{"approvals", "show", "ap_0190d5b2-7c3e-7a41-8f10-2b6f0c9d4e55.1.0"}},
		{2, []string{"runs", "show", "01a20010-0000-7000-8000-000000000001"}},
	} {
		code, out, stderr := runProgram(t, append(c.args, "--server", s.URL)...)
		if code != 0 || strings.Count(out, local) != c.times || strings.Contains(out, ".123") {
			t.Errorf("%v: exit code %d, %s%s\nwant %s %d times", c.args, code, out, stderr, local, c.times)
		}
		if code, out, stderr = runProgram(t, append(c.args, "--json", "--server", s.URL)...); code != 0 || strings.Count(out, at) < c.times {
			t.Errorf("%v as JSON: exit code %d, %s%s", c.args, code, out, stderr)
		}
	}
}

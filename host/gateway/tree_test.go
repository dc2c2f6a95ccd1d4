// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"context"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/internal/command"
	"github.com/troupe-run/troupe/runs"
)

// Two agents have nothing but a name, and one calls the other.
func TestTreeStreamResumesAfterAnyEvent(t *testing.T) {
	d := startGateway(t)
	d.createAgent("second")
	d.createAgent("first")
	s := d.openStream("POST", "/v1/agents/first/messages", `{"content":"Ask the second agent: xyzzy"}`)
	s.readUntil("")
	if _, whole := s.answerTexts(); !strings.Contains(whole, "xyzzy") {
		t.Errorf("%s: %s", s.frameNames(), whole)
	}
	path := "/v1/runs/" + s.response.Header.Get("X-Run-Id") + "/events?tree=1"
	tree := d.openStream("GET", path, "")
	tree.readUntil("")
	ends := 0
	for _, f := range tree.frames {
		if f.Name == "run_done" {
			ends++
		}
	}
	if ends != 2 || len(tree.frames) <= len(s.frames) {
		t.Fatalf("%d run_done events, want 2: %s", ends, tree.frameNames())
	}
	for i, f := range tree.frames[:len(tree.frames)-1] {
		resumed := d.openStream("GET", path, "", "Last-Event-ID", f.ID)
		resumed.readUntil("")
		if got, want := resumed.frameNames(), strings.Join(strings.Split(tree.frameNames(), ", ")[i+1:], ", "); got != want {
			t.Errorf("after %s: %s, want %s", f.ID, got, want)
		}
	}
}

// A tree as JSON has the run, then each run below it, with their status and parent.
func TestTreeOfRunsAsJSON(t *testing.T) {
	d := startGateway(t)
	d.createAgent("second")
	d.createAgent("first")
	_, _, body := d.do("POST", "/v1/agents/first/messages", `{"content":"Ask the second agent: xyzzy"}`)
	var reply struct {
		Run string `json:"run_id"`
	}
	var tree struct {
		Runs []struct {
			Run    string `json:"run_id"`
			Parent string `json:"parent_run_id"`
			Actor  string `json:"actor"`
			Status string `json:"status"`
			Ended  string `json:"ended_at"`
		} `json:"runs"`
		Truncated bool `json:"truncated"`
	}
	if err := json.Unmarshal([]byte(body), &reply); err != nil {
		t.Fatal(err, body)
	}
	status, _, body := d.do("GET", "/v1/runs/"+reply.Run+"?tree=1", "")
	if err := json.Unmarshal([]byte(body), &tree); err != nil || status != 200 || len(tree.Runs) != 2 {
		t.Fatalf("%d %s, %v", status, body, err)
	}
	top, below := tree.Runs[0], tree.Runs[1]
	if top.Run != reply.Run || below.Parent != top.Run || !strings.HasPrefix(below.Actor, "second/") || top.Status != "DONE" || below.Status != "DONE" || below.Ended == "" || tree.Truncated {
		t.Errorf("got %s", body)
	}
	if status, _, body := d.do("GET", "/v1/runs/"+reply.Run+"?tree=2", ""); status != 400 || !strings.Contains(body, `"field":"tree"`) {
		t.Errorf("%d %s", status, body)
	}
}

// endlessNode has runs with three calls each, of which the second never begins. The
// run of a call is numbered like its place in a tree without end.
type endlessNode struct {
	command.Node
	lookups int
}

func (n *endlessNode) Lookup(_ context.Context, l command.Lookup) (command.Result, error) {
	n.lookups++
	if _, ok := l.Query.(command.RunsQuery); ok {
		return command.Runs{}, nil
	}
	id := l.Query.(command.RunQuery).Run
	place := uint64(id[15])<<8 | uint64(id[14])
	if place%3 == 2 {
		return nil, actor.Refuse(actor.NotFound, "not begun")
	}
	run := command.Run{Owner: command.Owner{Run: id}, Record: runs.Record{Run: id, Seq: 1}}
	for i := range uint64(3) {
		next := place*3 + 1 + i
		child := actor.CallID{6: 0x70, 8: 0x80, 14: byte(next), 15: byte(next >> 8)}
		run.Record.Children = append(run.Record.Children, runs.Child{Run: child})
	}
	return run, nil
}

// The JSON form of a large tree is truncated, and reads no more runs than it lists.
func TestTreeOfRunsIsBounded(t *testing.T) {
	n := &endlessNode{}
	r := request(n, "/v1/runs/"+actor.CallID{6: 0x70, 8: 0x80}.String()+"?tree=1")
	var tree struct {
		Runs      []any `json:"runs"`
		Truncated bool  `json:"truncated"`
	}
	if err := json.Unmarshal(r.Body(), &tree); err != nil || len(tree.Runs) != 200 || !tree.Truncated || n.lookups > 600 {
		t.Errorf("%d: %d runs, truncated %v, %d lookups, %v", r.StatusCode(), len(tree.Runs), tree.Truncated, n.lookups, err)
	}
}

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/sstable"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/go-json-experiment/json"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/agents"
	"github.com/troupe-run/troupe/dispatcher"
	"github.com/troupe-run/troupe/host/outbound"
	"github.com/troupe-run/troupe/internal/command"
	"github.com/troupe-run/troupe/internal/node"
)

// fillerRuns is a number of runs whose messages fill a page of a transcript.
const fillerRuns = 34

// purgedNode is a node with a coordinator that calls a helper, and random markers of 64
// bytes in its content.
type purgedNode struct {
	*node.Node
	t       *testing.T
	data    string
	markers map[string]string // by where they were put
}

func (n *purgedNode) open() {
	n.t.Helper()
	var err error
	n.Node, err = node.Open(node.Config{Data: n.data, Name: "n1", WriteBuffer: 1 << 20, Limits: dispatcher.DefaultLimits(), Outbound: outbound.Config{}, FreeFloor: 1,
		Keep: 30 * 24 * time.Hour}, slog.New(slog.DiscardHandler))
	if err != nil {
		n.t.Fatal(err)
	}
}

func (n *purgedNode) close() {
	n.t.Helper()
	if err := n.Close(context.Background()); err != nil {
		n.t.Fatal(err)
	}
}

var purgeBy = actor.NewPrincipal("alice", "")

func (n *purgedNode) invoke(agent, session, operation string, parts []actor.Part) string {
	n.t.Helper()
	call := actor.Call{ID: n.NewCallID(), To: purgeBy.ID(agent, session), Operation: operation, Parts: parts}
	a, err := n.Invoke(n.t.Context(), command.Invoke{By: purgeBy, Call: call}, nil)
	if err != nil || a.Reply.Refusal != nil {
		n.t.Fatal(err, a.Reply.Refusal)
	}
	return actor.TextOf(a.Reply.Parts)
}

// marker returns a new marker.
func (n *purgedNode) marker(where string) string {
	var b [32]byte
	rand.Read(b[:]) //nolint:errcheck // cannot fail
	n.markers[where] = hex.EncodeToString(b[:])
	return n.markers[where]
}

// fill stores each marker in a session.
func (n *purgedNode) fill(session string) {
	n.t.Helper()
	say := func(message string) string { return n.invoke("coordinator", session, "", actor.Text(message)) }
	say("say " + n.marker("message of 10 KiB "+session) + strings.Repeat("x", 10<<10))
	for range fillerRuns {
		say("say filler")
	}
	say("say " + n.marker("second page "+session))
	child := n.marker("call and child " + session)
	if answer := say("Ask the helper agent to say " + child); !strings.Contains(answer, child) {
		n.t.Errorf("the helper did not answer: %q", answer)
	}
	for range fillerRuns {
		say("say filler")
	}
	describe, err := json.Marshal(agents.ContextCommand{ID: "c1", Create: true})
	if err != nil {
		n.t.Fatal(err)
	}
	n.invoke(actor.ContextAgent, session, agents.OpContextPut, []actor.Part{{Media: actor.MediaJSON, Bytes: describe},
		{Media: agents.MediaContext, Bytes: fmt.Appendf(nil, `{"x":%q}`, n.marker("context "+session))}})
}

// found returns where the files of the store hold markers: in rows of tables, old versions
// among them, or in the bytes of another file. Half of a marker counts, because a record of
// a write-ahead log can be in two blocks.
func (n *purgedNode) found() map[string][]string {
	n.t.Helper()
	all := map[string][]string{}
	look := func(file string, content []byte) {
		for where, m := range n.markers {
			for i := 0; i < len(m); i += 16 {
				if bytes.Contains(content, []byte(m[i:i+16])) && !slices.Contains(all[where], file) {
					all[where] = append(all[where], file)
				}
			}
		}
	}
	err := filepath.WalkDir(n.data, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		if filepath.Ext(path) == ".sst" {
			return eachRow(path, func(key, value []byte) { look(filepath.Base(path), key); look(filepath.Base(path), value) })
		}
		content, err := os.ReadFile(path)
		look(filepath.Base(path), content)
		return err
	})
	if err != nil {
		n.t.Fatal(err)
	}
	return all
}

// eachRow passes all versions of the rows of a table.
func eachRow(path string, each func(key, value []byte)) error {
	f, err := vfs.Default.Open(path)
	if err != nil {
		return err
	}
	readable, err := sstable.NewSimpleReadable(f)
	if err != nil {
		return err
	}
	r, err := sstable.NewReader(context.Background(), readable, sstable.ReaderOptions{})
	if err != nil {
		return err
	}
	defer r.Close() //nolint:errcheck // only read
	it, err := r.NewIter(sstable.NoTransforms, nil, nil, sstable.AssertNoBlobHandles)
	if err != nil {
		return err
	}
	for kv := it.First(); kv != nil; kv = it.Next() {
		value, _, err := kv.Value(nil)
		if err != nil {
			return err
		}
		each(kv.K.UserKey, value)
	}
	return it.Close()
}

// The content of a deleted session is in no file of the store: neither in tables, nor in
// write-ahead logs, nor in those that wait to be reused. That of other sessions stays.
func TestDeletedContentLeavesFiles(t *testing.T) {
	n := &purgedNode{t: t, data: filepath.Join(t.TempDir(), "data"), markers: map[string]string{}}
	n.open()
	for _, spec := range []string{`{"name":"coordinator"}`, `{"name":"helper"}`} {
		s, err := agents.ReadJSON([]byte(spec))
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := n.PutAgent(t.Context(), s); err != nil {
			t.Fatal(err)
		}
	}
	want := func(what, session string, want bool) {
		t.Helper()
		found := n.found()
		for where := range n.markers {
			if strings.HasSuffix(where, session) && len(found[where]) > 0 != want {
				t.Errorf("%s: the marker in the %s is in %v, want it found: %v", what, where, found[where], want)
			}
		}
	}
	n.fill("s-1")
	want("in write-ahead logs", "s-1", true)
	n.close()
	n.open() // moves the rows to tables
	n.fill("s-2")
	n.fill("s-3")
	for _, session := range []string{"s-1", "s-3"} {
		want("before its deletion", session, true)
		if err := n.Forget(t.Context(), command.Forget{By: purgeBy, Session: session}); err != nil {
			t.Fatal(err)
		}
	}
	purge := func() {
		t.Helper()
		if err := n.Purge(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	purge()
	n.close() // waits until obsolete files are removed
	for _, session := range []string{"s-1", "s-3"} {
		want("after its deletion", session, false)
	}
	want("another session", "s-2", true)
	n.open()
	if text := n.invoke("coordinator", "s-2", "", actor.Text("say more")); text != "more" {
		t.Errorf("another session answers %q", text)
	}
	n.Retain(t.Context(), actor.Time(time.Now().Add(31*24*time.Hour).UnixNano()))
	n.close()
	for _, session := range []string{"s-1", "s-2", "s-3"} {
		want("after its time and a cut", session, false)
	}
	n.open()
	n.close()
}

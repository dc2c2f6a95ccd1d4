// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"log/slog"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/agents"
	"github.com/troupe-run/troupe/dispatcher"
	"github.com/troupe-run/troupe/internal/command"
	"github.com/troupe-run/troupe/runs"
)

// talkedNode returns a node after so many messages to each of some sessions.
func talkedNode(b *testing.B, given actor.TranscriptPolicy, sessions, messages int) *Node {
	b.Helper()
	native := agents.Define("talker", "1", "Replies with its message.", agents.Blocking(agents.Func(func(t *agents.Turn) (string, error) { return t.Message(), nil })))
	native.Transcript = given
	n, err := Open(Config{Data: filepath.Join(b.TempDir(), "data"), Name: "n1", Limits: dispatcher.DefaultLimits(), FreeFloor: 1, Native: []actor.Definition{native}}, slog.New(slog.DiscardHandler))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := n.Close(context.Background()); err != nil {
			b.Error(err)
		}
	})
	talk(b, n, "s-", sessions, messages)
	return n
}

// talk sends so many messages to each of some sessions.
func talk(b *testing.B, n *Node, prefix string, sessions, messages int) {
	b.Helper()
	var next atomic.Int64
	var clients sync.WaitGroup
	for range min(64, sessions) {
		clients.Go(func() {
			for i := next.Add(1) - 1; i < int64(sessions); i = next.Add(1) - 1 {
				for range messages {
					call := actor.Call{ID: n.NewCallID(), To: benchBy.ID("talker", prefix+strconv.Itoa(int(i))), Parts: actor.Text("a message of forty bytes, more or less")}
					if a, err := n.Invoke(b.Context(), command.Invoke{By: benchBy, Call: call}, nil); err != nil || a.Reply.Refusal != nil {
						b.Error(err, a.Reply.Refusal)
						return
					}
				}
			}
		})
	}
	clients.Wait()
}

// processorTime returns the processor time of this process.
func processorTime(b *testing.B) time.Duration {
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		b.Fatal(err)
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

var benchBy = actor.NewPrincipal("alice", "")

// BenchmarkMessagesPage reads the newest 50 of 10,000 messages of a session.
func BenchmarkMessagesPage(b *testing.B) {
	n := talkedNode(b, actor.TranscriptNone, 1, 5000)
	start := processorTime(b)
	for b.Loop() {
		page, err := command.Find(b.Context(), n, benchBy, command.MessagesQuery{Session: "s-0", Limit: 50})
		if err != nil || len(page.All) != 50 || page.Total != 10000 {
			b.Fatal(len(page.All), page.Total, err)
		}
	}
	b.ReportMetric(float64(processorTime(b)-start)/float64(b.N), "cpu-ns/op")
}

// BenchmarkMessageAfterOthers reports the processor time of a message after 1,000 others of its
// session, in that of the first one of a session.
func BenchmarkMessageAfterOthers(b *testing.B) {
	for name, given := range map[string]actor.TranscriptPolicy{"none": actor.TranscriptNone, "last:100": 100} {
		b.Run(name, func(b *testing.B) {
			const sessions = 16
			n := talkedNode(b, given, sessions, 500)
			var first, later time.Duration
			for round := 0; b.Loop(); round++ {
				start := processorTime(b)
				talk(b, n, "new-"+strconv.Itoa(round)+"-", 10*sessions, 1)
				first += processorTime(b) - start
				start = processorTime(b)
				talk(b, n, "s-", sessions, 10)
				later += processorTime(b) - start
			}
			b.ReportMetric(float64(later)/float64(first), "x-first")
		})
	}
}

// BenchmarkSessionsPage reads all pages of 10,000 sessions and reports the time of a page.
func BenchmarkSessionsPage(b *testing.B) {
	n := talkedNode(b, actor.TranscriptNone, 10000, 1)
	pages, start := 0, processorTime(b)
	for b.Loop() {
		found := 0
		for q := (command.SessionsQuery{Limit: 50}); ; pages++ {
			page, err := command.Find(b.Context(), n, benchBy, q)
			if err != nil {
				b.Fatal(err)
			}
			if found += len(page.All); page.Next == "" {
				pages++
				break
			}
			q.Before = page.Next
		}
		if found != 10000 {
			b.Fatalf("%d sessions", found)
		}
	}
	b.ReportMetric(float64(b.Elapsed())/float64(pages), "ns/page")
	b.ReportMetric(float64(processorTime(b)-start)/float64(pages), "cpu-ns/page")
}

// BenchmarkUsage reports what 100,000 runs used by day, user, agent and model.
func BenchmarkUsage(b *testing.B) {
	native := agents.Define("talker", "1", "Asks the scripted model.", agents.Blocking(agents.Func(func(t *agents.Turn) (string, error) {
		return t.Model(agents.ModelRequest{Model: "scripted"})
	})))
	native.Transcript = actor.TranscriptNone
	n, err := Open(Config{Data: filepath.Join(b.TempDir(), "data"), Name: "n1", Limits: dispatcher.DefaultLimits(), FreeFloor: 1, Native: []actor.Definition{native}}, slog.New(slog.DiscardHandler))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := n.Close(context.Background()); err != nil {
			b.Error(err)
		}
	})
	talk(b, n, "s-", 1000, 100)
	today := runs.DayOf(actor.Time(time.Now().UnixNano()))
	reads, start := 0, processorTime(b)
	for ; b.Loop(); reads++ {
		page, err := command.Find(b.Context(), n, benchBy, command.UsageQuery{From: today - 1, To: today, By: runs.UsageColumns, Limit: 1000})
		if err != nil || page.Total.Runs != 100_000 || page.Total.Answers != 100_000 || page.Total.Usage.Total == 0 {
			b.Fatal(page.Total, err)
		}
	}
	b.ReportMetric(float64(processorTime(b)-start)/float64(reads), "cpu-ns/op")
}

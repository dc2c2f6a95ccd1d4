// SPDX-License-Identifier: Apache-2.0

//go:build postgres

package link

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/agents"
	"github.com/troupe-run/troupe/dispatcher"
	"github.com/troupe-run/troupe/history"
	"github.com/troupe-run/troupe/host/postgres"
	"github.com/troupe-run/troupe/internal/command"
	"github.com/troupe-run/troupe/internal/node"
	"github.com/troupe-run/troupe/internal/postgrestest"
	"github.com/troupe-run/troupe/placement"
	"github.com/troupe-run/troupe/runs"
)

// activeMember is a node of a cluster with its link.
type activeMember struct {
	*node.Node
	t       *testing.T
	cluster *postgres.Cluster
	end     func()
}

var active = actor.NewPrincipal("alice", "key")

type membersOf struct{ *Peers }

func (m membersOf) SetMembers(all []node.Member) {
	var out []Member
	for _, one := range all {
		out = append(out, Member(one))
	}
	m.Peers.SetMembers(out)
}

func openMember(t *testing.T, url string, log *slog.Logger) *activeMember {
	t.Helper()
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	a := Address{Path: filepath.Join(dir, "LINK")}
	m := &activeMember{t: t}
	var err error
	m.cluster, err = postgres.Join(postgres.ClusterConfig{URL: url, Name: "team", Node: "n1", Address: a.String(), Logs: 6, Logger: log,
		Timing: placement.Timing{TTL: 1200 * time.Millisecond, Margin: 100 * time.Millisecond, Beat: 250 * time.Millisecond},
		Lost:   func(line string) { t.Error(line) }})
	if err != nil {
		t.Fatal(err)
	}
	worker := agents.Define("worker", "1", "calls, waits and fails as it is asked", agents.Blocking(agents.Func(func(turn *agents.Turn) (string, error) {
		switch verb, rest, _ := strings.Cut(turn.Message(), " "); verb {
		case "wait":
			_, err := turn.Wait("go", time.Hour)
			return "went", err
		default:
			return verb + rest, nil
		}
	})))
	var peers *Peers
	m.Node, err = node.Open(node.Config{Data: filepath.Join(dir, "data"), Store: url, Cluster: m.cluster, Name: "n1", Limits: dispatcher.DefaultLimits(), Native: []actor.Definition{worker},
		Connect: func(side node.MemberSide) node.Members {
			peers = NewPeers(PeersConfig{Name: side.Name, Node: side.Node, Deliver: side.Deliver, Announced: side.Announced, Logger: log})
			l, err := Listen(a)
			if err != nil {
				t.Fatal(err)
			}
			s := NewServer(a, l, &Orchestrator{}, peers, log)
			ended := make(chan error, 1)
			go func() { ended <- s.Serve() }()
			m.end = func() {
				if err := errors.Join(s.Close(), <-ended); err != nil {
					t.Error(err)
				}
			}
			return membersOf{peers}
		}}, log)
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Placed(t.Context()); err != nil {
		t.Fatal(err)
	}
	return m
}

func (m *activeMember) leave() {
	m.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if err := m.Close(ctx); err != nil {
		m.t.Error(err)
	}
	m.end()
	if err := m.cluster.Close(); err != nil {
		m.t.Error(err)
	}
}

func (m *activeMember) ask(session, text string) string {
	m.t.Helper()
	call := actor.Call{ID: m.NewCallID(), To: active.ID("worker", session), Kind: actor.Waiting, Parts: actor.Text(text), Left: 20 * time.Second}
	a, err := m.Invoke(m.t.Context(), command.Invoke{By: active, Call: call}, nil)
	if err != nil || a.Reply.Refusal != nil {
		m.t.Fatalf("session %s: %v, %v", session, err, a.Reply.Refusal)
	}
	return actor.TextOf(a.Reply.Parts)
}

// owned returns how many logs the member owns.
func (m *activeMember) owned() int {
	_, logs, _, _ := m.cluster.Stats()
	return logs
}

func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	late := time.After(30 * time.Second)
	for !holds() {
		select {
		case <-tick.C:
		case <-late:
			t.Fatalf("not within 30 s: %s", what)
		}
	}
}

// Members of a cluster share its logs. Each takes the commands for all sessions, and a session goes on when its member leaves.
func TestPostgresMembersShareSessions(t *testing.T) {
	url := postgrestest.Start(t).Database()
	log := slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelInfo}))
	a := openMember(t, url, log.With("member", "a"))
	const sessions = 24
	for i := range sessions {
		a.ask(fmt.Sprintf("s-%d", i), "x")
	}
	b := openMember(t, url, log.With("member", "b"))
	eventually(t, "both own three of six logs", func() bool { return a.owned() == 3 && b.owned() == 3 })
	for _, m := range []*activeMember{a, b} {
		if err := m.Placed(t.Context()); err != nil {
			t.Fatal(err)
		}
		for i := range sessions {
			if got := m.ask(fmt.Sprintf("s-%d", i), "x y"); got != "xy" {
				t.Errorf("session %d: %q", i, got)
			}
		}
	}

	// A run that waits at one member: followed, found, listed and woken at the other.
	both := []*activeMember{a, b}
	for i := range 6 {
		session, m, other := fmt.Sprintf("w-%d", i), both[i%2], both[(i+1)%2]
		run := m.NewCallID()
		updates, stop, err := other.Follow(t.Context(), command.Follow{By: active, Run: run})
		if err != nil {
			t.Fatal(err)
		}
		ended := make(chan string, 1)
		go func() {
			call := actor.Call{ID: run, To: active.ID("worker", session), Kind: actor.Waiting, Parts: actor.Text("wait"), Left: time.Minute}
			answer, err := m.Invoke(context.Background(), command.Invoke{By: active, Call: call}, nil)
			ended <- fmt.Sprint(actor.TextOf(answer.Reply.Parts), answer.HeldUntil != 0, err)
		}()
		for waits := false; !waits; {
			<-updates
			w, err := command.Find(t.Context(), other, active, command.WaitingQuery{Run: run})
			waits = err == nil && w.Found
		}
		stop()
		found, err := command.Find(t.Context(), other, active, command.ActorsQuery{Agent: "worker", Limit: 100})
		if err != nil || !slices.ContainsFunc(found.All, func(x history.Actor) bool { return x.ID.Key == session }) {
			t.Errorf("actors at the other member: %v, %v", found, err)
		}
		if got := <-ended; got != "true <nil>" {
			t.Errorf("the caller of the run that waits got %q", got)
		}
		signal := actor.Call{ID: m.NewCallID(), Parent: run, To: active.ID("worker", session), Kind: actor.Signal, Operation: "go", Left: time.Minute}
		if answer, err := other.Signal(t.Context(), command.Signal{By: active, Call: signal}); err != nil || answer.Reply.Refusal != nil {
			t.Errorf("signal: %v, %v", err, answer.Reply.Refusal)
		}
		eventually(t, "the run ends", func() bool {
			r, err := command.Find(t.Context(), m, active, command.RunQuery{Run: run})
			return err == nil && r.Record.Status == runs.Done
		})
	}

	// A change of the registry by one member is there at the other, at once for the one that asked.
	for i, m := range both {
		spec, err := agents.ReadTOML(fmt.Sprintf("agent_id = %q\nmodel = %q\nprompt = %q\n", fmt.Sprint("made-", i), "scripted", "x"))
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := m.PutAgent(t.Context(), spec); err != nil {
			t.Fatal(err)
		}
		if _, ok := m.Agent(spec.ID); !ok {
			t.Errorf("agent %s is missing at its member", spec.ID)
		}
		eventually(t, "the agent is known to the other", func() bool { _, ok := both[1-i].Agent(spec.ID); return ok })
	}

	for i := range 6 {
		session := fmt.Sprintf("s-%d", i)
		if err := both[i%2].Forget(t.Context(), command.Forget{By: active, Session: session}); err != nil {
			t.Errorf("forget: %v", err)
		}
		for _, m := range both {
			var r *actor.Refusal
			if _, err := command.Find(t.Context(), m, active, command.SessionQuery{Session: session}); !errors.As(err, &r) || r.Reason != actor.NotFound {
				t.Errorf("session %s after its deletion: %v", session, err)
			}
		}
	}

	a.leave()
	eventually(t, "the other owns all", func() bool { return b.owned() == 6 })
	for i := 6; i < sessions; i++ {
		b.ask(fmt.Sprintf("s-%d", i), "z")
		s, err := command.Find(t.Context(), b, active, command.SessionQuery{Session: fmt.Sprintf("s-%d", i)})
		if err != nil || len(s.Agents) != 1 || s.Agents[0].Runs != 4 {
			t.Errorf("session %d: %+v, %v", i, s, err)
		}
	}
	c := openMember(t, url, log.With("member", "c"))
	eventually(t, "both own three of six logs", func() bool { return b.owned() == 3 && c.owned() == 3 })
	for i := 6; i < sessions; i++ {
		c.ask(fmt.Sprintf("s-%d", i), "z")
	}
	b.leave()
	c.leave()
	if x, err := postgres.Examine(url, nil); err != nil || x.Wrong != 0 {
		t.Errorf("examined: %+v, %v", x, err)
	}
}

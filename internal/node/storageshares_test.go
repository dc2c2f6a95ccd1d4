// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"github.com/troupe-run/troupe/store"
	"log/slog"
	"maps"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/agents"
	"github.com/troupe-run/troupe/ingress"
	"github.com/troupe-run/troupe/internal/command"
)

const gib = 1 << 30

// While space is scarce, the user who has more than half of it starts no new work, and others do. What
// is written between two estimates counts.
func TestUserWithMostOfTheDiskIsRefused(t *testing.T) {
	for name, c := range map[string]struct {
		usage   store.Usage
		mallory bool // is refused
	}{
		"empty store":                 {store.Usage{Free: 1 << 20, Of: map[string]uint64{}}, false},
		"enough space":                {store.Usage{Free: 2 * gib, Stored: 10 * gib, Of: map[string]uint64{"mallory": 9 * gib, "bob": gib}}, false},
		"scarce space":                {store.Usage{Free: gib, Stored: 10 * gib, Of: map[string]uint64{"mallory": 9 * gib, "bob": gib}}, true},
		"less than half":              {store.Usage{Free: gib, Stored: 10 * gib, Of: map[string]uint64{"mallory": 4 * gib, "bob": gib}}, false},
		"large disk":                  {store.Usage{Free: 5 * gib, Stored: 1000 * gib, Of: map[string]uint64{"mallory": 900 * gib}}, false},
		"small disk":                  {store.Usage{Free: 100 << 20, Stored: 300 << 20, Burst: 128 << 20, Of: map[string]uint64{"mallory": 290 << 20}}, true},
		"half of a tiny disk is free": {store.Usage{Free: 50 << 20, Stored: 40 << 20, Burst: 128 << 20, Of: map[string]uint64{"mallory": 40 << 20}}, false},
		"full large disk":             {store.Usage{Free: 3 * gib, Stored: 1000 * gib, Of: map[string]uint64{"mallory": 900 * gib}}, true},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := newStorageShares(nil, slog.New(slog.DiscardHandler))
			usage := c.usage
			s.read = func() (store.Usage, error) { return usage, nil }
			if r := s.admit("mallory", 1); r != nil {
				t.Errorf("%s: refused before the first estimate: %v", name, r)
			}
			synctest.Wait()
			r := s.admit("mallory", 1)
			if (r != nil) != c.mallory || r != nil && (r.Info().Type != "storage_share" || r.HTTP() != 507 || !strings.Contains(r.Detail, "delete sessions")) {
				t.Errorf("%s: %+v", name, r)
			}
			if r := s.admit("bob", 1<<20); r != nil {
				t.Errorf("%s: bob is refused: %v", name, r)
			}
			usage = store.Usage{Free: 100 * gib, Stored: gib, Of: map[string]uint64{"mallory": gib}} // mallory has deleted sessions
			<-time.After(usageEvery)
			_ = s.admit("bob", 1)
			synctest.Wait()
			if r := s.admit("mallory", 1); r != nil {
				t.Errorf("%s: after the deletion: %v", name, r)
			}
			usage, s.read = store.Usage{}, func() (store.Usage, error) { return store.Usage{}, errors.New("test error") }
			accepted := 0
			for ; accepted < 1<<20 && s.admit("mallory", 1<<20) == nil; accepted++ {
			}
			if accepted < 10<<10 || accepted > 60<<10 { // of 100 GiB, two bytes for each
				t.Errorf("%s: %d MiB are accepted between two estimates", name, accepted)
			}
			s.close()
		})
	}
}

// On a small disk a user fills what is free within seconds, and its messages may take more than is
// estimated for them.
func TestSpaceIsEstimatedAgainAfterMuchIsWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var free atomic.Uint64
		free.Store(400 << 20)
		s := newStorageShares(nil, slog.New(slog.DiscardHandler))
		s.read = func() (store.Usage, error) {
			left := free.Load()
			return store.Usage{Free: left, Stored: 400<<20 - left, Of: map[string]uint64{"mallory": 400<<20 - left}}, nil
		}
		accepted := 0
		for ; free.Load() > 4<<20 && s.admit("mallory", 1<<20) == nil; accepted++ {
			free.Add(^uint64(3<<20 - 1))
			<-time.After(100 * time.Millisecond)
			synctest.Wait()
		}
		if free.Load() <= 4<<20 || accepted < 50 {
			t.Errorf("%d MiB are free after %d messages", free.Load()>>20, accepted)
		}
		if r := s.admit("bob", 1<<20); r != nil {
			t.Errorf("another user: %v", r)
		}
		s.close()
	})
}

// Definitions count for the user who writes them, also after the next estimate, which knows no user for them. They count
// no longer once they are cut from the log.
func TestDefinitionsTakeShareOfTheDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		usage := store.Usage{Free: 500 << 20, Stored: 20 << 20, Of: map[string]uint64{"": 10 << 20, actor.DefaultTenant: 10 << 20}}
		s := newStorageShares(nil, slog.New(slog.DiscardHandler))
		s.read = func() (store.Usage, error) {
			u := usage
			u.Of = maps.Clone(usage.Of)
			return u, nil
		}
		estimate := func() {
			<-time.After(usageEvery)
			_ = s.admit("carol", 1)
			synctest.Wait()
		}
		estimate()
		for i := range 2400 { // each has 32 KiB and takes six times as much
			r := s.admitDefinition("bob", 32<<10)
			if refused := i >= 2350; refused && r == nil || i < 1500 && r != nil {
				t.Fatalf("definition %d: %v", i, r)
			} else if r != nil {
				if r.Info().Type != "storage_share" || !strings.Contains(r.Detail, "by changes of agents") {
					t.Errorf("definition %d: %v", i, r)
				}
				break
			}
			usage.Of[""] += 6 * 32 << 10
			usage.Stored += 6 * 32 << 10
			usage.Free -= 6 * 32 << 10
			if i%100 == 0 {
				estimate()
			}
		}
		usage.Free = 40 << 20
		estimate()
		if r := s.admit("bob", 1); r == nil {
			t.Error("a message of bob is accepted")
		}
		for _, tenant := range []string{actor.DefaultTenant, "carol"} {
			if r := s.admit(tenant, 1<<20); r != nil {
				t.Errorf("a message of %s: %v", tenant, r)
			}
			if r := s.admitDefinition(tenant, 1<<10); r != nil {
				t.Errorf("a definition of %s: %v", tenant, r)
			}
		}
		usage.Of["carol"], usage.Of[""] = usage.Of[""], 1<<20
		estimate()
		if r := s.admit("bob", 1); r != nil {
			t.Errorf("after the log was cut: %v", r)
		}
		s.close()
	})
}

// The users with the most definitions are counted.
func TestUsersWithDefinitionsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStorageShares(func() (store.Usage, error) { return store.Usage{}, nil }, slog.New(slog.DiscardHandler))
		for i := range definersMax + 9 {
			_ = s.admitDefinition(strconv.Itoa(i), 1<<20-i)
		}
		if len(s.defined) != definersMax || s.defined["0"] == 0 || s.defined[strconv.Itoa(definersMax+8)] == 0 {
			t.Errorf("%d users are counted, want %d", len(s.defined), definersMax)
		}
		s.close()
	})
}

// Messages and definitions of clients are subject to the shares, and deletions are not.
func TestMessagesTakeShareOfTheDisk(t *testing.T) {
	n := openTestNode(t)
	n.storage.usage, n.storage.readAt = store.Usage{Free: 1, Stored: gib, Of: map[string]uint64{actor.DefaultTenant: gib}}, time.Now().Add(time.Hour)
	by := testBy
	invoke := func(call actor.Call) *actor.Refusal {
		t.Helper()
		call.ID = n.NewCallID()
		a, err := n.Invoke(t.Context(), command.Invoke{By: by, Call: call}, nil)
		if err != nil {
			t.Fatal(err)
		}
		return a.Reply.Refusal
	}
	if r := invoke(actor.Call{To: actor.NewID("helper", "s-1"), Parts: actor.Text("x")}); r == nil || r.Info().Type != "storage_share" {
		t.Errorf("a message: %v", r)
	}
	define := actor.Call{To: agents.RegistryID, Operation: agents.OpPut, Parts: []actor.Part{{Media: actor.MediaJSON, Bytes: []byte(`{"name":"a"}`)}}}
	by.Scopes = []string{string(ingress.ScopeAdmin)}
	if r := invoke(define); r != nil && r.Info().Type == "storage_share" {
		t.Errorf("a definition of an administrator: %v", r)
	}
	by.Scopes = []string{string(ingress.ScopeAgents)}
	if r := invoke(define); r == nil || r.Info().Type != "storage_share" {
		t.Errorf("a definition: %v", r)
	}
	if r := invoke(actor.Call{To: agents.RegistryID, Operation: agents.OpDelete, Parts: []actor.Part{{Media: actor.MediaJSON, Bytes: []byte(`{"agent_id":"a"}`)}}}); r != nil && r.Reason != actor.NotFound && r.Reason != actor.Rejected {
		t.Errorf("a deletion: %v", r)
	}
}

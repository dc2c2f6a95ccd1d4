// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	goruntime "runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/agents"
	"github.com/troupe-run/troupe/dispatcher"
	"github.com/troupe-run/troupe/ingress"
	"github.com/troupe-run/troupe/internal/command"
)

// One key takes its share, many keys take what is not reserved, and an administrator the rest. What ends is
// free again.
func TestSharesOfRegistryCalls(t *testing.T) {
	r := newRegistryCalls()
	take := func(key string, admin bool) (n int, refused *actor.Refusal) {
		for ; refused == nil; n++ {
			refused = r.take(key, admin)
		}
		return n - 1, refused
	}
	if n, refused := take("a", false); n != 32 || refused.Scope != actor.ScopeCaller {
		t.Errorf("the first key has %d, then %v", n, refused)
	}
	if n, refused := take("b", false); n != 32 || refused.Scope != actor.ScopeCaller {
		t.Errorf("the second key has %d, then %v", n, refused)
	}
	for i := range 3 {
		if n, refused := take(fmt.Sprint("c", i), false); n != 0 || refused.Scope != actor.ScopeNode {
			t.Errorf("a further key has %d, then %v", n, refused)
		}
	}
	if n, refused := take("admin", true); n != 32 || refused.Scope != actor.ScopeNode {
		t.Errorf("an administrator has %d, then %v", n, refused)
	}
	r.Give("a", 1)
	r.Give("admin", 1)
	if n, _ := take("admin", true); n != 2 {
		t.Errorf("%d places are free after two ends", n)
	}
}

// heldKeys receives the keys of a registry, whose changes wait for it.
type heldKeys struct {
	held    atomic.Bool
	changed chan string // ID of the new key
	goOn    chan struct{}
	known   map[string]bool
}

func (k *heldKeys) Set(all []ingress.Key) {
	for _, key := range all {
		if !k.known[key.ID] && k.held.Load() {
			k.changed <- key.ID
			<-k.goOn
		}
		k.known[key.ID] = true
	}
}

// A key with many changes under way delays that of another by two, and that of an administrator only by
// those that the registry has.
func TestChangesOfRegistryTakeTurns(t *testing.T) {
	held := &heldKeys{changed: make(chan string), goOn: make(chan struct{}), known: map[string]bool{}}
	n, err := Open(Config{Data: filepath.Join(t.TempDir(), "data"), Name: "n1", Limits: dispatcher.DefaultLimits(), FreeFloor: 1, Keys: held}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = n.Close(context.Background()) })
	held.held.Store(true)
	var changes sync.WaitGroup
	change := func(by actor.Principal, id string) {
		changes.Go(func() {
			body := fmt.Sprintf(`{"key_id":%q,"digest":%q,"scopes":["read"],"name":""}`, id, strings.Repeat("0a", 32))
			call := actor.Call{ID: n.NewCallID(), To: agents.RegistryID, Operation: agents.OpCreateKey, Left: RegistryTimeout, Principal: by.User, Parts: []actor.Part{{Media: actor.MediaJSON, Bytes: []byte(body)}}}
			if a, err := n.Invoke(t.Context(), command.Invoke{By: by, Call: call}, nil); err != nil || a.Reply.Refusal != nil {
				t.Errorf("%s: %v %v", id, a.Reply.Refusal, err)
			}
		})
	}
	waiting := func(want int) {
		for n.registry.turns.Waiting() != want {
			goruntime.Gosched()
		}
	}
	const flood = 12
	for i := range flood {
		change(actor.NewPrincipal("mallory", "m", "agents"), fmt.Sprintf("%016x", i))
	}
	first := <-held.changed
	waiting(flood - RegistryTurns.Open)
	const ofBob, ofAdmin = "00000000000000b0", "00000000000000ad"
	change(actor.NewPrincipal("bob", "b", "agents"), ofBob)
	waiting(flood - RegistryTurns.Open + 1)
	change(actor.NewPrincipal("root", "r", "admin"), ofAdmin)
	for n.registry.Taken() != flood+2 {
		goruntime.Gosched()
	}
	order := []string{first}
	for range flood + 1 {
		held.goOn <- struct{}{}
		order = append(order, <-held.changed)
	}
	held.goOn <- struct{}{}
	changes.Wait()
	if at := slices.Index(order, ofBob); at < 0 || at > RegistryTurns.Open+2 { // those that the registry had, and one each of mallory and the administrator
		t.Errorf("the change of bob is number %d of %q", at, order)
	}
	if at := slices.Index(order, ofAdmin); at < 0 || at > RegistryTurns.Open+2 {
		t.Errorf("the change of the administrator is number %d of %q", at, order)
	}
}

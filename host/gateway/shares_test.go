// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/troupe-run/troupe/ingress"
	"github.com/troupe-run/troupe/internal/command"
	"github.com/troupe-run/troupe/internal/invariant"
	"github.com/troupe-run/troupe/internal/node"
	"github.com/troupe-run/troupe/internal/shares"
)

func numbersOf(b shares.Bounds) string {
	return fmt.Sprintf("%d | %d | %d", b.Max, b.Each, b.Reserved)
}

// The page has the numbers of all shares.
func TestLimitsPageListsShares(t *testing.T) {
	page, err := os.ReadFile("../../docs/limits.md")
	if err != nil {
		t.Fatal(err)
	}
	b := New(nil, slog.New(slog.DiscardHandler), Config{})
	const principals, byKey = "users and external agents", "API keys, and users without one"
	for divided, numbers := range map[string]shares.Bounds{
		"refused connections whose client may still be sending | addresses":                                 b.lingering.Bounds(),
		"connections over a limit whose client may still be sending | addresses":                            b.excess.Bounds(),
		"bytes of request bodies longer than 8 KiB, from the end of the head to the answer | " + principals: b.bodies.Bounds(),
		"bytes of answers longer than 8 KiB, until the client has read them | " + principals:                b.connections.answers.Bounds(),
		"event streams, sockets, and requests that wait for events | " + principals:                         b.streams.Bounds(),
		"sockets before the hello, without a key in the handshake | addresses":                              b.strangers.Bounds(),
		"requests for lists and trees of runs, sessions, events of both and approvals | " + principals:      b.scans.Bounds(),
		"subscriptions to open runs and to sessions | " + byKey:                                             node.SubscriptionShares,
		"changes of agents, tools and keys under way | " + byKey:                                            node.RegistryShares,
	} {
		if row := "| " + divided + " | " + numbersOf(numbers) + " |"; !strings.Contains(string(page), row) {
			t.Errorf("docs/limits.md lacks the row %s", row)
		}
	}
	for _, text := range []string{fmt.Sprintf("read at most %d pages of events at the same time", turnsEach),
		fmt.Sprintf("the registry has %d at the same time", node.RegistryTurns.Open)} {
		if !strings.Contains(string(page), text) {
			t.Errorf("docs/limits.md lacks: %s", text)
		}
	}
}

// A key that changes agents over many connections leaves places for the administrator.
func TestRegistryHasPlacesForAdministrators(t *testing.T) {
	d := startGatewayWith(t, Config{KeysRequired: true})
	var admin, flooding struct {
		Key string `json:"key"`
	}
	for scope, key := range map[ingress.Scope]any{ingress.ScopeAdmin: &admin, ingress.ScopeAgents: &flooding} {
		if status := d.owner().doJSON(key, "POST", "/v1/keys", fmt.Sprintf(`{"scopes":[%q]}`, scope)); status != http.StatusCreated {
			t.Fatal(status)
		}
	}
	ctx, stop := context.WithCancel(t.Context())
	t.Cleanup(stop)
	var flood sync.WaitGroup
	var busy atomic.Bool
	refused := make(chan struct{})
	for i := range 160 {
		flood.Go(func() {
			for n := 0; ctx.Err() == nil && n < 20; n++ {
				body := fmt.Sprintf(`{"agent_id":"a%d","endpoint":"http://127.0.0.1:1/%d"}`, i%8, n)
				r := invariant.Must(http.NewRequestWithContext(ctx, "POST", "http://"+d.address+"/v1/agents/register", strings.NewReader(body)))
				r.Header.Set("Authorization", "Bearer "+flooding.Key)
				r.Header.Set("Content-Type", "application/json")
				answer, err := d.client.Do(r)
				if err != nil {
					continue
				}
				text, _ := io.ReadAll(answer.Body)
				_ = answer.Body.Close()
				if strings.Contains(string(text), "changes of agents, tools and keys from you are under way") && busy.CompareAndSwap(false, true) {
					close(refused)
				}
			}
		})
	}
	ended := make(chan struct{})
	go func() { flood.Wait(); close(ended) }()
	select {
	case <-refused:
	case <-ended:
		t.Fatal("no change is refused")
	}
	for range 5 {
		var key struct {
			ID string `json:"key_id"`
		}
		created := d.doJSON(&key, "POST", "/v1/keys", `{"scopes":["read"]}`, "Authorization", "Bearer "+admin.Key)
		if revoked, _, body := d.do("DELETE", "/v1/keys/"+key.ID, "", "Authorization", "Bearer "+admin.Key); created != http.StatusCreated || revoked != http.StatusOK {
			t.Errorf("%d, %d %s", created, revoked, body)
		}
	}
	stop()
	<-ended
}

// endlessModel has a model whose answers begin and do not end.
type endlessModel struct {
	command.Node
	begun sync.Map // IDs of requests
}

func (n *endlessModel) Do(ctx context.Context, in command.Do) (command.Result, error) {
	switch a := in.Action.(type) {
	case command.StartChat:
		return command.Chat{ID: n.NewCallID(), Model: "scripted"}, nil
	case command.ReadChat:
		if _, begun := n.begun.LoadOrStore(a.Chat, true); begun {
			<-ctx.Done()
			return nil, ctx.Err()
		}
		return command.ChatPart{Bytes: []byte("data: {\"choices\":[]}\n\n")}, nil
	case command.CancelChat:
		return command.ChatPart{}, nil
	}
	return n.Node.Do(ctx, in)
}

// All agents of a principal take its share, so that registering more of them gains nothing.
// Those of an administrator have shares of their own.
func TestAgentsTakeShareOfTheirRegistrar(t *testing.T) {
	d := startGateway(t)
	tokens, ended := make(chan string, 1), make(chan struct{})
	served := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/invoke" {
			select {
			case tokens <- r.Header.Get(RunToken):
				<-ended
			case <-ended: // nobody waits for this attempt
			}
		}
	}))
	t.Cleanup(served.Close)
	t.Cleanup(func() { close(ended) })
	const streams, each = 16, 4
	config := d.server.config
	config.Streams = streams
	limited := d.serve(New(&endlessModel{Node: d.server.node}, d.server.log, config), func(l net.Listener) net.Listener { return l })
	olga, admin := d.newUser(`"user":"olga","scopes":["call","read","agents"]`), d.newUser(`"scopes":["admin"]`)
	begin := func(by user, agent string) (token string) {
		if status, body := by.do("POST", "/v1/agents/register", `{"agent_id":"`+agent+`","endpoint":"`+served.URL+`"}`); status != 201 {
			t.Fatalf("%d %s", status, body)
		}
		stream := d.openStream("POST", "/v1/agents/"+agent+"/messages", `{"content":"x"}`)
		t.Cleanup(func() { _ = stream.response.Body.Close() })
		return <-tokens
	}
	body := `{"stream":true,"x":"` + strings.Repeat("x", 2*bodyFree) + `"}`
	open := func(headers ...string) {
		stream := limited.openStream("POST", completionsRoute, body, headers...)
		t.Cleanup(func() { _ = stream.response.Body.Close() })
	}
	first := begin(olga, "first")
	open(RunToken, first)
	second := begin(olga, "second") // the owners of agents are known by now
	run, _, _ := ingress.ReadToken(config.Secret, second)
	open(RunToken, second)
	open(RunToken, second)
	open(runHeader, run.String(), "Authorization", "Bearer "+olga.key)
	for name, headers := range map[string][]string{"first": {RunToken, first}, "second": {RunToken, second}, "second by its run": {runHeader, run.String(), "Authorization", "Bearer " + olga.key}, "olga": {"Authorization", "Bearer " + olga.key}} {
		if status, _, answer := limited.do("POST", completionsRoute, body, headers...); status != 429 || !strings.Contains(answer, fmt.Sprintf("%d event streams", each)) {
			t.Errorf("%s: %d %s, want 429 after %d streams", name, status, answer, each)
		}
	}
	for _, agent := range []string{"ours", "theirs"} {
		open(RunToken, begin(admin, agent))
	}
	if n := limited.server.bodies.Keys(); n != 3 {
		t.Errorf("the bodies take %d shares, want one of olga and one of each other agent", n)
	}
}

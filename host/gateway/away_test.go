// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fasthttp/websocket"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/internal/command"
)

// awayNode is a node that can be away, as one behind a link is.
type awayNode struct {
	command.Node
	mu      sync.Mutex
	away    *command.AwayError // nil: it is not away
	refused chan string        // receives the type of each refused command; it has room for all
}

// leave makes the node refuse all commands, until back is called.
func (n *awayNode) leave() (back func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	returned := make(chan struct{})
	n.away = &command.AwayError{Back: returned, Refusal: actor.RefuseUnavailable(time.Second, "the node is away")}
	return func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.away = nil
		close(returned)
	}
}

func (n *awayNode) check(what string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.away == nil {
		return nil
	}
	n.refused <- what
	return n.away
}

// awaitRefused waits until a command of this type was refused.
func (n *awayNode) awaitRefused(what string) {
	for got := range n.refused {
		if strings.HasSuffix(got, what) {
			return
		}
	}
}

func (n *awayNode) Lookup(ctx context.Context, in command.Lookup) (command.Result, error) {
	if err := n.check(fmt.Sprintf("%T", in.Query)); err != nil {
		return nil, err
	}
	return n.Node.Lookup(ctx, in)
}

func (n *awayNode) Follow(ctx context.Context, in command.Follow) (<-chan struct{}, func(), error) {
	if err := n.check("Follow"); err != nil {
		return nil, nil, err
	}
	return n.Node.Follow(ctx, in)
}

// A read that fails because the node is away is repeated once it is back, and the socket stays open.
// Until then requests are refused, as is a new socket, which may reconnect.
func TestSocketWaitsForNodeThatIsAway(t *testing.T) {
	direct := startGateway(t)
	n := &awayNode{Node: direct.server.node, refused: make(chan string, 1000)}
	d := direct.serve(New(n, slog.New(slog.DiscardHandler), direct.server.config), func(l net.Listener) net.Listener { return l })
	open := d.channel(`{"type":"hello","resume":{"session_id":"s1"}}`, nil)
	open.until("state", "READY")
	invoke := `{"type":"agent_invoke","request_id":%q,"session_id":"s1","agent_id":"helper","message":{"role":"user","content":"hello"}}`
	open.send(fmt.Sprintf(invoke, "r1"))
	first := open.until("done", "").Run

	back := n.leave()
	if late := d.channel(`{"type":"hello"}`, nil); late.until("error", "").Code != "agent_unavailable" {
		t.Errorf("%+v", late.got)
	} else if _, code := late.next(); code != websocket.CloseTryAgainLater {
		t.Errorf("a hello that may succeed later is closed with %d", code)
	}
	open.send(fmt.Sprintf(invoke, "r2"))
	if m := open.until("error", ""); m.Request != "r2" || m.Code != "agent_unavailable" {
		t.Errorf("%+v", m)
	}
	open.send(fmt.Sprintf(`{"type":"replay","request_id":"r3","run_id":%q}`, first))
	n.awaitRefused("OwnerQuery")
	if status, _, body := direct.do("POST", "/v1/agents/helper/messages", `{"content":"hello","session_id":"s1"}`); status != 200 {
		t.Error(status, body)
	}
	n.awaitRefused("SessionEventsQuery")
	back()
	later := direct.channel(`{"type":"hello","resume":{"session_id":"s1"}}`, nil)
	for _, c := range []*channelClient{open, later} {
		for ended := 0; ended < 2; {
			ended = 0
			for _, m := range c.got {
				if m.Type == "done" && m.Cursor != "" {
					ended++
				}
			}
			if ended < 2 {
				c.next()
			}
		}
	}
	got, want := cursors(open), cursors(later)
	if fmt.Sprint(got) != fmt.Sprint(want) || len(want) < 6 {
		t.Errorf("the open socket has the cursors\n%v\nwant\n%v", got, want)
	}
	for !slices.ContainsFunc(open.got, func(m channelMessage) bool { return m.State == "REPLAYED" && m.Request == "r3" }) {
		open.next()
	}
}

// cursors returns the cursors of the messages of a session.
func cursors(c *channelClient) (all []string) {
	for _, m := range c.got {
		if m.Cursor != "" && m.State != "LIVE" {
			all = append(all, m.Type+" "+m.Cursor)
		}
	}
	return all
}

// SPDX-License-Identifier: Apache-2.0

package link

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/host/gateway"
	"github.com/troupe-run/troupe/ingress"
	"github.com/troupe-run/troupe/internal/command"
)

// Bounds of the delay between two attempts to connect.
const (
	backoffMin = 50 * time.Millisecond
	backoffMax = 2 * time.Second
	// With several orchestrators: one of them serves again soon.
	backoffSeveralMax = 250 * time.Millisecond

	warnInterval = time.Minute // between two warnings about them
)

// followRetry is the delay between two attempts to subscribe again, if the orchestrator refuses one
// after its restart.
const followRetry = time.Second

// self is the principal of queries by the ingress itself.
var self = actor.NewPrincipal("", "")

// Of several orchestrators, the connected one is asked every probeEvery whether it takes work. One that does not, or has not
// answered for probeTimeout, is left if another one does.
const probeEvery, probeTimeout = time.Second, 3 * time.Second

// Node is the orchestrator at the other end of a link. Node opens the link again whenever it fails. Of
// several orchestrators of a cluster, which all serve, it is the one that answered first. While none is connected, each
// command returns a *command.AwayError at once. A subscription outlasts a connection: it receives an
// update after each new one, because events may have been missed.
type Node struct {
	addresses []Address
	keys      *gateway.Keys
	log       *slog.Logger
	ctx       context.Context
	cancel    context.CancelFunc
	work      sync.WaitGroup
	first     command.Gateway // of the first connection
	done      chan struct{}   // closed when the node has failed
	err       error           // set before done is closed

	mu     sync.Mutex
	client *command.Client // nil: not connected
	back   chan struct{}   // closed at the next connection; set while client is nil
	moved  chan struct{}   // closed when another connection takes the place of one that still works
}

// Connect waits for an orchestrator at one of the addresses, or for ctx. It returns a *RefusedError at once if a
// configuration must change first. The API keys are in keys then, and follow those of the
// orchestrator. The caller MUST close the node.
func Connect(ctx context.Context, addresses []Address, keys *gateway.Keys, log *slog.Logger) (*Node, error) {
	n := &Node{addresses: addresses, keys: keys, log: log, done: make(chan struct{}), back: make(chan struct{}), moved: make(chan struct{})}
	n.ctx, n.cancel = context.WithCancel(context.Background())
	c, err := n.reconnect(ctx, true)
	if err != nil {
		n.cancel()
		return nil, err
	}
	n.first = c.state
	n.connected(c.client)
	n.work.Go(func() { n.run(c) })
	return n, nil
}

// Gateway sets the fields of a configuration that the orchestrator provides.
func (n *Node) Gateway(c *gateway.Config) {
	c.Keys, c.Secret, c.ApprovalScope = n.keys, n.first.Secret, ingress.Scope(n.first.ApprovalScope)
	c.External, c.Backup = external{n}, n.backup
}

// Done returns a channel that is closed once the node has failed for good. Err returns the
// reason.
func (n *Node) Done() <-chan struct{} { return n.done }

// Err returns the reason why the node has failed. It is valid once Done is closed.
func (n *Node) Err() error { return n.err }

// Close closes the link. Runs continue.
func (n *Node) Close() {
	n.mu.Lock()
	n.cancel()
	n.mu.Unlock()
	n.work.Wait()
}

// run follows the API keys over one connection after the other.
func (n *Node) run(c *connection) {
	defer func() {
		n.lose(c.client)
		if c.next != nil {
			c.next.client.Close()
		}
	}()
	endWatch := n.watch(c)
	defer func() { endWatch() }()
	for version := c.state.Version; ; {
		state, err := gatewayState(c.polling, c.client, version)
		if err == nil && state.Version != version {
			version, err = state.Version, n.setKeys(&state)
		}
		switch {
		case n.ctx.Err() != nil:
			return
		case err == nil:
			continue
		}
		endWatch()
		began := time.Now()
		next := c.next
		if next != nil && n.setKeys(&next.state) != nil {
			next.client.Close()
			next, c.next = nil, nil
		}
		if next == nil {
			n.lose(c.client)
			n.log.Warn("the orchestrator is not connected: requests are refused until it is again", "orchestrator", c.from.String(), "error", err.Error())
			if next, err = n.reconnect(n.ctx, false); err != nil {
				return
			}
		}
		if !bytes.Equal(next.state.Secret, n.first.Secret) || next.state.ApprovalScope != n.first.ApprovalScope {
			next.client.Close()
			n.err = fmt.Errorf("the orchestrator at %s has another store or configuration than before: start this ingress again", next.from)
			close(n.done)
			return
		}
		if former := c; next == former.next {
			n.replace(former, next.client)
		} else {
			n.log.Info("the orchestrator is connected again", "orchestrator", next.from.String(), "ms", time.Since(began).Milliseconds())
			n.connected(next.client)
		}
		c, version = next, next.state.Version
		endWatch = n.watch(c)
	}
}

// String returns the addresses of the orchestrators.
func (n *Node) String() string {
	var all []string
	for _, a := range n.addresses {
		all = append(all, a.String())
	}
	return strings.Join(all, ", ")
}

// connection is a connection to an orchestrator.
type connection struct {
	client *command.Client
	state  command.Gateway // at the beginning
	from   Address

	polling context.Context    // ends when another connection takes its place
	leave   context.CancelFunc // ends polling
	next    *connection        // that takes its place; set before polling ends, as is silent
	silent  bool               // its orchestrator does not answer
}

// watch looks for another orchestrator once the connected one takes no work: it leaves, or is frozen or cut off and says
// nothing of it. The returned function ends the watch and waits.
func (n *Node) watch(c *connection) (end func()) {
	ctx, cancel := context.WithCancel(n.ctx)
	c.polling, c.leave = context.WithCancel(n.ctx)
	var work sync.WaitGroup
	others := slices.DeleteFunc(slices.Clone(n.addresses), func(a Address) bool { return a == c.from })
	if len(others) > 0 {
		work.Go(func() {
			for ctx.Err() == nil {
				timer := time.NewTimer(probeEvery)
				select {
				case <-timer.C:
				case <-ctx.Done():
					timer.Stop()
					return
				}
				if why := health(ctx, c); why != "" && n.change(ctx, c, others, why) {
					return
				}
			}
		})
	}
	return func() {
		c.leave()
		cancel()
		work.Wait()
	}
}

const silentReason = "it does not answer"

// health returns why an orchestrator takes no work, or "".
func health(ctx context.Context, c *connection) string {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	h, err := command.Find(ctx, c.client, self, command.HealthQuery{})
	if errors.Is(err, context.DeadlineExceeded) {
		return silentReason
	}
	return h.Reason // the connection of one that returns another error has failed
}

// change has another orchestrator that takes work take the place of a connection, and reports whether there is one.
func (n *Node) change(ctx context.Context, c *connection, others []Address, why string) bool {
	looking, looked := context.WithTimeout(ctx, probeTimeout)
	defer looked()
	for len(others) > 0 {
		other, err := attemptAll(looking, others)
		if err != nil {
			return false
		}
		if health(looking, other) == "" {
			n.log.Warn("the orchestrator takes no work: changing to another", "orchestrator", c.from.String(), "other", other.from.String(), "error", why)
			c.next, c.silent = other, why == silentReason
			c.leave()
			return true
		}
		other.client.Close()
		others = slices.DeleteFunc(slices.Clone(others), func(a Address) bool { return a == other.from })
	}
	return false
}

// replace makes a connection the current one. The former one is closed once its open requests have ended, because an
// orchestrator that leaves answers them; at once if it does not answer.
func (n *Node) replace(former *connection, client *command.Client) {
	n.mu.Lock()
	lost := n.client == nil // the former one has failed meanwhile
	n.client = client
	if lost {
		close(n.back)
	} else {
		close(n.moved)
		n.moved = make(chan struct{})
	}
	n.mu.Unlock()
	n.work.Go(func() {
		if !former.silent {
			ctx, cancel := context.WithTimeout(n.ctx, formerMax)
			defer cancel()
			former.client.Finish(ctx)
		}
		former.client.Close()
	})
}

// formerMax is the maximum time for the open requests of a connection whose place another one has taken.
const formerMax = 30 * time.Second

// reconnect connects and sets the keys, so that no connection is used with former ones. It tries
// until ctx ends. The first connection also ends with a *RefusedError.
func (n *Node) reconnect(ctx context.Context, first bool) (*connection, error) {
	var warned time.Time
	slowest := backoffMax
	if len(n.addresses) > 1 {
		slowest = backoffSeveralMax
	}
	for delay := backoffMin; ; delay = min(2*delay, slowest) {
		c, err := attemptAll(ctx, n.addresses)
		if err == nil {
			if err = n.setKeys(&c.state); err == nil {
				return c, nil
			}
			c.client.Close()
		}
		var refused *RefusedError
		switch {
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case first && errors.As(err, &refused) && len(n.addresses) == 1:
			return nil, fmt.Errorf("--orchestrator %s: %w", n, err)
		}
		if (delay >= slowest || errors.As(err, &refused)) && time.Since(warned) >= warnInterval {
			warned = time.Now()
			n.log.Warn("cannot connect to the orchestrator: will try again", "orchestrator", n.String(), "error", err.Error())
		}
		timer := time.NewTimer(delay/2 + rand.N(delay/2))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
		}
	}
}

// attemptAll connects to the first orchestrator that answers. A frozen one takes a connection
// and says nothing, so all are tried at the same time.
func attemptAll(ctx context.Context, addresses []Address) (found *connection, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type result struct {
		c   *connection
		err error
	}
	results := make(chan result)
	for _, a := range addresses {
		go func() {
			c, err := attempt(ctx, a)
			results <- result{c, err}
		}()
	}
	var failed []error
	for range addresses {
		r := <-results
		switch {
		case r.err != nil:
			failed = append(failed, r.err)
		case found == nil:
			found = r.c
			cancel() // of the others
		default:
			r.c.client.Close()
		}
	}
	if found == nil {
		return nil, errors.Join(failed...)
	}
	return found, nil
}

// attempt connects to an orchestrator.
func attempt(ctx context.Context, a Address) (*connection, error) {
	ctx, cancel := context.WithTimeout(ctx, greetingTimeout)
	defer cancel()
	c, err := dial(ctx, a)
	if err != nil {
		return nil, refusedOf(err)
	}
	defer context.AfterFunc(ctx, func() { _ = c.Close() })()
	if err := greet(c, greeting, greeting); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	x := &connection{client: command.Dial(boundedConn{Conn: c, silence: silenceMax}), from: a}
	if x.state, err = gatewayState(ctx, x.client, 0); err != nil {
		x.client.Close()
		return nil, err
	}
	return x, nil
}

func gatewayState(ctx context.Context, client *command.Client, after uint64) (command.Gateway, error) {
	return command.Find(ctx, client, self, command.GatewayQuery{After: after})
}

func (n *Node) setKeys(state *command.Gateway) error {
	var all []ingress.Key
	for _, encoded := range state.Keys {
		key, err := ingress.DecodeKey(encoded)
		if err != nil {
			return fmt.Errorf("the orchestrator has an API key that this version cannot decode: %w", err)
		}
		all = append(all, key)
	}
	n.keys.Set(all)
	return nil
}

func (n *Node) connected(client *command.Client) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.client = client
	close(n.back)
}

// lose closes a connection that has failed.
func (n *Node) lose(client *command.Client) {
	if client == nil {
		return
	}
	n.mu.Lock()
	if n.client == client {
		n.client, n.back = nil, make(chan struct{})
	}
	n.mu.Unlock()
	client.Close()
}

// current returns the connection, or an error if there is none.
func (n *Node) current() (*command.Client, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.client == nil {
		return nil, n.away()
	}
	return n.client, nil
}

// away returns the error of commands without a connection. The caller MUST hold mu.
func (n *Node) away() error {
	return &command.AwayError{Back: n.back, Refusal: actor.RefuseUnavailable(time.Second, "the orchestrator is not connected: retry later")}
}

// failed returns the error of a command. A node that has stopped is like a connection that has
// failed.
func (n *Node) failed(client *command.Client, err error) error {
	if !errors.Is(err, command.ErrClosed) {
		return err
	}
	n.lose(client)
	if r := (*actor.Refusal)(nil); errors.As(err, &r) {
		return err // a call was sent, and its run may continue
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.away()
}

// NewCallID implements command.Node, according to the clock of this process.
func (n *Node) NewCallID() actor.CallID {
	return actor.NewCallID(actor.Time(time.Now().UnixNano()), rand.Uint64(), rand.Uint64())
}

// Invoke implements command.Node.
func (n *Node) Invoke(ctx context.Context, in command.Invoke, joined func(run actor.CallID)) (command.Answer, error) {
	client, err := n.current()
	if err != nil {
		return command.Answer{}, err
	}
	answer, err := client.Invoke(ctx, in, joined)
	return answer, n.failed(client, err)
}

// Signal implements command.Node.
func (n *Node) Signal(ctx context.Context, in command.Signal) (command.Answer, error) {
	client, err := n.current()
	if err != nil {
		return command.Answer{}, err
	}
	answer, err := client.Signal(ctx, in)
	return answer, n.failed(client, err)
}

// Cancel implements command.Node.
func (n *Node) Cancel(ctx context.Context, in command.Cancel) error {
	client, err := n.current()
	if err != nil {
		return err
	}
	return n.failed(client, client.Cancel(ctx, in))
}

// Forget implements command.Node.
func (n *Node) Forget(ctx context.Context, in command.Forget) error {
	client, err := n.current()
	if err != nil {
		return err
	}
	return n.failed(client, client.Forget(ctx, in))
}

// Lookup implements command.Node.
func (n *Node) Lookup(ctx context.Context, in command.Lookup) (command.Result, error) {
	client, err := n.current()
	if err != nil {
		return nil, err
	}
	found, err := client.Lookup(ctx, in)
	return found, n.failed(client, err)
}

// Do implements command.Node.
func (n *Node) Do(ctx context.Context, in command.Do) (command.Result, error) {
	client, err := n.current()
	if err != nil {
		return nil, err
	}
	done, err := client.Do(ctx, in)
	return done, n.failed(client, err)
}

// Follow implements command.Node. updates is closed by stop, and when the node is closed.
func (n *Node) Follow(ctx context.Context, in command.Follow) (updates <-chan struct{}, stop func(), err error) {
	source, unfollow, err := n.follow(ctx, in)
	if err != nil {
		return nil, nil, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.ctx.Err() != nil { // Close does not wait for new work
		unfollow()
		return nil, nil, n.away()
	}
	lasting, cancel := context.WithCancel(n.ctx)
	out := make(chan struct{}, 1)
	n.work.Go(func() { n.forward(lasting, in, source, unfollow, out) })
	return out, cancel, nil
}

// forward passes updates on until ctx ends. It subscribes again after each new connection.
func (n *Node) forward(ctx context.Context, in command.Follow, source <-chan struct{}, unfollow func(), out chan struct{}) {
	defer close(out)
	for {
		n.mu.Lock()
		moved := n.moved
		n.mu.Unlock()
		select {
		case <-moved:
			unfollow()
			if source, unfollow = n.followAgain(ctx, in, out); source == nil {
				return
			}
			notify(out)
		case _, open := <-source:
			if !open {
				if source, unfollow = n.followAgain(ctx, in, out); source == nil {
					return
				}
			}
			notify(out)
		case <-ctx.Done():
			unfollow()
			return
		}
	}
}

func (n *Node) follow(ctx context.Context, in command.Follow) (updates <-chan struct{}, stop func(), err error) {
	client, err := n.current()
	if err != nil {
		return nil, nil, err
	}
	updates, stop, err = client.Follow(ctx, in)
	return updates, stop, n.failed(client, err)
}

// followAgain subscribes again, and tries until the orchestrator accepts. Each refusal counts as an
// update, so that the subscriber misses no event. It returns nil when ctx has ended.
func (n *Node) followAgain(ctx context.Context, in command.Follow, out chan struct{}) (updates <-chan struct{}, stop func()) {
	for {
		updates, stop, err := n.follow(ctx, in)
		if err == nil {
			return updates, stop
		}
		retry, back := time.NewTimer(followRetry), (<-chan struct{})(nil)
		if away := (*command.AwayError)(nil); errors.As(err, &away) {
			retry.Stop()
			back = away.Back
		}
		select {
		case <-back:
		case <-retry.C:
			notify(out)
		case <-ctx.Done():
			retry.Stop()
			return nil, nil
		}
	}
}

// notify sends an update unless one is pending.
func notify(out chan struct{}) {
	select {
	case out <- struct{}{}:
	default:
	}
}

var _ command.Node = (*Node)(nil)

// externalTimeout is the maximum duration of a query about an external agent.
const externalTimeout = 10 * time.Second

// external is the gateway.External of an orchestrator.
type external struct{ *Node }

func find[R command.Result](n *Node, q command.QueryFor[R]) (R, error) {
	ctx, cancel := context.WithTimeout(n.ctx, externalTimeout)
	defer cancel()
	return command.Find(ctx, n, self, q)
}

// Heartbeat implements gateway.External. It returns false too if the link has failed: the agent
// registers again.
func (e external) Heartbeat(name string) bool {
	ctx, cancel := context.WithTimeout(e.ctx, externalTimeout)
	defer cancel()
	x, err := command.Perform(ctx, e.Node, self, command.Heartbeat{Name: name})
	return err == nil && x.Known
}

// Healthy implements gateway.External. An agent is unhealthy while the link has failed.
func (e external) Healthy(name string) bool {
	x, err := find(e.Node, command.ExternalQuery{Name: name})
	return err == nil && x.Healthy
}

// LastSeen implements gateway.External.
func (e external) LastSeen(name string) actor.Time {
	x, _ := find(e.Node, command.ExternalQuery{Name: name})
	return x.LastSeen
}

// Circuit implements gateway.External.
func (e external) Circuit(name string) string {
	x, _ := find(e.Node, command.ExternalQuery{Name: name})
	return x.Circuit
}

// Permit implements gateway.External.
func (e external) Permit(url, authEnv string) error {
	return permitted(find(e.Node, command.PermitQuery{URL: url, AuthEnv: authEnv}))
}

// PermitDefinition implements gateway.External.
func (e external) PermitDefinition(definition []byte) error {
	return permitted(find(e.Node, command.PermitQuery{Definition: definition}))
}

func permitted(answer command.Permit, err error) error {
	if err == nil && answer.Problem != "" {
		err = errors.New(answer.Problem)
	}
	return err
}

// backup makes a backup. It takes as long as the disk of the orchestrator.
func (n *Node) backup(name string) (dir string, err error) {
	b, err := command.Perform(n.ctx, n, self, command.MakeBackup{Name: name})
	switch b.Failed {
	case command.BackupExists:
		err = fmt.Errorf("%s: %w", b.Problem, fs.ErrExist)
	case command.BackupForbidden:
		err = fmt.Errorf("%s: %w", b.Problem, fs.ErrPermission)
	case command.BackupDiskFull:
		err = fmt.Errorf("%s: %w", b.Problem, syscall.ENOSPC)
	}
	return b.Dir, err
}

// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"math"
	"sync"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/agents"
	"github.com/troupe-run/troupe/ingress"
	"github.com/troupe-run/troupe/internal/command"
	"github.com/troupe-run/troupe/memory"
)

const (
	// memoriesBytesMax is the size of all indexes at which those that were used least recently leave.
	memoriesBytesMax = 256 << 20
	// memoryWait is the maximum time that a request waits for the index of a scope.
	memoryWait = time.Second
	// memoryTimeout is the time that the actor of a scope has for a change.
	memoryTimeout = 30 * time.Second
	// aheadMax is the maximum number of answers that wait for the one before them: more than an actor has messages, so that
	// concurrent changes alone do not have the index built again.
	aheadMax = 256
)

// memories are the indexes of what is remembered. The actors of the scopes decide about changes, and their
// journals hold them. An index is built from the journal when it is first asked, and follows each
// change. One that may have missed a change is built again.
type memories struct {
	commands *Commands
	forgets  *forgets

	mu     sync.Mutex
	scopes map[actor.ID]*remembered
	used   uint64 // number of uses so far
	bytes  int    // of all indexes
}

// remembered is one scope.
type remembered struct {
	used uint64 // guarded by memories.mu
	size int    // likewise

	mu      sync.RWMutex
	index   *memory.Index // nil: it has to be built
	loading chan struct{} // closed when the index is built, or cannot be; nil: none is being built
	failed  error         // why it could not be built
	ahead   map[uint64]accepted
}

// accepted is a change that an actor has accepted.
type accepted struct {
	operation string
	change    memory.Change
	answer    memory.Answer
}

func newMemories(c *Commands, f *forgets) *memories {
	return &memories{commands: c, forgets: f, scopes: map[actor.ID]*remembered{}}
}

// MemoryOff returns the refusal of a node that does not remember.
func MemoryOff() *actor.Refusal {
	return actor.Refuse(actor.Rejected, "memory is off: set enabled = true in [memory] of the server's configuration")
}

// scope returns the scope of an actor.
func (m *memories) scope(id actor.ID) *remembered {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.scopes[id]
	if s == nil {
		s = &remembered{ahead: map[uint64]accepted{}}
		m.scopes[id] = s
	}
	m.used++
	s.used = m.used
	return s
}

// resize notes the size of a scope's index. It drops indexes that were used least recently.
func (m *memories) resize(id actor.ID, s *remembered, size int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.scopes[id] != s { // dropped in the meantime
		return
	}
	m.bytes += size - s.size
	s.size = size
	for m.bytes > memoriesBytesMax && len(m.scopes) > 1 {
		var oldest actor.ID
		for other, o := range m.scopes {
			if other != id && (oldest == (actor.ID{}) || o.used < m.scopes[oldest].used) {
				oldest = other
			}
		}
		m.bytes -= m.scopes[oldest].size
		delete(m.scopes, oldest)
	}
}

// drop drops the index of a session that was deleted.
func (m *memories) drop(tenant, session string) {
	if m == nil {
		return
	}
	id, err := memory.Session.ID(tenant, session)
	if err != nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if s := m.scopes[id]; s != nil {
		m.bytes -= s.size
		delete(m.scopes, id)
	}
}

// dropAll drops all indexes: other processes may have changed what they are of.
func (m *memories) dropAll() {
	if m == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	clear(m.scopes)
	m.bytes = 0
}

// with passes the index of a scope to a function, which reads it. While the index is built, a request waits
// for a short time and is then refused as Busy.
func (m *memories) with(ctx context.Context, id actor.ID, read func(*memory.Index)) error {
	s := m.scope(id)
	wait := time.NewTimer(memoryWait)
	defer wait.Stop()
	for {
		s.mu.RLock()
		if s.index != nil {
			read(s.index)
			s.mu.RUnlock()
			return nil
		}
		s.mu.RUnlock()
		loading := m.load(id, s)
		select {
		case <-loading:
			s.mu.RLock()
			err := s.failed
			s.mu.RUnlock()
			if err != nil {
				return err
			}
		case <-ctx.Done():
			return ctx.Err()
		case <-wait.C:
			return actor.RefuseBusy(actor.ScopeNode, time.Second, "the index of what is remembered is being built: retry in a second")
		}
	}
}

// load begins to build the index of a scope, unless that is under way.
func (m *memories) load(id actor.ID, s *remembered) <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.loading != nil {
		return s.loading
	}
	done := make(chan struct{})
	if s.index != nil {
		close(done)
		return done
	}
	s.loading, s.failed = done, nil
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), memoryTimeout)
		defer cancel()
		index, err := m.build(ctx, id)
		s.mu.Lock()
		s.index, s.failed, s.loading = index, err, nil
		if err == nil {
			s.follow()
		}
		size := 0
		if s.index != nil {
			size = s.index.Bytes()
		}
		s.mu.Unlock()
		m.resize(id, s, size)
		close(done)
	}()
	return done
}

// build returns the index of the journal of a scope.
func (m *memories) build(ctx context.Context, id actor.ID) (*memory.Index, error) {
	items, err := m.commands.stateOf(ctx, id)
	if err != nil {
		return nil, err
	}
	return memory.NewIndex(items)
}

// follow applies the changes that come next. The caller holds s.mu. An index that cannot follow is dropped.
func (s *remembered) follow() {
	for s.index != nil {
		next, ok := s.ahead[s.index.Position()+1]
		if !ok {
			break
		}
		if !s.index.Follow(next.operation, &next.change, &next.answer) {
			s.index = nil
		}
		delete(s.ahead, next.answer.Position)
	}
	for position := range s.ahead { // of before the index was built
		if s.index != nil && position <= s.index.Position() {
			delete(s.ahead, position)
		}
	}
	if len(s.ahead) > aheadMax {
		s.index = nil
		clear(s.ahead)
	}
}

// note applies a change to the index of a scope. If its outcome is unknown, the index is built again.
func (m *memories) note(id actor.ID, a *accepted) {
	s := m.scope(id)
	s.mu.Lock()
	if a == nil {
		s.index = nil
		clear(s.ahead)
	} else if s.index != nil || s.loading != nil {
		s.ahead[a.answer.Position] = *a
		if s.loading == nil {
			s.follow()
		}
	}
	size := 0
	if s.index != nil {
		size = s.index.Bytes()
	}
	s.mu.Unlock()
	m.resize(id, s, size)
}

// checkTenant refuses a scope of another user, and changes of the global scope by others than operators.
func (m *memories) checkTenant(by *actor.Principal, id actor.ID, changes bool) *actor.Refusal {
	if scope, _ := memory.ScopeOf(id); scope == memory.Global && id.Tenant == actor.DefaultTenant {
		if changes && !ingress.Allows(*by, ingress.ScopeOperator) {
			return actor.Refuse(actor.Rejected, "the global scope is written by operators: use a key with scope %s", ingress.ScopeOperator)
		}
		return nil
	}
	return by.CheckTenant(id)
}

// changeMemory performs a change for a client.
func (c *Commands) changeMemory(ctx context.Context, in command.Invoke) (command.Answer, error) {
	m := c.memories
	if m == nil {
		return refused(in.Call.ID, MemoryOff()), nil
	}
	if r := m.checkTenant(&in.By, in.Call.To, true); r != nil {
		return refused(in.Call.ID, r), nil
	}
	if len(in.Call.Parts) != 1 {
		return refused(in.Call.ID, actor.Refuse(actor.Invalid, "want one part with a change")), nil
	}
	change, err := memory.DecodeChange(in.Call.Parts[0].Bytes)
	if err != nil {
		return refused(in.Call.ID, actor.Refuse(actor.Invalid, "%v", err)), nil
	}
	if r := c.admitStorage(in.Call.To.Tenant, &change, in.Call.Operation); r != nil {
		return refused(in.Call.ID, r), nil
	}
	return m.change(ctx, in.Call, change)
}

// admitStorage refuses a change that takes space which the user has not.
func (c *Commands) admitStorage(tenant string, change *memory.Change, operation string) *actor.Refusal {
	if c.storage == nil || operation == memory.OpForget {
		return nil
	}
	if r := c.storage.admit(tenant, len(change.Encode())); r != nil {
		return r
	}
	return nil
}

// change has the actor of a scope perform a change, and replaces its answer by the one for clients.
func (m *memories) change(ctx context.Context, call actor.Call, change memory.Change) (command.Answer, error) {
	scope, _ := memory.ScopeOf(call.To)
	if r := change.Check(call.Operation); r != nil {
		return refused(call.ID, r), nil
	}
	if n, err := m.commands.members.owner(ctx, call.To); err != nil {
		return command.Answer{}, err
	} else if n != nil { // whose index follows the change
		call.Parts = []actor.Part{{Media: agents.MediaMemory, Bytes: change.Encode()}}
		a, err := n.Invoke(ctx, command.Invoke{By: m.commands.members.principal(call.To), Call: call}, nil)
		return a, passedError(err)
	}
	var near []memory.Near
	ask := m.commands.engine.Ask
	noted := false
	if call.Operation == memory.OpForget {
		ask = m.commands.engine.AskDeletion
		err := m.with(ctx, call.To, func(x *memory.Index) { noted = x.NameBefore(memory.Key(change.Entity), math.MaxInt64) != "" })
		if err == nil && noted { // before it is performed: a line too many forgets nothing that is remembered later
			err = m.forgets.write(call.To, &change)
		}
		if err != nil {
			return command.Answer{}, err
		}
	} else if change.Content != "" {
		if err := m.with(ctx, call.To, func(x *memory.Index) { near = x.Near(&change) }); err != nil {
			return command.Answer{}, err
		}
	}
	call.Parts = []actor.Part{{Media: agents.MediaMemory, Bytes: change.Encode()}}
	if call.Left == 0 {
		call.Left = memoryTimeout
	}
	a, err := ask(ctx, call)
	if err != nil || a.Reply.Refusal == nil && a.Reply.Status != actor.Succeeded || a.HeldUntil != 0 {
		m.note(call.To, nil)
		return command.Answer(a), errorOf(err)
	}
	if r := a.Reply.Refusal; r != nil {
		if r.Reason == actor.Deadline || r.Reason == actor.Unavailable || r.Reason == actor.Unknown || r.Reason == actor.Stopped {
			m.note(call.To, nil) // it may have been performed
		}
		return command.Answer(a), nil
	}
	answer, err := memory.DecodeAnswer([]byte(actor.TextOf(a.Reply.Parts)))
	if err != nil {
		m.note(call.To, nil)
		return command.Answer{}, err
	}
	if call.Operation == memory.OpForget && !noted {
		if err := m.forgets.write(call.To, &change); err != nil {
			return command.Answer{}, err
		}
	}
	m.note(call.To, &accepted{call.Operation, change, answer})
	a.Reply.Parts = []actor.Part{{Media: actor.MediaJSON, Bytes: memory.ViewChange(scope, change.Entity, &answer, near)}}
	return command.Answer(a), nil
}

// find answers a question about a scope.
func (m *memories) find(ctx context.Context, by *actor.Principal, q command.MemoryQuery) (command.Result, error) {
	if m == nil {
		return nil, MemoryOff()
	}
	scope, err := memory.ParseScope(q.Scope)
	if err != nil {
		r := actor.Refuse(actor.Invalid, "scope: %v", err)
		r.Field = "scope"
		return nil, r
	}
	id, err := scope.ID(by.Tenant, q.Key)
	if err != nil {
		return nil, actor.Refuse(actor.Invalid, "%v", err)
	}
	if r := m.checkTenant(by, id, false); r != nil {
		return nil, r
	}
	return m.ask(ctx, id, scope, q)
}

func (m *memories) ask(ctx context.Context, id actor.ID, scope memory.Scope, q command.MemoryQuery) (command.Result, error) {
	if r := checkMemoryQuery(&q); r != nil {
		return nil, r
	}
	if n, err := m.commands.members.owner(ctx, id); err != nil {
		return nil, err
	} else if n != nil {
		q.Scope, q.Key = string(scope), id.Key
		r, err := n.Lookup(ctx, command.Lookup{By: m.commands.members.principal(id), Query: q})
		return r, passedError(err)
	}
	var out command.Memory
	var refusal *actor.Refusal
	err := m.with(ctx, id, func(x *memory.Index) {
		switch q.Kind {
		case command.MemorySearch:
			out.JSON = x.ViewSearch(scope, q.Text, q.Superseded, q.Limit)
		case command.MemoryEntity:
			out.JSON, refusal = x.ViewEntity(scope, q.Text)
		case command.MemoryTraverse:
			out.JSON, refusal = x.ViewTraverse(scope, q.Text, q.Relation, max(1, q.Depth))
		default:
			out.JSON = x.ViewPage(scope, q.Text, q.Limit)
		}
	})
	switch {
	case err != nil:
		return nil, err
	case refusal != nil:
		return nil, refusal
	}
	return out, nil
}

func checkMemoryQuery(q *command.MemoryQuery) *actor.Refusal {
	bad := func(field, format string, args ...any) *actor.Refusal {
		r := actor.Refuse(actor.Invalid, field+": "+format, args...)
		r.Field = field
		return r
	}
	switch {
	case q.Kind > command.MemoryPage:
		return bad("kind", "%d is unknown", q.Kind)
	case q.Kind == command.MemorySearch && q.Text == "":
		return bad("query", "is missing: want words to search for")
	case q.Kind == command.MemorySearch && len(q.Text) > memory.QueryBytesMax:
		return bad("query", "has %d bytes, at most %d allowed", len(q.Text), memory.QueryBytesMax)
	case q.Kind == command.MemorySearch && (q.Limit < 0 || q.Limit > memory.HitsMax):
		return bad("limit", "%d: want 1 to %d", q.Limit, memory.HitsMax)
	case q.Kind == command.MemoryTraverse && (q.Depth < 0 || q.Depth > memory.DepthMax):
		return bad("depth", "%d: want 1 to %d", q.Depth, memory.DepthMax)
	case q.Kind == command.MemoryTraverse && q.Text == "":
		return bad("from", "is missing: want the entity to begin with")
	case q.Kind == command.MemoryEntity && q.Text == "":
		return bad("entity", "is missing")
	case q.Kind == command.MemoryPage && (q.Limit < 1 || q.Limit > memory.PageMax):
		return bad("limit", "%d: want 1 to %d", q.Limit, memory.PageMax)
	}
	return nil
}

// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"container/list"
	"crypto/sha256"
	"fmt"
	"sync"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/ingress"
)

// Maximum number of conversations, and of requests that may be repeated, that a server remembers of
// all users. If it has more, the user with the most of them loses the oldest.
const chatsMax = 8192

// chatMemory is the memory of the OpenAI API for agents, by user. A client sends its whole
// conversation with each request, and no session: the session of a recent one is found by its
// messages. Requests that their clients may repeat are kept too. The zero value is ready to use. It is
// safe for concurrent use.
type chatMemory struct {
	mu       sync.Mutex
	sessions recent[chatSession]
	named    recent[string] // session of each conversation so far, also of one that has continued; "" if several sessions had the same messages
	attempts recent[chatAttempt]
}

// chatSession is the session of a conversation whose last message is the answer of a run.
type chatSession struct {
	name string
	run  actor.CallID
}

// chatAttempt is a request of a client that repeats it by itself, for example after a time-out of its
// own, and that names no idempotency key. A repeat gets the run of the first attempt.
type chatAttempt struct {
	id      [sha256.Size]byte // of agent, session and body
	key     string            // idempotency key that the server has chosen
	session string            // of the first attempt
}

func newChatAttempt(agent string, sessions []string, body []byte) *chatAttempt {
	h := sha256.New()
	_, _ = fmt.Fprintf(h, "%s/%q/", agent, sessions)
	_, _ = h.Write(body)
	return &chatAttempt{id: [sha256.Size]byte(h.Sum(nil))}
}

// take returns the session of a conversation and forgets it, because its messages become others.
func (c *chatMemory) take(user string, key ingress.ChatKey) (session chatSession, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	session, ok = c.sessions.get(user, key)
	c.sessions.remove(user, key)
	return session, ok
}

// put remembers the session of a conversation. If another one had the same messages, it is unknown
// which of them a client continues, so it gets a new session: an application may send the
// conversations of many persons with one key.
func (c *chatMemory) put(user string, key ingress.ChatKey, session chatSession) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if name, ok := c.named.get(user, key); ok && name != session.name {
		c.sessions.remove(user, key)
		c.named.put(user, key, "")
		return
	}
	c.named.put(user, key, session.name)
	c.sessions.put(user, key, session)
}

// recall sets key and session of an attempt to those of the last one like it. It reports whether
// there is one.
func (c *chatMemory) recall(user string, a *chatAttempt) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	former, ok := c.attempts.get(user, a.id)
	if ok {
		*a = former
	}
	return ok
}

func (c *chatMemory) remember(user string, a *chatAttempt) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.attempts.put(user, a.id, *a)
}

func (c *chatMemory) forget(user string, a *chatAttempt) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.attempts.remove(user, a.id)
}

// recent holds the values that were put last, at most chatsMax. The zero value is ready to use.
type recent[V any] struct {
	users map[string]*recentOfUser
	count int
}

// recentOfUser are the values of a user. It has at least one.
type recentOfUser struct {
	by    map[[sha256.Size]byte]*list.Element
	order list.List // of recentValue, the oldest first
}

type recentValue struct {
	key   [sha256.Size]byte
	value any
}

func (r *recent[V]) get(user string, key [sha256.Size]byte) (v V, ok bool) {
	if u := r.users[user]; u != nil && u.by[key] != nil {
		return u.by[key].Value.(recentValue).value.(V), true
	}
	return v, false
}

func (r *recent[V]) remove(user string, key [sha256.Size]byte) {
	u := r.users[user]
	if u == nil || u.by[key] == nil {
		return
	}
	u.order.Remove(u.by[key])
	delete(u.by, key)
	if r.count--; len(u.by) == 0 {
		delete(r.users, user)
	}
}

func (r *recent[V]) put(user string, key [sha256.Size]byte, value V) {
	r.remove(user, key)
	if r.count >= chatsMax {
		r.evict()
	}
	u := r.users[user]
	if u == nil {
		if r.users == nil {
			r.users = map[string]*recentOfUser{}
		}
		u = &recentOfUser{by: map[[sha256.Size]byte]*list.Element{}}
		r.users[user] = u
	}
	u.by[key] = u.order.PushBack(recentValue{key, value})
	r.count++
}

// evict removes the oldest value of the user with the most.
func (r *recent[V]) evict() {
	most := ""
	for user, u := range r.users {
		if most == "" || len(u.by) > len(r.users[most].by) {
			most = user
		}
	}
	r.remove(most, r.users[most].order.Front().Value.(recentValue).key)
}

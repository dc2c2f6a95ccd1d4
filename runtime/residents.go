// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"container/heap"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/store"
)

// residents counts the memory of the journaled actors of a cell, and selects those that leave it
// when there are too many. An idle actor loses nothing: it is read from the log with its next
// message. The user with the most bytes loses the actor that it used longest ago. A user with less
// than an equal share of the bytes therefore keeps all of its own while others exceed theirs. A
// user is a tenant. The zero residents is empty.
type residents struct {
	bytes int // of all actors, idle and busy
	users map[string]*residentUser
	idle  residentHeap // users with idle actors
}

// residentUser are the actors of one user.
type residentUser struct {
	tenant         string
	bytes          int // idle and busy
	busy           int // those with open work; they cannot leave memory
	actors         int
	place          int         // in residents.idle; -1: no actor is idle
	oldest, newest *activation // list of the idle actors, in the order of their last use
}

// residence is the part of an actor in residents. The zero residence counts nothing.
type residence struct {
	user         *residentUser // nil if the actor is not counted
	bytes        int
	idle         bool
	older, newer *activation // of the list of idle actors
}

// update replaces the share of an actor that was used.
func (r *residents) update(act *activation, bytes int, idle bool) {
	at := &act.residence
	u := at.user
	if u == nil {
		if u = r.users[act.id.Tenant]; u == nil {
			if r.users == nil {
				r.users = map[string]*residentUser{}
			}
			u = &residentUser{tenant: act.id.Tenant, place: -1}
			r.users[u.tenant] = u
		}
		u.actors++
		at.user = u
	}
	if at.idle {
		u.unlink(act)
	} else {
		u.busy -= at.bytes
	}
	r.bytes += bytes - at.bytes
	u.bytes += bytes - at.bytes
	if at.bytes, at.idle = bytes, idle; idle {
		u.link(act)
	} else {
		u.busy += bytes
	}
	r.settle(u)
}

// remove removes an actor that leaves memory, or is journaled no longer.
func (r *residents) remove(act *activation) {
	u := act.residence.user
	if u == nil {
		return
	}
	r.update(act, 0, false)
	act.residence = residence{}
	if u.actors--; u.actors == 0 {
		delete(r.users, u.tenant)
	}
}

// excess returns the actor that leaves memory next, or nil while all of them fit into limit bytes, or
// none is idle.
func (r *residents) excess(limit int) *activation {
	if r.bytes <= limit || len(r.idle) == 0 {
		return nil
	}
	return r.idle[0].oldest
}

// residentShareMin is the smallest share of a user in bytes: less could not hold a few messages.
const residentShareMin = 4 << 20

// admit returns a refusal if a call would make the busy actors of a user exceed their share, which
// is half of the limit. The first of them may have any size, or no share would hold a large one.
// Calls of runs that were admitted may use all of the limit.
func (r *residents) admit(act *activation, call *actor.Call, limit int, retryAfter actor.Duration) *actor.Refusal {
	u := act.residence.user
	if u == nil || u.busy == 0 {
		return nil
	}
	if call.IsRoot() {
		limit /= 2
	}
	limit = max(limit, residentShareMin)
	need := actor.SizeOf(call.Parts)
	if act.residence.idle {
		need += act.residence.bytes
	}
	if u.busy+need <= limit {
		return nil
	}
	return actor.RefuseBusy(actor.ScopeCaller, retryAfter, "open runs of this user hold %d bytes of memory, and %d more exceed its share of %d", u.busy, need, limit)
}

// settle puts a user into its place among those with idle actors.
func (r *residents) settle(u *residentUser) {
	switch {
	case u.place >= 0 && u.oldest == nil:
		heap.Remove(&r.idle, u.place)
	case u.place >= 0:
		heap.Fix(&r.idle, u.place)
	case u.oldest != nil:
		heap.Push(&r.idle, u)
	}
}

// link makes an actor the newest of the idle ones.
func (u *residentUser) link(act *activation) {
	if act.residence.older = u.newest; u.newest == nil {
		u.oldest = act
	} else {
		u.newest.residence.newer = act
	}
	u.newest = act
}

func (u *residentUser) unlink(act *activation) {
	at := &act.residence
	if at.older == nil {
		u.oldest = at.newer
	} else {
		at.older.residence.newer = at.newer
	}
	if at.newer == nil {
		u.newest = at.older
	} else {
		at.newer.residence.older = at.older
	}
	at.older, at.newer = nil, nil
}

// residentHeap has the user with the most bytes first.
type residentHeap []*residentUser

// Len implements heap.Interface.
func (h residentHeap) Len() int { return len(h) }

// Less implements heap.Interface. Names break ties, so that the order is a total one.
func (h residentHeap) Less(i, j int) bool {
	if h[i].bytes != h[j].bytes {
		return h[i].bytes > h[j].bytes
	}
	return h[i].tenant < h[j].tenant
}

// Swap implements heap.Interface.
func (h residentHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].place, h[j].place = i, j
}

// Push implements heap.Interface.
func (h *residentHeap) Push(x any) {
	u := x.(*residentUser)
	u.place = len(*h)
	*h = append(*h, u)
}

// Pop implements heap.Interface.
func (h *residentHeap) Pop() any {
	last := len(*h) - 1
	u := (*h)[last]
	(*h)[last], *h = nil, (*h)[:last]
	u.place = -1
	return u
}

// memorySize returns the approximate memory of a journaled actor in bytes.
func (act *activation) memorySize() int { return act.journal.MemorySize() + act.pageCache.bytes }

// pageSize returns the content of messages in bytes.
func pageSize(messages []actor.ChatMessage) (n int) {
	for i := range messages {
		n += store.MessageOverhead + actor.SizeOf(messages[i].Parts)
	}
	return n
}

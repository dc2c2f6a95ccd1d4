// SPDX-License-Identifier: Apache-2.0

package outbound

import (
	"container/list"
	"crypto/sha256"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/runtime"
)

// Bounds of the results that are kept for tools with cache_ms.
const (
	resultCacheBytesMax   = 64 << 20 // on a node, with resultCacheEntryBytes for each result
	resultCacheEntryBytes = 512
)

// resultCache keeps results of tools in memory, so that the same call of an agent for the same user
// gets one again instead of a request. If they take too much memory, the least recently used are
// removed. The zero value is ready to use. It is safe for concurrent use.
type resultCache struct {
	mu    sync.Mutex
	by    map[resultKey]*list.Element
	used  list.List // of *keptResult, the last used first
	bytes int
}

// resultKey identifies a call of a tool: namespace, agent, definition of the tool, and arguments; for a tool
// that is told who asks also the user and the session.
type resultKey [sha256.Size]byte

type keptResult struct {
	key     resultKey
	parts   []actor.Part
	kept    actor.Time
	expires actor.Time
	bytes   int
}

// keyOfCall returns the key of a call whose input is canonical.
func keyOfCall(op *runtime.Tool) resultKey {
	h := sha256.New()
	definition := op.Declared.Hash()
	to := op.Context.Call.To
	fmt.Fprintf(h, "%s/%s/%x/", to.Tenant, to.Agent, definition[:]) // names have no slash
	if op.Declared.Identity != "" {
		fmt.Fprintf(h, "%q/%s/", op.Context.Call.Principal, to.Key)
	}
	_, _ = h.Write(op.Input)
	return resultKey(h.Sum(nil))
}

// get returns a result that has not expired, with its age as a warning.
func (c *resultCache) get(key resultKey, now actor.Time) (a actor.Answer, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.by[key]
	if e == nil {
		return a, false
	}
	r := e.Value.(*keptResult)
	if now >= r.expires {
		c.remove(e)
		return a, false
	}
	c.used.MoveToFront(e)
	age := now.Sub(r.kept).Truncate(time.Second)
	return actor.Answer{Parts: slices.Clone(r.parts), Warnings: []string{fmt.Sprintf("a former call of the tool had this result, %v ago", age)}}, true
}

// put keeps the result of a call for a time. It keeps neither failures nor results with warnings.
func (c *resultCache) put(key resultKey, a *actor.Answer, now actor.Time, ttl time.Duration) {
	if a.Refusal != nil || len(a.Warnings) > 0 {
		return
	}
	r := &keptResult{key: key, parts: slices.Clone(a.Parts), kept: now, expires: now.Add(ttl), bytes: resultCacheEntryBytes}
	for _, p := range r.parts {
		r.bytes += len(p.Bytes)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.by == nil {
		c.by = map[resultKey]*list.Element{}
	}
	if e := c.by[key]; e != nil {
		c.remove(e)
	}
	c.by[key] = c.used.PushFront(r)
	for c.bytes += r.bytes; c.bytes > resultCacheBytesMax; {
		c.remove(c.used.Back())
	}
}

// remove removes a result with the lock held.
func (c *resultCache) remove(e *list.Element) {
	r := c.used.Remove(e).(*keptResult)
	delete(c.by, r.key)
	c.bytes -= r.bytes
}

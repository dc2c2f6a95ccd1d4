// SPDX-License-Identifier: Apache-2.0

package specs

import (
	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/history"
)

// tree counts the calls made on behalf of one call of a client, at all depths.
type tree struct {
	calls int
	// lost is set if a volatile actor lost a run of the tree. The run may be admitted again, and
	// its calls are made again.
	lost bool
}

func (c *Checker) treeOf(root actor.CallID) *tree {
	t := c.trees[root]
	if t == nil {
		t = &tree{}
		c.trees[root] = t
	}
	return t
}

// countCall counts a call of a tree. The number of calls must not exceed the budget of the tree.
func (c *Checker) countCall(e *history.Event) {
	t := c.treeOf(e.Root)
	t.calls++
	if budget := c.limits.CallsPerTreeMax; budget > 0 && t.calls > budget && !t.lost {
		c.fail(TreeBudgetKept, "%s makes call %s, number %d of the tree of %s; want at most %d", e.Actor, e.Call, t.calls, e.Root, budget)
	}
}

// SPDX-License-Identifier: Apache-2.0

package runs

import (
	"fmt"
	"strings"
	"time"

	"github.com/troupe-run/troupe/actor"
)

// Tree draws a run and the calls below it, one on each line, with depth and the
// time each had. find returns the record of a child; of one it does not have,
// only what its parent knows is drawn.
//
//	coordinator/main  DONE  depth 0  left 10m0s  run 8f10…
//	└─ helper/main  DONE  depth 1  left 30s  run 2b6f…
func Tree(r *Record, find func(actor.CallID) (Record, bool)) string {
	var b strings.Builder
	branch(&b, r, find, "")
	return b.String()
}

func branch(b *strings.Builder, r *Record, find func(actor.CallID) (Record, bool), indent string) {
	fmt.Fprintf(b, "%s  %s  depth %d  left %s  run %s", r.Actor, r.Status, r.Depth(), r.Left.Round(time.Millisecond), r.Run)
	for _, w := range r.Waits {
		fmt.Fprintf(b, "  waits for %s", w.Name)
	}
	if r.Refusal != nil {
		fmt.Fprintf(b, "  %s", r.Refusal)
	}
	b.WriteByte('\n')
	for i, c := range r.Children {
		knee, under := "├─ ", "│  "
		if i == len(r.Children)-1 {
			knee, under = "└─ ", "   "
		}
		b.WriteString(indent + knee)
		// A child stands one deeper than its parent, whatever a damaged record says.
		if child, ok := find(c.Run); ok && child.Depth() == r.Depth()+1 {
			branch(b, &child, find, indent+under)
			continue
		}
		fmt.Fprintf(b, "%s  %s  depth %d", c.Target, c.CallState(), r.Depth()+1)
		if c.Refusal != nil {
			fmt.Fprintf(b, "  %s", c.Refusal)
		}
		b.WriteByte('\n')
	}
}

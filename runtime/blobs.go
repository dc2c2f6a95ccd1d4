// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/store"
	"github.com/troupe-run/troupe/tools"
)

// resultOf returns the whole of a result that the turn was given the head of, by its reference; nil if there is
// none. The journal of a durable run holds it as long as the run.
func (t *turn) resultOf(ref string) []byte {
	for i := range t.run.Steps {
		for j := range t.run.Steps[i].Asks {
			a := &t.run.Steps[i].Asks[j]
			if !a.Open() && isCut(a, a.Answer) && tools.BlobRef(inlineBytes(a.Answer.Parts)) == ref {
				return inlineBytes(a.Answer.Parts)
			}
		}
	}
	return nil
}

// isCut reports whether the turn is given the head of an answer.
func isCut(a *store.Asked, answer *actor.Answer) bool {
	return a.ResultMax > 0 && len(inlineBytes(answer.Parts)) > int(a.ResultMax)
}

// shared returns the length of the beginning that a result shares with its head.
func shared(whole []byte, head string) int {
	n := 0
	for n < min(len(whole), len(head)) && whole[n] == head[n] {
		n++
	}
	return tools.Boundary(whole, n)
}

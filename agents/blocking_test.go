// SPDX-License-Identifier: Apache-2.0

package agents_test

import (
	"testing"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/agents"
)

func BenchmarkBlockingTurn(b *testing.B) {
	behavior := blocking(func(t *agents.Turn) (string, error) { return t.Call("a", "") })
	answers := []actor.Answer{text("x")}
	b.ReportAllocs()
	for b.Loop() {
		turn := behavior.Begin(begin(""))
		if _, err := turn.Next(nil); err != nil {
			b.Fatal(err)
		}
		if _, err := turn.Next(answers); err != nil {
			b.Fatal(err)
		}
		turn.Stop()
	}
}

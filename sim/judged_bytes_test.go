// SPDX-License-Identifier: Apache-2.0

package sim

import "testing"

// A long plain run judges the bytes of events only in an audited seed, and all specs in any.
func TestLongPlainRunsJudgeBytesInAuditedSeeds(t *testing.T) {
	for _, c := range []struct {
		title   string
		options Options
		bytes   bool
	}{
		{"long and plain", Options{Seed: 1, Long: true, Plain: true, StepsMax: 2000}, false},
		{"long and plain, audited", Options{Seed: auditEvery, Long: true, Plain: true, StepsMax: 2000}, true},
		{"plain", Options{Seed: 1, Plain: true}, true},
		{"long", Options{Seed: 1, Long: true, StepsMax: 2000}, true},
	} {
		c.options.Unhashed = true
		w := New(c.options)
		if violation := w.Run(); violation != nil {
			t.Errorf("%s: %v", c.title, violation)
		}
		if judged := w.Stats.Audit.EventsMatchSteps > 0; judged != c.bytes {
			t.Errorf("%s: events of %d steps are judged, want any: %v", c.title, w.Stats.Audit.EventsMatchSteps, c.bytes)
		}
		if w.Stats.Audit.CellNeverPanics == 0 || w.plan.Plain != c.options.Plain {
			t.Errorf("%s: %d steps", c.title, w.Stats.Steps)
		}
		if long := w.plan.Span >= longSpanMin; long != c.options.Long || long && w.Stats.Steps < 2000 {
			t.Errorf("%s: %d steps in %v", c.title, w.Stats.Steps, w.plan.Span)
		}
		w.Close()
	}
}

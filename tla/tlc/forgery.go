// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

const (
	forgeriesFile   = "FORGERIES.md" // in the folder of the modules
	acceptedPercent = 10             // maximum percentage of forgeries that TLC may accept
	judgedFrom      = 40             // number of draws from which each class of accepted forgeries needs a verdict
	forgedTracesMax = 40             // number of the shortest histories from which forgeries are drawn
	moveMax         = 40             // maximum distance of a moved event
	drawsMax        = 10_000         // maximum number of draws for one forgery
)

// A forgery is a real history with one random change.
type forgery struct {
	class string // operator, kind of event and, if one was changed, the field
	at    string // history and line of the changed event
	trace trace
}

// operators are the changes, each with equal probability. An operator returns false if it does
// not apply to the event at i, or would not change the meaning of the history.
var operators = []struct {
	name  string
	apply func(r *rand.Rand, h *trace, i int) (events []event, detail string, ok bool)
}{
	{"drop", func(_ *rand.Rand, h *trace, i int) ([]event, string, bool) {
		return slices.Delete(slices.Clone(h.Events), i, i+1), "", true
	}},
	{"duplicate", func(_ *rand.Rand, h *trace, i int) ([]event, string, bool) {
		if e := &h.Events[i]; e.Kind == "Deliver" || e.Kind == "Send" && e.What == "request" || e.Kind == "Perform" && e.Why == "request" {
			return nil, "", false // the network duplicates messages, and callers repeat requests
		}
		return insert(h.Events, i+1, h.Events[i]), "", true
	}},
	{"swap", func(_ *rand.Rand, h *trace, i int) ([]event, string, bool) {
		if i+1 >= len(h.Events) || !h.Events[i+1].checked() || !dependent(&h.Events[i], &h.Events[i+1]) {
			return nil, "", false
		}
		out := slices.Clone(h.Events)
		out[i], out[i+1] = out[i+1], out[i]
		out[i].At, out[i+1].At = h.Events[i].At, h.Events[i+1].At
		return out, " with " + h.Events[i+1].class(), true
	}},
	{"change", func(r *rand.Rand, h *trace, i int) ([]event, string, bool) {
		out := slices.Clone(h.Events)
		var of []fieldChange
		for _, c := range fieldChanges {
			if c.applies(&out[i]) {
				of = append(of, c)
			}
		}
		if len(of) == 0 {
			return nil, "", false
		}
		c := of[r.IntN(len(of))]
		before := fmt.Sprint(out[i])
		c.change(r, h, &out[i])
		return out, ", " + c.field, fmt.Sprint(out[i]) != before
	}},
	{"move", func(r *rand.Rand, h *trace, i int) ([]event, string, bool) {
		from, to := max(0, i-moveMax), min(len(h.Events)-1, i+moveMax)
		j := from + r.IntN(to-from+1)
		lo, hi := min(i, j), max(i, j)
		if !slices.ContainsFunc(h.Events[lo:hi+1], func(e event) bool { return e.Kind != h.Events[i].Kind && dependent(&h.Events[i], &e) }) {
			return nil, "", false
		}
		e := h.Events[i]
		out := slices.Delete(slices.Clone(h.Events), i, i+1)
		e.At = h.Events[j].At
		out = slices.Insert(out, j, e)
		return out, map[bool]string{true: " later", false: " earlier"}[j > i], true
	}},
}

// dependent reports whether the order of two events matters: those of one call, or an event of
// a cell and one of the log that it writes.
func dependent(a, b *event) bool {
	sameCall := a.Call != "" && (a.Call == b.Call || a.Call == b.Parent) || a.Parent != "" && a.Parent == b.Call
	log := func(e *event) bool { return slices.Contains([]string{"Append", "Sync", "Crash", "Restart"}, e.Kind) }
	return a.Kind != b.Kind && b.checked() && (sameCall || a.Node == b.Node && log(a) && log(b))
}

// checked reports whether module Trace compares the event with Calls. All other events are
// passed over or belong to an effect whose absence is no fault.
func (e *event) checked() bool {
	if len(e.Agents) > 0 {
		return false
	}
	t := translation{calls: map[string]int{}, words: map[string]bool{}}
	name := strings.SplitN(t.entry(e), `"`, 3)[1]
	return !slices.Contains([]string{"result", "other", "publish", "Wait", "Decide", "ask", "Claim", "Lose", "Drop", "Queue", "Probe", "ProbeHome", "Confirm", "Reprobe"}, name)
}

// repeats reports whether the event at i is about a message that changes nothing: a request of a
// call that is already admitted, or the report that the call is open.
func (h *trace) repeats(i int) bool {
	e := &h.Events[i]
	if e.What == "open" || e.Why == "open" {
		return true
	}
	return (e.What == "request" || e.Why == "request") && find(h.Events[:i], 0, kindIs("Admit", callIs(e.Call))) >= 0
}

// class returns the kind of the event as it appears in the class of a forgery.
func (e *event) class() string {
	if e.Kind == "Refuse" {
		return e.Kind + " " + e.Why
	}
	return e.name()
}

// A fieldChange changes one field of an event to another plausible value.
type fieldChange struct {
	field   string
	applies func(*event) bool
	change  func(r *rand.Rand, h *trace, e *event)
}

var fieldChanges = []fieldChange{
	{"epoch", func(e *event) bool { return e.Epoch > 0 && !messageEvent(e) }, func(_ *rand.Rand, _ *trace, e *event) { e.Epoch++ }},
	{"incarnation", func(e *event) bool { return e.Incarnation > 0 }, func(_ *rand.Rand, _ *trace, e *event) { e.Incarnation++ }},
	{"node", func(e *event) bool { return e.Node != "" }, func(r *rand.Rand, h *trace, e *event) {
		e.Node = other(r, h, e.Node, func(x *event) string { return x.Node })
	}},
	{"call", func(e *event) bool { return e.Call != "" }, func(r *rand.Rand, h *trace, e *event) {
		e.Call = other(r, h, e.Call, func(x *event) string { return x.Call })
	}},
	{"actor", func(e *event) bool { return e.Actor != "" }, func(r *rand.Rand, h *trace, e *event) {
		e.Actor = other(r, h, e.Actor, func(x *event) string { return x.Actor })
	}},
	{"parent", func(e *event) bool { return e.Parent != "" && (e.Kind == "Ask" || e.Kind == "Answer") }, func(r *rand.Rand, h *trace, e *event) {
		e.Parent = other(r, h, e.Parent, func(x *event) string { return x.Parent })
	}},
	{"peer", func(e *event) bool { return e.Peer != "" && (e.Kind == "Ask" || e.Kind == "Send") }, func(r *rand.Rand, h *trace, e *event) {
		e.Peer = other(r, h, e.Peer, func(x *event) string { return x.Peer })
	}},
	{"chain", func(e *event) bool { return len(e.Chain) > 0 }, func(_ *rand.Rand, _ *trace, e *event) { e.Chain = e.Chain[:len(e.Chain)-1] }},
	{"left", func(e *event) bool { return e.Left > 0 && e.Kind != "Reply" && e.What != "client" }, func(_ *rand.Rand, _ *trace, e *event) { e.Left += 1e9 }},
	{"outcome", func(e *event) bool { return e.Status != "" && e.Why == "" }, func(_ *rand.Rand, _ *trace, e *event) {
		if e.Status == "failed" {
			e.Status, e.Reason = "succeeded", ""
		} else {
			e.Status, e.Reason = "failed", "Rejected"
		}
	}},
	{"reason", func(e *event) bool { return e.Reason != "" }, func(r *rand.Rand, _ *trace, e *event) {
		all := []string{"Busy", "Cycle", "Depth", "Deadline", "Stopped", "NotFound", "WaitCycle"}
		for was := e.Reason; e.Reason == was; {
			e.Reason = all[r.IntN(len(all))]
		}
	}},
	{"count", func(e *event) bool { return e.Kind == "Admit" || e.Kind == "Ask" && e.What == "call" }, func(_ *rand.Rand, _ *trace, e *event) { e.Count++ }},
	{"pending", func(e *event) bool { return e.Kind == "Reply" || e.Kind == "Answer" && e.What == "call" }, func(_ *rand.Rand, _ *trace, e *event) { e.Pending++ }},
	{"step", func(e *event) bool {
		return e.Kind == "Ask" && e.What == "call" || e.Kind == "Reply" || e.Kind == "Refuse" && e.Why == "caller"
	}, func(_ *rand.Rand, _ *trace, e *event) { e.Step++ }},
	{"number", func(e *event) bool { return e.Kind == "Hold" && e.What == "ask" }, func(_ *rand.Rand, _ *trace, e *event) { e.N++ }},
	{"position", func(e *event) bool { return e.Kind == "Append" }, func(_ *rand.Rand, _ *trace, e *event) { e.Pos++ }},
	{"synced", func(e *event) bool { return e.Kind == "Sync" || e.Kind == "Crash" }, func(r *rand.Rand, _ *trace, e *event) { e.Synced += 1 + r.Uint64N(3) }},
	{"wrote", func(e *event) bool { return e.Kind == "Append" }, func(_ *rand.Rand, _ *trace, e *event) { e.Wrote++ }},
}

// other returns another value of a field that occurs in the history, or the same value if there
// is none.
func other(r *rand.Rand, h *trace, was string, value func(*event) string) string {
	var all []string
	for i := range h.Events {
		if v := value(&h.Events[i]); v != "" && v != was {
			addUnique(&all, v)
		}
	}
	if len(all) == 0 {
		return was
	}
	return all[r.IntN(len(all))]
}

// drawForgeries draws n forgeries of valid histories. The seed determines them.
func drawForgeries(good []trace, n int, seed uint64) ([]forgery, error) {
	good = slices.Clone(good)
	slices.SortStableFunc(good, func(a, b trace) int { return len(a.Events) - len(b.Events) })
	good = good[:min(len(good), forgedTracesMax)]
	r := rand.New(rand.NewPCG(seed, 0))
	var all []forgery
	for draws := 0; len(all) < n; draws++ {
		if draws == drawsMax*n {
			return nil, fmt.Errorf("got %d forgeries in %d draws, want %d", len(all), draws, n)
		}
		h, op := &good[r.IntN(len(good))], operators[r.IntN(len(operators))]
		i := r.IntN(len(h.Events))
		if !h.Events[i].checked() || h.repeats(i) {
			continue
		}
		events, detail, ok := op.apply(r, h, i)
		if !ok {
			continue
		}
		f := forgery{class: op.name + " " + h.Events[i].class() + detail, at: fmt.Sprintf("%s:%d", filepath.Base(h.Name), lineOf(i)), trace: *h}
		f.trace.Name, f.trace.Events = fmt.Sprintf("%s at %s", f.class, f.at), events
		all = append(all, f)
	}
	return all, nil
}

// missesMax returns the maximum number of undetected changes. A short run may be unlucky.
func missesMax(drawn, percent int) int { return max(2, drawn*percent/100) }

// rejectForged draws forgeries and checks that TLC accepts at most acceptedPercent of them. If
// many are drawn, the class of each accepted one must have a verdict in forgeriesFile.
func (t traceCheck) rejectForged(ctx context.Context, good []trace, n int, seed uint64) error {
	forged, err := drawForgeries(good, n, seed)
	if err != nil {
		return err
	}
	var all []*translation
	classes := map[*translation]string{}
	for _, f := range forged {
		translated := translate(f.trace)
		all, classes[translated] = append(all, translated), f.class
	}
	verdicts, _, err := t.check(ctx, "forged", batches(all), true)
	if err != nil {
		return err
	}
	text, err := os.ReadFile(filepath.Join(t.tlc.Dir, forgeriesFile))
	if err != nil {
		return err
	}
	judged := readVerdicts(string(text))
	rejected, unjudged := 0, 0
	for _, v := range verdicts {
		if !v.accepted {
			rejected++
			continue
		}
		verdict := judgement(judged, classes[v.t])
		if verdict == "" {
			unjudged++
			verdict = "no verdict in tla/" + forgeriesFile
		}
		fmt.Printf("  accepted: %s: %s\n", v.t.trace.Name, verdict)
	}
	fmt.Printf("%d histories forged with seed %d: %d rejected, %d accepted, %d of these without a verdict\n", n, seed, rejected, n-rejected, unjudged)
	switch {
	case n-rejected > missesMax(n, acceptedPercent):
		return fmt.Errorf("want at most %d accepted", missesMax(n, acceptedPercent))
	case unjudged > 0 && n >= judgedFrom:
		return fmt.Errorf("give each class of accepted forgeries a verdict in tla/%s, or make module Trace reject it", forgeriesFile)
	}
	return nil
}

// A verdict row of a file: a pattern of classes, and whether they are equivalent or open.
type verdictRow struct {
	class   *regexp.Regexp
	verdict string
}

// readVerdicts reads the rows | `class` | equivalent or open | why |. A * in a class matches any text.
func readVerdicts(text string) []verdictRow {
	var rows []verdictRow
	for _, m := range verdictLine.FindAllStringSubmatch(text, -1) {
		class := strings.ReplaceAll(regexp.QuoteMeta(m[1]), `\*`, `.*`)
		rows = append(rows, verdictRow{regexp.MustCompile(`^` + class + `$`), m[2]})
	}
	return rows
}

var verdictLine = regexp.MustCompile("(?m)^\\| `([^`]+)` \\| (equivalent|open) \\| .+ \\|$")

func judgement(rows []verdictRow, class string) string {
	for _, r := range rows {
		if r.class.MatchString(class) {
			return r.verdict
		}
	}
	return ""
}

// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"slices"
)

// DoseCounts are the counts of a fault that is injected alone, with each dose. They show
// that the fault is counted because of its effect.
type DoseCounts struct {
	Fault       Fault
	Counts      [doses]int
	Seeds       [doses]int // number of seeds that were run
	Indivisible string     // why there is no half of the effect; "" if there is
	problem     string
}

// CountDoses counts a fault in up to seeds seeds per dose. With an effect, it stops at the
// first seed in which the fault is counted. Without an effect, it runs all seeds; if quick
// is set, only as many as the whole effect needed.
func CountDoses(f Fault, seeds int, quick bool) DoseCounts {
	c := DoseCounts{Fault: f, Indivisible: indivisibleReason(f)}
	c.count(WholeDose, seeds, true)
	if c.Indivisible == "" {
		c.count(HalfDose, seeds, true)
	}
	if quick {
		seeds = min(seeds, c.Seeds[WholeDose])
	}
	c.count(NoDose, seeds, false)
	return c
}

// forcedOddsMin is the minimum probability of a fault that is injected alone.
const forcedOddsMin = oddsScale / 4

// count runs seeds with a dose. If once is set, it stops when the fault is counted.
func (c *DoseCounts) count(dose Dose, seeds int, once bool) {
	o := Options{Faultless: true, Unhashed: true, Doses: map[Fault]Dose{c.Fault: dose}}
	for _, f := range append([]Fault{c.Fault}, prerequisites[c.Fault]...) {
		o.Odds = append(o.Odds, Odds{f, max(faultTable[f].maxOdds, forcedOddsMin)})
	}
	for seed := range uint64(seeds) {
		o.Seed = seed + 1
		r := RunSeed(o)
		c.Seeds[dose]++
		c.Counts[dose] += r.Stats.Faults[c.Fault]
		enabled := 0
		for _, odds := range o.Odds {
			enabled += r.Stats.Faults[odds.Fault]
		}
		switch total := r.Stats.TotalFaults(); {
		case r.Violation != nil:
			c.problem = fmt.Sprintf("seed %d with %s: %v", o.Seed, doseNames[dose], r.Violation)
			return
		case total != enabled:
			c.problem = fmt.Sprintf("seed %d with %s counts %d faults, of which %d are enabled", o.Seed, doseNames[dose], total, enabled)
			return
		case once && c.Counts[dose] > 0:
			return
		}
	}
}

var doseNames = [doses]string{"the whole effect", "half of the effect", "no effect"}

// Problem describes the first count that is wrong, or returns "".
func (c *DoseCounts) Problem() string {
	switch {
	case c.problem != "":
		return c.problem
	case c.Counts[WholeDose] == 0:
		return fmt.Sprintf("not counted in %d seeds", c.Seeds[WholeDose])
	case c.Counts[NoDose] > 0:
		return fmt.Sprintf("counted %d times without its effect", c.Counts[NoDose])
	case c.Indivisible == "" && c.Counts[HalfDose] == 0:
		return fmt.Sprintf("not counted in %d seeds with half of its effect", c.Seeds[HalfDose])
	}
	return ""
}

// prerequisites are the faults that MUST also be enabled for a fault to have an effect.
var prerequisites = map[Fault][]Fault{
	ClientStaleCursor: {ClientDisconnect}, // the reader must reconnect
	DiskLostTail:      {NodeCrash},
	DiskTornWrite:     {NodeCrash},
	DiskBitFlip:       {NodeCrash},
	DiskMisdirected:   {NodeCrash},
	DiskStale:         {NodeCrash},
	DiskLostWrite:     {NodeCrash},
	DiskTornAnchor:    {NodeCrash},
	NodeNewerData:     {NodeCrash},
	ClockBehind:       {NodeCrash},

	NodeCrashRetaining: {LogCut, SessionForgotten},
}

// indivisibleFaults are the faults of which there is no half, with the reason.
var indivisibleFaults = [...]struct {
	why    string
	faults []Fault
}{
	{"a call is rejected or not", []Fault{AgentCallRejected}},
	{"a mailbox is full or not", []Fault{AgentBusy}},
	{"a turn panics or not", []Fault{AgentPanic, CellPanic}},
	{"a message is lost or not", []Fault{AgentReplyLost, NetworkLoss, NetworkReset}},
	{"a message arrives once or twice", []Fault{NetworkDuplicate, ToolDuplicate, CallbackDuplicate, ClientDuplicate, ClientDecidesTwice}},
	{"a process runs or not", []Fault{NodeCrash, NodeStop, NodeCrashUnacked, DiskErrorBefore, DiskErrorAfter, DiskFailed, StoreFenced, NodeCrashRetaining}},
	{"a log is cut or not", []Fault{LogCut}},
	{"a session exists or not", []Fault{SessionForgotten}},
	{"data has one format", []Fault{NodeNewerData}},
	{"a group has one owner", []Fault{ShardMove}},
	{"a read fails or not", []Fault{DiskReadFailed}},
	{"a result is lost or not", []Fault{StoreUnknown}},
	{"a row exists or not", []Fault{DiskLostWrite}},
	{"a tool answers or not", []Fault{ToolHang, ToolReplyLost, ToolAbsent}},
	{"a refusal has no parts", []Fault{ToolCrash, ToolRefused, ToolBusy}},
	{"a response is replaced as a whole", []Fault{ModelThrottled, ModelError, ModelReset, AgentRefuses, AgentOverloaded, AgentAbsent, AgentReset, AgentDoneUnheard}},
	{"a completion names one agent", []Fault{ModelInventedAgent}},
	{"an address is allowed or not", []Fault{NameAstray}},
	{"an agent is healthy or not", []Fault{AgentUnhealthy}},
	{"a run has ended or not", []Fault{CallbackLate}},
	{"a connection is open or not", []Fault{ClientDisconnect}},
	{"a run is cancelled or not", []Fault{ClientCancel}},
	{"a cursor has one position", []Fault{ClientStaleCursor, ClientStrayCursor}},
	{"a key is valid or not", []Fault{ClientRevokedKey}},
	{"one call is no tree", []Fault{LoadFanOut}},
	{"one call is no cycle", []Fault{LoadDeadlocks}},
}

func indivisibleReason(f Fault) string {
	for _, group := range indivisibleFaults {
		if slices.Contains(group.faults, f) {
			return group.why
		}
	}
	return ""
}

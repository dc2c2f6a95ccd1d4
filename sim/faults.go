// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"strconv"
	"strings"
)

// Fault is one kind of thing that may go wrong. It is a choice that is not 0,
// and it counts when it changed a delivered byte, a time, or durable state.
type Fault uint8

// The faults. Those of the first seed bear its names.
const (
	AgentCallTimeout      Fault = iota // the callee is slower than its caller waits
	AgentCallRejected                  // the callee says no
	AgentNotFound                      // an agent is gone from the registry for a while
	AgentBusy                          // a burst fills a mailbox
	AgentCallNetworkDelay              // a request between nodes takes long
	AgentReplyLost                     // an answer between nodes is lost
	AgentPanic                         // a message makes whoever takes it panic
	NetworkDelay                       // a message between nodes takes long
	NetworkLoss                        // or never arrives
	NetworkDuplicate                   // or twice
	NetworkReorder                     // or after a later one
	NetworkPartition                   // some nodes cannot reach the others, nor be reached
	NetworkOneWay                      // a node is not heard, but hears
	StoreCutOff                        // a node cannot reach the shared store
	NodeCrash                          // a process dies, at any step
	NodePause                          // a process stands still
	CellPanic                          // a step panics
	DiskLostTail                       // a crash takes what was written and not synced
	DiskSlow                           // a sync takes long
	DiskFailed                         // a sync fails, which ends the process
	DiskReadFailed                     // an actor cannot be read
	ClockSkew                          // a node's clock jumps
	ShardMove                          // shards get another owner
	ClientDisconnect                   // a client hangs up, and asks again if it has a key
	ClientDuplicate                    // a client asks twice
	ClientCancel                       // a client gives its run up
	ModelThrottled                     // a model wants to be asked later
	ModelError                         // a model fails, and says so
	ModelHang                          // or is silent, before its answer or in the middle
	ModelHalfStream                    // or breaks off
	ModelGarbage                       // or says what nobody can read
	ModelSplit                         // its answer comes in the smallest pieces
	ModelMalformedCall                 // it asks for a tool with half of the arguments
	ModelInventedAgent                 // or for an agent that it made up
	ModelEndlessLoop                   // or for a tool, again and again
	ModelLate                          // its answer comes when nobody waits for it
	ModelReset                         // the connection breaks before its answer
	AgentHalfStream                    // an external agent breaks off
	AgentGarbage                       // or says what nobody can read
	AgentHang                          // or is silent
	AgentReset                         // the connection breaks before its answer
	AgentUnhealthy                     // it says that it is not well
	CallbackDuplicate                  // it calls back twice for one thing
	CallbackLate                       // or when its run is over
	ClientSlowReader                   // a client does not take what it is streamed
	ClientReconnectStorm               // clients who read a stream all lose it, and come back at once
	ClientStaleCursor                  // a client comes back behind what it has read
	ClientRevokedKey                   // a client may not listen any more

	faultKinds = int(ClientRevokedKey) + 1
)

// per is what probabilities are parts of.
const per = 10_000

// faultTable says of each kind its name, and how probable a seed makes it at
// most, each time it is asked for: at a message, call, commit, read or step, or
// (clocked) once a second.
var faultTable = [faultKinds]struct {
	name    string
	most    int
	clocked bool
}{
	AgentCallTimeout:      {"AgentCallTimeout", 500, false},
	AgentCallRejected:     {"AgentCallRejected", 500, false},
	AgentNotFound:         {"AgentNotFound", 1000, true},
	AgentBusy:             {"AgentBusy", 2000, true},
	AgentCallNetworkDelay: {"AgentCallNetworkDelay", 1500, false},
	AgentReplyLost:        {"AgentReplyLost", 1500, false},
	AgentPanic:            {"AgentPanic", 60, false},
	NetworkDelay:          {"NetworkDelay", 1500, false},
	NetworkLoss:           {"NetworkLoss", 1000, false},
	NetworkDuplicate:      {"NetworkDuplicate", 1000, false},
	NetworkReorder:        {"NetworkReorder", 1000, false},
	NetworkPartition:      {"NetworkPartition", 1200, true},
	NetworkOneWay:         {"NetworkOneWay", 1200, true},
	StoreCutOff:           {"StoreCutOff", 1000, true},
	NodeCrash:             {"NodeCrash", 1500, true},
	NodePause:             {"NodePause", 800, true},
	CellPanic:             {"CellPanic", 40, false},
	DiskLostTail:          {"DiskLostTail", per, false},
	DiskSlow:              {"DiskSlow", 300, false},
	DiskFailed:            {"DiskFailed", 30, false},
	DiskReadFailed:        {"DiskReadFailed", 500, false},
	ClockSkew:             {"ClockSkew", 1500, true},
	ShardMove:             {"ShardMove", 3000, true},
	ClientDisconnect:      {"ClientDisconnect", 1500, false},
	ClientDuplicate:       {"ClientDuplicate", 1500, false},
	ClientCancel:          {"ClientCancel", 1000, false},
	ModelThrottled:        {"ModelThrottled", 800, false},
	ModelError:            {"ModelError", 800, false},
	ModelHang:             {"ModelHang", 300, false},
	ModelHalfStream:       {"ModelHalfStream", 800, false},
	ModelGarbage:          {"ModelGarbage", 800, false},
	ModelSplit:            {"ModelSplit", 2000, false},
	ModelMalformedCall:    {"ModelMalformedCall", 1500, false},
	ModelInventedAgent:    {"ModelInventedAgent", 1500, false},
	ModelEndlessLoop:      {"ModelEndlessLoop", 500, false},
	ModelLate:             {"ModelLate", 400, false},
	ModelReset:            {"ModelReset", 1000, false},
	AgentHalfStream:       {"AgentHalfStream", 1000, false},
	AgentGarbage:          {"AgentGarbage", 1000, false},
	AgentHang:             {"AgentHang", 500, false},
	AgentReset:            {"AgentReset", 1500, false},
	AgentUnhealthy:        {"AgentUnhealthy", 3000, false},
	CallbackDuplicate:     {"CallbackDuplicate", 2500, false},
	CallbackLate:          {"CallbackLate", 2500, false},
	ClientSlowReader:      {"ClientSlowReader", 1500, false},
	ClientReconnectStorm:  {"ClientReconnectStorm", 1500, true},
	ClientStaleCursor:     {"ClientStaleCursor", 3000, false},
	ClientRevokedKey:      {"ClientRevokedKey", 1000, true},
}

// Faults lists all kinds in their order.
func Faults() []Fault {
	all := make([]Fault, faultKinds)
	for i := range all {
		all[i] = Fault(i)
	}
	return all
}

// String is the kind's name.
func (f Fault) String() string { return faultTable[f].name }

// ParseFault reads what String writes.
func ParseFault(text string) (Fault, error) {
	for i := range faultTable {
		if faultTable[i].name == text {
			return Fault(i), nil
		}
	}
	names := make([]string, faultKinds)
	for i := range names {
		names[i] = faultTable[i].name
	}
	return 0, fmt.Errorf("fault %.40q: want one of %s", text, strings.Join(names, ", "))
}

// Odds says how probable a fault is each time it is asked for, in ten-thousandths.
type Odds struct {
	Fault Fault
	Per   int
}

// ParseOdds reads kind:probability, as NetworkDelay:0.5.
func ParseOdds(text string) (Odds, error) {
	name, p, ok := strings.Cut(text, ":")
	f, err := ParseFault(name)
	if err != nil {
		return Odds{}, err
	}
	v, err := strconv.ParseFloat(p, 64)
	if !ok || err != nil || !(v >= 0 && v <= 1) {
		return Odds{}, fmt.Errorf("fault %.60q: want kind:probability, a number from 0 to 1", text)
	}
	return Odds{f, int(v * per)}, nil
}

// String is what ParseOdds reads.
func (o Odds) String() string {
	return o.Fault.String() + ":" + strconv.FormatFloat(float64(o.Per)/per, 'f', -1, 64)
}

// drawFaults says how probable each fault is in this seed; half of them never happen.
func drawFaults(c Chooser) (odds [faultKinds]int) {
	for f := range odds {
		if c.Int(2) == 1 {
			odds[f] = 1 + faultTable[f].most/4 + c.Int(1+faultTable[f].most*3/4)
		}
	}
	return odds
}

// fault asks whether a fault happens here and now. One that cannot is no choice.
func (w *World) fault(f Fault) bool {
	p := w.plan.Odds[f]
	if p == 0 || w.calm || w.choose.Int(per) < per-p {
		return false
	}
	w.disturbed(f)
	return true
}

// hit says that a fault has changed something.
func (w *World) hit(f Fault, format string, args ...any) {
	if int(f) == faultKinds {
		return // a panic that nobody planned: it is told as a violation
	}
	w.disturbed(f)
	what := fmt.Sprintf(format, args...)
	w.Stats.Faults[f]++
	w.log.world(w.now, "fault %s: %s", f, what)
	for _, watch := range w.watch {
		watch.fault(w.now, f, what)
	}
}

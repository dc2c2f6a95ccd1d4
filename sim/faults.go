// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"math"
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

	NetworkDelay     // a message between nodes takes long
	NetworkJitter    // or now longer, now shorter, for a while
	NetworkSlowLink  // or waits for all bytes before it, on a link that carries few
	NetworkLoss      // or never arrives
	NetworkDuplicate // or twice
	NetworkReorder   // or after a later one
	NetworkReset     // a connection breaks, with all that is on its way
	NetworkOversized // a frame is longer than any may be, which ends its connection
	NetworkPartition // some nodes cannot reach the others, nor be reached
	NetworkPartial   // two nodes cannot reach each other, and both reach the others
	NetworkOneWay    // a node is not heard, but hears
	NetworkFlapping  // a link comes and goes
	StoreCutOff      // a node cannot reach the shared store

	NodeCrash        // a process dies, at any step
	NodeStop         // or when it is told to stop, and says so to who reads there
	NodeCrashUnacked // or when something is durable and nobody has heard of it
	NodePause        // a process stands still
	NodeFreeze       // for longer than its lease runs
	NodeNewerData    // an earlier program starts where a later one has written
	NodeOlderData    // or a later one where an earlier one has
	CellSlow         // each step of a cell takes long, for a while
	CellPanic        // a step panics
	ClockSkew        // a node's clock jumps
	ClockDrift       // a node's clock runs faster or slower from now on
	ClockAhead       // a node's clock jumps far ahead
	ClockBehind      // a node's clock is put back while it is down
	ShardMove        // shards get another owner

	DiskLostTail    // a crash takes what was written and not synced
	DiskSlow        // a sync takes long
	DiskFull        // a node's disk has no room for new work
	DiskErrorBefore // a write fails, which ends the process; nothing of it is there
	DiskErrorAfter  // or all of it is
	DiskFailed      // a sync fails, which ends the process
	DiskReadFailed  // an actor cannot be read
	DiskTornWrite   // of what was durable a process that starts finds a part of a batch
	DiskBitFlip     // or a value with one bit changed
	DiskMisdirected // or one value where another should be
	DiskStale       // or a value as it was before it was written anew
	DiskLostWrite   // or none where there should be one
	DiskTornAnchor  // or not how far its log was synced

	ToolHang      // a tool never ends
	ToolCrash     // or panics
	ToolRefused   // or says no
	ToolBusy      // or that it has too much to do
	ToolAbsent    // or is there no more
	ToolGarbage   // or answers what is no text
	ToolGiant     // or more than anybody takes
	ToolReplyLost // it did what it should, and its answer is lost
	ToolDuplicate // or comes twice
	ToolLate      // or when nobody waits for it

	ModelThrottled     // a model wants to be asked later
	ModelError         // a model fails, and says so
	ModelHang          // or is silent, before its answer or in the middle
	ModelHalfStream    // or breaks off
	ModelGarbage       // or says what nobody can read
	ModelSplit         // its answer comes in the smallest pieces
	ModelMalformedCall // it asks for a tool with half of the arguments
	ModelInventedAgent // or for an agent that it made up
	ModelEndlessLoop   // or for a tool, again and again
	ModelCut           // it is not let say all, or anything
	ModelGiant         // or says more than anybody takes
	ModelLate          // its answer comes when nobody waits for it
	ModelReset         // the connection breaks before its answer
	NameAstray         // its name, or an agent's, answers with an address where nobody may go

	AgentRefuses      // an external agent says no
	AgentOverloaded   // or wants to be asked later
	AgentAbsent       // or is not there
	AgentHalfStream   // or breaks off
	AgentGarbage      // or says what nobody can read
	AgentGiant        // or more than anybody reads
	AgentHang         // or is silent
	AgentReset        // the connection breaks before its answer
	AgentDoneUnheard  // or before its last word, when all is done
	AgentDuplicate    // it ends twice
	AgentLate         // or when nobody waits for it
	AgentUnhealthy    // it says that it is not well
	CallbackDuplicate // it calls back twice for one thing
	CallbackLate      // or when its run is over
	CallbackForged    // somebody calls back who has no right to

	ClientDisconnect     // a client hangs up, and asks again if it has a key
	ClientDuplicate      // a client asks twice
	ClientCancel         // a client gives its run up
	ClientCancelStorm    // all who wait give their runs up at once
	ClientDecidesTwice   // who is waited for answers twice, and not the same
	ClientSlowReader     // a client does not take what it is streamed
	ClientReconnectStorm // clients who read a stream all lose it, and come back at once
	ClientStaleCursor    // a client comes back behind what it has read
	ClientStrayCursor    // or where no stream of its run goes on
	ClientRevokedKey     // a client may not listen any more
	ClientGarbage        // a client sends what is no message

	LoadHotActor      // everybody wants the same actor
	LoadDeadlineStorm // the time of many is over at one instant
	LoadRetryStorm    // everybody who waits asks again, and again
	LoadPoison        // a message panics wherever it comes, among others for the same actor
	LoadFanOut        // one call becomes as many as there may be
	LoadDeadlocks     // many ask agents to ask each other

	faultKinds = int(LoadDeadlocks) + 1
)

// noFault stands where there is none.
const noFault = Fault(faultKinds)

// oddsScale is what probabilities are parts of.
const oddsScale = 10_000

// faultTable says of each kind its name, and how probable a seed makes it at
// most, each time it is asked for: at a message, call, commit, read, start or
// step, or (clocked) once a second. One that befalls who stands before or behind
// the nodes (outside) holds up no message between cells.
var faultTable = [faultKinds]struct {
	name             string
	most             int
	clocked, outside bool
}{
	AgentCallTimeout:      {"AgentCallTimeout", 500, false, false},
	AgentCallRejected:     {"AgentCallRejected", 500, false, false},
	AgentNotFound:         {"AgentNotFound", 1000, true, false},
	AgentBusy:             {"AgentBusy", 2000, true, false},
	AgentCallNetworkDelay: {"AgentCallNetworkDelay", 1500, false, false},
	AgentReplyLost:        {"AgentReplyLost", 1500, false, false},
	AgentPanic:            {"AgentPanic", 60, false, false},

	NetworkDelay:     {"NetworkDelay", 1500, false, false},
	NetworkJitter:    {"NetworkJitter", 1500, true, false},
	NetworkSlowLink:  {"NetworkSlowLink", 1000, true, false},
	NetworkLoss:      {"NetworkLoss", 1000, false, false},
	NetworkDuplicate: {"NetworkDuplicate", 1000, false, false},
	NetworkReorder:   {"NetworkReorder", 1000, false, false},
	NetworkReset:     {"NetworkReset", 1500, true, false},
	NetworkOversized: {"NetworkOversized", 60, false, false},
	NetworkPartition: {"NetworkPartition", 1200, true, false},
	NetworkPartial:   {"NetworkPartial", 1200, true, false},
	NetworkOneWay:    {"NetworkOneWay", 1200, true, false},
	NetworkFlapping:  {"NetworkFlapping", 800, true, false},
	StoreCutOff:      {"StoreCutOff", 1000, true, false},

	NodeCrash:        {"NodeCrash", 1500, true, false},
	NodeStop:         {"NodeStop", 800, true, false},
	NodeCrashUnacked: {"NodeCrashUnacked", 60, false, false},
	NodePause:        {"NodePause", 800, true, false},
	NodeFreeze:       {"NodeFreeze", 400, true, false},
	NodeNewerData:    {"NodeNewerData", 3000, false, false},
	NodeOlderData:    {"NodeOlderData", 6000, false, false},
	CellSlow:         {"CellSlow", 800, true, false},
	CellPanic:        {"CellPanic", 40, false, false},
	ClockSkew:        {"ClockSkew", 1500, true, false},
	ClockDrift:       {"ClockDrift", 1500, true, false},
	ClockAhead:       {"ClockAhead", 800, true, false},
	ClockBehind:      {"ClockBehind", 5000, false, false},
	ShardMove:        {"ShardMove", 3000, true, false},

	DiskLostTail:    {"DiskLostTail", oddsScale, false, false},
	DiskSlow:        {"DiskSlow", 300, false, false},
	DiskFull:        {"DiskFull", 600, true, false},
	DiskErrorBefore: {"DiskErrorBefore", 30, false, false},
	DiskErrorAfter:  {"DiskErrorAfter", 30, false, false},
	DiskFailed:      {"DiskFailed", 30, false, false},
	DiskReadFailed:  {"DiskReadFailed", 500, false, false},
	DiskTornWrite:   {"DiskTornWrite", 2500, false, false},
	DiskBitFlip:     {"DiskBitFlip", 2500, false, false},
	DiskMisdirected: {"DiskMisdirected", 2500, false, false},
	DiskStale:       {"DiskStale", 2500, false, false},
	DiskLostWrite:   {"DiskLostWrite", 2500, false, false},
	DiskTornAnchor:  {"DiskTornAnchor", 2500, false, false},

	ToolHang:      {"ToolHang", 400, false, true},
	ToolCrash:     {"ToolCrash", 800, false, true},
	ToolRefused:   {"ToolRefused", 800, false, true},
	ToolBusy:      {"ToolBusy", 800, false, true},
	ToolAbsent:    {"ToolAbsent", 600, false, true},
	ToolGarbage:   {"ToolGarbage", 800, false, true},
	ToolGiant:     {"ToolGiant", 80, false, true},
	ToolReplyLost: {"ToolReplyLost", 400, false, true},
	ToolDuplicate: {"ToolDuplicate", 1500, false, true},
	ToolLate:      {"ToolLate", 400, false, true},

	ModelThrottled:     {"ModelThrottled", 800, false, true},
	ModelError:         {"ModelError", 800, false, true},
	ModelHang:          {"ModelHang", 300, false, true},
	ModelHalfStream:    {"ModelHalfStream", 800, false, true},
	ModelGarbage:       {"ModelGarbage", 800, false, true},
	ModelSplit:         {"ModelSplit", 2000, false, true},
	ModelMalformedCall: {"ModelMalformedCall", 1500, false, true},
	ModelInventedAgent: {"ModelInventedAgent", 1500, false, true},
	ModelEndlessLoop:   {"ModelEndlessLoop", 500, false, true},
	ModelCut:           {"ModelCut", 1500, false, true},
	ModelGiant:         {"ModelGiant", 200, false, true},
	ModelLate:          {"ModelLate", 400, false, true},
	ModelReset:         {"ModelReset", 1000, false, true},
	NameAstray:         {"NameAstray", 1000, false, true},

	AgentRefuses:      {"AgentRefuses", 800, false, true},
	AgentOverloaded:   {"AgentOverloaded", 800, false, true},
	AgentAbsent:       {"AgentAbsent", 800, false, true},
	AgentHalfStream:   {"AgentHalfStream", 1000, false, true},
	AgentGarbage:      {"AgentGarbage", 1000, false, true},
	AgentGiant:        {"AgentGiant", 200, false, true},
	AgentHang:         {"AgentHang", 500, false, true},
	AgentReset:        {"AgentReset", 1500, false, true},
	AgentDoneUnheard:  {"AgentDoneUnheard", 1000, false, true},
	AgentDuplicate:    {"AgentDuplicate", 1500, false, true},
	AgentLate:         {"AgentLate", 800, false, true},
	AgentUnhealthy:    {"AgentUnhealthy", 3000, false, true},
	CallbackDuplicate: {"CallbackDuplicate", 2500, false, true},
	CallbackLate:      {"CallbackLate", 2500, false, true},
	CallbackForged:    {"CallbackForged", 2500, false, true},

	ClientDisconnect:     {"ClientDisconnect", 1500, false, false},
	ClientDuplicate:      {"ClientDuplicate", 1500, false, false},
	ClientCancel:         {"ClientCancel", 1000, false, false},
	ClientCancelStorm:    {"ClientCancelStorm", 600, true, false},
	ClientDecidesTwice:   {"ClientDecidesTwice", 3000, false, true},
	ClientSlowReader:     {"ClientSlowReader", 1500, false, true},
	ClientReconnectStorm: {"ClientReconnectStorm", 1500, true, true},
	ClientStaleCursor:    {"ClientStaleCursor", 3000, false, true},
	ClientStrayCursor:    {"ClientStrayCursor", 1000, false, true},
	ClientRevokedKey:     {"ClientRevokedKey", 1000, true, true},
	ClientGarbage:        {"ClientGarbage", 500, false, true},

	LoadHotActor:      {"LoadHotActor", 600, true, false},
	LoadDeadlineStorm: {"LoadDeadlineStorm", 600, true, false},
	LoadRetryStorm:    {"LoadRetryStorm", 600, true, false},
	LoadPoison:        {"LoadPoison", 150, true, false},
	LoadFanOut:        {"LoadFanOut", 600, true, false},
	LoadDeadlocks:     {"LoadDeadlocks", 600, true, false},
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
	return Odds{f, int(math.Round(v * oddsScale))}, nil
}

// String is what ParseOdds reads.
func (o Odds) String() string {
	return o.Fault.String() + ":" + strconv.FormatFloat(float64(o.Per)/oddsScale, 'f', -1, 64)
}

// drawFaultOdds says how probable each fault is in this seed. Some seeds have one
// in eight of them, some half: what one fault does alone, many at a time hide.
func drawFaultOdds(c Entropy) (odds [faultKinds]int) {
	eighths := 1 + c.Int(4)
	for f := range odds {
		if c.Int(8) >= 8-eighths {
			odds[f] = 1 + faultTable[f].most/4 + c.Int(1+faultTable[f].most*3/4)
		}
	}
	return odds
}

// faultFires asks whether a fault happens here and now. One that cannot is no choice.
func (w *Simulation) faultFires(f Fault) bool {
	p := w.plan.Odds[f]
	if p == 0 || w.recovering {
		return false
	}
	before := w.setStream(topicFault + StreamID(f))
	happens := w.entropy.Int(oddsScale) >= oddsScale-p
	w.setStream(before)
	if happens {
		w.noteDisturbance(f)
	}
	return happens
}

// recordFault says that a fault has changed something.
func (w *Simulation) recordFault(f Fault, format string, args ...any) {
	if int(f) == faultKinds {
		return // a panic that nobody planned: it is told as a violation
	}
	w.noteDisturbance(f)
	w.Stats.Faults[f]++
	if w.log == nil && len(w.observers) == 0 {
		return
	}
	what := fmt.Sprintf(format, args...)
	w.log.note(w.now, "fault %s: %s", f, what)
	for _, watch := range w.observers {
		watch.fault(w.now, f, what)
	}
}

// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Fault is a kind of injected fault. If the entropy source returns 0, no fault is
// injected unless its probability is 1. A fault is counted only where it changed a
// delivered byte, a time or a state, see recordChange.
type Fault uint8

// The faults. The names that docs/NAMES.md lists are fixed.
const (
	AgentCallTimeout      Fault = iota // the callee takes longer than its caller waits
	AgentCallRejected                  // the callee rejects the call
	AgentNotFound                      // an agent disappears from the registry for a while
	AgentBusy                          // a burst of requests fills a mailbox
	AgentCallNetworkDelay              // a request between nodes is delayed
	AgentReplyLost                     // a reply between nodes is lost
	AgentPanic                         // an agent panics while it handles a message

	NetworkDelay     // a message between nodes is delayed
	NetworkJitter    // the delay of a link varies from message to message for a while
	NetworkSlowLink  // a link has little bandwidth, so a message waits for all bytes sent before it
	NetworkLoss      // a message is lost
	NetworkDuplicate // a message is delivered twice
	NetworkReorder   // a message is delivered after a later one
	NetworkReset     // a connection breaks, and all messages in flight on it are lost
	NetworkOversized // a frame exceeds the size limit, which ends its connection
	NetworkPartition // the nodes are split into two sides that cannot reach each other
	NetworkPartial   // two nodes cannot reach each other, but both reach all others
	NetworkOneWay    // a node receives messages, but all that it sends are lost
	NetworkFlapping  // a link is cut and restored several times
	StoreCutOff      // a node cannot reach the shared store

	NodeCrash        // a process dies at an arbitrary step
	NodeStop         // a process stops on request, after closing its client streams
	NodeCrashUnacked // a process dies when a batch is durable but its effects were not yet performed
	NodePause        // a process is suspended
	NodeFreeze       // a process is suspended for longer than its lease lasts
	NodeNewerData    // an older version of the program starts on data written by a newer one
	CellSlow         // each step of a cell takes long for a while
	CellPanic        // a step panics
	ClockSkew        // a node's clock jumps
	ClockDrift       // a node's clock runs faster or slower from now on
	ClockAhead       // a node's clock jumps far ahead
	ClockBehind      // a node's clock is set back while the node is down
	ShardMove        // a group of shards moves to another owner

	DiskLostTail    // a crash discards batches that were written but not synced
	DiskSlow        // a sync takes long
	DiskFull        // a node's disk has no space for new work
	DiskErrorBefore // a write fails and ends the process; nothing of the write is durable
	DiskErrorAfter  // a sync reports failure and ends the process, although all its batches are durable
	DiskFailed      // a sync fails and ends the process
	DiskReadFailed  // reading an actor fails
	DiskTornWrite   // a starting process finds only a part of a durable batch
	DiskBitFlip     // a starting process finds a value with one bit flipped
	DiskMisdirected // a starting process finds a value under the key of another value
	DiskStale       // a starting process finds the previous version of a value
	DiskLostWrite   // a starting process finds a value missing
	DiskTornAnchor  // a starting process finds a damaged anchor, the record of the synced log position

	ToolHang      // a tool never returns
	ToolCrash     // a tool panics
	ToolRefused   // a tool refuses
	ToolBusy      // a tool refuses because it is overloaded
	ToolAbsent    // a tool no longer exists
	ToolGarbage   // a tool returns bytes that are not text
	ToolGiant     // a tool returns more than the size limit
	ToolReplyLost // a tool completes, but its result is lost
	ToolDuplicate // a tool's result is delivered twice
	ToolLate      // a tool's result arrives after its deadline

	ModelThrottled     // a model server asks for a later retry
	ModelError         // a model server reports an error
	ModelHang          // a model server stops sending, before its response or within it
	ModelHalfStream    // a model server's response ends early
	ModelGarbage       // a model server sends bytes that cannot be parsed
	ModelSplit         // a model server's response arrives in the smallest possible pieces
	ModelMalformedCall // a model requests a tool call with truncated arguments
	ModelInventedAgent // a model requests a call to an agent that does not exist
	ModelEndlessLoop   // a model requests the same tool again and again
	ModelCut           // a model's text is cut short or withheld
	ModelGiant         // a model sends more than the size limit
	ModelLate          // a model's response arrives after its deadline
	ModelReset         // the connection breaks before the model's response
	NameAstray         // a host name of a model or an agent resolves to a forbidden address

	AgentRefuses      // an external agent refuses
	AgentOverloaded   // an external agent asks for a later retry
	AgentAbsent       // an external agent cannot be reached
	AgentHalfStream   // an external agent's response ends early
	AgentGarbage      // an external agent sends bytes that cannot be parsed
	AgentGiant        // an external agent sends more than the size limit
	AgentHang         // an external agent stops sending
	AgentReset        // the connection breaks before the external agent's response
	AgentDoneUnheard  // the connection breaks after the external agent's work, before its last frame
	AgentDuplicate    // an external agent ends its response twice
	AgentLate         // an external agent's response arrives after its deadline
	AgentUnhealthy    // an external agent fails its health check
	CallbackDuplicate // an external agent sends the same callback twice
	CallbackLate      // an external agent calls back after its run has ended
	CallbackForged    // a callback carries a forged token

	ClientDisconnect     // a client disconnects, and retries if it has an idempotency key
	ClientDuplicate      // a client sends its request twice
	ClientCancel         // a client cancels its run
	ClientCancelStorm    // all waiting clients cancel their runs at once
	ClientDecidesTwice   // a wait is answered twice, with different decisions
	ClientSlowReader     // a client does not read the stream it requested
	ClientReconnectStorm // all stream readers lose their connections and reconnect at once
	ClientStaleCursor    // a client resumes a stream at an earlier event than the last one it read
	ClientStrayCursor    // a client resumes a stream at a cursor that does not exist in it
	ClientRevokedKey     // a client's key is revoked while it reads a stream
	ClientGarbage        // a client sends an invalid message

	LoadHotActor      // many clients call the same actor
	LoadDeadlineStorm // the deadlines of many calls expire at the same instant
	LoadRetryStorm    // all waiting clients retry several times
	LoadPoison        // an actor panics on certain messages, while other clients call it with harmless ones
	LoadFanOut        // one call fans out to a wide tree of calls
	LoadDeadlocks     // many clients ask agents to call each other

	StoreUnknown // the result of an append is lost; the store holds entries, and has the batch or not
	StoreFenced  // the store fences a batch of the node that owns the shards; it holds entries

	LogCut             // the front of a log is cut
	SessionForgotten   // a session is deleted
	NodeCrashRetaining // a process dies between two steps of a cut or a deletion

	faultKinds = int(NodeCrashRetaining) + 1
)

// noFault marks the absence of a fault.
const noFault = Fault(faultKinds)

// oddsScale is the denominator of all probabilities.
const oddsScale = 10_000

// faultTable holds the properties of each fault: its name, the maximum probability
// that a seed gives it, and two flags. The probability applies to each opportunity:
// a message, call, commit, read, start or step. A fault with clocked set has one
// opportunity in each round of fault injection (see injectAll) instead. A fault with
// outside set affects only clients and upstream services. It never delays a message
// between cells.
var faultTable = [faultKinds]struct {
	name             string
	maxOdds          int
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

	StoreUnknown: {"StoreUnknown", 600, false, false},
	StoreFenced:  {"StoreFenced", 60, false, false},

	LogCut:             {"LogCut", 9000, true, false},
	SessionForgotten:   {"SessionForgotten", 9000, true, false},
	NodeCrashRetaining: {"NodeCrashRetaining", 4000, false, false},
}

// Faults returns all faults in order.
func Faults() []Fault {
	all := make([]Fault, faultKinds)
	for i := range all {
		all[i] = Fault(i)
	}
	return all
}

// String returns the fault's name.
func (f Fault) String() string { return faultTable[f].name }

// ParseFault parses the output of String.
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

// Odds is the probability of a fault at each opportunity, in ten-thousandths.
type Odds struct {
	Fault Fault
	Per   int
}

// ParseOdds parses kind:probability, for example NetworkDelay:0.5.
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

// String returns the form that ParseOdds accepts.
func (o Odds) String() string {
	return o.Fault.String() + ":" + strconv.FormatFloat(float64(o.Per)/oddsScale, 'f', -1, 64)
}

// drawFaultOdds draws the probability of each fault in this seed. Some seeds enable
// one fault in eight, others up to half of them. Many simultaneous faults often hide
// the effect of a single one.
func drawFaultOdds(c Entropy) (odds [faultKinds]int) {
	eighths := 1 + c.Int(4)
	for f := range odds[:StoreUnknown] { // drawn by drawStore
		if c.Int(8) >= 8-eighths {
			odds[f] = 1 + faultTable[f].maxOdds/4 + c.Int(1+faultTable[f].maxOdds*3/4)
		}
	}
	return odds
}

// faultFires reports whether fault f fires at this point. If its probability is 0,
// nothing is drawn from the entropy source.
func (w *Simulation) faultFires(f Fault) bool {
	p := w.plan.Odds[f]
	if p == 0 || w.recovering {
		return false
	}
	before := w.setStream(topicFault + StreamID(f))
	fires := w.entropy.Int(oddsScale) >= oddsScale-p
	w.setStream(before)
	if fires {
		w.noteDisturbance(f)
	}
	return fires
}

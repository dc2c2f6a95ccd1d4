// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/store"
)

// auditEvery is the interval between audited seeds. Only they check what costs much and
// depends little on the schedule: the forms of requests, and the encodings of entries as
// they are written, of all that is stored, and of corrupt bytes. The seed alone decides,
// and an audited run takes the same steps as any other.
const auditEvery = 16

// Properties that the simulator checks in addition to the specs.
const (
	CellNeverPanics    = "CellNeverPanics"
	CodecRoundTrip     = "CodecRoundTrip"     // encoded values decode to themselves; malformed bytes are rejected
	StoreReads         = "StoreReads"         // all rows of the store can be read
	CorruptionReported = "CorruptionReported" // a starting node reports lost or corrupt data
	ChainHolds         = "ChainHolds"         // the batches of a node's log form one chain
	StoreHolds         = "StoreHolds"         // all rows of the store agree with each other
	RegistryHolds      = "RegistryHolds"      // gateways and cells agree with the operations that the registry acknowledged
	NobodyAstray       = "NobodyAstray"       // a node connects only to allowed addresses, and sends a secret only to its own endpoint
	SameTurns          = "SameTurns"          // replaying a turn yields the same actions
	TruncationReported = "TruncationReported" // a truncated answer is not reported as complete
	AnswerAsSent       = "AnswerAsSent"       // an exchange forwards and returns what its server sent
	ExchangeEnds       = "ExchangeEnds"       // an exchange ends once and in time, and makes one attempt at a time
	UpstreamSpared     = "UpstreamSpared"     // an upstream receives no request that it asked to delay, refused, or that its circuit forbids
	RequestAsAsked     = "RequestAsAsked"     // an upstream receives what its run asked
	BreakerIsolates    = "BreakerIsolates"    // an external agent gets no invocation that its circuit forbids, and every one that nothing forbids
	HealthHolds        = "HealthHolds"        // an unhealthy agent is not invoked, and a healthy one is
	TurnBounded        = "TurnBounded"        // a turn has a bounded number of steps, each action of asks, and an agent of turns
	LoadsAsWritten     = "LoadsAsWritten"     // an actor is loaded as the store has committed it
	EventsMatchSteps   = "EventsMatchSteps"   // the run events of a step show what the step did
	DurabilityKept     = "DurabilityKept"     // an idle actor has the durability of its agent, and an open run keeps its own
	NeverOverspent     = "NeverOverspent"     // the models of a tree of runs, and of a user on a day, take no more tokens than they have
	ScriptFollowed     = "ScriptFollowed"     // the built-in model does what the lines of a message ask
	StreamsFold        = "StreamsFold"        // the stored events of a run fold to an ended run
	CutKeepsOpen       = "CutKeepsOpen"       // after a cut and any crash, open runs, timers, outcomes and keys are as before
	ForgottenStays     = "ForgottenStays"     // after any crash, nothing of a deleted session is found, and nothing of others is lost
	SummariesAgree     = "SummariesAgree"     // the stored summary of a run agrees with its events
	LimitsAsDocumented = "LimitsAsDocumented" // limits have the documented keys, defaults and bounds
	Deterministic      = "Deterministic"      // the same seed gives the same hash

	// An actor's transcript is the fold of its runs and of appended messages. A turn is given the
	// part that its agent selects, after a crash the same as at first. No turn begins for a message
	// that refuses to wait for an open run.
	TranscriptIsWhatHappened = "TranscriptIsWhatHappened"
	// No byte of a message of one namespace reaches a client, model or external agent of another.
	NamespacesApart = "NamespacesApart"
	// A client of the channel protocol reads the messages of each event of its session, once and
	// in order, over all its connections.
	ClientSeesAll = "ClientSeesAll"
	// An outcome that agent_poll has returned stays, and is the delivered one. A cancelled reminder does not come.
	OutcomesStay = "OutcomesStay"
	// A call of a client tool takes the result of one device, once, and its run is given that one.
	DeviceOnce = "DeviceOnce"
	// A model request of an external agent takes one outcome, and its run keeps that one.
	ModelRequestEndsOnce = "ModelRequestEndsOnce"

	WorldNeverPanics = "WorldNeverPanics" // the code around the cells does not panic either
)

// Properties returns the names of these properties.
func Properties() []string {
	return []string{CellNeverPanics, CodecRoundTrip, StoreReads, CorruptionReported, ChainHolds, StoreHolds, RegistryHolds, NobodyAstray, SameTurns, TruncationReported, AnswerAsSent, ExchangeEnds, UpstreamSpared, RequestAsAsked, BreakerIsolates, HealthHolds, TurnBounded, LoadsAsWritten, EventsMatchSteps, DurabilityKept, NeverOverspent, ScriptFollowed, StreamsFold, CutKeepsOpen, ForgottenStays, SummariesAgree, LimitsAsDocumented, Deterministic, TranscriptIsWhatHappened, NamespacesApart, ClientSeesAll, DeviceOnce, OutcomesStay, ModelRequestEndsOnce, WorkflowStepOnce, HandoffKeepsContext, WorldNeverPanics}
}

// auditEnabled reports whether the run ends with an audit.
func (w *Simulation) auditEnabled() bool { return w.seed%auditEvery == 0 }

// audit checks the store of a simulation at rest: the log of each node is one chain,
// the indexes agree with the journals, and the events of each client's run fold to an
// ended run. It also checks the codecs, and that corruption is detected.
func (w *Simulation) audit() {
	for _, n := range w.nodes {
		if n.log.mark.Batch > 0 {
			w.Stats.Audit.ChainHolds++
		}
		if end, err := w.store.verifyAll(n.id, n.log.mark); err != nil || end != n.log.mark {
			w.fail(ChainHolds, fmt.Sprintf("log of %s: want last batch %d, verified up to %d: %v", n.id, n.log.mark.Batch, end.Batch, err))
		}
	}
	n := w.nodes[0] // all nodes share one store
	if w.store.kv != nil {
		w.Stats.Audit.StoreHolds++
		x, err := store.Examine(w.store.kv, n.log.ends(), nil, nil)
		if err != nil || x.Wrong > 0 {
			w.fail(StoreHolds, fmt.Sprintf("examination of the store: %d problems, error %v: %+v", x.Wrong, err, x.Findings[:min(len(x.Findings), 3)]))
		}
	}
	w.auditSummaries()
	namespaces{w}.auditNamespaces()
	defer w.setStream(w.setStream(topicAudit))
	w.auditCodecs()
	if w.store.kv != nil && w.retention == nil {
		w.auditCorruption()
	}
	for _, c := range w.clients {
		if err := w.auditRun(c.to.Tenant, c.call); err != nil {
			w.fail(StreamsFold, fmt.Sprintf("run %s of client %d: %v", c.call, c.no, err))
		}
	}
	w.auditTimes()
}

// streamEventsMax exceeds the number of events of any run.
const streamEventsMax = 1 << 16

// auditRun checks that the stored events of a run fold to an ended run. A run without
// events is valid.
func (w *Simulation) auditRun(tenant string, run actor.CallID) error {
	record, err := w.foldRun(tenant, run)
	if w.isDropped(err) {
		return nil
	}
	if record.Seq > 0 {
		w.Stats.Audit.StreamsFold++
	}
	if err == nil && record.Seq > 0 && record.Ended == 0 { // a refused, repeated or unjournaled request has no events
		err = fmt.Errorf("stream of %d events has no final event", record.Seq)
	}
	return err
}

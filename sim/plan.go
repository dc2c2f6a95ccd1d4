// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/agents"
	"github.com/troupe-run/troupe/dispatcher"
	"github.com/troupe-run/troupe/internal/failpoint"
	"github.com/troupe-run/troupe/store"
	"github.com/troupe-run/troupe/upstream"
)

// Plan is the configuration of a simulation. Each seed draws its own (swarm testing): a
// configuration with few features finds failures that a configuration with all features
// hides.
type Plan struct {
	Cells            []int // number of cells of each node
	Groups           int   // number of shard groups; a group moves as a whole
	Agents           []actor.Definition
	Specs            map[string]map[string]any // specs of the declared and external agents, by name
	Crowd            bool                      // there are more agents than one list names
	Targets          int                       // number of leading agents that receive generated messages
	Limits           dispatcher.Limits
	Calls            int            // clients arrive until this many calls had a turn; 0: for all of Span
	Span             actor.Duration // maximum duration of the workload
	Steps            int            // target number of cell steps in a long run, spread over the tenths of Span; 0: no target
	FaultInterval    actor.Duration // between rounds of periodic faults
	ArrivalInterval  actor.Duration // mean time between arrivals
	Keys             int            // number of actors of each agent in a namespace: one under actor.DefaultKey, and sessions
	Namespaces       int            // number of namespaces: the default tenant, and users
	Busy             bool           // clients of a long run arrive at least once a minute, regardless of draws
	Plain            bool           // clients send each request once, without a key, and waits for a signal are not answered
	Drift            []int64        // of each node's clock, in parts per million
	Offset           []actor.Duration
	Odds             [faultKinds]int          // of each fault, in ten-thousandths
	Patience         upstream.AttemptLimits   // limits of the attempts that nodes make at an upstream
	Backoff          upstream.BackoffConfig   // of each upstream of a node
	Breaker          dispatcher.BreakerConfig // of each external agent
	Writer           store.WriterConfig
	Index            store.IndexConfig
	Entries          bool   // the store holds entries, not rows
	Retention        bool   // the log is cut and sessions are deleted; the run has one node
	Detached         bool   // scripts make detached calls
	Policy           string // on_step_failure of the workflow; "": there is no orchestrator
	Approvals        bool   // agents use declared tools, and people decide about their calls
	OnDemand         bool   // runs of volatile actors publish events only for a subscriber
	Schedule         Schedule
	Failpoints       []failpoint.Point // failpoints enabled in production code
	RegistryInterval actor.Duration    // maximum time between registry operations; 0: no registry
	// RegisteredVolatile reports for each of registeredAgents whether it has durability none.
	RegisteredVolatile [len(registeredAgents)]bool
	Quotas             agents.Quotas
	TreeTokens         int64 // tokens of models that a tree of runs may spend; 0: any number
	DayTokens          int64 // tokens of models that a user may spend on a day; 0: any number
	DayMessages        int64 // messages that a user may send on a day; 0: any number
	DurabilityChanges  bool  // the operator changes the durability of registered agents
}

// withDefaults returns a hand-made plan with defaults for the fields that are unset.
func (p Plan) withDefaults(o Options) Plan {
	if len(p.Cells) == 0 {
		p.Cells = []int{1}
	}
	if p.Groups == 0 {
		p.Groups = 8
	}
	if p.Limits == (dispatcher.Limits{}) {
		p.Limits = dispatcher.DefaultLimits()
	}
	if p.Quotas == (agents.Quotas{}) {
		p.Quotas = agents.DefaultQuotas()
	}
	p.Keys, p.Namespaces = max(p.Keys, 1), max(p.Namespaces, 1)
	p.FaultInterval = max(p.FaultInterval, time.Second)
	p.Agents = slices.Clone(p.Agents)
	p.Targets = len(p.Agents)
	for i := range p.Agents {
		if def := &p.Agents[i]; def.Hash.IsZero() {
			def.Hash = actor.HashOf([]byte(def.Name))
		}
	}
	for len(p.Drift) < len(p.Cells) {
		p.Drift = append(p.Drift, 0)
	}
	for len(p.Offset) < len(p.Cells) {
		p.Offset = append(p.Offset, 0)
	}
	for _, odds := range o.Odds {
		p.Odds[odds.Fault] = odds.Per
	}
	return p
}

// The parts of a plan. Each part has its own stream, so making one part benign does not
// change the other parts.
const (
	planNodes StreamID = topicPlan + iota
	planFaults
	planAgents
	planLimits
	planClients
	planClocks
	planSchedule
	planFailpoints
	planRegistry
	planLength
	planStore
	planPublish
	planQuotas
	planDurability
	planRetention
	planNamespaces
	planApprovals
	planBreaker
	planDetached
	planWorkflow
	planPurse
)

// drawPlan draws the plan of a seed. The options Faultless, Odds and Registry replace values that
// are already drawn, so they change no other draw.
func drawPlan(c Entropy, o Options) Plan {
	var p Plan
	c.SetStream(planFaults)
	p.Odds = drawFaultOdds(c)
	if o.Faultless {
		p.Odds = [faultKinds]int{}
	}
	for _, odds := range o.Odds {
		p.Odds[odds.Fault] = odds.Per
	}
	c.SetStream(planNodes)
	nodes := [...]int{1, 3, 2, 4, 3, 5, 4, 3}[c.Int(8)]
	for range nodes {
		p.Cells = append(p.Cells, 1+c.Int(3))
	}
	p.Groups = 8
	c.SetStream(planWorkflow)
	if c.Int(4) == 3 && !o.Plain && o.Team == nil {
		p.Policy = [...]string{agents.StepPartial, agents.StepFail, agents.StepAsk}[c.Int(3)]
	}
	c.SetStream(planAgents)
	p.Agents = drawAgents(c)
	p.drawUpstreamAgents(c)
	p.addWorkflow()
	if p.Targets = len(p.Agents); !o.Plain && o.Team == nil {
		p.Agents = append(p.Agents, swapRegisterAgent(o.lossyRegister))
		p.drawCrowd(c)
	}
	c.SetStream(planLimits)
	p.Limits = drawLimits(c, &p.Odds)
	drawConfig(c, &p.Patience)
	drawConfig(c, &p.Patience.Retry)
	p.Backoff.RetryBurst = promisedRetryBurst
	drawConfig(c, &p.Backoff)
	p.Writer = writerDefaults
	drawConfig(c, &p.Writer)
	p.Index = indexDefaults
	drawConfig(c, &p.Index)
	c.SetStream(planBreaker)
	p.Breaker = dispatcher.AgentBreaker()
	drawConfig(c, &p.Breaker)
	c.SetStream(planClients)
	p.Calls = 115 + 20*c.Int(4)
	p.Span = time.Duration(20+c.Int(20)) * time.Second
	p.FaultInterval = time.Second
	p.ArrivalInterval = time.Duration(50+c.Int(250)) * time.Millisecond
	p.Keys = 1 + c.Int(4)
	if o.Team != nil {
		p.applyTeam(o.Team)
	}
	c.SetStream(planClocks)
	for range nodes {
		p.Drift = append(p.Drift, int64(c.Int(401))*[...]int64{1, -1}[c.Int(2)])
		p.Offset = append(p.Offset, time.Duration(c.Int(1000))*time.Millisecond)
	}
	c.SetStream(planSchedule)
	p.Schedule = drawSchedule(c, p.Agents, p.Keys, o.Strategy)
	c.SetStream(planFailpoints)
	p.Failpoints = drawFailpoints(c)
	if o.Faultless { // an inaccurate clock is a fault
		p.Failpoints = nil
		clear(p.Drift)
		clear(p.Offset)
	}
	c.SetStream(planRegistry)
	if !o.Plain && o.Team == nil {
		p.RegistryInterval = [...]time.Duration{0, 3 * time.Second, time.Second, 300 * time.Millisecond}[c.Int(4)]
		switch {
		case o.Registry == "off":
			p.RegistryInterval = 0
		case o.Registry == "on" && p.RegistryInterval == 0:
			p.RegistryInterval = time.Second
		}
		for i := range p.RegisteredVolatile {
			p.RegisteredVolatile[i] = c.Int(3) == 2
		}
	}
	c.SetStream(planStore)
	p.drawStore(c, o)
	c.SetStream(planPublish)
	p.OnDemand = c.Int(2) == 1
	c.SetStream(planQuotas)
	if p.Quotas = agents.DefaultQuotas(); c.Int(2) == 1 {
		drawConfig(c, &p.Quotas)
	}
	c.SetStream(planDurability)
	p.DurabilityChanges = p.RegistryInterval > 0 && c.Int(4) == 3
	c.SetStream(planRetention)
	p.drawRetention(c, o)
	c.SetStream(planNamespaces)
	p.Namespaces = 2 + c.Int(2)
	c.SetStream(planApprovals)
	p.Approvals = c.Int(3) == 2 && !o.Plain && o.Team == nil
	c.SetStream(planDetached)
	if p.Detached = c.Int(4) == 3 && !o.Plain && o.Team == nil; p.Detached && c.Int(3) == 2 {
		for i := range p.Agents {
			p.Agents[i].Coalesce = true
		}
	}
	c.SetStream(planPurse)
	if c.Int(4) == 3 && !o.Plain && o.Team == nil {
		p.TreeTokens = 1 + int64(c.Int([...]int{5_000, 15_000, 60_000}[c.Int(3)]))
	}
	if c.Int(4) == 3 && !o.Plain && o.Team == nil {
		p.DayTokens = 1 + int64(c.Int([...]int{6_000, 10_000, 30_000}[c.Int(3)]))
		if p.TreeTokens == 0 && c.Int(2) == 1 { // the first tree draws all of it
			p.TreeTokens = p.DayTokens
		}
	}
	if c.Int(8) == 7 && !o.Plain && o.Team == nil {
		p.DayMessages = 1 + int64(c.Int(60))
	}
	c.SetStream(planLength)
	if o.Plain {
		p.makePlain(c)
	}
	if o.Long {
		p.makeLong(c)
	}
	return p
}

// rowFaults are the faults that need a store of rows.
var rowFaults = append(corruptionFaults[:], DiskTornAnchor, NodeNewerData)

// drawStore draws the form of the store: one in five holds entries. An enabled fault of
// one form decides it.
func (p *Plan) drawStore(c Entropy, o Options) {
	p.Entries = c.Int(5) == 4
	for _, f := range [...]Fault{StoreUnknown, StoreFenced} {
		if odds := faultTable[f].maxOdds; c.Int(2) == 1 && !o.Faultless {
			p.Odds[f] = 1 + c.Int(odds)
		}
	}
	for _, odds := range o.Odds {
		p.Odds[odds.Fault] = odds.Per
		if odds.Per > 0 {
			p.Entries = (p.Entries || odds.Fault == StoreUnknown || odds.Fault == StoreFenced) && !slices.Contains(rowFaults, odds.Fault)
		}
	}
	if !p.Entries {
		p.Odds[StoreUnknown], p.Odds[StoreFenced] = 0, 0
		return
	}
	for _, f := range rowFaults {
		p.Odds[f] = 0
	}
}

// maxSkew returns the maximum difference of two clocks in the run.
func (p *Plan) maxSkew() actor.Duration {
	skew := 10 * time.Second
	for _, f := range [...]Fault{ClockAhead, ClockBehind} {
		if p.Odds[f] > 0 {
			skew += clockJumpMax
		}
	}
	return skew
}

// agentNames are the names of the scripted agents. The plan determines the number in
// use.
var agentNames = [...]string{"ana", "bo", "cy", "dee", "eli", "fay", "gus", "hal"}

func drawAgents(c Entropy) []actor.Definition {
	n := 4 + c.Int(len(agentNames)-3)
	all := make([]actor.Definition, 0, n)
	for _, name := range agentNames[:n] {
		def := actor.Definition{Name: name, Doc: "executes the script in its message", Behavior: scriptAgent{}}
		switch c.Int(4) {
		case 3:
			def.Behavior = agents.Blocking(agents.Func(blockingScriptAgent))
		case 2:
			def.Behavior = agents.Pure(agents.Config{Name: name, Version: "1"}, pureScriptAgent)
		}
		if c.Int(6) == 5 {
			def.Durability = actor.Volatile
		}
		if c.Int(5) == 4 {
			def.Turns = actor.Interleaved
		}
		if c.Int(5) == 4 {
			def.Recursion = actor.ByActor
		}
		if c.Int(6) == 5 {
			def.MaxActive = 1 + c.Int(4)
		}
		if def.Durability == actor.Journaled {
			def.Transcript = [...]actor.TranscriptPolicy{actor.TranscriptNone, actor.TranscriptAll, 3, 100}[c.Int(4)]
		}
		def.Hash = actor.HashOf([]byte{byte(def.Durability), byte(def.Turns), byte(def.Recursion), byte(def.Transcript), name[0]})
		all = append(all, def)
	}
	if c.Int(4) == 3 {
		for _, def := range agents.Builtin() {
			def.Hash = actor.HashOf([]byte(def.Name))
			all = append(all, def)
		}
	}
	return all
}

// drawLimits draws the limits. Runs with bursts have small mailboxes.
func drawLimits(c Entropy, odds *[faultKinds]int) dispatcher.Limits {
	l := dispatcher.DefaultLimits()
	drawConfig(c, &l)
	l.AgentCallTimeoutDefault = min(l.AgentCallTimeoutDefault, l.AgentCallTimeoutMax)
	l.ApprovalTimeout = min(l.ApprovalTimeout, l.WaitTimeoutMax)
	if odds[AgentBusy] > 0 {
		l.MaxPendingPerActor = min(l.MaxPendingPerActor, burstPendingMax)
	}
	return l
}

// String describes the plan, with a line for each subject.
func (p *Plan) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "cells %v, %d groups of shards, %d namespaces with %d sessions of each agent\nagents", p.Cells, p.Groups, p.Namespaces, p.Keys)
	for i := range p.Agents {
		def := &p.Agents[i]
		fmt.Fprintf(&b, " %s:%s", def.Name, def.Kind)
		if def.Durability == actor.Volatile {
			b.WriteString(",volatile")
		}
		if def.Turns == actor.Interleaved {
			b.WriteString(",interleaved")
		}
		if def.Recursion == actor.ByActor {
			b.WriteString(",by-actor")
		}
	}
	fmt.Fprintf(&b, "\nclients %d, one every %v, for %v\nschedule %s\n", p.Calls, p.ArrivalInterval, p.Span, p.Schedule)
	fmt.Fprintf(&b, "limits %s\npatience %s %s %s %s\nwriter %s, index %s\nclock offsets %v, drift %v\nfaults", formatNonDefaults(p.Limits, dispatcher.DefaultLimits()),
		formatNonDefaults(p.Patience, upstream.AttemptLimits{}), formatNonDefaults(p.Patience.Retry, upstream.RetryPolicy{}), formatNonDefaults(p.Backoff, upstream.BackoffConfig{RetryBurst: promisedRetryBurst}), formatNonDefaults(p.Breaker, dispatcher.AgentBreaker()), formatNonDefaults(p.Writer, writerDefaults), formatNonDefaults(p.Index, indexDefaults), p.Offset, p.Drift)
	for f, per := range p.Odds {
		if per > 0 {
			fmt.Fprintf(&b, " %s", Odds{Fault(f), per})
		}
	}
	form := "rows"
	if p.Entries {
		form = "entries"
	}
	fmt.Fprintf(&b, "\nstore of %s, retention %v, failpoints %v, registry operations every %v, quotas %+v, changes of durability %v, events on demand %v, approvals %v, detached calls %v, workflow %q, tokens of a tree %d, of a day %d, messages of a day %d\n", form, p.Retention, p.Failpoints, p.RegistryInterval, p.Quotas, p.DurabilityChanges, p.OnDemand, p.Approvals, p.Detached, p.Policy, p.TreeTokens, p.DayTokens, p.DayMessages)
	return b.String()
}

// indexDefaults are the default bounds of the index.
var indexDefaults = store.IndexConfig{Entries: store.IndexEntries}

// writerDefaults are the default bounds of the log writer.
var writerDefaults = store.WriterConfig{BatchBytesMax: store.BatchBytesMax, BatchesInFlight: store.BatchesInFlight}

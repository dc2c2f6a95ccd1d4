// SPDX-License-Identifier: Apache-2.0

package specs

import "reflect"

// Premises counts the situations in which a spec could have been violated, by spec. A spec whose
// premise never occurred has not been tested. Each field has the name of a spec. Its tag describes
// the premise.
//
// The fence and the owners of shards are part of the simulator. FencedWrites and OwnedAgain check
// its placement, not that of the product, which runs on one node.
type Premises struct {
	SingleActivation         int `premise:"an actor becomes active under a later epoch"`
	FencedWrites             int `premise:"an actor moves while its former node has unsynced entries; the simulator's fence"`
	AcyclicCalls             int `premise:"a turn calls an agent of its own chain"`
	DepthBounded             int `premise:"a turn at the depth limit makes a call"`
	TimeLeftShrinks          int `premise:"a call gets all the time that its turn has left, or the maximum"`
	OutstandingBounded       int `premise:"an actor reaches its limit of outstanding calls"`
	MailboxBounded           int `premise:"a mailbox reaches its limit"`
	TurnExclusive            int `premise:"a call arrives during a turn of a serial actor"`
	OneAnswer                int `premise:"a second answer to a call arrives"`
	ReplyToCallerOnly        int `premise:"an outcome is sent in a chain of several callers"`
	Structured               int `premise:"a turn ends with an open call"`
	NoWorkPastDeadline       int `premise:"a call expires in the queue, or is made without time left"`
	AckedIsDurable           int `premise:"an effect leaves a node after the entries of its step"`
	EffectOncePerAttempt     int `premise:"a request arrives again, or an effect is attempted again"`
	ExpireOnlyWhenDue        int `premise:"a clock expires"`
	StartsOnlyKnown          int `premise:"a call names an unknown agent"`
	NoPhantomRefusal         int `premise:"a call is refused for a wait cycle"`
	OneVictimPerCycle        int `premise:"a call is refused for a wait cycle with several queued calls"`
	RefusedNeverRuns         int `premise:"the request of a call refused for a wait cycle arrives again"`
	NoWaitCycle              int `premise:"a wait cycle closes while no message is lost or late"`
	AttemptAnnounced         int `premise:"a fragment of a later attempt is shown"`
	RetriedUnheard           int `premise:"a request that must not be repeated is retried upstream"`
	StreamIsDense            int `premise:"a client subscribes in the middle of a stream"`
	RevokedHearNothing       int `premise:"the key of a reading client is revoked"`
	EventsTellTruth          int `premise:"the state of an actor is compared with its events"`
	EveryCallEnds            int `premise:"an actor becomes active again with an open call"`
	TurnComesBack            int `premise:"an actor becomes active again with an open turn"`
	EveryWaitCycleBreaks     int `premise:"a wait cycle exists"`
	OwnedAgain               int `premise:"a shard loses its owner; the simulator's placement"`
	LaneInherited            int `premise:"a call is made with another priority than normal"`
	ContextInherited         int `premise:"a turn with a trace, project or workflow makes a call"`
	ClampReported            int `premise:"a call requests more time than the maximum"`
	ChainKept                int `premise:"an agent writes to its copy of the chain"`
	TreeBudgetKept           int `premise:"a call is refused for the budget of its tree"`
	CancelledNeverStarts     int `premise:"a request arrives after its cancel"`
	LaneIsFIFO               int `premise:"a call starts while another of its lane waits"`
	NoLaneStarves            int `premise:"a call has been overtaken as often as allowed"`
	MailboxAgeBounded        int `premise:"a call arrives at a mailbox with a message that is too old"`
	KeyBindsBody             int `premise:"a client repeats a key with another body"`
	WaitHoldsClock           int `premise:"a turn waits for a person"`
	OneOutcomePerCorrelation int `premise:"a reply to a detached call arrives after its outcome"`
	DeliveredInOrder         int `premise:"the turn of an outcome starts while another outcome waits"`
	EveryPendingEnds         int `premise:"an actor becomes active again with a pending detached call"`
	OnlySucceededAdvances    int `premise:"a tool call that a policy allows ends with a failure"`
	ApprovalOnce             int `premise:"a decision arrives after another, late, or after a change of its tool"`
	LinearKeys               int `premise:"a key gets more than one response"`
	LinearOwners             int `premise:"a group of shards is claimed again"`
	LinearKept               int `premise:"a message to an actor returns the value of an earlier one"`
}

// Premise is the count of one spec.
type Premise struct {
	Spec      string
	Situation string
	Count     int
}

// List returns the counts in the order of the fields.
func (p *Premises) List() []Premise { return ListPremises(p) }

// ListPremises returns the counts of a struct like Premises, given a pointer to it.
func ListPremises(counts any) (list []Premise) {
	v := reflect.ValueOf(counts).Elem()
	for i := range v.NumField() {
		f := v.Type().Field(i)
		list = append(list, Premise{f.Name, f.Tag.Get("premise"), int(v.Field(i).Int())})
	}
	return list
}

// Add adds the counts of another history.
func (p *Premises) Add(o *Premises) { AddPremises(p, o) }

// AddPremises adds the counts of one struct like Premises to another.
func AddPremises[T any](p, o *T) {
	to, from := reflect.ValueOf(p).Elem(), reflect.ValueOf(o).Elem()
	for i := range to.NumField() {
		to.Field(i).SetInt(to.Field(i).Int() + from.Field(i).Int())
	}
}

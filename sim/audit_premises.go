// SPDX-License-Identifier: Apache-2.0

package sim

// AuditPremises counts the situations in which a property of the simulator could have been
// violated. It is to Properties what specs.Premises is to the specs: each field has the
// name of a property, and its tag describes the premise.
type AuditPremises struct {
	CellNeverPanics    int `premise:"a cell makes a step"`
	CodecRoundTrip     int `premise:"a mutated encoding is decoded"`
	StoreReads         int `premise:"an actor with entries is read"`
	CorruptionReported int `premise:"a node starts on corrupt rows"`
	ChainHolds         int `premise:"a log with batches is verified"`
	StoreHolds         int `premise:"the rows of a store are examined"`
	RegistryHolds      int `premise:"an acknowledged operation is compared with the stored registry"`
	NobodyAstray       int `premise:"a host name resolves to forbidden addresses"`
	SameTurns          int `premise:"a turn with answers is replayed"`
	TruncationReported int `premise:"an agent receives a truncated answer"`
	AnswerAsSent       int `premise:"an exchange returns the answer of its server"`
	ExchangeEnds       int `premise:"an exchange makes another attempt"`
	UpstreamSpared     int `premise:"an exchange is refused because its upstream asked for a delay or its circuit is open"`
	RequestAsAsked     int `premise:"a request arrives at its server"`
	BreakerIsolates    int `premise:"an invocation is refused because the circuit of its agent is open"`
	HealthHolds        int `premise:"an invocation is refused because its agent is unhealthy"`
	TurnBounded        int `premise:"a turn makes its last allowed step, or an action its last allowed ask"`
	LoadsAsWritten     int `premise:"an actor with entries is loaded in an audited run"`
	EventsMatchSteps   int `premise:"a step publishes events"`
	DurabilityKept     int `premise:"an agent changes its durability while one of its runs is open"`
	NeverOverspent     int `premise:"a request to a model is refused for the purse of its run"`
	ScriptFollowed     int `premise:"the built-in model calls a tool or an agent"`
	StreamsFold        int `premise:"the stored events of a run are folded"`
	CutKeepsOpen       int `premise:"an open run or an outcome whose entry was cut is read after a start"`
	ForgottenStays     int `premise:"a process starts after a session was deleted"`
	SummariesAgree     int `premise:"a summary is compared with the events of its run"`
	LimitsAsDocumented int `premise:"limits are compared with their documentation"`
	Deterministic      int `premise:"a seed runs twice"`

	TranscriptIsWhatHappened int `premise:"a stored transcript with a closed page is compared with what happened"`
	NamespacesApart          int `premise:"bytes of a message reach a client, model or external agent of its namespace"`
	ClientSeesAll            int `premise:"the messages of a client are compared with those of an undisturbed one"`
	DeviceOnce               int `premise:"the result of a device is taken"`
	OutcomesStay             int `premise:"a poll returns an outcome, or the cancellation of a reminder is acknowledged"`
	ModelRequestEndsOnce     int `premise:"the outcome of a model request is acknowledged"`
	WorkflowStepOnce         int `premise:"a workflow asks for a step of its second stage"`
	HandoffKeepsContext      int `premise:"the owner of a step of the second stage is told what was said before"`

	WorldNeverPanics int `premise:"an event of the environment is processed"`
}

// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"github.com/troupe-run/troupe/specs"
	"github.com/troupe-run/troupe/specs/linear"
)

// Guard is a check in the core that a build with the tag mutants can disable. Spec
// is the property that MUST then fail within a thousand seeds.
type Guard struct{ Mutant, Spec string }

var guards = []Guard{
	{Mutant: "cycle-check", Spec: specs.AcyclicCalls},
	{Mutant: "self-call", Spec: specs.AcyclicCalls},
	{Mutant: "depth-check", Spec: specs.DepthBounded},
	{Mutant: "chain-dropped-on-retry", Spec: specs.AcyclicCalls},
	{Mutant: "time-left-shrinks", Spec: specs.TimeLeftShrinks},
	{Mutant: "clamp", Spec: specs.TimeLeftShrinks},
	{Mutant: "target-exists-check", Spec: specs.StartsOnlyKnown},
	{Mutant: "outstanding-limit", Spec: specs.OutstandingBounded},
	{Mutant: "outstanding-not-released", Spec: specs.OutstandingBounded},
	{Mutant: "unbounded-mailbox", Spec: specs.MailboxBounded},
	{Mutant: "effect-before-its-gate", Spec: specs.AckedIsDurable},
	{Mutant: "released-at-written", Spec: specs.AckedIsDurable},
	{Mutant: "accepted-not-journaled", Spec: specs.AckedIsDurable},
	{Mutant: "gate-skipped-for-taint", Spec: specs.AckedIsDurable},
	{Mutant: "reply-delivered-twice", Spec: specs.OneAnswer},
	{Mutant: "late-reply-delivered", Spec: specs.OneAnswer},
	{Mutant: "reply-to-another", Spec: specs.ReplyToCallerOnly},
	{Mutant: "old-epoch", Spec: specs.SingleActivation},
	{Mutant: "cancel-not-passed-down", Spec: specs.Structured},
	{Mutant: "restart-forgets-open-call", Spec: specs.EveryCallEnds},
	{Mutant: "unanswered-call-not-sent-again", Spec: specs.EveryCallEnds},
	{Mutant: "dedup-forgotten", Spec: specs.EffectOncePerAttempt},
	{Mutant: "put-away-forgotten", Spec: specs.EffectOncePerAttempt},
	{Mutant: "outcome-of-another", Spec: specs.ReplyToCallerOnly},
	{Mutant: "held-ignored", Spec: specs.ExpireOnlyWhenDue},
	{Mutant: "no-second-lap", Spec: specs.NoPhantomRefusal},
	{Mutant: "expired-call-not-cancelled", Spec: specs.Structured},
	{Mutant: "ended-call-cancelled", Spec: specs.ReplyToCallerOnly},
	{Mutant: "repeat-refused-while-loading", Spec: specs.ReplyToCallerOnly},
	{Mutant: "hold-unbounded", Spec: specs.EveryCallEnds},
	{Mutant: "former-attempt-answers", Spec: specs.EffectOncePerAttempt},
	{Mutant: "state-of-failed-turn-kept", Spec: linear.LinearKept},
	{Mutant: "epoch-not-confirmed", Spec: specs.NoPhantomRefusal},
	{Mutant: "probe-unbounded", Spec: CodecRoundTrip},
	{Mutant: "prober-is-victim", Spec: specs.OneVictimPerCycle},
	{Mutant: "one-branch-only", Spec: specs.NoWaitCycle},
	{Mutant: "second-in-queue-does-not-probe", Spec: specs.NoWaitCycle},
	{Mutant: "no-re-probe", Spec: specs.EveryWaitCycleBreaks},
	{Mutant: "retry-after-a-token", Spec: specs.RetriedUnheard},
	{Mutant: "unsafe-agent-tried-again", Spec: specs.EffectOncePerAttempt},
	{Mutant: "unsafe-effect-done-again", Spec: specs.EffectOncePerAttempt},
	{Mutant: "attempt-not-announced", Spec: specs.AttemptAnnounced},
	{Mutant: "retry-not-announced", Spec: specs.AttemptAnnounced},
	{Mutant: "callback-not-recognised", Spec: specs.OneAnswer},
	{Mutant: "key-forgotten-at-restart", Spec: specs.OneAnswer},
	{Mutant: "cursor-off-by-one", Spec: specs.StreamIsDense},
	{Mutant: "revoked-key-honoured", Spec: specs.RevokedHearNothing},
	{Mutant: "kept-with-asks-lost", Spec: linear.LinearKept},
	{Mutant: "ask-expires-early", Spec: specs.ExpireOnlyWhenDue},
	{Mutant: "run-outlives-its-time", Spec: specs.NoWorkPastDeadline},
	{Mutant: "call-sent-once", Spec: specs.EveryCallEnds},
	{Mutant: "open-call-taken-twice", Spec: CellNeverPanics},
	{Mutant: "key-ignored", Spec: specs.OneAnswer},
	{Mutant: "load-before-its-gate", Spec: specs.OneAnswer},
	{Mutant: "idle-with-open-work", Spec: specs.TurnComesBack},
	{Mutant: "snapshot-forgets-outcomes", Spec: specs.EffectOncePerAttempt},
	{Mutant: "lost-shard-kept", Spec: specs.SingleActivation},
	{Mutant: "boot-looks-for-nobody", Spec: specs.TurnComesBack},
	{Mutant: "mailbox-weighs-nothing", Spec: specs.MailboxBounded},
	{Mutant: "log-may-end-early", Spec: RotIsTold},
	{Mutant: "payload-unchecked", Spec: RotIsTold},
	{Mutant: "newer-format-read", Spec: RotIsTold},
	{Mutant: "first-version-unread", Spec: StoreReads},
	{Mutant: "registry-forgets", Spec: RegistryHolds},
	{Mutant: "revoked-key-kept", Spec: RegistryHolds},
	{Mutant: "egress-unchecked-after-dns", Spec: NobodyAstray},
	{Mutant: "part-for-whole", Spec: PartsAreSaid},
	{Mutant: "requested-delay-not-shared", Spec: UpstreamSpared},
	{Mutant: "circuit-stays-closed", Spec: UpstreamSpared},
	{Mutant: "tries-unbounded", Spec: UpstreamSpared},
	{Mutant: "end-not-forwarded", Spec: AnswerAsSent},
	{Mutant: "answer-unbounded", Spec: AnswerAsSent},
	{Mutant: "secret-quoted", Spec: NobodyAstray},
	{Mutant: "broken-arguments-sent", Spec: RequestAsAsked},
	{Mutant: "unhealthy-agent-invoked", Spec: HealthHolds},
}

// Guards returns all guards.
func Guards() []Guard { return append([]Guard(nil), guards...) }

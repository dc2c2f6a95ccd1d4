// SPDX-License-Identifier: Apache-2.0

package sim

import "github.com/troupe-run/troupe/specs"

// Guard is a line of the core that can be switched off in a build with the tag
// mutants, and the spec that must then break within a thousand seeds.
type Guard struct{ Mutant, Spec string }

var guards = []Guard{
	{"cycle-check", specs.AcyclicCalls},
	{"self-call", specs.AcyclicCalls},
	{"depth-check", specs.DepthBounded},
	{"chain-dropped-on-retry", specs.AcyclicCalls},
	{"time-left-shrinks", specs.TimeLeftShrinks},
	{"clamp", specs.TimeLeftShrinks},
	{"target-exists-check", specs.StartsOnlyKnown},
	{"outstanding-limit", specs.OutstandingBounded},
	{"outstanding-not-released", specs.OutstandingBounded},
	{"unbounded-mailbox", specs.MailboxBounded},
	{"effect-before-its-gate", specs.AckedIsDurable},
	{"released-at-written", specs.AckedIsDurable},
	{"accepted-not-journaled", specs.AckedIsDurable},
	{"gate-skipped-for-taint", specs.AckedIsDurable},
	{"reply-delivered-twice", specs.OneAnswer},
	{"late-reply-delivered", specs.OneAnswer},
	{"reply-to-another", specs.ReplyToCallerOnly},
	{"old-epoch", specs.SingleActivation},
	{"cancel-not-passed-down", specs.Structured},
	{"restart-forgets-open-call", specs.EveryCallEnds},
	{"unanswered-call-not-sent-again", specs.EveryCallEnds},
	{"dedup-forgotten", specs.EffectOncePerAttempt},
	{"held-ignored", specs.ExpireOnlyWhenDue},
	{"no-second-lap", specs.NoPhantomRefusal},
	{"prober-is-victim", specs.OneVictimPerCycle},
	{"one-branch-only", specs.NoWaitCycle},
	{"second-in-queue-does-not-probe", specs.NoWaitCycle},
	{"no-re-probe", specs.EveryWaitCycleBreaks},
}

// Guards lists them.
func Guards() []Guard { return append([]Guard(nil), guards...) }

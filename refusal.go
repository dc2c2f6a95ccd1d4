// SPDX-License-Identifier: Apache-2.0

package troupe

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/internal/command"
)

// ErrClosed is the error of a call to a server that was closed or has failed.
var ErrClosed = errors.New("the server has stopped")

// Code is the code of a refusal, as in the member code of an error of the HTTP API.
type Code string

// The codes. docs/errors.md describes each with its remedy.
const (
	CodeAgentNotFound    Code = "agent_not_found"
	CodeApprovalDecided  Code = "approval_decided" // an earlier decision counts
	CodeApprovalNotFound Code = "approval_not_found"
	CodeApprovalRejected Code = "approval_rejected" // a person rejected the call of a tool
	CodeBlocked          Code = "policy_blocked"    // the policy does not allow the call of a tool
	CodeBudgetExceeded   Code = "budget_exceeded"   // the calls or the sizes that a tree of calls may use
	CodeBusy             Code = "agent_busy"        // no capacity now, at the agent or on the server
	CodeCancelled        Code = "cancelled"
	CodeClientOffline    Code = "client_offline"
	CodeCycle            Code = "call_cycle" // the called agent is among the callers
	CodeDepth            Code = "call_depth"
	CodeEventsDropped    Code = "events_dropped" // the log was cut: see Config.Keep
	CodeEventsExceeded   Code = "events_exceeded"
	CodeInvalid          Code = "invalid_request"
	CodeModelAuth        Code = "model_auth"
	CodeModelNotFound    Code = "model_not_found"
	CodeModelRejected    Code = "model_rejected"
	CodeOutcomeUnknown   Code = "outcome_unknown" // a crash interrupted work that is not Idempotent
	CodeRejected         Code = "call_rejected"
	CodeRunNotFound      Code = "run_not_found"
	CodeSessionBusy      Code = "session_busy"    // the session has an open run
	CodeSessionDeleted   Code = "session_deleted" // its name cannot be used yet
	CodeSessionNotFound  Code = "session_not_found"
	CodeStorageFull      Code = "storage_full"  // the disk has too little space for new work
	CodeStorageShare     Code = "storage_share" // it is scarce, and the user has most of it
	CodeTimeout          Code = "timeout"
	CodeToolNotFound     Code = "tool_not_found"
	CodeUnavailable      Code = "agent_unavailable" // also an error or a panic of the agent
	CodeWaitCycle        Code = "call_wait_cycle"   // agents would wait for each other
)

// Refusal is a foreseen failure. Find it with errors.As:
//
//	var r *troupe.Refusal
//	if errors.As(err, &r) && r.Code == troupe.CodeBusy {
//		retry after r.RetryAfter
//	}
type Refusal struct {
	Code       Code
	Detail     string        // sentence for people; it MUST NOT be parsed
	Field      string        // with CodeInvalid, the invalid option or field; may be empty
	RetryAfter time.Duration // minimum delay before a retry; 0 if a retry alone does not help
	Run        string        // ID of the refused run; empty if the call did not become one

	reason *actor.Refusal // from which the refusal was made; nil for one of the program
}

// Error returns the code and the sentence.
func (r *Refusal) Error() string {
	if r.Detail == "" {
		return string(r.Code)
	}
	return string(r.Code) + ": " + r.Detail
}

// Refuse returns a refusal for an agent to return, with a formatted sentence. The caller gets the
// same code. A code that only the server gives, such as CodeSessionBusy, and one that is not among
// the constants become CodeRejected.
func Refuse(code Code, format string, args ...any) *Refusal {
	return &Refusal{Code: code, Detail: fmt.Sprintf(format, args...)}
}

// newRefusal returns the refusal of the runtime.
func newRefusal(r *actor.Refusal) *Refusal {
	return &Refusal{Code: codeOf(r), Detail: r.Detail, Field: r.Field, RetryAfter: r.RetryAfter, reason: r}
}

// codeOf returns the code that the gateway shows for a refusal.
func codeOf(r *actor.Refusal) Code { return Code(r.Info().Type) }

// toActor returns the refusal of the runtime from which r was made, or one with its code and
// sentence.
func (r *Refusal) toActor() *actor.Refusal {
	if r.reason != nil && r.Code == codeOf(r.reason) && r.Detail == r.reason.Detail {
		return r.reason
	}
	out := actor.Refuse(actor.Rejected, "%s", r.Detail)
	out.Field, out.RetryAfter = r.Field, max(r.RetryAfter, 0)
	for _, reason := range actor.Reasons() {
		if Code(reason.Info().Type) == r.Code {
			out.Reason = reason
		}
	}
	if out.Reason == actor.Busy {
		out.Scope = actor.ScopeCallee
	}
	return out
}

// errorOf returns the error of a command for a caller outside of a turn.
func errorOf(err error) error {
	var refused *actor.Refusal
	var dropped command.EventsDropped
	switch {
	case err == nil:
		return nil
	case errors.Is(err, command.ErrClosed):
		return ErrClosed
	case errors.As(err, &refused):
		r := newRefusal(refused)
		if refused.IsNotFound(actor.WhatApproval) {
			r.Detail += "; Server.Approvals lists those that wait"
		}
		return r
	case errors.As(err, &dropped):
		return Refuse(CodeEventsDropped, "%v", dropped)
	}
	return err
}

// turnError returns the error of an ask for the agent.
func turnError(err error) error {
	var refused *actor.Refusal
	if errors.As(err, &refused) {
		return newRefusal(refused)
	}
	return err
}

// agentError returns the error of an agent for the runtime. The text that the agent wrapped
// around a refusal is kept.
func agentError(err error) error {
	var r *Refusal
	if !errors.As(err, &r) {
		return err
	}
	if prefix, ok := strings.CutSuffix(err.Error(), r.Error()); ok && prefix != "" {
		return fmt.Errorf("%s%w", prefix, r.toActor())
	}
	return r.toActor()
}

// workError returns the error of work or a tool for the runtime. The text that wraps a refusal becomes
// part of its sentence.
func workError(err error) error {
	var r *Refusal
	if !errors.As(err, &r) {
		return err
	}
	out := *r.toActor()
	if prefix, ok := strings.CutSuffix(err.Error(), r.Error()); ok {
		out.Detail = prefix + out.Detail
	}
	return &out
}

// invalid returns the refusal of an invalid option.
func invalid(field, format string, args ...any) *Refusal {
	r := Refuse(CodeInvalid, format, args...)
	r.Field = field
	return r
}

// continues returns the error of a context that ended before the run.
func continues(ctx context.Context, run string) error {
	return fmt.Errorf("run %s continues: %w", run, context.Cause(ctx))
}

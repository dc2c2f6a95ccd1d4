// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"strings"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/dispatcher"
	"github.com/troupe-run/troupe/internal/invariant"
)

// ExchangeConfig describes one request and how to perform it.
type ExchangeConfig struct {
	Upstream string // name of the upstream in messages: "model gpt-x", "agent helper"
	Request  Request
	// NewDecoder returns a decoder for a response of the given content type. Each
	// attempt has its own decoder.
	NewDecoder func(contentType string) (Decoder, *Failure)
	// Safe means that the request may be repeated after it was possibly processed.
	Safe     bool
	Model    bool // the upstream is a model
	Verbatim bool // the deltas are passed on as they arrive, and no attempt follows one with deltas
	// Without returns the request without the given optional members, of which the last is new, and reports
	// whether it differs; nil: the request has none.
	Without  func(names []string) (Request, bool)
	Tool     bool // the upstream is a tool: each status 2xx is a success, and an unsafe request is repeated only if it was not sent
	Deadline actor.Time
	AttemptLimits
}

// Exchange returns the exchange for a prompt. Repeating a model request is always
// safe: it only costs tokens.
func (m Model) Exchange(p Prompt, deadline actor.Time, patience AttemptLimits) (ExchangeConfig, *actor.Refusal) {
	request, refusal := m.Request(p)
	name := "model " + p.Model
	return ExchangeConfig{Upstream: name, Request: request, Safe: true, Model: true, Deadline: deadline, AttemptLimits: patience, Without: m.without(p),
		NewDecoder: func(contentType string) (Decoder, *Failure) {
			return NewModelDecoder(name, &p, request.secrets(), contentType)
		},
	}, refusal
}

// agentTimeoutDefault replaces the timeouts for models, because an agent may work
// for a long time before it responds. The deadline of the invocation ends the
// wait earlier, and health checks detect an agent that has died.
const agentTimeoutDefault = 24 * time.Hour

// Exchange returns the exchange for an invocation; safe is true if the agent was
// registered with retry = safe.
func (a Agent) Exchange(in Invocation, safe bool, deadline actor.Time, patience AttemptLimits) (ExchangeConfig, *actor.Refusal) {
	request, refusal := a.Invoke(in)
	name := "agent " + in.Agent
	patience.Head, patience.Idle = orDefault(patience.Head, agentTimeoutDefault), orDefault(patience.Idle, agentTimeoutDefault)
	return ExchangeConfig{Upstream: name, Request: request, Safe: safe, Deadline: deadline, AttemptLimits: patience,
		NewDecoder: func(contentType string) (Decoder, *Failure) {
			return NewAgentDecoder(name, in.Run, request.secrets(), contentType)
		},
	}, refusal
}

// AttemptLimits bounds the time and the number of attempts. A zero field means its
// default. The comments give the defaults for models. For agents both timeouts default
// to agentTimeoutDefault. The struct tag sim of a field is the range from which the
// simulator draws its value.
type AttemptLimits struct {
	Head  actor.Duration `sim:"2s..10s"`   // time until the head of the response arrives; default 2 min
	Idle  actor.Duration `sim:"900ms..5s"` // time between two pieces of the body; default 60 s
	Retry RetryPolicy
}

func (p AttemptLimits) orDefaults() AttemptLimits {
	return AttemptLimits{orDefault(p.Head, 2*time.Minute), orDefault(p.Idle, time.Minute), p.Retry.orDefaults()}
}

const (
	errorBodyTimeout = 2 * time.Second  // maximum wait for the body of an error response
	silenceIsFailure = 10 * time.Second // minimum silence before an abort counts as a failure of the upstream
)

// Pacer is the state shared by the calls to one upstream: a Backoff, with a lock
// if the host needs one. Step calls each method at most once.
type Pacer interface {
	Admit(now actor.Time, w Waiter, draw uint64) Admission
	Report(now actor.Time, r Report, draw uint64) Advice
}

// Input is an event that the host reports to an exchange. The set is closed.
// Inputs of an attempt that has ended are ignored.
type Input interface{ input() }

// Begin starts the exchange.
type Begin struct{}

// Tick reports that NextDeadline has been reached.
type Tick struct{}

// Adjust replaces the deadline of the exchange.
type Adjust struct{ Deadline actor.Time }

// Cancel ends the exchange because the response is no longer needed. Reason is
// Stopped or Deadline.
type Cancel struct{ Reason actor.Reason }

// Head is the head of a response.
type Head struct {
	Attempt int
	Status  int
	Headers []Header
}

// Bytes is the next piece of the body of a response. The exchange keeps no reference
// to the field Bytes.
type Bytes struct {
	Attempt int
	Bytes   []byte
}

// End is the regular end of the body of a response.
type End struct{ Attempt int }

// Loss reports that a connection broke or could not be established.
type Loss struct {
	Attempt int
	Sent    bool // part of the request may have been sent
	Final   bool // a retry cannot succeed, because the address is not allowed
	Detail  string
}

func (Begin) input()  {}
func (Tick) input()   {}
func (Adjust) input() {}
func (Cancel) input() {}
func (Head) input()   {}
func (Bytes) input()  {}
func (End) input()    {}
func (Loss) input()   {}

// Op is an operation that an exchange requests from the host. The set is closed.
type Op interface{ op() }

// Send sends the request on a new connection for this attempt.
type Send struct {
	Attempt int
	Request Request
}

// Close closes the connection of the attempt, in any state.
type Close struct{ Attempt int }

// Forward passes a delta to the client of the exchange.
type Forward struct{ Delta Delta }

// Retry reports a failed attempt, its failure and the start of the next attempt.
type Retry struct {
	Attempt int
	Failure Failure
	At      actor.Time
}

// Refusal returns the refusal of the failed attempt, with the time until the next one.
func (r *Retry) Refusal(now actor.Time) *actor.Refusal {
	out := *r.Failure.Refusal
	out.RetryAfter = max(r.At.Sub(now), 0)
	return &out
}

// Ended is the last operation. It holds the outcome of the exchange.
type Ended struct{ Outcome Outcome }

func (Send) op()    {}
func (Close) op()   {}
func (Forward) op() {}
func (Retry) op()   {}
func (Ended) op()   {}

// Outcome is the result of an exchange; there is exactly one.
type Outcome struct {
	Completion Completion          // with a refusal: the part received, without Finish
	Result     *actor.Part         // of a tool
	Warnings   []string            // about the content of a complete response
	Refusal    *actor.Refusal      // nil if the response is complete
	Code       string              // of the error in the last response, if its status was not 200
	Object     []byte              // error in the last response, see Failure
	Attempts   []Attempt           // for the record of the call
	Evidence   dispatcher.Evidence // what the last attempt states about the upstream
	Omitted    []string            // optional members that the model refused, without which it answered
	Untouched  bool                // of a tool that failed: no attempt can have performed it
}

// Answer returns the outcome as the answer of an ask.
func (o *Outcome) Answer() actor.Answer {
	if o.Refusal != nil {
		return actor.Answer{Refusal: o.Refusal}
	}
	if o.Result != nil {
		return actor.Answer{Parts: []actor.Part{*o.Result}, Warnings: o.Warnings}
	}
	return actor.Answer{Parts: []actor.Part{{Media: actor.MediaJSON, Bytes: o.Completion.Encode()}}, Warnings: o.Warnings}
}

// Attempt describes one attempt for the record.
type Attempt struct {
	At      actor.Time
	Took    actor.Duration
	Status  int // 0 if no head arrived
	Bytes   int // size of the body received
	Refusal *actor.Refusal
}

type phase uint8

const (
	notStarted       phase = iota
	waiting                // for phaseDeadline, to start an attempt
	awaitingHead           // request sent
	readingBody            // of a response with status 200
	readingErrorBody       // of any other response
	ended
)

// Exchange is one request with all its attempts, as a state machine.
//
//  1. It ends exactly once. If the host calls Step when due, it ends no later than
//     Deadline.
//  2. A Retry voids the deltas forwarded before it.
//  3. A request that is not Safe is repeated only if the last attempt did not
//     reach the upstream, or the upstream, unless it is a tool, reported that it did
//     not accept it.
//  4. At most one attempt is in progress at any time.
//  5. A tool of which a response with status 2xx has begun ends with a result, as
//     Unknown, or because it is Stopped.
type Exchange struct {
	order         ExchangeConfig
	limits        AttemptLimits
	phase         phase
	phaseDeadline actor.Time // in the phase waiting: start of the next attempt; in other phases: timeout of the phase
	attempts      []Attempt
	reached       int                 // number of failed attempts that may have reached the upstream
	waitsSince    actor.Time          // begin of the exchange, or its last failure
	giveUp        actor.Time          // latest start of an attempt; 0 before the first failure
	failingSince  actor.Time          // the upstream was known to be unreachable since then, before the exchange; 0: it was not
	evidence      dispatcher.Evidence // of the last attempt
	probe         bool
	chunker       Chunker
	decoder       Decoder
	status        int
	headers       []Header
	headAt        actor.Time
	lastContact   actor.Time // last input from the upstream, or time of the last send
	body          []byte     // of an error response
	code          string     // of the error in it
	object        []byte     // of the last failure, see Failure
	omitted       []string   // optional members that the model refused
	passed        bool       // deltas of a Verbatim exchange were forwarded
	touched       bool       // an attempt of a tool may have performed it
	performed     bool       // an attempt of a tool had a response with status 2xx
	lateInputs    int
	ops           []Op
}

// NewExchange returns an exchange that has not begun.
func NewExchange(order ExchangeConfig) *Exchange {
	return &Exchange{order: order, limits: order.AttemptLimits.orDefaults()}
}

// LateInputs returns the number of inputs ignored because their attempt, or the
// exchange, had ended.
func (x *Exchange) LateInputs() int { return x.lateInputs }

// NextDeadline returns the time by which the host MUST call Step, or false before
// Begin and after the end.
func (x *Exchange) NextDeadline() (actor.Time, bool) {
	switch x.phase {
	case notStarted, ended:
		return 0, false
	}
	due := min(x.order.Deadline, x.phaseDeadline)
	if cut, ok := x.chunker.Due(); ok {
		due = min(due, cut)
	}
	return due, true
}

// Step advances the exchange by one input. Draw is a uniformly random number.
func (x *Exchange) Step(now actor.Time, in Input, pace Pacer, draw uint64) []Op {
	if x.phase == ended {
		x.lateInputs++
		return nil
	}
	m := exchangeStep{x, now, pace, draw}
	if _, begin := in.(Begin); begin {
		invariant.Check(x.phase == notStarted, "upstream: exchange has already begun")
		x.phase = waiting
		x.phaseDeadline, x.waitsSince = now, now
	}
	if adjust, ok := in.(Adjust); ok {
		x.order.Deadline = adjust.Deadline
	}
	if now >= x.order.Deadline && x.order.Verbatim && x.decoder != nil && x.decoder.HasFinish() {
		m.forwardDecoded(x.decoder.End())
	} else if now >= x.order.Deadline {
		m.abort(m.deadlineRefusal())
	} else {
		m.apply(in)
	}
	ops := x.ops
	x.ops = nil
	return ops
}

// exchangeStep is an exchange together with the arguments of one Step.
type exchangeStep struct {
	*Exchange
	now   actor.Time
	pacer Pacer
	draw  uint64
}

func (m exchangeStep) apply(in Input) {
	switch in := in.(type) {
	case Cancel:
		m.abort(actor.Refuse(in.Reason, "%s: the response is no longer needed", m.order.Upstream))
	case Head:
		if m.isCurrent(in.Attempt, awaitingHead) {
			m.onHead(in)
		}
	case Bytes:
		if m.isCurrent(in.Attempt, readingBody, readingErrorBody) {
			m.onBytes(in.Bytes)
		}
	case End:
		if m.isCurrent(in.Attempt, readingBody, readingErrorBody) {
			m.onEnd()
		}
	case Loss:
		if m.isCurrent(in.Attempt, awaitingHead, readingBody, readingErrorBody) {
			m.onLoss(in)
		}
	}
	m.fireTimers()
}

func (m exchangeStep) isCurrent(attempt int, phases ...phase) bool {
	for _, p := range phases {
		if m.phase == p && attempt == len(m.attempts) {
			return true
		}
	}
	m.lateInputs++
	return false
}

// fireTimers performs the actions that are due.
func (m exchangeStep) fireTimers() {
	if due, ok := m.chunker.Due(); ok && m.now >= due {
		m.flush()
	}
	if m.phase == ended || m.phase == notStarted || m.now < m.phaseDeadline {
		return
	}
	switch m.phase {
	case waiting:
		m.startAttempt()
	case awaitingHead:
		m.failAttempt(fail(Broken, actor.Unavailable, "%s: no response within %v", m.order.Upstream, m.limits.Head))
	case readingBody:
		m.interrupt(fail(Broken, actor.Unavailable, "%s: no data for %v during the response", m.order.Upstream, m.limits.Idle))
	case readingErrorBody:
		m.failWithStatus()
	}
}

// startAttempt asks the pacer for admission. Depending on the answer, it sends the
// request, waits, or ends the exchange.
func (m exchangeStep) startAttempt() {
	pass := m.pacer.Admit(m.now, m.waiter(), m.draw)
	switch {
	case pass.Refusal != nil && m.canWait(pass):
		m.phaseDeadline = m.now.Add(m.waitFor(pass))
	case pass.Refusal != nil && len(m.attempts) > 0: // the failure of this request states more than that of others
		refusal := *m.attempts[len(m.attempts)-1].Refusal
		refusal.RetryAfter = max(refusal.RetryAfter, pass.Refusal.RetryAfter)
		m.finish(&refusal)
	case pass.Refusal != nil:
		refusal := *pass.Refusal
		refusal.Detail = actor.Refuse(refusal.Reason, "%s: %s", m.order.Upstream, refusal.Detail).Detail
		m.finish(&refusal)
	case pass.At > m.now && (pass.At >= m.order.Deadline || m.giveUp != 0 && pass.At > m.giveUp):
		m.finish(actor.RefuseBusy(actor.ScopeCallee, pass.At.Sub(m.now), "%s requested a delay beyond the time for retries", m.order.Upstream))
	case pass.At > m.now:
		m.phaseDeadline = pass.At
	default:
		m.attempts = append(m.attempts, Attempt{At: m.now})
		m.probe, m.decoder, m.body, m.status, m.code, m.object, m.evidence = pass.Probe, nil, nil, 0, "", nil, dispatcher.NoEvidence
		if len(m.attempts) == 1 {
			m.failingSince = pass.Since
		}
		m.chunker = Chunker{} // the first piece of each attempt is forwarded at once
		m.phase, m.phaseDeadline, m.lastContact = awaitingHead, m.now.Add(m.limits.Head), m.now
		m.ops = append(m.ops, Send{len(m.attempts), m.order.Request})
	}
}

// waiter returns the bounds of the wait for the next attempt. The delay after a failure never
// exceeds that of the policy, whatever other exchanges with the upstream report.
func (m exchangeStep) waiter() Waiter {
	w := Waiter{Until: m.waitsSince.Add(m.limits.Retry.DelayMax), DelayMax: m.limits.Retry.DelayMax}
	if m.giveUp != 0 {
		w.Until = min(w.Until, m.giveUp)
	}
	return w
}

// canWait reports whether the exchange waits until the upstream may be asked again:
// the upstream has not been failing for longer than retries are made.
func (m exchangeStep) canWait(pass Admission) bool {
	giveUp := m.giveUp
	if giveUp == 0 {
		giveUp = pass.Since.Add(m.limits.Retry.Time)
	}
	at := m.now.Add(m.waitFor(pass))
	return pass.Since != 0 && m.limits.Retry.Tries > 1 && at > m.now && at <= giveUp && at < m.order.Deadline
}

// waitFor returns the time until the next request for admission. The jitter keeps
// the exchanges that wait for one upstream apart.
func (m exchangeStep) waitFor(pass Admission) actor.Duration {
	wait := orDefault(pass.Poll, pass.Refusal.RetryAfter)
	return wait + jitter(wait/4, m.draw)
}

func (m exchangeStep) onHead(in Head) {
	m.status, m.headers, m.headAt, m.lastContact = in.Status, in.Headers, m.now, m.now
	m.attempts[len(m.attempts)-1].Status = in.Status
	if in.Status != 200 && !(m.order.Tool && in.Status/100 == 2) {
		m.phase, m.phaseDeadline = readingErrorBody, m.now.Add(errorBodyTimeout)
		return
	}
	m.performed = m.order.Tool
	if coding := lookup(in.Headers, "content-encoding"); coding != "" && !strings.EqualFold(coding, "identity") {
		m.failAttempt(fail(Broken, actor.Unavailable, "%s: unexpected content coding %q", m.order.Upstream, m.secrets().quote(coding, mediaBytesMax)))
		return
	}
	decoder, failure := m.order.NewDecoder(lookup(in.Headers, "content-type"))
	if failure != nil {
		m.failAttempt(failure)
		return
	}
	if m.probe { // the upstream works: the others need not wait for the end of this response
		m.probe = false
		m.pacer.Report(m.now, Report{Answered: true, Probe: true}, m.draw)
	}
	m.decoder = decoder
	m.phase, m.phaseDeadline = readingBody, m.now.Add(m.limits.Idle)
}

func (m exchangeStep) onBytes(b []byte) {
	m.attempts[len(m.attempts)-1].Bytes += len(b)
	m.lastContact = m.now
	if m.phase == readingErrorBody {
		m.body = append(m.body, b[:min(len(b), errorBytesMax-len(m.body))]...)
		if len(m.body) == errorBytesMax {
			m.failWithStatus()
		}
		return
	}
	m.phaseDeadline = m.now.Add(m.limits.Idle)
	m.forwardDecoded(m.decoder.Decode(b))
}

func (m exchangeStep) onEnd() {
	if m.phase == readingErrorBody {
		m.failWithStatus()
		return
	}
	m.forwardDecoded(m.decoder.End())
}

// forwardDecoded forwards the deltas of a response, and ends the exchange when the
// response is complete.
func (m exchangeStep) forwardDecoded(deltas []Delta, failure *Failure) {
	for _, d := range deltas {
		if m.order.Verbatim {
			m.passed = true
			m.forward(d)
			continue
		}
		if d.State != "" {
			m.flush()
			m.forward(d)
		}
		for _, text := range m.chunker.Add(m.now, d.Text) {
			m.forward(Delta{Text: text})
		}
	}
	switch {
	case failure != nil:
		m.failAttempt(failure)
	case m.decoder.Done():
		m.ops = append(m.ops, Close{len(m.attempts)})
		m.recordAttempt(nil)
		m.report(Report{Answered: true})
		m.evidence = dispatcher.Succeeded
		m.finish(nil)
	}
}

func (m exchangeStep) forward(d Delta) {
	m.ops = append(m.ops, Forward{d})
}

func (m exchangeStep) flush() {
	for _, text := range m.chunker.Flush() {
		m.forward(Delta{Text: text})
	}
}

func (m exchangeStep) onLoss(in Loss) {
	detail := m.secrets().quote(in.Detail, quoteBytesMax)
	switch {
	case m.phase == readingErrorBody:
		m.failWithStatus()
	case in.Final && !in.Sent:
		m.abort(actor.Refuse(actor.Rejected, "%s cannot be reached: %s", m.order.Upstream, detail))
	case !in.Sent && m.phase == awaitingHead:
		m.failAttempt(fail(Unreached, actor.Unavailable, "%s cannot be reached: %s", m.order.Upstream, detail))
	default:
		m.interrupt(fail(Broken, actor.Unavailable, "%s: connection lost: %s", m.order.Upstream, detail))
	}
}

// interrupt handles a response that receives no more bytes. A response with a
// finish reason is complete nevertheless.
func (m exchangeStep) interrupt(failure *Failure) {
	if m.decoder != nil && m.decoder.HasFinish() {
		m.forwardDecoded(m.decoder.End())
		return
	}
	m.failAttempt(failure)
}

func (m exchangeStep) failWithStatus() {
	if m.order.Tool {
		m.failAttempt(toolFailure(m.order.Upstream, !m.order.Safe, m.order.Request, m.status, m.headers, m.body, m.headAt))
		return
	}
	f := StatusFailure(m.order.Upstream, m.order.Model, m.status, m.headers, m.body, m.secrets(), m.headAt)
	m.code = f.Code
	m.failAttempt(f)
}

// failAttempt ends an attempt, and ends the exchange unless another attempt is
// allowed.
func (m exchangeStep) failAttempt(f *Failure) {
	m.flush()
	m.object = f.Object
	m.ops = append(m.ops, Close{len(m.attempts)})
	f.Refusal.Detail = m.secrets().redact(f.Refusal.Detail)
	m.recordAttempt(f.Refusal)
	m.evidence = m.evidenceOf(f)
	m.touched = m.touched || f.Class == Broken
	if m.withoutRefused(f) {
		m.report(Report{Failure: f})
		m.phase, m.phaseDeadline, m.decoder = waiting, m.now, nil
		m.ops = append(m.ops, Retry{len(m.attempts), *f, m.now})
		return
	}
	policy := m.limits.Retry
	m.waitsSince = m.now
	if f.Class != Unreached {
		m.reached++
	}
	switch {
	case m.giveUp != 0:
	case f.Class == Unreached && m.failingSince != 0:
		m.giveUp = m.failingSince.Add(policy.Time)
	default:
		m.giveUp = m.now.Add(policy.Time)
	}
	once := m.order.Tool && !m.order.Safe && f.Class != Unreached
	answered := m.order.Tool && m.phase == readingErrorBody // the response states the outcome
	uncertain := f.Class == Broken && !m.order.Safe && !answered
	retry := f.Class != Refused && !uncertain && !once && !m.passed && policy.Tries > 1 && m.reached < policy.Tries && len(m.attempts) < unreachableMax
	report := Report{Failure: f, Window: policy.window(len(m.attempts)), Exact: policy.Exact}
	if retry {
		report.By, report.Until = m.order.Deadline, m.giveUp
	}
	advice := m.report(report)
	switch {
	case advice.Retry:
		m.phase, m.phaseDeadline, m.decoder = waiting, advice.At, nil
		m.ops = append(m.ops, Retry{len(m.attempts), *f, advice.At})
	case uncertain:
		m.finish(actor.Refuse(actor.Unknown, "%s; the request may have been processed", f.Refusal.Detail))
	default:
		if refusal := f.Refusal; f.Class != Refused && !once && refusal.Reason == actor.Unavailable && refusal.RetryAfter == 0 {
			refusal.RetryAfter = policy.DelayMax // the upstream may recover
		}
		m.finish(f.Refusal)
	}
}

// evidenceOf returns what a failed attempt states about the upstream. An upstream that refuses the
// request or asks for a delay has not failed, unless its status says that nothing serves requests there.
func (m exchangeStep) evidenceOf(f *Failure) dispatcher.Evidence {
	absent := f.Class == Refused && m.phase == readingErrorBody && f.Refusal.Reason == actor.Unavailable
	switch {
	case f.Class == Unreached:
		return dispatcher.Unreached
	case f.Class == Broken || absent:
		return dispatcher.Failed
	}
	return dispatcher.Reached
}

// abort ends the exchange before the attempt has ended. The report to the pacer states
// nothing about the upstream. Exception: a silence of at least silenceIsFailure is
// reported as a failure of the upstream.
func (m exchangeStep) abort(refusal *actor.Refusal) {
	m.flush()
	if m.phase == awaitingHead || m.phase == readingBody || m.phase == readingErrorBody {
		m.ops = append(m.ops, Close{len(m.attempts)})
		m.touched = true
		m.recordAttempt(refusal)
		report := Report{}
		if m.now.Sub(m.lastContact) >= silenceIsFailure {
			report.Failure = &Failure{Class: Broken, Refusal: refusal}
			if refusal.Reason == actor.Deadline { // a caller that goes away blames nobody
				m.evidence = dispatcher.Failed
			}
		}
		m.report(report)
	}
	m.finish(refusal)
}

func (m exchangeStep) deadlineRefusal() *actor.Refusal {
	refusal := actor.Refuse(actor.Deadline, "%s: timeout: no time is left", m.order.Upstream)
	refusal.Operation = "invoke " + m.order.Upstream
	if len(m.attempts) > 0 {
		refusal.Timeout = m.order.Deadline.Sub(m.attempts[0].At)
	}
	return refusal
}

func (m exchangeStep) secrets() Secrets { return m.order.Request.secrets() }

func (m exchangeStep) recordAttempt(refusal *actor.Refusal) {
	a := &m.attempts[len(m.attempts)-1]
	a.Took, a.Refusal = m.now.Sub(a.At), refusal
}

func (m exchangeStep) report(r Report) Advice {
	r.First, r.Probe = len(m.attempts) == 1, m.probe
	return m.pacer.Report(m.now, r, m.draw)
}

// finish ends the exchange. What fails after a tool was performed does not read as if it was not.
func (m exchangeStep) finish(refusal *actor.Refusal) {
	m.flush()
	if m.performed && refusal != nil && refusal.Reason != actor.Unknown && refusal.Reason != actor.Stopped {
		refusal = actor.Refuse(actor.Unknown, "%s; a response with status 2xx had begun, so the request was performed", refusal.Detail)
	}
	outcome := Outcome{Refusal: refusal, Code: m.code, Attempts: m.attempts, Evidence: m.evidence, Untouched: m.order.Tool && refusal != nil && !m.touched && !m.performed}
	if refusal == nil {
		outcome.Omitted = m.omitted
	} else {
		outcome.Object = m.object
	}
	if m.decoder != nil {
		outcome.Completion, outcome.Warnings = m.decoder.Completion(), m.decoder.Warnings()
		if tool, ok := m.decoder.(*ToolDecoder); ok {
			outcome.Result = tool.Result()
		}
	}
	m.phase = ended
	m.ops = append(m.ops, Ended{outcome})
}

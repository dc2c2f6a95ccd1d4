// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"strings"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/internal/invariant"
	"github.com/troupe-run/troupe/internal/mutant"
)

// Order is one request, and how it is to be carried out.
type Order struct {
	Who     string // whom it is for, in sentences: "model gpt-x", "agent helper"
	Request Request
	// Decode reads an answer of that content type; each attempt has its own.
	Decode func(contentType string) (Decoder, *Failure)
	// Safe says that asking twice does no harm.
	Safe     bool
	Deadline actor.Time
	Patience
}

// Order is the prompt on its way to the model. Asking a model twice does no
// harm: it costs.
func (m Model) Order(p Prompt, deadline actor.Time, patience Patience) (Order, *actor.Refusal) {
	request, refusal := m.Request(p)
	who := "model " + p.Model
	return Order{Who: who, Request: request, Safe: true, Deadline: deadline, Patience: patience,
		Decode: func(contentType string) (Decoder, *Failure) { return NewModelDecoder(who, &p, contentType) },
	}, refusal
}

// agentTimeoutDefault is with agents that think before they speak: the invocation's time
// is over sooner, and whether an agent lives, its health tells meanwhile.
const agentTimeoutDefault = 24 * time.Hour

// Order is the invocation on its way to the agent; safe is what that registered
// as retry = safe.
func (a Agent) Order(in Invocation, safe bool, deadline actor.Time, patience Patience) (Order, *actor.Refusal) {
	request, refusal := a.Invoke(in)
	who := "agent " + in.Agent
	patience.Head, patience.Idle = orDefault(patience.Head, agentTimeoutDefault), orDefault(patience.Idle, agentTimeoutDefault)
	return Order{Who: who, Request: request, Safe: safe, Deadline: deadline, Patience: patience,
		Decode: func(contentType string) (Decoder, *Failure) { return NewAgentDecoder(who, in.Run, contentType) },
	}, refusal
}

// Patience is how long and how often; each 0 stands for the default named, which is
// that with models: agents have as long as their invocation. The tag is the range
// from which the simulator draws.
type Patience struct {
	Head  actor.Duration `sim:"2s..10s"`   // until the answer's head comes. 2 min
	Idle  actor.Duration `sim:"900ms..5s"` // between two pieces of its body. 60 s
	Tries int            `sim:"2..5"`      // attempts at most, if the upstream says later. 4
	// Broken of them may bring no usable answer. 2: one is repeated.
	Broken int `sim:"1..3"`
}

func (p Patience) orDefaults() Patience {
	return Patience{orDefault(p.Head, 2*time.Minute), orDefault(p.Idle, time.Minute), orDefault(p.Tries, 4), orDefault(p.Broken, 2)}
}

const (
	errorBodyTimeout = 2 * time.Second  // what the rest of an error's body is worth
	silenceIsFailure = 10 * time.Second // of an upstream that something is wrong
)

// Pacer is what the calls to one upstream share: a Backoff, behind whatever lock
// its world needs. Each method is called at most once per step.
type Pacer interface {
	Admit(now actor.Time, draw uint64) Pass
	Report(now actor.Time, r Report, draw uint64) Advice
}

// Input is what a world tells an exchange. The set is closed. Those of an attempt
// that is over change nothing.
type Input interface{ input() }

// Begin starts the exchange.
type Begin struct{}

// Tick says that it is NextDeadline, or later.
type Tick struct{}

// Cancel says that nobody wants the answer any more, and why: Stopped or Deadline.
type Cancel struct{ Reason actor.Reason }

// Head is the head of an answer.
type Head struct {
	Attempt int
	Status  int
	Headers []Header
}

// Bytes are the next of its body. They stay the world's.
type Bytes struct {
	Attempt int
	Bytes   []byte
}

// End is the end of its body, as it should be.
type End struct{ Attempt int }

// Loss is the end of a connection, or that there never was one.
type Loss struct {
	Attempt int
	Sent    bool // some of the request may have left
	Final   bool // and it will be no better next time: the address is not allowed
	Detail  string
}

func (Begin) input()  {}
func (Tick) input()   {}
func (Cancel) input() {}
func (Head) input()   {}
func (Bytes) input()  {}
func (End) input()    {}
func (Loss) input()   {}

// Op is what an exchange wants of the world. The set is closed.
type Op interface{ op() }

// Send sends the request on a connection of this attempt.
type Send struct {
	Attempt int
	Request Request
}

// Close gives the attempt's connection up, whatever state it is in.
type Close struct{ Attempt int }

// PassOn hands a delta to whoever waits for the answer.
type PassOn struct{ Delta Delta }

// Again tells that the attempt failed, why, and when the next begins.
type Again struct {
	Attempt int
	Failure Failure
	At      actor.Time
}

// Ended is the last op: what came of it all.
type Ended struct{ Outcome Outcome }

func (Send) op()   {}
func (Close) op()  {}
func (PassOn) op() {}
func (Again) op()  {}
func (Ended) op()  {}

// Outcome is the one end of an exchange.
type Outcome struct {
	Completion Completion     // with a refusal: as far as it came, without Finish
	Refusal    *actor.Refusal // nil: the answer is whole
	Attempts   []Attempt      // for the record
}

// Attempt is one attempt as it is recorded.
type Attempt struct {
	At      actor.Time
	Took    actor.Duration
	Status  int // 0: no head came
	Bytes   int // of its body
	Refusal *actor.Refusal
}

type phase uint8

const (
	notStarted       phase = iota
	waiting                // for at
	awaitingHead           // for a head
	readingBody            // an answer
	readingErrorBody       // the body of an error
	ended
)

// Exchange is one request with all its attempts, as a state machine.
//
//  1. It ends exactly once, at Deadline at the latest if it is stepped when due.
//  2. No attempt follows one of which a delta was passed on.
//  3. One that is not Safe is sent again only if the last did not reach the
//     upstream, or the upstream says that it did not take it.
//  4. At most one attempt is out at any time.
type Exchange struct {
	order          Order
	limits         Patience
	phase          phase
	phaseDeadline  actor.Time // waiting: when to go; else when to give up waiting
	attempts       []Attempt
	brokenAttempts int
	probe          bool
	forwarded      bool
	chunker        Chunker
	decoder        Decoder
	status         int
	headers        []Header
	headAt         actor.Time
	lastContact    actor.Time // the last sign of the upstream, or that it was sent to
	body           []byte     // of an error
	lateInputs     int
	ops            []Op
}

// NewExchange has done nothing yet.
func NewExchange(order Order) *Exchange {
	return &Exchange{order: order, limits: order.Patience.orDefaults()}
}

// Late is how many inputs came after the end, and changed nothing.
func (x *Exchange) Late() int { return x.lateInputs }

// NextDeadline is when the world must step at the latest; false once it has ended.
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

// Step advances the exchange by one input. Draw is a number drawn from all there are.
func (x *Exchange) Step(now actor.Time, in Input, pace Pacer, draw uint64) []Op {
	if x.phase == ended {
		x.lateInputs++
		return nil
	}
	m := exchangeStep{x, now, pace, draw}
	if _, begin := in.(Begin); begin {
		invariant.Check(x.phase == notStarted, "upstream: an exchange begins twice")
		x.phase = waiting
		x.phaseDeadline = now
	}
	if now >= x.order.Deadline {
		m.abort(m.deadlineRefusal())
	} else {
		m.apply(in)
	}
	ops := x.ops
	x.ops = nil
	return ops
}

// exchangeStep is an exchange at one instant.
type exchangeStep struct {
	*Exchange
	now   actor.Time
	pacer Pacer
	draw  uint64
}

func (m exchangeStep) apply(in Input) {
	switch in := in.(type) {
	case Cancel:
		m.abort(actor.Refuse(in.Reason, "%s: nobody waits for the answer any more", m.order.Who))
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

// fireTimers does what is due.
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
		m.failAttempt(fail(Broken, actor.Unavailable, "%s: no answer within %v", m.order.Who, m.limits.Head))
	case readingBody:
		m.interrupt(fail(Broken, actor.Unavailable, "%s: silent for %v in the middle of its answer", m.order.Who, m.limits.Idle))
	case readingErrorBody:
		m.failWithStatus()
	}
}

// startAttempt sends the request, waits until it may, or ends.
func (m exchangeStep) startAttempt() {
	pass := m.pacer.Admit(m.now, m.draw)
	switch {
	case pass.Refusal != nil:
		refusal := *pass.Refusal
		refusal.Detail = actor.Refuse(refusal.Reason, "%s: %s", m.order.Who, refusal.Detail).Detail
		m.finish(&refusal)
	case pass.At >= m.order.Deadline && pass.At > m.now:
		m.finish(actor.RefuseBusy(actor.ScopeCallee, pass.At.Sub(m.now), "%s wants to be left alone for longer than there is time", m.order.Who))
	case pass.At > m.now:
		m.phaseDeadline = pass.At
	default:
		m.attempts = append(m.attempts, Attempt{At: m.now})
		m.probe, m.decoder, m.body, m.status = pass.Probe, nil, nil, 0
		m.phase, m.phaseDeadline, m.lastContact = awaitingHead, m.now.Add(m.limits.Head), m.now
		m.ops = append(m.ops, Send{len(m.attempts), m.order.Request})
	}
}

func (m exchangeStep) onHead(in Head) {
	m.status, m.headers, m.headAt, m.lastContact = in.Status, in.Headers, m.now, m.now
	m.attempts[len(m.attempts)-1].Status = in.Status
	if in.Status != 200 {
		m.phase, m.phaseDeadline = readingErrorBody, m.now.Add(errorBodyTimeout)
		return
	}
	if coding := lookup(in.Headers, "content-encoding"); coding != "" && !strings.EqualFold(coding, "identity") {
		m.failAttempt(fail(Broken, actor.Unavailable, "%s: content coding %.40q was not asked for", m.order.Who, coding))
		return
	}
	decoder, failure := m.order.Decode(lookup(in.Headers, "content-type"))
	if failure != nil {
		m.failAttempt(failure)
		return
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

// forwardDecoded passes on what an answer brought, and ends with it.
func (m exchangeStep) forwardDecoded(deltas []Delta, failure *Failure) {
	for _, d := range deltas {
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
		m.finish(nil)
	}
}

func (m exchangeStep) forward(d Delta) {
	m.forwarded = true
	m.ops = append(m.ops, PassOn{d})
}

func (m exchangeStep) flush() {
	for _, text := range m.chunker.Flush() {
		m.forward(Delta{Text: text})
	}
}

func (m exchangeStep) onLoss(in Loss) {
	detail := actor.FitText(in.Detail, quoteBytesMax)
	switch {
	case m.phase == readingErrorBody:
		m.failWithStatus()
	case in.Final && !in.Sent:
		m.abort(actor.Refuse(actor.Rejected, "%s cannot be reached: %s", m.order.Who, detail))
	case !in.Sent:
		m.failAttempt(fail(Unreached, actor.Unavailable, "%s cannot be reached: %s", m.order.Who, detail))
	default:
		m.interrupt(fail(Broken, actor.Unavailable, "%s: the connection broke: %s", m.order.Who, detail))
	}
}

// interrupt ends an answer of which no more comes. One that said that it is over is
// whole all the same.
func (m exchangeStep) interrupt(failure *Failure) {
	if m.decoder != nil && m.decoder.HasFinish() {
		m.forwardDecoded(m.decoder.End())
		return
	}
	m.failAttempt(failure)
}

func (m exchangeStep) failWithStatus() {
	body := m.order.Request.redact(string(m.body)) // before a sentence cuts a secret in two
	m.failAttempt(StatusFailure(m.order.Who, m.status, m.headers, []byte(body), m.headAt))
}

// failAttempt ends an attempt, and with it the exchange unless it may be made again.
func (m exchangeStep) failAttempt(f *Failure) {
	m.flush()
	m.ops = append(m.ops, Close{len(m.attempts)})
	f.Refusal.Detail = m.order.Request.redact(f.Refusal.Detail)
	m.recordAttempt(f.Refusal)
	if f.Class == Broken || f.Class == Unreached {
		m.brokenAttempts++
	}
	unsure := f.Class == Broken && !m.order.Safe && !mutant.On("unsafe-agent-tried-again")
	again := f.Class != Refused && !unsure && (!m.forwarded || mutant.On("retry-after-a-token")) && len(m.attempts) < m.limits.Tries && m.brokenAttempts < m.limits.Broken
	report := Report{Failure: f}
	if again {
		report.By = m.order.Deadline
	}
	advice := m.report(report)
	switch {
	case advice.Again:
		m.phase, m.phaseDeadline, m.decoder = waiting, advice.At, nil
		m.ops = append(m.ops, Again{len(m.attempts), *f, advice.At})
	case unsure:
		m.finish(actor.Refuse(actor.Unknown, "%s; whether it did what it was asked is unknown", f.Refusal.Detail))
	default:
		m.finish(f.Refusal)
	}
}

// abort ends the exchange before the attempt did. It tells nothing of the
// upstream, unless that kept silent for longer than haste explains.
func (m exchangeStep) abort(refusal *actor.Refusal) {
	m.flush()
	if m.phase == awaitingHead || m.phase == readingBody || m.phase == readingErrorBody {
		m.ops = append(m.ops, Close{len(m.attempts)})
		m.recordAttempt(refusal)
		report := Report{}
		if m.now.Sub(m.lastContact) >= silenceIsFailure {
			report.Failure = &Failure{Class: Broken, Refusal: refusal}
		}
		m.report(report)
	}
	m.finish(refusal)
}

func (m exchangeStep) deadlineRefusal() *actor.Refusal {
	refusal := actor.Refuse(actor.Deadline, "%s: timeout: no time is left", m.order.Who)
	refusal.Operation = "invoke " + m.order.Who
	if len(m.attempts) > 0 {
		refusal.Timeout = m.order.Deadline.Sub(m.attempts[0].At)
	}
	return refusal
}

func (m exchangeStep) recordAttempt(refusal *actor.Refusal) {
	a := &m.attempts[len(m.attempts)-1]
	a.Took, a.Refusal = m.now.Sub(a.At), refusal
}

func (m exchangeStep) report(r Report) Advice {
	r.First, r.Probe = len(m.attempts) == 1, m.probe
	return m.pacer.Report(m.now, r, m.draw)
}

func (m exchangeStep) finish(refusal *actor.Refusal) {
	m.flush()
	outcome := Outcome{Refusal: refusal, Attempts: m.attempts}
	if m.decoder != nil {
		outcome.Completion = m.decoder.Completion()
	}
	m.phase = ended
	m.ops = append(m.ops, Ended{outcome})
}

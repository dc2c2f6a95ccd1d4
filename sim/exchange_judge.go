// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/upstream"
)

// exchangeJudge checks one exchange against its servers: what they sent, as far as it
// arrived, determines what the exchange may forward, whether it may retry, and how it
// ends. The judge knows the answers of the servers as values, and decodes no bytes.
type exchangeJudge struct {
	x            *exchange
	config       upstream.ExchangeConfig // with defaults
	deadline     actor.Time
	attempts     []judgedAttempt
	pieces       string     // pieces forwarded in the current attempt
	due          actor.Time // latest time at which the pieces that arrived are forwarded; 0: none waits
	firstFailure actor.Time // 0: none
	reached      int        // failed attempts that may have reached the server
	retryAt      actor.Time // announced start of the next attempt
	waiting      bool       // for retryAt
	contact      actor.Time // last input from the server, or start of the attempt
	ended        bool
	health       *judgedHealth // of an external agent; nil for a model
	probes       bool          // the invocation is the probe of a circuit
	failingSince actor.Time    // the agent was known to be unreachable since then when the exchange began
}

// judgedAttempt is one attempt and its input.
type judgedAttempt struct {
	conn   *upstreamConn
	at     actor.Time
	status int // 0: no head arrived
	bytes  int // of the body
	headAt actor.Time
	over   bool // the body ended, or the connection was lost
	whole  bool // the body ended, and all of it arrived
	unsent bool
	barred bool // the egress policy refused the connection
	closed bool
	model  bool // the server is that of a model
	judged bool // its result was reported to the pacing judge
}

// served is what a server sends on one connection.
type served struct {
	pieces  string               // text and states, in order
	marks   []mark               // ends of complete frames
	text    string               // the text of pieces
	unknown []string             // names of events that the API does not define; may have duplicates
	answer  *upstream.Completion // the whole answer; nil until the server has sent it
	verdict *verdict             // the meaning of a canned response; nil: an answer
	forged  bool                 // garbage was inserted: the judge knows nothing
	cut     bool                 // the end of the answer was lost
}

// mark is the end of a frame: the number of bytes of the body, and the length of the
// pieces that these bytes hold.
type mark struct{ bytes, pieces int }

// addText appends text that the server sends.
func (s *served) addText(text string) {
	text = strings.ToValidUTF8(text, "\uFFFD")
	s.text += text
	s.pieces += text
}

// addState appends a state that the server sends.
func (s *served) addState(state, detail string) { s.pieces += statePiece(state, detail) }

// statePiece returns a state as a part of the list of pieces. The separator occurs in
// no text.
func statePiece(state, detail string) string { return "\x00" + state + "\x00" + detail + "\x00" }

// Bounds that the documentation promises, in bytes and time.
const (
	promisedOutputBytesMax  = 512 << 10
	promisedPieceBytesMax   = 256
	promisedPieceDelayMax   = 50 * time.Millisecond
	promisedErrorBodyWait   = 2 * time.Second
	promisedAgentPatience   = 24 * time.Hour
	promisedModelHeadWait   = 2 * time.Minute
	promisedModelIdleWait   = time.Minute
	promisedSilenceIsBroken = 10 * time.Second
	promisedRetryBurst      = 500
)

func newExchangeJudge(x *exchange, config upstream.ExchangeConfig) *exchangeJudge {
	l := &config.AttemptLimits
	head, idle := promisedModelHeadWait, promisedModelIdleWait
	if !config.Model {
		head, idle = promisedAgentPatience, promisedAgentPatience
	}
	l.Head, l.Idle = durationOr(l.Head, head), durationOr(l.Idle, idle)
	r := &l.Retry
	r.Delay, r.DelayMax, r.Time = durationOr(r.Delay, 2*time.Second), durationOr(r.DelayMax, 15*time.Second), durationOr(r.Time, 30*time.Second)
	if r.Tries == 0 {
		r.Tries = 5
	}
	j := &exchangeJudge{x: x, config: config, deadline: config.Deadline}
	if !config.Model {
		j.health = x.n.judgedHealth(x.call.To.Agent)
	}
	return j
}

func (j *exchangeJudge) fail(property, format string, args ...any) {
	j.x.n.w.fail(property, fmt.Sprintf("%s of run %s: ", j.config.Upstream, j.x.id.Run.Short())+fmt.Sprintf(format, args...))
}

func (j *exchangeJudge) now() actor.Time { return j.x.n.w.now }

// last returns the last attempt, or nil.
func (j *exchangeJudge) last() *judgedAttempt {
	if len(j.attempts) == 0 {
		return nil
	}
	return &j.attempts[len(j.attempts)-1]
}

// open reports whether an attempt is in progress.
func (j *exchangeJudge) open() bool { a := j.last(); return a != nil && !a.closed }

// input records an input before the exchange processes it.
func (j *exchangeJudge) input(conn *upstreamConn, in upstream.Input) {
	if in, ok := in.(upstream.Adjust); ok {
		j.deadline = in.Deadline
	}
	a := j.last()
	if conn == nil || a == nil || a.conn != conn || a.closed || j.now() >= j.deadline {
		return
	}
	switch in := in.(type) {
	case upstream.Head:
		a.status, a.headAt, j.contact = in.Status, j.now(), j.now()
		if in.Status == 200 {
			j.x.pacing.head(conn)
		}
		j.headArrived(in)
	case upstream.Bytes:
		a.bytes += len(in.Bytes)
		j.contact = j.now()
		j.arrived(a)
	case upstream.End:
		a.over, a.whole = true, a.bytes == conn.bodyBytes
	case upstream.Loss:
		a.over, a.unsent, a.barred = true, !in.Sent, in.Final
	}
}

// arrived records that all bytes of some pieces have arrived. The first piece is
// forwarded at once, later ones soon.
func (j *exchangeJudge) arrived(a *judgedAttempt) {
	s := &a.conn.served
	if s.forged || a.status != 200 || s.verdict != nil {
		return
	}
	complete := 0
	for _, m := range s.marks {
		if a.bytes >= m.bytes {
			complete = m.pieces
		}
	}
	switch {
	case complete <= len(j.pieces), mayBeginSecret(a.conn.request, s.pieces[len(j.pieces):complete]):
	case j.pieces == "":
		j.due = j.now()
	case j.due == 0:
		j.due = j.now().Add(promisedPieceDelayMax)
	}
}

// maskedMin is the length from which a key is masked in answers.
const maskedMin = 16

// mayBeginSecret reports whether the end of an answer may be the beginning of a key of its request. It is
// held back until that is known, so that no key is passed on in pieces.
func mayBeginSecret(r upstream.Request, end string) bool {
	for _, secret := range secretsOf(r) {
		if len(secret) >= maskedMin && len(end) < len(secret) && strings.EqualFold(secret[:len(end)], end) {
			return true
		}
	}
	return false
}

// op checks an operation of the exchange. A Send is checked before its connection
// exists.
func (j *exchangeJudge) op(op upstream.Op) {
	if j.ended {
		j.fail(ExchangeEnds, "%T after the end", op)
		return
	}
	switch op := op.(type) {
	case upstream.Send:
		j.send(op)
	case upstream.Close:
		if a := j.last(); a != nil && op.Attempt == len(j.attempts) {
			a.closed = true
		}
	case upstream.Forward:
		j.forward(op.Delta)
	case upstream.Retry:
		j.retry(op)
	case upstream.Ended:
		j.ended = true
		j.end(op.Outcome)
	}
}

// connected records the connection of the last Send.
func (j *exchangeJudge) connected(conn *upstreamConn) {
	j.attempts = append(j.attempts, judgedAttempt{conn: conn, at: j.now(), model: j.config.Model})
	j.contact, j.pieces, j.due, j.waiting = j.now(), "", 0, false
	j.x.pacing.sent(conn)
}

func (j *exchangeJudge) send(op upstream.Send) {
	if audit := &j.x.n.w.Stats.Audit; j.retryAt > 0 {
		audit.ExchangeEnds++
	}
	switch {
	case j.open():
		j.fail(ExchangeEnds, "attempt %d begins before the one before it has ended", op.Attempt)
	case op.Attempt != len(j.attempts)+1:
		j.fail(ExchangeEnds, "attempt %d follows attempt %d", op.Attempt, len(j.attempts))
	case j.now() >= j.deadline:
		j.fail(ExchangeEnds, "attempt %d begins at its deadline or later", op.Attempt)
	case j.now() < j.retryAt:
		j.fail(UpstreamSpared, "attempt %d begins %v before the announced time", op.Attempt, j.retryAt.Sub(j.now()))
	case len(j.attempts) == 0 && !j.healthy():
		j.fail(HealthHolds, "begins although the agent was last seen %v ago, unwell %v, and not reached %v ago",
			j.now().Sub(j.health.seen), j.health.unwell, j.now().Sub(j.health.unreached))
	}
	if j.health != nil && len(j.attempts) == 0 {
		if why := j.health.circuit.forbids(j.now()); why != "" {
			j.fail(BreakerIsolates, "begins: %s", why)
		}
		j.health.circuit.started(j)
		j.failingSince = j.health.unreachedSince
	}
	if why := j.x.pacing.forbids(j.now()); why != "" {
		j.fail(UpstreamSpared, "attempt %d begins: %s", op.Attempt, why)
	}
}

// forward checks a piece: it continues what the server has sent in this attempt, and
// has the promised size.
func (j *exchangeJudge) forward(d upstream.Delta) {
	a := j.last()
	switch {
	case a == nil:
		j.fail(AnswerAsSent, "a piece is forwarded before the first attempt")
		return
	case d.State == "" && (d.Text == "" || len(d.Text) > promisedPieceBytesMax || !utf8.ValidString(d.Text)):
		j.fail(AnswerAsSent, "forwards a piece of %d bytes, %.40q", len(d.Text), d.Text)
	}
	if d.State != "" {
		j.pieces += statePiece(d.State, d.Detail)
	}
	j.pieces += d.Text
	j.due = 0
	if s := &a.conn.served; !s.forged && !strings.HasPrefix(s.pieces, j.pieces) {
		j.fail(AnswerAsSent, "forwards %.80q, but the server sent %.80q", tail(j.pieces), tail(s.pieces))
	}
}

// tail returns the last bytes of a text.
func tail(text string) string { return text[max(0, len(text)-80):] }

// class returns the class of the failure of an attempt, or 0 if it is not known.
func (a *judgedAttempt) class() upstream.Class {
	s := &a.conn.served
	switch {
	case a.unsent && a.status == 0:
		return upstream.Unreached
	case s.forged || len(s.text) > promisedOutputBytesMax/2:
		return 0
	case a.status == 200 && s.verdict != nil && s.verdict.agent == actor.Unavailable && !a.model:
		return upstream.Broken // an answer that is no event stream
	case a.status != 0 && s.verdict != nil:
		return s.verdict.class
	}
	return upstream.Broken
}

// after returns the delay that the server requested.
func (a *judgedAttempt) after() actor.Duration {
	if v := a.conn.served.verdict; v != nil && a.status != 0 && !a.conn.served.forged {
		return v.delay(a.headAt)
	}
	return 0
}

// window returns the maximum delay before the next attempt, apart from what the server
// requests.
func (j *exchangeJudge) window() actor.Duration {
	d := j.config.Retry.Delay
	for range len(j.attempts) - 1 {
		d = min(2*d, j.config.Retry.DelayMax)
	}
	return min(d, j.config.Retry.DelayMax)
}

// failed records that the last attempt failed. It returns the latest start of a retry.
func (j *exchangeJudge) failed(a *judgedAttempt) (until actor.Time) {
	a.judged = true
	if wait := j.patience(a); a.class() == upstream.Broken && !a.over && a.conn.served.verdict == nil && j.now() < j.contact.Add(wait) {
		j.fail(ExchangeEnds, "attempt %d ends after a silence of %v, want %v", len(j.attempts), j.now().Sub(j.contact), wait)
	}
	if s := &a.conn.served; a.class() == upstream.Broken && a.whole && s.answer != nil && s.verdict == nil && !s.cut {
		j.fail(AnswerAsSent, "attempt %d fails, although its whole answer arrived", len(j.attempts))
	}
	if len(j.attempts) == 1 {
		j.x.pacing.first()
	}
	j.x.pacing.failed(a.conn, a.class(), a.after())
	if a.class() != upstream.Unreached {
		j.reached++
	}
	switch {
	case j.firstFailure != 0:
	case a.class() == upstream.Unreached && j.failingSince != 0:
		j.firstFailure = j.failingSince
	default:
		j.firstFailure = j.now()
	}
	return j.firstFailure.Add(j.config.Retry.Time)
}

// retry checks that the failed attempt may be repeated, and when.
func (j *exchangeJudge) retry(op upstream.Retry) {
	a := j.last()
	if a == nil || !a.closed {
		j.fail(ExchangeEnds, "a retry is announced during an attempt")
		return
	}
	until, class := j.failed(a), a.class()
	j.checkSecrets(op.Failure.Refusal)
	switch {
	case class == upstream.Refused || a.barred:
		j.fail(UpstreamSpared, "attempt %d is repeated, although the server refused it with status %d", len(j.attempts), a.status)
	case class == upstream.Broken && !j.config.Safe:
		j.fail(UpstreamSpared, "attempt %d is repeated, although the server may have processed it", len(j.attempts))
	case class != 0 && op.Failure.Class != class:
		j.fail(AnswerAsSent, "attempt %d counts as %s, want %s: status %d", len(j.attempts), op.Failure.Class, class, a.status)
	case j.reached >= j.config.Retry.Tries:
		j.fail(UpstreamSpared, "attempt %d is repeated, after %d of at most %d", len(j.attempts), j.reached, j.config.Retry.Tries)
	case op.At < j.now().Add(a.after()) || op.At >= j.deadline || op.At > until || op.At > j.now().Add(a.after()+j.window()):
		j.fail(UpstreamSpared, "retry of attempt %d after %v: the server requested %v, the delay is at most %v, and retries end in %v",
			len(j.attempts), op.At.Sub(j.now()), a.after(), j.window(), min(until, j.deadline).Sub(j.now()))
	}
	j.checkReason(a, op.Failure.Refusal)
	j.retryAt, j.waiting = op.At, true
	if !j.x.pacing.spend(class) {
		j.fail(UpstreamSpared, "attempt %d is repeated beyond the retry budget of %d", len(j.attempts), j.x.pacing.burst)
	}
}

// end checks the outcome.
func (j *exchangeJudge) end(o upstream.Outcome) {
	a := j.last()
	j.checkRecord(o)
	j.checkSecrets(o.Refusal)
	late, aborted := j.now() >= j.deadline, false
	if cancelled := j.x.done && o.Refusal != nil && o.Refusal.Reason == actor.Stopped; a != nil && !a.judged && (late || cancelled || a.barred) {
		if a.judged, aborted = true, true; len(j.attempts) == 1 {
			j.x.pacing.first()
		}
		j.x.pacing.aborted(a.conn, j.now().Sub(j.contact) >= promisedSilenceIsBroken)
	}
	switch {
	case o.Refusal == nil:
		j.checkAnswer(a, &o.Completion, o.Warnings)
	case o.Completion.Finish != upstream.NoFinish:
		j.fail(AnswerAsSent, "a refused answer has finish reason %s", o.Completion.Finish)
	case j.x.done: // cancelled, or no longer awaited
		if a != nil && !a.judged {
			j.failed(a)
		}
	case late:
		if o.Refusal.Reason != actor.Deadline {
			j.fail(ExchangeEnds, "ends at its deadline as %v", o.Refusal)
		}
	case a == nil:
		j.checkAdmission(o.Refusal)
	default:
		j.checkFailure(a, o.Refusal)
	}
	if j.health != nil {
		j.recordHealth(&o, aborted)
	}
}

// healthy reports whether a model is asked, or the external agent is healthy.
func (j *exchangeJudge) healthy() bool { return j.health == nil || j.health.healthy(j.now()) }

// checkAdmission checks an exchange that ends before its first attempt.
func (j *exchangeJudge) checkAdmission(r *actor.Refusal) {
	if !j.healthy() {
		j.x.n.w.Stats.Audit.HealthHolds++
	}
	if !j.x.pacing.admits(j.now()) {
		j.x.n.w.Stats.Audit.UpstreamSpared++
	}
	if j.health != nil && j.health.circuit.forbids(j.now()) != "" {
		j.x.n.w.Stats.Audit.BreakerIsolates++
	} else if j.x.pacing.admits(j.now()) && j.healthy() {
		property := UpstreamSpared
		if j.health != nil {
			property = BreakerIsolates
		}
		j.fail(property, "refused without an attempt, although nothing forbids one: %v", r)
	}
	if r.Reason != actor.Unavailable && r.Reason != actor.Busy || r.RetryAfter <= 0 {
		j.fail(AnswerAsSent, "refused without an attempt as %v, to be repeated after %v", r, r.RetryAfter)
	}
}

// checkFailure checks the refusal of an exchange whose last attempt failed. While the
// exchange waits for its next attempt, the failure of others may end it.
func (j *exchangeJudge) checkFailure(a *judgedAttempt, r *actor.Refusal) {
	if j.waiting {
		if r.Reason != actor.Busy {
			j.checkReason(a, r)
		}
		return
	}
	if a.barred {
		if r.Reason != actor.Rejected {
			j.fail(AnswerAsSent, "a connection that the egress policy refuses ends as %v", r)
		}
		return
	}
	until, class := j.failed(a), a.class()
	after := a.after()
	latest := j.now().Add(after + j.window())
	if mayRepeat := class == upstream.Throttled || class == upstream.Unreached || class == upstream.Broken && j.config.Safe; mayRepeat && j.config.Retry.Tries > 1 && j.reached < j.config.Retry.Tries &&
		latest < j.deadline && j.now().Add(after) < until && j.now() < until && j.x.pacing.credit >= 100 {
		j.fail(UpstreamSpared, "attempt %d is not repeated, although it may be within %v: %v", len(j.attempts), min(until, j.deadline).Sub(j.now()), r)
	}
	if class == upstream.Broken && !j.config.Safe {
		if r.Reason != actor.Unknown {
			j.fail(AnswerAsSent, "the server may have processed the request, want Unknown, got %v", r)
		}
		return
	}
	j.checkReason(a, r)
	if class != 0 && class != upstream.Refused && r.Reason == actor.Unavailable && r.RetryAfter <= 0 {
		j.fail(AnswerAsSent, "the upstream may recover, and the refusal names no delay: %v", r)
	}
}

// checkReason checks the refusal that reports a failed attempt.
func (j *exchangeJudge) checkReason(a *judgedAttempt, r *actor.Refusal) {
	want := actor.Unavailable
	switch v := a.conn.served.verdict; {
	case a.class() == 0 || a.barred:
		return
	case v != nil && a.status != 0 && j.config.Model:
		want = v.model
	case v != nil && a.status != 0:
		want = v.agent
	}
	if r.Reason != want {
		j.fail(AnswerAsSent, "attempt %d with status %d fails as %v, want %s", len(j.attempts), a.status, r, want)
	}
	if want == actor.Busy && r.Scope != actor.ScopeCallee {
		j.fail(AnswerAsSent, "attempt %d fails as %v with scope %s", len(j.attempts), r, r.Scope)
	}
	if r.RetryAfter < a.after() {
		j.fail(AnswerAsSent, "attempt %d fails with a delay of %v, but the server requested %v", len(j.attempts), r.RetryAfter, a.after())
	}
}

// checkAnswer checks a complete answer: it is what the server sent, all of it was
// forwarded, its size is bounded, and a warning names what an agent sent in place of text.
func (j *exchangeJudge) checkAnswer(a *judgedAttempt, c *upstream.Completion, warnings []string) {
	if a == nil || j.open() {
		j.fail(ExchangeEnds, "succeeds without an attempt, or during one")
		return
	}
	if a.judged = true; len(j.attempts) == 1 {
		j.x.pacing.first()
	}
	j.x.pacing.close()
	j.x.n.w.Stats.Audit.AnswerAsSent++
	s := &a.conn.served
	switch {
	case len(c.Text) > promisedOutputBytesMax:
		j.fail(AnswerAsSent, "has an answer of %d bytes", len(c.Text))
	case s.forged:
		return
	case a.status != 200 || s.answer == nil:
		j.fail(AnswerAsSent, "succeeds with status %d, but the server sent no answer", a.status)
		return
	case c.Text != s.text || j.pieces != s.pieces:
		j.fail(AnswerAsSent, "has the answer %.80q and forwarded %.80q, but the server sent %.80q", c.Text, j.pieces, s.pieces)
	case c.Finish != s.answer.Finish || c.Model != s.answer.Model || !slices.EqualFunc(c.Calls, s.answer.Calls, sameCall):
		j.fail(AnswerAsSent, "has finish reason %s of model %q with calls %+v, want %s of %q with %+v", c.Finish, c.Model, c.Calls, s.answer.Finish, s.answer.Model, s.answer.Calls)
	case !j.config.Model && !s.warned(warnings):
		j.fail(AnswerAsSent, "has the text %.80q and the warnings %q, but the server sent the events %q, which the API does not define", c.Text, warnings, s.unknown)
	case c.Usage != s.answer.Usage && !(s.cut && !c.Usage.Known):
		j.fail(AnswerAsSent, "has usage %+v, want %+v", c.Usage, s.answer.Usage)
	}
}

// warned reports whether the warnings are those of the answer of an external agent.
func (s *served) warned(warnings []string) bool {
	if s.text != "" || len(s.unknown) == 0 {
		return len(warnings) == 0
	}
	return len(warnings) == 1 && !slices.ContainsFunc(s.unknown, func(name string) bool { return !strings.Contains(warnings[0], fmt.Sprintf("%q", name)) })
}

func sameCall(got, sent upstream.ToolCall) bool {
	sent.Arguments = strings.ToValidUTF8(sent.Arguments, "\uFFFD")
	got.Name = strings.ReplaceAll(got.Name, ".", "_") // models see names without dots
	sent.Name = strings.ReplaceAll(sent.Name, ".", "_")
	if sent.ID == "" {
		got.ID = ""
	}
	return got == sent
}

// checkRecord checks the record of the attempts.
func (j *exchangeJudge) checkRecord(o upstream.Outcome) {
	if len(o.Attempts) != len(j.attempts) {
		j.fail(AnswerAsSent, "records %d attempts, want %d", len(o.Attempts), len(j.attempts))
		return
	}
	for i, r := range o.Attempts {
		a := &j.attempts[i]
		succeeded := o.Refusal == nil && i == len(j.attempts)-1
		if r.At != a.at || r.Status != a.status || r.Bytes != a.bytes || (r.Refusal == nil) != succeeded {
			j.fail(AnswerAsSent, "records attempt %d as %+v, want status %d, %d bytes at %v", i+1, r, a.status, a.bytes, a.at)
		}
		j.checkSecrets(r.Refusal)
	}
}

// checkSecrets checks that a refusal quotes no secret of the request.
func (j *exchangeJudge) checkSecrets(r *actor.Refusal) {
	for _, secret := range secretsOf(j.config.Request) {
		secret = secret[:min(len(secret), 16)] // also not a part of it
		if r != nil && strings.Contains(r.Detail+r.Operation+r.Field, secret) {
			j.fail(NobodyAstray, "the refusal quotes a secret: %v", r)
		}
	}
}

// secretsOf returns the secrets that a request presents, by the names of its headers.
func secretsOf(r upstream.Request) (all []string) {
	for _, h := range r.Headers {
		if h.Name == "authorization" || h.Name == "x-run-token" {
			all = append(all, strings.TrimPrefix(h.Value, "Bearer "))
		}
	}
	return all
}

// piecesSent returns the length of the pieces that the server of an attempt sent.
func piecesSent(a *judgedAttempt) int {
	if a == nil {
		return 0
	}
	return len(a.conn.served.pieces)
}

// patience returns the maximum silence of a server in an attempt.
func (j *exchangeJudge) patience(a *judgedAttempt) actor.Duration {
	switch a.status {
	case 0:
		return j.config.Head
	case 200:
		return j.config.Idle
	}
	return promisedErrorBodyWait
}

// stepped checks the exchange after a step: it has ended, or it will be stepped in time.
func (j *exchangeJudge) stepped() {
	if j.ended {
		return
	}
	limit, a := j.deadline, j.last()
	if j.open() && a.over && a.conn == j.x.conn {
		j.fail(ExchangeEnds, "continues attempt %d, whose response is over", len(j.attempts))
	}
	if j.due != 0 && j.open() {
		limit = min(limit, j.due)
		j.arrived(a)
	}
	if j.open() {
		limit = min(limit, j.contact.Add(j.patience(a)))
	}
	if due, ok := j.x.machine.NextDeadline(); !ok || due > limit && limit >= j.now() || j.now() >= j.deadline {
		j.fail(ExchangeEnds, "continues until %v, want a step by %v; %d of %d bytes of its pieces were forwarded", due.Sub(Origin), limit.Sub(Origin), len(j.pieces), piecesSent(a))
	}
}

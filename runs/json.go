// SPDX-License-Identifier: Apache-2.0

package runs

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/internal/invariant"
)

// Encode returns the event as JSON; see Append.
func Encode(e Event) []byte { return Append(nil, e) }

// Append appends the event as one line of JSON without a line end: always the same
// members in the same order, durations in whole milliseconds, content truncated to
// its bound. It panics if Check fails, because events are never built from
// unchecked input.
func Append(b []byte, e Event) []byte {
	b, err := appendChecked(b, e)
	if err != nil {
		invariant.Check(false, "runs: %v", err)
	}
	return b
}

// EncodeChecked is Encode for an event that is derived from stored data. It returns the
// error of Check.
func EncodeChecked(e Event) ([]byte, error) { return appendChecked(nil, e) }

func appendChecked(b []byte, e Event) ([]byte, error) { return appendEvent(b, e, true) }

// appendEvent appends an event with its ID, or as earlier versions have stored it.
func appendEvent(b []byte, e Event, withID bool) ([]byte, error) {
	e.fit()
	if err := e.Check(); err != nil {
		return b, err
	}
	o := object{b: append(slices.Grow(b, 320+len(e.Text)), '{')}
	o.id("run_id", e.Run)
	o.int("seq", int64(e.Seq))
	if withID {
		o.name("event_id")
		o.b = append(strconv.AppendUint(append(e.Run.AppendTo(append(o.b, '"')), '.'), e.Seq, 10), '"')
	}
	o.time("ts", e.At)
	o.text("type", e.Type.String())
	o.name("payload")
	p := object{b: append(o.b, '{')}
	p.payload(&e)
	return append(p.b, "}}"...), nil
}

// payload encodes the mandatory fields of the event's type and the optional fields
// that are set.
func (o *object) payload(e *Event) {
	for set := types[e.Type].has | e.nonZero(); set != 0; set &= set - 1 {
		o.field(set&-set, e)
	}
}

// field encodes one field.
func (o *object) field(f fields, e *Event) {
	switch f {
	case fActor:
		o.actor(e.Actor)
	case fKind:
		o.text("kind", e.Kind)
	case fOperation:
		o.text("operation", e.Operation)
	case fPrincipal:
		o.text("principal", e.Principal)
	case fOrigin:
		o.text("origin", e.Origin)
	case fProject:
		o.text("project_id", e.Project)
	case fRoot:
		o.id("root_run_id", e.Root)
	case fParent:
		o.id("parent_run_id", e.Parent)
	case fDepth:
		o.int("call_depth", int64(e.Depth))
		o.chain("call_chain", e.Chain)
	case fLeft:
		o.millis("time_left_ms", e.Left)
	case fAsked:
		o.millis("asked_ms", e.Asked)
	case fPosition:
		o.int("step", int64(e.Step))
		o.int("index", int64(e.Index))
	case fName:
		o.text("name", e.Name)
	case fChild:
		o.id("child_run_id", e.Child)
	case fUntil:
		o.time("until", e.Until)
	case fAttempt:
		o.int("attempt", int64(e.Attempt))
	case fStatus:
		o.text("status", e.Status.String())
	case fText:
		o.text("text", e.Text)
		o.flag("truncated", e.Truncated)
	case fWarnings:
		o.texts("warnings", e.Warnings)
	case fRefusal:
		o.refusal("error", e.Refusal)
	case fDiscards:
		o.int("discards_after", int64(e.Discards))
	case fTook:
		o.millis("took_ms", e.Took)
	case fUsage:
		o.usage("usage", e.Usage, e.Type == AgentInvokeDone)
	case fPriority:
		o.text("priority", e.Priority)
	case fTrace:
		o.text("trace_id", e.Trace)
	case fClaimed:
		o.id("claimed_run_id", e.Claimed)
	case fApproval:
		o.text("approval_id", e.Approval)
	case fRequest:
		o.text("request_id", e.Request)
	case fKey:
		o.text("key_id", e.Key)
	case fChannel:
		o.text("channel", e.Channel)
	}
}

// object encodes the members of one JSON object.
type object struct {
	b     []byte
	begun bool
}

func (o *object) name(name string) {
	if o.begun {
		o.b = append(o.b, ',')
	}
	o.begun = true
	o.b = append(append(append(o.b, '"'), name...), '"', ':') // member names need no escaping
}

func (o *object) id(name string, id actor.CallID) {
	o.name(name)
	o.b = append(id.AppendTo(append(o.b, '"')), '"')
}

func (o *object) text(name, v string)               { o.name(name); o.b = quote(o.b, v) }
func (o *object) int(name string, v int64)          { o.name(name); o.b = strconv.AppendInt(o.b, v, 10) }
func (o *object) millis(n string, d actor.Duration) { o.int(n, int64(d/time.Millisecond)) }

func (o *object) time(name string, t actor.Time) {
	o.name(name)
	o.b = append(AppendTime(append(o.b, '"'), t), '"')
}

func (o *object) flag(name string, v bool) {
	if v {
		o.name(name)
		o.b = append(o.b, "true"...)
	}
}

func (o *object) actor(id actor.ID) {
	o.text("agent_id", id.Agent)
	o.name("actor")
	o.b = appendID(o.b, id)
}

func appendID(b []byte, id actor.ID) []byte {
	at := len(b)
	if b = id.AppendTo(append(b, '"')); plainASCII(b[at+1:]) {
		return append(b, '"')
	}
	return quote(b[:at], id.String())
}

func (o *object) texts(name string, all []string) {
	o.name(name)
	o.b = append(o.b, '[')
	for i, s := range all {
		if i > 0 {
			o.b = append(o.b, ',')
		}
		o.b = quote(o.b, s)
	}
	o.b = append(o.b, ']')
}

func (o *object) chain(name string, chain []actor.ID) {
	o.name(name)
	o.b = append(o.b, '[')
	for i, id := range chain {
		if i > 0 {
			o.b = append(o.b, ',')
		}
		o.b = appendID(o.b, id)
	}
	o.b = append(o.b, ']')
}

// usage encodes usage. It is claimed if an external agent has reported it: no budget is reduced by it.
func (o *object) usage(name string, u Usage, claimed bool) {
	o.name(name)
	p := object{b: append(o.b, '{')}
	p.int("input_tokens", u.Input)
	p.int("output_tokens", u.Output)
	p.int("total_tokens", u.Total)
	if u.Cached > 0 {
		p.int("cached_tokens", u.Cached)
	}
	if u.Priced > 0 {
		p.int("cost_micros", u.Cost)
		if rest := u.Unpriced(); rest > 0 {
			p.int("unpriced_tokens", rest)
		}
	}
	if claimed {
		p.flag("claimed", true)
	}
	o.b = append(p.b, '}')
}

// AppendUsage appends the members of an object that show the usage of a run and of its
// tree, each if it is known. The object MUST have a member already.
func AppendUsage(b []byte, run, tree Usage) []byte {
	o := object{b: b, begun: true}
	o.usages(run, tree)
	return o.b
}

// usages encodes the usage of a run and of its tree, each if it is known.
func (o *object) usages(run, tree Usage) {
	if run != (Usage{}) {
		o.usage("usage", run, false)
	}
	if tree != (Usage{}) {
		o.usage("tree_usage", tree, false)
	}
}

// AppendRefusal appends a refusal as runs and events show it.
func AppendRefusal(b []byte, r *actor.Refusal) []byte {
	var o object
	o.refusal("", r)
	_, value, _ := bytes.Cut(o.b, []byte(":"))
	return append(b, value...)
}

func (o *object) refusal(name string, r *actor.Refusal) {
	o.name(name)
	info := r.Reason.Info()
	p := object{b: append(o.b, '{')}
	p.text("type", info.Error)
	p.text("code", info.Type)
	p.text("reason", r.Reason.String())
	p.text("message", r.Error())
	p.text("detail", r.Detail)
	if r.Scope != actor.NoScope {
		p.text("scope", r.Scope.String())
	}
	if r.Field != "" {
		p.text("field", r.Field)
	}
	if len(r.Chain) > 0 {
		p.chain("call_chain", r.Chain)
	}
	if r.RetryAfter > 0 {
		p.millis("retry_after_ms", r.RetryAfter)
	}
	if r.Code != "" {
		p.text("reported_code", r.Code)
	}
	if r.Operation != "" {
		p.text("operation", r.Operation)
	}
	if r.Timeout > 0 {
		p.millis("timeout_ms", r.Timeout)
	}
	o.b = append(p.b, '}')
}

func quote(b []byte, text string) []byte {
	if plainASCII(text) {
		return append(append(append(b, '"'), text...), '"')
	}
	b, _ = jsontext.AppendQuote(b, text) // invalid UTF-8 is replaced
	return b
}

// plainASCII reports whether text needs no escaping in JSON.
func plainASCII[T string | []byte](text T) bool {
	for i := range len(text) {
		if c := text[i]; c < ' ' || c > '~' || c == '"' || c == '\\' {
			return false
		}
	}
	return true
}

// Decode decodes the output of Append and rejects everything else: accepted input
// encodes to the same bytes again. It never panics.
func Decode(b []byte) (Event, error) {
	if len(b) > EventBytesMax {
		return Event{}, fmt.Errorf("event: %d bytes are over %d", len(b), EventBytesMax)
	}
	var l eventJSON
	if err := json.Unmarshal(b, &l, json.RejectUnknownMembers(true)); err != nil {
		return Event{}, fmt.Errorf("event: %s", describeJSONError(err))
	}
	e, err := l.event()
	if err == nil {
		err = e.Check()
	}
	if err != nil {
		return Event{}, fmt.Errorf("event: %w", err)
	}
	encoded := Encode(e)
	if l.ID == "" {
		encoded, err = appendEvent(nil, e, false)
	}
	if err != nil || !bytes.Equal(encoded, b) {
		at := 0
		for at < min(len(b), len(encoded)) && b[at] == encoded[at] {
			at++
		}
		return Event{}, fmt.Errorf("event: byte %d: not in canonical form", at)
	}
	return e, nil
}

// DecodePart decodes an event of which a server may show a part: to the user of an app it shows the code of a refusal and no
// text, and of most events only the type. Members may be absent or in another order, and unknown ones are ignored.
func DecodePart(b []byte) (Event, error) {
	if len(b) > EventBytesMax {
		return Event{}, fmt.Errorf("event: %d bytes are over %d", len(b), EventBytesMax)
	}
	var l eventJSON
	if err := json.Unmarshal(b, &l); err != nil {
		return Event{}, fmt.Errorf("event: %s", describeJSONError(err))
	}
	e, err := l.event()
	if err == nil && (e.Run.IsZero() || e.Seq == 0 || e.Type == 0) {
		err = fmt.Errorf("want the run, the number and the type of an event, got type %.40q", l.Type)
	}
	if err != nil {
		return Event{}, fmt.Errorf("event: %w", err)
	}
	return e, nil
}

// TypeOf returns the type of an event in the format of Append without decoding the
// rest, or 0 if b is no such event.
func TypeOf(b []byte) Type {
	_, rest, _ := bytes.Cut(b[min(len(b), typeOffsetMin):min(len(b), typeOffsetMax)], typeMember)
	name, _, ended := bytes.Cut(rest, []byte{'"'})
	if !ended {
		return 0
	}
	return byTypeName[string(name)]
}

var typeMember = []byte(`"type":"`)

// Bounds of the offset of the type, which follows run, number and time.
const (
	typeOffsetMin = len(`{"run_id":"00000000-0000-0000-0000-000000000000","seq":1,"ts":"`)
	typeOffsetMax = 256
)

// describeJSONError returns the cause and the position of a JSON error in
// deterministic words. The library varies some of its messages between processes.
func describeJSONError(err error) string {
	var syntax *jsontext.SyntacticError
	var semantic *json.SemanticError
	switch {
	case errors.As(err, &syntax):
		return fmt.Sprintf("byte %d %s: %v", syntax.ByteOffset, syntax.JSONPointer, syntax.Err)
	case errors.As(err, &semantic) && errors.Is(err, json.ErrUnknownName):
		return fmt.Sprintf("byte %d %s: unknown member", semantic.ByteOffset, semantic.JSONPointer)
	case errors.As(err, &semantic):
		return fmt.Sprintf("byte %d %s: value of the wrong type", semantic.ByteOffset, semantic.JSONPointer)
	default:
		return "not JSON: unexpected end"
	}
}

// eventJSON is the decoded form of an event, with every member that any event has.
// Properties that it does not check are checked by the byte comparison in Decode.
type eventJSON struct {
	Run     string `json:"run_id"`
	Seq     uint64 `json:"seq"`
	ID      string `json:"event_id"` // of run and number
	TS      string `json:"ts"`
	Type    string `json:"type"`
	Payload struct {
		Agent     string       `json:"agent_id"`
		Actor     string       `json:"actor"`
		Kind      string       `json:"kind"`
		Operation string       `json:"operation"`
		Principal string       `json:"principal"`
		Origin    string       `json:"origin"`
		Project   string       `json:"project_id"`
		Root      string       `json:"root_run_id"`
		Parent    string       `json:"parent_run_id"`
		Depth     int          `json:"call_depth"`
		Chain     []string     `json:"call_chain"`
		Left      int64        `json:"time_left_ms"`
		Asked     int64        `json:"asked_ms"`
		Step      uint32       `json:"step"`
		Index     uint16       `json:"index"`
		Name      string       `json:"name"`
		Child     string       `json:"child_run_id"`
		Until     string       `json:"until"`
		Attempt   uint32       `json:"attempt"`
		Status    string       `json:"status"`
		Text      string       `json:"text"`
		Truncated bool         `json:"truncated"`
		Warnings  []string     `json:"warnings"`
		Error     *refusalJSON `json:"error"`
		Discards  uint64       `json:"discards_after"`
		Took      int64        `json:"took_ms"`
		Usage     struct {
			Input  int64 `json:"input_tokens"`
			Output int64 `json:"output_tokens"`
			Total  int64 `json:"total_tokens"`

			Cached   int64  `json:"cached_tokens"`
			Cost     *int64 `json:"cost_micros"`
			Unpriced int64  `json:"unpriced_tokens"`

			Claimed bool `json:"claimed"` // follows from the type
		} `json:"usage"`
		Priority string `json:"priority"`
		Trace    string `json:"trace_id"`
		Claimed  string `json:"claimed_run_id"`
		Approval string `json:"approval_id"`
		Request  string `json:"request_id"`
		Key      string `json:"key_id"`
		Channel  string `json:"channel"`
	} `json:"payload"`
}

type refusalJSON struct {
	Type       string   `json:"type"`
	Code       string   `json:"code"`
	Reason     string   `json:"reason"`
	Message    string   `json:"message"`
	Detail     string   `json:"detail"`
	Scope      string   `json:"scope"`
	Field      string   `json:"field"`
	Reported   string   `json:"reported_code"`
	Chain      []string `json:"call_chain"`
	RetryAfter int64    `json:"retry_after_ms"`
	Operation  string   `json:"operation"`
	Timeout    int64    `json:"timeout_ms"`
}

func (l *eventJSON) event() (e Event, err error) {
	p := &l.Payload
	e = Event{
		Seq: l.Seq, Kind: p.Kind, Operation: p.Operation, Principal: p.Principal, Origin: p.Origin, Project: p.Project,
		Depth: p.Depth, Step: p.Step, Index: p.Index, Name: p.Name, Attempt: p.Attempt,
		Text: p.Text, Truncated: p.Truncated, Warnings: p.Warnings, Discards: p.Discards, Usage: Usage{Input: p.Usage.Input, Output: p.Usage.Output, Total: p.Usage.Total, Cached: p.Usage.Cached}, Priority: p.Priority, Trace: p.Trace, Approval: p.Approval, Request: p.Request, Key: p.Key, Channel: p.Channel,
	}
	if p.Usage.Cost != nil {
		e.Usage.Priced, e.Usage.Cost = p.Usage.Total-p.Usage.Unpriced, *p.Usage.Cost
	}
	parseInto(&err, &e.Run, l.Run, actor.ParseCallID)
	parseInto(&err, &e.At, l.TS, ParseTime)
	parseInto(&err, &e.Type, l.Type, ParseType)
	parseInto(&err, &e.Actor, p.Actor, actor.ParseID)
	parseInto(&err, &e.Root, p.Root, actor.ParseCallID)
	parseInto(&err, &e.Parent, p.Parent, actor.ParseCallID)
	parseInto(&err, &e.Chain, p.Chain, parseChain)
	parseInto(&err, &e.Left, p.Left, fromMillis)
	parseInto(&err, &e.Asked, p.Asked, fromMillis)
	parseInto(&err, &e.Took, p.Took, fromMillis)
	parseInto(&err, &e.Child, p.Child, actor.ParseCallID)
	parseInto(&err, &e.Claimed, p.Claimed, actor.ParseCallID)
	parseInto(&err, &e.Until, p.Until, ParseTime)
	parseInto(&err, &e.Status, p.Status, parseEnd)
	parseInto(&err, &e.Refusal, p.Error, (*refusalJSON).refusal)
	return e, err
}

func (l *refusalJSON) refusal() (*actor.Refusal, error) {
	if l == nil {
		return nil, nil
	}
	r := &actor.Refusal{Detail: l.Detail, Field: l.Field, Code: l.Reported, Operation: l.Operation}
	var err error
	if parseInto(&err, &r.Reason, l.Reason, parseReason); l.Reason == "" { // see DecodePart
		parseInto(&err, &r.Reason, l.Code, parseCode)
	}
	parseInto(&err, &r.Scope, l.Scope, parseScope)
	if r.Reason == actor.NotFound {
		r.What = actor.WhatOf(l.Field)
	}
	parseInto(&err, &r.Chain, l.Chain, parseChain)
	parseInto(&err, &r.RetryAfter, l.RetryAfter, fromMillis)
	parseInto(&err, &r.Timeout, l.Timeout, fromMillis)
	return r, err
}

// parseInto parses a member into to. It does nothing if the member is absent or if
// err already holds the error of an earlier member.
func parseInto[F, T any](err *error, to *T, from F, parse func(F) (T, error)) {
	if s, ok := any(from).(string); ok && s == "" || *err != nil {
		return
	}
	*to, *err = parse(from)
}

func fromMillis(ms int64) (actor.Duration, error) {
	const maxMillis = int64(1<<63-1) / int64(time.Millisecond)
	if ms < 0 || ms > maxMillis {
		return 0, fmt.Errorf("%d: invalid duration in milliseconds", ms)
	}
	return actor.Duration(ms) * time.Millisecond, nil
}

func parseChain(texts []string) ([]actor.ID, error) {
	if len(texts) > actor.ChainMax {
		return nil, fmt.Errorf("chain of %d actors", len(texts))
	}
	var chain []actor.ID
	for _, text := range texts {
		id, err := actor.ParseID(text)
		if err != nil {
			return nil, err
		}
		chain = append(chain, id)
	}
	return chain, nil
}

// parseEnd, parseReason and parseScope return the value with the given name.
func parseEnd(text string) (actor.Status, error) {
	return byName("status", text, []actor.Status{actor.Succeeded, actor.Partial, actor.Failed})
}

func parseReason(text string) (actor.Reason, error) {
	return byName("reason", text, actor.Reasons())
}

// parseCode returns the reason with a code, which an event has in addition to its name.
func parseCode(text string) (actor.Reason, error) {
	i := slices.IndexFunc(actor.Reasons(), func(r actor.Reason) bool { return r.Info().Type == text })
	if i < 0 {
		return 0, fmt.Errorf("code %.40q: no reason has it", text)
	}
	return actor.Reasons()[i], nil
}

func parseScope(text string) (actor.Scope, error) {
	return byName("scope", text, []actor.Scope{actor.ScopeCaller, actor.ScopeCallee, actor.ScopeNode})
}

func byName[T fmt.Stringer](what, text string, all []T) (T, error) {
	i := slices.IndexFunc(all, func(v T) bool { return v.String() == text })
	if i < 0 {
		var none T
		return none, fmt.Errorf("%s %.40q: want one of %v", what, text, all)
	}
	return all[i], nil
}

// SPDX-License-Identifier: Apache-2.0

package contract

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/internal/invariant"
	"github.com/troupe-run/troupe/tools"
)

// The messages of detached calls. The callee needs to know none of them but the first one: whatever
// it answers becomes a SkillResponse.

// ModeExecute is the mode of an invocation that names none.
const ModeExecute = "execute"

// Invocation asks an agent for a skill. Its correlation, return address and time are those of the
// server, never those of an agent.
type Invocation struct {
	Skill       string
	Mode        string
	Input       jsontext.Value // an object
	Correlation actor.CallID
	ReturnTo    actor.ID // whose session gets the outcome
	Timeout     actor.Duration
}

// ReturnAddress returns ReturnTo as the callee sees it.
func (v *Invocation) ReturnAddress() string { return tools.ReturnAddress(v.ReturnTo) }

// Encode returns the message for the callee. Without Correlation or ReturnTo it is not told of them; the time goes
// with the address.
func (v *Invocation) Encode() []byte {
	all := []member{{"kind", quoted("skill_invocation")}, {"skill", quoted(v.Skill)}, {"mode", quoted(v.Mode)}, {"input", v.Input}}
	if !v.Correlation.IsZero() {
		all = append(all, member{"correlationId", quoted(v.Correlation.String())})
	}
	if v.ReturnTo != (actor.ID{}) {
		all = append(all, member{"returnTo", quoted(v.ReturnAddress())}, member{"timeout", number(v.Timeout.Milliseconds())})
	}
	return encodeMembers(all)
}

// Correlation identifies a detached call to its asker. The run of the callee has the ID of the call.
type Correlation struct {
	Call   actor.CallID
	Client string // what the asker has given as its own; "" if nothing
}

func (c Correlation) members() []member {
	all := []member{{"correlationId", quoted(c.Call.String())}, {"taskId", quoted(c.Call.String())}}
	if c.Client != "" {
		all = append(all, member{"clientCorrelationId", quoted(c.Client)})
	}
	return all
}

// ClientCorrelationMax is the maximum length of Correlation.Client in bytes.
const ClientCorrelationMax = tools.ClientCorrelationMax

// Pending returns the immediate answer to the agent that makes a detached call.
func Pending(c Correlation) []byte {
	return encodeMembers(append([]member{{"status", quoted("pending")}}, c.members()...))
}

// PendingCalls returns the immediate answer to the agent that makes several detached calls, of these agents. The
// outcomes of silent ones are not delivered.
func PendingCalls(agents []string, calls []Correlation, silent bool) []byte {
	status := "pending"
	if silent {
		status = "working"
	}
	all := make([]jsontext.Value, len(calls))
	for i := range calls {
		all[i] = encodeMembers(append([]member{{"agent", quoted(agents[i])}}, calls[i].members()...))
	}
	return encodeMembers([]member{{"status", quoted(status)}, {"calls", invariant.Must(json.Marshal(all))}})
}

// Forgotten returns the immediate answer to the agent that makes a detached call whose outcome it does not want.
func Forgotten(c Correlation) []byte {
	return encodeMembers(append([]member{{"status", quoted("working")}}, c.members()...))
}

// Task is a detached call without an outcome, as its asker reads it.
type Task struct {
	Correlation
	Agent, Skill string
	At           actor.Time
	Timeout      actor.Duration
	Late         bool // the asker no longer waits
	Cancelled    bool // it is a reminder that does not come
	Waits        actor.Hold
}

// Encode returns the task as JSON.
func (t *Task) Encode() []byte {
	status := "working"
	switch {
	case t.Cancelled:
		status = "cancelled"
	case t.Late:
		status = "timeout"
	}
	all := append([]member{{"status", quoted(status)}}, t.members()...)
	all = append(all, member{"agent", quoted(t.Agent)}, member{"skill", quoted(t.Skill)}, member{"startTime", number(int64(t.At) / 1_000_000)})
	if !t.Late && !t.Cancelled {
		all = append(all, member{"timeout", number(t.Timeout.Milliseconds())})
	}
	return encodeMembers(append(all, waiting(t.Waits)...))
}

// EncodeTasks returns tasks as a list in JSON.
func EncodeTasks(tasks []Task) []byte {
	all := make([]jsontext.Value, len(tasks))
	for i := range tasks {
		all[i] = tasks[i].Encode()
	}
	return encodeMembers([]member{{"tasks", invariant.Must(json.Marshal(all))}})
}

// IsOutcome reports whether the message of a detached call is its outcome, and no notice.
func IsOutcome(message string) bool {
	return strings.HasPrefix(message, `{"kind":"skill_response"`) || strings.HasPrefix(message, `{"kind":"skill_timeout"`) || strings.HasPrefix(message, `{"kind":"reminder"`)
}

func number(n int64) jsontext.Value { return jsontext.Value(strconv.FormatInt(n, 10)) }

// SkillResponse is the outcome of a detached call whose callee has ended.
type SkillResponse struct {
	Output      jsontext.Value
	Confidence  float64
	Assumptions []string
	Caveats     []string
}

// SkillInputMax is the maximum size of the input of an invocation in bytes, without spaces between its tokens.
const SkillInputMax = 256 << 10

// SkillOutputMax is the maximum size of the output in a SkillResponse in bytes. A longer one is replaced by
// the beginning of its text.
const SkillOutputMax = 128 << 10

// skillTextsMax is the maximum number of assumptions, and of caveats.
const skillTextsMax = 32

// ReadSkill reads what a callee has answered: an object with the members of a SkillResponse, alone
// or in a fenced block, any other object, or a text. The caller's own caveats follow those of the
// answer.
func ReadSkill(answer string, caveats ...string) SkillResponse {
	r := SkillResponse{Confidence: TextConfidence, Assumptions: []string{}, Caveats: []string{}}
	text := fenced(answer)
	members, err := membersOf([]byte(text), lenient)
	object := strictObject(jsontext.Value(text))
	switch {
	case err != nil || object == nil:
		if strings.HasPrefix(text, "{") {
			r.Confidence = BrokenConfidence
		}
		r.Output = quoted(answer)
	case lastOf(members, "output") == nil:
		r.Output = object
	default:
		r.Output = strictValue(lastOf(members, "output"))
	}
	if err == nil {
		if number, ok := readNumber(lastOf(members, "confidence")); ok {
			r.Confidence = number
		}
		r.Assumptions, r.Caveats = skillTexts(lastOf(members, "assumptions")), skillTexts(lastOf(members, "caveats"))
	}
	r.Caveats = append(r.Caveats, caveats...)
	if n := len(r.Output); n > SkillOutputMax {
		head := string(r.Output)
		if t, ok := textOf(r.Output); ok {
			head = t
		}
		head = actor.FitText(head, SkillOutputMax/2) // an escaped character has up to 6 bytes, and most have one
		for len(quoted(head)) > SkillOutputMax {
			head = actor.FitText(head, len(head)/2)
		}
		r.Output = quoted(head)
		r.Caveats = append(r.Caveats, fmt.Sprintf("the output has %d bytes as JSON, and these are the first of them: the whole one is in the run of this taskId", n))
	}
	return r
}

// readNumber reads a confidence: a number from 0 to 1, or the name of a level.
func readNumber(v jsontext.Value) (float64, bool) {
	if text, ok := textOf(v); ok {
		i := slices.Index(confidenceNames, strings.ToUpper(strings.TrimSpace(text)))
		return Confidence(max(i, 0)).Number(), i > 0
	}
	number, err := strconv.ParseFloat(string(v), 64)
	return number, err == nil && number >= 0 && number <= 1
}

// skillTexts reads a list of texts, or a text that is meant as one.
func skillTexts(v jsontext.Value) []string {
	var r Response
	texts := r.readTexts("", v)
	if len(texts) > skillTextsMax {
		texts = texts[:skillTextsMax]
	}
	for i := range texts {
		texts[i] = actor.FitText(texts[i], actor.TextBytesMax)
	}
	return append([]string{}, texts...)
}

// Encode returns the message for the asker.
func (r *SkillResponse) Encode(c Correlation) []byte {
	return encodeMembers(append(append([]member{{"kind", quoted("skill_response")}}, c.members()...),
		member{"status", quoted("completed")}, member{"output", r.Output}, member{"confidence", jsontext.Value(strconv.FormatFloat(r.Confidence, 'f', -1, 64))},
		member{"assumptions", list(r.Assumptions)}, member{"caveats", list(r.Caveats)}))
}

// SkillError returns the message for the asker of a call that a refusal ended.
func SkillError(c Correlation, r *actor.Refusal) []byte {
	failure := encodeMembers([]member{{"code", quoted(r.Info().Type)}, {"message", quoted(r.Error())}})
	return encodeMembers(append(append([]member{{"kind", quoted("skill_response")}}, c.members()...), member{"status", quoted("error")}, member{"error", failure}))
}

// SkillTimeout returns the message for the asker of a call whose time has passed. A callee that waits for a
// person says so by the ID of the approval.
func SkillTimeout(c Correlation, after actor.Duration, waits actor.Hold) []byte {
	all := append(append([]member{{"kind", quoted("skill_timeout")}}, c.members()...), member{"status", quoted("timeout")},
		member{"message", quoted(fmt.Sprintf("Agent call timed out after %dms", after.Milliseconds()))})
	return encodeMembers(append(all, waiting(waits)...))
}

// Reminder returns the message of a reminder.
func Reminder(c Correlation, text string) []byte {
	return encodeMembers(append(append([]member{{"kind", quoted("reminder")}}, c.members()...), member{"status", quoted("completed")}, member{"text", quoted(text)}))
}

// CancelledReminder returns what is read of a reminder that does not come.
func CancelledReminder(c Correlation, text string) []byte {
	return encodeMembers(append(append([]member{{"kind", quoted("reminder")}}, c.members()...), member{"status", quoted("cancelled")}, member{"text", quoted(text)}))
}

// IsCancelledReminder reports whether a message is the result of CancelledReminder.
func IsCancelledReminder(message []byte) bool {
	var m struct{ Kind, Status string }
	return json.Unmarshal(message, &m, json.MatchCaseInsensitiveNames(true)) == nil && m.Kind == "reminder" && m.Status == "cancelled"
}

// SkillWaiting returns the message for the asker of a call whose callee waits for the decision of a person. It
// is no outcome.
func SkillWaiting(c Correlation, waits actor.Hold) []byte {
	return encodeMembers(append(append([]member{{"kind", quoted("skill_waiting")}}, c.members()...), append([]member{{"status", quoted("waiting")}}, waiting(waits)...)...))
}

// waiting returns the member that says what a callee waits for, if it is the decision of a person.
func waiting(h actor.Hold) []member {
	if !h.Reason.AwaitsDecision() {
		return nil
	}
	return []member{{"waiting", encodeMembers([]member{{"approval", quoted(h.Subject)}})}}
}

func quoted(text string) jsontext.Value {
	return invariant.Must(json.Marshal(strings.ToValidUTF8(text, "\uFFFD")))
}

func list(texts []string) jsontext.Value {
	return invariant.Must(json.Marshal(texts, jsontext.AllowInvalidUTF8(true)))
}

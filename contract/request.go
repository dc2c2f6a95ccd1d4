// SPDX-License-Identifier: Apache-2.0

package contract

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/internal/invariant"
	"github.com/troupe-run/troupe/internal/nearest"
)

// TimeoutDefault is the timeout of a request that names none, for a capability without its own.
const TimeoutDefault = 30 * time.Second

// timeoutMax bounds a requested timeout. The runtime clamps it further.
const timeoutMax = 24 * time.Hour

// Codes returns the codes of agents that every installation knows. An agent may have any other
// code, or none: then its ID addresses it.
func Codes() []string {
	return []string{"ORC", "ANL", "AUD", "CHA", "SPO", "DOC", "PRF", "CST", "CHG"}
}

// Request is the envelope of a request. Inputs and Context are JSON objects, with the digits of
// the sender.
type Request struct {
	Source, Target string // code or ID of an agent
	Capability     string
	ID             string // request_id
	Inputs         jsontext.Value
	Priority       actor.Lane
	Timeout        actor.Duration // 0: that of the capability
	Context        jsontext.Value // nil: none
	Session, User  string         // from Context
	Correlation    string         // "": the request begins a workflow
}

// requestField is a member of the envelope. Read sets it, or returns the rule that it breaks.
type requestField struct {
	name     string
	required bool
	read     func(r *Request, v jsontext.Value) (rule string)
}

// priorities are the words for the lanes, from High to Low.
var priorities = []string{"HIGH", "NORMAL", "LOW"}

var requestFields = []requestField{
	{"request_id", true, func(r *Request, v jsontext.Value) string {
		text, ok := textOf(v)
		if !ok || len(text) > IDBytesMax || !requestID.MatchString(text) {
			return "want a UUID, or a session and a time as in sess-789-20250118-143022"
		}
		r.ID = text
		return ""
	}},
	{"source_agent", true, func(r *Request, v jsontext.Value) string { return readAgent(&r.Source, v) }},
	{"target_agent", true, func(r *Request, v jsontext.Value) string { return readAgent(&r.Target, v) }},
	{"capability_code", true, func(r *Request, v jsontext.Value) string {
		text, ok := textOf(v)
		if !ok || !isCode(text) {
			return "want a code of capitals, digits and '_' such as DOC_GENERATE"
		}
		r.Capability = text
		return ""
	}},
	{"inputs_json", true, func(r *Request, v jsontext.Value) string {
		if v.Kind() != '{' {
			return "want an object with the inputs of the capability"
		}
		r.Inputs = v
		return ""
	}},
	{"priority", false, func(r *Request, v jsontext.Value) string {
		text, _ := textOf(v)
		i := slices.Index(priorities, text)
		if i < 0 {
			return "want HIGH, NORMAL or LOW"
		}
		r.Priority = actor.High + actor.Lane(i)
		return ""
	}},
	{"timeout_ms", false, func(r *Request, v jsontext.Value) string {
		ms, err := strconv.ParseInt(string(v), 10, 64)
		if err != nil || ms < 1 || ms > timeoutMax.Milliseconds() {
			return fmt.Sprintf("want a whole number of milliseconds from 1 to %d", timeoutMax.Milliseconds())
		}
		r.Timeout = actor.Duration(ms) * time.Millisecond
		return ""
	}},
	{"context", false, func(r *Request, v jsontext.Value) string { return r.readContext(v) }},
	{"correlation_id", false, func(r *Request, v jsontext.Value) string {
		text, ok := textOf(v)
		if !ok || text == "" || len(text) > IDBytesMax || !actor.IsLine(text) {
			return fmt.Sprintf("want a line of 1 to %d bytes", IDBytesMax)
		}
		r.Correlation = text
		return ""
	}},
}

// requestID matches a UUID, or a session followed by a date and a time.
var requestID = regexp.MustCompile(`^([0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}|[A-Za-z0-9._-]+-[0-9]{4}(0[1-9]|1[0-2])(0[1-9]|[12][0-9]|3[01])-([01][0-9]|2[0-3])[0-5][0-9]([0-5][0-9]|60))$`)

func readAgent(to *string, v jsontext.Value) (rule string) {
	text, ok := textOf(v)
	if !ok || actor.CheckName(text) != nil {
		return "want the code of an agent such as ANL, or its ID"
	}
	*to = text
	return ""
}

func (r *Request) readContext(v jsontext.Value) (rule string) {
	if v.Kind() != '{' || len(v) > ContextBytesMax {
		return fmt.Sprintf("want an object of at most %d bytes", ContextBytesMax)
	}
	members, err := membersOf(v)
	if err != nil {
		return err.Error()
	}
	for _, m := range members {
		var to *string
		switch m.name {
		case "session_id":
			to = &r.Session
		case "user_id":
			to = &r.User
		default:
			continue
		}
		text, ok := textOf(m.value)
		if !ok || len(text) > IDBytesMax {
			return fmt.Sprintf("%s: want a text of at most %d bytes", m.name, IDBytesMax)
		}
		*to = text
	}
	r.Context = v
	return ""
}

// DecodeRequest decodes and checks the envelope of a request. With a Violation the request has the
// ID that could be read, for the answer.
func DecodeRequest(b []byte) (Request, *Violation) {
	r := Request{Priority: actor.Normal}
	if len(b) > EnvelopeBytesMax {
		return r, violation(InputInvalid, "", "%d bytes exceed the maximum of %d", len(b), EnvelopeBytesMax)
	}
	members, err := membersOf(b)
	if err != nil {
		return r, violation(InputInvalid, "", "%v", err)
	}
	var first *Violation
	note := func(v *Violation) {
		if first == nil {
			first = v
		}
	}
	for _, f := range requestFields {
		i := slices.IndexFunc(members, func(m member) bool { return m.name == f.name })
		switch {
		case i >= 0 && !(f.required && members[i].value.Kind() == 'n'):
			if rule := f.read(&r, members[i].value); rule != "" {
				note(violation(InputInvalid, f.name, "%s", rule))
			}
		case f.required:
			note(violation(InputMissing, f.name, "is missing"))
		}
	}
	for _, m := range members {
		if !slices.ContainsFunc(requestFields, func(f requestField) bool { return f.name == m.name }) {
			note(violation(InputInvalid, fmt.Sprintf("%.80s", m.name), "%s", unknownMember(m.name)))
		}
	}
	return r, first
}

// IsRequest reports whether a JSON object is meant as the envelope of a request: it has a member that
// no other request to an agent has.
func IsRequest(b []byte) bool {
	if !bytes.Contains(b, []byte(`_agent"`)) && !bytes.Contains(b, []byte(`"capability_code"`)) && !bytes.Contains(b, []byte(`"inputs_json"`)) {
		return false
	}
	members, _ := membersOf(b)
	return slices.ContainsFunc(members, func(m member) bool {
		return m.name == "capability_code" || m.name == "inputs_json" || m.name == "source_agent" || m.name == "target_agent"
	})
}

func unknownMember(name string) string {
	names := make([]string, 0, len(requestFields))
	for _, f := range requestFields {
		names = append(names, f.name)
	}
	if near := nearest.Of(name, names); near != "" {
		return "is no member of a request; did you mean " + near + "?"
	}
	return "is no member of a request; want one of " + strings.Join(names, ", ")
}

// Encode returns the JSON form of a valid request.
func (r *Request) Encode() []byte {
	return invariant.Must(json.Marshal(struct {
		Source      string         `json:"source_agent"`
		Target      string         `json:"target_agent"`
		Capability  string         `json:"capability_code"`
		ID          string         `json:"request_id"`
		Priority    string         `json:"priority"`
		Timeout     int64          `json:"timeout_ms,omitzero"`
		Inputs      jsontext.Value `json:"inputs_json"`
		Context     jsontext.Value `json:"context,omitzero"`
		Correlation string         `json:"correlation_id,omitzero"`
	}{r.Source, r.Target, r.Capability, r.ID, priorities[max(r.Priority, actor.High)-actor.High], r.Timeout.Milliseconds(), r.Inputs, r.Context, r.Correlation}))
}

// Key returns the idempotency key of a request. A request_id is exact to a second only, so it does
// not identify a request by itself. A repeat has the same source, ID and content, and gets the
// answer of the first one. The same ID with another content is a new request.
func (r *Request) Key() string {
	content := jsontext.Value(r.Encode())
	err := content.Canonicalize(jsontext.CanonicalizeRawInts(false), jsontext.CanonicalizeRawFloats(false))
	invariant.Check(err == nil, "contract: canonical form of a request: %v", err)
	sum := sha256.Sum256(content)
	return "request-" + hex.EncodeToString(sum[:])
}

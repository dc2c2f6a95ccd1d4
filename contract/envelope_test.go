// SPDX-License-Identifier: Apache-2.0

package contract

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/troupe-run/troupe/actor"
)

const (
	someID      = "sess-1-20250118-143022"
	someRequest = `{"source_agent":"CST","target_agent":"ANL","capability_code":"ANL_NPV","request_id":"` + someID + `","inputs_json":{"rate":0.12}}`
)

// with returns an envelope with a member set, or without it if value is "".
func with(t *testing.T, envelope, name, value string) string {
	t.Helper()
	members := mustMembers(t, jsontext.Value(envelope))
	i := slices.IndexFunc(members, func(m member) bool { return m.name == name })
	switch {
	case i >= 0 && value == "":
		members = slices.Delete(members, i, i+1)
	case i >= 0:
		members[i].value = jsontext.Value(value)
	case value != "":
		members = append(members, member{name, jsontext.Value(value)})
	}
	return string(encodeMembers(members))
}

// Each rule of a request: the member, its value, and the violation; "" is a valid one. The JSON
// Schema agrees, but for what it cannot say.
func TestRulesOfRequests(t *testing.T) {
	for _, c := range []struct {
		member, value, want string
		unsaid              bool // the schema accepts it
	}{
		{"source_agent", ``, "DATA_MISSING_REQUIRED_INPUT source_agent: is missing", false},
		{"source_agent", `null`, "DATA_MISSING_REQUIRED_INPUT source_agent: is missing", false},
		{"source_agent", `"research-team"`, "", false},
		{"source_agent", `"agent:a:b"`, "INPUT_VALIDATION_FAILED source_agent: want the code of an agent", false},
		{"target_agent", ``, "DATA_MISSING_REQUIRED_INPUT target_agent: is missing", false},
		{"target_agent", `""`, "INPUT_VALIDATION_FAILED target_agent: want the code of an agent", false},
		{"target_agent", `7`, "INPUT_VALIDATION_FAILED target_agent: want the code of an agent", false},
		{"capability_code", ``, "DATA_MISSING_REQUIRED_INPUT capability_code: is missing", false},
		{"capability_code", `"anl_npv"`, "INPUT_VALIDATION_FAILED capability_code: want a code of capitals", false},
		{"capability_code", `"NPV"`, "INPUT_VALIDATION_FAILED capability_code: want a code of capitals", false},
		{"request_id", ``, "DATA_MISSING_REQUIRED_INPUT request_id: is missing", false},
		{"request_id", `"123E4567-e89b-12d3-a456-426614174000"`, "", false},
		{"request_id", `"abc123-20250118-143022"`, "", false},
		{"request_id", `"abc123"`, "INPUT_VALIDATION_FAILED request_id: want a UUID, or a session and a time", false},
		{"request_id", `"abc123-20251318-143022"`, "INPUT_VALIDATION_FAILED request_id: want a UUID", false},
		{"request_id", `"abc123-20250118-253022"`, "INPUT_VALIDATION_FAILED request_id: want a UUID", false},
		{"inputs_json", ``, "DATA_MISSING_REQUIRED_INPUT inputs_json: is missing", false},
		{"inputs_json", `null`, "DATA_MISSING_REQUIRED_INPUT inputs_json: is missing", false},
		{"inputs_json", `[]`, "INPUT_VALIDATION_FAILED inputs_json: want an object", false},
		{"inputs_json", `"{}"`, "INPUT_VALIDATION_FAILED inputs_json: want an object", false},
		{"inputs_json", `{}`, "", false},
		{"priority", `"HIGH"`, "", false},
		{"priority", `"high"`, "INPUT_VALIDATION_FAILED priority: want HIGH, NORMAL or LOW", false},
		{"priority", `null`, "INPUT_VALIDATION_FAILED priority: want HIGH, NORMAL or LOW", false},
		{"timeout_ms", `1`, "", false},
		{"timeout_ms", `0`, "INPUT_VALIDATION_FAILED timeout_ms: want a whole number of milliseconds from 1 to 86400000", false},
		{"timeout_ms", `1.5`, "INPUT_VALIDATION_FAILED timeout_ms: want a whole number", false},
		{"timeout_ms", `"100"`, "INPUT_VALIDATION_FAILED timeout_ms: want a whole number", false},
		{"timeout_ms", `1e30`, "INPUT_VALIDATION_FAILED timeout_ms: want a whole number", false},
		{"context", `{"engagement_type":"audit","state":{"deep":[1]}}`, "", false},
		{"context", `"s"`, "INPUT_VALIDATION_FAILED context: want an object", false},
		{"context", `{"session_id":7}`, "INPUT_VALIDATION_FAILED context: session_id: want a text", false},
		{"context", `{"big":"` + strings.Repeat("x", ContextBytesMax) + `"}`, "INPUT_VALIDATION_FAILED context: want an object of at most 65536 bytes", true},
		{"context_ref", `"ctx-7"`, "INPUT_VALIDATION_FAILED context_ref: is no member of a request; want one of request_id", false}, // a context is given by value
		{"correlation_id", `"wf-7"`, "", false},
		{"correlation_id", `""`, "INPUT_VALIDATION_FAILED correlation_id: want a line", false},
		{"correlation_id", `"a\nb"`, "INPUT_VALIDATION_FAILED correlation_id: want a line", true},
		{"prioritie", `"HIGH"`, "INPUT_VALIDATION_FAILED prioritie: is no member of a request; did you mean priority?", false},
		{"x", `1`, "INPUT_VALIDATION_FAILED x: is no member of a request; want one of request_id, source_agent", false},
	} {
		b := with(t, someRequest, c.member, c.value)
		r, v := DecodeRequest([]byte(b))
		got := ""
		if v != nil {
			got = v.Code + " " + v.Error()
		}
		if !strings.HasPrefix(got, c.want) || (got == "") != (c.want == "") {
			t.Errorf("%s %.60s: got %q, want %q", c.member, c.value, got, c.want)
		}
		if c.member != "request_id" && r.ID != someID {
			t.Errorf("%s %.60s: the ID is lost: %q", c.member, c.value, r.ID)
		}
		if err := checkSchema(t, "request", []byte(b)); (err == nil) != (c.want == "" || c.unsaid) {
			t.Errorf("%s %.60s: the schema says %v, want %q", c.member, c.value, err, c.want)
		}
		if v == nil {
			if again, v := DecodeRequest(r.Encode()); v != nil || again.Key() != r.Key() {
				t.Errorf("%s %.60s: read again: %v", c.member, c.value, v)
			}
		}
	}
}

func TestRequestsThatAreNoEnvelope(t *testing.T) {
	for text, want := range map[string]string{
		``: "want a JSON object", `[]`: "want a JSON object", `null`: "want a JSON object",
		`{"request_id":`:             "want JSON, which ends too early",
		`{"a":1,"a":2}`:              "want each member once",
		`{"a":tru}`:                  "want JSON, which is invalid at byte 8",
		`{} {}`:                      "want one JSON object, and nothing after it",
		`{"a":"` + "\xff" + `"}`:     "want JSON",
		strings.Repeat(" ", 1+1<<20): "1048577 bytes exceed the maximum of 1048576",
	} {
		if _, v := DecodeRequest([]byte(text)); v == nil || v.Code != InputInvalid || !strings.Contains(v.Error(), want) {
			t.Errorf("%.40q: got %v, want %q", text, v, want)
		}
	}
}

// A repeat has the same source, ID and content, however it is spelt. Digits beyond those of a
// float64 count.
func TestRepeatsOfRequests(t *testing.T) {
	key := func(text string) string {
		t.Helper()
		r, v := DecodeRequest([]byte(text))
		if v != nil {
			t.Fatal(v)
		}
		return r.Key()
	}
	first := key(with(t, someRequest, "inputs_json", `{"amount":12345678901234567,"note":"é"}`))
	if got := key(" " + with(t, strings.Replace(someRequest, `"CST"`, `"C\u0053T"`, 1), "inputs_json", `{ "note":"\u00e9", "amount":12345678901234567 }`)); got != first {
		t.Error("another spelling is another request")
	}
	for _, c := range [][2]string{{"inputs_json", `{"amount":12345678901234568,"note":"é"}`}, {"request_id", `"sess-1-20250118-143023"`}, {"source_agent", `"ORC"`}, {"timeout_ms", `5`}} {
		if key(with(t, with(t, someRequest, "inputs_json", `{"amount":12345678901234567,"note":"é"}`), c[0], c[1])) == first {
			t.Errorf("another %s is a repeat", c[0])
		}
	}
}

// What agents answer, what is understood of it, and what is not.
func TestAnswersOfAgents(t *testing.T) {
	plain := func(result string) string {
		return `{"request_id":"` + someID + `","status":"SUCCESS","confidence_level":"MEDIUM","result_json":` + result + `}`
	}
	const whole = `{"request_id":"` + someID + `","status":"SUCCESS","confidence_level":"HIGH","result_json":{"npv":24156.72}}`
	for name, c := range map[string]struct {
		answer, want string // the envelope, or the violation
		notes        int
	}{
		"whole":                           {whole, whole, 0},
		"in a fenced block":               {"Here it is:\n```json\n" + whole + "\n```\nDone.", whole, 0},
		"with a byte order mark":          {"\uFEFF" + whole, whole, 0},
		"without request_id":              {with(t, whole, "request_id", ""), whole, 1},
		"request_id of another":           {with(t, whole, "request_id", `"x"`), "request_id: want that of the request, " + someID, 0},
		"status in lower case":            {with(t, whole, "status", `"success"`), whole, 0},
		"no such status":                  {with(t, whole, "status", `"OK"`), "status: want SUCCESS, PARTIAL, ERROR or TIMEOUT", 0},
		"status null":                     {with(t, whole, "status", `null`), "status: want SUCCESS, PARTIAL, ERROR or TIMEOUT", 0},
		"result as a text":                {with(t, whole, "result_json", `"{\"npv\":24156.72}"`), whole, 1},
		"result null":                     {with(t, whole, "result_json", `null`), "result_json: want an object with status SUCCESS, not null", 0},
		"result missing":                  {with(t, whole, "result_json", ``), "result_json: want an object with status SUCCESS, not null", 0},
		"result a list":                   {with(t, whole, "result_json", `[1]`), "result_json: want an object or null", 0},
		"result with a doubled member":    {with(t, whole, "result_json", `{"a":1,"a":2}`), "result_json: want a JSON object with each member once", 0},
		"digits":                          {with(t, whole, "result_json", `{"n":12345678901234567890,"x":1.10}`), with(t, whole, "result_json", `{"n":12345678901234567890,"x":1.10}`), 0},
		"half a character":                {with(t, whole, "result_json", `{"a":"\ud83d"}`), with(t, whole, "result_json", `{"a":"`+"\uFFFD"+`"}`), 0},
		"confidence as a number":          {with(t, whole, "confidence_level", `0.55`), with(t, whole, "confidence_level", `"MEDIUM"`), 0},
		"confidence under its other name": {with(t, with(t, whole, "confidence_level", ``), "confidence", `0.9`), whole, 0},
		"confidence missing":              {with(t, whole, "confidence_level", ``), "confidence_level: want HIGH, MEDIUM, LOW or SPECULATIVE with status SUCCESS", 0},
		"confidence of another word":      {with(t, whole, "confidence_level", `"SURE"`), "confidence_level: want HIGH, MEDIUM, LOW or SPECULATIVE", 0},
		"confidence above 1":              {with(t, whole, "confidence_level", `7`), "confidence_level: want HIGH, MEDIUM, LOW or SPECULATIVE", 0},
		"error with success":              {with(t, whole, "error_message", `"no"`), whole, 1},
		"member of another":               {with(t, whole, "thoughts", `"long"`), whole, 0},
		"metadata": {with(t, whole, "metadata", `{"cache_status":"hit","processing_time_ms":245.0,"capability_version":1.0,"model":{"a":1},"retry_after_ms":1,"incomplete":"segments"}`),
			with(t, whole, "metadata", `{"processing_time_ms":245,"capability_version":"1.0","cache_status":"hit","incomplete":["segments"],"model":{"a":1}}`), 1},
		"metadata that is none": {with(t, whole, "metadata", `"fast"`), whole, 1},
		"partial": {`{"status":"PARTIAL","confidence_level":"LOW","result_json":null,"warnings":"half"}`,
			`{"request_id":"` + someID + `","status":"PARTIAL","confidence_level":"LOW","result_json":null,"warnings":["half"]}`, 2},
		"partial without warnings": {`{"status":"PARTIAL","confidence_level":"LOW","result_json":{}}`,
			`{"request_id":"` + someID + `","status":"PARTIAL","confidence_level":"LOW","result_json":{},"warnings":[]}`, 1},
		"error": {`{"status":"ERROR","error_code":"data-missing","error_message":"no rate","result_json":{}}`,
			`{"request_id":"` + someID + `","status":"ERROR","error_code":"DATA_MISSING","error_message":"no rate","result_json":null}`, 2},
		"error with a result": {`{"status":"ERROR","error_message":"no rate","result_json":{"a":1}}`,
			`{"request_id":"` + someID + `","status":"ERROR","error_message":"no rate","result_json":null}`, 2},
		"error without a message": {`{"status":"ERROR","error_code":"DATA_MISSING"}`, "error_message: want a sentence with status ERROR", 0},
		"timeout": {`{"status":"TIMEOUT","result_json":{"a":1},"metadata":{"incomplete":["b"]}}`,
			`{"request_id":"` + someID + `","status":"TIMEOUT","result_json":{"a":1},"warnings":[],"metadata":{"incomplete":["b"]}}`, 1},
		"misrouted": {`{"misrouted":{"suggested":"CHA_SIZE"}}`,
			`{"request_id":"` + someID + `","status":"ERROR","error_code":"REQUEST_MISROUTED","error_message":"the request is not for this capability","result_json":null,"metadata":{"misrouted":{"suggested":"CHA_SIZE"}}}`, 1},
		"misrouted in an envelope": {`{"request_id":"` + someID + `","status":"error","error_message":"ask for the size","misrouted":"cha-size"}`,
			`{"request_id":"` + someID + `","status":"ERROR","error_code":"REQUEST_MISROUTED","error_message":"ask for the size","result_json":null,"metadata":{"misrouted":{"suggested":"CHA_SIZE"}}}`, 0},
		"misrouted in metadata": {`{"request_id":"` + someID + `","status":"ERROR","error_code":"SCOPE_OTHER","error_message":"no","metadata":{"misrouted":{"suggested":7}}}`,
			`{"request_id":"` + someID + `","status":"ERROR","error_code":"SCOPE_OTHER","error_message":"no","result_json":null,"metadata":{"misrouted":{}}}`, 0},
		"misrouted with a result": {with(t, whole, "misrouted", `{"suggested":"CHA_SIZE"}`), whole, 1},
		"not misrouted":           {with(t, whole, "misrouted", `false`), whole, 0},
		"misrouted of a result": {`{"misrouted":{"suggested":"CHA_SIZE"},"npv":1}`,
			`{"request_id":"` + someID + `","status":"SUCCESS","confidence_level":"MEDIUM","result_json":{"misrouted":{"suggested":"CHA_SIZE"},"npv":1}}`, 1},
		"alternatives of an agent": {with(t, whole, "metadata", `{"alternatives":["me"],"cache_status":"hit"}`), with(t, whole, "metadata", `{"cache_status":"hit"}`), 0},
		"a text":                   {"It is 7.", `{"request_id":"` + someID + `","status":"SUCCESS","confidence_level":"MEDIUM","result_json":{"text":"It is 7."}}`, 1},
		"the error of a tool": {ToolErrorText(actor.RefuseUnavailable(0, "tool rates.get cannot be reached")),
			`{"request_id":"` + someID + `","status":"ERROR","error_code":"ROUTING_AGENT_UNAVAILABLE","error_message":"error agent_unavailable: Unavailable: tool rates.get cannot be reached","result_json":null}`, 1},
		"a text about an error": {"error handling: see below", plain(`{"text":"error handling: see below"}`), 1},
		"empty":                 {" \n", `{"request_id":"` + someID + `","status":"PARTIAL","confidence_level":"LOW","result_json":null,"warnings":["the answer is empty"]}`, 1},
		"an empty fenced block": {"```json\n```", plain(`{"text":"` + "```json\\n```" + `"}`), 1},
		"broken":                {`{"npv": 7`, `{"request_id":"` + someID + `","status":"SUCCESS","confidence_level":"LOW","result_json":{"text":"{\"npv\": 7"}}`, 1},
		"the result alone": {`{"npv":7,"confidence":0.9}`,
			`{"request_id":"` + someID + `","status":"SUCCESS","confidence_level":"HIGH","result_json":{"npv":7,"confidence":0.9}}`, 1},
		"the result alone with a status of its own": {`{"status":"paid","amount":7}`, plain(`{"status":"paid","amount":7}`), 1},
		"the result of a status that is no text":    {`{"status":{"code":200},"amount":7}`, plain(`{"status":{"code":200},"amount":7}`), 1},
		"a result with a status of the contract":    {`{"status":"success","mail":"m-7"}`, plain(`{"status":"success","mail":"m-7"}`), 1},
		"a result that failed on its own account":   {`{"status":"ERROR","check":"disk"}`, plain(`{"status":"ERROR","check":"disk"}`), 1},
		"a result that is a status alone":           {`{"status":"done"}`, plain(`{"status":"done"}`), 1},
		"a result with a request of its own":        {`{"request_id":"R-17","status":"open"}`, plain(`{"request_id":"R-17","status":"open"}`), 1},
		"a result with an error that is none":       {`{"status":"running","error_message":null,"job":7}`, plain(`{"status":"running","error_message":null,"job":7}`), 1},
		"a declined payment":                        {`{"status":"declined","error_code":"51","card":"visa"}`, plain(`{"status":"declined","error_code":"51","card":"visa"}`), 1},
		"a result with a status in a fenced block":  {"```json\n{\"status\":\"paid\",\"amount\":7}\n```", plain(`{"status":"paid","amount":7}`), 1},
		"an error with a member of its own": {`{"status":"ERROR","error_message":"no rate","order":7}`,
			`{"request_id":"` + someID + `","status":"ERROR","error_message":"no rate","result_json":null}`, 1},
		"an error without a message or another member": {`{"status":"error"}`, "error_message: want a sentence with status ERROR", 0},
		"an error in another word":                     {`{"status":"failed","error_message":"no rate"}`, "status: want SUCCESS, PARTIAL, ERROR or TIMEOUT", 0},
		"a success without its result":                 {`{"status":"SUCCESS","confidence_level":"HIGH"}`, "result_json: want an object with status SUCCESS, not null", 0},
		"a timeout alone":                              {`{"status":"TIMEOUT"}`, `{"request_id":"` + someID + `","status":"TIMEOUT","result_json":null,"warnings":[]}`, 1},
		"too large":                                    {strings.Repeat("x", 1+1<<20), "1048577 bytes exceed the maximum of 1048576", 0},
	} {
		r, v := DecodeResponse(c.answer, someID, DefaultLevels())
		if v != nil {
			if !strings.HasPrefix(v.Error(), c.want) || v.Code != OutputViolation {
				t.Errorf("%s: got %s %v, want %q", name, v.Code, v, c.want)
			}
			bad := Invalid(someID, v)
			if err := checkSchema(t, "response", bad.Encode()); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		if got := string(r.Encode()); got != c.want || len(r.Notes) != c.notes {
			t.Errorf("%s: got  %s %q\nwant %s with %d notes", name, got, r.Notes, c.want, c.notes)
		}
		if err := checkSchema(t, "response", r.Encode()); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestRefusalsAsResponses(t *testing.T) {
	for _, reason := range actor.Reasons() {
		r := Refused(someID, actor.Refuse(reason, "the reason"))
		if v := r.Check(); v != nil || (r.Status == TimedOut) != (reason == actor.Deadline) || r.ErrorMessage != "the reason" {
			t.Errorf("%s: %v, %+v", reason, v, r)
		}
		if err := checkSchema(t, "response", r.Encode()); err != nil {
			t.Errorf("%s: %v", reason, err)
		}
	}
	for own, want := range map[string]string{"DATA_MARKET_UNKNOWN": "DATA_MARKET_UNKNOWN", "data.market-unknown": "DATA_MARKET_UNKNOWN", "oops": "ROUTING_CALL_REJECTED", "": "ROUTING_CALL_REJECTED"} {
		if r := Refused(someID, &actor.Refusal{Reason: actor.Rejected, Code: own, Detail: "no"}); r.ErrorCode != want || r.Check() != nil {
			t.Errorf("code %q of the agent: got %s, want %s", own, r.ErrorCode, want)
		}
	}
	r := Refused(someID, actor.RefuseUnavailable(1500*time.Millisecond, "circuit open"))
	if got := string(r.Encode()); got != `{"request_id":"`+someID+`","status":"ERROR","error_code":"ROUTING_AGENT_UNAVAILABLE","error_message":"circuit open","result_json":null,"metadata":{"retry_after_ms":1500}}` {
		t.Error(got)
	}
}

func TestConfidence(t *testing.T) {
	l := DefaultLevels()
	for number, want := range map[float64]Confidence{1: High, 0.8: High, 0.79: Medium, 0.5: Medium, 0.49: Low, 0.3: Low, 0.29: Speculative, 0: Speculative} {
		if got := l.Of(number); got != want {
			t.Errorf("%v: got %s, want %s", number, got, want)
		}
	}
	for _, c := range []Confidence{Speculative, Low, Medium, High} {
		if got := l.Of(c.Number()); got != c {
			t.Errorf("%s is %v, which is %s", c, c.Number(), got)
		}
	}
	for _, bad := range []Levels{{}, {0.5, 0.5, 0.3}, {2, 0.5, 0.3}, {0.8, 0.5, 0}} {
		if bad.Check() == nil {
			t.Errorf("%v is accepted", bad)
		}
	}
	if l.Check() != nil {
		t.Error(l.Check())
	}
}

// The first violation is reported, in the order of the fields.
func TestFirstViolationIsReported(t *testing.T) {
	_, v := DecodeRequest([]byte(with(t, with(t, someRequest, "target_agent", `""`), "priority", `7`)))
	if v == nil || v.Field != "target_agent" {
		t.Errorf("got %v", v)
	}
}

func TestRulesOfResponses(t *testing.T) {
	object := jsontext.Value(`{}`)
	for want, r := range map[string]Response{
		"":                              {ID: "r", Status: Success, Result: object, Confidence: Low},
		"request_id: is missing":        {Status: Success, Result: object, Confidence: Low},
		"status: want SUCCESS":          {ID: "r", Result: object, Confidence: Low},
		"result_json: want an object w": {ID: "r", Status: Success, Confidence: Low},
		"result_json: want an object o": {ID: "r", Status: Partial, Confidence: Low, Result: jsontext.Value(`7`)},
		"result_json: want null":        {ID: "r", Status: Failed, ErrorMessage: "m", Result: object},
		"confidence_level: want HIGH":   {ID: "r", Status: Partial, Result: object},
		"error_message: want a sen":     {ID: "r", Status: Failed, ErrorCode: "A_B"},
		"error_code: want the form":     {ID: "r", Status: Failed, ErrorCode: "bad", ErrorMessage: "m"},
		"error_code: is for status":     {ID: "r", Status: Success, Result: object, Confidence: Low, ErrorMessage: "m"},
	} {
		got := ""
		if v := r.Check(); v != nil {
			got = v.Error()
		}
		if !strings.HasPrefix(got, want) || (got == "") != (want == "") {
			t.Errorf("%+v: got %q, want %q", r, got, want)
		}
	}
}

// An answer of 2 MiB is refused, whatever it is, and its request gets a response that says so.
func TestLongAnswerIsRefused(t *testing.T) {
	long := strings.Repeat("x", 2<<20)
	for name, answer := range map[string]string{
		"text": long, "result": `{"npv":"` + long + `"}`, "envelope": `{"status":"SUCCESS","confidence_level":"HIGH","result_json":{"npv":"` + long + `"}}`, "fenced": "```json\n{\"npv\":\"" + long + "\"}\n```",
	} {
		r, broken := DecodeResponse(answer, "r-1", DefaultLevels())
		if broken == nil || broken.Code != OutputViolation || !strings.Contains(broken.Rule, "exceed the maximum of") {
			t.Fatalf("%s: got %v with a result of %d bytes", name, broken, len(r.Result))
		}
		if out := Invalid("r-1", broken); out.Check() != nil || out.Status != Failed || len(out.Encode()) > 1<<10 {
			t.Errorf("%s: %s", name, out.Encode())
		}
	}
}

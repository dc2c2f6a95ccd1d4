// SPDX-License-Identifier: Apache-2.0

package contract

import (
	"bytes"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/santhosh-tekuri/jsonschema/v6"
)

// example reads an example of the contract, which is written without the quotes of JSON.
type example struct {
	t    *testing.T
	rest string
}

func readExample(t *testing.T, name string) jsontext.Value {
	t.Helper()
	b, err := os.ReadFile("testdata/" + name + ".txt")
	if err != nil {
		t.Fatal(err)
	}
	_, body, _ := strings.Cut(string(b), "\n") // the name of the envelope
	e := &example{t, "{" + strings.TrimSpace(body) + "}"}
	v := jsontext.Value(e.value())
	if e.skip(); e.rest != "" || !v.IsValid() {
		t.Fatalf("%s: %q remains, read %s", name, e.rest, v)
	}
	return v
}

func (e *example) skip() { e.rest = strings.TrimLeft(e.rest, " \n,") }

func (e *example) value() string {
	e.skip()
	switch {
	case strings.HasPrefix(e.rest, "{"):
		return e.list("}", func() string {
			name, rest, ok := strings.Cut(e.rest, ":")
			if !ok {
				e.t.Fatalf("no member at %q", e.rest)
			}
			e.rest = rest
			return quote(name) + ":" + e.value()
		})
	case strings.HasPrefix(e.rest, "["):
		return e.list("]", e.value)
	}
	end := strings.IndexAny(e.rest, "\n,]}")
	text := strings.TrimSpace(e.rest[:end])
	e.rest = e.rest[end:]
	if jsontext.Value(text).IsValid() { // a number, true, false or null
		return text
	}
	return quote(text)
}

func (e *example) list(end string, item func() string) string {
	open := e.rest[:1]
	e.rest = e.rest[1:]
	var items []string
	for e.skip(); !strings.HasPrefix(e.rest, end); e.skip() {
		items = append(items, item())
	}
	e.rest = e.rest[1:]
	return open + strings.Join(items, ",") + end
}

func quote(text string) string {
	b, _ := json.Marshal(text)
	return string(b)
}

// checkSchema returns an error if a value violates the JSON Schema of that name.
func checkSchema(t *testing.T, name string, value []byte) error {
	t.Helper()
	c := jsonschema.NewCompiler()
	doc, err := jsonschema.UnmarshalJSON(strings.NewReader(Schema(name)))
	if err == nil {
		err = c.AddResource("s.json", doc)
	}
	if err != nil {
		t.Fatal(err)
	}
	schema, err := c.Compile("s.json")
	if err != nil {
		t.Fatal(err)
	}
	v, err := jsonschema.UnmarshalJSON(bytes.NewReader(value))
	if err != nil {
		t.Fatal(err)
	}
	return schema.Validate(v)
}

// kept reports the members of an example that its copy lacks or has otherwise. Numbers are compared
// by their digits; a version may become a text.
func kept(t *testing.T, path string, from, to jsontext.Value) (lost []string) {
	t.Helper()
	before, err := membersOf(from)
	if err != nil {
		t.Fatal(err)
	}
	after, err := membersOf(to)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range before {
		at := path + "/" + m.name
		i := slices.IndexFunc(after, func(o member) bool { return o.name == m.name })
		switch {
		case i < 0:
			lost = append(lost, at)
		case m.value.Kind() == '{':
			lost = append(lost, kept(t, at, m.value, after[i].value)...)
		case string(m.value) != string(after[i].value) && quote(string(m.value)) != string(after[i].value):
			lost = append(lost, at+": "+string(after[i].value))
		}
	}
	return lost
}

func TestExampleOfRequest(t *testing.T) {
	in := readExample(t, "request")
	r, v := DecodeRequest(in)
	if v != nil {
		t.Fatal(v)
	}
	out := r.Encode()
	if lost := kept(t, "", in, out); lost != nil {
		t.Errorf("lost or changed: %v", lost)
	}
	for _, b := range [][]byte{in, out} {
		if err := checkSchema(t, "request", b); err != nil {
			t.Error(err)
		}
	}
	if r.Session != "sess-789" || r.User != "user-456" || r.Target != "ANL" || r.Timeout.Seconds() != 15 || !slices.Contains(Codes(), r.Source) {
		t.Errorf("%+v", r)
	}
}

func TestExamplesOfResponses(t *testing.T) {
	for name, status := range map[string]Status{"success": Success, "partial": Partial, "error": Failed} {
		in := readExample(t, name)
		id, _ := textOf(lastOf(mustMembers(t, in), "request_id"))
		r, v := DecodeResponse(string(in), id, DefaultLevels())
		if v != nil || r.Status != status || len(r.Notes) != 0 {
			t.Errorf("%s: %v, %+v", name, v, r)
			continue
		}
		out := r.Encode()
		if lost := kept(t, "", in, out); lost != nil {
			t.Errorf("%s: lost or changed: %v", name, lost)
		}
		if err := checkSchema(t, "response", out); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		again, v := DecodeResponse(string(out), id, DefaultLevels())
		if v != nil || !bytes.Equal(again.Encode(), out) || len(again.Notes) != 0 {
			t.Errorf("%s: read again: %v, %v", name, v, again.Notes)
		}
	}
}

func mustMembers(t *testing.T, v jsontext.Value) []member {
	t.Helper()
	all, err := membersOf(v)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func TestExampleOfHandoff(t *testing.T) {
	in := readExample(t, "handoff")
	get := func(name string) jsontext.Value { return lastOf(mustMembers(t, in), name) }
	outputs := func(name string) (all []Output) {
		for _, m := range mustMembers(t, get(name)) {
			all = append(all, Output{Name: m.name, Value: m.value})
		}
		return all
	}
	h := HandOver(Work{Session: "sess-789", Request: "Help me build a business case for market entry", Position: Position{3, 5, "Financial Analysis"},
		Agents: []string{"ORC", "CST"}, Outputs: outputs("prior_outputs"), Constraints: outputs("constraints")}, Callee{})
	out := h.Encode()
	if lost := kept(t, "", in, out); lost != nil {
		t.Errorf("lost or changed: %v", lost)
	}
	if err := checkSchema(t, "handoff", out); err != nil {
		t.Error(err)
	}
}

// SPDX-License-Identifier: Apache-2.0

package agents_test

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"
	"pgregory.net/rapid"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/agents"
	"github.com/troupe-run/troupe/tools"
	"github.com/troupe-run/troupe/upstream"
)

var rewrite = flag.Bool("rewrite", false, "rewrite the expected results in testdata")

// runCases runs a file of cases. Each consists of "== title", the input, "--" and the
// expected output of describe.
func runCases(t *testing.T, name string, describe func(text string) string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	head, rest, _ := strings.Cut(string(b), "\n== ")
	out := head
	cases := 0
	for c := range strings.SplitSeq(rest, "\n== ") {
		title, body, _ := strings.Cut(c, "\n")
		text, want, _ := strings.Cut("\n"+body, "\n--\n")
		text, want = strings.TrimPrefix(text, "\n"), strings.TrimSpace(want)
		got := strings.TrimSpace(describe(text))
		if got != want && !*rewrite {
			t.Errorf("%s:\n%s\ngot:\n%s\nwant:\n%s", title, text, got, want)
		}
		if text != "" {
			text += "\n"
		}
		out += fmt.Sprintf("\n== %s\n%s--\n%s\n", title, text, got)
		cases++
	}
	if cases < 5 {
		t.Errorf("%s has %d cases, want at least 5", path, cases)
	}
	if *rewrite {
		if err := os.WriteFile(path, []byte(out), 0o666); err != nil {
			t.Fatal(err)
		}
	}
}

// describeSpec returns the result of parsing a spec as text.
func describeSpec(s agents.Spec, err error) string {
	if err != nil {
		return err.Error()
	}
	v := jsontext.Value(s.Encode())
	if err := v.Indent(); err != nil {
		return err.Error()
	}
	return string(v)
}

func TestReadTOMLCases(t *testing.T) {
	runCases(t, "toml.txt", func(text string) string { return describeSpec(agents.ReadTOML(text)) })
}

func TestReadJSONCases(t *testing.T) {
	runCases(t, "json.txt", func(text string) string { return describeSpec(agents.ReadJSON([]byte(text))) })
}

func TestSpecSizeLimits(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"name = \"a\"\nprompt = \"" + strings.Repeat("x", agents.PromptTextMax+1) + "\"", "at most 32768 allowed"},
		{"# " + strings.Repeat("x", agents.SourceBytesMax), "at most 131072 allowed"},
		{"name = \"a\"\nprompt = '" + strings.Repeat("\x01", 10) + "'", "control characters"},
		{"name = \"a\"\nprompt = \"" + strings.Repeat(`\u0001`, agents.PromptTextMax/4) + "\"", "shorten the prompt"},
		{"name = \"a\"\ntools = [\"" + strings.Join(toolNames(agents.SpecToolsMax+1), `","`) + "\"]", "129 entries, at most 128"},
		{"name = \"a\"\n" + strings.Join(toolNames(30), " = 1\n") + " = 1\n", "and 10 more"},
		{"name = \"" + strings.Repeat("a", actor.NameBytesMax+1) + "\"", "want 1 to 64 characters"},
	} {
		_, err := agents.ReadTOML(c.text)
		var problems agents.Problems
		if !errors.As(err, &problems) || !strings.Contains(err.Error(), c.want) || len(err.Error()) > 64<<10 {
			t.Errorf("%.60q: %.300v, want %s", c.text, err, c.want)
		}
	}
	if _, err := agents.ReadJSON(append([]byte(`{"name":"a"}`), bytes.Repeat([]byte(" "), agents.SourceBytesMax)...)); err == nil {
		t.Error("ReadJSON accepted a body over its limit")
	}
	s, err := agents.ReadTOML("name = \"a\"\nparameters.temperature = -0.0")
	checkSpecRoundTrip(t, s, err)
}

func toolNames(n int) []string {
	all := make([]string, n)
	for i := range all {
		all[i] = fmt.Sprintf("tool%d", i)
	}
	return all
}

// checkSpecRoundTrip verifies that the encoding of a spec parses to the same agent.
func checkSpecRoundTrip(t interface{ Fatalf(string, ...any) }, s agents.Spec, err error) {
	if err != nil {
		var problems agents.Problems
		if !errors.As(err, &problems) || len(problems) == 0 {
			t.Fatalf("error %v is not a list of Problems", err)
		}
		return
	}
	reparsed, err := agents.ReadJSON(s.Encode())
	if err != nil {
		t.Fatalf("ReadJSON(%s): %v", s.Encode(), err)
	}
	if !bytes.Equal(reparsed.Encode(), s.Encode()) || reparsed.Hash() != s.Hash() {
		t.Fatalf("%s is parsed as %s", s.Encode(), reparsed.Encode())
	}
	def, err := agents.Compile(s, tools.NewRegistry())
	if err != nil {
		t.Fatalf("Compile(%s): %v", s.Encode(), err)
	}
	if def.Hash != s.Hash() || def.Name != s.ID || !bytes.Equal(def.Spec, s.Encode()) {
		t.Fatalf("Compile(%s) = %+v", s.Encode(), def)
	}
}

func TestSpecRoundTrip(t *testing.T) {
	word := rapid.StringMatching(`[a-z]{1,8}`)
	value := rapid.OneOf(
		rapid.Map(word, func(w string) string { return `"` + w + `"` }),
		rapid.Map(rapid.SliceOfN(word, 0, 3), func(w []string) string { return `["` + strings.Join(w, `", "`) + `"]` }),
		rapid.Map(rapid.Int64(), func(n int64) string { return fmt.Sprint(n) }),
		rapid.Map(rapid.Int64Range(0, 60), func(n int64) string { return fmt.Sprint(n) }),
		rapid.Map(rapid.Float64Range(-0.5, 2.5), func(n float64) string { return fmt.Sprintf("%.3f", n) }),
		rapid.SampledFrom([]string{`true`, `[]`, `"fail_run"`, `"safe"`, `"none"`, `"interleaved"`, `"http://127.0.0.1:9001"`, `"TROUPE_AUTH_X"`, `"""
a
"b" \u0007\\""" `, `{}`, `-0.0`}),
	)
	key := rapid.SampledFrom([]string{"kind", "description", "model", "prompt", "tools", "agents", "on_failure", "parameters.temperature", "parameters.max_tokens",
		"parameters.seed", "endpoint", "retry", "concurrency", "auth.env", "capabilities", "durability", "turns", "recursion", "limits.steps", "limits.tool_timeout_ms", "limits", "x"})
	good := 0
	rapid.Check(t, func(t *rapid.T) {
		b := "name = \"agent\"\n"
		for _, k := range rapid.SliceOfNDistinct(key, 0, 4, rapid.ID).Draw(t, "keys") {
			b += k + " = " + value.Draw(t, "value") + "\n"
		}
		s, err := agents.ReadTOML(b)
		if err == nil {
			good++
		}
		checkSpecRoundTrip(t, s, err)
	})
	if good == 0 {
		t.Error("no generated spec was valid")
	}
}

// Problems do not depend on the iteration order of maps.
func TestProblemOrderIsDeterministic(t *testing.T) {
	text := "name = 1\nz = 1\ny = 2\nx.c = 3\nx.b = 4\n[limits]\nq = 1\np = 2\nsteps = 0\n"
	_, first := agents.ReadTOML(text)
	for range 50 {
		if _, got := agents.ReadTOML(text); got.Error() != first.Error() {
			t.Fatalf("first %v\nthen %v", first, got)
		}
	}
}

func TestSpecDefaultsAreExplicit(t *testing.T) {
	s, err := agents.ReadJSON([]byte(`{"name":"helper"}`))
	if err != nil || s.ID != "helper" || s.Model != upstream.ScriptName || s.Prompt == "" || len(s.Tools) != 1 || s.Tools[0] != tools.CallAgent || s.Limits.Steps != agents.StepsMax {
		t.Errorf("%s, %v", s.Encode(), err)
	}
	other, err := agents.ReadJSON([]byte(`{"name":"helper","tools":[]}`))
	if err != nil || len(other.Tools) != 0 || other.Hash() == s.Hash() {
		t.Errorf("%s, %v", other.Encode(), err)
	}
}

func FuzzReadTOML(f *testing.F) {
	b, err := os.ReadFile(filepath.Join("testdata", "toml.txt"))
	if err != nil {
		f.Fatal(err)
	}
	for c := range strings.SplitSeq(string(b), "\n== ") {
		_, body, _ := strings.Cut(c, "\n")
		text, _, _ := strings.Cut(body, "\n--\n")
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		s, err := agents.ReadTOML(text)
		checkSpecRoundTrip(t, s, err)
		_, repeated := agents.ReadTOML(text)
		if fmt.Sprint(err) != fmt.Sprint(repeated) {
			t.Fatalf("%v, then %v", err, repeated)
		}
	})
}

func FuzzReadJSON(f *testing.F) {
	f.Add([]byte(`{"name":"helper","parameters":{"seed":9223372036854775807,"temperature":1e0},"tools":[],"endpoint":null}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := agents.ReadJSON(b)
		checkSpecRoundTrip(t, s, err)
	})
}

func TestCallCycles(t *testing.T) {
	for _, c := range []struct {
		calls string // agent:targets
		want  string
	}{
		{"", ""},
		{"a:b b:c c:", ""},
		{"a:a", "a -> a"},
		{"a:b b:a", "a -> b -> a"},
		{"a:b b:c c:d,a d:a", "a -> b -> c -> a; d -> a -> b -> c -> d"},
		{"a:b b:c c:b", "b -> c -> b"},
		{"a:b b:a c:d d:c", "a -> b -> a; c -> d -> c"},
		{"a:b,c b:a c:a", "a -> b -> a; c -> a -> c"},
		{"a:nobody", ""},
	} {
		var specs []agents.Spec
		for edge := range strings.FieldsSeq(c.calls) {
			id, targets, _ := strings.Cut(edge, ":")
			s := agents.Spec{ID: id, Kind: agents.KindDeclared, Tools: []string{tools.CallAgent}, Agents: []string{}}
			if targets != "" {
				s.Agents = strings.Split(targets, ",")
			}
			specs = append(specs, s)
		}
		if got := strings.Join(agents.CallCycles(specs), "; "); got != c.want {
			t.Errorf("%s: %q, want %q", c.calls, got, c.want)
		}
		for i := range specs {
			specs[i].Tools = nil // without call_agent there are no calls
		}
		if got := agents.CallCycles(specs); got != nil {
			t.Errorf("%s without the tool: %v", c.calls, got)
		}
	}
}

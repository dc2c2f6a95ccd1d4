// SPDX-License-Identifier: Apache-2.0

package contract

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/troupe-run/troupe/actor"
)

func component(title string, status Status, confidence Confidence, result string) Component {
	c := Component{Title: title, Source: "agent-" + title[:1], Response: Response{ID: "r", Status: status, Confidence: confidence}}
	if result != "" {
		c.Response.Result = jsontext.Value(result)
	}
	return c
}

// The text follows the plan, and each status reads as what it is.
func TestJoinedTextFollowsThePlan(t *testing.T) {
	failed := component("Channels", Failed, Unstated, "")
	failed.Response.ErrorMessage = "no audience is given"
	late := component("Budget", TimedOut, Low, `{"total":7}`)
	late.Response.Metadata.Incomplete = []string{"media", "tools"}
	partial := component("Market", Partial, Medium, `{"summary":"It grows."}`)
	partial.Response.Warnings = []string{"data from 2023"}
	j, refusal := Join([]Component{component("Finance", Success, High, `{"npv":24156.72,"currency":"USD","market_share":null}`), partial, late, failed},
		JoinConfig{Terms: []Term{{"currency", "unit"}, {"grows", "expands"}, {"", "x"}}})
	want := `Finance: npv 24156.72, unit USD. Confidence: high.

Market: It expands. Limitation: data from 2023. Confidence: medium.

Budget: total 7. Was not completed in time. Missing: media, tools. Confidence: low.

Channels: Could not be completed: no audience is given.`
	if refusal != nil || j.Text != want || j.Status != Partial || j.Comparisons != nil || j.Question != "" {
		t.Errorf("got %s %v\n%s\nwant\n%s", j.Status, refusal, j.Text, want)
	}
	for i, title := range []string{"Finance", "Market", "Budget", "Channels"} {
		if p := j.Parts[i]; p.Title != title || p.Source != "agent-"+title[:1] || !strings.HasPrefix(p.Text, title+": ") {
			t.Errorf("%+v", p)
		}
	}
}

func TestStatusOfJoinedAnswers(t *testing.T) {
	ok, bad, late := component("A", Success, High, `{}`), component("B", Failed, Unstated, ""), component("C", TimedOut, Unstated, "")
	for _, c := range []struct {
		all  []Component
		want Status
	}{
		{[]Component{ok}, Success}, {[]Component{ok, ok}, Success}, {[]Component{ok, bad}, Partial}, {[]Component{bad}, Failed},
		{[]Component{late, bad}, Failed}, {[]Component{component("D", TimedOut, Low, `{}`)}, Partial},
	} {
		if j, _ := Join(c.all, JoinConfig{}); j.Status != c.want || j.Text == "" {
			t.Errorf("%+v: got %s, want %s", c.all, j.Status, c.want)
		}
	}
	for _, n := range []int{0, ComponentsMax + 1} {
		if _, refusal := Join(make([]Component, n), JoinConfig{}); refusal == nil || refusal.Reason != actor.Invalid {
			t.Errorf("%d components: got %v", n, refusal)
		}
	}
}

// Conflicts are data with both values, and shown. The higher confidence is preferred, an equal one
// is for the user.
func TestConflictsAreShown(t *testing.T) {
	size := func(title string, c Confidence, value string) Component {
		return component(title, Success, c, `{"m":{"size":`+value+`}}`)
	}
	key := Key{Field: "m/size", Title: "the market size"}
	none := component("No", Success, High, `{"m":{}}`)
	failed := component("Bad", Failed, Unstated, "")
	for name, c := range map[string]struct {
		all       []Component
		ask       bool
		verdict   Verdict
		preferred int
		why       string
		text      string // last paragraph, if there is a conflict
	}{
		"agree":             {[]Component{size("A", High, "5"), size("B", Low, "5.0"), none}, false, Agree, 0, "all state the same", ""},
		"higher confidence": {[]Component{size("A", Low, "5"), size("B", High, "6"), size("C", Medium, "5")}, false, Differ, 1, higherWhy, "The results differ in the market size: 5 (A), 6 (B), 5 (C). 6 is used: its confidence is higher."},
		"equal confidence":  {[]Component{size("A", High, "5"), size("B", High, "6")}, false, Differ, noValue, equalWhy, "Which value of the market size should be used?"},
		"two against one":   {[]Component{size("A", High, "5"), size("B", Low, "6"), size("C", High, "5")}, false, Differ, 0, higherWhy, "The results differ in the market size: 5 (A), 6 (B), 5 (C). 5 is used: its confidence is higher."},
		"the user is asked": {[]Component{size("A", Low, "5"), size("B", High, "6")}, true, Differ, noValue, askWhy, "Which value of the market size should be used?"},
		"other kinds":       {[]Component{size("A", Low, `"5"`), size("B", High, "5")}, false, Differ, 1, higherWhy, "The results differ in the market size: 5 (A), 5 (B). 5 is used: its confidence is higher."},
		"one of two failed": {[]Component{size("A", High, "5"), failed}, false, Uncompared, 0, "Bad was not completed", ""},
		"all failed":        {[]Component{failed}, false, Uncompared, noValue, "Bad was not completed", ""},
		"one states it":     {[]Component{size("A", High, "5"), none}, false, "", 0, "", ""},
	} {
		j, _ := Join(c.all, JoinConfig{Keys: []Key{key}, Ask: c.ask})
		if c.verdict == "" {
			if j.Comparisons != nil {
				t.Errorf("%s: %+v", name, j.Comparisons)
			}
			continue
		}
		if len(j.Comparisons) != 1 {
			t.Fatalf("%s: %+v", name, j.Comparisons)
		}
		got := j.Comparisons[0]
		if got.Verdict != c.verdict || got.Preferred != c.preferred || got.Why != c.why || !slices.Equal(got.Fields, []string{"m/size"}) || len(got.Values) != len(got.Sources) {
			t.Errorf("%s: got %+v", name, got)
		}
		if differ := strings.Contains(j.Text, "The results differ in the market size: "); differ != (c.verdict == Differ) || !strings.HasSuffix(j.Text, c.text) {
			t.Errorf("%s: got the text %q", name, j.Text)
		}
		if (j.Question != "") != (c.verdict == Differ && c.preferred == noValue) {
			t.Errorf("%s: got the question %q", name, j.Question)
		}
	}
	preferred, _ := Join([]Component{size("A", Low, "5"), size("B", High, "6")}, JoinConfig{Keys: []Key{key}, Ask: true, Prefer: "A"})
	if c := preferred.Comparisons[0]; c.Preferred != 0 || c.Why != preferWhy || preferred.Question != "" || !strings.HasSuffix(preferred.Text, "5 is used: you have preferred it.") {
		t.Errorf("the user prefers A: got %+v, %s", c, preferred.Text)
	}
	j, _ := Join([]Component{size("A", Low, "5.10"), size("B", High, "6")}, JoinConfig{Keys: []Key{key}})
	b, err := json.Marshal(j.Comparisons[0])
	if want := `{"verdict":"differ","fields":["m/size"],"values":[5.10,6],"sources":["agent-A","agent-B"],"preferred":1,"why":"its confidence is higher"}`; err != nil || string(b) != want {
		t.Errorf("got %s %v, want %s", b, err, want)
	}
}

func TestSameValues(t *testing.T) {
	for _, c := range []struct {
		a, b string
		same bool
	}{
		{"5", "5.0", true}, {"0.5", "5e-1", true}, {"500", "5E2", true}, {"-0", "0.0", true}, {"5", "-5", false}, {"50", "5", false},
		{"12345678901234567890", "12345678901234567891", false}, {"0.1", "0.10000000000000001", false},
		{"1e999999999", "1e999999999", true}, {"1e999999999", "1e999999998", false}, {"1e99999999999999999999", "1e99999999999999999998", false},
		{`"é"`, `"\u00e9"`, true}, {`{"a":1,"b":[2]}`, `{ "b":[2], "a":1 }`, true}, {`{"a":1}`, `{"a":2}`, false}, {"true", "false", false}, {`"5"`, "5", false},
	} {
		if sameValue(jsontext.Value(c.a), jsontext.Value(c.b)) != c.same {
			t.Errorf("%s and %s: want the same: %v", c.a, c.b, c.same)
		}
	}
}

func TestJoinedTextIsBounded(t *testing.T) {
	var all []Component
	for i := range ComponentsMax {
		all = append(all, component(fmt.Sprint("P", i), Success, High, `{"text":"`+strings.Repeat("x", 100<<10)+`"}`))
	}
	if j, refusal := Join(all, JoinConfig{}); refusal != nil || len(j.Text) > actor.MessageBytesMax || !strings.Contains(j.Text, " bytes left out] ") {
		t.Errorf("%d bytes, %v", len(j.Text), refusal)
	}
}

func TestTermsAreWholeWords(t *testing.T) {
	terms := []Term{{"client", "customer"}}
	if got := unify("client, clients; the client. xclient client_id (client)", terms); got != "customer, clients; the customer. xclient client_id (customer)" {
		t.Error(got)
	}
}

// SPDX-License-Identifier: Apache-2.0

package agents_test

import (
	"os"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/tools"
)

// route is one request of testdata/routes.txt.
type route struct{ rule, user, model, course, want string }

func readRoutes(t *testing.T) (all []route) {
	t.Helper()
	b, err := os.ReadFile("testdata/routes.txt")
	if err != nil {
		t.Fatal(err)
	}
	for block := range strings.SplitSeq(string(b), "\n\n") {
		var r route
		for line := range strings.Lines(block) {
			name, text, _ := strings.Cut(strings.TrimSpace(line), " ")
			switch text = strings.TrimSpace(text); name {
			case "rule":
				r.rule = text
			case "user":
				r.user = text
			case "model":
				r.model = text
			case "#":
			default:
				r.course, r.want = name, text
			}
		}
		if r.rule != "" {
			all = append(all, r)
		}
	}
	return all
}

// Requests are routed as the contract says: to owners of capabilities, or to none of them.
func TestRoutesOfTenRequests(t *testing.T) {
	all := readRoutes(t)
	if len(all) != 10 {
		t.Fatalf("%d requests", len(all))
	}
	for _, r := range all {
		d := newDesk(t, r.model)
		out := d.say(d.behavior("partial"), r.user)
		var record struct {
			Course string `json:"course"`
		}
		if err := json.Unmarshal([]byte(d.records[tools.RecordRoute]), &record); err != nil {
			t.Fatalf("%s: %v in %q", r.rule, err, d.records[tools.RecordRoute])
		}
		asked := strings.Join(strings.FieldsFunc(strings.Join(d.asked, " "), func(c rune) bool { return c == ' ' || c == '+' }), " ")
		if r.course == "asks" {
			if asked != r.want || record.Course != "plan" {
				t.Errorf("%s: course %s, asks %q, want %q", r.rule, record.Course, asked, r.want)
			}
			continue
		}
		if got := strings.Join(strings.Fields(actor.TextOf(out.Parts)), " "); got != r.want || record.Course != r.course || asked != "" {
			t.Errorf("%s: course %s, asks %q, says %q, want %s %q", r.rule, record.Course, asked, got, r.course, r.want)
		}
		for _, rule := range []string{"another agent owns what is needed", "domain is clearly another one", "specialist gives a better result", "data is missing here", "your own task", "simple or as good here", "only take time"} {
			if !strings.Contains(d.prompts[0].Messages[0].Text, rule) {
				t.Errorf("the model is not told the rule %q", rule)
			}
		}
	}
}

// An owner that calls a request misrouted ends its step as an error, and the record of the run says so.
func TestMisroutedRequestIsRecorded(t *testing.T) {
	d := newDesk(t, `{"primary_intent":"value","intent_confidence":0.9,"target_capability":"ANL_NPV"}`)
	d.owners["ANL_NPV"] = `{"status":"ERROR","error_message":"This is about the size of a market.","misrouted":{"suggested":"CHA_SIZE"}}`
	out := d.say(d.behavior("partial"), "How large is it?")
	if got, want := d.records[tools.RecordRoute], `{"course":"misrouted","primary_intent":"value","target_capability":"ANL_NPV","suggested":"CHA_SIZE"}`; got != want {
		t.Errorf("recorded %s, want %s", got, want)
	}
	if text := actor.TextOf(out.Parts); !strings.Contains(text, "This is about the size of a market.") {
		t.Errorf("the user reads %q", text)
	}
}

// A stage with more steps than calls may be open is asked in parts. A caller that is busy otherwise is no reason to
// ask for ever.
func TestWideStageIsAskedInParts(t *testing.T) {
	d := newDesk(t, wantsCase)
	d.open = 1
	out := d.say(d.behavior("partial"), "Help me enter the market.")
	if got := strings.Join(d.asked, " "); got != "CST_FRAME ANL_NPV+CHA_SIZE CHA_SIZE DOC_GENERATE" || out.Status != actor.Succeeded {
		t.Errorf("asked %s, ends %v %s", got, out.Status, actor.TextOf(out.Parts))
	}
	d = newDesk(t, wantsCase)
	d.open = -1
	out = d.say(d.behavior("partial"), "Help me enter the market.")
	if got := strings.Join(d.asked, " "); got != "CST_FRAME CHA_SIZE" || !strings.Contains(actor.TextOf(out.Parts), "not available now") {
		t.Errorf("asked %s, says %s", got, actor.TextOf(out.Parts))
	}
}

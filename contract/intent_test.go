// SPDX-License-Identifier: Apache-2.0

package contract

import (
	"reflect"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"
)

// The contract's own classification is read, fits the schema, and is recorded with its scores.
func TestIntentOfTheContract(t *testing.T) {
	text := readExample(t, "intent")
	i, broken := DecodeIntent(string(text))
	want := Intent{Name: "financial_projection", Confidence: 0.85, Target: Target{Intent: "financial_projection", Agent: "ANL", Capability: "ANL_PROJECTION"},
		Secondary: []Target{{Intent: "document_generation", Agent: "DOC", Capability: "DOC_GENERATE"}}, Missing: []string{}, Options: []string{}}
	if broken != nil || !reflect.DeepEqual(i, want) {
		t.Errorf("got %+v %v\nwant %+v", i, broken, want)
	}
	course, _ := i.Decide(0.7)
	record := string(i.Encode(course, 0.7))
	if want := `{"course":"plan","primary_intent":"financial_projection","intent_confidence":0.85,"threshold":0.7,"target_agent":"ANL","target_capability":"ANL_PROJECTION",` +
		`"secondary_intents":["document_generation"],"secondary_targets":[{"agent":"DOC","capability":"DOC_GENERATE"}]}`; record != want {
		t.Errorf("recorded %s\nwant     %s", record, want)
	}
	var schema any
	if err := json.Unmarshal([]byte(IntentSchema), &schema); err != nil {
		t.Error(err)
	}
}

func TestIntentsThatCannotBeRead(t *testing.T) {
	for answer, want := range map[string]string{
		"It is about money.":                            "want a JSON object",
		`{"intent_confidence":1}`:                       "primary_intent: want a name of what the user wants",
		`{"primary_intent":"x"}`:                        "intent_confidence: want a number from 0 to 1",
		`{"primary_intent":"x","intent_confidence":85}`: "intent_confidence: want a number from 0 to 1",
		`{"primary_intent":"x","intent_confidence":1,"target_capability":"the analysis"}`:                                                                                     "target_capability: want the code of a capability such as DOC_GENERATE, or null",
		`{"primary_intent":"x","intent_confidence":1,"inputs":[1]}`:                                                                                                           "inputs: want an object",
		`{"primary_intent":"x","intent_confidence":1,"secondary_targets":["DOC_GENERATE"]}`:                                                                                   "secondary_targets: want a list of objects",
		`{"primary_intent":"x","intent_confidence":1,"target_capability":["ANL_NPV","DOC_GENERATE"]}`:                                                                         "target_capability: want one name or null; further capabilities belong in secondary_targets",
		`{"primary_intent":"x","intent_confidence":1,"target_agent":{"name":"ANL"}}`:                                                                                          "target_agent: want one name or null; further capabilities belong in secondary_targets",
		`{"primary_intent":"x","intent_confidence":1,"workflow":["business_case"]}`:                                                                                           "workflow: want one name or null; further capabilities belong in secondary_targets",
		`{"primary_intent":"x","intent_confidence":1,"target_capability":"A_B","secondary_targets":[` + strings.Repeat(`{"capability":"A_B"},`, 8) + `{"capability":"A_B"}]}`: "secondary_targets: 9 entries: want at most 8",
		`{"primary_intent":"x","intent_confidence":1,"resume":"later"}`:                                                                                                       "resume: want retry, continue, stop or prefer",
		`{"primary_intent":"x","intent_confidence":1,"inputs":` + strings.Repeat(`{"a":`, 2000) + "1" + strings.Repeat("}", 2001):                                             "inputs: want an object",
	} {
		if i, broken := DecodeIntent(answer); broken == nil || broken.Error() != want {
			t.Errorf("%.80s: got %+v %v, want %s", answer, i, broken, want)
		}
	}
	i, broken := DecodeIntent("Here it is:\n```json\n{\"primary_intent\":\"x\",\"intent_confidence\":\"HIGH\",\"target_capability\":null,\"more\":1}\n```\n")
	if broken != nil || i.Confidence != 0.9 || i.Target.Capability != "" {
		t.Errorf("got %+v %v", i, broken)
	}
}

// A confidence below the threshold never begins a plan, nor does an intent that nobody owns.
func TestCourses(t *testing.T) {
	for name, c := range map[string]struct {
		intent Intent
		course Course
		text   string
	}{
		"sure":               {Intent{Confidence: 0.7, Target: Target{Capability: "A_B"}}, CoursePlan, ""},
		"workflow":           {Intent{Confidence: 1, Workflow: "w"}, CoursePlan, ""},
		"unsure":             {Intent{Confidence: 0.69, Target: Target{Capability: "A_B"}}, CourseQuestion, AnyQuestion},
		"unsure, with words": {Intent{Confidence: 0, Workflow: "w", Question: "How much?"}, CourseQuestion, "How much?"},
		"unsure of two":      {Intent{Confidence: 0.5, Workflow: "w", Options: []string{"a plan", "a letter"}}, CourseOptions, "Which of these do you mean?\n- a plan\n- a letter"},
		"sure, with others":  {Intent{Confidence: 0.9, Workflow: "w", Options: []string{"a plan", "a letter"}}, CoursePlan, ""},
		"several routes":     {Intent{Confidence: 0.9, Options: []string{"a plan", "a letter"}}, CourseOptions, "Which of these do you mean?\n- a plan\n- a letter"},
		"missing":            {Intent{Confidence: 1, Workflow: "w", Missing: []string{"the rate", "the years"}}, CourseQuestion, "To do that I need to know: the rate, the years."},
		"own task":           {Intent{Confidence: 1, Reply: "Good morning."}, CourseReply, "Good morning."},
		"nobody's":           {Intent{Confidence: 1}, CourseCannot, cannotText},
	} {
		if course, text := c.intent.Decide(0.7); course != c.course || text != c.text {
			t.Errorf("%s: got %s %q, want %s %q", name, course, text, c.course, c.text)
		}
	}
}

// Models write marks around a name and its letters in another case. An agent that was named so was "not found" elsewhere.
func TestDecoratedNames(t *testing.T) {
	for written, want := range map[string]string{
		"ANL_NPV": "ANL_NPV", " ANL_NPV\n": "ANL_NPV", "`ANL_NPV`": "ANL_NPV", `"ANL_NPV"`: "ANL_NPV", "'ANL_NPV'": "ANL_NPV", "**ANL_NPV**": "ANL_NPV",
		"anl_npv": "ANL_NPV", "ANL-NPV": "ANL_NPV", "anl.npv": "ANL_NPV", "``": "", " ": "",
	} {
		text := string(quoted(written))
		i, broken := DecodeIntent(`{"primary_intent":"x","intent_confidence":1,"target_agent":"\u0060ANL\u0060","target_capability":` + text + `,"secondary_targets":[{"agent":" \"DOC\" ","capability":` + text + `}]}`)
		if broken != nil || i.Target.Capability != want || i.Target.Agent != "ANL" {
			t.Errorf("%q: got %+v %v, want %s of ANL", written, i.Target, broken, want)
		}
		if want != "" && (len(i.Secondary) != 1 || i.Secondary[0].Capability != want || i.Secondary[0].Agent != "DOC") || want == "" && i.Secondary != nil {
			t.Errorf("%q: got %+v, want %s of DOC", written, i.Secondary, want)
		}
	}
}

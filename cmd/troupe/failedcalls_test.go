// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
)

// Two steps of a workflow fail: a tool cannot be reached, and an agent answers with an internal error. The user reads that
// both were not completed. The run shows operators the reasons, and each call by the beginning of its ID.
func TestFailedStepsAreShownToOperators(t *testing.T) {
	files := ">> desk.toml\nname = \"desk\"\nkind = \"orchestrator\"\nprompt = 'on case say {\"primary_intent\":\"case\",\"intent_confidence\":1,\"workflow\":\"case\"}'\n" +
		"[workflow.case]\ndescription = \"a case\"\n" +
		">> tool.toml\n[tool]\ntool_name = \"rates.get\"\nurl = \"http://127.0.0.1:9/rates\"\nidempotent = true\n"
	for name, answer := range map[string]string{"one": "use rates.get {}", "two": `say {"status":"ERROR","error_code":"RATES_LOCKED","error_message":"open /srv/rates.csv: locked"}`,
		"three": `say {"status":"paid","amount":7}`} {
		files += fmt.Sprintf(">> %s.toml\nname = %q\nprompt = 'on inputs_json %s'\n[[provides]]\ncode = \"DO_%s\"\ndescription = \"d\"\n", name, name, answer, strings.ToUpper(name))
	}
	files = strings.Replace(files, "name = \"one\"\n", "name = \"one\"\ntools = [\"rates.get\"]\n", 1)
	steps := ""
	for _, name := range []string{"one", "two", "three"} {
		steps += fmt.Sprintf("[[workflow.case.steps]]\nname = %q\ncapability = \"DO_%s\"\n", name, strings.ToUpper(name))
	}
	files = strings.Replace(files, "description = \"a case\"\n", "description = \"a case\"\n"+steps, 1)
	s := startServer(t, filepath.Join(t.TempDir(), "data"), "--agents", writeFiles(t, files))
	var run struct {
		Run    string `json:"run_id"`
		Answer string `json:"content"`
	}
	if code, err := s.request("POST", "/v1/agents/desk/messages", `{"content":"a case","session_id":"s-1"}`, "", &run); code != 200 || err != nil {
		t.Fatal(code, err)
	}
	const want = "One: Could not be completed: it is not available now.\n\nTwo: Could not be completed: an error occurred.\n\nThree: status paid, amount 7. Confidence: medium."
	if run.Answer != want {
		t.Errorf("the user reads\n%s\nwant\n%s", run.Answer, want)
	}
	_, out, stderr := runProgram(t, "runs", "show", run.Run, "--server", s.url)
	for _, want := range []string{"failed   one/s-1: error agent_unavailable: Unavailable: tool rates.get cannot be reached", "failed   two/s-1: RATES_LOCKED open /srv/rates.csv: locked  run "} {
		if !strings.Contains(out, want) {
			t.Errorf("the run shows no %q:\n%s%s", want, out, stderr)
		}
	}
	if strings.Contains(out, "failed   three") {
		t.Error(out)
	}
	_, child, _ := strings.Cut(out, "locked  run ")
	child, _, _ = strings.Cut(child, "\n")
	begin := child[:len(child)-4]
	for _, command := range []string{"show", "events"} {
		if code, out, stderr := runProgram(t, "runs", command, begin, "--server", s.url); code != 0 || command == "show" && !strings.Contains(out, "run      "+child) {
			t.Errorf("%s %s: %d %s%s", command, begin, code, out, stderr)
		}
	}
	if code, _, stderr := runProgram(t, "runs", "show", begin[:len(begin)-6]+"ffffff", "--server", s.url); code == 0 || !strings.Contains(stderr, "nor does a run that they called; write the whole ID") {
		t.Errorf("a beginning of none: %d %s", code, stderr)
	}
}

// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"encoding/json"
	"os"
	"strings"
	"testing"
	"unicode"

	"github.com/troupe-run/troupe/actor"
)

// A person who approves on the chat page sees each character of what an agent has chosen.
func TestApprovalOfThePageHidesNothing(t *testing.T) {
	const bad = "to\u202e\u2066\u200b\u200d\u2028\ufe0f\u3164\u2800\ue000\u009b\U000e0041ecila"
	const seen = `to\u202e\u2066\u200b\u200d\u2028\ufe0f\u3164\u2800\ue000\u009b\udb40\udc41ecila`
	args := map[string]any{bad: bad}
	in, err := json.Marshal([]map[string]any{
		{"type": "approval_required", "approval_id": "a", "tool_name": "pay" + bad, "args_summary": "sum" + bad, "args": args},
		{"type": "tool_request", "tool_call_id": "b", "tool_name": "ask", "args": map[string]any{"question": "q" + bad, "choices": []string{"c" + bad}}},
		{"type": "tool_request", "tool_call_id": "c", "tool_name": "client" + bad, "args": args},
	})
	if err != nil {
		t.Fatal(err)
	}
	out := runScript(t, "approval", "run.js", string(in))
	var shown string
	if err := json.Unmarshal([]byte(out), &shown); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for _, want := range []string{"Approve pay" + seen + "?", "sum" + seen, "q" + seen, "c" + seen, "client" + seen, `"` + seen + `": "` + seen + `"`} {
		if !strings.Contains(shown, want) {
			t.Errorf("%q is missing", want)
		}
	}
	if i := strings.IndexFunc(shown, func(c rune) bool { return c != '\n' && (unicode.IsControl(c) || actor.IsInvisible(c)) }); i >= 0 {
		t.Errorf("%q is shown", shown[max(i-20, 0):])
	}
}

// A call about which somebody else decides has no buttons on the chat page, and of a customer's no contents.
func TestApprovalOfColleaguesHasNoButtons(t *testing.T) {
	for name, c := range map[string]struct {
		messages    string
		want, hides string
	}{
		"not this user's":        {`[{"type":"approval_required","approval_id":"a","tool_name":"pay","args_summary":"pays 5","status":"PENDING","may_decide":false}]`, "A colleague has been asked", "Reject"},
		"a customer's":           {`[{"type":"approval_required","approval_id":"a","status":"PENDING","may_decide":false}]`, "A colleague has been asked", "Reject"},
		"a customer who decides": {`[{"may_decide":true,"status":"PENDING","tool_name":"pay","args_summary":"pays 5","args":{"amount":5}},{"type":"approval_required","approval_id":"a"}]`, "Approve pay?", "colleague has been asked"},
		"a budget":               {`[{"kind":"budget","tool_name":"big","args_summary":"up to 50 tokens","status":"PENDING","may_decide":true,"args":{},"raise":{"tokens":50}},{"type":"approval_required","approval_id":"a","kind":"budget","tool_name":"big","args_summary":"up to 50 tokens"}]`, "asks for a larger budget: up to 50 tokens", "Approve"},
		"a budget, by its view":  {`[{"kind":"budget","tool_name":"big","status":"PENDING","may_decide":true,"args":{}},{"type":"approval_required","approval_id":"a","tool_name":"big","args_summary":"up to 50 tokens"}]`, "asks for a larger budget: up to 50 tokens", `Approve\n`},
		"this user's":            {`[{"type":"approval_required","approval_id":"a","tool_name":"pay","args_summary":"pays 5","status":"PENDING","may_decide":true,"args":{}}]`, "Reject", "colleague has been asked"},
	} {
		out := runScript(t, "approval", "run.js", c.messages)
		if !strings.Contains(out, c.want) || strings.Contains(out, c.hides) {
			t.Errorf("%s: %s, want %q and not %q", name, out, c.want, c.hides)
		}
	}
}

// The chat page shows how an approval of a called agent ended, of which the server sends no decision, live and after a reload.
func TestDecisionAboutACalledAgentOnThePage(t *testing.T) {
	const hint, ended, shown = "You can write meanwhile", "Ended with the run", `,"decided_by":"bob","reason":"asked Anna"`
	const own = `{"type":"approval_required","approval_id":"a","tool_name":"refund","args_summary":"5","child_run_id":"c"},`
	const customers = `{"type":"approval_required","approval_id":"a"},`
	const resumed = `{"type":"state","state":"RUNNING","run_state":"RUNNING","detail":{"approval_id":"a"}}`
	const failed = `{"type":"error","code":"approval_rejected","message":"no"}`
	const other = `{"type":"state","state":"WAITING_APPROVAL","run_state":"PAUSED_WAITING_APPROVAL","detail":{"approval_id":"b"}}`
	for name, c := range map[string]struct{ status, messages, want, hides string }{
		"approved":               {`"APPROVED"` + shown, own + resumed, "Approved by bob: asked Anna", "Reason"},
		"a customer's":           {`"APPROVED"` + shown, customers + resumed + `,{"type":"done"}`, "Approved", "bob"},
		"a customer's, rejected": {`"REJECTED"` + shown, customers + resumed + `,` + failed, "Rejected", hint},
		"at the end":             {`"REJECTED"` + shown, customers + failed, "Rejected", ended},
		"expired":                {`"EXPIRED"`, customers + failed, "Expired", ended},
		"one of two":             {`"APPROVED"`, customers + `{"type":"state","state":"WAITING_APPROVAL","run_state":"PAUSED_WAITING_APPROVAL","detail":{"approval_id":"a"}}`, "Approved", hint},
		"another":                {`"PENDING"`, customers + other, hint, ended},
		"not decided":            {`"PENDING"`, customers + failed, ended, hint},
	} {
		for _, past := range []string{"", "past"} {
			out := runScript(t, "approval", "run.js", `[{"status":`+c.status+`,"may_decide":false,"args":{}},`+c.messages+`]`, past)
			if !strings.Contains(out, c.want) || strings.Contains(out, c.hides) {
				t.Errorf("%s %s: %s, want %q and not %q", name, past, out, c.want, c.hides)
			}
		}
	}
}

// A key that lacks the scope of an action is kept: the card says what is missing, with the scopes that the console needs.
func TestActionOfTheConsoleThatAKeyMayNotDo(t *testing.T) {
	const lacks = `{"status":403,"code":"forbidden_scope","detail":"the API key k lacks the scope call; troupe keys create --scope call --data DIR makes one that has it"}`
	const approval = `"/v1/approvals":{"approvals":[{"approval_id":"ap_1","kind":"tool","tool_name":"refund","args_summary":"5 EUR","args":{},"root_run_id":"r","actor":"desk/s","agent_id":"desk","session_id":"s","principal":"ann",
		"created_at":"2026-01-01T00:00:00Z","expires_at":"2026-01-01T00:01:00Z"}]}`
	const noApproval, noCall, noRun = `"/v1/approvals":{"approvals":[]}`, `"/v1/tool_calls":{"tool_calls":[]}`, `"/v1/runs":{"runs":[]}`
	waits := func(how string) string {
		return `"/v1/runs":{"runs":[{"run_id":"r","agent_id":"desk","actor":"desk/s","status":"PAUSED_WAITING_APPROVAL","principal":"ann","created_at":"2026-01-01T00:00:00Z",` + how + `}]}`
	}
	const usage = `"/v1/usage":{},"/v1/runs/r":{"runs":[]},"/v1/tools/refund":{}`
	for name, c := range map[string]struct{ first, press, path string }{
		"decide": {approval + "," + noCall + "," + noRun + "," + usage, "Approve", "/v1/approvals/ap_1:decide"},
		"retry":  {noApproval + "," + noCall + "," + waits(`"agent_state":"Parked"`), "Retry", "/v1/runs/r:retry"},
		"signal": {noApproval + "," + noCall + "," + waits(`"waiting_for":[{"name":"go","until":"2026-01-01T00:01:00Z"}]`), "Send the signal", "/v1/runs/r:signal"},
	} {
		out := runScript(t, "inbox", "inbox.js", `[{`+c.first+`},{"press":"`+c.press+`","`+c.path+`":`+lacks+`}]`)
		_, after, _ := strings.Cut(out, "\n")
		if !strings.Contains(after, "Your key lacks the scope call. A key for the console: "+consoleKey) || !strings.Contains(after, "["+c.press+"]") || strings.Contains(after, "refused") {
			t.Errorf("%s: %s", name, after)
		}
	}
	for _, file := range []string{"web/console.html", "../../docs/api.md"} {
		if text, err := os.ReadFile(file); err != nil || !strings.Contains(string(text), consoleKey) {
			t.Errorf("%s: %v, want %q", file, err, consoleKey)
		}
	}
}

// The inbox shows what the call of a tool that waits for approval does, in the list and on the card.
func TestSummaryOfAnApprovalInTheInbox(t *testing.T) {
	const server = `"/v1/approvals":{"approvals":[{"approval_id":"ap_1","kind":"tool","tool_name":"refund","args_summary":"refunds 5\u202e EUR","args":{},"root_run_id":"r","actor":"desk/s","agent_id":"desk","session_id":"s","principal":"ann",
		"created_at":"2026-01-01T00:00:00Z","expires_at":"2026-01-01T00:01:00Z"}]},"/v1/tool_calls":{"tool_calls":[]},"/v1/runs":{"runs":[]},"/v1/usage":{},"/v1/runs/r":{"runs":[]},"/v1/tools/refund":{}`
	out := runScript(t, "inbox", "inbox.js", `[{`+server+`},{"list":true,`+server+`}]`)
	const want = `refunds 5\\u202e EUR`
	card, list, _ := strings.Cut(out, "\n")
	if !strings.Contains(card, "What "+want) || !strings.Contains(list, want) {
		t.Errorf("card %s, list %s", card, list)
	}
}

// The console shows the prompts of the runs of a tree, each read once, and offers to read on if a run has more prompts, or may have some later.
func TestFurtherPromptsInTheConsole(t *testing.T) {
	out := runScript(t, "prompts", "runpage.js", "")
	if want := "true last 1 \ntrue 3 1 read on\nfalse last 1 read on\nfalse 3 1 read on\n" +
		"1 1 r0 1  \n3 2 r1 3 a0 · r0; a1 · r1 \n3 0 none 3 a0 · r0; a1 · r1 \n" +
		"22 17 r3 20 a0 · r0; a1 · r1 Of 22 runs the first 20 are shown: choose a run above for its prompts.\n"; out != want {
		t.Errorf("got\n%s\nwant\n%s", out, want)
	}
}

// The row of an event in the console says that its text is cut, and calls no run that began "waiting".
func TestRowOfAnEventInTheConsole(t *testing.T) {
	long := strings.Repeat("x", 200)
	out := runScript(t, "events", "runpage.js", `[{"type":"run_started","payload":{"name":"a","kind":"waiting"}},{"type":"run_started","payload":{"kind":"detached"}},`+
		`{"type":"user_input","payload":{"text":"`+long+`"}},{"type":"user_input","payload":{"text":"`+long+`y"}},{"type":"run_done","payload":{"text":"cut","truncated":true}},{"type":"run_done"}]`)
	if want := "a\ndetached\n" + long + "\n" + long + "…\ncut…\n\n"; out != want {
		t.Errorf("got\n%s\nwant\n%s", out, want)
	}
}

// consoleKey is the command that makes a key for the console.
const consoleKey = "troupe keys create --scope operator --scope read --scope call --data DIR"

// The inbox shows a question of a client tool with what is asked and of whom, without a button, and how it ended.
func TestQuestionInTheInbox(t *testing.T) {
	const none = `"/v1/approvals":{"approvals":[]},"/v1/runs":{"runs":[]},`
	const question = none + `"/v1/tool_calls":{"tool_calls":[{"tool_call_id":"tc_1","state":"WAITING_CLIENT","kind":"client_tool","tool_name":"user.ask","args":{"question":"Which\u202e room?"},
		"run_id":"r","root_run_id":"r","actor":"u-1/concierge/s","agent_id":"concierge","session_id":"s","principal":"ann","created_at":"2026-01-01T00:00:00Z","expires_at":"2026-01-01T00:01:00Z"}]}`
	for ended, want := range map[string]string{
		`{"state":"SUCCEEDED","status":"succeeded","result":"sea view"}`:                                   "Answered",
		`{"state":"FAILED","status":"failed","error":{"code":"declined","message":"the person declined"}}`: "Not answered: the person declined",
	} {
		out := runScript(t, "inbox", "inbox.js", `[{`+question+`},{`+none+`"/v1/tool_calls":{"tool_calls":[]},"/v1/tool_calls/tc_1":`+ended+`}]`)
		open, over, _ := strings.Cut(out, "\n")
		for _, part := range []string{`Which\\u202e room?`, "Asked by concierge", "Asked of ann", "Tool user.ask"} {
			if !strings.Contains(open, part) {
				t.Errorf("%q is missing in %s", part, open)
			}
		}
		if strings.Contains(open, "[") || !strings.Contains(over, want) {
			t.Errorf("%s, then %s: want no button, then %q", open, over, want)
		}
	}
}

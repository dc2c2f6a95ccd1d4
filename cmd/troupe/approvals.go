// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/ingress"
	"github.com/troupe-run/troupe/runs"
)

// ApprovalsCmd groups the commands about tool calls and budgets that wait for a person.
type ApprovalsCmd struct {
	List    ApprovalsListCmd    `cmd:"" help:"List the tool calls and budgets that wait for a person."`
	Show    ApprovalsShowCmd    `cmd:"" help:"Show an approval: all arguments of a tool call, or the budget that is asked for."`
	Approve ApprovalsApproveCmd `cmd:"" help:"Approve a tool call, which is then performed, or raise a budget."`
	Reject  ApprovalsRejectCmd  `cmd:"" help:"Reject a tool call or a larger budget; the agent gets the reason."`
	Watch   ApprovalsWatchCmd   `cmd:"" help:"Print approvals as they are requested and decided."`
}

// approvalView holds the fields of an approval that the commands print.
type approvalView struct {
	ID       string         `json:"approval_id"`
	Status   string         `json:"status"`
	ToolCall string         `json:"tool_call_id"`
	Tool     string         `json:"tool_name"`
	Args     jsontext.Value `json:"args"`
	Summary  string         `json:"args_summary"`
	Run      string         `json:"run_id"`
	Root     string         `json:"root_run_id"`
	Actor    string         `json:"actor"`
	Agent    string         `json:"agent_id"`
	Session  string         `json:"session_id"`
	User     string         `json:"principal"`
	Created  string         `json:"created_at"`
	Expires  string         `json:"expires_at"`
	By       string         `json:"decided_by"`
	Decided  string         `json:"decided_at"`
	Reason   string         `json:"reason"`
	Approver string         `json:"approver"`
	Kind     string         `json:"kind"` // "" of older servers
	Raise    *raiseFields   `json:"raise"`
	May      *bool          `json:"may_decide"` // nil: not known

	namespace string // in which it was found; "" means that of the key
}

// isBudget reports whether the approval is of a larger budget, and not of a tool call.
func (a *approvalView) isBudget() bool { return a.Kind == runs.KindBudget }

// what returns the name of the tool, or of the budget.
func (a *approvalView) what() string {
	if a.isBudget() {
		return "budget for " + a.Tool
	}
	return a.Tool
}

// question returns what a person is asked in a conversation.
func (a *approvalView) question() string {
	if !a.isBudget() {
		return a.Tool
	}
	return "a larger budget for requests to " + a.Tool + ", to which a yes adds " + a.Raise.String()
}

// String returns what is added to a budget.
func (r *raiseFields) String() string {
	var all []string
	if r != nil && r.Tokens > 0 {
		all = append(all, strconv.FormatInt(r.Tokens, 10)+" tokens")
	}
	if r != nil && r.Money > 0 {
		all = append(all, strconv.FormatFloat(r.Money, 'f', -1, 64)+" of money")
	}
	return cmp.Or(strings.Join(all, " and "), "what the request needs")
}

// decision returns who decided and why, or how the approval ended without a decision.
func (a *approvalView) decision() string {
	text := a.Status
	if a.By != "" {
		text += " by " + a.By
	}
	if a.Decided != "" {
		text += " at " + localTime(a.Decided)
	}
	if a.Reason != "" {
		text += ": " + oneLine(a.Reason)
	}
	return text
}

// request returns the note that a run waits for the approval, with the commands that decide about it.
func (a *approvalView) request(flags UserFlags, run string) string {
	what, see := cmp.Or(a.Tool, "a tool call"), "its arguments"
	if a.isBudget() {
		what, see = "a larger budget for requests to "+a.Tool, "it"
	}
	if a.Summary != "" {
		what += " (" + oneLine(a.Summary) + ")"
	}
	ids := []string{a.ID}
	return fmt.Sprintf("run %s waits for the approval of %s; to see "+see+", to approve or to reject it:\n  %s\n  %s\n  %s", run, what,
		flags.hint("approvals show", ids), flags.hint("approvals approve", ids), flags.hint("approvals reject", ids))
}

// oneLine returns a text without line ends, so that it cannot look like other output.
func oneLine(text string) string {
	return strings.NewReplacer("\n", `\n`, "\r", `\r`, "\t", `\t`).Replace(text)
}

// since returns the time between now and a time of the server, or "-" if it has none.
func since(now time.Time, at string) string {
	t, err := runs.ParseTime(at)
	if err != nil {
		return "-"
	}
	return max(now.Sub(time.Unix(0, int64(t))), 0).Round(time.Second).String()
}

// left returns the time until a time of the server, or "-" if it has none.
func left(now time.Time, at string) string {
	t, err := runs.ParseTime(at)
	if err != nil {
		return "-"
	}
	return max(time.Unix(0, int64(t)).Sub(now), 0).Round(time.Second).String()
}

// approvalList is the list of GET /v1/approvals.
type approvalList struct {
	Approvals []jsontext.Value `json:"approvals"`
}

// Time for which a server that is loading its runs is asked again, and the delay between
// two requests.
const (
	startWait     = 5 * time.Second
	startInterval = 200 * time.Millisecond
)

// retryStarting repeats a request while its server asks for that, up to startWait.
func retryStarting(request func() error) error {
	for end := time.Now().Add(startWait); ; time.Sleep(startInterval) {
		err := request()
		var p *problem
		if !errors.As(err, &p) || p.status != http.StatusServiceUnavailable || p.Retry == 0 || time.Now().After(end) {
			return err
		}
	}
}

// approvals returns the tool calls that wait for a person, the oldest first, as JSON and
// decoded.
func (c client) approvals() (list approvalList, all []approvalView, err error) {
	list.Approvals, err = allOf[jsontext.Value](c, "/v1/approvals")
	for _, raw := range list.Approvals {
		a := approvalView{namespace: c.namespace}
		err = cmp.Or(err, json.Unmarshal(raw, &a))
		if c.namespace == ingress.EveryUser {
			a.namespace = namespaceOf(a.Actor)
		}
		all = append(all, a)
	}
	return list, all, err
}

// namespaceOf returns the namespace of an actor in the JSON of the server.
func namespaceOf(actorID string) string {
	namespace, rest, _ := strings.Cut(actorID, "/")
	if !strings.Contains(rest, "/") { // it has an agent and a session only
		return actor.DefaultTenant
	}
	return namespace
}

// approval returns one approval, as JSON and decoded.
func (c client) approval(id string) (body []byte, a approvalView, err error) {
	if body, err = c.get("/v1/approvals/" + id); err == nil {
		err = json.Unmarshal(body, &a)
	}
	return body, a, err
}

// approvalArg is the ID of an approval, or a beginning of it.
type approvalArg string

// Bounds of the beginning of the ID of an approval, without the prefix ap_. IDs begin with a time,
// so a short beginning also matches approvals that are requested later. A decision therefore needs
// the whole time.
const (
	showPrefixMin   = 4
	decidePrefixMin = 13 // digits and hyphen of the time, to the millisecond
)

var approvalPrefix = regexp.MustCompile(`^[0-9a-f]{4}[0-9a-f.-]*$`)

// Validate returns an error for a text that no approval begins with.
func (a approvalArg) Validate() error {
	text := strings.TrimPrefix(strings.ToLower(string(a)), "ap_")
	if _, err := runs.ParseApprovalID("ap_" + text); err != nil && !approvalPrefix.MatchString(text) {
		return fmt.Errorf("%.80q: want the ID of an approval such as ap_0190d5b2-7c3e-7a41-8f10-2b6f0c9d4e55.1.0, or its beginning", string(a))
	}
	return nil
}

// find returns the ID of the approval, and a client for requests about it. A beginning has at least
// shortest characters and must match one pending approval. Without --user, find looks among the
// approvals of the key's user, and then among those of all users if the key may list them.
func (a approvalArg) find(flags UserFlags, shortest int) (string, client, error) {
	c := flags.client()
	text := strings.TrimPrefix(strings.ToLower(string(a)), "ap_")
	_, parseErr := runs.ParseApprovalID("ap_" + text)
	whole := parseErr == nil
	if !whole && len(text) < shortest {
		return "", c, fmt.Errorf("%s: want ap_ and at least %d characters after it (see: %s)", string(a), shortest, flags.hint("approvals list", nil))
	}
	id, err := "ap_"+text, error(nil)
	if whole && flags.User == "" {
		_, _, err = c.approval(id)
	} else if !whole {
		_, all, listErr := c.approvals()
		if id, err = beginsWith(all, text); listErr != nil {
			return "", c, listErr
		}
	}
	var p *problem
	unknown := errors.As(err, &p) && p.status == http.StatusNotFound || errors.As(err, new(noneBegins))
	if !unknown {
		return id, c, err
	}
	if flags.User == "" {
		every := c
		every.namespace = ingress.EveryUser
		if whole { // which has maybe been decided, and is in no list then
			if _, a, otherErr := every.approval(id); otherErr == nil {
				a.namespace = namespaceOf(a.Actor)
				c.namespace, c.flags.User = a.namespace, a.user()
				return id, c, nil
			}
			return "", c, err
		}
		_, all, listErr := every.approvals()
		at, otherErr := beginsWith(all, text)
		switch i := slices.IndexFunc(all, func(one approvalView) bool { return one.ID == at }); {
		case listErr != nil: // usually a key without the scope operator
		case i >= 0:
			c.namespace, c.flags.User = all[i].namespace, all[i].user()
			return at, c, nil
		case !errors.As(otherErr, new(noneBegins)):
			return "", c, otherErr
		}
	}
	if errors.As(err, new(noneBegins)) {
		err = fmt.Errorf("%w; write the whole ID%s", err, flags.otherApprovals())
	}
	return "", c, err
}

// otherApprovals returns a note with the commands that list approvals.
func (u UserFlags) otherApprovals() string {
	text := " (see: " + u.hint("approvals list", nil)
	if u.User == "" {
		text += "; those of other users, with the scope operator: " + u.hint("approvals list", nil, "--user", ingress.EveryUser)
	}
	return text + ")"
}

// user returns a value of --user for the namespace in which the approval was found.
func (a *approvalView) user() string {
	if found, err := actor.FindNamespace(a.User); err == nil && found == a.namespace {
		return a.User
	}
	return a.namespace
}

// noneBegins is the error for a beginning that no pending approval has.
type noneBegins struct{ text string }

func (n noneBegins) Error() string { return "no pending approval begins with ap_" + n.text }

// beginsWith returns the ID of the only approval whose ID begins with ap_ and a text.
func beginsWith(all []approvalView, text string) (string, error) {
	var found []string
	for i := range all {
		if strings.HasPrefix(all[i].ID, "ap_"+text) {
			found = append(found, all[i].ID)
		}
	}
	switch len(found) {
	case 0:
		return "", noneBegins{text}
	case 1:
		return found[0], nil
	}
	more := ""
	if n := len(found) - candidatesShown; n > 0 {
		found, more = found[:candidatesShown], fmt.Sprintf("\n  and %d more", n)
	}
	return "", errors.New(text + " is the beginning of several approvals; write more of the ID:\n  " + strings.Join(found, "\n  ") + more)
}

// ApprovalsListCmd lists pending approvals.
type ApprovalsListCmd struct {
	UserFlags
	JSON bool `help:"Print JSON."`
}

// Help returns the text shown below the flags.
func (ApprovalsListCmd) Help() string {
	return `Lists the tool calls that wait for a person, and the requests to models beyond the budget of their run, the oldest
first: those of the key's user, or with --user those of another one, or of all with '*'.

Examples:
  troupe approvals list
  troupe approvals list --user '*'
  troupe approvals list --json | jq -r '.approvals[].approval_id'`
}

// Run executes the command.
func (c *ApprovalsListCmd) Run(s streams) error {
	var list approvalList
	var all []approvalView
	err := retryStarting(func() (err error) {
		list, all, err = c.client().approvals()
		return err
	})
	switch {
	case err != nil:
		return err
	case c.JSON:
		return writeJSON(s.out, list)
	case len(all) == 0:
		_, err := fmt.Fprintln(s.err, "nothing waits for a person; calls appear here that the policy require_approval of a tool or a rule holds, and requests to models beyond a budget with at_limit = \"ask\"")
		return err
	}
	now := time.Now()
	w := tabwriter.NewWriter(s.out, 0, 0, 2, ' ', 0)
	user := func(string) string { return "" }
	if c.User == ingress.EveryUser {
		user = func(name string) string { return oneLine(name) + "\t" }
	}
	fmt.Fprintf(w, "APPROVAL\tTOOL\t%sAGENT\tWAITING\tEXPIRES IN\tSUMMARY\n", user("USER"))
	for i := range all {
		a := &all[i]
		fmt.Fprintf(w, "%s\t%s\t%s%s\t%s\t%s\t%s\n", a.ID, a.what(), user(a.User), a.Agent, since(now, a.Created), left(now, a.Expires), oneLine(a.Summary))
	}
	return w.Flush()
}

// ApprovalsShowCmd shows one approval.
type ApprovalsShowCmd struct {
	UserFlags
	ID   approvalArg `arg:"" help:"Approval ID, or its beginning."`
	JSON bool        `help:"Print the JSON response of the server."`
}

// Help returns the text shown below the flags.
func (ApprovalsShowCmd) Help() string {
	return `Shows all arguments of the call exactly as the tool gets them, its user and its run, and after a decision the author,
the time and the reason. Of a budget it shows the request to the model, and what an approval adds.

Examples:
  troupe approvals show ap_0190d5b2-7c3e-7a41-8f10-2b6f0c9d4e55.1.0
  troupe approvals show 0190d5b2-7c3e --json | jq .args`
}

// Validate returns an error for a name that is not that of one user.
func (c *ApprovalsShowCmd) Validate() error { return c.validateOne() }

// Run executes the command.
func (c *ApprovalsShowCmd) Run(s streams) error {
	id, of, err := c.ID.find(c.UserFlags, showPrefixMin)
	if err != nil {
		return err
	}
	body, a, err := of.approval(id)
	if err != nil || c.JSON {
		return printJSONOrError(s.out, body, err)
	}
	return a.print(s.out)
}

func (a *approvalView) print(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	what, call, adds := "tool", "tool call", ""
	if a.isBudget() {
		what, call = "model", "request"
		switch a.Status {
		case runs.ApprovalStatusApproved.String():
			adds = "the budget of the run grew by " + a.Raise.String()
		case runs.ApprovalStatusPending.String():
			adds = "the budget of the run grows by " + a.Raise.String() + "; --raise-money and --raise-tokens set another amount"
		}
	}
	for _, row := range [][2]string{
		{"approval", a.ID}, {"status", a.decision()}, {what, a.Tool}, {"summary", a.Summary}, {"approved", adds}, {"agent", a.Agent}, {"session", a.Session},
		{"user", a.User}, {"run", a.Run}, {"root", a.Root}, {call, a.ToolCall}, {"requested", localTime(a.Created)}, {"expires", localTime(a.Expires)}, {"approver", a.Approver},
	} {
		if row[1] != "" {
			fmt.Fprintf(w, "%s\t%s\n", row[0], oneLine(row[1]))
		}
	}
	if err := w.Flush(); err != nil {
		return err
	}
	return printArgs(out, a.Args)
}

// printArgs prints arguments, indented. Their texts and numbers are unchanged.
func printArgs(out io.Writer, args jsontext.Value) error {
	if len(args) == 0 {
		return nil
	}
	args = args.Clone()
	if err := args.Indent(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(out, "%s\n", args)
	return err
}

// DecideFlags are the arguments of a decision.
type DecideFlags struct {
	UserFlags
	ID     approvalArg   `arg:"" help:"Approval ID, or its beginning with at least 13 characters after ap_."`
	Reason string        `help:"Reason, which the agent gets after a rejection; at most 1 KiB."`
	Wait   time.Duration `default:"10s" help:"Maximum time to wait for the end of the tool call (${default})."`
	NoWait bool          `help:"Do not wait for the end of the tool call."`
	JSON   bool          `help:"Print the JSON response of the server, and do not wait."`
}

// waitMax is the maximum time that one request waits for the end of a tool call.
const waitMax = 5 * time.Minute

// Validate returns an error for a time that no request can wait.
func (d *DecideFlags) Validate() error {
	if d.Wait < 0 || d.Wait > waitMax {
		return fmt.Errorf("--wait: want 0s to %s, got %s", waitMax, d.Wait)
	}
	return d.UserFlags.validateOne()
}

// validateOne is Validate for a command that is about one user.
func (u UserFlags) validateOne() error {
	if u.User == ingress.EveryUser {
		return errors.New("--user: want one user")
	}
	return u.Validate()
}

// ApprovalsApproveCmd approves a tool call.
type ApprovalsApproveCmd struct {
	DecideFlags
	RaiseTokens int64   `placeholder:"N" help:"Tokens to add to a budget; default: as many as a message has by the configuration."`
	RaiseMoney  float64 `placeholder:"AMOUNT" help:"Money to add to a budget, in the currency of the server."`
}

// Help returns the text shown below the flags.
func (ApprovalsApproveCmd) Help() string {
	return `The call is performed with exactly the arguments that the approval shows, if its tool has not changed since. A
budget grows by what show prints, or by the flags, and the request to the model is sent. Prints the tool and the arguments, of which ` + "`show`" + ` prints all, then approves the call, waits for its end and prints
its state. Needs the scopes call and read. Exits with code 0 once the decision counts, however the call
ends, and with 1 if the approval has a decision already, or is unknown.

Examples:
  troupe approvals approve ap_0190d5b2-7c3e-7a41-8f10-2b6f0c9d4e55.1.0
  troupe approvals approve 0190d5b2-7c3e --reason "checked with Anna" --no-wait
  troupe approvals approve 0190d5b2-7c3e --raise-money 0.50`
}

// Run executes the command.
func (c *ApprovalsApproveCmd) Run(s streams) error {
	var raise *raiseFields
	if c.RaiseTokens != 0 || c.RaiseMoney != 0 {
		raise = &raiseFields{c.RaiseTokens, c.RaiseMoney}
	}
	return c.decide(s, "approve", raise)
}

// raiseFields is what an approval adds to a budget.
type raiseFields struct {
	Tokens int64   `json:"tokens,omitzero"`
	Money  float64 `json:"money,omitzero"`
}

// ApprovalsRejectCmd rejects a tool call.
type ApprovalsRejectCmd struct{ DecideFlags }

// Help returns the text shown below the flags.
func (ApprovalsRejectCmd) Help() string {
	return `The call is not performed, or the budget not raised. Its agent gets the reason and continues. Exits with code 0 once the decision counts,
and with 1 if the approval has a decision already, or is unknown.

Examples:
  troupe approvals reject ap_0190d5b2-7c3e-7a41-8f10-2b6f0c9d4e55.1.0
  troupe approvals reject 0190d5b2-7c3e --reason "the amount is wrong"`
}

// Run executes the command.
func (c *ApprovalsRejectCmd) Run(s streams) error { return c.decide(s, "reject", nil) }

// decide sends a decision and prints its effect.
func (d *DecideFlags) decide(s streams, decision string, raise *raiseFields) error {
	id, c, err := d.ID.find(d.UserFlags, decidePrefixMin)
	if err != nil {
		return err
	}
	if d.User == "" && c.flags.User != "" {
		fmt.Fprintf(s.err, "the approval is one of the user %s\n", oneLine(c.flags.User))
	}
	if decision == "approve" {
		_, a, err := c.approval(id)
		if err == nil && a.Status == runs.ApprovalStatusPending.String() {
			out := s.out
			if d.JSON {
				out = s.err
			}
			err = a.printCall(out)
		}
		if err != nil {
			return err
		}
	}
	body, a, err := c.decide(id, decision, d.Reason, raise)
	if err != nil || d.JSON {
		return printJSONOrError(s.out, body, err)
	}
	if err := a.printDecision(s.out); err != nil || d.NoWait || d.Wait == 0 {
		return err
	}
	call, err := c.waitToolCall(a.ToolCall, d.Wait)
	if err != nil {
		fmt.Fprintf(s.err, "the decision counts, but the state of the call is unknown: %v; to see it:\n  %s\n", err, c.flags.hint("runs show", []string{a.Run}))
		return nil
	}
	call.Tool = cmp.Or(a.what(), call.Tool)
	return call.print(s, c.flags)
}

// decide sends a decision about an approval, and returns its new state.
func (c client) decide(id, decision, reason string, raise *raiseFields) (body []byte, a approvalView, err error) {
	_, body, err = c.post("/v1/approvals/"+id+":decide", struct {
		Decision string       `json:"decision"`
		Reason   string       `json:"reason,omitzero"`
		Raise    *raiseFields `json:"raise,omitzero"`
	}{decision, reason, raise})
	if err == nil {
		err = json.Unmarshal(body, &a)
	}
	return body, a, err
}

// callArgsBytesMax is the maximum length of arguments that are printed before a decision.
const callArgsBytesMax = 512

// printCall prints the tool, the summary and the beginning of the arguments of a call.
func (a *approvalView) printCall(out io.Writer) error {
	args := a.Args.Clone()
	if err := args.Compact(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(out, "%s: %s\n%s\n", a.what(), oneLine(a.Summary), actor.FitText(string(args), callArgsBytesMax))
	return err
}

// printDecision prints the decision and the call.
func (a *approvalView) printDecision(out io.Writer) error {
	_, err := fmt.Fprintf(out, "%s %s: %s\n", strings.ToLower(a.Status), a.what(), oneLine(a.Summary))
	return err
}

// toolCallView holds the fields of a tool call that the commands print.
type toolCallView struct {
	ID     string         `json:"tool_call_id"`
	State  string         `json:"state"`
	Tool   string         `json:"tool_name"`
	Run    string         `json:"run_id"`
	Result jsontext.Value `json:"result"`
	Error  *runError      `json:"error"`
}

// waitToolCall waits until a tool call has ended, or for the given time.
func (c client) waitToolCall(id string, wait time.Duration) (call toolCallView, err error) {
	_, body, err := c.do(c.context(), http.MethodPost, "/v1/tool_calls/"+url.PathEscape(id)+":wait?timeout_ms="+strconv.FormatInt(wait.Milliseconds(), 10), nil)
	if err == nil {
		err = json.Unmarshal(body, &call)
	}
	return call, err
}

// callResultRunesMax is the maximum length of a result that is printed after a decision.
const callResultRunesMax = 200

// print prints the state of the call and the beginning of its result.
func (t *toolCallView) print(s streams, flags UserFlags) error {
	state, err := runs.ParseToolStatus(t.State)
	text := cmp.Or(t.Tool, t.ID) + " " + t.State
	switch {
	case t.Error != nil:
		text += ": " + oneLine(t.Error.text())
	case len(t.Result) > 0:
		text += ": " + cutLine(string(t.Result), callResultRunesMax)
	}
	if _, err := fmt.Fprintln(s.out, text); err != nil {
		return err
	}
	if err == nil && !state.Ended() {
		fmt.Fprintf(s.err, "the call has not ended; to see its run:\n  %s\n", flags.hint("runs show", []string{t.Run}))
	}
	return nil
}

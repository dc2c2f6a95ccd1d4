// SPDX-License-Identifier: Apache-2.0

package webhooks

import (
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/runs"
)

// Notice is a message about one event.
type Notice struct {
	Kind  runs.Notice
	Batch uint64 // of the log, which holds the entry of the event; 0 if Kind is NoticeMCPChanged
	Owner actor.ID
	Root  actor.CallID
	User  string // principal of the root run; "" if it is unknown
	Event runs.Event

	Server, Hash string // of NoticeMCPChanged: the server and its offered list
	Seen         actor.Time
}

// ID returns the id of the delivery. It is the same for each attempt, and for each webhook.
func (n *Notice) ID() string {
	if n.Kind == runs.NoticeMCPChanged {
		return fmt.Sprintf("%s-%s.%s", n.Kind, n.Server, n.Hash)
	}
	return fmt.Sprintf("%s-%s.%d", n.Kind, n.Event.Run, n.Event.Seq)
}

// Object returns what a notice is about. Notices of one object are delivered in order.
func (n *Notice) Object() string {
	if n.Kind == runs.NoticeMCPChanged {
		return "mcp/" + n.Server
	}
	return n.Root.String()
}

// At returns the time of the event.
func (n *Notice) At() actor.Time {
	if n.Kind == runs.NoticeMCPChanged {
		return n.Seen
	}
	return n.Event.At
}

// Page is a part of the notices of a log.
type Page struct {
	All  []Notice
	Upto uint64 // all notices of batches up to this one are in this page or before it
}

// Source reads the notices of a node.
type Source interface {
	// End returns the last batch of the log that was written before the start.
	End() uint64
	// Notices returns the notices of batches after one, whole batches until there are at least room notices.
	Notices(ctx context.Context, after uint64, room int) (Page, error)
	// Changed returns a channel that receives a value when there may be more notices.
	Changed() <-chan struct{}
	// Offers returns the lists of tools that wait for their acceptance, as hashes by the names of MCP servers.
	Offers() map[string]string
}

// body is the JSON of a delivery. Text is one sentence for a channel of a chat.
type body struct {
	Type string   `json:"type"`
	At   string   `json:"timestamp"`
	Text string   `json:"text"`
	Data bodyData `json:"data"`
}

type bodyData struct {
	Event    string `json:"event_id,omitempty"`
	Run      string `json:"run_id,omitempty"`
	Root     string `json:"root_run_id,omitempty"`
	Agent    string `json:"agent_id,omitempty"`
	Session  string `json:"session_id,omitempty"`
	User     string `json:"user_id,omitempty"`
	Approval string `json:"approval_id,omitempty"`
	Kind     string `json:"kind,omitempty"` // of the approval: runs.KindTool or runs.KindBudget
	Tool     string `json:"tool_name,omitempty"`
	Expires  string `json:"expires_at,omitempty"`
	Code     string `json:"code,omitempty"`
	Server   string `json:"mcp_server,omitempty"`
	Summary  string `json:"args_summary,omitempty"` // with details only, as those below; of a budget always
	Detail   string `json:"detail,omitempty"`
}

// encode returns the body of the delivery of a notice.
func (n *Notice) encode(details bool) []byte {
	out := body{Type: n.Kind.String(), At: runs.FormatTime(n.At())}
	if n.Kind == runs.NoticeMCPChanged {
		out.Text = fmt.Sprintf("The MCP server %s has changed its tools. The accepted ones remain in use until: troupe tools accept %[1]s", n.Server)
		out.Data.Server = n.Server
		return mustJSON(out)
	}
	e := &n.Event
	out.Data = bodyData{Event: fmt.Sprintf("%s.%d", e.Run, e.Seq), Run: e.Run.String(), Root: n.Root.String(), Agent: n.Owner.Agent, Session: n.Owner.Key, User: n.User, Approval: e.Approval}
	if e.Type == runs.ApprovalCreated || e.Type == runs.ApprovalExpired || e.Type == runs.ToolResult {
		out.Data.Tool = e.Name
	}
	if e.Type == runs.ApprovalCreated || e.Type == runs.ApprovalExpired {
		out.Data.Kind = cmp.Or(e.Kind, runs.KindTool)
	}
	if e.Until > 0 {
		out.Data.Expires = runs.FormatTime(e.Until)
	}
	if e.Refusal != nil {
		out.Data.Code = e.Refusal.Reason.Info().Type
	}
	if e.Type == runs.ApprovalCreated && (details || e.Kind == runs.KindBudget) { // the amounts of a budget hold nothing of a user's
		out.Data.Summary = e.Text
	}
	if details && e.Refusal != nil {
		out.Data.Detail = e.Refusal.Detail
	}
	out.Text = n.sentence(&out.Data)
	return mustJSON(out)
}

// sentence returns the notice in words.
func (n *Notice) sentence(d *bodyData) string {
	who := "agent " + d.Agent
	if d.User != "" {
		who += " for " + d.User
	}
	var b strings.Builder
	switch n.Kind {
	case runs.NoticeApprovalRequired:
		fmt.Fprintf(&b, "An approval waits until %s: %s %s.", d.Expires, who, d.asks("wants", "asks"))
	case runs.NoticeApprovalExpired:
		fmt.Fprintf(&b, "An approval expired without a decision: %s %s.", who, d.asks("wanted", "asked"))
	case runs.NoticeRunFailed:
		fmt.Fprintf(&b, "A run failed: %s, %s.", who, cmp.Or(d.Code, "for an unknown reason"))
	case runs.NoticeOutcomeUnknown:
		fmt.Fprintf(&b, "It is unknown whether a call was performed: %s, %s.", who, cmp.Or(d.Tool, "run "+d.Run))
	case runs.NoticeRunParked:
		fmt.Fprintf(&b, "A run waits for troupe runs retry or cancel: %s.", who)
	}
	fmt.Fprintf(&b, " Run %s.", d.Run)
	if more := cmp.Or(d.Summary, d.Detail); more != "" {
		b.WriteString(" " + more)
	}
	return b.String()
}

// asks says what an approval is about. The verbs are those before "to call" and "for a larger budget".
func (d *bodyData) asks(wants, asks string) string {
	if d.Kind == runs.KindBudget {
		return asks + " for a larger budget for requests to " + d.Tool
	}
	return wants + " to call " + d.Tool
}

func mustJSON(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // strings only
	}
	return b
}

// signature returns the header webhook-signature of a delivery: that of Standard Webhooks, version 1.
func signature(secret []byte, id string, seconds int64, content []byte) string {
	mac := hmac.New(sha256.New, secret)
	mac.Write([]byte(id + "." + strconv.FormatInt(seconds, 10) + "."))
	mac.Write(content)
	return "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil))
}

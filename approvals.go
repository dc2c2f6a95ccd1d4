// SPDX-License-Identifier: Apache-2.0

package troupe

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/ingress"
	"github.com/troupe-run/troupe/internal/client"
	"github.com/troupe-run/troupe/internal/command"
	"github.com/troupe-run/troupe/runs"
)

// Approval is a call of a tool that waits for a person, or waited for one.
type Approval struct {
	ID      string
	Status  string // as in the HTTP API: PENDING, APPROVED, REJECTED or EXPIRED
	Tool    string
	Args    json.RawMessage // exactly as the tool gets them
	Summary string          // of the arguments, one line
	Agent   string          // agent that calls the tool
	Session string
	Run     string // ID of the run of that agent
	Root    string // ID of the run of the client's call, for Await; it may be above Run
	User    string
	Created time.Time
	Expires time.Time

	Decided time.Time // zero while it waits
	By      string    // who decided
	Reason  string
}

// ApprovalPage is a part of a list of approvals.
type ApprovalPage struct {
	All  []Approval
	Next string // cursor of the next page; empty if this is the last one
}

// Approvals returns a page of the approvals that wait for a decision, the oldest first. They may be of
// runs at any depth of calls. Its option is User.
func (s *Server) Approvals(ctx context.Context, p Page, opts ...Option) (ApprovalPage, error) {
	o, err := collect("Approvals", opts, optionUser)
	limit, limitErr := p.limit()
	if err = cmp.Or(err, limitErr); err != nil {
		return ApprovalPage{}, err
	}
	q := command.ApprovalsQuery{Limit: limit}
	if q.After, err = parsePosition(p.Cursor); err != nil {
		return ApprovalPage{}, err
	}
	found, err := command.Find(ctx, s.node(), o.principal(), q)
	if err != nil {
		return ApprovalPage{}, errorOf(err)
	}
	out := ApprovalPage{All: newApprovals(found.All)}
	if found.More {
		last := &found.All[len(found.All)-1]
		out.Next = strconv.FormatInt(int64(last.Created), 10) + " " + last.ID.Approval()
	}
	return out, nil
}

// parsePosition decodes the cursor of a page.
func parsePosition(cursor string) (at command.ApprovalPosition, err error) {
	if cursor == "" {
		return at, nil
	}
	created, id, _ := strings.Cut(cursor, " ")
	n, err := strconv.ParseInt(created, 10, 64)
	if err == nil {
		at.ID, err = runs.ParseApprovalID(id)
	}
	if err != nil {
		return at, invalid("cursor", "Cursor: got %.80q, want ApprovalPage.Next of the page before", cursor)
	}
	at.Created = actor.Time(n)
	return at, nil
}

func newApprovals(found []command.Approval) (all []Approval) {
	for i := range found {
		a := &found[i]
		all = append(all, Approval{ID: a.ID.Approval(), Status: runs.ApprovalStatusPending.String(), Tool: a.Tool, Args: a.Args, Summary: a.Summary,
			Agent: a.Actor.Agent, Session: a.Actor.Key, Run: a.ID.Run.String(), Root: a.Root.String(), User: a.Principal,
			Created: newTime(a.Created), Expires: newTime(a.Until)})
	}
	return all
}

// Approval returns one approval, also after its decision. Its option is User.
func (s *Server) Approval(ctx context.Context, id string, opts ...Option) (Approval, error) {
	o, err := collect("Approval", opts, optionUser)
	if err != nil {
		return Approval{}, err
	}
	call, err := runs.ParseApprovalID(id)
	if err != nil {
		return Approval{}, invalid("approval_id", "%v", err)
	}
	found, err := s.client(o.principal()).Approval(ctx, call)
	if err != nil {
		return Approval{}, errorOf(err)
	}
	return describe(&found), nil
}

// describe returns an approval.
func describe(found *command.ToolCall) Approval {
	c, a := &found.Call, found.Call.Approval
	return Approval{ID: c.ID.Approval(), Status: a.Status.String(), Tool: c.Name, Args: json.RawMessage(c.Args), Summary: a.Summary,
		Agent: found.Owner.Actor.Agent, Session: found.Owner.Actor.Key, Run: c.ID.Run.String(), Root: found.Owner.Root.String(), User: found.Principal,
		Created: newTime(a.Created), Expires: newTime(a.Until), Decided: newTime(a.Decided), By: a.By, Reason: a.Reason}
}

// Verdict is the decision of a person about a call of a tool.
type Verdict string

// The verdicts.
const (
	Approve Verdict = "approve" // the call is performed
	Reject  Verdict = "reject"  // the agent gets a refusal with CodeApprovalRejected and the reason
)

// Decide approves or rejects a call that waits, and returns once the decision is persisted. The reason may be
// empty. The first decision counts: a later one, and one after the expiry, is refused with
// CodeApprovalDecided. The run continues; Server.Await waits for its end. Its options are User, the user
// of the run, and By, who decides.
//
// Decide trusts its caller: the program authorizes the person.
func (s *Server) Decide(ctx context.Context, approval string, v Verdict, reason string, opts ...Option) (Approval, error) {
	o, err := collect("Decide", opts, optionUser, optionBy)
	if err != nil {
		return Approval{}, err
	}
	call, err := runs.ParseApprovalID(approval)
	if err != nil {
		return Approval{}, invalid("approval_id", "%v", err)
	}
	if strings.ToValidUTF8(reason, "") != reason {
		return Approval{}, invalid("reason", "want valid UTF-8")
	}
	decision, refusal := ingress.CheckDecision(string(v), reason)
	if refusal != nil {
		return Approval{}, newRefusal(refusal)
	}
	decider := s.client(o.principal())
	found, err := decider.Approval(ctx, call)
	if err != nil {
		return Approval{}, errorOf(err)
	}
	err = s.failed(decider.Decide(ctx, &found, decision, &client.Request{User: o.by}))
	if code := (*Refusal)(nil); err != nil && !(errors.As(err, &code) && code.Code == CodeApprovalDecided) {
		return Approval{}, err
	}
	return describe(&found), err
}

// By names who decides about an approval: 1 to 256 bytes of printable UTF-8. The default is the User.
func By(name string) Option {
	return Option{optionBy, func(o *options) error {
		o.by = name
		if err := actor.CheckNewUser(name); err != nil {
			return invalid("by", "By %v", err)
		}
		return nil
	}}
}

// pending returns the approvals that wait in the tree of a root run. A node that has just been opened
// knows them once it has loaded its open runs.
func (s *Server) pending(ctx context.Context, by actor.Principal, root actor.CallID) ([]Approval, error) {
	for {
		found, err := command.Find(ctx, s.node(), by, command.ApprovalsQuery{Root: root, Limit: PageMax})
		var r *actor.Refusal
		if !errors.As(err, &r) || r.Reason != actor.Unavailable || r.RetryAfter == 0 {
			return newApprovals(found.All), errorOf(err)
		}
		timer := time.NewTimer(min(r.RetryAfter, loadingPoll))
		select {
		case <-timer.C:
		case <-s.service.Done():
			timer.Stop()
			return nil, ErrClosed
		case <-ctx.Done():
			timer.Stop()
			return nil, ctx.Err()
		}
	}
}

// loadingPoll is the maximum delay between two questions to a node that is loading its open runs.
const loadingPoll = 50 * time.Millisecond

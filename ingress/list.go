// SPDX-License-Identifier: Apache-2.0

package ingress

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"slices"
	"strings"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/runs"
)

// RunParams are the parameters of a request that select runs.
var RunParams = []string{"agent_id", "session_id", "status", "since", "until", "root_run_id", "parent_run_id", "correlation_id", "system"}

// correlationBytesMax bounds a correlation ID, as contract.IDBytesMax does.
const correlationBytesMax = 256

// RunFilter returns the filter for the parameters of a request. The function param
// returns the value of one of RunParams; the bool is false if it is absent. Runs that
// other runs called are selected only if the filter names an agent, a session or a run.
func RunFilter(param func(name string) (text string, ok bool)) (f runs.Filter, r *actor.Refusal) {
	for _, name := range RunParams {
		text, ok := param(name)
		if !ok {
			continue
		}
		var err error
		switch name {
		case "agent_id":
			f.Agent, err = text, actor.CheckName(text)
		case "session_id":
			f.Session, err = text, actor.CheckName(text)
		case "status":
			if f.Status, err = runs.ParseStatus(text); text == "QUEUED" {
				f.Status, f.Queued, err = runs.Running, true, nil
			} else if err != nil {
				err = fmt.Errorf("%w, or QUEUED", err)
			}
		case "since":
			f.Since, err = parseTime(text)
		case "until":
			f.Until, err = parseTime(text)
		case "root_run_id":
			f.Root, err = actor.ParseCallID(text)
		case "parent_run_id":
			f.Parent, err = actor.ParseCallID(text)
		case "correlation_id":
			if f.Workflow = text; text == "" || len(text) > correlationBytesMax || !actor.IsLine(text) {
				err = fmt.Errorf("want a line of 1 to %d bytes", correlationBytesMax)
			}
		case "system":
			if f.System = text == "true"; !f.System && text != "false" {
				err = fmt.Errorf("want true or false")
			}
		}
		f.Calls = f.Calls || slices.Contains([]string{"agent_id", "session_id", "root_run_id", "parent_run_id", "correlation_id"}, name)
		if err != nil {
			return f, invalidParam(name, err)
		}
	}
	if f.Until != 0 && f.Until <= f.Since {
		return f, invalidParam("until", fmt.Errorf("want a time after since"))
	}
	return f, nil
}

func invalidParam(name string, err error) *actor.Refusal {
	r := actor.Refuse(actor.Invalid, "%s: %v", name, err)
	r.Field = name
	return r
}

// parseTime parses a time of RFC 3339 in UTC, with at most nine digits of a second, in
// the years 1970 to 2199: an actor.Time holds these.
func parseTime(text string) (actor.Time, error) {
	const seconds, digits = len("2027-01-31T12:00:00"), 9
	full, utc := strings.CutSuffix(text, "Z")
	if len(full) == seconds {
		full += "."
	}
	if utc && len(full) > seconds && len(full) <= seconds+1+digits && "1970" <= full[:4] && full[:4] <= "2199" {
		if at, err := runs.ParseTime(full + strings.Repeat("0", seconds+1+digits-len(full)) + "Z"); err == nil {
			return max(at, 1), nil
		}
	}
	return 0, fmt.Errorf("%.40q: want a time in UTC such as 2027-01-31T12:00:00Z", text)
}

// CursorKey is the secret with which the cursors of lists are made. A client without it makes none,
// and so cannot read on in a list of which it has read no page.
type CursorKey []byte

// A page cursor begins with a letter, so that a command does not take it for a flag. The
// rest is the base64 form of a keyed hash and of the item after which the list continues. The
// hash binds the cursor to its list: a list with another filter or of another tenant
// refuses it.
const cursorSumBytes = 12

// PageCursor returns the cursor that continues a list after an item. The argument list
// identifies the list with its tenant and filter.
func (k CursorKey) PageCursor(list, after string) string {
	h := hmac.New(sha256.New, k)
	_, _ = fmt.Fprintf(h, "page cursor %d %s%s", len(list), list, after) // differs from the text of every run token
	return "c" + base64.RawURLEncoding.EncodeToString(append(h.Sum(nil)[:cursorSumBytes:cursorSumBytes], after...))
}

// ParsePageCursor returns the item after which a list continues. It refuses any text
// that PageCursor did not return for the same list.
func (k CursorKey) ParsePageCursor(list, text string) (after string, r *actor.Refusal) {
	raw, err := base64.RawURLEncoding.DecodeString(strings.TrimPrefix(text, "c"))
	if err == nil && len(raw) > cursorSumBytes {
		after = string(raw[cursorSumBytes:])
	}
	if after == "" || !hmac.Equal([]byte(k.PageCursor(list, after)), []byte(text)) {
		return "", invalidParam("cursor", fmt.Errorf("%.80q does not continue this list: send the next_cursor of the page before, with the same parameters", text))
	}
	return after, nil
}

// EveryUser is the tenant of a list of the runs of all tenants, and the value of the
// parameter user that asks for it.
const EveryUser = "*"

// RunList is a list of the runs of a tenant, or of EveryUser: then newest first, or if there are very many
// tenants, those of one behind those of another, in the order of the tenants' names.
type RunList struct {
	Tenant string
	Filter runs.Filter
	From   string       // of EveryUser: the page begins in this tenant; "" for the first page
	Before actor.CallID // the page has older runs; zero for the first page of a tenant
	Key    CursorKey
}

// ParseRunList returns the list for the parameters of a request: those of RunFilter and
// the cursor.
func ParseRunList(key CursorKey, tenant string, param func(name string) (text string, ok bool)) (l RunList, r *actor.Refusal) {
	l.Tenant, l.Key = tenant, key
	if l.Filter, r = RunFilter(param); r != nil {
		return l, r
	}
	text, _ := param("cursor")
	if text == "" {
		return l, nil
	}
	after, r := key.ParsePageCursor(l.name(), text)
	if r != nil {
		return l, r
	}
	if l.Tenant == EveryUser {
		if from, rest, ok := strings.Cut(after, "/"); ok {
			if l.From, after = from, rest; after == "" {
				return l, nil
			}
		}
	}
	var err error
	if l.Before, err = actor.ParseCallID(after); err != nil {
		return l, invalidParam("cursor", err)
	}
	return l, nil
}

// name identifies the list, whatever its page. Its text is part of the hash in cursors, which clients
// keep over upgrades: it has no names of fields.
func (l *RunList) name() string {
	f, queued := &l.Filter, ""
	workflow := ""
	if f.Workflow != "" {
		workflow = fmt.Sprintf(" correlation %q", f.Workflow)
	}
	if f.Queued {
		queued = " queued"
	}
	return fmt.Sprintf("runs %q agent %q session %q status %s since %d until %d root %s parent %s system %t calls %t",
		l.Tenant, f.Agent, f.Session, f.Status, f.Since, f.Until, f.Root, f.Parent, f.System, f.Calls) + queued + workflow
}

// AppendJSON appends a page of the list. The list of EveryUser continues in the tenant from,
// which is empty after the last page.
func (l *RunList) AppendJSON(b []byte, page *runs.Page, from string) []byte {
	b = append(b, `{"runs":[`...)
	for i := range page.All {
		if i > 0 {
			b = append(b, ',')
		}
		b = page.All[i].AppendJSON(b)
	}
	b = append(b, ']')
	next := ""
	if !page.Next.IsZero() {
		next = page.Next.String()
	}
	if from != "" {
		next = from + "/" + next
	}
	if next != "" {
		b = append(append(b, `,"next_cursor":"`...), l.Key.PageCursor(l.name(), next)...)
		b = append(b, '"')
	}
	return append(b, '}')
}

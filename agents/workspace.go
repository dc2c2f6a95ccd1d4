// SPDX-License-Identifier: Apache-2.0

package agents

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/internal/invariant"
	"github.com/troupe-run/troupe/runs"
	"github.com/troupe-run/troupe/tools"
)

// The workspace of a user has documents that the agents of all sessions share. It is the state of one actor:
//
//	d/<key>/<version> workspaceVersion
//	r/<key>           workspaceVersion without content: the removal of a document
//
//  1. Each put is the next version of its document, which begins with 1. The history of a document is therefore linear.
//  2. The newest WorkspaceVersionsMax versions of a document are kept. While the workspace is full, a write drops the
//     older versions of its document. A removal is a version too, and drops all versions before it.
//  3. A document that is written again after its removal continues with the next version. This number is forgotten once
//     WorkspaceRemovedMax other documents have been removed.
//  4. The content is in no run event of the actor.

// OpWorkspacePut is the operation of the actor of a workspace. The message is a WorkspacePut, with MediaWorkspace.
const OpWorkspacePut = "workspace.put"

// MediaWorkspace is the media type of a change of a workspace. Events show no parts of it.
const MediaWorkspace = "application/vnd.troupe.workspace"

// Bounds of a workspace.
const (
	WorkspaceKeyMax      = 128 // bytes
	WorkspaceContentMax  = 60 << 10
	WorkspaceDocsMax     = 256
	WorkspaceVersionsMax = 8 // versions of a document that are kept
	WorkspaceBytesMax    = 16 << 20
	WorkspaceRemovedMax  = 1024 // removals that are remembered
	WorkspacePageMax     = 50   // documents of a page
)

// WorkspacePut is a change of a document.
type WorkspacePut struct {
	Key     string         `json:"key"`
	Content jsontext.Value `json:"content"`                 // null removes the document
	Expect  *uint64        `json:"expect_version,omitzero"` // version that MUST be current; 0: none; nil: any
	By      WorkspaceBy    `json:"by,omitzero"`
}

// WorkspaceBy is who has written a version. The node sets it.
type WorkspaceBy struct {
	Agent   string `json:"agent_id,omitzero"`
	Session string `json:"session_id,omitzero"`
	Run     string `json:"run_id,omitzero"`
}

// Encode returns the change as JSON.
func (p *WorkspacePut) Encode() []byte {
	return invariant.Must(json.Marshal(p, json.Deterministic(true)))
}

// workspaceVersion is a version of a document as it is stored.
type workspaceVersion struct {
	Content jsontext.Value `json:"content,omitzero"`
	At      actor.Time     `json:"at"`
	By      WorkspaceBy    `json:"by,omitzero"`
	Version uint64         `json:"version"`
}

// WorkspaceID returns the actor of the workspace of a tenant.
func WorkspaceID(tenant string) actor.ID {
	return actor.ID{Tenant: tenant, Agent: actor.WorkspaceAgent, Key: actor.DefaultKey}
}

// Workspaces returns the system agent that keeps workspaces.
func Workspaces() actor.Definition {
	def := Define(actor.WorkspaceAgent, "1", "Keeps the documents that the agents of a user share.", Pure(Config{Name: actor.WorkspaceAgent, Version: "1"}, workspaceStep))
	def.System = true
	return def
}

func workspaceStep(_ Config, state State) (Action, error) {
	call := &state.Request.Call
	var in WorkspacePut
	if call.Operation != OpWorkspacePut || len(call.Parts) != 1 || json.Unmarshal(call.Parts[0].Bytes, &in, json.RejectUnknownMembers(true)) != nil {
		return EndRefused(actor.Refuse(actor.Invalid, "want the operation %s with a change of a document", OpWorkspacePut)), nil
	}
	updates, answer, refusal := in.apply(state.Request.ActorState, state.Request.At)
	if refusal != nil {
		return EndRefused(refusal), nil
	}
	action := Complete(answer)
	action.StateUpdates = updates
	return action, nil
}

func workspaceRefusal(reason actor.Reason, field, format string, args ...any) *actor.Refusal {
	r := actor.Refuse(reason, field+": "+format, args...)
	r.Field = field
	return r
}

func checkWorkspaceKey(key string) *actor.Refusal {
	for part := range strings.SplitSeq(key, "/") {
		if len(key) > WorkspaceKeyMax || actor.CheckName(part) != nil {
			return workspaceRefusal(actor.Invalid, "key", "%.140q: want at most %d letters, digits, '.', '_' and '-', in parts of at most %d with '/' between them, such as plans/2027", key, WorkspaceKeyMax, actor.NameBytesMax)
		}
	}
	return nil
}

// check returns the refusal of a change that no workspace accepts.
func (p *WorkspacePut) check() *actor.Refusal {
	switch {
	case p.Content.Compact() != nil:
		return workspaceRefusal(actor.Invalid, "content", "want a JSON value, or null to remove the document")
	case len(p.Content) > WorkspaceContentMax:
		return workspaceRefusal(actor.Invalid, "content", "has %d bytes, at most %d allowed: divide it into several documents", len(p.Content), WorkspaceContentMax)
	}
	return checkWorkspaceKey(p.Key)
}

// apply returns the updates of a workspace that a change makes at a time, and its answer. Items are sorted by name.
func (p *WorkspacePut) apply(items []actor.StateItem, at actor.Time) (updates []actor.StateItem, answer string, _ *actor.Refusal) {
	if r := p.check(); r != nil {
		return nil, "", r
	}
	w := readWorkspace(items)
	doc, removes := w.document(p.Key), p.Content.Kind() == 'n'
	if p.Expect != nil && *p.Expect != doc.current() && (*p.Expect != 0 || len(doc.kept) > 0) {
		return nil, "", workspaceRefusal(actor.Rejected, "expect_version", "the current version of %s is %d, not %d: read it with %s, and repeat your change with expect_version %d",
			p.Key, doc.current(), *p.Expect, tools.WorkspaceGet, doc.current())
	}
	switch {
	case removes && len(doc.kept) == 0:
		return nil, "", doc.notFound()
	case !removes && len(doc.kept) == 0 && len(w.docs) >= WorkspaceDocsMax:
		return nil, "", actor.Refuse(actor.Budget, "the workspace has %d documents, at most %d allowed: remove one with the content null", len(w.docs), WorkspaceDocsMax)
	}
	next := workspaceVersion{At: at, By: p.By, Version: doc.current() + 1}
	name, status := workspaceItem(p.Key, next.Version), "replaced"
	switch {
	case removes:
		name, status = workspaceRemoved+p.Key, "removed"
		if len(w.removed) >= WorkspaceRemovedMax {
			updates = append(updates, actor.StateItem{Name: w.oldestRemoval()})
		}
	case len(doc.kept) == 0:
		status = "created"
	}
	if !removes {
		next.Content = p.Content
	}
	if doc.removed > 0 {
		updates = append(updates, actor.StateItem{Name: workspaceRemoved + p.Key})
	}
	item := actor.StateItem{Name: name, Value: invariant.Must(json.Marshal(next, json.Deterministic(true)))}
	size := w.bytes + len(item.Name) + len(item.Value)
	for i, version := range doc.kept {
		if !removes && len(doc.kept)-i < WorkspaceVersionsMax && size <= WorkspaceBytesMax {
			break
		}
		dropped := actor.StateItem{Name: workspaceItem(p.Key, version)}
		size -= len(dropped.Name) + len(w.value(dropped.Name))
		updates = append(updates, dropped)
	}
	if !removes && size > WorkspaceBytesMax {
		return nil, "", actor.Refuse(actor.Budget, "the workspace would have %d bytes with the versions that are kept, at most %d allowed: remove documents with the content null", size, WorkspaceBytesMax)
	}
	view := struct {
		Key     string `json:"key"`
		Version uint64 `json:"version"`
		Status  string `json:"status"`
		At      string `json:"at"`
	}{p.Key, next.Version, status, runs.FormatTime(at)}
	return append(updates, item), string(invariant.Must(json.Marshal(view, json.Deterministic(true)))), nil
}

// Prefixes of the names of state items.
const (
	workspaceDocs    = "d/"
	workspaceRemoved = "r/"
)

func workspaceItem(key string, version uint64) string {
	return fmt.Sprintf("%s%s/%010d", workspaceDocs, key, version)
}

// workspace is the state of the actor of a workspace.
type workspace struct {
	items   []actor.StateItem
	docs    []*workspaceDocument // with content, in the order of their keys
	removed []*workspaceDocument // the other ones that are remembered
	bytes   int
}

// workspaceDocument is what is kept of a document.
type workspaceDocument struct {
	key     string
	kept    []uint64 // versions, oldest first
	removed uint64   // version that is its removal; 0: it was not removed
}

// current returns the number of the newest version, 0 if there never was one.
func (d *workspaceDocument) current() uint64 {
	if len(d.kept) == 0 {
		return d.removed
	}
	return d.kept[len(d.kept)-1]
}

func (d *workspaceDocument) notFound() *actor.Refusal {
	was := ""
	if d.removed > 0 {
		was = fmt.Sprintf(" since its version %d, which removed it", d.removed)
	}
	return workspaceRefusal(actor.Invalid, "key", "the workspace has no document %.140q%s: %s without a key lists those that it has", d.key, was, tools.WorkspaceGet)
}

func readWorkspace(items []actor.StateItem) *workspace {
	w := &workspace{items: items}
	var last *workspaceDocument
	byKey := map[string]*workspaceDocument{}
	for i := range items {
		name := items[i].Name
		w.bytes += len(name) + len(items[i].Value)
		if key, ok := strings.CutPrefix(name, workspaceRemoved); ok {
			w.removed = append(w.removed, &workspaceDocument{key: key, removed: w.version(name).Version})
			continue
		}
		name, ok := strings.CutPrefix(name, workspaceDocs)
		slash := strings.LastIndexByte(name, '/')
		if !ok || slash < 0 {
			continue
		}
		number, err := strconv.ParseUint(name[slash+1:], 10, 64)
		invariant.Check(err == nil, "workspace: item %s has no version", name)
		if last = byKey[name[:slash]]; last == nil {
			last = &workspaceDocument{key: name[:slash]}
			byKey[last.key] = last
			w.docs = append(w.docs, last)
		}
		last.kept = append(last.kept, number)
	}
	slices.SortFunc(w.docs, func(a, b *workspaceDocument) int { return strings.Compare(a.key, b.key) })
	return w
}

// document returns what is kept of a document. For an unknown key that is a document without versions.
func (w *workspace) document(key string) *workspaceDocument {
	for _, d := range append(w.docs[:len(w.docs):len(w.docs)], w.removed...) {
		if d.key == key {
			return d
		}
	}
	return &workspaceDocument{key: key}
}

// version returns the version in an item.
func (w *workspace) version(name string) (v workspaceVersion) {
	invariant.Check(json.Unmarshal(w.value(name), &v) == nil, "workspace: item %s cannot be read", name)
	return v
}

// value returns the value of an item that the workspace has.
func (w *workspace) value(name string) []byte {
	at, found := slices.BinarySearchFunc(w.items, name, func(i actor.StateItem, name string) int { return strings.Compare(i.Name, name) })
	invariant.Check(found, "workspace: there is no item %s", name)
	return w.items[at].Value
}

// oldestRemoval returns the item of the removal that was the first of those that are remembered.
func (w *workspace) oldestRemoval() string {
	oldest := slices.MinFunc(w.removed, func(a, b *workspaceDocument) int {
		return cmp.Or(cmp.Compare(w.version(workspaceRemoved+a.key).At, w.version(workspaceRemoved+b.key).At), strings.Compare(a.key, b.key))
	})
	return workspaceRemoved + oldest.key
}

// WorkspaceDocument returns a version of a document as models get it; 0 means the current one. Items are the state of
// the actor.
func WorkspaceDocument(items []actor.StateItem, key string, version uint64) ([]byte, *actor.Refusal) {
	if r := checkWorkspaceKey(key); r != nil {
		return nil, r
	}
	w := readWorkspace(items)
	doc := w.document(key)
	if len(doc.kept) == 0 {
		return nil, doc.notFound()
	}
	version = cmp.Or(version, doc.current())
	if !slices.Contains(doc.kept, version) {
		return nil, workspaceRefusal(actor.Invalid, "version", "%d: the versions %d to %d of %s are kept", version, doc.kept[0], doc.current(), key)
	}
	v := w.version(workspaceItem(key, version))
	return invariant.Must(json.Marshal(struct {
		Key     string         `json:"key"`
		Version uint64         `json:"version"`
		Current uint64         `json:"current_version"`
		Oldest  uint64         `json:"oldest_version"` // that can be read
		At      string         `json:"at"`
		Source  WorkspaceBy    `json:"source"`
		Content jsontext.Value `json:"content"`
	}{key, version, doc.current(), doc.kept[0], runs.FormatTime(v.At), v.By, v.Content}, json.Deterministic(true))), nil
}

// WorkspaceList returns a page of documents after a key as models get it.
func WorkspaceList(items []actor.StateItem, after string) []byte {
	type listed struct {
		Key     string      `json:"key"`
		Version uint64      `json:"version"`
		Bytes   int         `json:"bytes"`
		At      string      `json:"at"`
		Source  WorkspaceBy `json:"source"`
	}
	out := struct {
		Documents []listed `json:"documents"`
		Next      string   `json:"next,omitzero"`
	}{Documents: []listed{}}
	w := readWorkspace(items)
	for _, d := range w.docs {
		if d.key <= after {
			continue
		}
		if n := len(out.Documents); n == WorkspacePageMax {
			out.Next = out.Documents[n-1].Key
			break
		}
		v := w.version(workspaceItem(d.key, d.current()))
		out.Documents = append(out.Documents, listed{d.key, d.current(), len(v.Content), runs.FormatTime(v.At), v.By})
	}
	return invariant.Must(json.Marshal(out, json.Deterministic(true)))
}

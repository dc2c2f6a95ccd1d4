// SPDX-License-Identifier: Apache-2.0

package agents

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/internal/invariant"
)

// A context is a JSON value that an agent or a client stores and reads by its key. The
// contexts of a session are the state of one actor of actor.ContextAgent, whose key is the
// session, so that they are deleted with it:
//
//	m/<id>               description: ContextInfo
//	c/<id>/<version>/<n> the n-th chunk of a version
//	n/<number>           Note
//	created              SessionCreated
//
// The content of a context is in no run event.

// The operations of actor.ContextAgent. The first part of the message is a ContextCommand,
// the second the value, with MediaContext.
const (
	OpContextPut    = "context.put"
	OpContextDelete = "context.delete"
)

// MediaContext is the media type of a value in a message. Events show no parts of it.
const MediaContext = "application/vnd.troupe.context"

// Bounds of contexts. A version of the maximum size and the deletion of all versions fit
// into the updates of one action.
const (
	ContextBytesMax    = 1<<20 - 1<<12
	ContextVersionsMax = 3 // versions that are kept
	ContextsMax        = 1000
	contextChunk       = actor.StateItemValueBytesMax
)

// ContextCommand describes a change of a context.
type ContextCommand struct {
	ID        string  `json:"id"` // first part of the key
	OwnerType string  `json:"owner_type,omitzero"`
	OwnerID   string  `json:"owner_id,omitzero"`
	Version   *uint64 `json:"version,omitzero"` // version that MUST be current; nil: any
	Create    bool    `json:"create,omitzero"`
}

// ContextInfo describes a context.
type ContextInfo struct {
	OwnerType string           `json:"owner_type"`
	OwnerID   string           `json:"owner_id"`
	Versions  []ContextVersion `json:"versions"` // oldest first
}

// ContextVersion is one version of a context.
type ContextVersion struct {
	Version uint64     `json:"version"`
	Bytes   int        `json:"bytes"`
	At      actor.Time `json:"at"`
}

// Current returns the newest version.
func (i *ContextInfo) Current() ContextVersion { return i.Versions[len(i.Versions)-1] }

// Contexts returns the system agent that stores contexts.
func Contexts() actor.Definition {
	def := Define(actor.ContextAgent, "1", "Stores the contexts and notes of a session.", Pure(Config{Name: actor.ContextAgent, Version: "1"}, contextStep))
	def.System = true
	return def
}

func contextStep(_ Config, state State) (Action, error) {
	call := &state.Request.Call
	if call.Operation == OpNote {
		return noteStep(&state), nil
	}
	var in ContextCommand
	if len(call.Parts) == 0 || json.Unmarshal(call.Parts[0].Bytes, &in, json.RejectUnknownMembers(true)) != nil || in.ID == "" {
		return EndRefused(actor.Refuse(actor.Invalid, "want the description of a change of a context")), nil
	}
	info, found := readContextInfo(state.Request.ActorState, in.ID)
	if !found && !in.Create {
		return EndRefused(ContextNotFound()), nil
	}
	if in.Version != nil && found && *in.Version != info.Current().Version {
		r := actor.Refuse(actor.Rejected, "the current version is %d, not %d: read the context and repeat the change", info.Current().Version, *in.Version)
		r.Field = "version"
		return EndRefused(r), nil
	}
	switch call.Operation {
	case OpContextDelete:
		updates := []actor.StateItem{{Name: infoName(in.ID)}}
		for _, v := range info.Versions {
			updates = append(updates, droppedChunks(in.ID, v)...)
		}
		action := Complete("{}")
		action.StateUpdates = updates
		return action, nil
	case OpContextPut:
		if len(call.Parts) != 2 || len(call.Parts[1].Bytes) == 0 || len(call.Parts[1].Bytes) > ContextBytesMax {
			return EndRefused(actor.Refuse(actor.Invalid, "want a value of 1 to %d bytes", ContextBytesMax)), nil
		}
		if !found && countContexts(state.Request.ActorState) >= ContextsMax {
			return EndRefused(actor.Refuse(actor.Budget, "the session has %d contexts, at most %d allowed; delete one first", ContextsMax, ContextsMax)), nil
		}
		action := putContext(&in, info, found, call.Parts[1].Bytes, state.Request.At)
		action.StateUpdates = appendCreated(action.StateUpdates, &state)
		return action, nil
	}
	return EndRefused(actor.Refuse(actor.Invalid, "want the operation %s, %s or %s, got %.40q", OpContextPut, OpContextDelete, OpNote, call.Operation)), nil
}

func putContext(in *ContextCommand, info ContextInfo, found bool, value []byte, at actor.Time) Action {
	next := ContextVersion{Version: 1, Bytes: len(value), At: at}
	if found {
		next.Version = info.Current().Version + 1
	} else {
		info.OwnerType, info.OwnerID = in.OwnerType, in.OwnerID
	}
	var updates []actor.StateItem
	info.Versions = append(slices.Clip(info.Versions), next)
	if len(info.Versions) > ContextVersionsMax {
		updates = droppedChunks(in.ID, info.Versions[0])
		info.Versions = info.Versions[1:]
	}
	for n := 0; n*contextChunk < len(value); n++ {
		updates = append(updates, actor.StateItem{Name: chunkName(in.ID, next.Version, n), Value: value[n*contextChunk : min((n+1)*contextChunk, len(value))]})
	}
	updates = append(updates, actor.StateItem{Name: infoName(in.ID), Value: invariant.Must(json.Marshal(info))})
	action := Complete(fmt.Sprintf(`{"version":%d}`, next.Version))
	action.StateUpdates = updates
	return action
}

// ContextChange is a version of a context that one change of the state of its actor writes, or deletes.
type ContextChange struct {
	ID      string
	Version uint64
	Value   []byte // nil: it is deleted
	Info    ContextInfo
	At      actor.Time
}

// ContextChanges returns the versions that updates of the state write and delete.
func ContextChanges(updates []actor.StateItem) (all []ContextChange) {
	infos := map[string]ContextInfo{}
	for _, item := range updates {
		var info ContextInfo
		if id, ok := strings.CutPrefix(item.Name, "m/"); ok && len(item.Value) > 0 && json.Unmarshal(item.Value, &info) == nil {
			infos[id] = info
		}
	}
	for _, item := range updates {
		rest, ok := strings.CutPrefix(item.Name, "c/")
		parts := strings.Split(rest, "/")
		if !ok || len(parts) != 3 {
			continue
		}
		version, err := strconv.ParseUint(parts[1], 10, 64)
		if err != nil {
			continue
		}
		at := slices.IndexFunc(all, func(c ContextChange) bool { return c.ID == parts[0] && c.Version == version })
		if at < 0 {
			at = len(all)
			all = append(all, ContextChange{ID: parts[0], Version: version, Info: infos[parts[0]]})
			for _, v := range all[at].Info.Versions {
				if v.Version == version {
					all[at].At = v.At
				}
			}
		}
		all[at].Value = append(all[at].Value, item.Value...)
	}
	return all
}

// ContextNotFound returns the refusal for an unknown context.
func ContextNotFound() *actor.Refusal {
	return actor.RefuseNotFound(actor.WhatContext, "no such context: it was deleted, or the key is that of another user")
}

// VersionNotFound returns the refusal for a version that a context does not have.
func (i *ContextInfo) VersionNotFound(version uint64) *actor.Refusal {
	r := ContextNotFound()
	if newest := i.Current().Version; version > newest {
		r.Detail = fmt.Sprintf("there is no version %d yet: the newest is %d", version, newest)
		return r
	}
	var kept []string
	for _, v := range i.Versions {
		kept = append(kept, strconv.FormatUint(v.Version, 10))
	}
	last := len(kept) - 1
	r.Detail = fmt.Sprintf("version %d was dropped: %s and %s are kept", version, strings.Join(kept[:last], ", "), kept[last])
	return r
}

func infoName(id string) string { return "m/" + id }

func chunkName(id string, version uint64, n int) string {
	return fmt.Sprintf("c/%s/%d/%d", id, version, n)
}

// droppedChunks returns the updates that delete a version.
func droppedChunks(id string, v ContextVersion) (updates []actor.StateItem) {
	for n := 0; n*contextChunk < v.Bytes; n++ {
		updates = append(updates, actor.StateItem{Name: chunkName(id, v.Version, n)})
	}
	return updates
}

func countContexts(items []actor.StateItem) (n int) {
	for _, item := range items {
		if strings.HasPrefix(item.Name, "m/") {
			n++
		}
	}
	return n
}

func stateValue(items []actor.StateItem, name string) ([]byte, bool) {
	at, found := slices.BinarySearchFunc(items, name, func(i actor.StateItem, name string) int { return strings.Compare(i.Name, name) })
	if !found {
		return nil, false
	}
	return items[at].Value, true
}

func readContextInfo(items []actor.StateItem, id string) (info ContextInfo, found bool) {
	value, found := stateValue(items, infoName(id))
	if !found || json.Unmarshal(value, &info) != nil || len(info.Versions) == 0 {
		return ContextInfo{}, false
	}
	return info, true
}

// ReadContext returns a version of a context from the state of its actor; version 0 means
// the newest. The value is nil if there is none.
func ReadContext(items []actor.StateItem, id string, version uint64) (info ContextInfo, v ContextVersion, value []byte) {
	info, found := readContextInfo(items, id)
	if !found {
		return info, v, nil
	}
	i := slices.IndexFunc(info.Versions, func(v ContextVersion) bool { return v.Version == version })
	if version == 0 {
		i = len(info.Versions) - 1
	}
	if i < 0 {
		return info, v, nil
	}
	v = info.Versions[i]
	for n := 0; n*contextChunk < v.Bytes; n++ {
		chunk, ok := stateValue(items, chunkName(id, v.Version, n))
		if !ok {
			return info, v, nil
		}
		value = append(value, chunk...)
	}
	return info, v, value
}

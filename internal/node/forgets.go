// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bufio"
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/agents"
	"github.com/troupe-run/troupe/host/prompts"
	"github.com/troupe-run/troupe/memory"
	"github.com/troupe-run/troupe/runs"
)

// ForgetsFile is the file beside the store with a line for each entity that was forgotten, and for each session that
// was deleted while prompts were recorded. A store that is restored from an older backup still remembers such
// entities, and its backup has such prompts: with the file they are forgotten again.
const ForgetsFile = "forgets.jsonl"

// ForgetsRestored is the file of forgets that was given to a restored store. The first start forgets again
// what it names, and removes it.
const ForgetsRestored = "forgets.restored.jsonl"

// forgetsBytesMax is the size at which the file is not read.
const forgetsBytesMax = 1 << 30

// forget is a line of the file. It names no entity, only its key, or no session, only its digests.
type forget struct {
	At      string `json:"at"`
	Actor   string `json:"actor,omitzero"`
	Key     string `json:"key,omitzero"` // of the entity; see memory.Key
	Reason  string `json:"reason,omitzero"`
	Prompts string `json:"prompts,omitzero"` // session whose recorded prompts are gone, or allPrompts
}

// allPrompts stands for all sessions: those of prompts that were recorded before the time of the line are gone.
const allPrompts = "*"

// forgets appends to the file.
type forgets struct {
	path string

	mu    sync.Mutex
	file  *os.File
	lines int // of deleted sessions since the file was shortened; -1: unknown
}

// create creates the file, which marks a store whose agents remember.
func (f *forgets) create() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.open()
}

// open opens the file. The caller holds f.mu.
func (f *forgets) open() (err error) {
	if f.file == nil {
		if f.file, err = os.OpenFile(f.path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600); err != nil {
			return fmt.Errorf("forgets: %w", err)
		}
	}
	return nil
}

// write appends a line for an entity and syncs it.
func (f *forgets) write(id actor.ID, c *memory.Change) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.append(forget{At: runs.FormatTime(actor.Time(time.Now().UnixNano())), Actor: id.String(), Key: memory.Key(c.Entity), Reason: c.Reason})
}

// append appends a line and syncs it. The caller holds f.mu.
func (f *forgets) append(line forget) error {
	if err := f.open(); err != nil {
		return err
	}
	b, err := line.encode()
	if err == nil {
		_, err = f.file.Write(b)
	}
	if err == nil {
		err = f.file.Sync()
	}
	if err != nil {
		return fmt.Errorf("forgets %s: %w", f.path, err)
	}
	return nil
}

// encode returns the line with its end.
func (f *forget) encode() ([]byte, error) {
	b, err := json.Marshal(f, json.Deterministic(true))
	return append(b, '\n'), err
}

// Deleted implements prompts.Deletions.
func (f *forgets) Deleted(session string, upto time.Time) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.lines >= 0 {
		f.lines++
	}
	return f.append(forget{At: runs.FormatTime(actor.Time(upto.UnixNano())), Prompts: session})
}

// shortenAfter is the number of deleted sessions after which the file is shortened.
const shortenAfter = 1000

// Expired implements prompts.Deletions: the lines of sessions that were deleted before the time become one.
func (f *forgets) Expired(before time.Time) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.lines >= 0 && f.lines < shortenAfter {
		return nil
	}
	f.lines = 0
	b, err := ReadForgets(f.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	all, err := decodeForgets(b)
	if err != nil {
		return fmt.Errorf("forgets %s: %w", f.path, err)
	}
	kept := slices.DeleteFunc(slices.Clone(all), func(l forget) bool { return l.Prompts != "" && l.time().Before(before) })
	if len(kept) == len(all) {
		return nil
	}
	var out []byte
	for _, l := range append(kept, forget{At: runs.FormatTime(actor.Time(before.UnixNano())), Prompts: allPrompts}) {
		line, err := l.encode()
		if err != nil {
			return err
		}
		out = append(out, line...)
	}
	temp := f.path + ".new"
	err = writeSynced(temp, out)
	if err == nil {
		err = os.Rename(temp, f.path)
	}
	if err != nil {
		return fmt.Errorf("forgets: %w", errors.Join(err, os.Remove(temp)))
	}
	file := f.file // of the former content
	if f.file = nil; file != nil {
		_ = file.Close()
	}
	return f.open()
}

// time returns the time of a line that was checked.
func (f *forget) time() time.Time {
	at, _ := runs.ParseTime(f.At)
	return time.Unix(0, int64(at))
}

func (f *forgets) close() error {
	if f == nil {
		return nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.file == nil {
		return nil
	}
	return f.file.Close()
}

// ReadForgets checks the file of forgets and returns its content. The last line may be incomplete.
func ReadForgets(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if info.Size() > forgetsBytesMax {
		return nil, fmt.Errorf("forgets %s: %d bytes, at most %d allowed", path, info.Size(), forgetsBytesMax)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	b = b[:bytes.LastIndexByte(b, '\n')+1]
	_, err = decodeForgets(b)
	return b, err
}

func decodeForgets(b []byte) (all []forget, err error) {
	lines := bufio.NewScanner(bytes.NewReader(b))
	for n := 1; lines.Scan(); n++ {
		var f forget
		if err := json.Unmarshal(lines.Bytes(), &f, json.RejectUnknownMembers(true)); err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
		if _, err := runs.ParseTime(f.At); err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
		if f.Prompts != "" {
			if session, err := hex.DecodeString(strings.Replace(f.Prompts, "/", "", 1)); f.Prompts != allPrompts && (err != nil || len(session) != 24) || f.Actor != "" {
				return nil, fmt.Errorf("line %d: prompts: want two numbers of 24 hexadecimal digits and a slash, or %s", n, allPrompts)
			}
			all = append(all, f)
			continue
		}
		if _, err := actor.ParseID(f.Actor); err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
		if key, err := hex.DecodeString(f.Key); err != nil || len(key) != 16 {
			return nil, fmt.Errorf("line %d: key: want 32 hexadecimal digits", n)
		}
		all = append(all, f)
	}
	return all, lines.Err()
}

// repeatForgets forgets what a store, restored from a backup, still remembers although a line of the file
// is newer. It is performed before the node takes requests.
func (m *memories) repeatForgets(ctx context.Context, path string) (n int, err error) {
	b, err := ReadForgets(path)
	if err != nil {
		return 0, err
	}
	all, err := decodeForgets(b)
	if err != nil {
		return 0, err
	}
	for _, f := range all {
		if f.Prompts != "" { // the restore has left them out
			continue
		}
		id, _ := actor.ParseID(f.Actor)
		at, _ := runs.ParseTime(f.At)
		var name string
		err := m.with(ctx, id, func(x *memory.Index) { name = x.NameBefore(f.Key, at) })
		var r *actor.Refusal
		if errors.As(err, &r) && r.Reason == actor.NotFound { // the session was deleted
			continue
		}
		if err != nil {
			return n, err
		}
		if name == "" {
			continue
		}
		change := memory.Change{Entity: name, Reason: f.Reason}
		call := actor.Call{ID: m.commands.engine.NewCallID(), To: id, Operation: memory.OpForget, Left: memoryTimeout, Principal: agents.Operator, Origin: actor.System,
			Parts: []actor.Part{{Media: agents.MediaMemory, Bytes: change.Encode()}}}
		a, err := m.change(ctx, call, change)
		if err == nil && a.Reply.Refusal != nil {
			err = a.Reply.Refusal
		}
		if err != nil {
			return n, err
		}
		n++
	}
	return n, nil
}

// repeatForgets completes a restore. Without memory nobody can read what is remembered, and the file waits.
func (n *Node) repeatForgets(log *slog.Logger) error {
	path := filepath.Join(n.dir, ForgetsRestored)
	if _, err := os.Stat(path); n.memories == nil || errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	done, err := n.memories.repeatForgets(context.Background(), path)
	if err != nil {
		return fmt.Errorf("forget again what the restored store remembers: %w", err)
	}
	log.Info("forgot again what the restored store remembered", "entities", done)
	return os.Remove(path)
}

// Remembers reports whether a backup is of a server whose agents remember, or that has recorded prompts.
func Remembers(backup string) (bool, error) {
	_, err := os.Stat(filepath.Join(backup, ForgetsFile))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// CopyForgets copies the file of forgets, if there is one, to a copy of a store.
func CopyForgets(from, to string) error {
	b, err := ReadForgets(filepath.Join(from, ForgetsFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return writeSynced(filepath.Join(to, ForgetsFile), b)
}

// CopyBeside copies what is beside the store of a data folder that no server uses to a copy of the store.
func CopyBeside(from, to string) error {
	return errors.Join(prompts.Copy(filepath.Join(from, PromptsFolder), filepath.Join(to, PromptsFolder), nil), CopyForgets(from, to))
}

// PutForgets completes a data folder that was restored from a backup, with its recorded prompts. Prompts that the
// content of a file of forgets names are left out, and the first start forgets again what else it names; nil means that
// of the backup, so that nothing is forgotten again.
func PutForgets(backup, data string, forgets []byte) error {
	if forgets == nil {
		if err := CopyForgets(backup, data); err != nil {
			return err
		}
		var err error
		if forgets, err = ReadForgets(filepath.Join(data, ForgetsFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	} else if err := errors.Join(writeSynced(filepath.Join(data, ForgetsRestored), forgets), writeSynced(filepath.Join(data, ForgetsFile), forgets)); err != nil {
		return err
	}
	all, err := decodeForgets(forgets)
	if err != nil {
		return err
	}
	return prompts.Copy(filepath.Join(backup, PromptsFolder), filepath.Join(data, PromptsFolder), deletedPrompts(all))
}

// deletedPrompts returns a function that reports which prompts are gone by the lines of a file of forgets.
func deletedPrompts(all []forget) func(session string, at time.Time) bool {
	gone := map[string]time.Time{} // until then
	for _, f := range all {
		if f.Prompts != "" && f.time().After(gone[f.Prompts]) {
			gone[f.Prompts] = f.time()
		}
	}
	return func(session string, at time.Time) bool {
		return !at.After(gone[session]) || at.Before(gone[allPrompts])
	}
}

func writeSynced(path string, content []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	return errors.Join(err, f.Sync(), f.Close())
}

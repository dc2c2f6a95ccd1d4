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
	"sync"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/agents"
	"github.com/troupe-run/troupe/memory"
	"github.com/troupe-run/troupe/runs"
)

// ForgetsFile is the file beside the store with a line for each entity that was forgotten. A store that is
// restored from an older backup still remembers such entities: with the file it forgets them again.
const ForgetsFile = "forgets.jsonl"

// ForgetsRestored is the file of forgets that was given to a restored store. The first start forgets again
// what it names, and removes it.
const ForgetsRestored = "forgets.restored.jsonl"

// forgetsBytesMax is the size at which the file is not read.
const forgetsBytesMax = 1 << 30

// forget is a line of the file. It names no entity, only its key.
type forget struct {
	At     string `json:"at"`
	Actor  string `json:"actor"`
	Key    string `json:"key"` // of the entity; see memory.Key
	Reason string `json:"reason"`
}

// forgets appends to the file.
type forgets struct {
	path string

	mu   sync.Mutex
	file *os.File
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

// write appends a line and syncs it.
func (f *forgets) write(id actor.ID, c *memory.Change) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.open(); err != nil {
		return err
	}
	line, err := json.Marshal(forget{runs.FormatTime(actor.Time(time.Now().UnixNano())), id.String(), memory.Key(c.Entity), c.Reason}, json.Deterministic(true))
	if err != nil {
		return err
	}
	if _, err = f.file.Write(append(line, '\n')); err == nil {
		err = f.file.Sync()
	}
	if err != nil {
		return fmt.Errorf("forgets %s: %w", f.path, err)
	}
	return nil
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
		if _, err := actor.ParseID(f.Actor); err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
		if key, err := hex.DecodeString(f.Key); err != nil || len(key) != 16 {
			return nil, fmt.Errorf("line %d: key: want 32 hexadecimal digits", n)
		}
		if _, err := runs.ParseTime(f.At); err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
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

// Remembers reports whether a backup is of a server whose agents remember.
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

// PutForgets completes a data folder that was restored from a backup. The first start forgets again what the
// content of a file of forgets names; nil means that nothing is forgotten again.
func PutForgets(backup, data string, forgets []byte) error {
	if forgets == nil {
		return CopyForgets(backup, data)
	}
	if err := writeSynced(filepath.Join(data, ForgetsRestored), forgets); err != nil {
		return err
	}
	return writeSynced(filepath.Join(data, ForgetsFile), forgets)
}

func writeSynced(path string, content []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	return errors.Join(err, f.Sync(), f.Close())
}

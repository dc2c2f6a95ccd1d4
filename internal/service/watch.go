// SPDX-License-Identifier: Apache-2.0

package service

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/host/mcp"
	"github.com/troupe-run/troupe/internal/invariant"
)

const (
	// watchQuiet is the time without a change after which a folder is read. Editors
	// and version control write files in several operations.
	watchQuiet = 200 * time.Millisecond
	// watchWaitMax is the maximum time from a change to reading the folder.
	watchWaitMax = 5 * time.Second
	// watchRetry is the time between attempts to watch a folder that is gone.
	watchRetry = time.Second
)

// Watch applies the files of a folder to a node again whenever they change.
//
// If a file has errors, nothing is changed: troupe serve would not start with it. An agent or
// a tool whose file is gone stays, as it would at the next start. MCP servers start with
// the node: their changes are reported and not applied.
type Watch struct {
	dir     string
	data    string // flags of the commands that the log suggests
	store   AgentStore
	log     *slog.Logger
	watcher *fsnotify.Watcher

	agents   map[string]actor.Hash // applied agents of the files, by ID
	tools    map[string]actor.Hash // applied tools of the files, by name
	servers  map[string]mcp.Config
	warned   map[FileProblem]bool
	problems []FileProblem // of the newest reading, if it had errors
	broken   string        // error of the newest reading of the folder

	read func(dir string) (*AgentFiles, error) // ReadAgentFiles

	config               string // path of the configuration of the server; "": none is watched
	check                string // command that checks it
	configUsed, configIs string // its text at the start, and that of the newest reading
	configBroken         string // error of the newest reading
}

// NewWatch watches a folder whose files were applied to a node. The caller MUST call Run. The
// flags data select the data folder of the node in commands that the log suggests.
func NewWatch(dir, data string, applied *AgentFiles, store AgentStore, log *slog.Logger) (*Watch, error) {
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, fmt.Errorf("watch %s: %w; serve without --watch", dir, err)
	}
	w := &Watch{dir: filepath.Clean(dir), data: data, store: store, log: log, watcher: watcher, read: ReadAgentFiles, agents: map[string]actor.Hash{}, tools: map[string]actor.Hash{}, servers: applied.MCP(), warned: map[FileProblem]bool{}}
	for _, a := range applied.Agents {
		if now, ok := store.Agent(a.Spec.ID); ok && now.Hash() == a.Spec.Hash() { // the registry may have been busy
			w.agents[a.Spec.ID] = now.Hash()
		}
	}
	for _, t := range applied.Tools {
		if now, ok := store.Tool(t.Declared.Name); ok && now.Hash() == t.Declared.Hash() {
			w.tools[t.Declared.Name] = now.Hash()
		}
	}
	for _, p := range applied.Problems {
		w.warned[p] = true
	}
	if err := watcher.Add(w.dir); err != nil {
		return nil, errors.Join(fmt.Errorf("watch %s: %w; serve without --watch", dir, err), watcher.Close())
	}
	w.followLinks()
	return w, nil
}

// configBytesMax is the maximum size of a configuration in bytes.
const configBytesMax = 1 << 20

// AddConfig reports changes of the configuration of the server, which apply at its next start. The
// log suggests the command check. The caller MUST call AddConfig before Run.
func (w *Watch) AddConfig(path, check string) {
	w.config, w.check = filepath.Clean(path), check
	w.configUsed, _ = w.readConfig()
	w.configIs = w.configUsed
	if err := w.watcher.Add(filepath.Dir(w.config)); err != nil {
		w.log.Warn("the configuration is not watched", "file", w.config, "error", err.Error())
	}
}

// readConfig returns the text of the configuration, or false if it cannot be read.
func (w *Watch) readConfig() (string, bool) {
	text, err := readRegular(w.config, configBytesMax)
	if err != nil {
		if w.configBroken != err.Error() {
			w.configBroken = err.Error()
			w.log.Warn("configuration cannot be read", "file", w.config, "error", w.configBroken)
		}
		return "", false
	}
	w.configBroken = ""
	return string(text), true
}

// reportConfig reports a change of the configuration.
func (w *Watch) reportConfig() {
	if w.config == "" {
		return
	}
	text, ok := w.readConfig()
	if !ok || text == w.configIs {
		return
	}
	w.configIs = text
	log := w.log.With("file", w.config)
	if text == w.configUsed {
		log.Info("configuration: it is again the one in use")
		return
	}
	log.Warn("configuration changed: this applies at the next start; to check it: " + w.check)
}

// concerns reports whether an event may change a file that is watched. The folder of the
// configuration may have others, such as a log, that change all the time.
func (w *Watch) concerns(e fsnotify.Event) bool {
	folder := filepath.Dir(e.Name)
	return w.config == "" || folder == w.dir || e.Name == w.dir || folder != filepath.Dir(w.config) || filepath.Ext(e.Name) == ".toml" || e.Name == w.config
}

// followLinks watches the folders of files that are links. A change of such a file is no
// change of the folder with the link.
func (w *Watch) followLinks() {
	entries, err := os.ReadDir(w.dir)
	if err != nil {
		return // reload reports it
	}
	folders := map[string]bool{}
	for _, e := range entries {
		if e.Type()&os.ModeSymlink == 0 || filepath.Ext(e.Name()) != ".toml" || len(folders) == AgentFilesMax {
			continue
		}
		if target, err := filepath.EvalSymlinks(filepath.Join(w.dir, e.Name())); err == nil {
			folders[filepath.Dir(target)] = true
		}
	}
	for _, folder := range slices.Sorted(maps.Keys(folders)) {
		if err := w.watcher.Add(folder); err != nil {
			w.log.Warn("links of agent files are not watched", "folder", folder, "error", err.Error())
		}
	}
}

// Run applies changes until ctx ends.
func (w *Watch) Run(ctx context.Context) {
	changed := make(chan struct{}, 1)
	done := make(chan struct{})
	go func() {
		defer close(done)
		w.listen(ctx, changed)
	}()
	changed <- struct{}{} // files may have changed since they were read
	for settle(ctx, changed, watchQuiet, watchWaitMax) {
		w.followLinks() // before the files are read: a later change is reported
		w.reload(ctx)
		w.reportConfig()
	}
	<-done
	if err := w.watcher.Close(); err != nil {
		w.log.Warn("watching agent files", "error", err.Error())
	}
}

// listen reports changes until ctx ends. Several changes may be one report.
func (w *Watch) listen(ctx context.Context, changed chan<- struct{}) {
	retry := time.NewTicker(watchRetry)
	defer retry.Stop()
	lost := false
	for {
		report := false
		select {
		case <-ctx.Done():
			return
		case e := <-w.watcher.Events:
			report = w.concerns(e) // also if a file has become readable
			if e.Name == w.dir && (e.Has(fsnotify.Remove) || e.Has(fsnotify.Rename)) {
				lost = true
			}
		case err := <-w.watcher.Errors: // for example too many events for its queue: some are lost
			w.log.Warn("watching agent files", "error", err.Error())
			report = true
		case <-retry.C:
			if lost {
				_ = w.watcher.Remove(w.dir) // a folder that was renamed is still watched
				lost = w.watcher.Add(w.dir) != nil
				report = !lost
			}
		}
		if report {
			select {
			case changed <- struct{}{}:
			default:
			}
		}
	}
}

// settle waits for a change and then until none follows for the time quiet, but at
// most for the time limit. It returns false if ctx ended.
func settle(ctx context.Context, changed <-chan struct{}, quiet, limit time.Duration) bool {
	select {
	case <-changed:
	case <-ctx.Done():
		return false
	}
	end := time.NewTimer(limit)
	defer end.Stop()
	pause := time.NewTimer(quiet)
	defer pause.Stop()
	for {
		select {
		case <-changed:
			pause.Reset(quiet)
		case <-pause.C:
			return true
		case <-end.C:
			return true
		case <-ctx.Done():
			return false
		}
	}
}

// readWarnAfter is the time after which a reading that does not end is logged.
const readWarnAfter = 10 * time.Second

// readFiles reads the folder, unless ctx ends first. A file of a network may not answer for long.
func (w *Watch) readFiles(ctx context.Context) (files *AgentFiles, err error) {
	done := make(chan struct{})
	var read *AgentFiles
	var readErr error
	go func() {
		defer close(done)
		read, readErr = w.read(w.dir)
	}()
	slow := time.NewTimer(readWarnAfter)
	defer slow.Stop()
	for {
		select {
		case <-done:
			return read, readErr
		case <-slow.C:
			w.log.Warn("agent files: a read takes long; no change applies until it ends", "folder", w.dir)
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// reload reads the files and applies those whose definition differs from the applied one.
func (w *Watch) reload(ctx context.Context) {
	files, err := w.readFiles(ctx)
	if ctx.Err() != nil {
		return
	}
	if err != nil {
		if w.broken != err.Error() {
			w.broken = err.Error()
			w.log.Error("agent files not read: all definitions stay", "error", w.broken)
		}
		return
	}
	w.broken = ""
	if files.HasErrors() {
		if !slices.Equal(w.problems, files.Problems) {
			for _, p := range files.Problems {
				if !p.Warning {
					w.log.Error(p.String())
				}
			}
			w.log.Error("agent files with errors not applied: all definitions stay")
		}
		w.problems = files.Problems
		return
	}
	if w.problems != nil {
		w.problems = nil
		w.log.Info("agent files have no more errors")
	}
	for _, p := range files.Problems {
		if !w.warned[p] {
			w.log.Warn(strings.Replace(p.String(), ": warning", "", 1))
		}
	}
	w.warned = map[FileProblem]bool{}
	for _, p := range files.Problems {
		w.warned[p] = true
	}
	for _, t := range files.Tools {
		if ctx.Err() == nil {
			w.applyTool(ctx, t)
		}
	}
	for _, a := range files.Agents {
		if ctx.Err() == nil {
			w.applyAgent(ctx, a)
		}
	}
	w.reportGone(files)
	w.reportServers(files.MCP())
}

func (w *Watch) applyTool(ctx context.Context, t ToolFile) {
	name := t.Declared.Name
	if w.tools[name] == t.Declared.Hash() {
		return
	}
	var before []byte
	if old, ok := w.store.Tool(name); ok {
		before = old.Encode()
	}
	changed, warnings, err := w.store.PutTool(ctx, t.Declared)
	if w.applied("tool "+name, t.Path, before, t.Declared.Encode(), changed, warnings, err) {
		w.tools[name] = t.Declared.Hash()
	}
}

func (w *Watch) applyAgent(ctx context.Context, a AgentFile) {
	id := a.Spec.ID
	if w.agents[id] == a.Spec.Hash() {
		return
	}
	var before []byte
	if old, ok := w.store.Agent(id); ok {
		before = old.Encode()
	}
	changed, warnings, err := w.store.PutAgent(ctx, a.Spec)
	if w.applied("agent "+id, a.Path, before, a.Spec.Encode(), changed, warnings, err) {
		w.agents[id] = a.Spec.Hash()
	}
}

// applied reports the result of storing an agent or a tool, and whether it is stored.
func (w *Watch) applied(what, path string, before, after []byte, changed bool, warnings []string, err error) bool {
	log := w.log.With("file", path)
	switch {
	case err != nil:
		log.Error(what+": not changed, its definition stays; save the file to try again", "error", err.Error())
	case !changed:
	case before == nil:
		log.Info(what + ": added")
	default:
		log.Info(what + ": " + changedFields(before, after))
	}
	for _, text := range warnings {
		if !strings.HasPrefix(text, "agent ") && !strings.HasPrefix(text, "tool ") { // the node has logged those
			log.Warn(what + ": " + text)
		}
	}
	return err == nil
}

// changedFields names the fields in which two definitions differ.
func changedFields(before, after []byte) string {
	fields := func(definition []byte) (all map[string]jsontext.Value) {
		err := json.Unmarshal(definition, &all)
		invariant.Check(err == nil, "definition: %v", err)
		return all
	}
	old, now := fields(before), fields(after)
	var changed []string
	for _, name := range slices.Sorted(maps.Keys(now)) {
		if string(old[name]) != string(now[name]) {
			changed = append(changed, name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(old)) {
		if _, ok := now[name]; !ok {
			changed = append(changed, name)
		}
	}
	if changed == nil { // the owner differs
		return "changed"
	}
	return strings.Join(changed, ", ") + " changed"
}

// reportGone reports definitions whose file is gone.
func (w *Watch) reportGone(files *AgentFiles) {
	for _, id := range slices.Sorted(maps.Keys(w.agents)) {
		if !slices.ContainsFunc(files.Agents, func(a AgentFile) bool { return a.Spec.ID == id }) {
			delete(w.agents, id)
			w.log.Warn(fmt.Sprintf("agent %s: no file declares it any more; it stays until it is deleted: troupe agents delete %[1]s %[2]s", id, w.data))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(w.tools)) {
		if !slices.ContainsFunc(files.Tools, func(t ToolFile) bool { return t.Declared.Name == name }) {
			delete(w.tools, name)
			w.log.Warn(fmt.Sprintf("tool %s: no file declares it any more; it stays until it is deleted: troupe tools delete %[1]s %[2]s", name, w.data))
		}
	}
}

// reportServers reports MCP servers that differ from those that the files had before.
func (w *Watch) reportServers(now map[string]mcp.Config) {
	all := maps.Clone(now)
	maps.Copy(all, w.servers)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		before, had := w.servers[name]
		after, has := now[name]
		change := "changed"
		switch {
		case !had:
			change = "added"
		case !has:
			change = "removed"
		case reflect.DeepEqual(before, after):
			continue
		}
		w.log.Warn(fmt.Sprintf("MCP server %s: %s; this applies at the next start", name, change))
	}
	w.servers = now
}

// SPDX-License-Identifier: Apache-2.0

package prompts

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/troupe-run/troupe/actor"
)

// A session has a file, and others once that is long or old. It is named after the session and the time of its first
// record, in the folder of its namespace. A file for each run would cost more than its records, and so would a folder
// for each session.

// fileType ends the names of files.
const fileType = ".prompts"

// formerType ends the names of files of a format that is not read any more.
const formerType = ".jsonl"

// file is what is known of a file.
type file struct {
	encoder
	of      *sessionFiles
	path    string
	began   time.Time // of its first record, or before
	changed time.Time
	closed  bool                          // it takes no further record: it was there before the process, or a write has failed
	gone    bool                          // it was removed
	torn    bool                          // it has an incomplete frame at its end
	runs    map[actor.CallID]*recordedRun // nil: it was not read yet
}

// recordedRun is what is known of a run with records in a file.
type recordedRun struct {
	changed time.Time // of its last record
	settled bool      // what becomes of it does not depend on the log any more
}

// settled reports whether nothing in the file depends on the log any more.
func (f *file) settled() bool {
	if f.runs == nil || f.torn {
		return false
	}
	for _, r := range f.runs {
		if !r.settled {
			return false
		}
	}
	return true
}

// sessionFiles are the files of a session, the oldest first.
type sessionFiles struct {
	prefix string // of their paths
	tenant string // name of their folder
	all    []*file
	steps  map[actor.CallID]uint64 // numbers of the last records of runs
	read   bool                    // steps has all runs of all files
}

// paths returns the files that may have records of a run.
func (of *sessionFiles) paths(run actor.CallID) (all []string) {
	for _, f := range of.all {
		if f.runs == nil || f.runs[run] != nil {
			all = append(all, f.path)
		}
	}
	return all
}

// dropSteps forgets the numbers of runs that have no record any more. One that goes on begins with 1 again.
func (of *sessionFiles) dropSteps(runs map[actor.CallID]*recordedRun) {
	for run := range runs {
		if !slices.ContainsFunc(of.all, func(f *file) bool { return f.runs[run] != nil }) {
			delete(of.steps, run)
		}
	}
}

func (of *sessionFiles) size() (n int64) {
	for _, f := range of.all {
		n += f.size
	}
	return n
}

func folderName(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:12])
}

// prefixOf begins the paths of the files of a session.
func prefixOf(dir, tenant, session string) string {
	return filepath.Join(dir, folderName(tenant), folderName(session)) + "-"
}

// prefixIn returns the begin of the path of a file, which those of its session share.
func prefixIn(path string) string {
	session, _, _ := strings.Cut(filepath.Base(path), "-")
	return filepath.Join(filepath.Dir(path), session) + "-"
}

// sessionOf returns the session of an actor; "" if it belongs to none, so that its records leave with time only.
func sessionOf(owner actor.ID) string {
	session, _ := owner.Session()
	return session
}

// scan reads the names of the files.
func (s *Store) scan() error {
	return filepath.WalkDir(s.Dir, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) || err == nil && d.IsDir() {
			return nil
		}
		if err != nil {
			return err
		}
		if strings.HasSuffix(path, tempType) || strings.HasSuffix(path, formerType) { // a killed process has left it
			return os.Remove(path)
		}
		_, at, _ := strings.Cut(strings.TrimSuffix(d.Name(), fileType), "-")
		began, err := strconv.ParseInt(at, 16, 64)
		if err != nil || !strings.HasSuffix(path, fileType) {
			return nil
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		of := s.filesOf(prefixIn(path))
		of.read = false
		s.named = max(s.named, began)
		of.all = append(of.all, &file{encoder: encoder{size: info.Size()}, of: of, path: path, began: time.Unix(0, began), changed: info.ModTime(), closed: true}) // in the order of names
		s.sum.Add(info.Size())
		return nil
	})
}

// filesOf returns the files of a session.
func (s *Store) filesOf(prefix string) *sessionFiles {
	of := s.known[prefix]
	if of == nil {
		of = &sessionFiles{prefix: prefix, tenant: filepath.Base(filepath.Dir(prefix)), steps: map[actor.CallID]uint64{}, read: true}
		s.known[prefix] = of
	}
	return of
}

// each returns the files that a function selects, in the order of their paths. s.files is held.
func (s *Store) each(selects func(*file) bool) (all []*file) {
	for _, of := range s.known {
		for _, f := range of.all {
			if selects(f) {
				all = append(all, f)
			}
		}
	}
	slices.SortFunc(all, func(a, b *file) int { return cmp.Compare(a.path, b.path) })
	return all
}

// load reads which runs a file has, unless that is known. They stay unknown if it cannot be read. s.files is held.
func (s *Store) load(f *file) {
	if f.runs != nil {
		return
	}
	c, err := readFile(f.path)
	if err != nil {
		if !f.gone {
			s.Logger.Error("cannot read recorded prompts", "file", f.path, "error", err.Error())
		}
		return
	}
	f.runs = map[actor.CallID]*recordedRun{}
	c.each(true, func(_ int64, r *framed) bool {
		run, err := actor.ParseCallID(r.Run)
		if err != nil {
			return true
		}
		f.changed = parseTime(r.At).Add(time.Duration(r.Took) * time.Millisecond) // until now it was that of the file, which may be a copy
		f.runs[run] = &recordedRun{changed: f.changed}
		f.of.steps[run] = max(f.of.steps[run], r.Step)
		return true
	})
	f.torn = c.end < len(c.b)
	s.runs += len(f.runs)
}

// append adds a record to the file of its session. s.files is held.
func (s *Store) append(of *recording, r *Record, request []byte) error {
	files := s.filesOf(prefixOf(s.Dir, of.owner.Tenant, sessionOf(of.owner)))
	delete(s.noted, files.prefix)
	if !files.read {
		for _, f := range files.all {
			s.load(f)
		}
		files.read = true
	}
	now := s.now()
	f := files.last()
	if f == nil || f.closed || f.size > fileBytesMax || now.Sub(f.began) > s.Keep/filePart {
		if f != nil {
			s.held -= f.held
			f.drop()
		}
		s.named = max(s.named+1, now.UnixNano())
		f = &file{of: files, path: fmt.Sprintf("%s%016x%s", files.prefix, s.named, fileType), began: now, runs: map[actor.CallID]*recordedRun{}}
	}
	step := files.steps[of.run] + 1
	b, next, err := f.frame(of.run.String(), step, r, request)
	if err == nil {
		err = writeAt(f.path, b, f.size)
	}
	if errors.Is(err, fs.ErrNotExist) && f.size > 0 { // another program has removed it
		s.remove(f)
		return s.append(of, r, request)
	}
	if err != nil {
		f.closed, f.torn = true, true
		s.leaveEmpty(files)
		return err
	}
	if f.size == 0 {
		files.all = append(files.all, f)
	}
	if at := parseTime(r.At); at.Before(f.began) {
		f.began = at
	}
	held := f.held
	f.put(b, r.Agent, next)
	s.held += f.held - held
	s.sum.Add(int64(len(b)))
	files.steps[of.run], f.changed = step, now
	if f.runs[of.run] == nil {
		f.runs[of.run] = &recordedRun{}
		s.runs++
	}
	run := f.runs[of.run]
	run.changed, run.settled = now, run.settled && s.Prompts != Failed
	s.bound(files)
	return nil
}

func (of *sessionFiles) last() *file {
	if len(of.all) == 0 {
		return nil
	}
	return of.all[len(of.all)-1]
}

// writeAt writes the bytes that a file grows by behind those that it has. After an error the file is as before, or has
// an incomplete frame.
func writeAt(path string, b []byte, size int64) (err error) {
	flags := os.O_WRONLY
	if size == 0 {
		flags |= os.O_CREATE | os.O_TRUNC
	}
	f, err := os.OpenFile(path, flags, 0o600)
	if size == 0 && errors.Is(err, fs.ErrNotExist) {
		if err = os.MkdirAll(filepath.Dir(path), 0o700); err == nil {
			f, err = os.OpenFile(path, flags, 0o600)
		}
	}
	if err != nil {
		return err
	}
	if _, err = f.WriteAt(b, size); err != nil {
		err = errors.Join(err, f.Truncate(size))
		if size == 0 {
			err = errors.Join(err, os.Remove(path))
		}
	}
	return errors.Join(err, f.Close())
}

// rewrite removes the records of a file that a function does not select. s.files is held.
func (s *Store) rewrite(f *file, selects func(*framed) bool) {
	s.load(f)
	if f.gone || f.runs == nil {
		return
	}
	former := f.runs
	runs, began := map[actor.CallID]*recordedRun{}, time.Time{}
	e, changed, err := rewrite(f.path, func(r *framed) bool {
		run, err := actor.ParseCallID(r.Run)
		if err != nil || !selects(r) {
			return false
		}
		if began.IsZero() {
			began = parseTime(r.At)
		}
		runs[run] = former[run]
		return true
	})
	if errors.Is(err, fs.ErrNotExist) {
		s.remove(f)
		return
	}
	if err != nil {
		s.Logger.Error("cannot remove recorded prompts", "file", f.path, "error", err.Error())
		return
	}
	if f.began, f.torn = began, false; !changed {
		return
	}
	s.sum.Add(e.size - f.size)
	s.held += e.held - f.held
	s.runs += len(runs) - len(former)
	if f.encoder, f.runs = e, runs; e.size == 0 {
		s.leave(f)
	}
	f.of.dropSteps(former)
}

// remove removes a file, and reports whether it is gone. s.files is held.
func (s *Store) remove(f *file) bool {
	if f.gone {
		return true
	}
	if err := os.Remove(f.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		s.Logger.Error("cannot remove recorded prompts", "file", f.path, "error", err.Error())
		return false
	}
	s.sum.Add(-f.size)
	s.held -= f.held
	s.runs -= len(f.runs)
	s.leave(f)
	return true
}

// leave forgets a file that was removed.
func (s *Store) leave(f *file) {
	f.gone = true
	f.of.all = slices.DeleteFunc(f.of.all, func(o *file) bool { return o == f })
	f.of.dropSteps(f.runs)
	s.leaveEmpty(f.of)
}

// leaveEmpty forgets a session without files, and removes its folder if that is empty.
func (s *Store) leaveEmpty(of *sessionFiles) {
	if len(of.all) == 0 {
		delete(s.known, of.prefix)
		_ = os.Remove(filepath.Dir(of.prefix)) // refused unless it is empty
	}
}

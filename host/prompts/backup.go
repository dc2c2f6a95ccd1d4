// SPDX-License-Identifier: Apache-2.0

package prompts

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// Deletions notes what a copy of the records must not bring back. Sessions are named by SessionOf.
type Deletions interface {
	// Deleted notes that a session was deleted: its records up to a time are gone.
	Deleted(session string, upto time.Time) error
	// Expired notes that there are no records of before a time. It may drop the deletions of before.
	Expired(before time.Time) error
}

// nameOf names a session by digests, as its files do.
func nameOf(prefix string) string {
	return filepath.Base(filepath.Dir(prefix)) + "/" + strings.TrimSuffix(filepath.Base(prefix), "-")
}

// SessionOf names a session by digests.
func SessionOf(tenant, session string) string { return nameOf(prefixOf("", tenant, session)) }

// Copy copies the files of a folder with records into another one, without the records that drops reports for the name of
// their session and their time; nil drops none. It makes no folder if there is nothing to copy.
func Copy(from, to string, drops func(session string, at time.Time) bool) error {
	if real, err := filepath.EvalSymlinks(from); err == nil { // see Open
		from = real
	}
	return filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) && path == from {
			return nil
		}
		if err != nil || !d.Type().IsRegular() || !strings.HasSuffix(path, fileType) {
			return err
		}
		c, err := readFile(path)
		if err != nil {
			return err
		}
		out := c.b
		if drops != nil {
			session := nameOf(prefixIn(path))
			e, changed, err := c.selected(func(f *framed) bool { return !drops(session, parseTime(f.At)) })
			if err != nil {
				return fmt.Errorf("%s: %w", path, err)
			}
			if changed {
				out = e.out
			}
		}
		return copyTo(from, to, path, out)
	})
}

// copyTo writes the content of the file of a folder into another folder, durably.
func copyTo(from, to, path string, content []byte) error {
	if len(content) == 0 {
		return nil
	}
	name, err := filepath.Rel(from, path)
	if err != nil {
		return err
	}
	target := filepath.Join(to, name)
	if err := os.MkdirAll(filepath.Dir(target), 0o700); err != nil {
		return err
	}
	f, err := os.OpenFile(target, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	return errors.Join(err, f.Sync(), f.Close())
}

// CopyTo copies the records into a folder while others are added, also those that ended just before the call.
func (s *Store) CopyTo(ctx context.Context, to string) error {
	if s == nil {
		return nil
	}
	if err := s.flush(ctx); err != nil {
		return err
	}
	s.files.Lock()
	all := s.each(func(*file) bool { return true })
	s.files.Unlock()
	for _, f := range all {
		s.files.Lock() // no record is being written
		c, err := readFile(f.path)
		s.files.Unlock()
		if errors.Is(err, fs.ErrNotExist) { // removed meanwhile
			continue
		}
		if err == nil {
			err = copyTo(s.Dir, to, f.path, c.b)
		}
		if err != nil {
			return fmt.Errorf("recorded prompts: %w", err)
		}
	}
	return nil
}

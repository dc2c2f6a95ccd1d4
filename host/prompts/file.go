// SPDX-License-Identifier: Apache-2.0

package prompts

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/troupe-run/troupe/actor"
)

// A file has a line with a head, and a line for each record, in the order in which the requests ended. It is named
// after its session and its run, in the folder of its namespace: a folder for each session would cost more than the record.

// fileType ends the names of files.
const fileType = ".jsonl"

// lineBytesMax is the maximum size of a line.
const lineBytesMax = RecordBytesMax + 1<<10

// head is the first line of a file.
type head struct {
	Dropped uint64 `json:"dropped"` // records that were removed from the front
}

func folderName(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:12])
}

// line returns the head as a line.
func (h head) line() []byte { return fmt.Appendf(nil, "{\"dropped\":%d}\n", h.Dropped) }

// prefixOf begins the paths of the files of a session.
func prefixOf(dir, tenant, session string) string {
	return filepath.Join(dir, folderName(tenant), folderName(session)) + "-"
}

// sessionOf returns the session of an actor; "" if it belongs to none, so that its records leave with time only.
func sessionOf(owner actor.ID) string {
	session, _ := owner.Session()
	return session
}

// fileOf returns the path of the file of a run.
func fileOf(dir string, owner actor.ID, run actor.CallID) string {
	return prefixOf(dir, owner.Tenant, sessionOf(owner)) + run.String() + fileType
}

// appendLine appends a line to a file, and returns the bytes that the file has grown by. whole is set if the file has no
// incomplete line. After an error the file is as before.
func appendLine(path string, line []byte, whole bool) (grown int64, err error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if errors.Is(err, fs.ErrNotExist) {
		if err = os.MkdirAll(filepath.Dir(path), 0o700); err == nil {
			f, err = os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
		}
	}
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	size := info.Size()
	if !whole && size > 0 {
		if size, err = truncateToLine(f, size); err != nil {
			return 0, err
		}
	}
	out := line
	if size == 0 {
		out = append(head{}.line(), line...)
	}
	if _, err = f.WriteAt(out, size); err != nil {
		return 0, errors.Join(err, f.Truncate(size))
	}
	return size + int64(len(out)) - info.Size(), nil
}

// truncateToLine removes an incomplete line from the end of a file, and returns its size.
func truncateToLine(f *os.File, size int64) (int64, error) {
	const step = 64 << 10
	block := make([]byte, step)
	for end := size; end > 0; {
		from := max(end-step, 0)
		b := block[:end-from]
		if _, err := f.ReadAt(b, from); err != nil {
			return 0, err
		}
		if at := bytes.LastIndexByte(b, '\n'); at >= 0 {
			if end = from + int64(at) + 1; end == size {
				return size, nil
			}
			return end, f.Truncate(end)
		}
		end = from
	}
	return 0, f.Truncate(0)
}

// errTorn is the error of a file whose head is incomplete.
var errTorn = errors.New("the file has no head")

// eachLine calls a function for each record of a file, with its number from 1, until it returns false. The line is
// valid until it returns. An incomplete line at the end is no record.
func eachLine(path string, each func(step uint64, line []byte) bool) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	in := bufio.NewReaderSize(f, 64<<10)
	first, err := readLine(in)
	if err != nil {
		return errTorn
	}
	var h head
	if err := json.Unmarshal(first, &h); err != nil {
		return fmt.Errorf("head: %w", err)
	}
	for step := h.Dropped + 1; ; step++ {
		line, err := readLine(in)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if !each(step, line) {
			return nil
		}
	}
}

// readLine returns the next line without its end; io.EOF for an incomplete one.
func readLine(in *bufio.Reader) (line []byte, err error) {
	for {
		part, err := in.ReadSlice('\n')
		if line == nil && err == nil {
			return part[:len(part)-1], nil
		}
		line = append(line, part...)
		switch {
		case err == nil:
			return line[:len(line)-1], nil
		case !errors.Is(err, bufio.ErrBufferFull):
			return nil, err
		case len(line) > lineBytesMax:
			return nil, fmt.Errorf("a line is longer than %d bytes", lineBytesMax)
		}
	}
}

// trim removes records from the front of a file: those before a time, and as many as it takes to have at most a size.
// It returns the new size; 0 if no record is left, and the file is removed.
func trim(path string, before time.Time, sizeMax int64) (int64, error) {
	var sizes []int64
	var drop, dropped uint64
	left := int64(0)
	err := eachLine(path, func(step uint64, line []byte) bool {
		if len(sizes) == 0 {
			dropped = step - 1
		}
		sizes = append(sizes, int64(len(line))+1)
		left += int64(len(line)) + 1
		if lineTime(line).Before(before) {
			drop = uint64(len(sizes))
		}
		return true
	})
	if err != nil && !errors.Is(err, errTorn) {
		return 0, err
	}
	for i, n := range sizes {
		if uint64(i) < drop || left > sizeMax {
			left -= n
			drop = max(drop, uint64(i)+1)
		}
	}
	if drop == uint64(len(sizes)) {
		return 0, os.Remove(path)
	}
	if drop == 0 {
		info, err := os.Stat(path)
		if err != nil {
			return 0, err
		}
		return info.Size(), nil
	}
	temp := strings.TrimSuffix(path, fileType) + tempType
	f, err := os.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return 0, err
	}
	out := bufio.NewWriter(f)
	begin := head{dropped + drop}.line()
	_, _ = out.Write(begin)
	err = eachLine(path, func(step uint64, line []byte) bool {
		if step > dropped+drop {
			_, _ = out.Write(line)
			_ = out.WriteByte('\n')
		}
		return true
	})
	var changed time.Time
	if info, e := os.Stat(path); e == nil {
		changed = info.ModTime()
	}
	if err = errors.Join(err, out.Flush(), f.Close()); err == nil {
		err = errors.Join(os.Chtimes(temp, changed, changed), os.Rename(temp, path))
	}
	if err != nil {
		return 0, errors.Join(err, os.Remove(temp))
	}
	return left + int64(len(begin)), nil
}

// tempType ends the names of files that are being made.
const tempType = ".new"

// Page is a part of the records of a run.
type Page struct {
	All  []Numbered
	More bool // there are others behind them
}

// Numbered is a record with its number in the run, from 1.
type Numbered struct {
	Step uint64
	JSON []byte
}

// PageBytesMax is the size in bytes beyond which a page has no further record.
const PageBytesMax = 4 << 20

// Read returns at most limit records of a run that follow one, and are not older than a time. There are none if the run
// has no file.
func Read(dir string, owner actor.ID, run actor.CallID, after uint64, limit int, since time.Time) (page Page, err error) {
	size := 0
	err = eachLine(fileOf(dir, owner, run), func(step uint64, line []byte) bool {
		if step <= after || lineTime(line).Before(since) || !jsontext.Value(line).IsValid(lenient...) {
			return true
		}
		if len(page.All) == limit || size > 0 && size+len(line) > PageBytesMax {
			page.More = true
			return false
		}
		size += len(line)
		page.All = append(page.All, Numbered{step, bytes.Clone(line)})
		return true
	})
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, errTorn) {
		return Page{}, nil
	}
	if err != nil {
		return Page{}, fmt.Errorf("prompts of run %s: %w", run, err)
	}
	return page, nil
}

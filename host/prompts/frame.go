// SPDX-License-Identifier: Apache-2.0

package prompts

import (
	"bytes"
	"errors"
	"hash/crc32"
	"os"
	"strings"

	"github.com/go-json-experiment/json"
)

// A file begins with a line that names its format. A frame follows for each record, in the order in which the requests
// ended: a line with the header and the record without its request, then the bytes of the request, then the end of a
// line. The transcript of a conversation grows, so a request is, as a rule, one of before with some bytes in its middle:
// then the frame has these bytes only, and names the frame before it that has the others.

// beginning is the first line of a file.
const beginning = "{\"prompts\":1}\n"

const (
	// chainMax is the maximum number of frames that are read for a request besides its own.
	chainMax = 31
	// lineBytesMax is the maximum size of the line of a frame.
	lineBytesMax = RecordBytesMax + 1<<10
)

// header is the begin of a frame.
type header struct {
	Run   string `json:"run"`
	Step  uint64 `json:"step"`           // number of the record in its run, from 1
	Base  int64  `json:"base,omitzero"`  // place of the frame with the other bytes; 0: there is none
	Front int    `json:"front,omitzero"` // bytes of the begin that are those of the base
	Back  int    `json:"back,omitzero"`  // bytes of the end, likewise
	New   int    `json:"new"`            // bytes of the request that the frame has
	Sum   uint32 `json:"sum"`            // of the whole request
}

// framed is the line of a frame. The record has no request.
type framed struct {
	header
	Record
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// base is a request of a frame that others may continue.
type base struct {
	at      int64
	chain   int // frames that are read for it besides its own
	request []byte
}

// encoder makes the frames of a file in their order.
type encoder struct {
	size  int64           // of the file; 0: it has no first line yet
	bases map[string]base // last frame of each agent
	held  int             // bytes of the bases
}

// frame returns the bytes that a file grows by for a record, and what put needs once they are written.
func (e *encoder) frame(run string, step uint64, r *Record, request []byte) (b []byte, next base, err error) {
	f := framed{header{Run: run, Step: step, New: len(request), Sum: crc32.Checksum(request, castagnoli)}, *r}
	f.Record.Request = nil
	if e.size == 0 {
		b = append(b, beginning...)
	}
	next = base{at: e.size + int64(len(b)), request: request}
	fresh := request
	if former, ok := e.bases[r.Agent]; ok && former.chain < chainMax {
		front, back := shared(former.request, request)
		if n := len(request) - front - back; n <= len(request)/2 {
			f.Base, f.Front, f.Back, f.New = former.at, front, back, n
			fresh, next.chain = request[front:len(request)-back], former.chain+1
		}
	}
	line, err := marshal(f)
	if err != nil {
		return nil, base{}, err
	}
	b = append(append(append(b, line...), '\n'), fresh...)
	return append(b, '\n'), next, nil
}

// put notes that the bytes of frame are in the file.
func (e *encoder) put(b []byte, agent string, next base) {
	if e.bases == nil {
		e.bases = map[string]base{}
	}
	e.size += int64(len(b))
	e.held += len(next.request) - len(e.bases[agent].request)
	e.bases[agent] = next
}

// drop forgets the bases: the next frame of each agent is whole.
func (e *encoder) drop() { e.bases, e.held = nil, 0 }

// shared returns the lengths of the begin and of the end that two texts have in common. They do not overlap.
func shared(a, b []byte) (front, back int) {
	front = sharedFront(a, b)
	a, b = a[front:], b[front:]
	for back < min(len(a), len(b)) && a[len(a)-1-back] == b[len(b)-1-back] {
		back++
	}
	return front, back
}

func sharedFront(a, b []byte) (n int) {
	const block = 256 // compared at once
	most := min(len(a), len(b))
	for n+block <= most && bytes.Equal(a[n:n+block], b[n:n+block]) {
		n += block
	}
	for n < most && a[n] == b[n] {
		n++
	}
	return n
}

// contents are the frames of a file.
type contents struct {
	b        []byte
	end      int              // behind the last frame that each has found
	requests map[int64][]byte // some of the whole requests, by the places of their frames
	held     int              // bytes of these
}

// requestsBytesMax is the size of the requests beyond which those of a file are not kept: many short frames stand for very
// much.
const requestsBytesMax = 8 << 20

// readFile reads a file.
func readFile(path string) (*contents, error) {
	b, err := os.ReadFile(path)
	return &contents{b: b, requests: map[int64][]byte{}}, err
}

// errFrame is the error of a frame that cannot be read.
var errFrame = errors.New("a frame is damaged")

// frame returns the frame at a place, the bytes of its request, and the place of the next one. The record of the frame
// is decoded if whole is set.
func (c *contents) frame(at int64, whole bool) (f framed, fresh []byte, next int64, err error) {
	rest := c.b[at:]
	end := bytes.IndexByte(rest, '\n')
	if end < 0 || end > lineBytesMax {
		return f, nil, 0, errFrame
	}
	to := any(&f.header)
	if whole {
		to = &f
	}
	if err := json.Unmarshal(rest[:end], to, lenient...); err != nil {
		return f, nil, 0, errFrame
	}
	rest = rest[end+1:]
	if f.New < 0 || f.New >= len(rest) || rest[f.New] != '\n' {
		return f, nil, 0, errFrame
	}
	return f, rest[:f.New], at + int64(end+1+f.New+1), nil
}

// each calls a function with the place of each frame until it returns false. A frame without its end, and what follows
// it, is none.
func (c *contents) each(whole bool, each func(at int64, f *framed) bool) {
	if !strings.HasPrefix(string(c.b[:min(len(c.b), len(beginning))]), beginning) {
		return
	}
	for c.end = len(beginning); c.end < len(c.b); {
		f, _, next, err := c.frame(int64(c.end), whole)
		if err != nil || !each(int64(c.end), &f) {
			return
		}
		c.end = int(next)
	}
}

// request returns the whole request of the frame at a place.
func (c *contents) request(at int64) ([]byte, error) { return c.follow(at, chainMax) }

func (c *contents) follow(at int64, most int) ([]byte, error) {
	if b, ok := c.requests[at]; ok {
		return b, nil
	}
	f, fresh, _, err := c.frame(at, false)
	if err != nil {
		return nil, err
	}
	b := fresh
	if f.Base != 0 {
		if f.Base < int64(len(beginning)) || f.Base >= at || most == 0 {
			return nil, errFrame
		}
		former, err := c.follow(f.Base, most-1)
		if err != nil {
			return nil, err
		}
		if f.Front < 0 || f.Back < 0 || f.Front > len(former)-f.Back {
			return nil, errFrame
		}
		b = append(append(append(make([]byte, 0, f.Front+f.New+f.Back), former[:f.Front]...), fresh...), former[len(former)-f.Back:]...)
	}
	if crc32.Checksum(b, castagnoli) != f.Sum {
		return nil, errFrame
	}
	if c.held += len(b); c.held > requestsBytesMax {
		clear(c.requests)
		c.held = len(b)
	}
	c.requests[at] = b
	return b, nil
}

// tempType ends the names of files that are being made.
const tempType = ".new"

// selection is an encoder with the frames that it has made.
type selection struct {
	encoder
	out []byte
}

// selected returns the frames that a function selects, for a new file, and whether others, or what is no frame, are
// left out.
func (c *contents) selected(selects func(f *framed) bool) (e selection, changed bool, err error) {
	c.each(true, func(at int64, f *framed) bool {
		if !selects(f) {
			changed = true
			return true
		}
		request, broken := c.request(at)
		if broken != nil {
			changed = true
			return true
		}
		b, next, broken := e.frame(f.Run, f.Step, &f.Record, request)
		if broken != nil {
			err = broken
			return false
		}
		e.put(b, f.Agent, next)
		e.out = append(e.out, b...)
		return true
	})
	return e, changed || c.end < len(c.b), err
}

// rewrite replaces a file by one with the frames that a function selects, unless these are all. The new file is as old as
// the former. It returns how the new file continues; its size is 0 if no frame is left, and the file is removed.
func rewrite(path string, selects func(f *framed) bool) (e encoder, changed bool, err error) {
	c, err := readFile(path)
	if err != nil {
		return e, false, err
	}
	of, changed, err := c.selected(selects)
	if err != nil || !changed {
		return e, false, err
	}
	if of.size == 0 {
		return e, true, os.Remove(path)
	}
	info, err := os.Stat(path)
	if err != nil {
		return e, false, err
	}
	temp := strings.TrimSuffix(path, fileType) + tempType
	if err = os.WriteFile(temp, of.out, 0o600); err == nil {
		err = errors.Join(os.Chtimes(temp, info.ModTime(), info.ModTime()), os.Rename(temp, path))
	}
	if err != nil {
		return e, false, errors.Join(err, os.Remove(temp))
	}
	return of.encoder, true, nil
}

// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/runs"
)

// StreamLimits bounds one stream, in bytes. The defaults of zero fields are
// LineBytesMax, EventBytesMax and StreamBytesMax.
type StreamLimits struct {
	Line  int // length of a line without its terminator
	Event int // data of one event
	Total int // the whole stream
}

// Default limits of a stream.
const (
	LineBytesMax   = 1 << 20
	EventBytesMax  = 1 << 20
	StreamBytesMax = 16 << 20
	// RetryMax is the maximum reconnection delay that a stream may request.
	RetryMax = time.Hour
)

func (l StreamLimits) orDefaults() StreamLimits {
	return StreamLimits{orDefault(l.Line, LineBytesMax), orDefault(l.Event, EventBytesMax), orDefault(l.Total, StreamBytesMax)}
}

// orDefault returns v if it is positive, else the default.
func orDefault[T int | actor.Duration](v, otherwise T) T {
	if v <= 0 {
		return otherwise
	}
	return v
}

// Parser decodes a stream of Server-Sent Events according to the standard, from
// bytes split at any position.
//
//  1. The events, and the offset reported by a refusal, do not depend on the split.
//  2. It buffers at most one line and the data of one event.
//  3. After a refusal it consumes nothing.
type Parser struct {
	limits        StreamLimits
	offset        int    // bytes consumed
	line          []byte // unterminated line
	firstLineRead bool   // a byte order mark is no longer possible
	skipLF        bool   // the last byte was a CR, so a following LF is part of that line end
	name          string
	id            *string
	data          []byte
	hasData       bool
	lastID        string
	retry         actor.Duration
	refusal       *actor.Refusal
}

// NewParser returns a parser at the start of a stream.
func NewParser(limits StreamLimits) *Parser { return &Parser{limits: limits.orDefaults()} }

// LastID returns the id to resume from: the id of the last event with an id.
func (p *Parser) LastID() string { return p.lastID }

// Retry returns the reconnection delay requested by the stream, or 0.
func (p *Parser) Retry() actor.Duration { return p.retry }

// Parse consumes the next bytes and returns the events they complete. Events
// returned with a refusal precede it in the stream.
func (p *Parser) Parse(b []byte) (events []runs.Frame, refusal *actor.Refusal) {
	for len(b) > 0 && p.refusal == nil {
		if p.skipLF && b[0] == '\n' {
			p.skipLF = false
			p.consume(1)
			b = b[1:]
			continue
		}
		p.skipLF = false
		end := lineEnd(b)
		n, size := end, end+1 // of the line, and with its end
		if end < 0 {
			n, size = len(b), len(b)
		}
		if room := p.limits.Line - len(p.line); n > room && room < p.limits.Total-p.offset {
			p.offset += room
			p.fail("a line is longer than %d bytes", p.limits.Line)
			break
		}
		if !p.consume(size) {
			break
		}
		if end < 0 {
			p.line = append(p.line, b...)
			break
		}
		line := b[:n]
		if len(p.line) > 0 {
			p.line = append(p.line, line...)
			line = p.line
		}
		p.skipLF = b[end] == '\r'
		b = b[end+1:]
		events = p.endLine(events, line)
		p.line = p.line[:0]
	}
	return events, p.refusal
}

// lineEnd returns the offset of the first LF or CR, or -1.
func lineEnd(b []byte) int {
	end := bytes.IndexByte(b, '\n')
	if end >= 0 {
		b = b[:end]
	}
	if cr := bytes.IndexByte(b, '\r'); cr >= 0 {
		return cr
	}
	return end
}

// consume counts n bytes. It returns false and fails if the stream exceeds its
// total limit.
func (p *Parser) consume(n int) bool {
	if n > p.limits.Total-p.offset {
		p.offset = p.limits.Total
		p.fail("a stream is longer than %d bytes", p.limits.Total)
		return false
	}
	p.offset += n
	return true
}

func (p *Parser) fail(format string, args ...any) {
	p.refusal = actor.Refuse(actor.Rejected, "event stream, byte %d: %s", p.offset, fmt.Sprintf(format, args...))
	p.line, p.data = nil, nil
}

func (p *Parser) endLine(events []runs.Frame, line []byte) []runs.Frame {
	if !p.firstLineRead {
		p.firstLineRead = true
		line = bytes.TrimPrefix(line, []byte("\uFEFF"))
	}
	if len(line) == 0 {
		return p.endEvent(events)
	}
	field, value, _ := bytes.Cut(line, []byte(":"))
	value = bytes.TrimPrefix(value, []byte(" "))
	switch string(field) {
	case "event":
		p.name = string(value)
	case "data":
		if p.hasData {
			p.data = append(p.data, '\n')
		}
		p.hasData = true
		if len(p.data)+len(value) > p.limits.Event {
			p.fail("an event has more than %d bytes of data", p.limits.Event)
			return events
		}
		p.data = append(p.data, value...)
	case "id":
		if bytes.IndexByte(value, 0) < 0 {
			id := string(value)
			p.id = &id
		}
	case "retry":
		if ms, ok := parseDigits(string(value)); ok {
			p.retry = min(actor.Duration(min(ms, int64(RetryMax/time.Millisecond)))*time.Millisecond, RetryMax)
		}
	}
	return events
}

func (p *Parser) endEvent(events []runs.Frame) []runs.Frame {
	e := runs.Frame{Name: p.name}
	if p.id != nil {
		e.ID, p.lastID = *p.id, *p.id
	}
	if p.hasData {
		e.Data = string(p.data)
		events = append(events, e)
	}
	p.name, p.id, p.data, p.hasData = "", nil, p.data[:0], false
	return events
}

// parseDigits parses a number that consists of digits only. A number that
// overflows becomes the largest int64.
func parseDigits(text string) (int64, bool) {
	if text == "" || strings.Trim(text, "0123456789") != "" {
		return 0, false
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return 1<<63 - 1, true
	}
	return n, true
}

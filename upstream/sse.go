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

// StreamLimits bound what one stream may bring, in bytes; 0 is the constant of
// that name.
type StreamLimits struct {
	Line  int // without its end
	Event int // the data of one event
	Total int // the whole stream
}

// The limits that hold where none are given.
const (
	LineBytesMax   = 1 << 20
	EventBytesMax  = 1 << 20
	StreamBytesMax = 16 << 20
	// RetryMax is the longest wait that a stream may ask for.
	RetryMax = time.Hour
)

func (l StreamLimits) orDefaults() StreamLimits {
	return StreamLimits{orDefault(l.Line, LineBytesMax), orDefault(l.Event, EventBytesMax), orDefault(l.Total, StreamBytesMax)}
}

// orDefault is v, or what holds where none is given.
func orDefault[T int | actor.Duration](v, otherwise T) T {
	if v <= 0 {
		return otherwise
	}
	return v
}

// Parser reads a stream of events as the standard has it, from bytes cut anywhere.
//
//  1. The events, and the byte that a refusal names, are the same for every cut.
//  2. It holds no more than one line and one event's data.
//  3. After a refusal it takes nothing more.
type Parser struct {
	limits        StreamLimits
	offset        int    // bytes taken
	line          []byte // so far
	firstLineRead bool   // the first line is over, and with it a byte order mark
	skipLF        bool   // a line feed here belongs to the line end before
	name          string
	id            *string
	data          []byte
	hasData       bool
	lastID        string
	retry         actor.Duration
	refusal       *actor.Refusal
}

// NewParser returns a parser at the stream's first byte.
func NewParser(limits StreamLimits) *Parser { return &Parser{limits: limits.orDefaults()} }

// LastID is the id to resume from: that of the last event that had one.
func (p *Parser) LastID() string { return p.lastID }

// Retry is how long the stream wants a client to wait before it connects again;
// 0 if it did not say.
func (p *Parser) Retry() actor.Duration { return p.retry }

// Parse takes the next bytes and returns the events they complete. With a
// refusal come the events before it.
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
		n := end
		if end < 0 {
			n = len(b)
		}
		if room := p.limits.Line - len(p.line); n > room && room < p.limits.Total-p.offset {
			p.offset += room
			p.fail("a line is longer than %d bytes", p.limits.Line)
			break
		}
		if !p.consume(n) {
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
		if !p.consume(1) {
			break
		}
		p.skipLF = b[end] == '\r'
		b = b[end+1:]
		events = p.endLine(events, line)
		p.line = p.line[:0]
	}
	return events, p.refusal
}

// lineEnd is where the first line feed or carriage return stands, or -1.
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

// consume counts n bytes, as far as the stream may have them.
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

// parseDigits reads a number made of digits alone; one too long to hold is the largest.
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

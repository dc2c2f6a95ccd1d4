// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"bytes"
	"fmt"
)

// logComparison is a writer that compares a canonical log with an expected one, line by
// line.
type logComparison struct {
	want       []byte
	partial    []byte // start of a line whose end is not written yet
	lines      int
	steps      int
	difference string // the first difference; "" if none so far
}

// Write implements io.Writer.
func (c *logComparison) Write(p []byte) (int, error) {
	c.partial = append(c.partial, p...)
	for c.difference == "" {
		line, rest, ok := bytes.Cut(c.partial, []byte("\n"))
		if !ok {
			break
		}
		want, more, _ := bytes.Cut(c.want, []byte("\n"))
		c.compare(want, line)
		c.partial, c.want = rest, more
	}
	if c.difference != "" {
		c.partial = nil
	}
	return len(p), nil
}

func (c *logComparison) compare(want, got []byte) {
	c.lines++
	if bytes.HasPrefix(got, []byte("in ")) || bytes.HasPrefix(want, []byte("in ")) {
		c.steps++
	}
	if !bytes.Equal(want, got) {
		c.difference = fmt.Sprintf("step %d, line %d\n  was %s\n  is  %s", c.steps, c.lines, lineOrEOF(want), lineOrEOF(got))
	}
}

func lineOrEOF(line []byte) string {
	if len(line) == 0 {
		return "end of log"
	}
	return string(line)
}

// finish ends the log, and returns the first difference.
func (c *logComparison) finish() string {
	if c.difference == "" && len(c.want) > 0 {
		want, _, _ := bytes.Cut(c.want, []byte("\n"))
		c.compare(want, nil)
	}
	return c.difference
}

// divergence runs two simulations that should be identical, and describes the first
// difference of their logs.
func divergence(o, repeat Options) string {
	var first bytes.Buffer
	o.Columns, o.Page, o.Trace, repeat.Columns, repeat.Page, repeat.Trace = nil, nil, nil, nil, nil, nil
	o.Events = &first
	RunSeed(o)
	c := &logComparison{want: first.Bytes()}
	repeat.Events = c
	RunSeed(repeat)
	if diff := c.finish(); diff != "" {
		return "they diverge at " + diff
	}
	return "repeated, they did not diverge"
}

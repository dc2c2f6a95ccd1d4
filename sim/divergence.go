// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"bytes"
	"fmt"
)

// logComparison takes a canonical log and compares it with another, line by line.
type logComparison struct {
	want       []byte
	partial    []byte // of a line that has not come to its end
	lines      int
	steps      int
	difference string // the first difference; "": none so far
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

func (c *logComparison) compare(want, is []byte) {
	c.lines++
	if bytes.HasPrefix(is, []byte("in ")) || bytes.HasPrefix(want, []byte("in ")) {
		c.steps++
	}
	if !bytes.Equal(want, is) {
		c.difference = fmt.Sprintf("step %d, line %d\n  was %s\n  is  %s", c.steps, c.lines, lineOrEOF(want), lineOrEOF(is))
	}
}

func lineOrEOF(line []byte) string {
	if len(line) == 0 {
		return "the end"
	}
	return string(line)
}

// finish is the first difference when nothing more comes.
func (c *logComparison) finish() string {
	if c.difference == "" && len(c.want) > 0 {
		want, _, _ := bytes.Cut(c.want, []byte("\n"))
		c.compare(want, nil)
	}
	return c.difference
}

// divergence runs two worlds that should be one and tells where they part.
func divergence(o, again Options) string {
	var first bytes.Buffer
	o.Columns, o.Page, o.Trace, again.Columns, again.Page, again.Trace = nil, nil, nil, nil, nil, nil
	o.Events = &first
	RunSeed(o)
	c := &logComparison{want: first.Bytes()}
	again.Events = c
	RunSeed(again)
	if at := c.finish(); at != "" {
		return "they part at " + at
	}
	return "run once more, they do not part"
}

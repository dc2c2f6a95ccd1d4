// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"bytes"
	"fmt"
)

// comparison takes a canonical log and compares it with another, line by line.
type comparison struct {
	want  []byte
	rest  []byte // of a line that has not come to its end
	lines int
	steps int
	found string // the first difference; "": none so far
}

// Write implements io.Writer.
func (c *comparison) Write(p []byte) (int, error) {
	c.rest = append(c.rest, p...)
	for c.found == "" {
		line, rest, ok := bytes.Cut(c.rest, []byte("\n"))
		if !ok {
			break
		}
		want, more, _ := bytes.Cut(c.want, []byte("\n"))
		c.compare(want, line)
		c.rest, c.want = rest, more
	}
	if c.found != "" {
		c.rest = nil
	}
	return len(p), nil
}

func (c *comparison) compare(want, is []byte) {
	c.lines++
	if bytes.HasPrefix(is, []byte("in ")) || bytes.HasPrefix(want, []byte("in ")) {
		c.steps++
	}
	if !bytes.Equal(want, is) {
		c.found = fmt.Sprintf("step %d, line %d\n  was %s\n  is  %s", c.steps, c.lines, orEnd(want), orEnd(is))
	}
}

func orEnd(line []byte) string {
	if len(line) == 0 {
		return "the end"
	}
	return string(line)
}

// end is the first difference when nothing more comes.
func (c *comparison) end() string {
	if c.found == "" && len(c.want) > 0 {
		want, _, _ := bytes.Cut(c.want, []byte("\n"))
		c.compare(want, nil)
	}
	return c.found
}

// diverges runs two worlds that should be one and tells where they part.
func diverges(o, again Options) string {
	var first bytes.Buffer
	o.Columns, o.Page, o.Trace, again.Columns, again.Page, again.Trace = nil, nil, nil, nil, nil, nil
	o.Events = &first
	RunSeed(o)
	c := &comparison{want: first.Bytes()}
	again.Events = c
	RunSeed(again)
	if at := c.end(); at != "" {
		return "they part at " + at
	}
	return "run once more, they do not part"
}

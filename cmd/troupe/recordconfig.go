// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strings"

	"github.com/troupe-run/troupe/host/prompts"
)

// recordTable is the table record of a configuration.
type recordTable struct {
	Prompts string   `toml:"prompts"`
	Keep    string   `toml:"keep"` // as in --keep
	Redact  []string `toml:"redact"`
}

// read returns the settings of the table.
func (t *recordTable) read() (c prompts.Config, err error) {
	c.Prompts, c.Redact = t.Prompts, t.Redact
	if c.Keep, err = parseKeep(t.Keep); err != nil {
		return c, fmt.Errorf("%s", strings.TrimPrefix(err.Error(), "--"))
	}
	return c, c.Check()
}

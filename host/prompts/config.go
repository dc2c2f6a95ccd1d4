// SPDX-License-Identifier: Apache-2.0

package prompts

import (
	"fmt"
	"regexp"
	"slices"
	"time"
)

// Values of Config.Prompts.
const (
	Off    = "off"
	Failed = "failed" // until a run and the root of its tree have succeeded
	All    = "all"
)

// Config is what is recorded, and for how long.
type Config struct {
	Prompts string        // Off, Failed or All; "" means Off
	Keep    time.Duration // time after which a record is removed; 0 means KeepDefault
	Redact  []string      // regular expressions (RE2); what they match is replaced by "[redacted]"
}

// Fields are the names of the settings in a configuration file.
func Fields() []string { return []string{"prompts", "keep", "redact"} }

// Bounds of the settings.
const (
	KeepDefault = 7 * 24 * time.Hour
	KeepMin     = time.Minute

	patternsMax     = 64
	patternBytesMax = 1000
)

// On reports whether requests are recorded.
func (c *Config) On() bool { return c.Prompts == Failed || c.Prompts == All }

// Check returns an error for the first invalid setting.
func (c *Config) Check() error {
	if !slices.Contains([]string{"", Off, Failed, All}, c.Prompts) {
		return fmt.Errorf("prompts: want %q, %q or %q, got %.40q", Off, Failed, All, c.Prompts)
	}
	if c.Keep != 0 && c.Keep < KeepMin {
		return fmt.Errorf("keep: want at least %s, got %s", "1m", c.Keep)
	}
	_, err := newRedactor(c.Redact)
	return err
}

// newRedactor compiles patterns.
func newRedactor(patterns []string) (redactor, error) {
	if len(patterns) > patternsMax {
		return nil, fmt.Errorf("redact: got %d patterns, want at most %d", len(patterns), patternsMax)
	}
	r := redactor{builtin}
	for i, text := range patterns {
		if len(text) > patternBytesMax {
			return nil, fmt.Errorf("redact: pattern %d has %d bytes, want at most %d", i+1, len(text), patternBytesMax)
		}
		p, err := regexp.Compile(text)
		if err != nil {
			return nil, fmt.Errorf("redact: pattern %d: %w", i+1, err)
		}
		if p.MatchString("") {
			return nil, fmt.Errorf("redact: pattern %d, %q, matches the empty text: make one part of it required", i+1, text)
		}
		r = append(r, p)
	}
	return r, nil
}

// builtin matches the keys and tokens of this server, also the tokens of runs.
var builtin = regexp.MustCompile(`troupe(?:_|-run\.)[A-Za-z0-9_.-]{16,}`)

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
)

// remedies lists what to write instead, by a part of the error of a parser. Only the
// first match is used.
var remedies = []struct{ command, part, text string }{
	{"", "missing unit in duration", "add a unit, such as 5s, 20m or 720h"},
	{"", `unknown unit "d" in duration`, "write days as hours, such as 720h"},
	{"", "slog: level string", "want debug, info, warn or error"},
	{"", "destination has type integer", "want a whole number without quotes"},
	{"troupe call", "unexpected argument", "put a message of several words in quotes"},
	{"troupe runs signal", "unexpected argument", "put a value of several words in quotes"},
}

// withRemedy adds to an error in the arguments of a command what to write instead.
func withRemedy(command string, err error) error {
	for _, r := range remedies {
		if strings.HasPrefix(command, r.command) && strings.Contains(err.Error(), r.part) {
			return fmt.Errorf("%w; %s", err, r.text)
		}
	}
	return err
}

// configError returns the error of a configuration file that cannot be read.
func configError(path string, err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("--config: %s does not exist; create it, or omit --config", path)
	}
	return err
}

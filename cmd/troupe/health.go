// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"net/http"
	"time"
)

// HealthCmd reports whether a server accepts work.
type HealthCmd struct {
	ServerFlags
	Timeout time.Duration `default:"4s" help:"Maximum time to wait for the answer (${default})."`
}

// Help returns the text shown below the flags.
func (HealthCmd) Help() string {
	return `Sends GET /readyz, which needs no key. Prints ready and exits with code 0 if the server accepts work, else prints the
reason and exits with code 1. A container or a script has no other program for it.

Examples:
  troupe health
  troupe health --timeout 1s`
}

// Run executes the command.
func (c *HealthCmd) Run(s streams) error {
	ctx, cancel := context.WithTimeout(context.Background(), c.Timeout)
	defer cancel()
	if _, _, err := c.client().do(ctx, http.MethodGet, "/readyz", nil); err != nil {
		return err
	}
	_, err := fmt.Fprintln(s.out, "ready")
	return err
}

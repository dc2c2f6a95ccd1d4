// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"fmt"
	"strings"

	"github.com/go-json-experiment/json"
)

// Bounds of a target.
const (
	TargetBytesMax     = 4 << 10
	ConcurrencyDefault = 16
	ConcurrencyMax     = 1024
	authEnvMax         = 128
)

// AuthEnvPrefix begins the name of each environment variable that a target may
// name. Whoever registers an agent says where it is, and so could otherwise have
// any secret of the process sent to an address of its own.
const AuthEnvPrefix = "TROUPE_AUTH_"

// Target is where an external agent is, as it registered: what a turn asks for
// when it has the agent invoked. It holds no secret, only the name of one.
type Target struct {
	URL string // below which /invoke and /health stand
	// AuthEnv names the environment variable whose value goes along as
	// authorization; "" sends none.
	AuthEnv string
	// Concurrency is how many invocations it takes at once; 0 is ConcurrencyDefault.
	Concurrency int
}

type targetJSON struct {
	URL         string `json:"url"`
	AuthEnv     string `json:"auth_env,omitzero"`
	Concurrency int    `json:"concurrency,omitzero"`
}

// Check says what is no target, and what would be.
func (t Target) Check() error {
	if err := CheckURL(t.URL); err != nil {
		return fmt.Errorf("url: %w", err)
	}
	if t.AuthEnv != "" {
		rest, ok := strings.CutPrefix(t.AuthEnv, AuthEnvPrefix)
		if !ok || rest == "" || len(t.AuthEnv) > authEnvMax || strings.Trim(rest, "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_") != "" {
			return fmt.Errorf("auth_env: want the name of an environment variable, %s followed by capitals, digits and '_', got %.40q", AuthEnvPrefix, t.AuthEnv)
		}
	}
	if t.Concurrency < 0 || t.Concurrency > ConcurrencyMax {
		return fmt.Errorf("concurrency: %d: want 1 to %d, or 0 for %d", t.Concurrency, ConcurrencyMax, ConcurrencyDefault)
	}
	return nil
}

// Encode writes the target as DecodeTarget reads it; the same target has the
// same bytes.
func (t Target) Encode() []byte { return marshal(targetJSON(t)) }

// DecodeTarget reads what Encode writes, and nothing else.
func DecodeTarget(b []byte) (Target, error) {
	var line targetJSON
	if len(b) > TargetBytesMax {
		return Target{}, fmt.Errorf("target: %d bytes are over %d", len(b), TargetBytesMax)
	}
	if err := unmarshal(b, &line, json.RejectUnknownMembers(true)); err != nil {
		return Target{}, fmt.Errorf("target: %w", err)
	}
	t := Target(line)
	if err := t.Check(); err != nil {
		return Target{}, fmt.Errorf("target: %w", err)
	}
	return t, nil
}

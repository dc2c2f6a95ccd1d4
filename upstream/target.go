// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"fmt"
	"strings"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/troupe-run/troupe/actor"
)

// Bounds of a target.
const (
	TargetBytesMax     = 4 << 10
	ConcurrencyDefault = 64
	ConcurrencyMax     = 1024
	authEnvMax         = 128
	SealedBytesMax     = 1600 // of a sealed credential
)

// AuthEnvPrefix is the required prefix of the environment variables that a target
// may name. Registrations choose both the address and the variable. Without the
// prefix a registration could send any secret of the process to an address of its
// choice.
const AuthEnvPrefix = "TROUPE_AUTH_"

// Target is the registered address of an external agent. A turn includes it in the
// ask that invokes the agent. It contains the name of a secret, never the secret.
type Target struct {
	URL string // base URL of the /invoke and /health endpoints
	// AuthEnv is the environment variable whose value is sent as authorization; ""
	// sends none.
	AuthEnv string
	// Sealed is a credential that only the server opens, and only for the origin of URL; "" is none.
	Sealed string
	// Concurrency is the maximum number of concurrent invocations; 0 means
	// ConcurrencyDefault.
	Concurrency int
	// Retry is the policy for failed invocations; zero fields mean the defaults.
	Retry RetryPolicy
	// Safe means that the agent is invoked again for the same run when its connection breaks.
	Safe bool
}

type (
	targetJSON struct {
		URL         string    `json:"url"`
		AuthEnv     string    `json:"auth_env,omitzero"`
		Sealed      string    `json:"auth_sealed,omitzero"`
		Concurrency int       `json:"concurrency,omitzero"`
		Retry       retryJSON `json:"retry,omitzero"`
		Safe        bool      `json:"safe,omitzero"`
	}
	retryJSON struct {
		Tries      int   `json:"attempts,omitzero"`
		DelayMS    int64 `json:"delay_ms,omitzero"`
		DelayMaxMS int64 `json:"delay_max_ms,omitzero"`
		TimeMS     int64 `json:"time_ms,omitzero"`
		Exact      bool  `json:"exact,omitzero"`
	}
)

// Check returns an error that describes the first invalid field, or nil.
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
	if len(t.Sealed) > SealedBytesMax || t.Sealed != "" && t.AuthEnv != "" {
		return fmt.Errorf("auth_sealed: want at most %d bytes, and no auth_env", SealedBytesMax)
	}
	if t.Concurrency < 0 || t.Concurrency > ConcurrencyMax {
		return fmt.Errorf("concurrency: %d: want 1 to %d, or 0 for %d", t.Concurrency, ConcurrencyMax, ConcurrencyDefault)
	}
	return t.Retry.Check("retry_attempts", "retry_delay_ms", "retry_delay_max_ms", "retry_time_ms")
}

// Encode returns the JSON form that DecodeTarget reads. Equal targets have equal
// bytes.
func (t Target) Encode() []byte {
	r := t.Retry
	return marshal(targetJSON{t.URL, t.AuthEnv, t.Sealed, t.Concurrency, retryJSON{r.Tries, r.Delay.Milliseconds(), r.DelayMax.Milliseconds(), r.Time.Milliseconds(), r.Exact}, t.Safe})
}

// DecodeTarget decodes the output of Encode and rejects everything else.
func DecodeTarget(b []byte) (Target, error) {
	var wire targetJSON
	if len(b) > TargetBytesMax {
		return Target{}, fmt.Errorf("target: %d bytes exceed the maximum of %d", len(b), TargetBytesMax)
	}
	if err := unmarshal(b, &wire, json.RejectUnknownMembers(true)); err != nil {
		return Target{}, fmt.Errorf("target: %w", err)
	}
	r := wire.Retry
	for _, ms := range []int64{r.DelayMS, r.DelayMaxMS, r.TimeMS} {
		if ms > RetryTimeMax.Milliseconds() {
			return Target{}, fmt.Errorf("target: retry: %d ms exceed the maximum of %v", ms, RetryTimeMax)
		}
	}
	millis := func(ms int64) actor.Duration { return actor.Duration(ms) * time.Millisecond }
	t := Target{wire.URL, wire.AuthEnv, wire.Sealed, wire.Concurrency, RetryPolicy{r.Tries, millis(r.DelayMS), millis(r.DelayMaxMS), millis(r.TimeMS), r.Exact}, wire.Safe}
	if err := t.Check(); err != nil {
		return Target{}, fmt.Errorf("target: %w", err)
	}
	return t, nil
}

// SPDX-License-Identifier: Apache-2.0

package webhooks

import (
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/host/outbound"
	"github.com/troupe-run/troupe/internal/nearest"
	"github.com/troupe-run/troupe/runs"
	"github.com/troupe-run/troupe/upstream"
)

// Max is the maximum number of webhooks of a node.
const Max = 16

// Bounds of a secret in bytes.
const (
	secretBytesMin = 24
	secretBytesMax = 128
)

// Config has the settings of a webhook, a table [[webhook]] of the configuration.
type Config struct {
	// name of the webhook in metrics and logs, and of its position
	Name string `toml:"name"`
	// address of the receiver, or the environment variable with it, if the address is a secret
	URL    string `toml:"url"`
	URLEnv string `toml:"url_env"`
	// kinds of notices that are sent; all if empty
	Events []string `toml:"events"`
	// environment variable with the secret that signs deliveries
	SecretEnv string `toml:"secret_env"`
	// whether deliveries have contents: the summary of arguments, and the detail of failures
	Details bool `toml:"details"`
}

// Fields returns the names of the fields of a webhook in a configuration.
func Fields() []string { return []string{"name", "url", "url_env", "events", "secret_env", "details"} }

// Check returns an error for the first mistake in the settings of webhooks.
func Check(all []Config, env func(string) (string, bool), egress upstream.Egress) error {
	if len(all) > Max {
		return fmt.Errorf("webhook: got %d, want at most %d", len(all), Max)
	}
	seen := map[string]bool{}
	for i := range all {
		if _, err := all[i].target(env, egress); err != nil {
			return fmt.Errorf("webhook %d: %w", i+1, err)
		}
		if seen[all[i].Name] {
			return fmt.Errorf("webhook %d: name: %s is another webhook already", i+1, all[i].Name)
		}
		seen[all[i].Name] = true
	}
	return nil
}

// target is what a webhook sends to.
type target struct {
	url    string
	secret []byte
	kinds  []runs.Notice
}

// target returns what a valid webhook sends to.
func (c *Config) target(env func(string) (string, bool), egress upstream.Egress) (t target, err error) {
	if err := actor.CheckName(c.Name); err != nil {
		return t, fmt.Errorf("name: %w", err)
	}
	if t.url, err = c.address(env); err != nil {
		return t, err
	}
	if err := upstream.CheckModelURL(t.url); err != nil {
		return t, fmt.Errorf("url: %w", err)
	}
	if err := egress.CheckURL(t.url); err != nil {
		return t, fmt.Errorf("url: %w", err)
	}
	if t.secret, err = c.secret(env); err != nil {
		return t, fmt.Errorf("secret_env: %w", err)
	}
	for _, name := range c.Events {
		kind, ok := runs.ParseNotice(name)
		if !ok {
			meant := nearest.Of(name, runs.NoticeNames())
			if meant != "" {
				meant = "; did you mean " + meant
			}
			return t, fmt.Errorf("events: %.40q is unknown%s; want some of %s", name, meant, strings.Join(runs.NoticeNames(), ", "))
		}
		if slices.Contains(t.kinds, kind) {
			return t, fmt.Errorf("events: %s is named twice", name)
		}
		t.kinds = append(t.kinds, kind)
	}
	return t, nil
}

func (c *Config) address(env func(string) (string, bool)) (string, error) {
	switch {
	case c.URL == "" && c.URLEnv == "":
		return "", errors.New("url: is missing: want the address of the receiver, or url_env with the environment variable that has it")
	case c.URL != "" && c.URLEnv != "":
		return "", errors.New("url, url_env: want one of them")
	case c.URL != "":
		return c.URL, nil
	}
	value, err := variable(c.URLEnv, env)
	if err != nil {
		return "", fmt.Errorf("url_env: %w", err)
	}
	return value, nil
}

// secretPrefix begins a secret in the form of Standard Webhooks, base64 follows.
const secretPrefix = "whsec_"

// secret returns the key of the signatures.
func (c *Config) secret(env func(string) (string, bool)) ([]byte, error) {
	if c.SecretEnv == "" {
		return nil, errors.New("is missing: want the environment variable with the secret that signs deliveries; `openssl rand -base64 32` makes one")
	}
	value, err := variable(c.SecretEnv, env)
	if err != nil {
		return nil, err
	}
	secret := []byte(value)
	if text, ok := strings.CutPrefix(value, secretPrefix); ok {
		if secret, err = base64.StdEncoding.DecodeString(text); err != nil {
			return nil, fmt.Errorf("the value of %s begins with %s and is not base64 behind it", c.SecretEnv, secretPrefix)
		}
	}
	if len(secret) < secretBytesMin || len(secret) > secretBytesMax {
		return nil, fmt.Errorf("the value of %s has %d bytes, want %d to %d", c.SecretEnv, len(secret), secretBytesMin, secretBytesMax)
	}
	return secret, nil
}

func variable(name string, env func(string) (string, bool)) (string, error) {
	if !outbound.IsEnvName(name) {
		return "", errors.New("want the name of an environment variable, not its value")
	}
	value, _ := env(name)
	if value = strings.TrimSpace(value); value == "" {
		return "", fmt.Errorf("the environment variable %s is not set: set it and restart", name)
	}
	return value, nil
}

// SPDX-License-Identifier: Apache-2.0

package traces

import (
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"

	"github.com/troupe-run/troupe/host/outbound"
	"github.com/troupe-run/troupe/upstream"
)

// Config is the collector that gets the spans.
type Config struct {
	// Endpoint is the base URL, to which /v1/traces is added unless it ends so. "" sends nothing.
	Endpoint string `toml:"endpoint"`
	// Headers of each request: with their value, and with the environment variable that holds the value
	Headers   map[string]string `toml:"headers"`
	HeaderEnv map[string]string `toml:"header_env"`
	// Content adds messages, arguments and results of tools to spans.
	Content bool `toml:"content"`
}

// Fields are the names of the settings in a configuration file.
func Fields() []string { return []string{"endpoint", "headers", "header_env", "content"} }

// On reports whether spans are sent.
func (c *Config) On() bool { return c.Endpoint != "" }

// path is the path of a collector below its base URL.
const path = "/v1/traces"

// target is what requests are sent to.
type target struct {
	url     string
	headers map[string]string
}

// Check returns an error for the first mistake. The environment has the variables of HeaderEnv.
func (c *Config) Check(env func(string) (string, bool), egress upstream.Egress) error {
	_, err := c.target(env, egress)
	return err
}

func (c *Config) target(env func(string) (string, bool), egress upstream.Egress) (t target, err error) {
	if !c.On() {
		if len(c.Headers)+len(c.HeaderEnv) > 0 || c.Content {
			return t, errors.New("endpoint: is missing: want the address of a collector, such as http://127.0.0.1:4318")
		}
		return t, nil
	}
	u, err := url.Parse(c.Endpoint)
	if err != nil {
		return t, fmt.Errorf("endpoint: want the address of a collector, such as http://127.0.0.1:4318")
	}
	if u.Path = strings.TrimSuffix(u.Path, "/"); !strings.HasSuffix(u.Path, path) {
		u.Path += path
	}
	t.url, t.headers = u.String(), map[string]string{}
	if err := upstream.CheckModelURL(t.url); err != nil {
		return t, fmt.Errorf("endpoint: %w", err)
	}
	if err := egress.CheckURL(t.url); err != nil {
		return t, fmt.Errorf("endpoint: %w", err)
	}
	if n := len(c.Headers) + len(c.HeaderEnv); n > upstream.HeadersMax {
		return t, fmt.Errorf("headers, header_env: got %d, want at most %d", n, upstream.HeadersMax)
	}
	for _, name := range slices.Sorted(maps.Keys(c.Headers)) {
		if err := t.add(name, c.Headers[name]); err != nil {
			return t, fmt.Errorf("headers.%w", err)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(c.HeaderEnv)) {
		variable := c.HeaderEnv[name]
		if !outbound.IsEnvName(variable) {
			return t, fmt.Errorf("header_env.%s: want the name of an environment variable, not the value", name)
		}
		value, _ := env(variable)
		if value = strings.TrimSpace(value); value == "" {
			return t, fmt.Errorf("header_env.%s: the environment variable %s is not set: set it and restart", name, variable)
		}
		if err := t.add(name, value); err != nil {
			return t, fmt.Errorf("header_env.%w", err)
		}
	}
	return t, nil
}

// add adds a header.
func (t *target) add(name, value string) error {
	lower := strings.ToLower(name)
	if err := upstream.CheckHeaderName(name); err != nil && lower != "authorization" { // which models have a setting of their own for
		return fmt.Errorf("%s: %w", name, err)
	}
	if _, twice := t.headers[lower]; twice {
		return fmt.Errorf("%s: is set twice", name)
	}
	if strings.ContainsFunc(value, func(r rune) bool { return r < ' ' || r == 0x7f }) || len(value) > upstream.HeaderBytesMax {
		return fmt.Errorf("%s: want one line of at most %d bytes", name, upstream.HeaderBytesMax)
	}
	t.headers[lower] = value
	return nil
}

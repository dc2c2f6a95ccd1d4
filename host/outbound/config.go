// SPDX-License-Identifier: Apache-2.0

package outbound

import (
	"context"
	"crypto/x509"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/upstream"
)

// Config is whom a node may ask, and how. The zero value knows the scripted
// model alone, and reaches public addresses alone.
type Config struct {
	// Models by the name that agents know them by. upstream.ScriptName is always
	// there, and no other may have its name.
	Models map[string]Model
	// Allow is what may be reached besides public addresses, as
	// upstream.NewEgress takes it. Whoever serves the loopback alone may add
	// upstream.AllowLoopback.
	Allow []string
	// Token makes the token with which an external agent calls back on behalf of
	// a run of that actor. nil: agents get none.
	Token func(run actor.CallID, id actor.ID) string
	// Env finds an environment variable. nil: os.LookupEnv.
	Env func(name string) (value string, ok bool)
	// Logger gets one line for each attempt, at debug level. nil: nobody.
	Logger *slog.Logger
	// Backoff is how each upstream is spared that fails.
	Backoff upstream.BackoffConfig
	// Patience is for upstreams that have none of their own.
	Patience upstream.Patience
	// ExchangesMax may be under way at once. 0: 512.
	ExchangesMax int
	// Pace is how long the scripted model takes for each piece of its answer, for
	// those who want to see it stream. 0: it takes no time.
	Pace time.Duration
	// Roots are the authorities that vouch for upstreams. nil: the system's.
	Roots *x509.CertPool
	// Resolve finds the addresses of a name. nil: the system's resolver.
	Resolve func(ctx context.Context, name string) ([]netip.Addr, error)
}

// Model is one model, as this node is configured to ask it.
type Model struct {
	// URL below which its API stands: https://api.example.com/v1
	URL string `toml:"url"`
	// KeyEnv names the environment variable that holds the key. "": it needs none.
	KeyEnv string `toml:"key_env"`
	// Model is its name there. "": the same as here.
	Model string `toml:"model"`
	// MaxTokensName is max_tokens, or max_completion_tokens for those that want
	// it. "": max_tokens.
	MaxTokensName string `toml:"max_tokens_name"`
	// MaxTokens bounds the answer to a prompt that does not say. 0: the model does.
	MaxTokens int `toml:"max_tokens"`
	// Temperature is for prompts that do not say. nil: the model's own.
	Temperature *float64 `toml:"temperature"`
	// Concurrency is how many prompts it takes at once. 0: as many as there are.
	Concurrency int `toml:"concurrency"`
	// HeadTimeout is how long it may take to begin an answer, IdleTimeout how long
	// it may be silent within one. 0: as Config.Patience has it.
	HeadTimeout time.Duration `toml:"head_timeout"`
	IdleTimeout time.Duration `toml:"idle_timeout"`
}

// Bounds of a configuration.
const (
	ModelsMax      = 256
	exchangesMax   = 512
	concurrencyMax = 1 << 16
)

// Validate names what is wrong, and with which model.
func (c *Config) Validate() error {
	if len(c.Models) > ModelsMax {
		return fmt.Errorf("models: %d are over %d", len(c.Models), ModelsMax)
	}
	for _, name := range slices.Sorted(maps.Keys(c.Models)) {
		if err := actor.CheckName(name); err != nil {
			return fmt.Errorf("models: %w", err)
		}
		if name == upstream.ScriptName {
			return fmt.Errorf("models: %s is built in: choose another name", name)
		}
		model := c.Models[name]
		if err := model.validate(); err != nil {
			return fmt.Errorf("models.%s.%w", name, err)
		}
	}
	switch {
	case c.ExchangesMax < 0:
		return fmt.Errorf("exchanges: %d at once: want at least 1, or 0 for %d", c.ExchangesMax, exchangesMax)
	case c.Pace < 0 || c.Pace > time.Minute:
		return fmt.Errorf("pace: %v: want 0 to 1m", c.Pace)
	}
	if _, err := upstream.NewEgress(c.Allow); err != nil {
		return err
	}
	return c.Backoff.Validate()
}

func (m *Model) validate() error {
	if err := upstream.CheckURL(m.URL); err != nil {
		return fmt.Errorf("url: %w", err)
	}
	switch {
	case strings.ContainsAny(m.KeyEnv, "= \x00") || len(m.KeyEnv) > upstream.NameBytesMax:
		return fmt.Errorf("key_env: want the name of an environment variable, not the key")
	case len(m.Model) > upstream.NameBytesMax:
		return fmt.Errorf("model: %d bytes are over %d", len(m.Model), upstream.NameBytesMax)
	case !slices.Contains([]string{"", "max_tokens", "max_completion_tokens"}, m.MaxTokensName):
		return fmt.Errorf("max_tokens_name: want max_tokens or max_completion_tokens, got %.40q", m.MaxTokensName)
	case m.MaxTokens < 0 || m.MaxTokens > upstream.MaxTokensMax:
		return fmt.Errorf("max_tokens: %d: want 0 to %d", m.MaxTokens, upstream.MaxTokensMax)
	case m.Temperature != nil && !(*m.Temperature >= 0 && *m.Temperature <= 2):
		return fmt.Errorf("temperature: %v: want 0 to 2", *m.Temperature)
	case m.Concurrency < 0 || m.Concurrency > concurrencyMax:
		return fmt.Errorf("concurrency: %d: want 1 to %d, or 0 for no bound of its own", m.Concurrency, concurrencyMax)
	case m.HeadTimeout < 0 || m.IdleTimeout < 0:
		return fmt.Errorf("head_timeout, idle_timeout: want more than nothing, or 0 for the default")
	}
	return nil
}

// withDefaults fills in what was left open.
func (c Config) withDefaults() Config {
	if c.Env == nil {
		c.Env = os.LookupEnv
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.ExchangesMax == 0 {
		c.ExchangesMax = exchangesMax
	}
	if c.Resolve == nil {
		c.Resolve = func(ctx context.Context, name string) ([]netip.Addr, error) {
			return net.DefaultResolver.LookupNetIP(ctx, "ip", name)
		}
	}
	return c
}

// secret is the value of an environment variable; "" names none.
func (c *Config) secret(env string) (upstream.Secret, error) {
	if env == "" {
		return "", nil
	}
	value, _ := c.Env(env)
	if value = strings.TrimSpace(value); value == "" {
		return "", fmt.Errorf("the environment variable %s is not set: set it, and start again", env)
	}
	return upstream.Secret(value), nil
}

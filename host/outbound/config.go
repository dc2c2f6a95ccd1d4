// SPDX-License-Identifier: Apache-2.0

package outbound

import (
	"cmp"
	"context"
	"crypto/x509"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/tools"
	"github.com/troupe-run/troupe/upstream"
)

// Config configures the models and networks that a node may use. The zero value
// allows only the scripted model and public addresses.
type Config struct {
	// models by the name that agents use. upstream.ScriptName always exists and
	// cannot be redefined.
	Models map[string]Model
	// currency of their prices, a label of three letters; "": DefaultCurrency
	Currency string
	// networks allowed in addition to public addresses, in the syntax of
	// upstream.NewEgress. A server bound to loopback may add
	// upstream.AllowLoopback.
	Allow []string
	// text that allows a host, for refusals; nil: that of troupe serve
	Remedy func(host string) string
	// addresses to which the secrets of external agents may be sent
	Auth upstream.Bindings
	// returns the token with which an external agent calls back on behalf of the
	// given run of the actor id, in one invocation; nil: agents get no token
	Token func(run actor.CallID, invocation uint32, id actor.ID) string
	// signs who asks for a call of a tool; nil: tools with a signed identity fail
	Sign func(who *upstream.Identity, call upstream.SignedCall) string
	// performs tools that are modules of WebAssembly; nil: they are refused
	Sandbox Sandbox
	// opens a sealed credential for the URL of an agent; nil: agents with one are not invoked
	OpenAuth func(url, sealed string) (upstream.Header, error)
	// mark of this server in upstream.EgressHeader, by which it recognizes its own requests; "": "1"
	Server string
	// begins the record of a request to a model for a run. The function it returns gets the request once it has ended,
	// which nothing waits for; nil: it is not recorded. nil: none is
	Record func(owner actor.ID, run actor.CallID) (end func(*Recorded))
	// requests name the spans of this server in their trace, instead of that of the client
	Spans bool
	// looks up an environment variable; nil: os.LookupEnv
	Env func(name string) (value string, ok bool)
	// receives one line per attempt at debug level; nil: no log
	Logger *slog.Logger
	// back-off applied to each failing upstream
	Backoff upstream.BackoffConfig
	// timeouts of upstreams that do not set their own
	Patience upstream.AttemptLimits
	// maximum number of concurrent exchanges; 0: 1,024
	ExchangesMax int
	// maximum of them for one principal; 0: half of ExchangesMax, at least 1
	PrincipalExchangesMax int
	// delay of the scripted model before each piece of its answer, to make
	// streaming visible; at most 1 min, 0: no delay
	Pace time.Duration
	// certificate authorities trusted for upstreams; nil: those of the system
	Roots *x509.CertPool
	// resolves a host name to addresses; nil: the system's resolver
	Resolve func(ctx context.Context, name string) ([]netip.Addr, error)
}

// Sandbox performs tools that are modules of WebAssembly.
type Sandbox interface {
	// Install keeps a module, whose SHA-256 MUST be sum, for the tools that name it.
	Install(sum string, module []byte) error
	// Permit returns an error if a tool cannot be performed.
	Permit(d *tools.Declared) error
	// Perform performs a call on behalf of a user until ctx ends. A repetition of the call has the same id.
	Perform(ctx context.Context, d *tools.Declared, user, id string, input []byte) actor.Answer
}

// Model configures one model of the node.
type Model struct {
	// base URL of the API, such as https://api.example.com/v1; may have a query
	URL string `toml:"url"`
	// headers sent with each prompt: with their value, and with the environment
	// variable that holds the value
	Headers   map[string]string `toml:"headers"`
	HeaderEnv map[string]string `toml:"header_env"`
	// models that are asked in turn if this one is not available
	Fallback []string `toml:"fallback"`
	// environment variable that holds the API key; "": no key
	KeyEnv string `toml:"key_env"`
	// name of the model at the provider; "": its key in Config.Models
	Model string `toml:"model"`
	// name of the request field that holds the token limit: max_tokens or
	// max_completion_tokens; "": max_tokens
	MaxTokensName string `toml:"max_tokens_name"`
	// optional members that requests lack, such as stream_options; upstream.CheckOmit has the others
	Omit []string `toml:"omit"`
	// token limit for prompts without one; 0: the provider's default
	MaxTokens int `toml:"max_tokens"`
	// temperature for prompts without one, 0 to 2; nil: the provider's default
	Temperature *float64 `toml:"temperature"`
	// maximum number of concurrent prompts; 0: ModelConcurrency. Four times as many wait in
	// order of arrival
	Concurrency int `toml:"concurrency"`
	// maximum time until an answer begins (HeadTimeout), and maximum silence
	// within an answer (IdleTimeout); 0: as in Config.Patience
	HeadTimeout time.Duration `toml:"head_timeout"`
	IdleTimeout time.Duration `toml:"idle_timeout"`
	// retries of a failed prompt, as in upstream.RetryPolicy; 0: as in
	// Config.Patience
	RetryAttempts int           `toml:"retry_attempts"`
	RetryDelay    time.Duration `toml:"retry_delay"`
	RetryDelayMax time.Duration `toml:"retry_delay_max"`
	RetryTime     time.Duration `toml:"retry_time"`
	// false: each delay is its maximum instead of drawn
	RetryJitter *bool `toml:"retry_jitter"`
	// price of a million tokens of prompts and of answers; nil: unknown. Of the tokens of a prompt that the
	// provider had cached; nil: as PriceInput
	PriceInput       *float64 `toml:"price_input"`
	PriceOutput      *float64 `toml:"price_output"`
	PriceCachedInput *float64 `toml:"price_cached_input"`
}

// Price returns the price of the model.
func (m *Model) Price() (p upstream.Price, err error) {
	for _, one := range []struct {
		name  string
		value *float64
		to    *int64
	}{{"price_input", m.PriceInput, &p.Input}, {"price_cached_input", m.PriceCachedInput, &p.CachedInput}, {"price_output", m.PriceOutput, &p.Output}} {
		if one.value == nil {
			continue
		}
		if *one.to, err = upstream.ParsePrice(*one.value); err != nil {
			return upstream.Price{}, fmt.Errorf("%s: %w", one.name, err)
		}
	}
	switch {
	case m.PriceInput == nil && m.PriceOutput == nil && m.PriceCachedInput == nil:
		return p, nil
	case m.PriceInput == nil:
		return upstream.Price{}, fmt.Errorf("price_input: is missing; want the price of a million tokens of prompts, or 0")
	case m.PriceOutput == nil:
		return upstream.Price{}, fmt.Errorf("price_output: is missing; want the price of a million tokens of answers, or 0")
	case m.PriceCachedInput == nil:
		p.CachedInput = p.Input
	}
	p.Known = true
	return p, nil
}

func (m *Model) retryPolicy() upstream.RetryPolicy {
	return upstream.RetryPolicy{Tries: m.RetryAttempts, Delay: m.RetryDelay, DelayMax: m.RetryDelayMax, Time: m.RetryTime,
		Exact: m.RetryJitter != nil && !*m.RetryJitter}
}

// Bounds of a configuration.
const (
	ModelsMax = 256
	// ModelConcurrency is the default for Model.Concurrency.
	ModelConcurrency = 256

	// ExchangesMax is the default for Config.ExchangesMax.
	ExchangesMax = 1024

	concurrencyMax = 1 << 16
)

// DefaultCurrency is the default for Config.Currency.
const DefaultCurrency = "USD"

// CheckCurrency returns an error unless a label has three capital letters, as those of ISO 4217, or is empty.
func CheckCurrency(label string) error {
	if label != "" && !currencyLabel.MatchString(label) {
		return fmt.Errorf("want a currency of three capital letters such as %q, got %.40q", DefaultCurrency, label)
	}
	return nil
}

var currencyLabel = regexp.MustCompile(`^[A-Z]{3}$`)

// Validate returns the first of Errors, or nil.
func (c *Config) Validate() error {
	if all := c.Errors(); len(all) > 0 {
		return all[0]
	}
	return nil
}

// Errors returns an error for each invalid setting, and one for each invalid model.
func (c *Config) Errors() (all []error) {
	report := func(format string, args ...any) { all = append(all, fmt.Errorf(format, args...)) }
	if len(c.Models) > ModelsMax {
		report("models: got %d, want at most %d", len(c.Models), ModelsMax)
	}
	for _, name := range slices.Sorted(maps.Keys(c.Models)) {
		model := c.Models[name]
		if err := cmp.Or(actor.CheckName(name), actor.CheckUnreserved(name)); err != nil {
			report("models: %w", err)
		} else if name == upstream.ScriptName {
			report("models: %s is built in: choose another name", name)
		} else if err := model.validate(); err != nil {
			report("models.%s.%w", name, err)
		} else if err := c.validateFallback(name); err != nil {
			report("models.%s.fallback: %w", name, err)
		}
	}
	if err := CheckCurrency(c.Currency); err != nil {
		report("currency: %w", err)
	}
	if c.ExchangesMax < 0 {
		report("exchanges: got %d, want at least 1, or 0 for %d", c.ExchangesMax, ExchangesMax)
	}
	if c.PrincipalExchangesMax < 0 {
		report("exchanges of a principal: got %d, want at least 1, or 0 for half of all", c.PrincipalExchangesMax)
	}
	if c.Pace < 0 || c.Pace > time.Minute {
		report("pace: got %v, want 0 to 1m", c.Pace)
	}
	if _, err := upstream.NewEgress(c.Allow); err != nil {
		report("%w", err)
	}
	if err := c.Auth.Check(); err != nil {
		report("auth: %w", err)
	}
	if err := c.Backoff.Validate(); err != nil {
		all = append(all, err)
	}
	return all
}

// MissingSecrets returns an error for each secret of a model that the environment does not have.
func (c *Config) MissingSecrets() (all []error) {
	with := c.withDefaults()
	for _, name := range slices.Sorted(maps.Keys(c.Models)) {
		model := c.Models[name]
		if _, err := with.secret(model.KeyEnv); err != nil {
			all = append(all, fmt.Errorf("models.%s.key_env: %w", name, err))
		}
		if _, err := with.headers(&model); err != nil {
			all = append(all, fmt.Errorf("models.%s.header_env.%w", name, err))
		}
	}
	return all
}

// UnreachableModels returns an error for each model whose URL has an address, or localhost, that
// is not allowed. Other names are not resolved. It is empty if Allow is invalid.
func (c *Config) UnreachableModels() (all []error) {
	rules, err := upstream.NewEgress(c.Allow)
	if err != nil {
		return nil
	}
	rules.Remedy = c.Remedy
	for _, name := range slices.Sorted(maps.Keys(c.Models)) {
		if err := rules.CheckURL(c.Models[name].URL); err != nil {
			all = append(all, fmt.Errorf("models.%s.url: %w", name, err))
		}
	}
	return all
}

func (m *Model) validate() error {
	if err := upstream.CheckModelURL(m.URL); err != nil {
		return fmt.Errorf("url: %w", err)
	}
	path, query, _ := strings.Cut(m.URL, "?")
	if base, ok := strings.CutSuffix(strings.TrimRight(path, "/"), completionsPath); ok {
		if query != "" { // which may have a key
			base += ", with the same query"
		}
		return fmt.Errorf("url: ends in %s, which the server adds; want %.200s", completionsPath, base)
	}
	if err := m.validateHeaders(); err != nil {
		return err
	}
	switch {
	case !isEnvName(m.KeyEnv):
		return fmt.Errorf("key_env: want the name of an environment variable, not the key")
	case len(m.Model) > upstream.NameBytesMax:
		return fmt.Errorf("model: got %d bytes, want at most %d", len(m.Model), upstream.NameBytesMax)
	case !slices.Contains([]string{"", "max_tokens", "max_completion_tokens"}, m.MaxTokensName):
		return fmt.Errorf("max_tokens_name: want max_tokens or max_completion_tokens, got %.40q", m.MaxTokensName)
	case upstream.CheckOmit(m.Omit) != nil:
		return fmt.Errorf("omit: %w", upstream.CheckOmit(m.Omit))
	case m.MaxTokens < 0 || m.MaxTokens > upstream.MaxTokensMax:
		return fmt.Errorf("max_tokens: got %d, want 0 to %d", m.MaxTokens, upstream.MaxTokensMax)
	case m.Temperature != nil && !(*m.Temperature >= 0 && *m.Temperature <= 2):
		return fmt.Errorf("temperature: got %v, want 0 to 2", *m.Temperature)
	case m.Concurrency < 0 || m.Concurrency > concurrencyMax:
		return fmt.Errorf("concurrency: got %d, want 1 to %d, or 0 for %d", m.Concurrency, concurrencyMax, ModelConcurrency)
	case m.HeadTimeout < 0 || m.IdleTimeout < 0:
		return fmt.Errorf("head_timeout, idle_timeout: want a positive duration, or 0 for the default")
	}
	if _, err := m.Price(); err != nil {
		return err
	}
	return m.retryPolicy().Check("retry_attempts", "retry_delay", "retry_delay_max", "retry_time")
}

// completionsPath is the path that requests to a model add to its URL.
const completionsPath = "/chat/completions"

// envName matches the name of a variable that a shell can set, and no usual form of a key.
var envName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// isEnvName reports whether a name is empty or that of an environment variable.
func isEnvName(name string) bool {
	return name == "" || envName.MatchString(name) && len(name) <= upstream.NameBytesMax
}

// IsEnvName reports whether a name is that of an environment variable.
func IsEnvName(name string) bool { return name != "" && isEnvName(name) }

// isLikeKey reports whether the name of a variable may be a key that was written in its place: it is
// long, and has lower-case letters, digits and upper-case letters or no underscore.
func isLikeKey(name string) bool {
	has := func(chars string) bool { return strings.ContainsAny(name, chars) }
	const lower, digits = "abcdefghijklmnopqrstuvwxyz", "0123456789"
	return len(name) >= keyBytesMin && has(lower) && has(digits) && (has(strings.ToUpper(lower)) || !has("_"))
}

// keyBytesMin is the length from which a text may be a key.
const keyBytesMin = 16

func (m *Model) validateHeaders() error {
	if n := len(m.Headers) + len(m.HeaderEnv); n > upstream.HeadersMax {
		return fmt.Errorf("headers, header_env: got %d, want at most %d", n, upstream.HeadersMax)
	}
	seen := map[string]bool{}
	for _, table := range []struct {
		name    string
		headers map[string]string
	}{{"headers", m.Headers}, {"header_env", m.HeaderEnv}} {
		for _, name := range slices.Sorted(maps.Keys(table.headers)) {
			value := table.headers[name]
			if err := upstream.CheckHeaderName(name); err != nil {
				return fmt.Errorf("%s: %w", table.name, err)
			}
			switch lower := strings.ToLower(name); {
			case seen[lower]:
				return fmt.Errorf("%s: %s is set twice", table.name, name)
			case table.name == "header_env" && (value == "" || !isEnvName(value)):
				return fmt.Errorf("header_env.%s: want the name of an environment variable, not the value", name)
			case strings.ContainsFunc(value, func(r rune) bool { return r < ' ' || r == 0x7f }) || len(value) > upstream.HeaderBytesMax:
				return fmt.Errorf("%s.%s: want one line of at most %d bytes", table.name, name, upstream.HeaderBytesMax)
			default:
				seen[lower] = true
			}
		}
	}
	return nil
}

// headers returns the additional headers of a model. Values from the environment are
// secrets.
func (c *Config) headers(m *Model) (all []upstream.Header, err error) {
	for _, name := range slices.Sorted(maps.Keys(m.Headers)) {
		all = append(all, upstream.Header{Name: strings.ToLower(name), Value: m.Headers[name]})
	}
	for _, name := range slices.Sorted(maps.Keys(m.HeaderEnv)) {
		value, err := c.secret(m.HeaderEnv[name])
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		all = append(all, upstream.Header{Name: strings.ToLower(name), Value: value.Reveal(), Secret: true})
	}
	return all, nil
}

// ModelFields returns the names of the fields of a model in a configuration file.
func ModelFields() (names []string) {
	t := reflect.TypeFor[Model]()
	for i := range t.NumField() {
		names = append(names, t.Field(i).Tag.Get("toml"))
	}
	return names
}

// withDefaults returns the configuration with defaults for unset functions and
// limits.
func (c Config) withDefaults() Config {
	if c.Env == nil {
		c.Env = os.LookupEnv
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.ExchangesMax == 0 {
		c.ExchangesMax = ExchangesMax
	}
	if c.PrincipalExchangesMax == 0 {
		c.PrincipalExchangesMax = max(c.ExchangesMax/2, 1)
	}
	if c.Resolve == nil {
		c.Resolve = func(ctx context.Context, name string) ([]netip.Addr, error) {
			return net.DefaultResolver.LookupNetIP(ctx, "ip", name)
		}
	}
	return c
}

// agentOf returns an external agent with its credential.
func (c *Config) agentOf(t upstream.Target) (upstream.Agent, error) {
	a := upstream.Agent{URL: t.URL}
	var err error
	switch {
	case t.Sealed == "":
		a.Auth, err = c.secret(t.AuthEnv)
	case c.OpenAuth == nil:
		err = fmt.Errorf("this server cannot open the credential of the agent")
	default:
		var h upstream.Header
		h, err = c.OpenAuth(t.URL, t.Sealed)
		a.Header, a.Auth = h.Name, upstream.Secret(h.Value)
	}
	return a, err
}

// secret returns the value of an environment variable. An empty name yields an
// empty secret; an unset or blank variable is an error.
func (c *Config) secret(env string) (upstream.Secret, error) {
	if env == "" {
		return "", nil
	}
	value, _ := c.Env(env)
	if value = strings.TrimSpace(value); value == "" {
		if isLikeKey(env) {
			return "", fmt.Errorf("want the name of an environment variable that is set, not the key")
		}
		return "", fmt.Errorf("the environment variable %s is not set: set it and restart", env)
	}
	return upstream.Secret(value), nil
}

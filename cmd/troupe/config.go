// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/BurntSushi/toml"
	"github.com/alecthomas/kong"

	"github.com/troupe-run/troupe/dispatcher"
	"github.com/troupe-run/troupe/host/gateway"
	"github.com/troupe-run/troupe/host/outbound"
	"github.com/troupe-run/troupe/host/prompts"
	"github.com/troupe-run/troupe/host/traces"
	"github.com/troupe-run/troupe/host/webhooks"
	"github.com/troupe-run/troupe/internal/nearest"
	"github.com/troupe-run/troupe/internal/node"
	"github.com/troupe-run/troupe/internal/service"
	"github.com/troupe-run/troupe/tools"
)

// configBytesMax is the maximum size of a configuration file in bytes.
const configBytesMax = 1 << 20

// configFile is the path of a configuration file. The file sets flags, models, limits and
// the policy of tools. A flag on the command line or its environment variable takes precedence.
//
//	listen = "127.0.0.1:8283"
//	agents = "agents"
//
//	[models.big]
//	url = "https://api.example.com/v1"
//	key_env = "EXAMPLE_API_KEY"
//
//	[limits]
//	run_timeout_ms = 600000
//
//	[auth]
//	TROUPE_AUTH_SCRIBE = "127.0.0.1:9001"
//
//	[[policy]]
//	tool = "payments.*"
//	decision = "require_approval"
//
//	[approvals]
//	scope = "operator"
//
//	[agent_call]
//	channel = true
//
//	[chat]
//	agents = ["concierge"]
//
//	[budget]
//	tree_money = 2.00
//
//	[builtin]
//	tools = ["workspace_get", "workspace_put"]
//
//	[prices]
//	currency = "EUR"
//
//	[record]
//	prompts = "failed"
//
//	[otel]
//	endpoint = "http://127.0.0.1:4318"
//
//	[[webhook]]
//	name = "ops"
//	url = "https://chat.example.com/hook"
//	secret_env = "TROUPE_WEBHOOK_SECRET"
type configFile string

// configuration is the content of a configuration file.
type configuration struct {
	flags  map[string]any
	Models map[string]outbound.Model
	Prices pricesTable
	Budget node.Budget
	Limits dispatcher.Limits
	Policy *tools.Policy // of declared tools

	ApprovalScope string // of decisions about tool calls, in addition to call; may be empty

	Chat *gateway.ChatPage // nil if there is no table

	Webhooks []webhooks.Config
	Record   prompts.Config
	Traces   traces.Config
	Memory   bool     // agents remember
	Builtin  []string // of tools.Builtins

	AgentCall agentCallTable
}

// BeforeResolve adds a resolver. The resolver reads from the file each flag that is
// given neither on the command line nor in the environment.
func (configFile) BeforeResolve(ctx *kong.Context, trace *kong.Path) error {
	path, _ := ctx.FlagValue(trace.Flag).(configFile)
	return path.resolve(ctx)
}

// resolve adds the resolver of a file.
func (path configFile) resolve(ctx *kong.Context) error {
	c, err := readConfig(string(path))
	if err != nil {
		return err
	}
	flags := map[string]*kong.Flag{}
	for _, p := range ctx.Path {
		for _, flag := range p.Flags {
			flags[configName(flag.Name)] = flag
		}
	}
	if unknown := c.unknown(string(path), flags); len(unknown) > 0 {
		return unknown[0]
	}
	ctx.AddResolver(kong.ResolverFunc(func(_ *kong.Context, _ *kong.Path, flag *kong.Flag) (any, error) {
		for _, env := range flag.Envs {
			if _, set := os.LookupEnv(env); set {
				return nil, nil
			}
		}
		value := c.flags[configName(flag.Name)]
		if err := checkConfigType(flag, value); err != nil {
			return nil, fmt.Errorf("%s: %s: %w", path, configName(flag.Name), err)
		}
		return value, nil
	}))
	return nil
}

// configTables are the tables of a configuration file.
var configTables = []string{"models", "limits", "auth", "agent_call", "approvals", "budget", "builtin", "chat", "memory", "otel", "policy", "policy_default", "prices", "record", "webhook"}

// pricesTable is the table prices of a configuration. The prices themselves stand with their models.
type pricesTable struct {
	Currency string `toml:"currency"`
}

// pricesFields are the fields of the table prices.
var pricesFields = []string{"currency"}

// chatFields are the fields of the table chat.
var chatFields = []string{"agents", "default", "title", "tokens"}

// unknown returns an error for each name that is none of the flags, by name in the file.
func (c *configuration) unknown(path string, flags map[string]*kong.Flag) (all []error) {
	known := maps.Clone(flags)
	for _, name := range []string{"config", "help", "version"} {
		delete(known, name)
	}
	for _, name := range slices.Sorted(maps.Keys(c.flags)) {
		if known[name] == nil {
			names := slices.Sorted(maps.Keys(known))
			meant := nearest.Of(strings.ToLower(name), append(slices.Clone(names), configTables...))
			if meant != "" {
				meant = "; did you mean " + meant
			}
			all = append(all, fmt.Errorf("%s: %s is unknown%s; want one of %s, or the tables %s", path, name, meant, strings.Join(names, ", "), strings.Join(configTables, ", ")))
		}
	}
	return all
}

// wantDuration is the error text for a number without a unit.
const wantDuration = `want a duration such as "30s"`

// checkConfigType returns an error if the parser would misread the value of a flag:
// a number as nanoseconds, or another type than text as text.
func checkConfigType(flag *kong.Flag, value any) error {
	target := flag.Target.Type()
	_, isText := value.(string)
	switch {
	case value == nil || isText:
		return nil
	case target == reflect.TypeFor[time.Duration]():
		return fmt.Errorf("%s, got %v", wantDuration, value)
	case target.Kind() == reflect.String:
		return fmt.Errorf("want %s in quotes, got %v", cmp.Or(strings.ReplaceAll(flag.Enum, ",", " or "), "text"), value)
	}
	return nil
}

// checkModelDurations returns an error if a duration of a model is a number, which
// the decoder would read as nanoseconds.
func checkModelDurations(path string, meta toml.MetaData) error {
	t := reflect.TypeFor[outbound.Model]()
	for _, key := range meta.Keys() {
		if len(key) != 3 || key[0] != "models" || meta.Type(key...) != "Integer" {
			continue
		}
		for i := range t.NumField() {
			if f := t.Field(i); strings.EqualFold(f.Tag.Get("toml"), key[2]) && f.Type == reflect.TypeFor[time.Duration]() {
				return fmt.Errorf("%s: %s: %s", path, key, wantDuration)
			}
		}
	}
	return nil
}

func configName(flag string) string { return strings.ReplaceAll(flag, "-", "_") }

// readConfig reads a configuration file and returns all errors in it, one per line. The path ""
// means an empty file.
func readConfig(path string) (configuration, error) {
	c := configuration{flags: map[string]any{}, Limits: dispatcher.DefaultLimits()}
	if path == "" {
		return c, nil
	}
	text, err := service.ReadFile(path, configBytesMax)
	if err != nil {
		return c, configError(path, err)
	}
	var tables struct {
		Models map[string]outbound.Model `toml:"models"`
		Limits map[string]int64          `toml:"limits"`
		Auth   map[string]string         `toml:"auth"` // read as the flag --auth
		policyTables

		Approvals map[string]string `toml:"approvals"`
		Chat      *gateway.ChatPage `toml:"chat"`
		Webhooks  []webhooks.Config `toml:"webhook"`
		Memory    struct {
			Enabled bool `toml:"enabled"`
		} `toml:"memory"`
		Builtin struct {
			Tools []string `toml:"tools"`
		} `toml:"builtin"`
		AgentCall agentCallTable `toml:"agent_call"`
		Budget    budgetTable    `toml:"budget"`
		Prices    pricesTable    `toml:"prices"`
		Record    recordTable    `toml:"record"`
		Traces    traces.Config  `toml:"otel"`
	}
	meta, err := toml.Decode(string(text), &tables)
	if err != nil {
		return c, fmt.Errorf("%s: %w", path, err)
	}
	var problems []error
	for _, key := range meta.Undecoded() {
		switch {
		case key[0] == "policy" || key[0] == "policy_default": // policyTables reads them
		case len(key) == 3 && key[0] == "models":
			problems = append(problems, fmt.Errorf("%s: %s %s", path, key, unknownModelField(key[2])))
		case len(key) == 2 && key[0] == "chat":
			problems = append(problems, unknownField(path, key, chatFields))
		case len(key) == 2 && key[0] == "agent_call":
			problems = append(problems, unknownField(path, key, agentCallFields))
		case len(key) == 2 && key[0] == "prices":
			problems = append(problems, unknownField(path, key, pricesFields))
		case len(key) == 2 && key[0] == "budget":
			problems = append(problems, unknownField(path, key, budgetFields))
		case len(key) == 2 && key[0] == "record":
			problems = append(problems, unknownField(path, key, prompts.Fields()))
		case len(key) == 2 && key[0] == "otel":
			problems = append(problems, unknownField(path, key, traces.Fields()))
		case len(key) == 2 && key[0] == "webhook":
			problems = append(problems, unknownField(path, key, webhooks.Fields()))
		case len(key) > 1 || strings.EqualFold(key[0], "models") || strings.EqualFold(key[0], "limits"):
			meant := nearest.Of(strings.ToLower(key[0]), configTables)
			if meant != "" && meant != key[0] {
				meant = "; did you mean [" + meant + "]"
			} else {
				meant = ""
			}
			problems = append(problems, fmt.Errorf("%s: %s is unknown%s; want [models.NAME], [limits], [auth], [agent_call], [approvals], [budget], [builtin], [chat], [memory], [otel], [[policy]], [policy_default], [prices], [record] or [[webhook]] as tables", path, key, meant))
		}
	}
	if err := checkModelDurations(path, meta); err != nil {
		problems = append(problems, err)
	}
	if _, err := toml.Decode(string(text), &c.flags); err != nil {
		return c, fmt.Errorf("%s: %w", path, err)
	}
	delete(c.flags, "models")
	delete(c.flags, "limits")
	delete(c.flags, "policy")
	delete(c.flags, "policy_default")
	if c.Policy, err = tables.read(path, &meta); err != nil {
		problems = append(problems, err)
	}
	delete(c.flags, "approvals")
	if c.ApprovalScope, err = decisionScope(tables.Approvals); err != nil {
		problems = append(problems, fmt.Errorf("%s: approvals: %w", path, err))
	}
	delete(c.flags, "memory")
	c.Memory = tables.Memory.Enabled
	delete(c.flags, "builtin")
	c.Builtin = tables.Builtin.Tools
	for i, name := range c.Builtin {
		if err := tools.CheckBuiltin(name); err != nil {
			problems = append(problems, fmt.Errorf("%s: builtin.tools: %w", path, err))
		} else if slices.Contains(c.Builtin[:i], name) {
			problems = append(problems, fmt.Errorf("%s: builtin.tools: names %s twice", path, name))
		}
	}
	delete(c.flags, "agent_call")
	c.AgentCall = tables.AgentCall
	delete(c.flags, "chat")
	if c.Chat = tables.Chat; c.Chat != nil {
		if err := c.Chat.Check(); err != nil {
			problems = append(problems, fmt.Errorf("%s: chat: %w", path, err))
		}
	}
	delete(c.flags, "prices")
	c.Prices = tables.Prices
	if err := outbound.CheckCurrency(c.Prices.Currency); err != nil {
		problems = append(problems, fmt.Errorf("%s: prices.currency: %w", path, err))
	}
	delete(c.flags, "budget")
	if c.Budget, err = tables.Budget.read(); err != nil {
		problems = append(problems, fmt.Errorf("%s: budget.%w", path, err))
	}
	delete(c.flags, "record")
	if c.Record, err = tables.Record.read(); err != nil {
		problems = append(problems, fmt.Errorf("%s: record.%w", path, err))
	}
	delete(c.flags, "otel")
	c.Traces = tables.Traces
	delete(c.flags, "webhook")
	c.Webhooks = tables.Webhooks
	c.Models = tables.Models
	if err := setLimits(&c.Limits, tables.Limits); err != nil {
		problems = append(problems, fmt.Errorf("%s: limits: %w", path, err))
	}
	return c, errors.Join(problems...)
}

// unknownField returns the error for a field of a table that has none of this name.
func unknownField(path string, key toml.Key, fields []string) error {
	meant := nearest.Of(strings.ToLower(key[1]), fields)
	if meant != "" {
		meant = "; did you mean " + meant
	}
	return fmt.Errorf("%s: %s is unknown%s; known fields: %s", path, key, meant, strings.Join(fields, ", "))
}

// unknownModelField returns an error text for an unknown field of a model. A name
// that a known field begins with is taken for that field, such as key for key_env.
func unknownModelField(name string) string {
	fields := outbound.ModelFields()
	best := nearest.Of(strings.ToLower(name), fields)
	if i := slices.IndexFunc(fields, func(f string) bool { return strings.HasPrefix(f, strings.ToLower(name)+"_") }); i >= 0 {
		best = fields[i]
	}
	text := "is unknown"
	if best != "" {
		text += "; did you mean " + best
	}
	return text + "; known fields: " + strings.Join(fields, ", ")
}

// setLimits sets limits by key.
func setLimits(l *dispatcher.Limits, values map[string]int64) error {
	for _, key := range slices.Sorted(maps.Keys(values)) {
		if err := l.Set(key, values[key]); err != nil {
			return err
		}
	}
	return l.Check()
}

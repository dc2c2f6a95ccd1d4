// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/BurntSushi/toml"
	"github.com/alecthomas/kong"

	"github.com/troupe-run/troupe/dispatcher"
	"github.com/troupe-run/troupe/host/outbound"
)

// configBytesMax is the maximum size of a configuration file in bytes.
const configBytesMax = 1 << 20

// configFile is the path of a configuration file. The file sets flags, models and
// limits. A flag on the command line or its environment variable takes precedence.
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
type configFile string

// configuration is the content of a configuration file.
type configuration struct {
	flags  map[string]any
	Models map[string]outbound.Model
	Limits dispatcher.Limits
}

// BeforeResolve adds a resolver. The resolver reads from the file each flag that is
// given neither on the command line nor in the environment.
func (configFile) BeforeResolve(ctx *kong.Context, trace *kong.Path) error {
	path, _ := ctx.FlagValue(trace.Flag).(configFile)
	c, err := readConfig(string(path))
	if err != nil {
		return err
	}
	flags := map[string]bool{}
	for _, p := range ctx.Path {
		for _, flag := range p.Flags {
			flags[configName(flag.Name)] = true
		}
	}
	for _, name := range slices.Sorted(maps.Keys(c.flags)) {
		if !flags[name] || name == "config" || name == "help" || name == "version" {
			delete(flags, "config")
			delete(flags, "help")
			delete(flags, "version")
			return fmt.Errorf("%s: %s is unknown; want one of %s, or the tables models and limits", path, name, strings.Join(slices.Sorted(maps.Keys(flags)), ", "))
		}
	}
	ctx.AddResolver(kong.ResolverFunc(func(_ *kong.Context, _ *kong.Path, flag *kong.Flag) (any, error) {
		for _, env := range flag.Envs {
			if _, set := os.LookupEnv(env); set {
				return nil, nil
			}
		}
		return c.flags[configName(flag.Name)], nil
	}))
	return nil
}

func configName(flag string) string { return strings.ReplaceAll(flag, "-", "_") }

// readConfig reads a configuration file. The path "" means an empty file.
func readConfig(path string) (configuration, error) {
	c := configuration{flags: map[string]any{}, Limits: dispatcher.DefaultLimits()}
	if path == "" {
		return c, nil
	}
	text, err := readFileMax(path, configBytesMax)
	if err != nil {
		return c, err
	}
	var tables struct {
		Models map[string]outbound.Model `toml:"models"`
		Limits map[string]int64          `toml:"limits"`
	}
	meta, err := toml.Decode(string(text), &tables)
	if err != nil {
		return c, fmt.Errorf("%s: %w", path, err)
	}
	for _, key := range meta.Undecoded() {
		if len(key) > 1 || strings.EqualFold(key[0], "models") || strings.EqualFold(key[0], "limits") {
			return c, fmt.Errorf("%s: %s is unknown", path, key)
		}
	}
	if _, err := toml.Decode(string(text), &c.flags); err != nil {
		return c, fmt.Errorf("%s: %w", path, err)
	}
	delete(c.flags, "models")
	delete(c.flags, "limits")
	c.Models = tables.Models
	if err := setLimits(&c.Limits, tables.Limits); err != nil {
		return c, fmt.Errorf("%s: limits: %w", path, err)
	}
	return c, nil
}

// setLimits sets limits by name. Durations are in milliseconds.
func setLimits(l *dispatcher.Limits, values map[string]int64) error {
	counts := map[string]*int{
		"agent_call_depth_max": &l.AgentCallDepthMax, "agent_concurrent_calls_max": &l.AgentConcurrentCallsMax, "max_pending_per_actor": &l.MaxPendingPerActor,
		"mailbox_bytes_max": &l.MailboxBytesMax, "message_bytes_max": &l.MessageBytesMax, "steps_per_turn_max": &l.StepsPerTurnMax,
		"asks_per_action_max": &l.AsksPerActionMax, "snapshot_bytes": &l.SnapshotBytes, "actors_per_cell_max": &l.ActorsPerCellMax, "strikes_max": &l.StrikesMax,
		"remember_bytes_max": &l.RememberBytes,
	}
	times := map[string]*time.Duration{
		"agent_call_timeout_ms_default": &l.AgentCallTimeoutDefault, "agent_call_timeout_ms_max": &l.AgentCallTimeoutMax, "mailbox_age_ms_max": &l.MailboxAgeMax,
		"run_timeout_ms": &l.RunTimeoutDefault, "run_timeout_ms_max": &l.RunTimeoutMax, "tool_timeout_ms": &l.ToolTimeoutDefault,
		"model_timeout_ms": &l.ModelTimeoutDefault, "invoke_timeout_ms": &l.InvokeTimeoutDefault, "approval_timeout_ms": &l.WaitTimeoutMax,
		"remember_done_ms": &l.RememberDone, "remember_key_ms": &l.RememberKey, "passivate_after_ms": &l.PassivateAfter, "resend_after_ms": &l.ResendAfter,
	}
	for _, name := range slices.Sorted(maps.Keys(values)) {
		n := values[name]
		switch {
		case n < 0 || n > 1<<40:
			return fmt.Errorf("%s: %d is out of range", name, n)
		case name == "calls_per_tree_max":
			l.CallsPerTreeMax = uint32(min(n, 1<<31))
		case counts[name] != nil:
			*counts[name] = int(n)
		case times[name] != nil:
			*times[name] = time.Duration(n) * time.Millisecond
		default:
			names := slices.Sorted(maps.Keys(counts))
			names = append(append(names, "calls_per_tree_max"), slices.Sorted(maps.Keys(times))...)
			return fmt.Errorf("%s is unknown; want one of %s", name, strings.Join(names, ", "))
		}
	}
	return l.Check()
}

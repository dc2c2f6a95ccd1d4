// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"maps"
	"os"
	"slices"

	"github.com/alecthomas/kong"

	"github.com/troupe-run/troupe/host/gateway"
	"github.com/troupe-run/troupe/host/outbound"
	"github.com/troupe-run/troupe/host/traces"
	"github.com/troupe-run/troupe/host/webhooks"
	"github.com/troupe-run/troupe/upstream"
)

// startProblems returns the command serve as a configuration and a folder of agents set it, and the
// problems that prevent its start. It validates each value as serve does, and continues after an
// invalid one. As in serve, a variable of the environment overrides the file.
func startProblems(path, agents string, config *configuration) (*ServeCmd, []string) {
	var cli CLI
	var problems []string
	report := func(err error) {
		if err != nil {
			problems = append(problems, err.Error())
		}
	}
	flags := map[string]*kong.Flag{}
	for _, command := range newParser(&cli, streams{io.Discard, io.Discard}).Model.Children {
		if command.Name != "serve" {
			continue
		}
		for _, group := range command.AllFlags(false) {
			for _, flag := range group {
				flags[configName(flag.Name)] = flag
			}
		}
	}
	for _, err := range config.unknown(path, flags) {
		report(err)
	}
	for _, name := range slices.Sorted(maps.Keys(flags)) {
		flag := flags[name]
		if name == "config" || name == "help" || name == "version" {
			continue
		}
		if err := flag.Reset(); err != nil {
			report(fmt.Errorf("%s: %w", name, err))
		}
		if value, ok := config.flags[name]; ok && name != "agents" { // the folder to check replaces that one
			report(setFlag(flag, value))
		}
	}
	serve := &cli.Serve
	serve.Config, serve.Agents = configFile(path), ""
	if serve.Role != roleIngress || config.flags["agents"] != nil {
		serve.Agents = agents
	}
	if len(problems) == 0 { // otherwise a value that Validate compares may be missing
		report(serve.Validate())
	}
	report(gateway.CheckNames(serve.Hosts, serve.Origin))
	if serve.Role != roleOrchestrator {
		report(gateway.CheckListenAddress(serve.Listen, 1)) // whether keys exist is known at the start
	}
	egress := serve.egress(config)
	for _, err := range slices.Concat(egress.Errors(), egress.MissingSecrets()) {
		report(err)
	}
	report(checkWebhooks(config.Webhooks, &egress))
	report(checkTraces(&config.Traces, &egress))
	return serve, problems
}

// checkWebhooks returns an error for the first mistake in the webhooks of a configuration.
func checkWebhooks(all []webhooks.Config, to *outbound.Config) error {
	egress, err := upstream.NewEgress(to.Allow)
	if err != nil {
		return nil // reported already
	}
	egress.Remedy = to.Remedy
	return webhooks.Check(all, os.LookupEnv, egress)
}

// checkTraces returns an error for the first mistake in the collector of a configuration.
func checkTraces(c *traces.Config, to *outbound.Config) error {
	egress, err := upstream.NewEgress(to.Allow)
	if err != nil {
		return nil // reported already
	}
	egress.Remedy = to.Remedy
	if err := c.Check(os.LookupEnv, egress); err != nil {
		return fmt.Errorf("otel.%w", err)
	}
	return nil
}

// setFlag sets a flag to the value in a file, unless a variable of the environment sets it. In
// both cases it returns the error of the value.
func setFlag(flag *kong.Flag, value any) error {
	name := configName(flag.Name)
	if err := checkConfigType(flag, value); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	if err := flag.Parse(kong.Scan().PushTyped(value, kong.FlagValueToken), flag.Target); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	if text := fmt.Sprint(flag.Target.Interface()); flag.Enum != "" && !flag.EnumMap()[text] {
		return fmt.Errorf("%s: want one of %s, got %.40q", name, flag.Enum, text)
	}
	for _, env := range flag.Envs {
		if _, set := os.LookupEnv(env); set {
			return flag.Reset()
		}
	}
	return nil
}

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/troupe-run/troupe/dispatcher"
	"github.com/troupe-run/troupe/tools"
)

// parseServe parses the command serve with a configuration file, the environment and
// flags.
func parseServe(t *testing.T, file string, args ...string) (*ServeCmd, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "troupe.toml")
	if err := os.WriteFile(path, []byte(file), 0o600); err != nil {
		t.Fatal(err)
	}
	var cli CLI
	_, err := newParser(&cli, streams{io.Discard, io.Discard}).Parse(append([]string{"serve", "--config", path}, args...))
	return &cli.Serve, err
}

func TestConfigPrecedence(t *testing.T) {
	const file = "listen = \"127.0.0.1:1\"\nnode = \"from-file\"\ngrace = \"3s\"\nlog_level = \"warn\"\nallow = [\"a.example\", \"b.example\"]\ncells = 2\nready = true\n"
	t.Setenv("TROUPE_NODE", "from-env")
	t.Setenv("TROUPE_GRACE", "4s")
	c, err := parseServe(t, file, "--grace", "5s")
	if err != nil {
		t.Fatal(err)
	}
	if c.Listen != "127.0.0.1:1" || c.Node != "from-env" || c.Grace != 5*time.Second || c.Level.String() != "WARN" || c.Cells != 2 || !c.Ready ||
		!reflect.DeepEqual(c.Allow, []string{"a.example", "b.example"}) {
		t.Errorf("command line, environment and file: got %+v", c)
	}
	if c, err = parseServe(t, ""); err != nil || c.Listen != "127.0.0.1:8283" {
		t.Errorf("empty file: got %+v, %v", c, err)
	}
}

func TestConfigPathFromEnvironment(t *testing.T) {
	path := filepath.Join(t.TempDir(), "troupe.toml")
	if err := os.WriteFile(path, []byte("node = \"from-file\"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("TROUPE_CONFIG", path)
	var cli CLI
	if _, err := newParser(&cli, streams{io.Discard, io.Discard}).Parse([]string{"serve"}); err != nil || cli.Serve.Node != "from-file" {
		t.Errorf("file named by TROUPE_CONFIG: got %+v, %v", cli.Serve, err)
	}
}

func TestConfigErrors(t *testing.T) {
	for _, c := range []struct{ file, want string }{
		{"lisen = \"x\"", "lisen is unknown; did you mean listen; want one of advertise, agents, allow, auth, backups, ballast_mib, cells"},
		{"config = \"x\"", "config is unknown"},
		{"cells = \"many\"", "expected a valid 64 bit int"},
		{"[approval]\nscope = \"operator\"", "did you mean [approvals]"},
		{"[models.big]\nurl = \"http://127.0.0.1:1\"\nkeyenv = \"X\"", "models.big.keyenv is unknown; did you mean key_env; known fields: url, headers, header_env, fallback, key_env, model,"},
		{"[models.big]\nulr = \"http://127.0.0.1:1\"", "models.big.ulr is unknown; did you mean url; known fields: url"},
		{"[models.big]\nurl = \"http://127.0.0.1:1\"\nkey = \"X\"", "models.big.key is unknown; did you mean key_env; known fields: url"},
		{"[models.big]\nurl = 7", "models.big.url"},
		{"[limits]\nagent_call_depth_maxx = 4", "limits: agent_call_depth_maxx is unknown; did you mean agent_call_depth_max; want one of"},
		{"[limits]\nagent_call_depth_max = 0", "agent_call_depth_max is 0: want 1 to"},
		{"[limits]\nrun_timeout_ms = -1", "run_timeout_ms: -1 is out of range"},
		{"[limits]\nrun_timeout_ms = \"long\"", "limits"},
		{"[approvals]\nscope = \"admin\"", "approvals: scope: want call or operator, got \"admin\""},
		{"[agent_call]\nchanel = true", "agent_call.chanel is unknown; did you mean channel; known fields: correlation, return_to, responses, timeouts, channel"},
		{"[agent_call]\nresponses = \"off\"", "agent_call.responses"},
		{"[agentcall]\nchannel = true", "did you mean [agent_call]"},
		{"[approvals]\nscopes = \"call\"", "approvals: scopes is unknown; want scope"},
		{"cells = -1", "cells (--cells): want 1 to 64, or 0 for one per processor, got -1"},
		{"cells = 65", "cells (--cells): want 1 to 64, or 0 for one per processor, got 65"},
		{"cells = 1\ncells = 2", "already been defined"},
		{"cells = ", "expected value"},
	} {
		if _, err := parseServe(t, c.file); err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "troupe.toml") && !strings.Contains(err.Error(), "--cells") {
			t.Errorf("%q: got %v, want %s", c.file, err, c.want)
		}
	}
	if c, err := parseServe(t, "cells = 0"); err != nil || c.Cells != 0 {
		t.Errorf("0 cells: %v", err)
	}
	if _, err := readConfig(filepath.Join(t.TempDir(), "none.toml")); err == nil {
		t.Error("missing file: want an error, got none")
	}
}

func TestConfigModelsAndLimits(t *testing.T) {
	path := filepath.Join(t.TempDir(), "troupe.toml")
	text := "[models.big]\nurl = \"https://api.example.com/v1\"\nkey_env = \"BIG_KEY\"\nhead_timeout = \"20s\"\n[limits]\nagent_call_depth_max = 3\nrun_timeout_ms = 5000\ncalls_per_tree_max = 7\n[approvals]\nscope = \"operator\"\n"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := readConfig(path)
	if err != nil || c.Models["big"].KeyEnv != "BIG_KEY" || c.Models["big"].HeadTimeout != 20*time.Second {
		t.Errorf("models: got %+v, %v", c.Models, err)
	}
	if c.ApprovalScope != "operator" {
		t.Errorf("scope of approvals: got %q", c.ApprovalScope)
	}
	if c.Limits.AgentCallDepthMax != 3 || c.Limits.RunTimeoutDefault != 5*time.Second || c.Limits.CallsPerTreeMax != 7 || c.Limits.MaxPendingPerActor != 128 {
		t.Errorf("limits: got %+v", c.Limits)
	}
}

// Each switch of calls without waiting is off if the file says so, and no other one is.
func TestConfigAgentCall(t *testing.T) {
	for _, c := range []struct {
		text    string
		want    dispatcher.Routing
		channel bool
	}{
		{"", dispatcher.Routing{}, false},
		{"correlation = true\nreturn_to = true\nresponses = true\ntimeouts = true\nchannel = false", dispatcher.Routing{}, false},
		{"correlation = false", dispatcher.Routing{NoCorrelation: true}, false},
		{"return_to = false", dispatcher.Routing{NoReturnTo: true}, false},
		{"responses = false", dispatcher.Routing{NoResponses: true}, false},
		{"timeouts = false", dispatcher.Routing{NoTimeouts: true}, false},
		{"channel = true", dispatcher.Routing{}, true},
	} {
		path := filepath.Join(t.TempDir(), "troupe.toml")
		if err := os.WriteFile(path, []byte("[agent_call]\n"+c.text+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := readConfig(path)
		if err != nil || got.AgentCall.routing() != c.want || got.AgentCall.Channel != c.channel {
			t.Errorf("%q: %+v, %v", c.text, got.AgentCall.routing(), err)
		}
	}
}

// A configuration in which a number means a duration, or a value of another
// type for a word, names the key and the type it wants.
func TestConfigRefusesWrongTypes(t *testing.T) {
	for _, c := range []struct{ file, want string }{
		{"grace = 5", `grace: want a duration such as "30s", got 5`},
		{"pace = 1.5", `pace: want a duration such as "30s", got 1.5`},
		{"[models.big]\nurl = \"https://api.example.com/v1\"\nhead_timeout = 5", `models.big.head_timeout: want a duration such as "30s"`},
		{"[models.big]\nretry_time = 30\nurl = \"https://api.example.com/v1\"", `models.big.retry_time: want a duration such as "30s"`},
		{"keyless = false", `keyless: want on or off in quotes, got false`},
		{"listen = 8283", `listen: want text in quotes, got 8283`},
	} {
		if _, err := parseServe(t, c.file); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: want %q, got %v", c.file, c.want, err)
		}
	}
	if c, err := parseServe(t, "grace = \"5s\"\nkeyless = \"off\"\n[models.big]\nurl = \"https://api.example.com/v1\"\nhead_timeout = \"5s\"\nretry_attempts = 3\n"); err != nil || c.Keyless != "off" {
		t.Errorf("values of the right types: got %+v, %v", c, err)
	}
}

func TestConfigChatPage(t *testing.T) {
	path := filepath.Join(t.TempDir(), "troupe.toml")
	if err := os.WriteFile(path, []byte("[chat]\nagents = [\"front\", \"back\"]\ndefault = \"back\"\ntitle = \"Front desk\"\ntokens = false\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := readConfig(path)
	if err != nil || c.Chat == nil || !slices.Equal(c.Chat.Agents, []string{"front", "back"}) || c.Chat.Default != "back" || c.Chat.Title != "Front desk" || c.Chat.Tokens == nil || *c.Chat.Tokens {
		t.Errorf("got %+v, %v", c.Chat, err)
	}
	for _, c := range []struct{ file, want string }{
		{"[chat]\nagent = [\"a\"]", "chat.agent is unknown; did you mean agents; known fields: agents, default, title, tokens"},
		{"[chat]\nagents = [\"a\"]\ndefault = \"b\"", "chat: default: b is none of agents"},
		{"[chat]\nagents = [\"a b\"]", "chat: agents: "},
		{"[chat]\ntitle = \"" + strings.Repeat("a", 61) + "\"", "chat: title: want at most 60 visible characters"},
		{"[chat]\ntokens = \"no\"", "chat.tokens"},
		{"[[webhook]]\nadress = \"x\"", "webhook.adress is unknown; known fields: name, url, url_env, events, secret_env, details"},
		{"[[webhooks]]\nname = \"x\"", "did you mean [webhook]"},
		{"[chats]\ntokens = false", "did you mean [chat]"},
	} {
		if _, err := parseServe(t, c.file); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: want %q, got %v", c.file, c.want, err)
		}
	}
}

func TestConfigPolicy(t *testing.T) {
	path := filepath.Join(t.TempDir(), "troupe.toml")
	text := "cells = 2\n[[policy]]\ntool = \"payments.*\"\nagent = \"planner\"\nwhen = \"args.amount > 100\"\ndecision = \"require_approval\"\n" +
		"[[policy]]\ntool = \"*.drop\"\ndecision = \"block\"\n[policy_default]\nclient_tool = \"block\"\n"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := readConfig(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, call := range []struct{ agent, tool, kind, input, want string }{
		{"planner", "payments.send", tools.KindServer, `{"amount":101}`, "require_approval: rule 1 (payments.*)"},
		{"planner", "payments.send", tools.KindServer, `{"amount":1}`, "allow: default of server_tool"},
		{"other", "table.drop", tools.KindServer, `{}`, "block: rule 2 (*.drop)"},
		{"other", "camera", tools.KindClient, `{}`, "block: default of client_tool"},
	} {
		tool := &tools.Tool{Name: call.tool, Declared: &tools.Declared{Name: call.tool, Kind: call.kind}}
		if v := c.Policy.Decide(tools.Caller{Agent: call.agent}, tool, []byte(call.input)); v.Decision.String()+": "+v.Rule != call.want {
			t.Errorf("%+v: got %s: %s", call, v.Decision, v.Rule)
		}
	}
	if _, err := parseServe(t, text); err != nil {
		t.Errorf("serve: %v", err)
	}
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "guide-agents.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, guide, ok := strings.Cut(string(page), "```toml\n[[policy]]")
	guide, _, _ = strings.Cut("[[policy]]"+guide, "```")
	if _, err := parseServe(t, guide); err != nil || !ok {
		t.Errorf("the rules in the guide: %v", err)
	}
	for _, c := range []struct{ file, want string }{
		{"[[policy]]\ntool = \"a\"\ndecision = \"allow\"\n[[policy]]\ntool = \"*\"\nwhen = \"amount > 1\"\ndecision = \"block\"", "troupe.toml:6: rule 2: when: want a comparison like args.amount > 100"},
		{"\n[[policy]]\ntool = \"a\"", "troupe.toml:2: rule 1: decision: is missing; want one of allow, require_approval and block"},
		{"[[policy]]\ntool = \"a\"\ndecisions = \"allow\"", "troupe.toml:3: rule 1: decisions is unknown; did you mean decision?"},
		{"[[policy]]\ntool = [\"a\"]\ndecision = \"deny\"", "troupe.toml:2: rule 1: tool: want text in quotes, got [a]"},
		{"[policy]\ntool = \"a\"", "policy"},
		{"policy = [5]", "rule 1: want a table [[policy]]"},
		{"[policy_default]\nserver_tool = \"deny\"", `troupe.toml:2: policy_default: server_tool: want one of allow, require_approval and block, got "deny"`},
		{"[policy_default]\nserver = \"allow\"", "troupe.toml:2: policy_default: server is unknown; known fields: server_tool, client_tool"},
		{"policy_default = 5", "policy_default"},
		{strings.Repeat("[[policy]]\ntool = \"a\"\ndecision = \"allow\"\n", 257), "policy: 257 rules, at most 256 allowed"},
	} {
		if _, err := parseServe(t, c.file); err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "troupe.toml") {
			t.Errorf("%.80q: got %v, want %s", c.file, err, c.want)
		}
	}
}

// An allow rule for named agents that does not say whose they are is warned about.
func TestCheckWarnsOfAllowRuleWithoutOwner(t *testing.T) {
	dir := writeFiles(t, ">> a.toml\nname = \"a\"\n")
	for owner, warns := range map[string]bool{"": true, "owner = \"operator\"\n": false} {
		config := filepath.Join(t.TempDir(), "troupe.toml")
		if err := os.WriteFile(config, []byte("[[policy]]\ntool = \"p*\"\nagent = \"a*\"\n"+owner+"decision = \"allow\""), 0o600); err != nil {
			t.Fatal(err)
		}
		var stdout, stderr bytes.Buffer
		code := run([]string{"check", dir, "--config", config, "--strict"}, streams{&stdout, &stderr})
		if got := strings.Contains(stdout.String(), "policy: rule 1: allows calls of agents of the operator only"); got != warns || (code != 0) != warns {
			t.Errorf("%q: exit code %d\n%s%s", owner, code, stdout.String(), stderr.String())
		}
	}
}

// troupe check shows the decisions of the policy in the configuration.
func TestCheckShowsPolicy(t *testing.T) {
	dir := writeFiles(t, ">> a.toml\nname = \"a\"\ntools = [\"pay\"]\n>> pay.toml\n[tool]\ntool_name = \"pay\"\nurl = \"http://h\"\npolicy = \"block\"")
	config := filepath.Join(t.TempDir(), "troupe.toml")
	if err := os.WriteFile(config, []byte("[[policy]]\ntool = \"p*\"\nwhen = \"args.n < 5\"\ndecision = \"allow\""), 0o600); err != nil {
		t.Fatal(err)
	}
	var stdout, stderr bytes.Buffer
	if code := run([]string{"check", dir, "--config", config}, streams{&stdout, &stderr}); code != 0 ||
		!strings.Contains(stderr.String(), "a uses pay: allow by rule 1 (p*) when args.n < 5\na uses pay: block by policy of the tool\n") {
		t.Errorf("exit code %d\n%s%s", code, stdout.String(), stderr.String())
	}
	stdout.Reset()
	if code := run([]string{"check", dir, "--config", config, "--json"}, streams{&stdout, &stderr}); code != 0 ||
		!strings.Contains(stdout.String(), `"tool_name": "pay"`) || !strings.Contains(stdout.String(), `"rule": "rule 1 (p*) when args.n < 5"`) {
		t.Errorf("exit code %d\n%s", code, stdout.String())
	}
}

// A mistake in a price is refused before a server starts, with the name of its field.
func TestConfigPrices(t *testing.T) {
	const model = "[models.big]\nurl = \"https://api.example.com/v1\"\n"
	for _, c := range []struct{ text, want string }{
		{model + "price_input = 3.00\nprice_output = 15", ""},
		{model + "price_input = 0\nprice_output = 0.000001\nprice_cached_input = 0.5\n[prices]\ncurrency = \"EUR\"", ""},
		{model + "price_input = -1\nprice_output = 15", "models.big.price_input: got -1, want a price for a million tokens from 0 to 1000000"},
		{model + "price_input = nan\nprice_output = 15", "models.big.price_input: got NaN, want a price"},
		{model + "price_input = 1e300\nprice_output = 15", "models.big.price_input: got 1e+300, want a price"},
		{model + "price_input = 3\nprice_output = inf", "models.big.price_output: got +Inf, want a price"},
		{model + "price_input = \"3 dollars\"\nprice_output = 15", "price_input"},
		{model + "price_input = 3", "models.big.price_output: is missing; want the price of a million tokens of answers, or 0"},
		{model + "price_cached_input = 3\nprice_output = 1", "models.big.price_input: is missing"},
		{model + "price_inputs = 3", "models.big.price_inputs is unknown; did you mean price_input"},
		{"[prices]\ncurrency = \"dollars\"", "prices.currency: want a currency of three capital letters such as \"USD\", got \"dollars\""},
		{"[prices]\ncurency = \"USD\"", "prices.curency is unknown; did you mean currency"},
	} {
		path := filepath.Join(t.TempDir(), "troupe.toml")
		if err := os.WriteFile(path, []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		var cli CLI
		config, err := readConfig(path)
		if err == nil {
			out := cli.Serve.egress(&config)
			err = out.Validate()
		}
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", c.text, err, c.want)
		}
	}
}

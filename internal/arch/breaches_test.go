// SPDX-License-Identifier: Apache-2.0

package arch

import (
	"fmt"
	"path"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
)

// TestRulesFindBreaches runs each rule on at least one small checkout with a
// breach, which the rule must find. It also runs all rules on a checkout without
// breaches.
func TestRulesFindBreaches(t *testing.T) {
	tested := map[string]bool{}
	for _, b := range breaches {
		t.Run(b.rule+"/"+b.want, func(t *testing.T) {
			i := slices.IndexFunc(rules, func(r rule) bool { return r.name == b.rule })
			if i < 0 {
				t.Fatalf("no rule is named %q", b.rule)
			}
			tested[b.rule] = true
			found := rules[i].find(build(t, b.files))
			if len(found) != 1 || !strings.Contains(found[0], b.want) || !strings.HasPrefix(found[0], b.at) {
				t.Errorf("got %q, want one breach with prefix %q containing %q", found, b.at, b.want)
			}
		})
	}
	for _, r := range rules {
		if !tested[r.name] {
			t.Errorf("rule %q has no breach to find", r.name)
		}
		for _, breach := range r.find(build(t, goodTree)) {
			t.Errorf("rule %q reports a breach in a correct checkout: %s", r.name, breach)
		}
	}
}

// A tiny checkout maps paths to file contents. Go files get the licence line
// unless they begin with an empty line.
type tiny map[string]string

func build(t *testing.T, files tiny) *checkout {
	t.Helper()
	tree := fstest.MapFS{}
	for p, text := range files {
		if path.Ext(p) == ".go" && !strings.HasPrefix(text, "\n") {
			text = "// SPDX-License-Identifier: Apache-2.0\n\n" + text
		}
		tree[p] = &fstest.MapFile{Data: []byte(text)}
	}
	c, err := open(tree)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

var breaches = []struct {
	rule  string
	files tiny
	at    string // prefix of the finding: its position
	want  string // substring of the finding
}{
	{"every package has a row in the table", tiny{"utils/x.go": "package utils"}, "utils/x.go", "no row"},

	{"packages import what their row allows", tiny{"actor/x.go": "package actor\nimport _ \"" + module + "/store\""}, "actor/x.go:4", "imports no package of this module"},
	{"packages import what their row allows", tiny{"runtime/x.go": "package runtime\nimport _ \"" + module + "/internal/mutant\""}, "runtime/x.go:4", "runtime may not import"},
	{"packages import what their row allows", tiny{"sim/x.go": "package sim\nimport _ \"" + module + "/host/disk\""}, "sim/x.go:4", "sim may not import"},
	{"packages import what their row allows", tiny{"host/x_test.go": "package host\nimport _ \"" + module + "/sim\""}, "host/x_test.go:4", "host may not import"},
	{"packages import what their row allows", tiny{"host/disk/x.go": "package disk\nimport _ \"" + module + "/specs\""}, "host/disk/x.go:4", "troupe/specs"},
	{"packages import what their row allows", tiny{"host/gateway/x.go": "package gateway\nimport _ \"" + module + "/host/engine\""}, "host/gateway/x.go:4", "host/gateway may not import"},
	{"packages import what their row allows", tiny{"host/gateway/x.go": "package gateway\nimport _ \"" + module + "/internal/node\""}, "host/gateway/x.go:4", "host/gateway may not import"},
	{"packages import what their row allows", tiny{"internal/command/x_test.go": "package command\nimport _ \"" + module + "/internal/node\""}, "internal/command/x_test.go:4", "internal/command may not import"},
	{"packages import what their row allows", tiny{"runtime/x_test.go": "package runtime\nimport _ \"" + module + "/sim\""}, "runtime/x_test.go:4", "troupe/sim"},
	{"packages import what their row allows", tiny{"agents/x.go": "package agents\nimport _ \"" + module + "/runtime\""}, "agents/x.go:4", "it may import actor, contract, memory, tools"},
	{"packages import what their row allows", tiny{"sim/x.go": "package sim\nimport _ \"" + pebble + "\""}, "sim/x.go:4", "docs/RATIONALE.md"},
	{"packages import what their row allows", tiny{"specs/x.go": "package specs\nimport _ \"" + porcupine + "\""}, "specs/x.go:4", "porcupine"},
	{"packages import what their row allows", tiny{"store/x.go": "package store\nimport _ \"pgregory.net/rapid\""}, "store/x.go:4", "rapid"},
	{"packages import what their row allows", tiny{"store/x.go": "package store\nimport _ \"os\""}, "store/x.go:4", "let host perform it"},
	{"packages import what their row allows", tiny{"store/x.go": "package store\nimport _ \"sync\""}, "store/x.go:4", "a plain field"},
	{"packages import what their row allows", tiny{"store/x.go": "package store\nimport _ \"math/rand\""}, "store/x.go:4", "own stream"},
	{"packages import what their row allows", tiny{"runtime/x.go": "package runtime\nimport _ \"iter\""}, "runtime/x.go:4", "coroutines belong to agents"},
	{"packages import what their row allows", tiny{"runtime/x.go": "package runtime\nimport _ \"unique\""}, "runtime/x.go:4", "layers 0-2 are pure"},

	{"every dependency has a rationale", tiny{"docs/RATIONALE.md": "### Why Pebble?",
		"go.mod": "require (\n\tgithub.com/x/pebble/v2 v2.1.7\n\tgithub.com/x/badger/v4 v4.0.0\n\tgithub.com/x/y v1.0.0 // indirect\n)"},
		"go.mod:3", "why github.com/x/badger"},

	{"pure layers use pure names", tiny{"runtime/x.go": "package runtime\nimport \"time\"\nvar x = time.Now()"}, "runtime/x.go:5", "Step(now, input)"},
	{"pure layers use pure names", tiny{"runtime/x.go": "package runtime\nimport t \"time\"\nvar x = t.After(1)"}, "runtime/x.go:5", "t.After"},
	{"pure layers use pure names", tiny{"runtime/x.go": "package runtime\nimport \"math/rand/v2\"\nvar x = rand.IntN(7)"}, "runtime/x.go:5", "own stream"},
	{"pure layers use pure names", tiny{"agents/x.go": "package agents\nimport \"context\"\nvar x = context.Background()"}, "agents/x.go:5", "context.Background"},
	{"pure layers use pure names", tiny{"actor/x.go": "package actor\nvar x = \"at %" + "p\""}, "actor/x.go:4", "print the ID"},

	{"pure layers have no concurrency", tiny{"store/x.go": "package store\nfunc f() {\n go f() }"}, "store/x.go:5", "a goroutine"},
	{"pure layers have no concurrency", tiny{"store/x.go": "package store\nfunc f() {\n select {} }"}, "store/x.go:5", "a select"},
	{"pure layers have no concurrency", tiny{"store/x.go": "package store\nvar c chan int"}, "store/x.go:4", "a channel"},
	{"pure layers have no concurrency", tiny{"store/x.go": "package store\nfunc f() {\n c <- 1 }"}, "store/x.go:5", "a send"},
	{"pure layers have no concurrency", tiny{"store/x.go": "package store\nfunc f() {\n _ = <-c }"}, "store/x.go:5", "a receive"},

	{"every package has a package comment", tiny{"store/x.go": "package store"}, "store:", "Package store …"},
	{"every package has a package comment", tiny{"store/x.go": "// Stores things.\npackage store"}, "store:", "Package store …"},
	{"every package has a package comment", tiny{"cmd/troupe/x.go": "// Package main runs it.\npackage main"}, "cmd/troupe:", "Command troupe …"},
	{"every package has a package comment", tiny{
		"store/x.go": "// Package store decides.\npackage store", "store/y.go": "// Package store decides.\npackage store"},
		"store/y.go", "a second package comment"},

	{"importable packages name their promise", tiny{"store/x.go": "// Package store decides.\npackage store"}, "store:", "move the package below internal"},

	{"every Go file has the licence line", tiny{"store/x.go": "\n// Package store decides.\npackage store"}, "store/x.go:1", "SPDX"},

	{"no file has an open task mark", tiny{"store/x.go": "package store\n// TO" + "DO: more"}, "store/x.go:4", "do it now"},
	{"no file has an open task mark", tiny{"tla/X.tla": "\\* FIX" + "ME"}, "tla/X.tla:1", "do it now"},
	{"no file has an open task mark", tiny{".ci/run": "# TO" + "DO"}, ".ci/run:1", "do it now"},

	{"tests do not sleep", tiny{"host/x_test.go": "package host\nfunc f() { time.Sleep(1) }"}, "host/x_test.go:4", "wait for a signal"},

	{"rows are known behind the seam only", tiny{"runtime/x.go": "package runtime\n\nvar x store.KV"}, "runtime/x.go:5", "store.Reader"},
	{"rows are known behind the seam only", tiny{"sim/audit.go": "package sim\n\nvar x store.Row"}, "sim/audit.go:5", "store.Reader"},
	{"rows are known behind the seam only", tiny{"host/engine/x_test.go": "package engine\n\nvar x = store.Rows{}"}, "host/engine/x_test.go:5", "store.Reader"},
	{"only the engine makes Props", tiny{"host/x.go": "package host\nvar p = actor.Props" + "FromFunc(nil)"}, "host/x.go:4", "host/engine"},

	{"large types do not grow", tiny{"store/x.go": "package store\ntype x int\n" + methods("x", typeMethodsMax+1)}, "store.x", "has 61 methods"},
	{"large types do not grow", tiny{"specs/x.go": "package specs\n" + methods("*Checker", methodsMax["specs.Checker"]+1)}, "specs.Checker", "a type of its own"},
	{"large types do not grow", tiny{"specs/x.go": "package specs\n" + methods("*Checker", methodsMax["specs.Checker"]-1)}, "specs.Checker", "lower its"},
	{"large types do not grow", tiny{"specs/x.go": "package specs\n" + methods("Checker[T]", typeMethodsMax)}, "specs.Checker", "remove its row"},
	{"large types do not grow", tiny{"store/x.go": "package store\ntype x int\ntype y struct{ *x }\n" + methods("x", 40) + methods("y", 21)}, "store.x", "has 61 methods"},
	{"large types do not grow", tiny{"store/x.go": "package store\ntype x[T any] int\ntype (\n\ty[T any] struct{ x[T] }\n\tz = y[int]\n)\n" + methods("x[T]", 40) + methods("y[T]", 11) + methods("z", 10)}, "store.x", "has 61 methods"},

	{"machinery does not grow", tiny{"go.mod": "", "store/x.go": lines(98), "sim/x.go": lines(machineryPercentMax - 1)}, "internal/arch/size_test.go", "the maximum is"},
	{"machinery does not grow", tiny{"go.mod": "", "store/x.go": lines(98), "tla/X.cfg": strings.Repeat("\n", machineryPercentMax+1)}, "internal/arch/size_test.go", "the maximum is"},
	{"machinery does not grow", tiny{"go.mod": "", "store/x.go": lines(98), "sim/testdata/x.txt": "\n"}, "internal/arch/size_test.go", "lower machineryPercentMax"},

	{"paths in docs exist", tiny{"docs/A.md": "see `sim/net.go`"}, "docs/A.md:1", "sim/net.go"},
	{"paths in docs exist", tiny{"README.md": "\nsee `LICENSE.md`"}, "README.md:2", "LICENSE.md"},
	{"paths in docs exist", tiny{"AGENTS.md": "see `docs/`"}, "AGENTS.md:1", "docs/"},
	{"paths in docs exist", tiny{"docs/A.md": "see `host/engine`", "host/x.go": "package host"}, "docs/A.md:1", "host/engine"},
	{"paths in docs exist", tiny{"docs/A.md": "see `tla/*_broken.cfg`", "tla/X.cfg": ""}, "docs/A.md:1", "_broken"},

	{"paths in docs exist", tiny{"docs/A.md": "see [B](B.md) and [C](https://c.example)"}, "docs/A.md", "docs/B.md"},

	{"exported names in docs exist", tiny{"docs/A.md": "an `actor.Foo`", "actor/x.go": "package actor\ntype Bar int"}, "docs/A.md:1", "no exported name Foo"},

	{"make targets in docs exist", tiny{"Makefile": "test:\n", "README.md": "type `make tset`"}, "README.md", "no target tset"},
	{"make targets in docs exist", tiny{"Makefile": "test:\n", "README.md": "```\n$ make sim SEED=7\n```"}, "README.md", "no target sim"},

	{"tests that the Makefile runs by name exist", tiny{
		"Makefile": "RULES = Old|New\nrules:\n\tgo test -run '^Test($(RULES))$$'\n", "runs/x_test.go": "package runs\nfunc TestNew() {}"},
		"Makefile", "no test named TestOld"},
	{"tests that the Makefile runs by name exist", tiny{
		"Makefile": "power:\n\tgo test -run '^TestPower'\n", "runs/x_test.go": "package runs\nfunc TestNoPower() {}"},
		"Makefile", "no test named TestPower"},

	{"external names are found where docs/NAMES.md says", tiny{"docs/NAMES.md": "| `call_agent` | `tools` | x |", "tools/x.go": "package tools"},
		"docs/NAMES.md:1", "call_agent is not found in tools"},
	{"external names are found where docs/NAMES.md says", tiny{"docs/NAMES.md": "| `Result` | `tools` | x |", "tools/x.go": "package tools\ntype Results int"},
		"docs/NAMES.md:1", "Result is not found in tools"},
	{"external names are found where docs/NAMES.md says", tiny{"docs/NAMES.md": "| `call_agent` | the tools | x |"}, "docs/NAMES.md:1", "no place"},

	{"external names are found where docs/NAMES.md says", tiny{"docs/NAMES.md": "| `agent_poll` | `later` | x |"}, "docs/NAMES.md:1", "no place"},
	{"external names are found where docs/NAMES.md says", tiny{"docs/NAMES.md": "| `agent_poll` | `later`, `tools` | x |", "tools/x.go": "package tools\nconst name = \"agent_poll\""},
		"docs/NAMES.md:1", "agent_poll is found in tools"},

	{"the stages of CI end in time", tiny{".ci/run": "stage 700 make test\nif [ \"$core\" = yes ]; then\n\tstage 801 make sim\nfi\n"}, ".ci/run: for a core", "the stages take 1501 s"},
	{"the stages of CI end in time", tiny{".ci/run": "stage 700 make test\nif [ \"$core\" = yes ]; then\n\tstage 1 make sim\nelse\n\t[ x ] || stage 21 make sim\nfi\n"}, ".ci/run: for any other", "the stages take 721 s"},
	{"the stages of CI end in time", tiny{".ci/run": "stage 600 make test\nbeside 121 make clients\nstage 20 make sim\njoin\n"}, ".ci/run: for any other", "the stages take 721 s"},
	{"the stages of CI end in time", tiny{".ci/run": "stage make test\n"}, ".ci/run:1", "expected seconds"},

	{"requirements in docs/NAMES.md are met", tiny{"docs/NAMES.md": "| K1 calls | `call_agent` | `TestCall` |", "tools/x.go": "package tools\nconst name = \"call_agent\""},
		"docs/NAMES.md:1", "no test named TestCall"},
	{"requirements in docs/NAMES.md are met", tiny{"docs/NAMES.md": "| K1 calls | `call_agent` | `TestCall` |", "tools/x_test.go": "package tools\nfunc TestCall() {}"},
		"docs/NAMES.md:1", "call_agent is not found"},
	{"requirements in docs/NAMES.md are met", tiny{"docs/NAMES.md": "| K1 calls | `POST /v1/calls` | `TestCall` |", "tools/x_test.go": "package tools\nfunc TestCall() {}"},
		"docs/NAMES.md:1", "POST /v1/calls is not found"},
	{"requirements in docs/NAMES.md are met", tiny{"docs/NAMES.md": "| K1 calls | `--calls` | `TestCall` |", "tools/x_test.go": "package tools\nfunc TestCall() {}", "cmd/troupe/x.go": "package main\nvar Calls int"},
		"docs/NAMES.md:1", "--calls is not found"},
	{"requirements in docs/NAMES.md are met", tiny{"docs/NAMES.md": "| K35 later | `agent_poll` | `planned` |", "tools/x.go": "package tools\nconst name = \"agent_poll\""},
		"docs/NAMES.md:1", "`agent_poll` exists"},
	{"requirements in docs/NAMES.md are met", tiny{"docs/NAMES.md": "| K1 calls | `call_agent` | `test_call` |", "tools/x.go": "package tools\nconst name = \"call_agent\"", "sdk/python/tests/test_x.py": "def test_calls():\n"},
		"docs/NAMES.md:1", "no test named test_call;"},
	{"requirements in docs/NAMES.md are met", tiny{"docs/NAMES.md": "| K1 calls | – | – |"}, "docs/NAMES.md:1", "want a surface and a test"},
	{"docs/errors.md matches the table of refusals", tiny{"actor/refusal.go": "package actor\nvar t = [...]row{Busy: {\"Busy\", \"agent_busy\", 429}}",
		"docs/errors.md": "| `Busy` | agent_busy | 428 |"}, "docs/errors.md", "lacks 429"},

	{"docs/ARCHITECTURE.md names every package", tiny{"docs/ARCHITECTURE.md": "`actor`", "actor/x.go": "package actor", "host/disk/x.go": "package disk"},
		"docs/ARCHITECTURE.md", "package host/disk is missing"},

	{"the analyzer knows the pure packages", tiny{"internal/tools/purity/purity.go": "package purity\nvar packages = map[string]string{" +
		`"actor":"","contract":"","dispatcher":"","history":"","memory":"","placement":"","runs":"","signals":"","store":"","upstream":"","runtime":"","agents":"","ingress":"","specs":""}`},
		"internal/tools/purity/purity.go", `"tools" is missing`},

	{"a list of files is complete", tiny{"store/doc.go": filesDoc("x.go  decides"), "store/x.go": "package store", "store/y.go": "package store"}, "store/doc.go", "lacks y.go"},
	{"a list of files is complete", tiny{"store/doc.go": filesDoc("x.go  decides"), "store/x_test.go": "package store"}, "store/doc.go", "names x.go, which does not exist"},

	{"the list of routes equals the table", tiny{"host/gateway/doc.go": routesDoc("GET POST  /v1/runs"), "host/gateway/routes.go": routesTable(`{get, runs, 1}, {post, "/v1/runs", 1}, {del, "/v1/runs", 1}`)},
		"host/gateway/doc.go", "lacks DELETE /v1/runs"},
	{"the list of routes equals the table", tiny{"host/gateway/doc.go": routesDoc("POST  /v1/runs/{id}:cancel :retry"), "host/gateway/routes.go": routesTable(`{post, "/v1/runs/{id}:cancel", 1}`)},
		"host/gateway/doc.go", "names POST /v1/runs/{id}:retry, which"},

	{"records in docs exist", tiny{"docs/A.md": "The entry `Asked` is appended.", "store/record.go": "package store\nfunc (Asking) at() int { return 0 }\ntype Asked int"}, "docs/A.md", "no record Asked"},
	{"records in docs exist", tiny{"docs/ARCHITECTURE.md": "## One call through the packages\n`Asking`, `Done` and the reply\n## Next\n`Step`", "store/record.go": "package store\nfunc (Asking) at() int { return 0 }"},
		"docs/ARCHITECTURE.md", "no record Done"},

	{"closed sets are in one file", tiny{"runtime/x.go": "package runtime\n\n// Input is closed. The set\n// is closed.\ntype Input interface{ input() }\nfunc (Tick) input() {}", "runtime/y.go": "package runtime\nfunc (*Forget) input() {}"},
		"runtime/y.go", "Forget belongs to the closed set of runtime/x.go"},
}

// filesDoc is a package comment with a list of files.
func filesDoc(list string) string {
	return "// Package store decides.\n//\n// # Files\n//\n//\t" + list + "\n//\n// # Next\n//\n//\told.go  is no part of the list\npackage store"
}

// routesDoc is the package comment with a list of routes, and routesTable their table.
func routesDoc(list string) string {
	return "// Package gateway serves.\n//\n//\t" + list + "\npackage gateway"
}
func routesTable(rows string) string {
	return "package gateway\nconst runs = \"/v1/runs\"\nvar t = []route{" + rows + "}"
}

// methods returns n methods of a type.
func methods(receiver string, n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "func (%s) m%d() {}\n", receiver, i)
	}
	return b.String()
}

// lines returns a Go file with n lines after those that build adds.
func lines(n int) string { return "package x\n" + strings.Repeat("\n", n-1) }

// goodTree has borderline cases of the rules and breaks none.
var goodTree = tiny{
	"Makefile": "test: ## run\nhelp:\n",
	".ci/run":  "stage() {\n}\nstage 600 make test\nbeside 100 make clients\nif [ \"$core\" = yes ]; then\n\tstage 900 make sim\nelse\n\tstage 120 make sim\nfi\njoin\n",
	"docs/ARCHITECTURE.md": "Packages: `actor`, `agents`, `runtime`, `host/engine`, `internal/mutant`, tla/tlc. See `actor/doc.go`, `bin/troupe`, `planner/s-42`, " +
		"`net/http`, `/v1/agents`, `*.md`, `actor.ID`, `time.Now`. We make do; `make test`.\n",
	"docs/NAMES.md":     "| name | where | inside |\n|---|---|---|\n| `call_depth` | `actor` | Call |\n| `agent_call` | `later`, `actor` | |\n",
	"CHANGELOG.md":      "gone: `actor/old.go`",
	"actor/doc.go":      "// Package actor holds the types: call_depth.\n// It has no promise of compatibility.\npackage actor\n\nimport \"time\"\n\ntype ID struct{}\n\nconst Limit = time.Second\n",
	"actor/doc_test.go": "package actor_test\n\nimport (\n_ \"os\"\n_ \"pgregory.net/rapid\"\n)\n\nvar c = make(chan int)\n",
	"agents/doc.go": "// Package agents decides.\n// It has no promise of compatibility.\npackage agents\n\nimport (\n\"context\"\n\"iter\"\n\"" + module + "/actor\"\n" +
		"\"" + module + "/internal/failpoint\"\n\"github.com/go-json-experiment/json/jsontext\"\n)\n\nfunc f(context.Context, iter.Seq[int]) {}\n",
	"runtime/doc.go":      "// Package runtime steps.\n// It has no promise of compatibility.\npackage runtime\n\nimport \"math/rand/v2\"\n\nvar r = rand.New(rand.NewPCG(1, 2))\n",
	"tla/tlc/x_test.go":   "package main\n\nimport _ \"" + module + "/history\"\n",
	"runtime/doc_test.go": "package runtime\n\nimport _ \"" + module + "/agents\"\n",
	"host/engine/doc.go": "// Package engine runs.\n// It has no promise of compatibility.\npackage engine\n\nimport (\n\"time\"\n\"" + protoactor + "/actor\"\n)\n\nfunc f() {\n" +
		"go f()\ntime.Sleep(1)\nactor.Props" + "FromFunc(nil)\n}\n",
	"internal/mutant/on.go": "// Package mutant removes.\npackage mutant\n\nimport _ \"os\"\n",
}

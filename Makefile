# SPDX-License-Identifier: Apache-2.0
#
# `make` prints the everyday targets, `make help-all` all of them. Go and make
# suffice for all but race (a C compiler), tla, tla-big and trace (a Java runtime
# and Maven), demo-python (python3 with venv) and clients (curl, python3 with venv, npm, Chromium,
# haproxy, nginx).

GO       ?= go
WORD     ?= xyzzy
FUZZTIME ?= 20s

# Each variable set on the command line or in the environment becomes a flag. An
# unset variable leaves the default of the command.
SIMFLAGS = $(if $(SEED),--seed $(SEED)) $(if $(RUNS),--runs $(RUNS)) \
           $(if $(STORE),--store $(STORE)) $(if $(ENGINE),--engine $(ENGINE)) \
           $(if $(FAULTS),--faults $(FAULTS)) $(foreach f,$(FAULT),--fault $(f)) \
           $(if $(STRATEGY),--strategy $(STRATEGY)) $(if $(REGISTRY),--registry $(REGISTRY)) $(if $(EVENTS),--events) \
           $(if $(BUDGET),--budget $(BUDGET)) $(if $(LONG),--long) $(if $(TWICE),--twice $(TWICE)) $(if $(filter off,$(RESAMPLE)),--no-resample) \
           $(if $(PREMISES),--premises)

# Only the race detector needs a C compiler.
export CGO_ENABLED := 0
# The demo reads the word from the environment, so it may contain any character.
export WORD

.DEFAULT_GOAL := help
.PHONY: help help-all build test race sim nightly machines sim-cover replay tla tla-big trace fuzz lint golden deploy-check demo demo-approval demo-return demo-team demo-python sdk-python sdk-js sdk-js-types clients crash cluster recovery load growth corruption mutants inert bench bench-peers allocs vuln check

# A comment with ## marks an everyday target, one with #+ any other.
help:
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-13s  %s\n", $$1, $$2 }' Makefile
	@echo '  help-all       list all targets'

help-all:
	@awk -F ':.*#[#+] ' '/^[a-z-]+:.*#[#+] / { printf "  %-13s  %s\n", $$1, $$2 }' Makefile

build: ## compile the troupe binary into bin/
	@$(GO) build -ldflags '-X main.commit=$(shell git rev-parse HEAD 2>/dev/null)' -o bin/troupe ./cmd/troupe

# AGAIN is for CI: it names a file for tests that fail once and then pass three times alone.
GOTEST = $(GO) run ./test/internal/gotest $(if $(STRICT),-strict) $(if $(AGAIN),-again $(AGAIN))
test: ## run all tests, print progress, and list the skipped ones; needs only Go: STRICT=1 (fail on a skip)
	@$(GOTEST) -- -ldflags=-s -timeout 25m ./...

# Packages below layer 3 start no goroutine: the purity analyzer checks it. Simulations,
# crashes at single operations, checks of the sources and the conformance of stores run on one
# goroutine. The matrices of authorization make requests one after the other, thousands of them.
# The command is tested as processes, whose packages are all here. SHORT=1 leaves out long tests too:
# damaged stores, power failures and floods.
RACE_ALONE = Sim|Recovery|Authorization|DiskConforms|Architecture|Rules|APIShows|ProgramsOfPages
RACE_LONG = PowerFailure|Corruption|Damaged|Examine|IndexFlush|TableIsWritten|StoredContent|Floods|ClientCannotFreeze|OpenReadsExpiry|Suite
RACED = . ./host/... ./internal/... ./simulate/... ./tools
race: ## run the tests of packages that start goroutines under the race detector; needs a C compiler: ALL=1 (all tests) SHORT=1 RACED="PACKAGES"
	@command -v "$$($(GO) env CC)" >/dev/null || { \
	  echo "make race needs a C compiler: on Debian, apt-get install gcc libc6-dev" >&2; exit 1; }
	@CGO_ENABLED=1 $(GOTEST) -accept 'test/bench TestAllocations' -- \
	  -race $(if $(ALL),-timeout 40m ./...,-timeout 25m $(if $(SHORT),-short -skip '^Test($(RACE_ALONE)|$(RACE_LONG))',-skip '^Test($(RACE_ALONE))') $(RACED))

sim: build ## simulate seeds: SEED= RUNS= BUDGET=10m LONG=1 TWICE=1 (percent run twice) STORE= ENGINE= STRATEGY= REGISTRY=off FAULT=kind:p FAULTS=none EVENTS=1 PREMISES=1
	@bin/troupe sim $(SIMFLAGS)

# The seed of the simulations is the day, so that each night runs others.
NIGHTLY = "sim LONG=1 TWICE=1 BUDGET=35m SEED=$$(date -u +%Y%m%d)" "sim RUNS=500 STORE=pebble" "sim RUNS=500 ENGINE=proto" "mutants SHRINK=1" inert \
          machines sdk-js-types "fuzz FUZZTIME=60s" corruption "crash N=200" "race ALL=1" "recovery N=5" sim-cover tla "tla-big ARGS=-run=Calls_onefault" trace
nightly: #+ run the long form of each check, each for at most an hour, and list those that failed
	@failed=; for lane in $(NIGHTLY); do \
	  echo "== make $$lane"; timeout --foreground 1h $(MAKE) $$lane || failed="$$failed; make $$lane"; \
	done; [ -z "$$failed" ] || { echo "failed$$failed" >&2; exit 1; }

# State machine tests against small reference models. rapid shrinks a failure and
# prints how to repeat it.
MACHINES = TransitionsAgainstModel|CallsAgainstModel|MailboxAgainstModel|RegistryMatchesModel|StreamMatchesModel
machines: #+ state machine tests with CHECKS (20000) sequences of 100 steps each
	$(GO) test ./runs ./runtime ./dispatcher ./agents ./ingress -count=1 -v -timeout 50m -run '^Test($(MACHINES))$$' -rapid.checks=$(or $(CHECKS),20000) -rapid.steps=100

# Coverage data is written only if the command itself is instrumented; the figures
# omit it. Simulations should run at least 90 % of the statements of layers 0 to 2.
COVERED = actor dispatcher history runs store upstream tools runtime agents ingress specs specs/linear
comma   = ,
sim-cover: #+ coverage of layers 0 to 2 by RUNS (300) simulations: functions never run, and a table
	@$(GO) build -cover -coverpkg=./cmd/troupe$(subst $() ,,$(foreach r,$(COVERED),$(comma)./$(r))) -o bin/troupe-cover ./cmd/troupe
	@rm -rf bin/cover && mkdir -p bin/cover
	@GOCOVERDIR=bin/cover bin/troupe-cover sim --runs $(or $(RUNS),300) --twice 1 # logs are written only in runs that are repeated
	@$(GO) tool covdata textfmt -i bin/cover -o bin/cover/all.txt
	@grep -v '/cmd/troupe/' bin/cover/all.txt >bin/cover/packages.txt
	@$(GO) tool cover -func bin/cover/packages.txt | awk '$$NF == "0.0%" { print "never run  ", $$1, $$2 }'
	@$(GO) tool covdata percent -i bin/cover | grep -v '/cmd/troupe'
	@$(GO) tool cover -func bin/cover/packages.txt | awk '$$1 == "total:" { print "floors 0 to 2", $$NF, "of 90 %:", ($$NF + 0 >= 90 ? "met" : "missed"); exit $$NF + 0 < 90 }'

replay: build ## replay a failed seed from its folder: DIR=
	@bin/troupe replay "$(or $(DIR),$(error which one? make replay DIR=sim-out/…))"

tla: ## model-check the specifications with TLC; needs Java and Maven: ARGS=
	@$(GO) run ./tla/tlc $(ARGS)

tla-big: #+ model-check with larger bounds; takes hours, not in CI: ARGS=
	@$(GO) run ./tla/tlc -big $(ARGS)

trace: build ## validate simulated histories against tla/Calls.tla, and walks of it against the code: ARGS=
	@$(GO) run ./test/internal/overlay build -tags mutants -o bin/troupe-mutants ./cmd/troupe
	@$(GO) run ./tla/tlc traces $(ARGS)
	@$(GO) run ./tla/tlc walks
	@$(GO) run ./tla/tlc walks -work

# Go reports a spurious failure if the time ends while it minimizes an input, so
# minimizing is limited to a second.
fuzz: #+ run each fuzz target for FUZZTIME (20s)
	@set -e; grep -rnoE --include='*_test.go' '^func Fuzz[A-Za-z0-9_]*' . | sort | \
	while IFS=: read -r file _ func; do \
	  echo "$(GO) test $${file%/*} -fuzz ^$${func#func }\$$ -fuzztime $(FUZZTIME) -fuzzminimizetime 1s"; \
	  $(GO) test "$${file%/*}" -run '^$$' -fuzz "^$${func#func }\$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 1s; \
	done

# The linters are pinned in a module of their own, so that their dependencies stay
# out of go.mod.
lint: ## gofmt, vet, staticcheck, the purity analyzer, and messages of commits not on main: COMMITS=report (print them only)
	@out=$$(gofmt -l .); [ -z "$$out" ] || { echo "gofmt -w would change:"; echo "$$out"; exit 1; }
	$(GO) vet ./...
	$(GO) run ./test/internal/overlay vet -tags mutants ./...
	cd internal/tools && $(GO) vet ./... && $(GO) test ./...
	cd internal/tools && $(GO) build -o ../../bin/ honnef.co/go/tools/cmd/staticcheck ./purity/cmd/purity
	$(GO) vet -vettool="$(CURDIR)/bin/purity" ./...
	bin/staticcheck ./...
	cd internal/tools && ../../bin/staticcheck ./...
	@$(GO) run ./test/internal/commits $(if $(filter report,$(COMMITS)),-report $$(grep -v '^#' .ci/base)) origin/main main

# The fixture of host/disk is excluded: it is a store of an earlier version that
# must still open.
golden: ## rewrite the transcripts; review the diff before committing
	@dirs=$$(grep -rlE --include='*_test.go' 'flag\.Bool\("rewrite"' . | xargs -r -n1 dirname | sort -u | grep -v '^./host/disk$$'); \
	[ -n "$$dirs" ] || { echo "no package has the test flag -rewrite" >&2; exit 1; }; \
	$(GO) test $$dirs -count=1 -rewrite

deploy-check: #+ check the container file and the unit in deploy, as far as this machine can
	@deploy/check.sh

demo: build ## call an agent on a real server, kill -9 it, and recover: WORD=
	@$(GO) run ./test/demo -word "$$WORD"

demo-approval: build ## send money by a tool that a person must approve, across a kill -9; the ledger has one payment
	@$(GO) run ./test/demo -approval

demo-team: build ## nine agents answer as one, across a kill -9 between two steps
	@$(GO) run ./test/demo -team

NODE ?= node

# bin/venv has the Python SDK as pip installs it. Each of its files is a stamp.
PYTHON ?= python3
bin/venv/sdk: sdk/python/pyproject.toml sdk/python/README.md $(wildcard sdk/python/src/troupe/*)
	@command -v $(PYTHON) >/dev/null || { echo "$(PYTHON) is missing: on Debian, apt-get install python3 python3-venv" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { echo "$(PYTHON) is older than 3.10: set PYTHON to a newer one" >&2; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { echo "$(PYTHON) has no venv: on Debian, apt-get install python3-venv" >&2; exit 1; }
	@[ -x bin/venv/bin/pip ] || $(PYTHON) -m venv bin/venv
	@bin/venv/bin/pip install -q --disable-pip-version-check ./sdk/python && \
	bin/venv/bin/pip install -q --disable-pip-version-check --force-reinstall --no-deps ./sdk/python || \
	{ echo "pip cannot install ./sdk/python: it needs a package index, or PIP_INDEX_URL" >&2; exit 1; }
	@touch $@

bin/venv/examples: bin/venv/sdk
	@bin/venv/bin/pip install -q --disable-pip-version-check './sdk/python[test,examples]' || \
	{ echo "pip cannot install the packages of the examples: it needs a package index, or PIP_INDEX_URL" >&2; exit 1; }
	@touch $@

demo-return: #+ three agents are asked without waiting; their answers come back across a kill -9, each once; needs python3
	@$(GO) run ./examples/research

demo-python: build bin/venv/sdk #+ call an agent in Python that calls back; needs python3 with venv: WORD=
	@$(GO) run ./test/demo/python -python bin/venv/bin/python -word "$$WORD"

sdk-python: build bin/venv/examples #+ check the types of the Python SDK, and kill servers and agents under it, LangGraph and the OpenAI Agents SDK; needs python3 with venv: PYTEST=
	@cd sdk/python && MYPYPATH=tests ../../bin/venv/bin/mypy --strict --cache-dir ../../bin/mypy src tests
	@for d in python langgraph openai-agents; do (cd examples/$$d && ../../bin/venv/bin/mypy --strict --cache-dir ../../bin/mypy agent.py) || exit 1; done
	@cd sdk/python && TROUPE_BIN="$(CURDIR)/bin/troupe" ../../bin/venv/bin/pytest -q -p no:cacheprovider -p no:anyio $(PYTEST)

sdk-js: build #+ test the JavaScript client in Node and Chromium, over connections that are cut and a server that is killed; needs both: FILES=
	@command -v $(NODE) >/dev/null || { echo "$(NODE) is missing: on Debian, apt-get install nodejs" >&2; exit 1; }
	@$(NODE) -e 'process.exit(process.versions.node.split(".")[0] < 20 ? 1 : 0)' || { echo "$(NODE) is older than 20: set NODE to a newer one" >&2; exit 1; }
	@command -v $${TROUPE_BROWSER:-chromium} >/dev/null || { echo "chromium is missing: on Debian, apt-get install chromium, or set TROUPE_BROWSER" >&2; exit 1; }
	@cd sdk/js && TROUPE_BIN="$(CURDIR)/bin/troupe" $(NODE) --experimental-websocket --no-warnings --test --test-reporter spec $(or $(FILES),test/*.test.js)

sdk-js-types: #+ check the types of the JavaScript client with the compiler of TypeScript; needs npm
	@command -v npm >/dev/null || { echo "npm is missing: on Debian, apt-get install npm" >&2; exit 1; }
	@cd sdk/js && npm exec --yes --package=typescript@5 -- tsc --noEmit --strict --target es2022 --module nodenext --moduleResolution nodenext \
		--lib es2022,dom,dom.asynciterable --typeRoots test test/types.ts

clients: sdk-python sdk-js #+ likewise, and resume streams across a kill -9 with curl, Python, npm's EventSource and a browser, talk over WebSockets that are cut, drive the chat page, ask models with npm's openai, and try to pass haproxy and nginx without a key; needs them: ARGS=-channel, ARGS=-chat for the chat page, or ARGS=-openai
	@$(GO) run ./test/clients $(ARGS)

crash: build ## kill the real server N (20) times and simulate power failures; no acknowledged work may be lost
	@$(GO) run ./test/crash $(if $(N),-n $(N)) $(if $(SEED),-seed $(SEED))
	@$(GO) run ./test/crash -detached $(if $(N),-n $(N)) $(if $(SEED),-seed $(SEED))
	@$(GO) run ./test/crash -webhooks $(if $(N),-n $(N)) $(if $(SEED),-seed $(SEED))
	@$(GO) run ./test/crash -budgets $(if $(N),-n $(N)) $(if $(SEED),-seed $(SEED))
	@$(GO) test ./host/disk -run '^TestPowerFailure' -count=1 -v -args -power-runs 50

postgres: #+ test the store in PostgreSQL, on servers of its own; needs the server's programs (apt-get install postgresql); N= histories
	@$(GO) test -tags postgres ./host/postgres -count=1 -timeout 20m -args -rapid.checks $(or $(N),8)
	@$(GO) test -tags postgres ./internal/node ./internal/link -run '^TestPostgres' -count=1 -timeout 5m
	@$(GO) test -tags postgres ./test/crash -run '^TestPostgres' -count=1 -v -timeout 10m

cluster: #+ kill, freeze, drain and restart N (12) times the MEMBERS (3) orchestrators of a cluster, and crash its database, under load; needs PostgreSQL's programs like postgres
	@$(GO) test -tags postgres ./test/crash -run '^TestPostgresCluster$$' -count=1 -v -timeout 40m -args -faults -kills $(or $(N),12) -members $(or $(MEMBERS),3)

recovery: #+ crash at every single operation of a recovery, and within the recovery after it; N= histories, for a longer run with more histories of the stores
	@$(GO) test ./sim ./host/disk -run '^TestRecovery' -count=1 -v -timeout 2h -args $(if $(N),-recovery-runs $(N))
	$(if $(N),@$(GO) test ./store ./host/disk -run '^Test(RowsConform|MemoryConforms|DiskConforms)$$' -count=1 -timeout 2h -args -rapid.checks 400)
	$(if $(N),@$(GO) test ./host/disk -run '^TestEveryFailingOperation' -count=1 -timeout 2h -args -recovery-runs 1)

load: build ## load-test a node, up to five times its peak: ARGS=
	@bin/troupe load --page test/bench/testdata/load.md $(ARGS)

corruption: build #+ corrupt a store in every way a disk does; every loss must be detected: ARGS=
	@$(GO) run ./test/corruption -write docs/PERFORMANCE.md $(ARGS)

mutants: ## remove each guard in turn; the simulator must detect each removal: SHRINK=1 ONLY=guard
	@$(GO) run ./test/internal/overlay build -tags mutants -o bin/troupe-mutants ./cmd/troupe
	@bin/troupe-mutants mutants $(if $(SHRINK),--shrink) $(foreach m,$(ONLY),--only $(m))

# At most 10 minutes on two cores; QUICK=1 takes at most 3.
inert: ## remove the effect of each fault in turn; the simulator must no longer count it: ONLY=fault QUICK=1
	@$(GO) run ./test/internal/overlay build -tags mutants -o bin/troupe-mutants ./cmd/troupe
	@bin/troupe-mutants inert $(if $(QUICK),--quick) $(foreach f,$(ONLY),--only $(f))

# Ends within 10 minutes.
growth: #+ measure how calls, restarts and memory scale, into docs/PERFORMANCE.md: ARGS=
	@$(GO) run ./test/bench -only growth $(or $(ARGS),-page docs/PERFORMANCE.md)

# With ARGS the page is not written.
bench: ## measure against bare channels, Pebble and HTTP, into docs/PERFORMANCE.md: PROFILE=1 ARGS=
	@$(GO) run ./test/bench $(if $(PROFILE),-profile bin/profiles) $(or $(ARGS),-page docs/PERFORMANCE.md)

# The systems are required by a module of their own. Two of them register the same names of Protobuf.
bench-peers: #+ measure other actor systems on the same work, into docs/PERFORMANCE.md: ARGS=
	@cd test/bench/peers && $(GO) run -ldflags '-X google.golang.org/protobuf/reflect/protoregistry.conflictPolicy=ignore' . $(or $(ARGS),-page ../../../docs/PERFORMANCE.md)

allocs: #+ count the allocations of the main operations exactly: REWRITE=1
	@$(GO) test ./test/bench -run '^TestAllocations$$' -count=1 -v $(if $(REWRITE),-rewrite)

# Not in CI: the result depends on the day, and the database on the network.
vuln: #+ fail on a known vulnerability that the code can reach; needs vuln.go.dev, or its copy: DB=file://DIR
	@GOBIN="$(CURDIR)/bin" $(GO) install golang.org/x/vuln/cmd/govulncheck@v1.9.0 || { echo "vuln: not checked: govulncheck cannot be installed"; exit 1; }
	@out=$$(bin/govulncheck $(if $(DB),-db '$(DB)') ./... 2>&1); code=$$?; \
	case "$$out" in *"fetching vulnerabilities:"*) echo "vuln: not checked: the database of vulnerabilities cannot be reached"; exit 0;; esac; \
	printf '%s\n' "$$out"; exit $$code

check: ## run what CI runs for this change, without installing anything
	@.ci/run --here

# SPDX-License-Identifier: Apache-2.0
#
# `make` alone prints the targets. Go and make are enough for all but race
# (a C compiler), tla, tla-big and trace (a Java runtime and Maven), demo-python
# (python3) and clients (curl, python3, npm and Chromium).

GO       ?= go
WORD     ?= xyzzy
FUZZTIME ?= 20s

# A variable given on the command line or found in the environment becomes a
# flag; one that is absent leaves the command's own default standing.
SIMFLAGS = $(if $(SEED),--seed $(SEED)) $(if $(RUNS),--runs $(RUNS)) \
           $(if $(STORE),--store $(STORE)) $(if $(ENGINE),--engine $(ENGINE)) \
           $(if $(FAULTS),--faults $(FAULTS)) $(foreach f,$(FAULT),--fault $(f)) \
           $(if $(STRATEGY),--strategy $(STRATEGY)) $(if $(EVENTS),--events) \
           $(if $(BUDGET),--budget $(BUDGET)) $(if $(LONG),--long) $(if $(TWICE),--twice $(TWICE))

# Nothing of ours needs a C compiler; only the race detector does.
export CGO_ENABLED := 0
# The word reaches the demo as one word, whatever stands in it.
export WORD

.DEFAULT_GOAL := help
.PHONY: help build test race sim nightly machines sim-cover replay tla tla-big trace fuzz lint golden demo demo-python clients crash load growth rot mutants bench allocs check

help:
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-11s  %s\n", $$1, $$2 }' Makefile

build: ## compile the troupe binary into bin/
	@$(GO) build -o bin/troupe ./cmd/troupe

test: ## run every test; needs nothing but Go
	$(GO) test ./...

race: ## run every test under the race detector; needs a C compiler
	@command -v "$$($(GO) env CC)" >/dev/null || { \
	  echo "make race needs a C compiler: on Debian, apt-get install gcc libc6-dev" >&2; exit 1; }
	CGO_ENABLED=1 $(GO) test -race -timeout 25m ./...

sim: build ## run seeded worlds: SEED= RUNS= BUDGET=10m LONG=1 TWICE=1 (in a hundred) STORE= ENGINE= STRATEGY= FAULT=kind:p FAULTS=none EVENTS=1
	@bin/troupe sim $(SIMFLAGS)

# An hour at most on two cores: ten thousand long worlds, 10⁸ steps and more,
# every hundredth twice, nothing of what they should come by left out, no rule
# broken; then each guard is removed in turn.
nightly: build ## RUNS (10000) simulated hours, and all mutants
	@bin/troupe sim --long --runs $(or $(RUNS),10000) --twice 1
	@$(MAKE) --no-print-directory mutants

# What these tests are held against is small enough to be known right, so many
# ways through it cost little. rapid makes a failure small and says how to repeat it.
MACHINES = TablesAgainstFacts|CallsAgainstModel|MailboxAgainstModel|RegistryMatchesModel|StreamMatchesModel
machines: ## state machines of runs, tools, approvals, calls, mailboxes, agents and streams: CHECKS (20000) ways of 100 steps
	$(GO) test ./runs ./runtime ./dispatcher ./agents ./ingress -count=1 -v -timeout 50m -run '^Test($(MACHINES))$$' -rapid.checks=$(or $(CHECKS),20000) -rapid.steps=100

# The command itself has to be built so, or it writes nothing; it is left out of
# the figures. At least 90 % of what floors 0 to 2 hold should be run by worlds.
COVERED = actor dispatcher history runs store upstream tools runtime agents ingress specs specs/linear
comma   = ,
sim-cover: ## what of floors 0 to 2 RUNS (300) worlds run: the functions they never do, and a table
	@$(GO) build -cover -coverpkg=./cmd/troupe$(subst $() ,,$(foreach r,$(COVERED),$(comma)./$(r))) -o bin/troupe-cover ./cmd/troupe
	@rm -rf bin/cover && mkdir -p bin/cover
	@GOCOVERDIR=bin/cover bin/troupe-cover sim --runs $(or $(RUNS),300) --twice 1 # the log of a world is written if it is run twice
	@$(GO) tool covdata textfmt -i bin/cover -o bin/cover/all.txt
	@grep -v '/cmd/troupe/' bin/cover/all.txt >bin/cover/rooms.txt
	@$(GO) tool cover -func bin/cover/rooms.txt | awk '$$NF == "0.0%" { print "never run  ", $$1, $$2 }'
	@$(GO) tool covdata percent -i bin/cover | grep -v '/cmd/troupe'
	@$(GO) tool cover -func bin/cover/rooms.txt | awk '$$1 == "total:" { print "floors 0 to 2", $$NF, "of 90 %:", ($$NF + 0 >= 90 ? "met" : "missed") }'

replay: build ## run a failed seed again from its folder: DIR=
	@bin/troupe replay "$(or $(DIR),$(error which one? make replay DIR=sim-out/…))"

tla: ## model-check the specifications with TLC: ARGS=
	@$(GO) run ./tla/tlc $(ARGS)

tla-big: ## the same with larger bounds: hours, and not in CI: ARGS=
	@$(GO) run ./tla/tlc -big $(ARGS)

trace: build ## histories that must be behaviours of tla/Calls.tla, and the other way round: ARGS=
	@$(GO) build -tags mutants -o bin/troupe-mutants ./cmd/troupe
	@$(GO) run ./tla/tlc traces $(ARGS)
	@$(GO) run ./tla/tlc walks
	@$(GO) run ./tla/tlc walks -work

# Go reports a failure of its own when the time is over while it makes an input
# smaller, so little time is spent on that.
fuzz: ## run each fuzz target of the tree for FUZZTIME (20s)
	@set -e; grep -rnoE --include='*_test.go' '^func Fuzz[A-Za-z0-9_]*' . | sort | \
	while IFS=: read -r file _ func; do \
	  echo "$(GO) test $${file%/*} -fuzz ^$${func#func }\$$ -fuzztime $(FUZZTIME) -fuzzminimizetime 1s"; \
	  $(GO) test "$${file%/*}" -run '^$$' -fuzz "^$${func#func }\$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 1s; \
	done

# The linters are pinned in a module of their own and built from there, so that
# nothing they need becomes a dependency of ours. Ours is tested before it judges.
lint: ## gofmt, vet, staticcheck and the purity analyzer
	@out=$$(gofmt -l .); [ -z "$$out" ] || { echo "gofmt -w would change:"; echo "$$out"; exit 1; }
	$(GO) vet ./...
	$(GO) vet -tags mutants ./...
	cd internal/tools && $(GO) vet ./... && $(GO) test ./...
	cd internal/tools && $(GO) build -o ../../bin/ honnef.co/go/tools/cmd/staticcheck ./purity/cmd/purity
	$(GO) vet -vettool="$(CURDIR)/bin/purity" ./...
	bin/staticcheck ./...
	cd internal/tools && ../../bin/staticcheck ./...

# The fixture of host/disk is left out: it shows that a store written by an
# earlier version still opens, so nothing may write it anew.
golden: ## rewrite the transcripts; read the diff before you commit it
	@dirs=$$(grep -rlE --include='*_test.go' 'flag\.Bool\("rewrite"' . | xargs -r -n1 dirname | sort -u | grep -v '^./host/disk$$'); \
	[ -n "$$dirs" ] || { echo "no package has the test flag -rewrite" >&2; exit 1; }; \
	$(GO) test $$dirs -count=1 -rewrite

demo: build ## a call, a kill -9 and a recovery, on a real server: WORD=
	@$(GO) run ./test/demo -word "$$WORD"

demo-python: build ## an agent in Python, called and calling back: WORD= (needs python3)
	@$(GO) run ./test/demo/python -word "$$WORD"

clients: build ## curl, Python, npm's EventSource and a browser read on across a kill -9; needs them
	@$(GO) run ./test/clients

crash: build ## kill the real server N (20) times, and fail the power: nothing acknowledged may be lost
	@$(GO) run ./test/crash $(if $(N),-n $(N)) $(if $(SEED),-seed $(SEED))
	@$(GO) test ./host/disk -run '^TestPowerFailure' -count=1 -v -args -power-runs 50

load: build ## put a node under load, five times its peak as well: ARGS=
	@bin/troupe load --plot docs --page docs/PERFORMANCE.md $(ARGS)

rot: build ## damage a store in every way a disk does: nothing may be lost or changed in silence: ARGS=
	@$(GO) run ./test/corruption -write docs/PERFORMANCE.md $(ARGS)

mutants: ## remove each guard in turn; the simulator must notice every time: SHRINK=1 tells how short the story gets: ONLY=guard
	@$(GO) build -tags mutants -o bin/troupe-mutants ./cmd/troupe
	@bin/troupe-mutants mutants $(if $(SHRINK),--shrink) $(foreach m,$(ONLY),--only $(m))

# Ends by itself within 10 minutes.
growth: ## how calls, restarts and memory grow with what there is, into docs/PERFORMANCE.md: ARGS=
	@$(GO) run ./test/scaling $(or $(ARGS),-page docs/PERFORMANCE.md)

# With ARGS it is only a look: the page has the whole table.
bench: ## measure against bare channels, Pebble and HTTP, into docs/PERFORMANCE.md: PROFILE=1 ARGS=
	@$(GO) run ./test/bench $(if $(PROFILE),-profile bin/profiles) $(or $(ARGS),-page docs/PERFORMANCE.md)

allocs: ## count allocations of the main operations, exactly: REWRITE=1
	@$(GO) test ./test/bench -run '^TestAllocations$$' -count=1 -v $(if $(REWRITE),-rewrite)

check: ## all that CI runs, without installing anything
	@.ci/run --here

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/store"
)

// budgetRun is the run of this program with the flag -budgets. Users send messages to a team whose model is in
// this process and survives. What the model has billed is compared with the budgets of the users for the days of
// the run, and in the end with what the server has recorded and what the accounts of the users have given out.
type budgetRun struct {
	*harness
	day int64 // tokens of a user

	mu     sync.Mutex
	billed map[string]map[uint64]int64 // tokens by user and request: one that a kill repeats is billed once
	asked  int                         // requests
	inside int                         // requests that are being answered
	hits   int                         // kills during such requests
	runs   map[string]string           // user of each acknowledged run
}

const (
	budgetRunsPerKill = 6
	budgetKillWithin  = 400 * time.Millisecond
	budgetEndWithin   = time.Minute
	tokensPerKill     = 1000 // of a user; its messages want about twice as many
	lead, thinker     = "lead", "thinker"
)

func (c *harness) runBudgets(ctx context.Context, out, stderr io.Writer) (good bool, err error) {
	b := &budgetRun{harness: c, day: int64(tokensPerKill * (c.kills + 1)), billed: map[string]map[uint64]int64{}, runs: map[string]string{}}
	if err := c.begin(out, stderr, " with budgets"); err != nil {
		return false, err
	}
	stop, err := b.serve()
	if err != nil {
		return false, err
	}
	defer stop()
	began := time.Now()
	if err := c.eachKill(ctx, budgetKillWithin, b.send, b.met); err != nil {
		return false, err
	}
	refused := 0
	err = c.withInstance(ctx, func(s *server, inst *instance) (err error) {
		refused, err = b.finish(ctx, s, inst, began)
		return err
	})
	if err != nil {
		return false, err
	}
	l, distinct := c.ledger, 0
	for _, of := range b.billed {
		distinct += len(of)
	}
	fmt.Fprintf(out, "%d messages, %d of them refused for the budget, %d requests to the model, %d of them again, %d%% of the kills met some, %v\n lost=%d duplicated=%d reordered=%d wrong=%d\n",
		len(b.runs), refused, b.asked, b.asked-distinct, 100*b.hits/c.kills, time.Since(began).Round(time.Second), l.counts[lost], l.counts[duplicated], l.counts[reordered], l.counts[wrong])
	if refused == 0 || refused == len(b.runs) || b.hits == 0 {
		return false, errors.New("want some of each")
	}
	return l.counts == [kinds]int{}, nil
}

// serve starts the model, and writes the configuration and the agents.
func (b *budgetRun) serve() (stop func(), err error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	dir, config := filepath.Join(b.dir, agentsDir), filepath.Join(b.dir, "troupe.toml")
	err = writeFiles(map[string]string{
		config: fmt.Sprintf("write_buffer_mib = 1\n\n[models.billed]\nurl = \"http://%s/v1\"\nmodel = \"m\"\nmax_tokens = 64\nomit = [\"stream\", \"stream_options\"]\nretry_attempts = 1\n\n[budget]\nuser_tokens_per_day = %d\ntree_tokens = 6000\n",
			listener.Addr(), b.day),
		filepath.Join(dir, lead+".toml"):    fmt.Sprintf("name = %q\nmodel = \"billed\"\nprompt = \"lead {{user}}\"\nagents = [%q]\n", lead, thinker),
		filepath.Join(dir, thinker+".toml"): fmt.Sprintf("name = %q\nmodel = \"billed\"\nprompt = \"think {{user}}\"\n", thinker),
	})
	if err != nil {
		return nil, err
	}
	if err := os.Setenv("TROUPE_CONFIG", config); err != nil { // of each server
		return nil, err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/chat/completions", b.complete)
	server := serveHTTP(listener, mux)
	return func() { _ = server.Close() }, nil
}

// complete answers a request and bills it. The lead first asks two thinkers.
func (b *budgetRun) complete(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(io.LimitReader(r.Body, 1<<20))
	var in struct {
		Messages []struct {
			Role    string `json:"role"`
			Content string `json:"content"`
		} `json:"messages"`
	}
	if err == nil {
		err = json.Unmarshal(body, &in, json.RejectUnknownMembers(false))
	}
	if err != nil || len(in.Messages) < 2 {
		b.ledger.report(wrong, "a request to the model: %v: %s", err, body)
		http.Error(w, "no", http.StatusBadRequest)
		return
	}
	role, user, _ := strings.Cut(in.Messages[0].Content, " ")
	hash := fnv.New64a()
	_, _ = hash.Write(body)
	request := hash.Sum64()
	output := 1 + int64(request%64)
	tokens := int64(len(body))/4 + output
	b.mu.Lock()
	if b.billed[user] == nil {
		b.billed[user] = map[uint64]int64{}
	}
	b.billed[user][request] = tokens
	b.asked++
	b.inside++
	b.mu.Unlock()
	err = pause(r.Context(), time.Duration(rand.Int64N(int64(300*time.Millisecond))))
	b.mu.Lock()
	b.inside--
	b.mu.Unlock()
	if err != nil { // the server was killed
		return
	}
	answer, finish := `"content":"thought"`, "stop"
	if last := in.Messages[len(in.Messages)-1]; role == lead && last.Role == "user" {
		answer, finish = fmt.Sprintf(`"content":null,"tool_calls":[%s,%s]`, thinkerCall(0, last.Content), thinkerCall(1, last.Content)), "tool_calls"
	}
	w.Header().Set("Content-Type", "application/json")
	fmt.Fprintf(w, `{"id":"c","object":"chat.completion","created":1,"model":"m","choices":[{"index":0,"message":{"role":"assistant",%s},"finish_reason":%q}],"usage":{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d}}`,
		answer, finish, tokens-output, output, tokens)
}

// thinkerCall returns the call of a thinker, in a session of its own.
func thinkerCall(i int, word string) string {
	arguments, _ := json.Marshal(fmt.Sprintf(`{"agent":"%s/%s-%d","message":"%[2]s %[3]d"}`, thinker, word, i))
	return fmt.Sprintf(`{"id":"call-%d","type":"function","function":{"name":"call_agent","arguments":%s}}`, i, arguments)
}

// send sends the messages of one instance.
func (b *budgetRun) send(inst *instance, n int) error {
	for i := range budgetRunsPerKill {
		user, word := []string{"anna", "ben", "cleo"}[i%3], fmt.Sprintf("word-%d-%d", n, i)
		run, err := inst.sendAsync(lead, fmt.Sprintf(`{"content":%q,"session_id":"s-%s"}`, word, word), "X-User-Id", user)
		if err != nil {
			return err
		}
		b.runs[run] = user
	}
	return nil
}

// met counts a kill that meets requests to the model.
func (b *budgetRun) met() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.inside > 0 {
		b.hits++
	}
}

// finish waits until all runs have ended, and compares three sums of each user: the tokens that the model has billed,
// those that the server has recorded, and those that the account has given out.
func (b *budgetRun) finish(ctx context.Context, s *server, inst *instance, began time.Time) (refused int, err error) {
	ctx, cancel := context.WithTimeout(ctx, budgetEndWithin)
	defer cancel()
	for run, user := range b.runs {
		var state struct {
			Status string `json:"status"`
			Error  struct {
				Code string `json:"code"`
			} `json:"error"`
		}
		for state.Status != "DONE" && state.Status != "FAILED" {
			if status, err := inst.askOnce(request{"GET", "/v1/runs/" + run, "", []string{"X-User-Id", user}}, &state); err != nil || status != http.StatusOK {
				return 0, fmt.Errorf("run %s of %s got %d, %w", run, user, status, err)
			}
			if err := pause(ctx, 20*time.Millisecond); err != nil {
				return 0, fmt.Errorf("run %s of %s is %s: %w", run, user, state.Status, err)
			}
		}
		switch {
		case state.Error.Code == "budget_exceeded":
			refused++
		case state.Status == "FAILED":
			b.ledger.report(wrong, "run %s of %s failed with %s", run, user, state.Error.Code)
		}
	}
	recorded := map[string]int64{}
	for user := range b.billed {
		var usage struct {
			Total struct {
				Tokens int64 `json:"total_tokens"`
			} `json:"total"`
		}
		if status, err := inst.askOnce(request{"GET", "/v1/usage", "", []string{"X-User-Id", user}}, &usage); err != nil || status != http.StatusOK {
			return 0, fmt.Errorf("the usage of %s got %d, %w", user, status, err)
		}
		recorded[user] = usage.Total.Tokens
	}
	if _, state := s.terminate(syscall.SIGTERM); !state.Success() {
		return 0, fmt.Errorf("after SIGTERM the server exited with %s: %s", state, tail(b.dir))
	}
	d, err := openStore(filepath.Join(b.dir, dataDir), "")
	if err != nil {
		return 0, err
	}
	defer d.Close()
	days := actor.DayOf(actor.Time(time.Now().UnixNano())) - actor.DayOf(actor.Time(began.UnixNano())) + 1
	for user, requests := range b.billed {
		billed := int64(0)
		for _, tokens := range requests {
			billed += tokens
		}
		saved, err := d.Load(actor.ID{Tenant: user, Agent: actor.AccountAgent, Key: actor.DefaultKey})
		if err != nil {
			return 0, err
		}
		journal, err := store.Fold(saved)
		if err != nil || len(journal.ActorState) != 1 {
			return 0, fmt.Errorf("account of %s: %d items, %w", user, len(journal.ActorState), err)
		}
		drawn, err := actor.DecodePurse(journal.ActorState[0].Value)
		switch {
		case err != nil:
			return 0, err
		case billed > days*b.day:
			b.ledger.report(wrong, "%s was billed %d tokens in %d days, at most %d a day allowed", user, billed, days, b.day)
		case recorded[user] != billed:
			b.ledger.report(lost, "%s was billed %d tokens, and the server has recorded %d", user, billed, recorded[user])
		case days == 1 && drawn.Tokens != billed:
			b.ledger.report(wrong, "%s was billed %d tokens, and its account has given out %d", user, billed, drawn.Tokens)
		}
	}
	return refused, nil
}

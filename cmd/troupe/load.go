// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	goruntime "runtime"
	"runtime/pprof"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/schollz/progressbar/v3"

	"github.com/troupe-run/troupe/internal/load"
	"github.com/troupe-run/troupe/internal/mdsection"
)

// LoadCmd runs a load test against a node.
type LoadCmd struct {
	URL        string        `env:"TROUPE_LOAD_URL" placeholder:"URL" help:"Server to load instead of a temporary node; requires --callers or --rate."`
	Key        string        `env:"TROUPE_KEY" help:"API key. Prefer the environment: other users can see arguments."`
	Place      []string      `enum:"dispatcher,gateway" default:"dispatcher,gateway" help:"Access to the temporary node: dispatcher (in this process), gateway (over HTTP) (${default})."`
	Durability []string      `enum:"none,durable" default:"none,durable" help:"Durability of its agents: none, durable (${default})."`
	Agent      string        `default:"noop" help:"Agent called by one loop: noop, chain, fan, slow or work; with --url, any agent (${default})."`
	Callers    int           `help:"Run one closed loop with this number of callers, each with one call at a time. With --rate: maximum number of concurrent calls (1024)."`
	Rate       float64       `help:"Run one open loop with this number of calls per second, independent of the answers."`
	For        time.Duration `default:"10s" help:"Duration of one loop (${default})."`
	Sessions   int           `default:"256" help:"Number of actors called by one loop (${default})."`
	Timeout    time.Duration `help:"Maximum duration of each run; the node's default if absent."`
	Tries      int           `default:"4" help:"Maximum attempts per call in an open loop, if the refusal has a retry delay (${default})."`
	JSON       bool          `help:"Print JSON."`
	Page       string        `type:"existingfile" placeholder:"FILE" help:"Write the tables into this page, between the lines load:begin and load:end."`
	Profile    string        `type:"path" placeholder:"FILE" help:"Write a CPU profile to this file, and a heap profile to FILE.heap."`
}

// Help returns the text shown below the flags.
func (LoadCmd) Help() string {
	return `Without --callers and --rate, runs the whole suite and checks its floors: closed loops of 1 to 256 callers,
open loops up to five times their peak, and calls with a slow agent. The suite takes some minutes. Its last
line lists the floors met and missed. Exits with code 1 if a floor is missed.

A closed loop sends nothing while the server pauses. In an open loop the latency of a call counts from its
intended send time, so that a pause shows in every call that arrived during it. The generator shares the
processors with the node. Calls without a free caller in time are counted as not sent.

Examples:
  troupe load
  troupe load --place gateway --callers 64
  troupe load --place dispatcher --durability durable --agent chain --rate 5000 --for 30s
  TROUPE_KEY=… troupe load --url http://127.0.0.1:8283 --agent helper --rate 200 --json`
}

// Validate rejects values out of range and flags that exclude each other.
func (c *LoadCmd) Validate() error {
	single := c.Callers > 0 || c.Rate > 0
	switch {
	case c.Callers < 0 || c.Rate < 0:
		return errors.New("--callers and --rate: want more than 0")
	case c.URL != "" && !single:
		return errors.New("--url requires --callers or --rate; the suite runs only on a temporary node")
	case c.URL == "" && !slices.Contains(load.Workloads(), load.Workload(c.Agent)):
		return fmt.Errorf("--agent %s: the temporary node has %v", c.Agent, load.Workloads())
	case c.URL != "" && c.Profile != "":
		return errors.New("--profile cannot be used with --url: it would profile the load generator")
	case single && c.Page != "":
		return errors.New("--page requires the suite: leave out --callers and --rate")
	case c.For < 100*time.Millisecond || c.For > 24*time.Hour:
		return errors.New("--for: want 100ms to 24h")
	case c.Sessions < 1 || c.Sessions > load.SessionsMax:
		return fmt.Errorf("--sessions: want 1 to %d", load.SessionsMax)
	case c.Tries < 1 || c.Tries > 100:
		return errors.New("--tries: want 1 to 100")
	case c.Timeout < 0:
		return errors.New("--timeout: want more than 0")
	}
	return checkKey(c.Key)
}

// Run executes the command.
func (c *LoadCmd) Run(s streams) (err error) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if c.URL != "" {
		target, err := load.NewGatewayTarget(strings.TrimSuffix(c.URL, "/"), c.Key, c.callOptions(c.Agent))
		if err != nil {
			return err
		}
		return c.runLoop(ctx, s, c.URL+", "+c.Agent, target)
	}
	tb, err := newTestbed(s.err)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, tb.close()) }()
	if c.Profile != "" {
		stopProfile, err := startProfile(c.Profile)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, stopProfile()) }()
	}
	var places []load.Place
	for _, name := range c.Place {
		places = append(places, load.Place{Name: name, Target: tb.targets()[name]})
	}
	if c.Callers > 0 || c.Rate > 0 {
		for _, place := range places {
			for _, durability := range c.Durability {
				agent := load.Workload(c.Agent).Agent(durability == "durable")
				target, err := place.Target(c.callOptions(agent))
				if err == nil {
					err = c.runLoop(ctx, s, place.Name+", "+agent, target)
				}
				if err != nil {
					return err
				}
			}
		}
		return nil
	}
	return c.runSuite(ctx, s, places)
}

func (c *LoadCmd) callOptions(agent string) load.CallOptions {
	return load.CallOptions{Agent: agent, Sessions: c.Sessions, Timeout: c.Timeout}
}

// startProfile records a CPU profile until stop is called. Stop also writes a heap
// profile to path.heap.
func startProfile(path string) (stop func() error, err error) {
	f, err := os.Create(path)
	if err != nil {
		return nil, err
	}
	if err := pprof.StartCPUProfile(f); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return func() error {
		pprof.StopCPUProfile()
		heap, err := os.Create(path + ".heap")
		if err != nil {
			return errors.Join(err, f.Close())
		}
		return errors.Join(pprof.Lookup("heap").WriteTo(heap, 0), heap.Close(), f.Close())
	}, nil
}

// runLoop runs a single loop and prints its result.
func (c *LoadCmd) runLoop(ctx context.Context, s streams, name string, target load.Target) (err error) {
	var r load.Result
	if c.Rate > 0 {
		name = fmt.Sprintf("%s, %g/s", name, c.Rate)
		r, err = load.OpenLoop{Rate: c.Rate, Callers: c.Callers, For: c.For, Tries: c.Tries}.Run(ctx, target)
	} else {
		name = fmt.Sprintf("%s, %d callers", name, c.Callers)
		r, err = load.ClosedLoop{Callers: c.Callers, For: c.For}.Run(ctx, target)
	}
	if r.Name, r.Remote = name, c.URL != ""; err != nil {
		return err
	}
	if c.JSON {
		err = printLoadJSON(s.out, r)
	} else {
		err = r.Print(s.out)
	}
	if err == nil && r.Done == 0 {
		err = fmt.Errorf("%s: no call completed", name)
	}
	return err
}

// runSuite runs the whole suite and checks its floors.
func (c *LoadCmd) runSuite(ctx context.Context, s streams, places []load.Place) error {
	suite := load.Suite{Places: places}
	for _, d := range c.Durability {
		suite.Durable = append(suite.Durable, d == "durable")
	}
	report, finish := newProgressBar(s.err, &suite)
	suite.Progress = report
	r, err := suite.Run(ctx)
	if finish(); err != nil {
		return err
	}
	if c.Page != "" {
		if err := mdsection.Replace(c.Page, "load", c.preface()+r.Markdown()); err != nil {
			return err
		}
	}
	if c.JSON {
		err = printLoadJSON(s.out, r)
	} else {
		_, err = io.WriteString(s.out, r.Markdown())
	}
	if _, missed := r.CountFloors(); err == nil && missed > 0 {
		err = exitCode(exitFailed)
	}
	return err
}

// preface returns the text above the tables on a page: version, machine and method.
func (c *LoadCmd) preface() string {
	b := &strings.Builder{}
	fmt.Fprintf(b, "## Load\n\nWritten by `make load`, version %s, on %s, %d processors (%s/%s, %s). The load generator runs in the\n", version(),
		time.Now().UTC().Format(time.DateOnly), goruntime.GOMAXPROCS(0), goruntime.GOOS, goruntime.GOARCH, goruntime.Version())
	b.WriteString(`same process and shares its processors, so that peaks are those of node and generator together. Latencies are
those of completed calls, from the intended send time; in an open loop they include the lag of the loop.
Refusals are timed from the actual send time. Calls without a free caller within 100 ms were not sent.

`)
	return b.String()
}

// printLoadJSON prints a result as JSON. Durations are in nanoseconds.
func printLoadJSON(to io.Writer, v any) error {
	body, err := json.Marshal(v, json.WithMarshalers(json.MarshalToFunc(func(e *jsontext.Encoder, d time.Duration) error {
		return e.WriteToken(jsontext.Int(int64(d)))
	})))
	if err != nil {
		return err
	}
	return printJSON(to, body)
}

// newProgressBar returns the functions that update and remove a progress bar. They
// print nothing if stderr is no terminal or NO_COLOR is set.
func newProgressBar(stderr io.Writer, suite *load.Suite) (report func(string, time.Duration, time.Duration), finish func()) {
	if !isTerminal(stderr) || os.Getenv("NO_COLOR") != "" {
		return nil, func() {}
	}
	bar := progressbar.NewOptions64(int64(suite.Duration()/time.Second), progressbar.OptionSetWriter(controls(stderr)), progressbar.OptionClearOnFinish(),
		progressbar.OptionSetWidth(30), progressbar.OptionShowDescriptionAtLineEnd(), progressbar.OptionSetPredictTime(false))
	return func(what string, done, total time.Duration) {
		bar.Describe(what)
		_ = bar.Set64(int64(min(done, total) / time.Second))
	}, func() { _ = bar.Finish() }
}

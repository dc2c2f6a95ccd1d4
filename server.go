// SPDX-License-Identifier: Apache-2.0

package troupe

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/agents"
	"github.com/troupe-run/troupe/dispatcher"
	"github.com/troupe-run/troupe/host/disk"
	"github.com/troupe-run/troupe/host/gateway"
	"github.com/troupe-run/troupe/host/outbound"
	"github.com/troupe-run/troupe/internal/client"
	"github.com/troupe-run/troupe/internal/node"
	"github.com/troupe-run/troupe/internal/service"
)

// Config is the configuration of a Server. Data or Temporary is required.
type Config struct {
	// folder for everything that the server keeps; created if it does not exist
	Data string
	// Temporary keeps everything in a new temporary folder instead, which Close deletes.
	Temporary bool

	// agents written in Go. The other agents of the server are those stored in the folder: from
	// AgentFiles, from POST /v1/agents and from external services.
	Agents []Agent
	// tools that functions of the program perform. Agents list them by name, declared agents and
	// external ones too.
	Tools []Tool
	// rules that decide about calls of tools, in order: the first that matches. Then the option Policy of
	// the tool decides.
	Policy []PolicyRule
	// folder with declared agents, one per file named *.toml; empty for none. They are stored:
	// an agent stays when its file is removed.
	AgentFiles string
	// models for declared agents, by name. The model "scripted" is built in.
	Models map[string]Model
	// hosts, addresses or prefixes where models and external agents may be called in addition
	// to public addresses, such as "127.0.0.1" for those on this machine
	Allow []string
	// hosts to which the secrets of external agents may be sent, by the name of the environment
	// variable with the secret
	Auth map[string]string
	// Memory switches on what agents remember, for those whose definition allows it too: Agent.Memory, or memory in a file.
	Memory bool
	// Builtin names built-in tools that are switched on, for agents that list them too: agents_create,
	// agents_delete, agents_list, agents_show, metrics_query, workspace_get and workspace_put.
	Builtin []string
	// limits by their names in docs/limits.md; a duration is in milliseconds
	Limits map[string]int64

	// Keep deletes each session that was not changed for this time, at least 1 minute, and what
	// the store holds from before. 0 keeps everything.
	Keep time.Duration

	// log of the server; its handler MUST NOT block. Each run has two lines at level Info. nil means
	// warnings and errors on standard error
	Log *slog.Logger
	// name of the node; each folder belongs to one. Default "n1", as for troupe serve
	Node string
	// folder in which backups are made, outside of Data; default Data with "-backups" appended
	Backups string

	// KeysRequired requires an API key of HTTP clients on loopback too.
	KeysRequired bool
	// additional host names in HTTP requests; those of loopback are always accepted by Serve
	Hosts []string
	// origins of web pages that may call the HTTP API, such as "https://console.example"
	Origins []string
}

// Model configures a model with an API for chat completions. URL is required.
type Model struct {
	URL           string            // base URL, such as https://api.example.com/v1
	Headers       map[string]string // further headers, with their values
	HeaderEnv     map[string]string // the same, with environment variables that hold the values
	Fallback      []string          // models that are asked in turn if this one is not available
	KeyEnv        string            // environment variable with the API key; empty for no key
	Model         string            // name at the provider; default: the key in Config.Models
	MaxTokensName string            // field with the token limit: max_tokens (default) or max_completion_tokens
	Omit          []string          // optional members that requests lack, such as stream_options
	MaxTokens     int               // token limit of prompts without one; 0: that of the provider
	Temperature   *float64          // temperature of prompts without one, 0 to 2; nil: that of the provider
	Concurrency   int               // maximum number of concurrent prompts; 0: no bound
	HeadTimeout   time.Duration     // maximum time until an answer begins; 0: 1 minute
	IdleTimeout   time.Duration     // maximum silence within an answer; 0: 30 s
	RetryAttempts int               // attempts that reach the model, at most 20; 0: 5
	RetryDelay    time.Duration     // maximum of the first delay, doubled for each further one; 0: 2 s
	RetryDelayMax time.Duration     // maximum delay; 0: 15 s
	RetryTime     time.Duration     // from the first failure to the last attempt; 0: 30 s
	RetryJitter   *bool             // false: each delay is its maximum

	PriceInput       *float64 // price of a million tokens of prompts, in the currency of all prices; nil: unknown
	PriceOutput      *float64 // price of a million tokens of answers
	PriceCachedInput *float64 // price of a million tokens of prompts that the provider had cached; nil: PriceInput
}

// Server is one node in a data folder. Its methods are safe for concurrent use.
type Server struct {
	service   *service.Service
	temporary string // folder to delete; empty for none
	stopOnce  sync.Once
	stopErr   error

	mu       sync.Mutex
	unclosed runtime.Cleanup // logs that the program forgot to close the server
	served   bool            // Serve was called
	stopping bool
}

// Open opens a server. Open runs of an earlier process resume at once. The caller MUST close the
// server. If the process ends without Close, nothing that was acknowledged is lost; but a folder that a
// Server of this process uses cannot be opened again.
func Open(c Config) (s *Server, err error) {
	log := c.Log
	if log == nil {
		log = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	}
	box := &toolbox{log: log}
	nc, err := c.node(box)
	if err != nil {
		return nil, fmt.Errorf("troupe: %w", err)
	}
	var files *service.AgentFiles
	if c.AgentFiles != "" {
		if files, err = readAgentFiles(c.AgentFiles, service.Program{Agents: agentNames(c.Agents), Tools: nc.Tools, Provided: providedCodes(nc.Native)}, log); err != nil {
			return nil, fmt.Errorf("troupe: %w", err)
		}
	}
	s = &Server{}
	if c.Temporary {
		if s.temporary, err = os.MkdirTemp("", "troupe-"); err != nil {
			return nil, fmt.Errorf("troupe: %w", err)
		}
		nc.Data = s.temporary
	}
	s.service, err = service.Open(service.Config{Node: nc, Gateway: gateway.Config{Hosts: c.Hosts, Origins: c.Origins, KeysRequired: c.KeysRequired}, MCP: files.MCP(), Modules: files.Modules()}, log)
	var conflict *node.ConflictError
	inUse, isInUse := errors.AsType[disk.InUseError](err)
	switch {
	case errors.As(err, &conflict):
		err = fmt.Errorf("%w; rename it, choose another Data, or delete the one in the store (troupe agents delete %s --data %s)", err, conflict.Name, nc.Data)
	case isInUse && inUse.PID == os.Getpid():
		err = fmt.Errorf("%w, which is this program: a Server that it has opened was not closed; share that one, or close it first", err)
	case isInUse:
		err = fmt.Errorf("%w: stop that process, or choose another Data", err)
	case err == nil && files != nil:
		if err = files.Apply(s.service, log); err != nil {
			err = errors.Join(err, s.Close())
		}
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("troupe: %w", err), s.removeTemporary())
	}
	for _, a := range c.Agents {
		if grants, _ := a.Memory.grants(); !c.Memory && len(grants.Tools()) > 0 {
			log.Warn("agent " + a.Name + ": Memory has no effect; set Config.Memory too")
		}
		for _, name := range a.Tools {
			if _, ok := box.current.Load().Tool(name); !ok {
				log.Warn("agent " + a.Name + ": the tool " + name + " does not exist, so models are not offered it; add it to Config.Tools, or declare it")
			}
		}
	}
	s.unclosed = runtime.AddCleanup(s, func(dir string) {
		log.Warn("a troupe.Server was not closed, and the program has dropped all references to it: keep it, and call Close", "data", dir)
	}, s.service.Dir())
	if !c.Temporary {
		s.service.ServeOwner(func(err error) {
			if err != nil {
				log.Error("the socket in the data folder failed", "error", err.Error())
			}
		})
	}
	return s, nil
}

// allowing returns the text that allows a host in a program.
func allowing(host string) string { return fmt.Sprintf("add %q to Config.Allow", host) }

// node returns the configuration of the node.
func (c *Config) node(box *toolbox) (node.Config, error) {
	native, err := definitions(c.Agents, box)
	if err != nil {
		return node.Config{}, err
	}
	local, policy, err := c.tools(box)
	if err != nil {
		return node.Config{}, err
	}
	out := node.Config{Data: c.Data, Name: cmp.Or(c.Node, "n1"), Limits: dispatcher.DefaultLimits(), Native: native, Tools: local, Registry: &box.current, Policy: policy, Memory: c.Memory, Remembering: map[string]agents.MemoryGrants{}, Builtin: c.Builtin, Offered: map[string][]string{}, Backups: c.Backups, Keep: c.Keep,
		Outbound: outbound.Config{Models: map[string]outbound.Model{}, Allow: slices.Clone(c.Allow), Remedy: allowing, Auth: c.Auth}}
	switch {
	case c.Data == "" && !c.Temporary:
		return out, errors.New("Config.Data is empty: name a folder, or set Config.Temporary")
	case c.Data != "" && c.Temporary:
		return out, errors.New("Config has both Data and Temporary: want one of them")
	case c.Keep != 0 && c.Keep < node.KeepMin:
		return out, fmt.Errorf("Config.Keep is %v: want at least %v, or 0 to keep everything", c.Keep, node.KeepMin)
	}
	for _, a := range c.Agents {
		if out.Remembering[a.Name], err = a.Memory.grants(); err != nil {
			return out, fmt.Errorf("agent %s: Memory: %w", a.Name, err)
		}
		out.Offered[a.Name] = a.Tools
	}
	for name, m := range c.Models {
		out.Outbound.Models[name] = outbound.Model(m)
	}
	for _, name := range slices.Sorted(maps.Keys(c.Limits)) {
		if err := out.Limits.Set(name, c.Limits[name]); err != nil {
			return out, fmt.Errorf("limits: %w", err)
		}
	}
	if err := out.Limits.Check(); err != nil {
		return out, fmt.Errorf("limits: %w", err)
	}
	if err := gateway.CheckNames(c.Hosts, c.Origins); err != nil {
		return out, errors.New(strings.NewReplacer("--hosts", "Config.Hosts", "--origin", "Config.Origins").Replace(err.Error()))
	}
	return out, nil
}

// readAgentFiles reads a folder of agents. Its error lists all errors in the files.
func readAgentFiles(dir string, program service.Program, log *slog.Logger) (*service.AgentFiles, error) {
	files, err := service.ReadAgentFilesOf(dir, program)
	if err != nil {
		return nil, err
	}
	for _, p := range files.Problems {
		if p.Warning {
			log.Warn("agent file", "problem", p.String())
		} else {
			err = errors.Join(err, errors.New(p.String()))
		}
	}
	return files, err
}

// Serve serves the HTTP API on a listener until the server is closed, and returns nil then. It may
// be called once, and it closes the listener. Off loopback, every client needs an API key, and Serve
// fails if none exists: troupe keys create --data DIR makes one, also while the server is open.
func (s *Server) Serve(l net.Listener) error {
	s.mu.Lock()
	served, stopping := s.served, s.stopping
	s.served = true
	s.mu.Unlock()
	switch addr := l.Addr().String(); {
	case stopping:
		return errors.Join(ErrClosed, l.Close())
	case served:
		return errors.Join(errors.New("troupe: Serve was called before: a server has one listener"), l.Close())
	case gateway.CheckListenAddress(addr, s.service.Keys.Count()) != nil:
		return errors.Join(fmt.Errorf("troupe: serve %s: want an address of loopback, such as 127.0.0.1:8283, or an API key for other clients: troupe keys create --data %s makes one", addr, s.service.Dir()), l.Close())
	}
	s.service.Announce(l.Addr())
	ended := make(chan error, 1)
	go func() { ended <- s.service.Gateway.Serve(l) }()
	select {
	case err := <-ended:
		return err
	case <-s.service.Done():
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopping {
		return nil
	}
	return errors.Join(fmt.Errorf("%w: %w", ErrClosed, s.service.Err()), l.Close())
}

// ListenAndServe listens on an address, such as "127.0.0.1:8283", and calls Serve. A message over HTTP:
//
//	curl http://127.0.0.1:8283/v1/agents/helper/messages -H 'Content-Type: application/json' -d '{"content": "hello", "session_id": "s1"}'
//
// The answer is the member content. With the header Accept: text/event-stream it is a stream of events.
func (s *Server) ListenAndServe(addr string) error {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return fmt.Errorf("troupe: %w", err)
	}
	return s.Serve(l)
}

// Handler returns the HTTP API for an HTTP server of the program. It serves the paths /v1/…, /healthz,
// /readyz and /metrics. Every client needs an API key, also on loopback, because the handler cannot
// know how its clients connect. A page on another origin than http:// and the Host header needs Config.Origins. Shut the HTTP
// server down before Close.
func (s *Server) Handler() fasthttp.RequestHandler {
	handle := gateway.Handler(s.service.Gateway)
	return func(ctx *fasthttp.RequestCtx) {
		handle(ctx)
		runtime.KeepAlive(s) // a program may keep the handler alone
	}
}

// Shutdown stops the server after the clients that wait have got their answers, or at once when ctx
// ends. New calls are refused from the beginning. Open runs resume when the folder is opened again.
func (s *Server) Shutdown(ctx context.Context) error {
	s.stopOnce.Do(func() {
		s.mu.Lock()
		s.stopping = true
		s.mu.Unlock()
		s.unclosed.Stop()
		s.stopErr = errors.Join(s.service.Stop(ctx), s.removeTemporary())
	})
	return s.stopErr
}

// Close stops the server. Calls that wait get ErrClosed, as later ones do. Open runs resume when the folder is opened again.
func (s *Server) Close() error {
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	return s.Shutdown(ended)
}

// client returns the client of the node for a principal. The program may do what it wants: it
// authorizes the persons.
func (s *Server) client(by actor.Principal) *client.Client {
	return &client.Client{Node: s.node(), By: by, Share: actor.LocalUser, Trusted: true, Stopping: s.service.Done()}
}

// failed returns the error of an operation, or nil.
func (s *Server) failed(err error) error {
	err = errorOf(err)
	if r, ok := err.(*Refusal); ok {
		return s.stopped(r)
	}
	return err
}

// stopped returns the error of a refused call. A call that a stop has ended is ErrClosed too.
func (s *Server) stopped(r *Refusal) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopping && r.Code == CodeUnavailable {
		return fmt.Errorf("%w: %w", ErrClosed, r)
	}
	return r
}

func (s *Server) removeTemporary() error {
	if s.temporary == "" {
		return nil
	}
	return os.RemoveAll(s.temporary)
}

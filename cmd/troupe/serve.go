// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/alecthomas/kong"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/agents"
	"github.com/troupe-run/troupe/host/disk"
	"github.com/troupe-run/troupe/host/engine"
	"github.com/troupe-run/troupe/host/gateway"
	"github.com/troupe-run/troupe/host/outbound"
	"github.com/troupe-run/troupe/host/postgres"
	"github.com/troupe-run/troupe/ingress"
	"github.com/troupe-run/troupe/internal/node"
	"github.com/troupe-run/troupe/internal/service"
	"github.com/troupe-run/troupe/upstream"
)

// ServeCmd runs a node with a gateway until it receives a signal.
type ServeCmd struct {
	Config  configFile    `env:"TROUPE_CONFIG" type:"path" placeholder:"FILE" help:"TOML file with values for these flags, and the tables models, limits, memory, agent_call, auth, approvals, budget, builtin, chat, otel, policy, policy_default, prices, record and webhook."`
	Data    string        `env:"TROUPE_DATA" default:"data" type:"path" help:"Data folder; created if absent (${default})."`
	Listen  string        `env:"TROUPE_LISTEN" default:"${listen}" help:"Address to listen on; port 0 picks a free port (${default})."`
	Backups string        `env:"TROUPE_BACKUPS" type:"path" placeholder:"DIR" help:"Folder in which backups are made; outside of the data folder. Default: the data folder with -backups appended."`
	Store   string        `env:"TROUPE_STORE" placeholder:"URL" help:"Keep the store in this PostgreSQL database, such as postgres://troupe@db.example/troupe, instead of the data folder. Write no password into the URL: PGPASSWORD and ~/.pgpass are read."`
	Agents  string        `env:"TROUPE_AGENTS" type:"existingdir" placeholder:"DIR" help:"Folder with files of agents, tools and MCP servers named *.toml."`
	Watch   bool          `env:"TROUPE_WATCH" help:"Apply the files of --agents again whenever they change. Without --agents and --config, those of the configuration troupe.toml in the working folder."`
	Allow   []string      `env:"TROUPE_ALLOW" placeholder:"HOST" help:"Host, address or prefix where models and external agents may be called. Loopback is allowed if the server listens on loopback."`
	Hosts   []string      `env:"TROUPE_HOSTS" placeholder:"NAME" help:"Host names accepted in requests, in addition to those of loopback."`
	Origin  []string      `env:"TROUPE_ORIGINS" placeholder:"URL" help:"Origins of web pages that may call this server and read its answers (CORS), for example https://console.example."`
	TLSCert string        `env:"TROUPE_TLS_CERT" name:"tls-cert" type:"path" placeholder:"FILE" help:"Certificate with its chain in PEM: serve over TLS. Read again when it changes."`
	TLSKey  string        `env:"TROUPE_TLS_KEY" name:"tls-key" type:"path" placeholder:"FILE" help:"Key of --tls-cert in PEM."`
	Keyless string        `env:"TROUPE_KEYLESS" enum:"on,off" default:"on" help:"on: direct clients on loopback need no API key. off: all clients need one, and --allow must name loopback for models, agents and tools there; use it behind a proxy (${default})."`
	Node    string        `env:"TROUPE_NODE" default:"n1" help:"Name of this node; it cannot be changed later (${default})."`
	Cells   int           `env:"TROUPE_CELLS" default:"0" help:"Number of cells, at most 64; 0 means one per processor. With a store in a database it is the number of its logs, 16."`
	Pace    time.Duration `env:"TROUPE_PACE" default:"0s" help:"Delay of the scripted model before each piece of its answer (${default})."`
	Ballast uint64        `env:"TROUPE_BALLAST_MIB" name:"ballast-mib" default:"96" help:"MiB to reserve in the data folder, released if the disk is full at a start; 0 means none (${default})."`
	Buffer  uint64        `env:"TROUPE_WRITE_BUFFER_MIB" name:"write-buffer-mib" default:"32" help:"MiB of one write buffer of the store, of which up to three are in memory (${default})."`
	Ready   bool          `env:"TROUPE_READY" help:"Serve the built-in agents coordinator and helper."`
	Trace   string        `env:"TROUPE_TRACE" type:"path" placeholder:"FILE" help:"Write the node's history to this file as JSON lines, at most 1 GiB; it contains names of actors and calls, and no messages."`
	Keep    string        `env:"TROUPE_KEEP" placeholder:"TIME" help:"Delete sessions that were not changed for this time, such as 30d or 12h, at least 1m, and what the log holds from before. Default: keep everything."`
	Grace   time.Duration `env:"TROUPE_GRACE" default:"10s" help:"Maximum time for clients to receive their answers when the node stops (${default})."`
	Level   slog.Level    `env:"TROUPE_LOG_LEVEL" name:"log-level" default:"info" help:"debug, info, warn or error (${default})."`
	Format  string        `env:"TROUPE_LOG_FORMAT" name:"log-format" enum:"auto,text,json" default:"auto" help:"text, json, or auto: text on a terminal and JSON elsewhere (${default})."`

	roleFlags `embed:""`

	givenListen bool // on the command line

	Auth map[string]string `placeholder:"NAME=HOST" help:"Host, host:port or beginning of a URL to which the secret in the variable TROUPE_AUTH_… may be sent; several are separated by commas."`
}

// bufferMiBMax is the maximum size of a write buffer of the store.
const bufferMiBMax = 1024

// defaultListen is the default of --listen.
const defaultListen = "127.0.0.1:8283"

// projectConfig is the name of the configuration that troupe init writes.
const projectConfig = "troupe.toml"

// BeforeResolve reads the configuration of the working folder for --watch that names neither
// agents nor a configuration. Without --watch no file is read that nobody named: it may start programs.
func (c *ServeCmd) BeforeResolve(ctx *kong.Context, trace *kong.Path) error {
	c.givenListen = slices.ContainsFunc(ctx.Path, func(p *kong.Path) bool { return p.Flag != nil && p.Flag.Name == "listen" })
	given := map[string]bool{}
	for _, flag := range trace.Command.Flags {
		given[flag.Name] = !reflect.ValueOf(ctx.FlagValue(flag)).IsZero()
	}
	if !given["watch"] || given["agents"] || given["config"] {
		return nil
	}
	if info, err := os.Stat(projectConfig); err != nil || !info.Mode().IsRegular() {
		return nil
	}
	path, err := filepath.Abs(projectConfig)
	if err != nil {
		return fmt.Errorf("configuration: %w", err)
	}
	c.Config = configFile(path)
	return c.Config.resolve(ctx)
}

// Validate implements kong's validation.
func (c *ServeCmd) Validate() error {
	if c.Buffer < 1 || c.Buffer > bufferMiBMax {
		return fmt.Errorf("--write-buffer-mib: want 1 to %d, got %d", bufferMiBMax, c.Buffer)
	}
	if c.Cells < 0 || c.Cells > engine.CellsMax {
		return fmt.Errorf("cells (--cells): want 1 to %d, or 0 for one per processor, got %d", engine.CellsMax, c.Cells)
	}
	if (c.TLSCert == "") != (c.TLSKey == "") {
		return errors.New("--tls-cert and --tls-key: want both, or none")
	}
	if c.Watch && c.Agents == "" {
		if c.Config != "" {
			return fmt.Errorf("--watch requires --agents DIR, or agents = \"DIR\" in %s", c.Config)
		}
		return fmt.Errorf("--watch requires --agents DIR, or a folder with %s, as troupe init writes it", projectConfig)
	}
	if err := c.checkRole(); err != nil {
		return err
	}
	_, err := parseKeep(c.Keep)
	return err
}

// parseKeep parses the value of --keep: a duration, in which d means days of 24 hours. The
// value "" keeps everything.
func parseKeep(text string) (time.Duration, error) {
	if text == "" {
		return 0, nil
	}
	days, rest, hasDays := strings.Cut(text, "d")
	if !hasDays {
		days, rest = "", text
	}
	var keep time.Duration
	var err error
	if hasDays {
		var n uint64
		if n, err = strconv.ParseUint(days, 10, 16); err == nil {
			keep = time.Duration(n) * 24 * time.Hour
		}
	}
	if err == nil && rest != "" {
		var part time.Duration
		part, err = time.ParseDuration(rest)
		keep += part
	}
	if err != nil || keep < node.KeepMin || strings.HasPrefix(rest, "-") {
		return 0, fmt.Errorf("--keep: want a time such as 30d or 12h, at least %s, got %q", "1m", text)
	}
	return keep, nil
}

// Help returns the text shown below the flags.
func (ServeCmd) Help() string {
	return `Prints its URL as the only line on standard output when it is ready; logs go to standard error, as text on
a terminal and as JSON elsewhere (--log-format). An orchestrator prints the value of --orchestrator instead.
On SIGTERM it answers waiting clients and exits with code 0. Open runs resume at the next start.

Without --keep the store keeps all runs and their events, so it grows with use; new work is refused while less
than 256 MiB are free. Agents and tools are stored: at each start those in --agents are updated from their files. One without
a file stays until it is deleted. With --watch the files are applied again whenever they change, and the log names
what changed; while a file has errors nothing changes. To create an agent without a file, send {"name":"helper"} to /v1/agents.
The model named scripted needs no key and no network. Define other models in the file of --config:

  [models.big]
  url = "https://api.example.com/v1"
  key_env = "EXAMPLE_API_KEY"

Examples:
  troupe serve
  troupe serve --watch
  troupe serve --agents agents/ --watch
  troupe serve --data /var/lib/troupe --listen 127.0.0.1:0 --config /etc/troupe.toml
  troupe serve --keep 30d
  troupe serve --listen 0.0.0.0:8283 --tls-cert cert.pem --tls-key key.pem
  troupe serve --role orchestrator --data data
  troupe serve --role ingress --orchestrator data/LINK --listen 127.0.0.1:0
  TROUPE_LOG_LEVEL=warn troupe serve`
}

// Run executes the command.
func (c *ServeCmd) Run(s streams) error {
	asText := c.Format == "text" || c.Format == "auto" && isTerminal(s.err)
	out := newLogWriter(s.err, asText)
	defer out.close()
	log := slog.New(newLogText(out, c.Level))
	if !asText {
		log = slog.New(slog.NewJSONHandler(out, &slog.HandlerOptions{Level: c.Level})).With("node", c.Node)
	}
	defer redirectStandardLog(log)()
	if err := confine(); err != nil {
		log.Warn("the process is less confined than it should be", "error", err.Error())
	}
	if c.Role == roleIngress {
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
		context.AfterFunc(ctx, stop) // a second signal ends the process at once
		defer stop()
		return c.runIngress(ctx, s, log)
	}
	defer node.LimitGarbage()()
	n, err := c.open(s, log)
	switch {
	case errors.Is(err, postgres.ErrLeaving):
		log.Info("stopping", "reason", err.Error())
		return nil
	case errors.Is(err, context.Canceled): // a signal, while it stood by
		log.Info("stopping")
		return nil
	}
	if err != nil {
		return err
	}
	// Before this line a signal ends the process at once. That is safe, because a
	// start can be killed at any point.
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	defer node.LimitGarbage()()
	if _, err := fmt.Fprintln(s.out, n.url); err != nil {
		return errors.Join(err, n.stop(0))
	}
	select {
	case <-ctx.Done():
		stop() // a second signal ends the process at once
		log.Info("stopping", "grace", c.Grace.String())
		return n.stop(c.Grace)
	case <-n.leaving():
		stop()
		log.Info("stopping", "grace", c.Grace.String(), "reason", postgres.ErrLeaving.Error())
		return n.stop(c.Grace)
	case <-n.Done():
		return errors.Join(n.Err(), n.stop(0))
	case err := <-n.served:
		return errors.Join(err, n.stop(0))
	}
}

// nodeServer is a running service and its listener.
type nodeServer struct {
	*service.Service
	url      string            // with the role orchestrator: the address of the link
	cluster  *postgres.Cluster // nil: none
	folder   io.Closer         // lock of the data folder of a store in a database; nil: the store has its own
	served   chan error        // results of serving the listener and the socket
	endWatch func()            // ends the watch of agent files and waits for it; nil if there is none
}

// leaving returns a channel that is closed once the process was asked to leave its cluster.
func (n *nodeServer) leaving() <-chan struct{} {
	if n.cluster == nil {
		return nil
	}
	return n.cluster.Leaving()
}

// startWatch applies changed agent files until stop.
func (n *nodeServer) startWatch(w *service.Watch) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		w.Run(ctx)
	}()
	n.endWatch = func() {
		cancel()
		<-done
	}
}

// stop stops the service. It waits up to grace for clients to receive their answers.
func (n *nodeServer) stop(grace time.Duration) error {
	if n.endWatch != nil {
		n.endWatch()
	}
	ctx, cancel := context.WithTimeout(context.Background(), grace)
	defer cancel()
	err := n.Stop(ctx)
	if n.cluster != nil && err == nil { // the log is closed, so another may take it at once
		err = n.cluster.Close()
		n.cluster = nil
	}
	if n.folder != nil {
		err = errors.Join(err, n.folder.Close())
		n.folder = nil
	}
	return err
}

// open reads the configuration and the agent files, opens the node and starts the
// gateway.
func (c *ServeCmd) open(s streams, log *slog.Logger) (n *nodeServer, err error) {
	start := time.Now()
	config, err := readConfig(string(c.Config))
	if err != nil {
		return nil, err
	}
	if c.Config != "" {
		log.Info("configuration read", "file", string(c.Config))
	} else if _, err := os.Stat(projectConfig); err == nil {
		log.Warn("the configuration " + projectConfig + " in this folder is not read: give --config " + projectConfig + ", or --watch without --agents")
	}
	var files *service.AgentFiles
	if c.Agents != "" {
		if files, err = service.ReadAgentFiles(c.Agents); err != nil {
			return nil, err
		}
		for _, p := range files.Problems {
			fmt.Fprintln(s.err, p)
		}
		if files.HasErrors() {
			return nil, fmt.Errorf("the agent files in %s have errors; see also: troupe check %[1]s", c.Agents)
		}
	}
	listener, certificate, err := c.listen(log)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil && listener != nil {
			err = errors.Join(err, listener.Close())
		}
	}()
	var native []actor.Definition
	var reserved []string
	for _, def := range agents.Builtin() {
		if c.Ready {
			native = append(native, def)
		} else {
			reserved = append(reserved, def.Name)
		}
	}
	keep, err := parseKeep(c.Keep)
	if err != nil {
		return nil, err
	}
	if c.Cluster != "" && config.Record.On() { // before it stands by
		return nil, node.ErrClusterPrompts
	}
	folder, err := c.lockFolder()
	if err != nil {
		return nil, err
	}
	defer func() {
		if n == nil && folder != nil {
			err = errors.Join(err, folder.Close())
		}
	}()
	cluster, err := c.join(log)
	if err != nil {
		return nil, err
	}
	base, err := service.Open(service.Config{
		Node:    node.Config{Data: c.Data, Store: c.Store, Cluster: cluster, Name: c.Node, Cells: c.Cells, Limits: config.Limits, Budget: config.Budget, Routing: config.AgentCall.routing(), Outbound: c.egress(&config), Native: native, Reserved: reserved, Policy: config.Policy, Memory: config.Memory, Builtin: config.Builtin, Webhooks: config.Webhooks, Record: config.Record, Traces: config.Traces, Trace: c.Trace, Backups: c.Backups, Keep: keep, Ballast: c.Ballast << 20, WriteBuffer: c.Buffer << 20},
		Gateway: gateway.Config{Hosts: c.Hosts, Origins: c.Origin, KeysRequired: c.Keyless == "off", ApprovalScope: ingress.Scope(config.ApprovalScope), Chat: config.Chat, DetachedOnChannel: config.AgentCall.Channel, Certificate: certificate},
		MCP:     files.MCP(),
		Modules: files.Modules(),
		Link:    c.linkFiles(),

		WasmWorker: wasmWorker(),
	}, log)
	if err != nil && cluster != nil {
		err = errors.Join(err, cluster.Close())
	}
	var conflict *node.ConflictError
	switch {
	case errors.As(err, &conflict):
		return nil, fmt.Errorf("%w; choose another --data, or delete the one in the store: %s", err, hint("agents delete", []string{conflict.Name}, nil)+" "+strings.Join(c.ownerFlags(), " "))
	case errors.As(err, new(disk.InUseError)):
		return nil, fmt.Errorf("%w: stop that process, or choose another --data", err)
	case err != nil && c.Store != "":
		return nil, err
	case err != nil:
		return nil, storeError(c.Data, err, "")
	}
	opened := &nodeServer{Service: base, cluster: cluster, folder: folder, served: make(chan error, 3)}
	n, folder = opened, nil // which stop closes
	defer func() {
		if err != nil {
			err = errors.Join(err, opened.stop(0))
		}
	}()
	if err := gateway.CheckListenAddress(c.Listen, n.Keys.Count()); err != nil && listener != nil {
		return nil, fmt.Errorf("%s", strings.ReplaceAll(err.Error(), "--data DIR", "--data "+shellQuote(c.Data)))
	}
	linked := ""
	if cluster != nil { // the other members connect there, too
		if linked, err = c.serveLink(n); err != nil {
			return nil, err
		}
		if err := n.awaitCluster(log); err != nil {
			return nil, err
		}
	}
	if files != nil {
		if err := files.Apply(n, log); err != nil {
			return nil, err
		}
	}
	if c.Watch {
		w, err := service.NewWatch(c.Agents, strings.Join(c.ownerFlags(), " "), files, n, log)
		if err != nil {
			return nil, err
		}
		if c.Config != "" {
			w.AddConfig(string(c.Config), hint("check", []string{c.Agents}, []string{"--config", string(c.Config)}))
		}
		opened.startWatch(w)
	}
	if cluster == nil {
		if linked, err = c.serveLink(n); err != nil {
			return nil, err
		}
	}
	n.AdmitIngress()
	n.ServeOwner(func(err error) { n.served <- err })
	if n.url = linked; listener != nil {
		c.warnAboutClients(certificate, n.Keys, log)
		n.url = n.Announce(listener.Addr())
		go func() { n.served <- n.Gateway.Serve(listener) }()
	}
	batches, entries := n.End()
	if linked != "" {
		log = log.With("orchestrator", linked)
	}
	log.Info("serving", "role", c.Role, "url", n.url, "data", c.Data, "batches", batches, "entries", entries, "start_ms", time.Since(start).Milliseconds())
	return n, nil
}

// egress returns the configuration of requests to models, agents and tools.
func (c *ServeCmd) egress(config *configuration) outbound.Config {
	out := outbound.Config{Models: config.Models, Currency: config.Prices.Currency, Allow: slices.Clone(c.Allow), Pace: c.Pace, Auth: c.Auth}
	if c.Keyless != "off" && allowsLoopback(c.Role, c.Listen) {
		out.Allow = append(out.Allow, upstream.AllowLoopback()...)
	}
	return out
}

// ownerFlags returns the flags with which commands find the data folder of the server, quoted
// for a shell.
func (c *ServeCmd) ownerFlags() []string {
	flags := []string{"--data", shellQuote(c.Data)}
	if c.Node != "n1" {
		flags = append(flags, "--node", shellQuote(c.Node))
	}
	return flags
}

// lockFolder locks the data folder of a store in a database, before a process stands by in a cluster. A store in the folder
// has a lock of its own: nil.
func (c *ServeCmd) lockFolder() (io.Closer, error) {
	if c.Store == "" {
		return nil, nil
	}
	lock, err := disk.LockFolder(c.Data)
	if errors.As(err, new(disk.InUseError)) {
		return nil, fmt.Errorf("%w: stop that process, or choose another --data; each process of a cluster has its own", err)
	}
	return lock, err
}

// inUseError adds to the error of a locked data folder the URL of the server that
// uses it, and the remedy followed by --server and that URL. Other errors are
// returned unchanged.
func inUseError(dir string, err error, remedy string) error {
	if !errors.As(err, new(disk.InUseError)) {
		return err
	}
	url, ok := service.URL(dir)
	if !ok {
		return err
	}
	return fmt.Errorf("%w: it serves at %s: %s", err, url, strings.ReplaceAll(remedy, "URL", url))
}

// insteadOfData is the remedy for a command that has both flags.
const insteadOfData = "instead of --data, use --server URL"

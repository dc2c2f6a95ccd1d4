// SPDX-License-Identifier: Apache-2.0

package service

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"github.com/troupe-run/troupe/host/disk"
	"github.com/troupe-run/troupe/host/gateway"
	"github.com/troupe-run/troupe/host/mcp"
	"github.com/troupe-run/troupe/host/outbound"
	"github.com/troupe-run/troupe/host/wasm"
	"github.com/troupe-run/troupe/internal/command"
	"github.com/troupe-run/troupe/internal/link"
	"github.com/troupe-run/troupe/internal/node"
)

// URLFile is the file in a data folder with the URL of the server that uses it.
const (
	URLFile     = "SERVER"
	urlBytesMax = 1024
)

// shutdownTimeout is the maximum time to close the gateway, and also the maximum time
// to close the node.
const shutdownTimeout = 10 * time.Second

// Config is the configuration of a node with its gateway.
type Config struct {
	Node node.Config // Open sets Keys; if Backups is empty, it is DefaultBackups
	// Open sets the fields that the node provides: Keys, Secret, External, Backup
	Gateway gateway.Config
	MCP     map[string]mcp.Config // MCP servers by name
	Modules map[string][]byte     // those of MCP servers, by SHA-256
	Link    link.Files            // of TLS, for other members of the node's cluster
	// WasmWorker is the command of a worker for modules of WebAssembly; empty: no modules are performed
	WasmWorker []string
}

// ModulesFolder returns the folder of a data folder with the modules of tools.
func ModulesFolder(data string) string { return filepath.Join(data, "wasm") }

// MCPFolder returns the folder of a data folder with the lists of tools of MCP servers.
func MCPFolder(data string) string { return filepath.Join(data, "mcp") }

// Service is a running node and its gateway. The gateway serves no connection before
// Serve or ServeOwner.
type Service struct {
	*node.Node
	Gateway   *gateway.Server
	accepting atomic.Pointer[gateway.Server] // Gateway, once the node is open
	Keys      *gateway.Keys                  // API keys of the node
	links     *link.Orchestrator
	link      *link.Server // nil: no ingress can connect
	peers     *link.Peers  // nil: the node belongs to no cluster
	mcp       *mcp.Servers
	workers   *wasm.Workers // nil: no modules are performed
	log       *slog.Logger
	scheme    string // of URLs of listeners
}

// DefaultBackups returns the default folder for backups of a data folder.
func DefaultBackups(data string) string { return filepath.Clean(data) + "-backups" }

// Open opens the node and its gateway. The caller MUST stop the service.
func Open(c Config, log *slog.Logger) (*Service, error) {
	backups, err := node.CheckBackups(cmp.Or(c.Node.Backups, DefaultBackups(c.Node.Data)), c.Node.Data)
	if err != nil {
		return nil, err
	}
	s := &Service{Keys: new(gateway.Keys), log: log, scheme: schemeOf(c.Gateway)}
	keys := &link.Keys{To: s.Keys}
	c.Node.Backups, c.Node.Keys, c.Node.Connect = backups, keys, s.connect(c.Link)
	c.Node.Outbound.Spans = c.Node.Traces.On()
	if c.Node.Traces.On() {
		c.MCP = maps.Clone(c.MCP)
		for name, one := range c.MCP {
			one.Spans = true
			c.MCP[name] = one
		}
	}
	available, servers, workers := findDescriptors(log), mcp.Processes(c.MCP), 0
	if len(c.WasmWorker) > 0 {
		workers = wasm.WorkersMax()
	}
	available = available.withProcesses(servers + workers)
	workers = min(workers, max(1, available.processes/2))
	if len(c.WasmWorker) > 0 {
		s.workers = wasm.New(wasm.Options{Command: c.WasmWorker, Dir: ModulesFolder(c.Node.Data), Max: workers, Logger: log})
		c.Node.Outbound.Sandbox = s.workers
	}
	if s.mcp, err = s.openMCP(&c, available.processPlaces(workers), log); err != nil {
		s.closeWorkers()
		return nil, err
	}
	available.bound(&c.Gateway, &c.Node.Outbound)
	c.Node.OpenFiles, c.Node.Descriptors = available.openFiles(), s.closeIdle
	c.Node.Remote, c.Node.RemoteStats, c.Node.Offers = s.mcp.Tools(), s.mcpStats, s.mcpOffers
	if s.Node, err = node.Open(c.Node, log); err != nil {
		s.mcp.Close()
		s.closeWorkers()
		return nil, err
	}
	s.install(c.Modules)
	s.mcp.Start(s.SetRemote)
	c.Gateway.Keys, c.Gateway.Secret, c.Gateway.External, c.Gateway.Backup = s.Keys, s.Secret(), s.External(), s.Backup
	s.Gateway = gateway.New(s.Node, log, c.Gateway)
	s.accepting.Store(s.Gateway)
	s.links = &link.Orchestrator{Node: s.Node, Keys: keys, Secret: s.Secret(), ApprovalScope: c.Gateway.ApprovalScope, External: s.External(), Backup: s.Backup}
	return s, nil
}

// connect returns the connections of the node to the other members of its cluster.
func (s *Service) connect(files link.Files) func(node.MemberSide) node.Members {
	return func(side node.MemberSide) node.Members {
		s.peers = link.NewPeers(link.PeersConfig{Name: side.Name, Files: files, Node: side.Node, Deliver: side.Deliver, Announced: side.Announced, Logger: s.log})
		return members{s.peers}
	}
}

// members are link.Peers for a node.
type members struct{ *link.Peers }

// SetMembers implements node.Members.
func (m members) SetMembers(all []node.Member) {
	var out []link.Member
	for _, one := range all {
		out = append(out, link.Member(one))
	}
	m.Peers.SetMembers(out)
}

// install keeps the modules of MCP servers. Without its module a server is not available, and says so.
func (s *Service) install(modules map[string][]byte) {
	for sum, module := range modules {
		if s.workers == nil {
			return
		}
		if err := s.workers.Install(sum, module); err != nil {
			s.log.Error("the module of an MCP server cannot be kept", "sha256", sum, "error", err.Error())
		}
	}
}

// closeIdle closes idle connections of clients, and ends idle workers, because the store needs their descriptors.
func (s *Service) closeIdle() {
	if s.workers != nil {
		if n := s.workers.EndIdle(); n > 0 {
			s.log.Warn("no descriptor is left for a file of the store: idle workers of modules were ended", "workers", n)
		}
	}
	g := s.accepting.Load()
	if g == nil {
		return
	}
	if n := gateway.CloseIdle(g); n > 0 {
		s.log.Warn("no descriptor is left for a file of the store: idle connections were closed", "connections", n)
	}
}

// schemeOf returns the beginning of URLs of listeners.
func schemeOf(c gateway.Config) string {
	if c.Certificate != nil {
		return "https://"
	}
	return "http://"
}

// openMCP reads the lists of the MCP servers. Requests to them are subject to the same rules as
// those to tools.
func (s *Service) openMCP(c *Config, places *processes, log *slog.Logger) (*mcp.Servers, error) {
	transport, err := outbound.NewTransport(c.Node.Outbound)
	if err != nil {
		return nil, err
	}
	var module func(string, []string) ([]string, []byte, error)
	if s.workers != nil {
		module = s.workers.Stream
	}
	return mcp.Open(mcp.Options{Servers: c.MCP, Module: module, Dir: MCPFolder(c.Node.Data), Transport: transport, Auth: c.Node.Outbound.Auth,
		Env: c.Node.Outbound.Env, Process: places.take, Logger: log})
}

func (s *Service) mcpStats() (all []command.MCPStats) {
	for _, m := range s.mcp.Stats() {
		all = append(all, command.MCPStats{Name: m.Name, Up: m.Up, Tools: m.Tools, Changed: m.Changed, Restarts: m.Restarts})
	}
	return all
}

// mcpOffers returns the hashes of the changed lists of MCP servers that wait for their acceptance.
func (s *Service) mcpOffers() map[string]string {
	all := map[string]string{}
	for _, m := range s.mcp.Stats() {
		if m.Changed {
			all[m.Name] = m.Offered
		}
	}
	return all
}

// Announce writes the URL of a listener to the data folder, for the error of a process
// that finds the folder in use, and returns it.
func (s *Service) Announce(addr net.Addr) string {
	url := s.scheme + hostOf(addr)
	if err := disk.WriteFile(filepath.Join(s.Dir(), URLFile), []byte(url+"\n")); err != nil {
		s.log.Warn("cannot write the server URL to the data folder", "error", err.Error())
	}
	return url
}

// URL returns the URL of the server that uses a data folder, as Announce has written it.
func URL(dir string) (text string, ok bool) {
	b, err := disk.ReadFile(filepath.Join(dir, URLFile), urlBytesMax)
	text = strings.TrimSpace(string(b))
	at, parseErr := url.Parse(text)
	return text, err == nil && parseErr == nil && at.Host != ""
}

// hostOf returns the host and port of a listener. For one on all addresses they are those
// of loopback, because the listener's own address cannot be dialed everywhere.
func hostOf(addr net.Addr) string {
	if tcp, ok := addr.(*net.TCPAddr); ok && tcp.IP.IsUnspecified() {
		return fmt.Sprintf("127.0.0.1:%d", tcp.Port)
	}
	return addr.String()
}

// ServeOwner serves the socket in the data folder in the background. It passes the
// result to the callback ended, unless the socket cannot be opened.
func (s *Service) ServeOwner(ended func(error)) {
	socket, err := gateway.ListenOwner(s.Dir())
	if err != nil {
		s.log.Warn("cannot open the socket in the data folder: keys can be created only with an API key", "error", err.Error())
		return
	}
	go func() { ended(s.Gateway.ServeOwner(socket)) }()
}

// ServeLink serves the service to other members of its cluster and to ingress processes in the background, to these in a
// cluster after AdmitIngress. It passes the result to the callback ended, unless the address cannot be opened, and returns
// the address.
func (s *Service) ServeLink(a link.Address, ended func(error)) (net.Addr, error) {
	l, err := link.Listen(a)
	if err != nil {
		return nil, err
	}
	s.link = link.NewServer(a, l, s.links, s.peers, s.log)
	if s.peers != nil {
		s.link.Hold()
	}
	go func() { ended(s.link.Serve()) }()
	return l.Addr(), nil
}

// AdmitIngress begins to serve ingress processes. In a cluster the link of a member that starts serves other members before.
func (s *Service) AdmitIngress() {
	if s.link != nil {
		s.link.Admit()
	}
}

// Stop waits until no client waits for an answer, or until ctx ends. Then it stops the
// gateway and the node. A client that has not finished after shutdownTimeout is
// disconnected. Open runs stay in the store.
func (s *Service) Stop(ctx context.Context) error {
	s.Gateway.Drain()
	s.Drain(ctx)
	// Shutdown waits for active requests, so that ready answers are delivered.
	ctx, cancel := context.WithTimeout(context.Background(), shutdownTimeout)
	defer cancel()
	if err := s.Gateway.Shutdown(ctx); err != nil {
		s.log.Warn("clients disconnected", "error", err.Error())
	}
	if s.link != nil {
		if err := s.link.Close(); err != nil {
			s.log.Warn("cannot close the listener for ingress processes", "error", err.Error())
		}
	}
	_ = os.Remove(filepath.Join(s.Dir(), URLFile))
	ctx, cancel = context.WithTimeout(context.Background(), shutdownTimeout)
	defer cancel()
	err := s.Close(ctx)
	s.mcp.Close() // later, so that calls of its tools resume at the next start
	s.closeWorkers()
	return err
}

func (s *Service) closeWorkers() {
	if s.workers != nil {
		s.workers.Close()
	}
}

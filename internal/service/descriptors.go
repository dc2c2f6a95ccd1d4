// SPDX-License-Identifier: Apache-2.0

package service

import (
	"fmt"
	"log/slog"
	"sync"
	"syscall"

	"github.com/troupe-run/troupe/host/gateway"
	"github.com/troupe-run/troupe/host/outbound"
)

// Bounds of descriptors.
const (
	// descriptorsMin is the number of descriptors below which a start warns.
	descriptorsMin = 1024
	// descriptorsKept is the number of descriptors that connections of clients leave to files, models,
	// agents and tools. If the process has fewer than twice as many, connections leave half of them.
	descriptorsKept = 512
	// openFilesMax is the maximum number of open tables of the store.
	openFilesMax = 1000
	// descriptorsEncrypted is the number of descriptors of a connection with TLS.
	descriptorsEncrypted = 3
	// descriptorsOfProcess is the number of descriptors of a process of tools: its streams, and itself.
	descriptorsOfProcess = 4
)

// descriptors divides the descriptors of the process.
type descriptors struct {
	all       int
	processes int // processes of tools that may run at once
}

// withProcesses returns the same descriptors with a part, at most a quarter, for processes of tools: MCP servers, and
// workers for modules of WebAssembly. Processes that run cannot be closed for a file of the store.
func (d descriptors) withProcesses(wanted int) descriptors {
	d.processes = min(wanted, max(1, d.all/4/descriptorsOfProcess))
	return d
}

// others returns the number of descriptors that processes of tools leave.
func (d descriptors) others() int { return d.all - min(d.processes*descriptorsOfProcess, d.all/4) }

// findDescriptors returns the number of descriptors that the process may have, and warns if it is
// small.
func findDescriptors(log *slog.Logger) descriptors {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		log.Warn("cannot read the limit of descriptors", "error", err.Error())
		limit.Cur = descriptorsMin
	}
	d := descriptors{all: int(min(limit.Cur, 1<<30))}
	if d.all < descriptorsMin {
		log.Warn(fmt.Sprintf("the process may have %d descriptors only, %d of them for clients: raise the limit (ulimit -n, LimitNOFILE=) to %d or more", d.all, d.connections(1), descriptorsMin))
	}
	return d
}

// connections returns the maximum number of connections of clients, each with some descriptors.
func (d descriptors) connections(each int) int {
	return min(gateway.ConnectionsMax, max(1, (d.others()-min(descriptorsKept, d.others()/2))/each))
}

// openFiles returns the maximum number of open tables of the store: half of what connections leave.
func (d descriptors) openFiles() int {
	return max(1, min(openFilesMax, (d.others()-d.connections(1))/2))
}

// exchanges returns the maximum number of requests to models, agents and tools at the same time:
// three quarters of what connections and tables leave. A request that is under way cannot be closed
// for a file of the store.
func (d descriptors) exchanges() int {
	return max(1, min(outbound.ExchangesMax, (d.others()-d.connections(1)-d.openFiles())*3/4))
}

// bound bounds the connections of a gateway, and the requests to models, agents and tools.
func (d descriptors) bound(c *gateway.Config, out *outbound.Config) {
	each := 1
	if c.Certificate != nil {
		each = descriptorsEncrypted
	}
	if most := d.connections(each); c.Connections == 0 || c.Connections > most {
		c.Connections = most
	}
	if most := d.exchanges(); out.ExchangesMax == 0 || out.ExchangesMax > most {
		out.ExchangesMax = most
	}
}

// processes are the places of the processes of MCP servers.
type processes struct{ free chan struct{} }

// processPlaces returns the places that workers of modules leave of those of all processes of tools.
func (d descriptors) processPlaces(workers int) *processes {
	return &processes{make(chan struct{}, max(1, d.processes-workers))}
}

// take takes a place, or refuses a process for which no descriptors are left.
func (p *processes) take() (release func(), err error) {
	select {
	case p.free <- struct{}{}:
		return sync.OnceFunc(func() { <-p.free }), nil
	default:
		return nil, fmt.Errorf("not started: the descriptors of the server suffice for %d processes of MCP servers; raise the limit (ulimit -n, LimitNOFILE=) and restart", cap(p.free))
	}
}

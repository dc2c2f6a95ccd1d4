// SPDX-License-Identifier: Apache-2.0

package service

import (
	"strings"
	"testing"

	"github.com/troupe-run/troupe/host/gateway"
	"github.com/troupe-run/troupe/host/outbound"
)

// Connections are at most 8,192 and leave 512 descriptors; a connection with TLS takes three. Requests to
// models, agents and tools leave some of these to the store.
func TestConnectionsLeaveDescriptors(t *testing.T) {
	for _, c := range []struct{ all, plain, encrypted, files, exchanges int }{
		{200, 100, 33, 50, 37}, {1023, 512, 170, 255, 192}, {1024, 512, 170, 256, 192}, {4096, 3584, 1194, 256, 192},
		{8704, 8192, 2730, 256, 192}, {20_000, 8192, 6496, 1000, 1024}, {1 << 20, 8192, 8192, 1000, 1024}, {2, 1, 1, 1, 1},
	} {
		d := descriptors{all: c.all}
		if plain, encrypted, files, exchanges := d.connections(1), d.connections(3), d.openFiles(), d.exchanges(); plain != c.plain || encrypted != c.encrypted || files != c.files || exchanges != c.exchanges {
			t.Errorf("%d descriptors: %d and %d connections, %d files, %d requests; want %+v", c.all, plain, encrypted, files, exchanges, c)
		}
	}
	configured := gateway.Config{Connections: 9000, Certificate: new(gateway.Certificate)}
	out := outbound.Config{}
	if (descriptors{all: 1024}).bound(&configured, &out); configured.Connections != 170 || out.ExchangesMax != 192 {
		t.Errorf("configured: %d connections, %d requests", configured.Connections, out.ExchangesMax)
	}
	configured.Connections, out.ExchangesMax = 5, 6
	if (descriptors{all: 1024}).bound(&configured, &out); configured.Connections != 5 || out.ExchangesMax != 6 {
		t.Errorf("fewer configured: %d connections, %d requests", configured.Connections, out.ExchangesMax)
	}
}

// Processes of tools get at most a quarter of the descriptors, which connections, tables and requests leave to them.
func TestProcessesHaveTheirDescriptors(t *testing.T) {
	for _, c := range []struct{ all, wanted, processes, plain, files, exchanges int }{
		{1024, 0, 0, 512, 256, 192}, {1024, 8, 8, 496, 248, 186}, {1024, 70, 64, 384, 192, 144}, {200, 20, 12, 76, 38, 28}, {1 << 20, 70, 70, 8192, 1000, 1024}, {8, 5, 1, 3, 1, 1},
	} {
		d := descriptors{all: c.all}.withProcesses(c.wanted)
		if d.processes != c.processes || d.connections(1) != c.plain || d.openFiles() != c.files || d.exchanges() != c.exchanges {
			t.Errorf("%d descriptors: %d processes, %d connections, %d files, %d requests; want %+v", c.all, d.processes, d.connections(1), d.openFiles(), d.exchanges(), c)
		}
		if used := d.connections(1) + d.openFiles() + d.exchanges() + d.processes*descriptorsOfProcess; used > c.all && c.all > 8 {
			t.Errorf("%d descriptors: %d are given", c.all, used)
		}
	}
	places := descriptors{all: 200}.withProcesses(20).processPlaces(4)
	var releases []func()
	for range 8 {
		release, err := places.take()
		if err != nil {
			t.Fatal(err)
		}
		releases = append(releases, release)
	}
	if _, err := places.take(); err == nil || !strings.Contains(err.Error(), "8 processes of MCP servers; raise the limit (ulimit -n, LimitNOFILE=)") {
		t.Errorf("the ninth: %v", err)
	}
	releases[0]()
	releases[0]() // once
	if _, err := places.take(); err != nil {
		t.Error(err)
	}
	if _, err := places.take(); err == nil {
		t.Error("a place was released twice")
	}
}

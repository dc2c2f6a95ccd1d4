// SPDX-License-Identifier: Apache-2.0

package service

import (
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
		d := descriptors{c.all}
		if plain, encrypted, files, exchanges := d.connections(1), d.connections(3), d.openFiles(), d.exchanges(); plain != c.plain || encrypted != c.encrypted || files != c.files || exchanges != c.exchanges {
			t.Errorf("%d descriptors: %d and %d connections, %d files, %d requests; want %+v", c.all, plain, encrypted, files, exchanges, c)
		}
	}
	configured := gateway.Config{Connections: 9000, Certificate: new(gateway.Certificate)}
	out := outbound.Config{}
	if (descriptors{1024}).bound(&configured, &out); configured.Connections != 170 || out.ExchangesMax != 192 {
		t.Errorf("configured: %d connections, %d requests", configured.Connections, out.ExchangesMax)
	}
	configured.Connections, out.ExchangesMax = 5, 6
	if (descriptors{1024}).bound(&configured, &out); configured.Connections != 5 || out.ExchangesMax != 6 {
		t.Errorf("fewer configured: %d connections, %d requests", configured.Connections, out.ExchangesMax)
	}
}

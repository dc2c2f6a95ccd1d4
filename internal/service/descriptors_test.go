// SPDX-License-Identifier: Apache-2.0

package service

import (
	"testing"

	"github.com/troupe-run/troupe/host/gateway"
)

// Connections are at most 8,192 and leave 512 descriptors; a connection with TLS takes three.
func TestConnectionsLeaveDescriptors(t *testing.T) {
	for _, c := range []struct{ all, plain, encrypted, files int }{
		{200, 100, 33, 50}, {1023, 512, 170, 255}, {1024, 512, 170, 256}, {4096, 3584, 1194, 256},
		{8704, 8192, 2730, 256}, {20_000, 8192, 6496, 1000}, {1 << 20, 8192, 8192, 1000}, {2, 1, 1, 1},
	} {
		d := descriptors{c.all}
		if plain, encrypted, files := d.connections(1), d.connections(3), d.openFiles(); plain != c.plain || encrypted != c.encrypted || files != c.files {
			t.Errorf("%d descriptors: %d and %d connections, %d files; want %+v", c.all, plain, encrypted, files, c)
		}
	}
	configured := gateway.Config{Connections: 9000, Certificate: new(gateway.Certificate)}
	if (descriptors{1024}).bound(&configured); configured.Connections != 170 {
		t.Errorf("configured: %d connections", configured.Connections)
	}
	configured.Connections = 5
	if (descriptors{1024}).bound(&configured); configured.Connections != 5 {
		t.Errorf("fewer configured: %d connections", configured.Connections)
	}
}

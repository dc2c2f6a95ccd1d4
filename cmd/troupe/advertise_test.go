// SPDX-License-Identifier: Apache-2.0

package main

import (
	"path/filepath"
	"strings"
	"testing"
)

// The address that other orchestrators get is one that they can connect to.
func TestAdvertisedAddress(t *testing.T) {
	dir := t.TempDir()
	for _, c := range []struct {
		listen, advertise, want, refused string
	}{
		{"", "", filepath.Join(dir, "LINK"), ""},
		{"./other", "", "/other", ""},
		{"", "a.example:1", "", "belongs to --listen-orchestrator with host:port"},
	} {
		s := ServeCmd{Data: dir, roleFlags: roleFlags{Role: roleOrchestrator, ListenOrchestrator: c.listen, Advertise: c.advertise}}
		got, err := s.advertised()
		if c.refused == "" && (err != nil || !filepath.IsAbs(got) || !strings.HasSuffix(got, c.want)) {
			t.Errorf("%+v: got %q, %v", c, got, err)
		}
		if c.refused != "" && (err == nil || !strings.Contains(err.Error(), c.refused)) {
			t.Errorf("%+v: got %q, %v", c, got, err)
		}
	}
	for _, c := range []struct{ listen, advertise, want, refused string }{
		{"10.0.0.1:8284", "", "10.0.0.1:8284", ""},
		{"0.0.0.0:8284", "o1.internal:8284", "o1.internal:8284", ""},
		{"0.0.0.0:8284", "", "", "give --advertise with a name or an address of this machine, such as orchestrator-1.internal:8284"},
		{"[::]:9", "", "", "such as orchestrator-1.internal:9"},
		{":8284", "", "", "give --advertise"},
		{"127.0.0.1:0", "", "", "give --advertise"},
		{"0.0.0.0:8284", "o1.internal", "", "want host:port"},
		{"0.0.0.0:8284", "o1.internal:0", "", "want host:port"},
	} {
		got, err := advertisedOf(c.listen, c.advertise)
		if got != c.want || (err != nil) != (c.refused != "") || err != nil && !strings.Contains(err.Error(), c.refused) {
			t.Errorf("%+v: got %q, %v", c, got, err)
		}
	}
}

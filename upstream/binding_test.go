// SPDX-License-Identifier: Apache-2.0

package upstream_test

import (
	"strings"
	"testing"

	"github.com/troupe-run/troupe/upstream"
)

func TestBindings(t *testing.T) {
	const name = "TROUPE_AUTH_A"
	for _, c := range []struct {
		bound, url string
		permitted  bool
	}{
		{"", "http://h", false},
		{"h", "http://h", true},
		{"h", "https://H:9000/a/b", true},
		{"h", "http://h.example", false},
		{"h", "http://x.h", false},
		{"h", "http://x/h", false},
		{"h:9000", "http://h:9000/a", true},
		{"h:9000", "http://h:9001", false},
		{"h:9000", "http://h", false},
		{"h:80", "http://h", true},
		{"h:80", "https://h", false},
		{"https://h", "https://h:443/a", true},
		{"https://h", "http://h", false},
		{"https://h", "https://h:8443", false},
		{"https://h:8443", "http://h:8443", false},
		{"http://h/a", "http://h/a", true},
		{"http://h/a/", "http://h/a", true},
		{"http://h/a", "http://h/a/b", true},
		{"http://h/a", "http://h/ab", false},
		{"http://h/a", "http://h/", false},
		{"http://h/a", "http://h/a/../b", false},
		{"http://h/a", "http://h/a/%2e%2e/b", false},
		{"http://h/a", "http://h/a/..;/b", false},
		{"http://h/a", "http://h/a/..;x=1/b", false},
		{"http://h/a", "http://h/a/.;/..;", false},
		{"http://h/a", "http://h/a/b;v=1/c", true},
		{"http://h/a", "http://h/a/%252e%252e/b", false},
		{"http://h/a", "http://h/a%2Fb", false},
		{"127.0.0.1:9001, [::1]:9001", "http://[::1]:9001", true},
		{"127.0.0.1", "http://localhost", false},
		{"x, h", "http://h", true},
	} {
		b := upstream.Bindings{name: c.bound}
		err := b.Permit(upstream.Target{URL: c.url, AuthEnv: name})
		if (err == nil) != c.permitted {
			t.Errorf("bound to %q, sent to %s: got %v, want permitted: %v", c.bound, c.url, err, c.permitted)
		}
		if c.bound != "" && b.Check() != nil {
			t.Errorf("%q: %v", c.bound, b.Check())
		}
		if other := b.Permit(upstream.Target{URL: c.url, AuthEnv: "TROUPE_AUTH_B"}); other == nil {
			t.Errorf("%s: another secret is permitted", c.url)
		}
		if none := b.Permit(upstream.Target{URL: c.url}); none != nil {
			t.Errorf("%s without a secret: %v", c.url, none)
		}
	}
	err := upstream.Bindings{}.Permit(upstream.Target{URL: "http://127.0.0.1:9001/x", AuthEnv: name})
	if err == nil || !strings.Contains(err.Error(), "--auth TROUPE_AUTH_A=127.0.0.1:9001") {
		t.Errorf("%v", err)
	}
	for name, address := range map[string]string{"TROUPE_AUTH_A": "", "TROUPE_AUTH_B": "h/a", "TROUPE_AUTH_C": "ftp://h", "TROUPE_AUTH_D": "http://h/../a", "TROUPE_AUTH_E": "a,,b", "HOME": "h"} {
		if err := (upstream.Bindings{name: address}).Check(); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s = %q: %v", name, address, err)
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"
)

// Bindings are the addresses to which the value of an environment variable
// TROUPE_AUTH_… may be sent, by the name of the variable. A registration chooses the
// address and the variable; only the configuration of the server can connect the two.
//
// The addresses of a variable are separated by commas. Each is a host, a host and port,
// or the beginning of a URL: scheme, host, port and whole segments of the path.
type Bindings map[string]string

// Check returns an error that describes the first invalid binding.
func (b Bindings) Check() error {
	for _, name := range slices.Sorted(maps.Keys(b)) {
		addresses := b[name]
		if err := (Target{URL: "http://host", AuthEnv: name}).Check(); err != nil {
			return fmt.Errorf("want the name of a variable like %sHELPER, got %.80q", AuthEnvPrefix, name)
		}
		for address := range strings.SplitSeq(addresses, ",") {
			if _, err := parseBinding(address); err != nil {
				return fmt.Errorf("%s: %.200q: want a host, host:port or the beginning of a URL: %w", name, address, err)
			}
		}
	}
	return nil
}

// Permit returns a nil error if the target needs no secret or its secret is bound to
// its URL. The error describes the missing binding.
func (b Bindings) Permit(t Target) error {
	if t.AuthEnv == "" {
		return nil
	}
	for address := range strings.SplitSeq(b[t.AuthEnv], ",") {
		if bound, err := parseBinding(address); err == nil && bound.covers(t.URL) {
			return nil
		}
	}
	host := t.URL
	if u, err := url.Parse(t.URL); err == nil {
		host = u.Host
	}
	return fmt.Errorf("the server may not send the secret %s to %s: serve with --auth %[1]s=%[2]s, or add %[1]s = %[2]q to the table [auth] of its configuration", t.AuthEnv, host)
}

// binding is one parsed address. An empty scheme or port matches any.
type binding struct{ scheme, host, port, path string }

func parseBinding(address string) (binding, error) {
	address = strings.TrimSpace(address)
	prefix := strings.Contains(address, "://")
	text := address
	if !prefix {
		text = "http://" + address
	}
	if err := CheckURL(text); err != nil {
		return binding{}, err
	}
	b, ok := splitTarget(text)
	switch {
	case !ok:
		return binding{}, fmt.Errorf("path with . or .. or an escape")
	case !prefix && strings.Contains(address, "/"):
		return binding{}, fmt.Errorf("path without http:// or https://")
	case !prefix:
		b.scheme = ""
		if u, err := url.Parse(text); err != nil || u.Port() == "" {
			b.port = ""
		}
	}
	return b, nil
}

// covers reports whether the binding permits a URL.
func (b binding) covers(text string) bool {
	to, ok := splitTarget(text)
	return ok && b.host == to.host && (b.scheme == "" || b.scheme == to.scheme) && (b.port == "" || b.port == to.port) &&
		(to.path == b.path || strings.HasPrefix(to.path, b.path+"/"))
}

// splitTarget returns the parts of a URL, with the default port of its scheme. A path
// that a server may normalize is not ok.
func splitTarget(text string) (b binding, ok bool) {
	u, err := url.Parse(text)
	if err != nil || strings.Contains(u.EscapedPath(), "%") {
		return binding{}, false
	}
	for segment := range strings.SplitSeq(u.Path, "/") {
		// Some servers normalize a segment without the parameters that follow a ';'.
		if segment, _, _ = strings.Cut(segment, ";"); segment == "." || segment == ".." {
			return binding{}, false
		}
	}
	b = binding{u.Scheme, strings.ToLower(u.Hostname()), u.Port(), strings.TrimRight(u.Path, "/")}
	if b.port == "" {
		b.port = map[string]string{"http": "80", "https": "443"}[u.Scheme]
	}
	return b, true
}

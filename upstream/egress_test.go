// SPDX-License-Identifier: Apache-2.0

package upstream_test

import (
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/troupe-run/troupe/upstream"
)

func TestParseHost(t *testing.T) {
	for _, c := range []struct{ host, name, addr, want string }{
		{"api.example.com", "api.example.com", "", ""},
		{"API.Example.COM", "api.example.com", "", ""},
		{"my_service", "my_service", "", ""},
		{"xn--bcher-kva.example", "xn--bcher-kva.example", "", ""},
		{"1.2.3.4.example", "1.2.3.4.example", "", ""},
		{"0xdeadbeef.example", "0xdeadbeef.example", "", ""},
		{"a.0xg", "a.0xg", "", ""},
		{"192.0.2.1", "", "192.0.2.1", ""},
		{"2001:db8::1", "", "2001:db8::1", ""},
		{"[2001:db8::1]", "", "2001:db8::1", ""},
		{"2001:0DB8:0:0::0001", "", "2001:db8::1", ""},

		{"", "", "", "1 to 253"},
		{strings.Repeat("a.", 127), "", "", "1 to 253"},
		{"example.com.", "", "", "ends in a dot"},
		{"127.0.0.1.", "", "", "ends in a dot"},
		{"2130706433", "", "", "ends in a number"},
		{"0x7f000001", "", "", "ends in a number"},
		{"0X7F.1", "", "", "ends in a number"},
		{"127.1", "", "", "ends in a number"},
		{"127.0.1", "", "", "ends in a number"},
		{"0177.0.0.1", "", "", "ends in a number"},
		{"127.0.0.01", "", "", "ends in a number"},
		{"127.0.0.0x1", "", "", "ends in a number"},
		{"256.256.256.256", "", "", "ends in a number"},
		{"1.2.3.4.5", "", "", "ends in a number"},
		{"a.0x", "", "", "ends in a number"},
		{"::ffff:127.0.0.1", "", "", "want 127.0.0.1"},
		{"::ffff:7f00:1", "", "", "want 127.0.0.1"},
		{"fe80::1%eth0", "", "", "zone"},
		{"[fe80::1%eth0]", "", "", "zone"},
		{"[127.0.0.1]", "", "", "brackets"},
		{"[localhost]", "", "", "brackets"},
		{"[::1", "", "", "letters, digits"},
		{"１２７.0.0.1", "", "", "letters, digits"},
		{"127。0。0。1", "", "", "letters, digits"},
		{"ⓛocalhost", "", "", "letters, digits"},
		{"bücher.example", "", "", "xn--"},
		{"local%68ost", "", "", "letters, digits"},
		{"user@localhost", "", "", "letters, digits"},
		{"localhost:80", "", "", "letters, digits"},
		{"a..b", "", "", "between dots"},
		{".a", "", "", "between dots"},
		{"-a.example", "", "", "between dots"},
		{"a-.example", "", "", "between dots"},
		{strings.Repeat("a", 64) + ".example", "", "", "between dots"},
		{"a\x00.example", "", "", "letters, digits"},
		{"a b", "", "", "letters, digits"},
	} {
		name, addr, err := upstream.ParseHost(c.host)
		wantAddr := netip.Addr{}
		if c.addr != "" {
			wantAddr = netip.MustParseAddr(c.addr)
		}
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) || name != c.name || addr != wantAddr {
			t.Errorf("%q: got %q %v, %v, want %q %q %q", c.host, name, addr, err, c.name, c.addr, c.want)
		}
	}
}

// nonPublicAddrs holds addresses of each non-public range. For IPv4 it includes the
// first and the last address of each range.
var nonPublicAddrs = strings.Fields(`
	0.0.0.0 0.255.255.255 10.0.0.0 10.255.255.255 100.64.0.0 100.100.100.200 100.127.255.255
	127.0.0.0 127.0.0.1 127.255.255.255 168.63.129.16 169.254.0.0 169.254.169.254 169.254.170.2 169.254.255.255
	172.16.0.0 172.31.255.255 192.0.0.0 192.0.0.192 192.0.0.255 192.0.2.0 192.0.2.255 192.88.99.0 192.88.99.255
	192.168.0.0 192.168.255.255 198.18.0.0 198.19.255.255 198.51.100.0 198.51.100.255 203.0.113.0 203.0.113.255
	224.0.0.0 239.255.255.255 240.0.0.0 255.255.255.254 255.255.255.255
	:: ::1 ::2 ::127.0.0.1 ::ffff:127.0.0.1 ::ffff:169.254.169.254 ::ffff:0:127.0.0.1
	64:ff9b::7f00:1 64:ff9b::808:808 64:ff9b:1::1 100::1 1fff:ffff::1
	2001::1 2001:0:7f00:1:: 2001:2::1 2001:10::1 2001:20::1 2001:1ff:ffff::1 2001:db8::1 2001:db8:ffff::1
	2002:7f00:1::1 2002:ffff::1 3fff::1 3fff:fff:ffff::1 4000::1 5f00::1
	fc00::1 fd00:ec2::254 fd20:ce::254 fdff::1 fe00::1 fe80::1 febf::1 fec0::1 ff00::1 ff02::1 ffff::1`)

var publicAddrs = strings.Fields(`
	1.0.0.0 1.1.1.1 8.8.8.8 9.255.255.255 11.0.0.0 100.63.255.255 100.128.0.0 126.255.255.255 128.0.0.0
	168.63.129.15 168.63.129.17 169.253.255.255 169.255.0.0 172.15.255.255 172.32.0.0 191.255.255.255 192.0.1.0
	192.0.3.0 192.167.255.255 192.169.0.0 198.17.255.255 198.20.0.0 203.0.112.255 203.0.114.0 223.255.255.255
	2001:200::1 2001:4860:4860::8888 2003::1 2606:4700::1111 2a00::1 3ffe:ffff::1 ::ffff:8.8.8.8`)

// The error names the flag that allows a service of one's own, and none for other ranges.
func TestEgressNamesItsRemedy(t *testing.T) {
	var none upstream.Egress
	for url, want := range map[string]string{
		"http://127.0.0.1:9/{id}":  "127.0.0.1: its address is loopback, which is not allowed; to allow it: troupe serve --allow 127.0.0.1",
		"http://localhost/x":       "localhost: its address is loopback, which is not allowed; to allow it: troupe serve --allow localhost",
		"http://[::1]:9":           "::1: its address is loopback, which is not allowed; to allow it: troupe serve --allow ::1",
		"http://10.1.2.3":          "10.1.2.3: its address is private, which is not allowed; to allow it: troupe serve --allow 10.1.2.3",
		"http://169.254.169.254/x": "169.254.169.254: its address is link-local, which is not allowed",
		"http://pay.example":       "", "http://8.8.8.8": "", "http://%zz": "", "": "",
	} {
		got := ""
		if err := none.CheckURL(url); err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("%s: %s, want %s", url, got, want)
		}
		if _, host, ok := strings.Cut(want, "--allow "); ok {
			allowed, err := upstream.NewEgress([]string{host})
			if err != nil || allowed.CheckURL(url) != nil {
				t.Errorf("%s with --allow %s: %v, %v", url, host, err, allowed.CheckURL(url))
			}
		}
	}
}

func TestEgressAllowsOnlyPublicAddresses(t *testing.T) {
	var none upstream.Egress
	for _, text := range nonPublicAddrs {
		if err := none.Check("h", []netip.Addr{netip.MustParseAddr(text)}); err == nil || !strings.Contains(err.Error(), "which is not allowed") || strings.Contains(err.Error(), text+" ") {
			t.Errorf("%s: got error %v", text, err)
		}
	}
	public := netip.MustParseAddr("8.8.8.8")
	for _, text := range publicAddrs {
		if err := none.Check("h", []netip.Addr{public, netip.MustParseAddr(text)}); err != nil {
			t.Errorf("%s: got error %v", text, err)
		}
	}
	for _, addrs := range [][]netip.Addr{
		nil, {{}}, {public, netip.MustParseAddr("10.0.0.1")}, {netip.MustParseAddr("10.0.0.1"), public}, {netip.MustParseAddr("2a00::1%eth0")},
	} {
		if none.Check("h", addrs) == nil {
			t.Errorf("%v is allowed", addrs)
		}
	}
}

func TestEgressAllowList(t *testing.T) {
	e, err := upstream.NewEgress(append(upstream.AllowLoopback(), "10.1.0.0/16", "192.168.1.7", "Agents.Internal", "169.254.7.0/24", "fd00::/8"))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		host, addr string
		allowed    bool
	}{
		{"h", "127.0.0.1", true},
		{"h", "::1", true},
		{"h", "::ffff:127.9.9.9", true},
		{"h", "10.1.255.255", true},
		{"h", "10.2.0.0", false},
		{"h", "192.168.1.7", true},
		{"h", "192.168.1.8", false},
		{"h", "169.254.7.1", true},
		{"h", "fd12::1", true},
		{"agents.internal", "10.2.0.0", true},
		{"AGENTS.internal", "100.64.0.1", true},
		{"agents.internal", "fc00::1", true},
		{"agents.internal", "169.254.169.254", false},
		{"agents.internal", "0.0.0.0", false},
		{"agents.internal", "64:ff9b::a01:1", false},
		{"x.agents.internal", "10.2.0.0", false},
	} {
		if err := e.Check(c.host, []netip.Addr{netip.MustParseAddr(c.addr)}); (err == nil) != c.allowed {
			t.Errorf("%s at %s: got error %v", c.host, c.addr, err)
		}
	}
	for _, c := range []struct{ allow, want string }{
		{"10.0.0.1/8", "want 10.0.0.0/8"},
		{"::ffff:10.0.0.0/104", "beyond the prefix length"},
		{"", "want a prefix"},
		{"*.internal", "want a prefix"},
		{"127.1", "ends in a number"},
		{"10.0.0.0/33", "want a prefix"},
	} {
		if _, err := upstream.NewEgress([]string{c.allow}); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: got error %v, want %q", c.allow, err, c.want)
		}
	}
	if _, err := upstream.NewEgress(make([]string, upstream.AllowMax+1)); err == nil {
		t.Error("more than AllowMax entries accepted")
	}
}

// TestNoSpellingReachesLoopback draws spellings of loopback addresses. ParseHost or
// Check MUST reject each of them.
func TestNoSpellingReachesLoopback(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.Uint32Range(0x7f000000, 0x7fffffff).Draw(t, "address")
		form := rapid.SampledFrom([]string{"%[1]d", "%#[1]x", "0%[1]o", "%[2]d.%[3]d", "%#[2]x.%#[3]x", "0%[2]o.%[3]d", "%[2]d.%[4]d.%[5]d",
			"%[2]d.%[4]d.%[6]d.%[7]d", "%[2]d.%[4]d.%[6]d.%[7]d.", "[::ffff:%[2]d.%[4]d.%[6]d.%[7]d]", "::%[2]x%02[4]x:%[5]x", "64:ff9b::%[2]x%02[4]x:%[5]x"}).Draw(t, "form")
		host := fmt.Sprintf(form+"%.0[8]s", n, n>>24, n&0xffffff, n>>16&0xff, n&0xffff, n>>8&0xff, n&0xff, "")
		name, addr, err := upstream.ParseHost(host)
		if err != nil {
			return
		}
		if name != "" {
			t.Fatalf("%s is accepted as a name", host)
		}
		if err := (upstream.Egress{}).Check(host, []netip.Addr{addr}); err == nil {
			t.Fatalf("%s is allowed", host)
		}
	})
}

// parsesAsInetAton reports whether the C library parses host as an address: one to
// four numbers, decimal, octal or hexadecimal.
func parsesAsInetAton(host string) bool {
	parts := strings.Split(strings.TrimSuffix(host, "."), ".")
	if len(parts) > 4 {
		return false
	}
	for _, p := range parts {
		if _, err := strconv.ParseUint(p, 0, 64); err != nil || strings.ContainsAny(p, "oO_") || strings.HasPrefix(p, "0b") || strings.HasPrefix(p, "0B") {
			return false // syntax of Go only
		}
	}
	return true
}

func FuzzURL(f *testing.F) {
	for _, text := range append([]string{"https://api.example.com/v1", "http://[::1]:80/", "http://0x7f.1", "http://a@b", "http://%31", "http://h:0", "http://１"}, nonPublicAddrs...) {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if upstream.CheckURL(text) != nil {
			text = "http://" + text
		}
		if upstream.CheckURL(text) != nil {
			return
		}
		u, err := url.Parse(text)
		if err != nil {
			t.Fatalf("%q is accepted, but url.Parse fails: %v", text, err)
		}
		name, addr, err := upstream.ParseHost(u.Hostname())
		switch {
		case err != nil || (name == "") != addr.IsValid():
			t.Fatalf("%q is accepted, but its host %q is not: %q %v %v", text, u.Hostname(), name, addr, err)
		case name != "" && (parsesAsInetAton(name) || net.ParseIP(name) != nil):
			t.Fatalf("%q: the name %q is an address for other parsers", text, name)
		case name != "" && strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789-_.") != "":
			t.Fatalf("%q: invalid name %q", text, name)
		case addr.IsValid() && net.ParseIP(u.Hostname()) == nil:
			t.Fatalf("%q: net.ParseIP rejects the address %q", text, u.Hostname())
		}
	})
}

func FuzzTarget(f *testing.F) {
	f.Add([]byte(`{"url":"https://h/a","auth_env":"TROUPE_AUTH_A","concurrency":3}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		target, err := upstream.DecodeTarget(b)
		if err != nil {
			return
		}
		if again, err := upstream.DecodeTarget(target.Encode()); err != nil || again != target {
			t.Fatalf("%s decodes to %+v, then to %+v, %v", b, target, again, err)
		}
	})
}

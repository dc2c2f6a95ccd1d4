// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/troupe-run/troupe/internal/mutant"
)

// Egress says which addresses may be reached from here: public ones, and those
// that were allowed. The zero value allows nothing else.
//
//  1. Host takes each host in one spelling only, so that nobody reads another in it.
//  2. What Check passes is public, or within what was allowed, whatever it is called.
//
// A world asks Host, resolves a name once, asks Check, and connects to one of
// the very addresses that it asked about.
type Egress struct {
	prefixes []netip.Prefix
	names    []string
}

// AllowMax is how many prefixes and names may be allowed.
const AllowMax = 256

// AllowLoopback is what to allow where this machine is its own upstream.
func AllowLoopback() []string { return []string{"127.0.0.0/8", "::1"} }

// NewEgress also allows what is listed: prefixes (10.1.0.0/16), addresses, and
// names (agents.internal). What a name stands for may then be loopback or
// private; whatever is neither, link-local above all, takes a prefix.
func NewEgress(allow []string) (Egress, error) {
	var e Egress
	if len(allow) > AllowMax {
		return Egress{}, fmt.Errorf("allow: %d entries are over %d", len(allow), AllowMax)
	}
	for _, text := range allow {
		if p, err := netip.ParsePrefix(text); err == nil {
			if p != p.Masked() || p.Addr().Is4In6() {
				return Egress{}, fmt.Errorf("allow: %q has bits beyond its length: write %s", text, p.Masked())
			}
			e.prefixes = append(e.prefixes, p)
			continue
		}
		name, addr, err := ParseHost(text)
		switch {
		case err != nil:
			return Egress{}, fmt.Errorf("allow: %.80q: %w; want a prefix like 10.0.0.0/8, an address or a name", text, err)
		case addr.IsValid():
			e.prefixes = append(e.prefixes, netip.PrefixFrom(addr, addr.BitLen()))
		default:
			e.names = append(e.names, name)
		}
	}
	return e, nil
}

// ParseHost reads the host of an endpoint: an address as addresses are written,
// or a name in ASCII, which it returns in small letters. It refuses every other
// spelling of an address that some reader knows.
func ParseHost(host string) (name string, addr netip.Addr, err error) {
	if inner, ok := strings.CutPrefix(host, "["); ok && strings.HasSuffix(inner, "]") {
		host = strings.TrimSuffix(inner, "]")
		if !strings.Contains(host, ":") {
			return "", netip.Addr{}, errors.New("brackets are for IPv6 addresses")
		}
	}
	if addr, err := netip.ParseAddr(host); err == nil {
		switch {
		case addr.Zone() != "":
			return "", netip.Addr{}, errors.New("an address with a zone means something else on each machine")
		case addr.Is4In6():
			return "", netip.Addr{}, fmt.Errorf("write it as %s", addr.Unmap())
		}
		return "", addr, nil
	}
	if err := checkHostName(host); err != nil {
		return "", netip.Addr{}, err
	}
	return strings.ToLower(host), netip.Addr{}, nil
}

const (
	hostBytesMax  = 253
	labelBytesMax = 63
	digitBytes    = "0123456789"
	letterBytes   = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
)

// checkHostName says why a text is no name of a host.
func checkHostName(host string) error {
	if host == "" || len(host) > hostBytesMax {
		return fmt.Errorf("want a host of 1 to %d bytes", hostBytesMax)
	}
	if strings.HasSuffix(host, ".") {
		return errors.New("it ends in a dot")
	}
	if strings.Trim(host, digitBytes+letterBytes+"-_.") != "" {
		return errors.New("a host has letters, digits, '-', '_' and '.' only; write others as xn--")
	}
	for label := range strings.SplitSeq(host, ".") {
		if label == "" || len(label) > labelBytesMax || label[0] == '-' || label[len(label)-1] == '-' {
			return fmt.Errorf("between dots want 1 to %d letters and digits", labelBytesMax)
		}
	}
	// Some readers take a last label that is a number for an address in decimal,
	// octal, hexadecimal, or with parts left out.
	last := strings.ToLower(host[strings.LastIndexByte(host, '.')+1:])
	hex, isHex := strings.CutPrefix(last, "0x")
	if strings.Trim(last, digitBytes) == "" || isHex && strings.Trim(hex, digitBytes+"abcdef") == "" {
		return errors.New("it ends in a number, and is no address: want four numbers from 0 to 255, as 192.0.2.1")
	}
	return nil
}

// nonPublic are the addresses that are not public, the narrower before the wider.
var nonPublic = []struct {
	prefix netip.Prefix
	what   string
	inner  bool // some have services of their own there: a name that is allowed may stand for it
}{
	{netip.MustParsePrefix("0.0.0.0/8"), "this host", false},
	{netip.MustParsePrefix("10.0.0.0/8"), "private", true},
	{netip.MustParsePrefix("100.64.0.0/10"), "shared behind a carrier", true},
	{netip.MustParsePrefix("127.0.0.0/8"), "loopback", true},
	{netip.MustParsePrefix("168.63.129.16/32"), "a cloud's own", false},
	{netip.MustParsePrefix("169.254.0.0/16"), "link-local", false},
	{netip.MustParsePrefix("172.16.0.0/12"), "private", true},
	{netip.MustParsePrefix("192.0.0.0/24"), "reserved", false},
	{netip.MustParsePrefix("192.0.2.0/24"), "for documentation", false},
	{netip.MustParsePrefix("192.88.99.0/24"), "a 6to4 relay", false},
	{netip.MustParsePrefix("192.168.0.0/16"), "private", true},
	{netip.MustParsePrefix("198.18.0.0/15"), "for benchmarks", false},
	{netip.MustParsePrefix("198.51.100.0/24"), "for documentation", false},
	{netip.MustParsePrefix("203.0.113.0/24"), "for documentation", false},
	{netip.MustParsePrefix("224.0.0.0/4"), "multicast", false},
	{netip.MustParsePrefix("255.255.255.255/32"), "broadcast", false},
	{netip.MustParsePrefix("240.0.0.0/4"), "reserved", false},

	{netip.MustParsePrefix("::/128"), "this host", false},
	{netip.MustParsePrefix("::1/128"), "loopback", true},
	{netip.MustParsePrefix("64:ff9b::/96"), "IPv4 behind NAT64", false},
	{netip.MustParsePrefix("64:ff9b:1::/48"), "IPv4 behind NAT64", false},
	{netip.MustParsePrefix("2001:db8::/32"), "for documentation", false},
	{netip.MustParsePrefix("2001::/32"), "Teredo", false},
	{netip.MustParsePrefix("2001::/23"), "reserved", false},
	{netip.MustParsePrefix("2002::/16"), "6to4", false},
	{netip.MustParsePrefix("3fff::/20"), "for documentation", false},
	{netip.MustParsePrefix("fc00::/7"), "private", true},
	{netip.MustParsePrefix("fe80::/10"), "link-local", false},
	{netip.MustParsePrefix("ff00::/8"), "multicast", false},
}

// globalUnicast is where IPv6 addresses of the world are given out from.
var globalUnicast = netip.MustParsePrefix("2000::/3")

// Check says why the addresses of a host may not be reached. One that may not
// is enough: a name that stands for both has been made to deceive.
func (e Egress) Check(host string, addrs []netip.Addr) error {
	if len(addrs) == 0 {
		return fmt.Errorf("%.253s has no address", host)
	}
	named := slices.Contains(e.names, strings.ToLower(host))
	for _, a := range addrs {
		if what := e.forbiddenRange(a.Unmap(), named); what != "" && !mutant.On("egress-unchecked-after-dns") {
			return fmt.Errorf("%.253s: its address is %s, and that is not allowed here", host, what)
		}
	}
	return nil
}

// forbiddenRange is what an address is that may not be reached, or "".
func (e Egress) forbiddenRange(a netip.Addr, named bool) string {
	if slices.ContainsFunc(e.prefixes, func(p netip.Prefix) bool { return p.Contains(a) }) {
		return ""
	}
	for _, s := range nonPublic {
		if s.prefix.Contains(a) {
			if named && s.inner {
				return ""
			}
			return s.what
		}
	}
	if !a.IsValid() || a.Zone() != "" || a.Is6() && !globalUnicast.Contains(a) {
		return "reserved"
	}
	return ""
}

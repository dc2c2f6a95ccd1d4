// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strings"
)

// Egress decides which addresses may be reached from this node: public addresses
// and those on the allow list. The zero value has an empty allow list.
//
//  1. ParseHost rejects spellings of a host that parsers interpret differently.
//  2. For a host that is not an allowed name, Check accepts only public addresses
//     and those that an allowed prefix contains.
//
// The host calls ParseHost, resolves the name once, calls Check, and connects to
// one of the checked addresses. Resolving again would allow DNS rebinding.
type Egress struct {
	prefixes []netip.Prefix
	names    []string

	// Remedy returns the text that allows a host, for its refusals; nil: that of troupe serve.
	Remedy func(host string) string
}

// AllowMax is the maximum number of allowed prefixes and names.
const AllowMax = 256

// AllowLoopback returns the allow list for upstreams on this machine.
func AllowLoopback() []string { return []string{"127.0.0.0/8", "::1"} }

// NewEgress returns an Egress with an allow list of prefixes (10.1.0.0/16),
// addresses and names (agents.internal). An allowed name may resolve to a
// loopback, private or carrier-grade NAT address. Other special addresses, in
// particular link-local ones, MUST be allowed by prefix.
func NewEgress(allow []string) (Egress, error) {
	var e Egress
	if len(allow) > AllowMax {
		return Egress{}, fmt.Errorf("allow: %d entries exceed the maximum of %d", len(allow), AllowMax)
	}
	for _, text := range allow {
		if p, err := netip.ParsePrefix(text); err == nil {
			if p != p.Masked() || p.Addr().Is4In6() {
				return Egress{}, fmt.Errorf("allow: %q has bits beyond the prefix length: want %s", text, p.Masked())
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

// ParseHost parses the host of an endpoint: an IP address in standard notation, or
// an ASCII name, which is returned in lower case. IPv6 addresses may have
// brackets. It rejects every other spelling that some parser accepts as an
// address.
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
			return "", netip.Addr{}, errors.New("address with a zone, which is valid on one machine only")
		case addr.Is4In6():
			return "", netip.Addr{}, fmt.Errorf("IPv4-mapped address: want %s", addr.Unmap())
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

// checkHostName returns an error unless host is a valid host name.
func checkHostName(host string) error {
	if host == "" || len(host) > hostBytesMax {
		return fmt.Errorf("want a host of 1 to %d bytes", hostBytesMax)
	}
	if strings.HasSuffix(host, ".") {
		return errors.New("ends in a dot")
	}
	if strings.Trim(host, digitBytes+letterBytes+"-_.") != "" {
		return errors.New("want only letters, digits, '-', '_' and '.'; encode others as xn--")
	}
	for label := range strings.SplitSeq(host, ".") {
		if label == "" || len(label) > labelBytesMax || label[0] == '-' || label[len(label)-1] == '-' {
			return fmt.Errorf("want 1 to %d letters and digits between dots", labelBytesMax)
		}
	}
	// Some parsers accept a name with a numeric last label as an address in decimal,
	// octal or hexadecimal, or with missing parts.
	last := strings.ToLower(host[strings.LastIndexByte(host, '.')+1:])
	hex, isHex := strings.CutPrefix(last, "0x")
	if strings.Trim(last, digitBytes) == "" || isHex && strings.Trim(hex, digitBytes+"abcdef") == "" {
		return errors.New("ends in a number, but is no address: want four numbers from 0 to 255, as in 192.0.2.1")
	}
	return nil
}

// nonPublic lists the address ranges that are not public; narrower ranges precede
// wider ones.
var nonPublic = []struct {
	prefix netip.Prefix
	what   string
	inner  bool // used for internal services: an allowed name may resolve to an address in this range
}{
	{netip.MustParsePrefix("0.0.0.0/8"), "this host", false},
	{netip.MustParsePrefix("10.0.0.0/8"), "private", true},
	{netip.MustParsePrefix("100.64.0.0/10"), "carrier-grade NAT", true},
	{netip.MustParsePrefix("127.0.0.0/8"), "loopback", true},
	{netip.MustParsePrefix("168.63.129.16/32"), "a cloud service address", false},
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

// globalUnicast is the range from which public IPv6 addresses are assigned.
var globalUnicast = netip.MustParsePrefix("2000::/3")

// Check returns an error if any address of the host is not allowed, even if other
// addresses are allowed: a name with both public and internal addresses is a sign of
// an attack.
func (e Egress) Check(host string, addrs []netip.Addr) error {
	if len(addrs) == 0 {
		return fmt.Errorf("%.253s has no address", host)
	}
	named := slices.Contains(e.names, strings.ToLower(host))
	for _, a := range addrs {
		if what := e.forbiddenRange(a.Unmap(), named); what != "" {
			return fmt.Errorf("%.253s: its address is %s, which is not allowed%s", host, what, e.remedy(host, what))
		}
	}
	return nil
}

// RemedyPrefix begins the part of an error that is for the operator of the server.
const RemedyPrefix = "; to allow it: "

// remedy returns the end of the error about a host in the range what. There is none for ranges
// that only an allowed prefix opens, because no service of one's own is there.
func (e Egress) remedy(host, what string) string {
	for _, s := range nonPublic {
		if s.what == what && s.inner {
			if e.Remedy != nil {
				return RemedyPrefix + e.Remedy(fmt.Sprintf("%.253s", host))
			}
			return RemedyPrefix + fmt.Sprintf("troupe serve --allow %.253s", host)
		}
	}
	return ""
}

// CheckURL returns an error if the host of a URL is localhost or an address, and not allowed.
// Other names are checked once they are resolved, and an invalid URL by its own check.
func (e Egress) CheckURL(text string) error {
	u, err := url.Parse(text)
	if err != nil {
		return nil
	}
	name, addr, err := ParseHost(u.Hostname())
	if name == "localhost" {
		addr = netip.AddrFrom4([4]byte{127, 0, 0, 1})
	}
	if err != nil || !addr.IsValid() {
		return nil
	}
	return e.Check(cmp.Or(name, addr.String()), []netip.Addr{addr})
}

// forbiddenRange returns the description of the forbidden range that contains a,
// or "" if a is allowed.
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

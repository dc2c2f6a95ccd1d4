// SPDX-License-Identifier: Apache-2.0

package outbound

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"syscall"
	"time"

	"github.com/troupe-run/troupe/upstream"
)

const (
	dialTimeout    = 10 * time.Second // limit for the resolution of a name and the attempts at all its addresses
	addressTimeout = 4 * time.Second
	addressesMax   = 4 // maximum number of addresses tried for a name
)

// dialer opens every connection to models, agents and tools.
type dialer struct {
	egress  upstream.Egress
	resolve func(ctx context.Context, name string) ([]netip.Addr, error)
	connect func(ctx context.Context, host string, to netip.AddrPort) (net.Conn, error)
}

func newDialer(config *Config) (*dialer, error) {
	egress, err := upstream.NewEgress(config.Allow)
	if err != nil {
		return nil, err
	}
	egress.Remedy = config.Remedy
	d := &dialer{egress: egress, resolve: config.Resolve}
	d.connect = d.connectSocket
	return d, nil
}

// forbiddenError is a permanent refusal to connect to an address.
type forbiddenError struct{ error }

// dial connects to an allowed address of a host. The name is resolved only here:
// a second resolution could return other addresses than those that were checked.
func (d *dialer) dial(ctx context.Context, _, address string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, forbiddenError{err}
	}
	number, err := strconv.ParseUint(port, 10, 16)
	if err != nil || number == 0 {
		return nil, forbiddenError{fmt.Errorf("port %.20q: want 1 to 65535", port)}
	}
	name, addr, err := upstream.ParseHost(host)
	if err != nil {
		return nil, forbiddenError{err}
	}
	addrs := []netip.Addr{addr}
	if name != "" {
		if addrs, err = d.resolve(ctx, name); err != nil {
			return nil, resolveError(err)
		}
		host = name
	}
	if err := d.egress.Check(host, addrs); err != nil {
		return nil, forbiddenError{err}
	}
	for _, a := range addrs[:min(len(addrs), addressesMax)] {
		var conn net.Conn
		if conn, err = d.connect(ctx, host, netip.AddrPortFrom(a.Unmap(), uint16(number))); err == nil {
			return conn, nil
		}
	}
	return nil, err
}

// connectSocket connects to one address. It checks the address again just before
// the connect system call, so that the checked address is the one that is used.
func (d *dialer) connectSocket(ctx context.Context, host string, to netip.AddrPort) (net.Conn, error) {
	n := net.Dialer{Timeout: addressTimeout, Control: func(_, address string, _ syscall.RawConn) error {
		at, err := netip.ParseAddrPort(address)
		if err != nil {
			return forbiddenError{err}
		}
		if err := d.egress.Check(host, []netip.Addr{at.Addr()}); err != nil {
			return forbiddenError{err}
		}
		return nil
	}}
	return n.DialContext(ctx, "tcp", to.String())
}

// transport returns an HTTP transport on top of the dialer. It performs single
// round trips, and so neither follows redirects nor keeps cookies.
func (d *dialer) transport(config *Config) *http.Transport {
	return &http.Transport{
		DialContext:            d.dial, // also used for TLS
		TLSClientConfig:        &tls.Config{RootCAs: config.Roots, MinVersion: tls.VersionTLS12},
		TLSHandshakeTimeout:    dialTimeout,
		ForceAttemptHTTP2:      true,
		DisableCompression:     true, // protects against decompression bombs
		MaxIdleConns:           64,
		MaxIdleConnsPerHost:    16,
		IdleConnTimeout:        time.Minute,
		MaxResponseHeaderBytes: 64 << 10,
		HTTP2:                  &http.HTTP2Config{MaxReceiveBufferPerStream: 256 << 10, SendPingTimeout: 15 * time.Second, PingTimeout: 15 * time.Second},
	}
}

// NewTransport returns a round tripper with the dialer of a node with this configuration, for
// protocols that package upstream does not have.
func NewTransport(config Config) (http.RoundTripper, error) {
	config = config.withDefaults()
	d, err := newDialer(&config)
	if err != nil {
		return nil, fmt.Errorf("outbound: %w", err)
	}
	return d.transport(&config), nil
}

// resolveError returns an error whose text does not name the DNS server.
func resolveError(err error) error {
	var dns *net.DNSError
	if errors.As(err, &dns) && dns.IsNotFound {
		return errors.New("no such host")
	}
	return errors.New("its name cannot be resolved")
}

// invalidCertificate begins the detail of a connection to a server with another certificate.
const invalidCertificate = "its certificate is invalid"

// lossDetail returns a description of a failed round trip, without local
// addresses. The description may quote a few bytes of a malformed response. The
// result final reports that no retry can succeed.
func lossDetail(err error) (detail string, final bool) {
	var no forbiddenError
	var dns *net.DNSError
	var cert *tls.CertificateVerificationError
	var timeout net.Error
	switch {
	case errors.As(err, &no):
		return no.Error(), true
	case errors.As(err, &cert):
		return fmt.Sprintf("%s: %v", invalidCertificate, cert.Err), false
	case errors.As(err, &dns):
		return resolveError(err).Error(), false
	case errors.Is(err, syscall.ECONNREFUSED):
		return "connection refused", false
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return "connection reset", false
	case errors.Is(err, syscall.ENETUNREACH), errors.Is(err, syscall.EHOSTUNREACH):
		return "no route to the host", false
	case errors.As(err, &timeout) && timeout.Timeout():
		return "connection timed out", false
	}
	var op *net.OpError
	if errors.As(err, &op) {
		return op.Err.Error(), false
	}
	return err.Error(), false
}

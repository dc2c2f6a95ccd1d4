// SPDX-License-Identifier: Apache-2.0

package link

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/troupe-run/troupe/host/gateway"
)

// SocketName is the name of the default socket in the data folder of an orchestrator.
const SocketName = "LINK"

// Address is the address of an orchestrator.
type Address struct {
	Path  string // of a Unix socket; or
	Host  string // host:port of TCP with TLS
	Files Files  // of TLS
}

// Files are the paths of files in PEM, which are read for each connection.
type Files struct {
	Certificate, Key string // of this process
	Authority        string // certificates of the authority that signs those of both sides
}

// ParseAddress returns the address in the value of a flag: a path with a slash or the prefix
// unix:, or host:port.
func ParseAddress(flag, text string, files Files) (Address, error) {
	if path, ok := socketPath(text); ok {
		if files != (Files{}) {
			return Address{}, fmt.Errorf("%s %s: a Unix socket takes no --link-cert, --link-key and --link-ca: omit them, or use host:port", flag, text)
		}
		path, err := filepath.Abs(path)
		return Address{Path: path}, err
	}
	if _, port, err := net.SplitHostPort(text); err != nil || port == "" {
		return Address{}, fmt.Errorf("%s %s: want the path of a Unix socket with a slash, such as ./%s, or host:port", flag, text, SocketName)
	}
	if files.Certificate == "" || files.Key == "" || files.Authority == "" {
		return Address{}, fmt.Errorf("%s %s: over TCP both roles need --link-cert, --link-key and --link-ca, also on loopback; on one machine use a Unix socket, such as %[1]s data/%[3]s", flag, text, SocketName)
	}
	a := Address{Host: text, Files: files}
	_, err := a.Files.load()
	return a, err
}

// socketPath returns the path in the value of a flag, and false if the value names no Unix socket.
func socketPath(text string) (path string, ok bool) {
	path, unix := strings.CutPrefix(text, "unix:")
	return path, unix || strings.Contains(text, "/")
}

// String returns the value of the flag.
func (a Address) String() string {
	if a.Path != "" {
		return a.Path
	}
	return a.Host
}

// load reads the files. A certificate for clients cannot act as an orchestrator and vice
// versa, if it names its usage.
func (f Files) load() (*tls.Config, error) {
	pair, err := tls.LoadX509KeyPair(f.Certificate, f.Key)
	if err != nil {
		return nil, fmt.Errorf("--link-cert, --link-key: %w", err)
	}
	authority, err := os.ReadFile(f.Authority)
	if err != nil {
		return nil, fmt.Errorf("--link-ca: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(authority) {
		return nil, fmt.Errorf("--link-ca: %s has no certificate in PEM", f.Authority)
	}
	return &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{pair}, RootCAs: pool, ClientCAs: pool,
		ClientAuth: tls.RequireAndVerifyClientCert}, nil
}

// Listen opens the address of an orchestrator.
func Listen(a Address) (net.Listener, error) {
	if a.Path == "" {
		return net.Listen("tcp", a.Host)
	}
	if err := checkFolder(filepath.Dir(a.Path)); err != nil {
		return nil, err
	}
	return gateway.ListenSocket(a.Path)
}

// dial opens a connection. The authority has signed the certificate of its other end.
func dial(ctx context.Context, a Address) (net.Conn, error) {
	if a.Path != "" {
		if err := checkFolder(filepath.Dir(a.Path)); err != nil {
			return nil, err
		}
		return gateway.DialSocket(ctx, a.Path)
	}
	config, err := a.Files.load()
	if err != nil {
		return nil, err
	}
	d := tls.Dialer{Config: config}
	return d.DialContext(ctx, "tcp", a.Host)
}

// checkFolder returns an error if another user than this one and root can enter a folder: it
// could listen there in place of the orchestrator.
func checkFolder(dir string) error {
	info, err := os.Stat(dir)
	if err != nil {
		return err
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	switch mode := info.Mode().Perm(); {
	case ok && stat.Uid != 0 && stat.Uid != uint32(os.Geteuid()):
		return &RefusedError{fmt.Errorf("the folder %s belongs to another user (uid %d): run both roles as one user, or link them over TCP with --link-cert", dir, stat.Uid)}
	case mode&0o077 != 0:
		return &RefusedError{fmt.Errorf("other users may enter the folder %s of the link (mode %04o): run chmod 700 %[1]s", dir, mode)}
	}
	return nil
}

// RefusedError is the error of a link that cannot succeed before a configuration changes.
type RefusedError struct{ Err error }

// Error implements error.
func (e *RefusedError) Error() string { return e.Err.Error() }

// Unwrap returns Err.
func (e *RefusedError) Unwrap() error { return e.Err }

// refusedOf returns err as a RefusedError if TLS has failed because of a certificate.
func refusedOf(err error) error {
	var own *tls.CertificateVerificationError
	var record tls.RecordHeaderError
	var alert *net.OpError
	switch {
	case errors.As(err, &own):
		return &RefusedError{fmt.Errorf("the certificate of the orchestrator is not accepted: %w", err)}
	case errors.As(err, &record):
		return &RefusedError{fmt.Errorf("the other end does not speak TLS: %w", err)}
	case errors.As(err, &alert) && alert.Op == "remote error":
		return &RefusedError{fmt.Errorf("the orchestrator does not accept --link-cert: %w", err)}
	}
	return err
}

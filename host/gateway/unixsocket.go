// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"sync"
)

// OwnerSocket is the name of the Unix socket in a data folder. It serves the owner
// of the folder while the server runs.
const OwnerSocket = "SOCKET"

// socketPathMax is the maximum length of a path in the address of a Unix socket on
// every system.
const socketPathMax = 103

// ownerConnectionsMax is the maximum number of open connections of an owner.
const ownerConnectionsMax = 64

// ownerListener accepts connections of the owner's processes and of root. Its Close
// removes the socket.
type ownerListener struct {
	*net.UnixListener
	path string
}

// ListenOwner opens the socket of a data folder. The caller MUST hold the lock of
// the folder: a socket that exists is left over from a process that was killed.
func ListenOwner(dir string) (net.Listener, error) {
	return ListenSocket(filepath.Join(dir, OwnerSocket))
}

// ListenSocket opens a Unix socket for processes of this user and of root. A socket that exists
// and has no listener is replaced.
func ListenSocket(path string) (net.Listener, error) {
	switch info, err := os.Lstat(path); {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return nil, err
	case info.Mode().Type() != fs.ModeSocket:
		return nil, fmt.Errorf("%s is not a socket: move it to another folder", path)
	default:
		if c, err := DialSocket(context.Background(), path); err == nil {
			return nil, errors.Join(fmt.Errorf("%s is in use by another process", path), c.Close())
		}
		if err := os.Remove(path); err != nil {
			return nil, err
		}
	}
	address, release, err := socketAddress(path)
	if err != nil {
		return nil, err
	}
	defer release()
	l, err := net.ListenUnix("unix", address)
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(false) // Close removes the socket by its own path
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return &ownerListener{l, path}, nil
}

// DialOwner connects to the server that uses a data folder.
func DialOwner(ctx context.Context, dir string) (net.Conn, error) {
	return DialSocket(ctx, filepath.Join(dir, OwnerSocket))
}

// DialSocket connects to a Unix socket.
func DialSocket(ctx context.Context, path string) (net.Conn, error) {
	info, err := os.Lstat(path)
	if err == nil && info.Mode().Type() != fs.ModeSocket { // a link could lead to another program
		err = fmt.Errorf("%s is not a socket", path)
	}
	if err != nil {
		return nil, err
	}
	address, release, err := socketAddress(path)
	if err != nil {
		return nil, err
	}
	defer release()
	var d net.Dialer
	return d.DialContext(ctx, "unix", address.Name)
}

// socketAddress returns the address of a socket. A path that does not
// fit into an address is abbreviated by a descriptor of the folder, which is open
// until release.
func socketAddress(path string) (_ *net.UnixAddr, release func(), err error) {
	if len(path) <= socketPathMax {
		return &net.UnixAddr{Name: path, Net: "unix"}, func() {}, nil
	}
	if runtime.GOOS != "linux" {
		return nil, nil, fmt.Errorf("the path %s has %d bytes, and a socket may have at most %d: choose a shorter folder", path, len(path), socketPathMax)
	}
	f, err := os.Open(filepath.Dir(path))
	if err != nil {
		return nil, nil, err
	}
	return &net.UnixAddr{Name: fmt.Sprintf("/proc/self/fd/%d/%s", f.Fd(), filepath.Base(path)), Net: "unix"}, func() { _ = f.Close() }, nil
}

// Accept implements net.Listener.
func (l *ownerListener) Accept() (net.Conn, error) {
	for {
		c, err := l.AcceptUnix()
		if err != nil {
			return nil, err
		}
		if peerIsOwner(c) {
			return c, nil
		}
		_ = c.Close()
	}
}

// Close implements net.Listener.
func (l *ownerListener) Close() error {
	return errors.Join(l.UnixListener.Close(), os.Remove(l.path))
}

// ServeOwner serves connections of l until Shutdown. Its clients need no key and
// have all scopes, so l MUST accept none but those of the owner.
func (s *Server) ServeOwner(l net.Listener) error {
	bounded := &limitedListener{Listener: l, maxOpen: ownerConnectionsMax, owner: true, slack: s.config.deadlineSlack(), lingering: s.lingering, excess: s.excess, connections: s.connections, closeOnce: sync.OnceValue(l.Close), openByAddress: map[netip.Prefix]int{}}
	go func() {
		<-s.stopping
		_ = bounded.Close()
	}()
	return s.ownerHTTP.Serve(bounded)
}

// isOwner reports whether a connection belongs to the owner of the data folder.
func isOwner(c net.Conn) bool {
	own, ok := c.(*connection)
	return ok && own.owner
}

// OwnerClient returns a client of the server that uses a data folder. The host of
// its URLs is irrelevant, except that it must be a loopback name.
func OwnerClient(dir string) *http.Client {
	return &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return DialOwner(ctx, dir)
	}}}
}

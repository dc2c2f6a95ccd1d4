// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/troupe-run/troupe/internal/shares"
)

// Certificate is a certificate in two files, which are read again when they change.
type Certificate struct {
	certFile, keyFile string
	log               *slog.Logger

	mu      sync.Mutex
	current *tls.Certificate
	files   [2]fileVersion // of current, or of the last files that could not be read
	checked time.Time      // last look at the files
	broken  string         // error of that look, which was logged
}

// fileVersion identifies the content of a file.
type fileVersion struct {
	modified time.Time
	size     int64
}

// certificateCheckInterval is the minimum time between two looks at the files.
const certificateCheckInterval = time.Second

// LoadCertificate reads a certificate with its chain, and its key, in PEM.
func LoadCertificate(certFile, keyFile string, log *slog.Logger) (*Certificate, error) {
	c := &Certificate{certFile: certFile, keyFile: keyFile, log: log}
	if err := c.load(); err != nil {
		return nil, fmt.Errorf("--tls-cert, --tls-key: %w", err)
	}
	return c, nil
}

func (c *Certificate) load() error {
	files, err := c.versions()
	if err != nil {
		return err
	}
	pair, err := tls.LoadX509KeyPair(c.certFile, c.keyFile)
	if err == nil {
		c.current = &pair
	}
	c.files = files
	return err
}

func (c *Certificate) versions() (all [2]fileVersion, err error) {
	for i, path := range [...]string{c.certFile, c.keyFile} {
		var info fs.FileInfo
		if info, err = os.Stat(path); err != nil {
			return all, err
		}
		if c.current != nil && !info.Mode().IsRegular() { // a read might wait, and all handshakes with it
			return all, fmt.Errorf("%s is no regular file", path)
		}
		all[i] = fileVersion{info.ModTime(), info.Size()}
	}
	return all, nil
}

// get returns the certificate for a handshake. If changed files cannot be used, for example
// because only one of them has been replaced yet, it logs the reason and returns the former one.
func (c *Certificate) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if now := time.Now(); now.Sub(c.checked) >= certificateCheckInterval {
		c.checked = now
		if files, err := c.versions(); err != nil || files != c.files {
			if err == nil {
				err = c.load()
			}
			if err != nil && err.Error() == c.broken {
				return c.current, nil
			}
			if c.broken = ""; err != nil {
				c.broken = err.Error()
				c.log.Warn("the changed certificate cannot be used; the former one still is", "cert", c.certFile, "key", c.keyFile, "error", err.Error())
			} else {
				c.log.Info("the certificate was read again", "cert", c.certFile)
			}
		}
	}
	return c.current, nil
}

// decrypter decrypts connections. For each of them the server has one end of a socket pair, and handles it
// as a connection without TLS. So the server can look for a departed client without consuming bytes,
// write a part within a deadline, and close one direction. A tls.Conn permits none of these.
type decrypter struct {
	config       *tls.Config
	handshakeMax time.Duration // maximum duration of a handshake
	writeMax     time.Duration // maximum time for the client to take a record
	open         *limiter      // connections that are decrypted
}

func newDecrypter(c Config) *decrypter {
	if c.Certificate == nil {
		return nil
	}
	d := &decrypter{handshakeMax: c.HeadTimeout, writeMax: c.WriteTimeout, config: &tls.Config{
		MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}, GetCertificate: c.Certificate.get}}
	d.open = newLimiter(shares.Bounds{Max: int64(c.Connections), Each: int64(c.Connections)}, "encrypted connections", "repeat this one later")
	return d
}

// waitIdle waits until all connections are closed, or until ctx is done.
func (d *decrypter) waitIdle(ctx context.Context) error {
	if d == nil {
		return nil
	}
	return d.open.waitIdle(ctx)
}

// decryptedConn is the server's end of a decrypted connection.
type decryptedConn struct {
	*net.UnixConn
	raw net.Conn
}

// RemoteAddr implements net.Conn.
func (c *decryptedConn) RemoteAddr() net.Addr { return c.raw.RemoteAddr() }

// LocalAddr implements net.Conn.
func (c *decryptedConn) LocalAddr() net.Addr { return c.raw.LocalAddr() }

// SetWriteBuffer bounds the bytes that a client has not taken, in both connections.
func (c *decryptedConn) SetWriteBuffer(bytes int) error {
	if raw, ok := c.raw.(interface{ SetWriteBuffer(int) error }); ok {
		_ = raw.SetWriteBuffer(bytes)
	}
	return c.UnixConn.SetWriteBuffer(bytes)
}

// start returns the server's end of a connection. release is called when the connection is closed.
func (d *decrypter) start(raw net.Conn, release func()) (net.Conn, error) {
	free, r := d.open.acquireFor("", false)
	if r != nil {
		return nil, r
	}
	server, plain, err := newSocketPair()
	if err != nil {
		free()
		return nil, err
	}
	go func() {
		defer free()
		defer release()
		d.serve(tls.Server(raw, d.config), raw, plain)
	}()
	return &decryptedConn{server, raw}, nil
}

// Sizes of the buffers of a connection in bytes: of received bytes, and of a sent record.
const (
	receiveBufferBytes = 4 << 10
	recordBytes        = 16 << 10
)

// serve copies in both directions until both have ended.
func (d *decrypter) serve(secure *tls.Conn, raw net.Conn, plain *net.UnixConn) {
	defer func() { _ = plain.Close() }()
	defer func() { _ = secure.Close() }()
	if err := d.handshake(secure); err != nil {
		return
	}
	received := make(chan struct{})
	go func() {
		defer close(received)
		_, _ = io.CopyBuffer(writerOnly{plain}, secure, make([]byte, receiveBufferBytes))
		_ = plain.CloseWrite() // shows the server that its client has left
	}()
	if d.send(secure, plain) != nil {
		_ = raw.Close() // the client does not read; a closing message would block too
		_ = plain.Close()
	} else if secure.CloseWrite() != nil || secure.SetReadDeadline(time.Now().Add(lingerTimeout)) != nil {
		_ = raw.Close()
	}
	<-received
}

// writerOnly hides the other methods of a writer, by which io.CopyBuffer would use a larger buffer.
type writerOnly struct{ io.Writer }

// handshake performs the handshake. A request without TLS gets an answer that a client can read.
func (d *decrypter) handshake(secure *tls.Conn) error {
	if err := secure.SetDeadline(time.Now().Add(d.handshakeMax)); err != nil {
		return err
	}
	err := secure.Handshake()
	var record tls.RecordHeaderError
	if errors.As(err, &record) && record.Conn != nil {
		body := invalid(http.StatusBadRequest, "", "this server speaks TLS: use https:// in its URL").append(nil)
		_, _ = fmt.Fprintf(record.Conn, "HTTP/1.1 400 Bad Request\r\nContent-Type: application/problem+json\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s", len(body), body)
	}
	if err != nil {
		return err
	}
	return secure.SetDeadline(time.Time{})
}

// send encrypts the bytes of the server until it closes its sending half. It returns an error if
// the client does not take them.
func (d *decrypter) send(secure *tls.Conn, plain *net.UnixConn) error {
	buffer := make([]byte, recordBytes)
	for {
		n, err := plain.Read(buffer)
		if n > 0 {
			if err := secure.SetWriteDeadline(time.Now().Add(d.writeMax)); err != nil {
				return err
			}
			if _, err := secure.Write(buffer[:n]); err != nil {
				return err
			}
		}
		if err != nil { // the server closes its end also with unread bytes of the client
			return nil
		}
	}
}

// newSocketPair returns two connected sockets.
func newSocketPair() (a, b *net.UnixConn, err error) {
	syscall.ForkLock.RLock()
	pair, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
	if err == nil {
		syscall.CloseOnExec(pair[0])
		syscall.CloseOnExec(pair[1])
	}
	syscall.ForkLock.RUnlock()
	if err != nil {
		return nil, nil, os.NewSyscallError("socketpair", err)
	}
	var ends [2]*net.UnixConn
	for i, fd := range pair {
		file := os.NewFile(uintptr(fd), "socketpair")
		c, fileErr := net.FileConn(file) // has a descriptor of its own
		err = errors.Join(err, fileErr, file.Close())
		ends[i], _ = c.(*net.UnixConn)
	}
	if err != nil {
		for _, end := range ends {
			if end != nil {
				_ = end.Close()
			}
		}
		return nil, nil, err
	}
	return ends[0], ends[1], nil
}

// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"errors"
	"net"
	"sync"
	"syscall"
	"time"
)

// watchPeer says when the other end of a connection is gone, without reading what
// it may have sent. Stop ends the watch; before that nobody else may read. A
// client that closes its half for writing counts as gone; one that has sent more
// than its request is only seen to go when it resets the connection.
func watchPeer(c net.Conn) (gone <-chan struct{}, stop func()) {
	left, ended := make(chan struct{}), make(chan struct{})
	if own, ok := c.(*connection); ok {
		c = own.unwrap()
	}
	raw, ok := c.(syscall.Conn)
	if !ok {
		return left, func() {}
	}
	descriptor, err := raw.SyscallConn()
	if err != nil || c.SetReadDeadline(time.Time{}) != nil {
		return left, func() {}
	}
	go func() {
		defer close(ended)
		is := false
		// The function is called when there may be something to read, and at first.
		_ = descriptor.Read(func(fd uintptr) bool {
			is = peerClosed(int(fd))
			return is
		})
		if is {
			close(left)
		}
	}()
	return left, sync.OnceFunc(func() {
		_ = c.SetReadDeadline(time.Unix(1, 0))
		<-ended
		_ = c.SetReadDeadline(time.Time{})
	})
}

func peerClosed(fd int) bool {
	var one [1]byte
	for {
		n, _, err := syscall.Recvfrom(fd, one[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		switch {
		case errors.Is(err, syscall.EINTR):
			continue
		case err != nil:
			return !errors.Is(err, syscall.EAGAIN)
		}
		return n == 0
	}
}

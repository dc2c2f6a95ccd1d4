// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"net"
	"os"
	"syscall"
)

// peerIsOwner reports whether the process at the other end of a connection runs as
// the user of this process, or as root.
func peerIsOwner(c *net.UnixConn) bool {
	raw, err := c.SyscallConn()
	if err != nil {
		return false
	}
	var peer *syscall.Ucred
	var failed error
	err = raw.Control(func(fd uintptr) {
		peer, failed = syscall.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED)
	})
	return err == nil && failed == nil && (peer.Uid == uint32(os.Geteuid()) || peer.Uid == 0)
}

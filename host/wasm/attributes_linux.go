// SPDX-License-Identifier: Apache-2.0

package wasm

import "syscall"

// attributes puts a process in a group of its own. The kernel kills it when this process ends.
func attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package mcp

import "syscall"

// attributes puts a process in a group of its own. If this process ends without a chance to stop it, it
// reads the end of its input.
func attributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

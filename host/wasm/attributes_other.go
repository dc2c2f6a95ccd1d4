// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package wasm

import "syscall"

// attributes puts a process in a group of its own. It ends when its standard input does.
func attributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

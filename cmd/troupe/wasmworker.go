// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"

	"github.com/troupe-run/troupe/host/wasm"
)

// WasmWorkerCmd runs a module of WebAssembly for the server at the other end of its standard streams.
type WasmWorkerCmd struct{}

// Help returns the detailed help.
func (*WasmWorkerCmd) Help() string {
	return `The server starts it, and ends it at the deadline of a call. It is of no use by hand.

Examples:
  troupe wasm-worker`
}

// Run executes the command.
func (*WasmWorkerCmd) Run(s streams) error {
	return wasm.Serve(os.Stdin, s.out)
}

// wasmWorker returns the command that starts a worker; nil if this program does not know its own file.
func wasmWorker() []string {
	self, err := os.Executable()
	if err != nil {
		return nil
	}
	return []string{self, "wasm-worker"}
}

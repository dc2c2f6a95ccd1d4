// SPDX-License-Identifier: Apache-2.0

// Package wasm performs declared tools that are modules of WebAssembly with WASI preview 1.
//
// A module runs in a child process, a worker, never in the server. A worker has one module, compiled
// once, and performs one call at a time in a fresh instance: arguments on standard input, result on
// standard output. It stays warm for the next call.
//
//	Workers ── start ──> worker: compile, ready ── call ──> result, or the failure of the module
//	                        │                        └──── deadline, cancel, Close: SIGKILL
//	                        └── idle for idleMax, or its place is needed: SIGKILL
//
// A module reaches no file, no address and no environment variable. Its clock and its randomness are the
// same in each repetition of a call, unless the definition grants the real ones. It has no effect outside,
// so every call may be repeated.
//
// With Stream a module runs on instead, with its own standard streams, until it is killed.
//
// The process of a worker has no environment, no descriptor but its standard streams, no secret, limits
// of the kernel for its memory, and ends with the server. Its end is the only deadline: code without
// loops, and long single instructions, see no other.
//
// It is a part of the server without a promise of compatibility: programs use package troupe.
//
// # Files
//
//	attributes_linux.go   how a worker ends with the server
//	attributes_other.go   likewise where the kernel does not do it
//	cache.go              the folder of compiled modules, bounded
//	frame.go              messages between the server and a worker
//	limits_linux.go       limits of the kernel
//	limits_other.go       no limits of the kernel
//	module.go             modules, and the folder that keeps them
//	process.go            a worker as the server sees it
//	serve.go              a worker from inside
//	stream.go             a module that runs on, such as a server of MCP
//	tool.go               calls of tools, and their answers
//	workers.go            the workers of a server
package wasm

// SPDX-License-Identifier: Apache-2.0

// Package mcp makes the tools of MCP servers (Model Context Protocol) tools of the node. A server
// is a process with JSON-RPC messages on its standard streams, or a URL (streamable HTTP). The
// protocol itself is that of the official SDK.
//
//	tool call ─▶ handler ─▶ server ─▶ session ─▶ process, or round tripper of the egress
//	                          │
//	                          └─ run: connect ─▶ list ─▶ compare with the accepted list ─▶ wait
//
// The package guarantees:
//
//  1. A tool is offered as it was accepted. The first list of a server is accepted when it is
//     seen. A later list that differs is stored as the offered one, and is not used until
//     Accept. The accepted tools remain, also while the server is down.
//  2. A call that was sent has at most one effect, unless its tool may be repeated. If the server
//     ends without an answer, or its answer cannot be read, a call is repeated once or refused as
//     Unknown. A call that the server refused because it has forgotten the session is sent once
//     more, in a new one. If it does not know that session either, the new one is kept for other
//     calls: its list of tools shows whether it can be used.
//  3. A server that ends, hangs or prints no messages is closed and started again, after a
//     back-off that doubles up to a minute. It delays no other server. An answer to one call ends no
//     other call.
//  4. A process has the environment variables that its configuration names and no others. It is
//     started without a shell, in a process group of its own, which ends with it.
//  5. Requests over HTTP use the round tripper of the egress. Secrets appear in no log line and
//     no refusal.
//  6. After Close no goroutine and no process remains.
//
// Bounds: ServersMax servers, ToolsMax tools of a server and AllToolsMax of all, messages of 8 MiB,
// 64 MiB of a longer line, 1,000 lines of a process that are no messages, 100 lines of its standard
// error per minute, 1,000 messages per second that a server sends by itself. A server that keeps
// announcing changed lists is listed once in 5 s and logged once in a minute.
//
// It is a part of the server without a promise of compatibility: programs use package troupe.
package mcp

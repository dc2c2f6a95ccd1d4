// SPDX-License-Identifier: Apache-2.0

// Package node makes a node from its parts: a store and its log, the catalog of
// agents, the egress to models and external agents, the cells, and optionally a
// trace of the history. It is the only place that wires them together.
//
// A Node accepts commands and has no gateway: it listens on no socket. View reads
// the runs of a store that no node serves.
//
// The registry is an actor like any other. Its journal is read before the cells
// start, and from then on it announces each change of an agent or API key.
package node

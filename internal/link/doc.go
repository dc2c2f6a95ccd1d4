// SPDX-License-Identifier: Apache-2.0

// Package link connects the two roles of a server that run as processes of their own: an
// ingress, which serves clients, and the orchestrator, which holds the store and the actors.
// Every command of a client crosses the link as one of package command.
//
// It also connects the members of a cluster, which are orchestrators with one store. Each member
// opens two connections to each other one: commands cross the first, and messages between
// cells the second. See Peers.
//
// The peer of a link names the principals of its commands, so it may do everything. Only two
// kinds of address are offered, and both authenticate it:
//
//   - a Unix socket with mode 0600 in a folder that only its owner can enter,
//   - TCP with TLS 1.3, where both sides present a certificate of one authority.
package link

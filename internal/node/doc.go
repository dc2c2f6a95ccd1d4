// SPDX-License-Identifier: Apache-2.0

// Package node makes a node from its parts and lets it accept commands.
package node

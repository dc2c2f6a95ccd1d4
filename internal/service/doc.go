// SPDX-License-Identifier: Apache-2.0

// Package service runs a node with its gateway: it opens both on a data folder, serves
// connections and stops them in order. The command troupe serve and the Go API (package
// troupe) are built on it.
//
// It also reads folders of agent files and stores their agents on a node.
package service

// SPDX-License-Identifier: Apache-2.0

// Package postgres keeps a node's store in a PostgreSQL database, from version 15 on.
//
//	troupe.store   one row: format of the store, its node, its secret
//	troupe.logs    the head of each log: who writes it, and where it ends
//	troupe.kv      the rows of the logs and of their index, as package store defines them
//	troupe.positions  how far readers of logs have come, such as webhooks
//	troupe.runs …  tables for people to query; see docs/sql.md
//
// The batches of all logs that wait are one transaction of one round trip: fence, rows, index, tables.
// The row of a log is its fence: nothing of the transaction is stored unless each of its logs still has
// this owner under this epoch and ends where its batch begins. A process that another has replaced is
// refused by that row, whatever it believes.
//
// A commit whose answer was lost is settled by those rows after a reconnect: nothing is written
// twice and nothing is reported as failed that was stored. While the database is away, nothing is
// acknowledged, new work is refused as unavailable, and nothing ends; the work continues once the
// database answers.
//
// The number of logs is that of the store since it was made, and each shard has one of them; a new store has
// NewLogs. Several processes may share a store as a cluster: each writes the logs that the table of members gives it,
// under a lease (package placement), and reads all. It is a part of the server without a promise of compatibility:
// programs use package troupe.
//
// # Files
//
//	adopt.go      logs that a process of a cluster begins or ends to write
//	append.go     the transaction of a batch, and how a lost answer is settled
//	clock_linux.go  the clock of leases
//	clock_other.go  the same elsewhere
//	cluster.go    a process of a cluster: its lease, and what it does without one
//	connect.go    connections, and the databases that are refused
//	import.go     the content of another store
//	json.go       jsonb of any bytes
//	kv.go         the rows
//	members.go    the table of members and owners
//	migrate.go    the schema
//	move.go       stores between folders and databases
//	outage.go     times in which the database is away
//	positions.go  how far readers of logs have come
//	rebuild.go    the tables from the log
//	store.go      opening, the secret, the space that users have
//	tables.go     the tables for people
//	toolcalls.go  rows of tool calls and their approvals
package postgres

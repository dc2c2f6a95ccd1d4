// SPDX-License-Identifier: Apache-2.0

// Package placement decides, in each process of a cluster, which logs the process serves, and until
// when.
//
//	Member ─Request─▶ Table ─Answer─▶ Member ─▶ adopted logs, owners, the end of the lease
//
// The processes share a Table: a row for each member with the end of its lease, and a row for each
// log with its owner and its epoch. A member renews its lease with each beat. A log whose owner has
// no lease is claimed by another member, under a greater epoch. For the table a lease begins when a
// beat arrives. For the member it begins when the beat is sent, and is shorter by a margin. So a
// member stops before another begins.
//
// The lease keeps effects of two members from overlapping. It does not protect the log. Each append
// names an epoch, and the table refuses an old epoch.
//
// A lease that has run out may be renewed while its row exists, because no log was claimed since. A cluster thus
// survives an outage of the table.
//
// It is a part of the server without a promise of compatibility: programs use package troupe.
package placement

// SPDX-License-Identifier: Apache-2.0

// Package prompts keeps what models were sent and what they answered, for the operators of a server.
//
//	outbound ─▶ Recording ─▶ queue (at most 64 MiB) ─▶ redact, cut ─▶ the file of its session
//
// It is off unless the configuration switches it on. The records are no part of the log: nothing is replayed from
// them, and a crash of the machine may lose the last ones. The package guarantees:
//
//  1. No answer waits for a record. A record that finds the queue full is dropped and counted.
//  2. What a pattern of the configuration matches, and the keys with which the model was asked, are in no file.
//  3. The records of a deleted session are removed with it, also those of requests that are under way meanwhile,
//     and at the next start if the process was killed in between. Those older than Config.Keep are removed.
//  4. A record is as long as RecordBytesMax, the records of a session as SessionBytesMax, and all as BytesMax. The
//     oldest ones make room.
//  5. A file that a killed process left incomplete loses that record only.
//  6. A copy of the records that is older than the deletion of a session is restored without those of the session.
//  7. A request is read byte by byte as it was sent, without the spaces between its members and after 2, or not at
//     all. What it has in common with a request of before is written once.
//
// It is a part of the server without a promise of compatibility: programs use package troupe.
//
// # Files
//
//	backup.go     copies of the files, and Deletions, which a restored one follows
//	config.go     Config, the settings
//	file.go       the files of a session
//	frame.go      the frames of a file, each with a record
//	page.go       Page, records of a run that are read together
//	record.go     Record, a request and its answer
//	redact.go     redactor, which removes what patterns match
//	retention.go  removal of records: beyond the bounds, after Config.Keep, and of runs that need none
//	store.go      Store, all files of a node
package prompts

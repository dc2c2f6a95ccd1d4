// SPDX-License-Identifier: Apache-2.0

package store

import "fmt"

// Log stores the batches of a Writer. A Reader of the same store sees a batch as soon as
// the batch is stored.
//
//	Append ─▶ stored ─Sync▶ durable
//	   ├───▶ Fenced
//	   └───▶ Unknown ─Settle▶ stored or not
type Log interface {
	// Append stores the next batch of its node entirely or not at all. It returns Fenced
	// if the batch is not stored because the node no longer owns some of its shards, and
	// Unknown if the result was lost. After another error, the log MUST NOT be used.
	Append(b *Batch) error
	// Settle reports whether a batch whose Append returned Unknown is stored. If it is
	// not, that Append has no later effect. A node MUST settle a batch before it appends
	// the next one.
	Settle(b *Batch) (stored bool, err error)
	// Sync returns once the batch with this number, which MUST be stored, and all earlier
	// batches of the Writer are durable. Calls MUST NOT overlap, but Append may run at the
	// same time.
	Sync(batch uint64) error
}

// Logs stores the transactions of a Writers, as a Log stores batches. It has the same errors.
type Logs interface {
	// AppendAll stores the next transaction, entirely or not at all.
	AppendAll(t *Transaction) error
	// SettleAll reports whether a transaction whose AppendAll returned Unknown is stored.
	SettleAll(t *Transaction) (stored bool, err error)
	// Sync returns once the transaction with this number, and all earlier ones, are durable.
	Sync(no uint64) error
}

// OneLog is the Logs of a store with one log.
type OneLog struct{ Log }

// AppendAll implements Logs.
func (l OneLog) AppendAll(t *Transaction) error { return l.Append(&t.Batches[0]) }

// SettleAll implements Logs.
func (l OneLog) SettleAll(t *Transaction) (bool, error) { return l.Settle(&t.Batches[0]) }

// Fenced is the error for a batch that is not stored, because its node no longer owns
// these shards under these epochs.
type Fenced struct{ Shards []ShardEpoch }

// Error implements error.
func (f Fenced) Error() string {
	return fmt.Sprintf("fenced: %d shards have a new owner, the first is shard %d, written under epoch %d", len(f.Shards), f.Shards[0].Shard, f.Shards[0].Epoch)
}

// Unknown is the error for a batch that may or may not be stored.
type Unknown struct{ Batch uint64 }

// Error implements error.
func (u Unknown) Error() string { return fmt.Sprintf("batch %d: the result is unknown", u.Batch) }

// Resume completes an Append that returned Unknown: it settles the batch, and appends it
// again unless it is stored. It returns the same errors as Append.
func Resume(log Log, b *Batch) error {
	stored, err := log.Settle(b)
	if err != nil || stored {
		return err
	}
	return log.Append(b)
}

// ResumeAll is Resume for a transaction.
func ResumeAll(logs Logs, t *Transaction) error {
	stored, err := logs.SettleAll(t)
	if err != nil || stored {
		return err
	}
	return logs.AppendAll(t)
}

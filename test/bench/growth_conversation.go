// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"io/fs"
	"math/rand/v2"
	"path/filepath"

	"github.com/cockroachdb/pebble/v2"

	"github.com/troupe-run/troupe/actor"
)

// Bounds on the disk space of a conversation.
const (
	laterMessageMax = 110 // messages 901 to 1,000, in percent of messages 101 to 200
	transcriptMax   = 220 // messages of a conversation, in percent of the same runs without one
)

// messageBytes is the mean size of a message and of its answer.
const messageBytes = 500

// conversation measures the disk space of messages, of which every second is an answer: in
// long conversations, and in runs that are no part of a conversation.
func (b *bench) conversation() error {
	later := b.growth.limit("disk space of messages 901 to 1,000 of a conversation, of that of messages 101 to 200", laterMessageMax, "%")
	whole := b.growth.limit("disk space of messages 101 to 1,000, of that of runs without a transcript", transcriptMax, "%")
	with, err := b.conversationBytes(actor.HandleMessageFull)
	if err != nil {
		return err
	}
	without, err := b.conversationBytes("other")
	if err != nil {
		return err
	}
	later.record(100 * (with[3] - with[2]) / (with[1] - with[0]))
	whole.record(100 * (with[3] - with[0]) / (without[3] - without[0]))
	b.growth.note("a message of %d bytes takes %.0f bytes on disk between message 101 and 200, %.0f between message 901 and 1,000, and %.0f without a transcript",
		messageBytes, (with[1]-with[0])/100, (with[3]-with[2])/100, (without[3]-without[0])/900)
	return nil
}

// conversationBytes returns the disk space of a conversation after 100, 200, 900 and 1,000
// messages: the mean of several conversations, in bytes. The messages are runs of an operation.
func (b *bench) conversationBytes(operation string) (sizes [4]float64, err error) {
	sessions := 64
	if b.quick {
		sessions = 8
	}
	dir := b.newDir("conversation-" + operation)
	done := 0
	for i, messages := range []int{100, 200, 900, 1000} {
		n, err := openGrowthNode(dir)
		if err != nil {
			return sizes, err
		}
		b.progress("%s: %d messages in %d sessions", operation, messages, sessions)
		_, err = eachOf(sessions, sessions, func(i int) error {
			size := messageBytes/2 + messageBytes*i/(sessions-1) // differs, so that pages and snapshots do not follow the same messages in all conversations
			for range (messages - done) / 2 {
				call := actor.Call{ID: n.NewCallID(), To: actorID("talker", i), Operation: operation, Parts: actor.Text(randomText(size))}
				a, err := n.Ask(b.ctx, call)
				if err == nil && a.Reply.Refusal != nil {
					err = a.Reply.Refusal
				}
				if err != nil {
					return err
				}
			}
			return nil
		})
		if err = errors.Join(err, n.close()); err != nil {
			return sizes, err
		}
		done = messages
		size, err := compactedBytes(b.ctx, dir)
		if err != nil {
			return sizes, err
		}
		sizes[i] = float64(size) / float64(sessions)
	}
	return sizes, nil
}

// talkAgent replies with a text as long as the message.
type talkAgent struct{}

func (talkAgent) Begin(b actor.Begin) actor.Turn {
	return echoTurn{actor.Text(randomText(actor.SizeOf(b.Call.Parts)))}
}

// randomText returns a text that is stored in its full size.
func randomText(size int) string {
	const letters = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ -"
	b := make([]byte, size)
	for i := range b {
		b[i] = letters[rand.IntN(len(letters))]
	}
	return string(b)
}

// compactedBytes returns the size of a store without replaced rows.
func compactedBytes(ctx context.Context, dir string) (size int64, err error) {
	dir = filepath.Join(dir, "pebble")
	db, err := pebble.Open(dir, &pebble.Options{Logger: silent{}})
	if err != nil {
		return 0, err
	}
	err = db.Compact(ctx, []byte{0}, []byte{0xff}, false)
	if err = errors.Join(err, db.Close()); err != nil {
		return 0, err
	}
	err = filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() || filepath.Ext(path) != ".sst" {
			return err
		}
		info, err := e.Info()
		if err == nil {
			size += info.Size()
		}
		return err
	})
	return size, err
}

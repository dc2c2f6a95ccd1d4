// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/troupe-run/troupe/host/disk"
	"github.com/troupe-run/troupe/internal/servertest"
	"github.com/troupe-run/troupe/store"
)

// The workload that creates the store. In each round several clients send messages to
// a real server. The server is stopped after each round, the second time with SIGKILL.
const (
	nodeName          = "n1"
	rounds            = 3
	clients           = 4
	messagesPerClient = 9
	workloadTimeout   = 2 * time.Minute
)

// indexEntries is the number of entries between flushes of the index after each round. The
// stores have fewer entries than a server writes between two flushes.
const indexEntries = 64

// flushIndex writes the index of a store as rows, several times. Rows of the last flush are
// replaced by the next start, the others are not.
func flushIndex(dir string) error {
	d, err := disk.Open(dir, nodeName, disk.Options{FreeFloor: 1, IndexEntries: indexEntries})
	if err != nil {
		return err
	}
	rows := 0
	err = d.Scan([]byte("t/"), []byte("t0"), func(key, _ []byte) bool {
		if strings.Contains(string(key), "/i/") {
			rows++
		}
		return true
	})
	if err == nil && rows == 0 {
		err = fmt.Errorf("store %s: holds no rows of the index", dir)
	}
	return errors.Join(err, d.Close())
}

// makeStores lets a real server write a store into dir. It makes a backup of the store
// while the server runs.
func makeStores(ctx context.Context, bin, dir string) error {
	ctx, cancel := context.WithTimeout(ctx, workloadTimeout)
	defer cancel()
	if err := servertest.Run(ctx, bin, []string{"--node", nodeName, "--data", filepath.Join(dir, otherName)}, syscall.SIGTERM, func(url string) error {
		return runClients(ctx, url, rounds)
	}); err != nil {
		return err
	}
	if err := flushIndex(filepath.Join(dir, otherName)); err != nil {
		return err
	}
	for round := range rounds {
		if round == 1 {
			if err := os.CopyFS(filepath.Join(dir, olderName), os.DirFS(filepath.Join(dir, storeName))); err != nil {
				return err
			}
		}
		last := round == rounds-1
		end := syscall.SIGTERM
		if round == 1 {
			end = syscall.SIGKILL
		}
		if err := servertest.Run(ctx, bin, []string{"--node", nodeName, "--data", filepath.Join(dir, storeName), "--backups", dir}, end, func(url string) error {
			if err := runClients(ctx, url, round); err != nil || !last {
				return err
			}
			out, err := exec.CommandContext(ctx, bin, "backup", backupName, "--data", filepath.Join(dir, storeName)).CombinedOutput()
			if err != nil {
				return fmt.Errorf("backup: %w: %s", err, out)
			}
			return nil
		}); err != nil {
			return err
		}
		if last { // its entries stay in the log alone
			break
		}
		if err := flushIndex(filepath.Join(dir, storeName)); err != nil {
			return err
		}
	}
	for _, name := range []string{"LOCK", "HOLDER"} { // left by the server process, which has exited
		if err := os.Remove(filepath.Join(dir, backupName, name)); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return nil
}

// runClients runs the clients of one round. They reuse sessions, send small and
// large messages, make one agent call another, leave runs open that wait for an
// approval, and cancel some of them.
func runClients(ctx context.Context, url string, round int) error {
	var all sync.WaitGroup
	errs := make([]error, clients)
	for n := range clients {
		all.Go(func() {
			for i := range messagesPerClient {
				if errs[n] = sendMessage(ctx, url, round, n, i); errs[n] != nil {
					return
				}
			}
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

func sendMessage(ctx context.Context, url string, round, n, i int) error {
	agent, session, text := "helper", fmt.Sprintf("s%d-%d", n, i%3), fmt.Sprintf("word %d of client %d", i, n)
	switch {
	case i%8 == 0:
		agent, session = "coordinator", fmt.Sprintf("r%d-%d-%d", round, n, i)
	case round == 0 && n == 0 && i == 7:
		text = strings.Repeat("a long letter ", store.PageBytesMax/14+1) // closes a page of the transcript
	case i%5 == 0:
		text = strings.Repeat(fmt.Sprintf("many words %d %d ", n, i), 400) // stored separately under its digest
	}
	run, err := servertest.Post(ctx, url+"/v1/agents/"+agent+"/messages", map[string]any{"content": text, "session": session, "timeout_ms": 20000})
	if err == nil && agent == "coordinator" && i%16 == 0 {
		_, err = servertest.Post(ctx, url+"/v1/runs/"+run+":cancel", map[string]any{})
	}
	return err
}

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// Log lines are text on a terminal and JSON elsewhere. A flag sets one form.
func TestServeLogFormat(t *testing.T) {
	const text, asJSON = " INFO serving  ", `"msg":"serving"`
	for _, c := range []struct {
		args []string
		want string
	}{{nil, text}, {[]string{"--log-format", "json"}, asJSON}} {
		cmd := programCmd(append([]string{"serve", "--data", filepath.Join(t.TempDir(), "data"), "--listen", "127.0.0.1:0"}, c.args...)...)
		master := startOnTerminal(t, cmd)
		screen := ""
		for b := make([]byte, 4096); !strings.Contains(screen, c.want); {
			n, err := master.Read(b)
			if screen += string(b[:n]); err != nil {
				t.Fatalf("%v: %v, screen\n%s", c.args, err, screen)
			}
		}
		if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Error(err)
		}
		_, _ = io.Copy(io.Discard, master) // until the end of the process
		if err := cmd.Wait(); err != nil {
			t.Error(err)
		}
		_ = master.Close()
	}
	for _, c := range []struct {
		args []string
		want string
	}{{nil, asJSON}, {[]string{"--log-format", "text"}, text}} {
		s := startServer(t, filepath.Join(t.TempDir(), "data"), append(c.args, "--log-level", "info")...)
		s.stop(syscall.SIGTERM)
		if b, err := os.ReadFile(s.log); err != nil || !strings.Contains(string(b), c.want) {
			t.Errorf("%v: %v, log\n%s\nwant %s", c.args, err, b, c.want)
		}
	}
}

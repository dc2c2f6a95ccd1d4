// SPDX-License-Identifier: Apache-2.0

// Package postgrestest starts PostgreSQL servers for tests. Each has a folder and a port of its own.
// It needs the programs initdb and postgres, which a lane of its own asks for; no other test uses it.
package postgrestest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// Server is a running server. Its user has no password.
type Server struct {
	t       testing.TB
	dir     string
	bin     string
	port    int
	cmd     *exec.Cmd
	ended   chan struct{}
	account *syscall.Credential // nil: that of this process
	count   int
	args    []string
}

// Start starts a server, which ends with the test. Commits are not forced to the disk, so only kills of
// the process are survived, which is what tests do.
func Start(t testing.TB, args ...string) *Server {
	t.Helper()
	s := &Server{t: t, bin: find(t), args: args}
	// The path of the socket is short, and the folder belongs to the account of the server.
	dir, err := os.MkdirTemp("", "troupe-postgres-")
	if err != nil {
		t.Fatal(err)
	}
	s.dir = dir
	t.Cleanup(func() {
		s.Kill(syscall.SIGQUIT)
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	if os.Getuid() == 0 { // the server refuses to run as root
		s.account = account(t)
		if err := os.Chown(dir, int(s.account.Uid), int(s.account.Gid)); err != nil {
			t.Fatal(err)
		}
	}
	out, err := s.command("initdb", "-D", s.data(), "-A", "trust", "-U", "troupe", "--no-sync", "--locale", "C", "-E", "UTF8").CombinedOutput()
	if err != nil {
		t.Fatalf("initdb: %v\n%s", err, out)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s.port = l.Addr().(*net.TCPAddr).Port
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	s.Run()
	return s
}

// find returns the folder with the programs of PostgreSQL.
func find(t testing.TB) string {
	if path, err := exec.LookPath("initdb"); err == nil {
		if path, err = filepath.EvalSymlinks(path); err == nil {
			return filepath.Dir(path)
		}
	}
	found, err := filepath.Glob("/usr/lib/postgresql/*/bin/initdb")
	if err != nil || len(found) == 0 {
		t.Fatal("needs a PostgreSQL server from version 15 on: apt-get install postgresql")
	}
	return filepath.Dir(slices.Max(found))
}

func account(t testing.TB) *syscall.Credential {
	u, err := user.Lookup("postgres")
	if err != nil {
		if u, err = user.Lookup("nobody"); err != nil {
			t.Fatal(err)
		}
	}
	uid, err := strconv.Atoi(u.Uid)
	gid, gidErr := strconv.Atoi(u.Gid)
	if err := errors.Join(err, gidErr); err != nil {
		t.Fatal(err)
	}
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
}

func (s *Server) data() string { return filepath.Join(s.dir, "data") }

func (s *Server) command(name string, args ...string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(s.bin, name), args...)
	cmd.Dir = s.dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: s.account, Pdeathsig: syscall.SIGQUIT}
	return cmd
}

// Run starts the server and waits until it answers.
func (s *Server) Run() {
	s.t.Helper()
	args := []string{"-D", s.data(), "-p", strconv.Itoa(s.port), "-k", s.dir, "-c", "listen_addresses=127.0.0.1", "-c", "fsync=off", "-c", "max_connections=200",
		"-c", "log_destination=stderr", "-c", "max_wal_size=256MB"}
	s.cmd = s.command("postgres", append(args, s.args...)...)
	log, err := os.OpenFile(filepath.Join(s.dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		s.t.Fatal(err)
	}
	s.cmd.Stdout, s.cmd.Stderr = log, log
	if err := s.cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	if err := log.Close(); err != nil {
		s.t.Fatal(err)
	}
	ended := make(chan struct{})
	s.ended = ended
	go func(cmd *exec.Cmd) { _ = cmd.Wait(); close(ended) }(s.cmd)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for {
		c, err := pgx.Connect(ctx, s.URL("postgres"))
		if err == nil {
			if err := c.Close(ctx); err != nil {
				s.t.Fatal(err)
			}
			return
		}
		select {
		case <-ctx.Done():
			s.fail("the server does not answer: %v", err)
		case <-ended:
			s.fail("the server has ended")
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func (s *Server) fail(format string, args ...any) {
	s.t.Helper()
	log, _ := os.ReadFile(filepath.Join(s.dir, "log"))
	s.t.Fatalf(format+"\n%s", append(args, log)...)
}

// Kill ends the server by a signal: SIGQUIT at once, without a checkpoint; SIGINT in order. It waits
// for the end.
func (s *Server) Kill(signal syscall.Signal) {
	if s.cmd == nil || s.cmd.Process == nil {
		return
	}
	_ = s.cmd.Process.Signal(signal)
	<-s.ended
	s.cmd = nil
}

// URL returns the URL of a database.
func (s *Server) URL(database string) string {
	return fmt.Sprintf("postgres://troupe@127.0.0.1:%d/%s", s.port, database)
}

// Database makes a database and returns its URL.
func (s *Server) Database() string {
	s.count++
	name := fmt.Sprintf("d%d", s.count)
	s.Exec(s.URL("postgres"), "CREATE DATABASE "+name)
	return s.URL(name)
}

// Exec runs a statement.
func (s *Server) Exec(url, statement string, args ...any) {
	if err := s.exec(url, statement, args...); err != nil {
		panic(fmt.Sprintf("%s: %v", statement, err)) // also in a drawn history, whose test is another
	}
}

func (s *Server) exec(url, statement string, args ...any) error {
	ctx := context.Background()
	c, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	_, err = c.Exec(ctx, statement, args...)
	return errors.Join(err, c.Close(ctx))
}

// SPDX-License-Identifier: Apache-2.0

package wasm

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// parentArgument makes the test binary a server with a worker that spins.
const parentArgument = "wasm-parent"

// parent starts a worker, prints its process ID and waits for its end.
func parent(dir string) {
	w := New(Options{Command: []string{os.Args[0], workerArgument}, Dir: dir})
	module := (&binaryModule{code: [][]byte{loops()}}).bytes()
	if err := w.Install(Sum(module), module); err != nil {
		panic(err)
	}
	go func() {
		fmt.Println(waitForWorker(w).cmd.Process.Pid)
	}()
	_, err := w.call(w.ctx, "", Sum(module), nil, [seedBytes]byte{}, nil)
	panic(err)
}

// A worker has no environment, no descriptor of its server, and limits of the kernel.
func TestWorkerInheritsNothing(t *testing.T) {
	t.Setenv("TROUPE_SECRET", "s")
	file, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	w := newWorkers(t)
	d := install(t, w, "echo", echo)
	if got := perform(w, d, startTime, "{}"); got != "application/json {}" {
		t.Fatal(got)
	}
	proc := filepath.Join("/proc", strconv.Itoa(w.idle[0].cmd.Process.Pid))
	if env, err := os.ReadFile(filepath.Join(proc, "environ")); err != nil || len(env) > 0 {
		t.Errorf("environment %q, %v", env, err)
	}
	descriptors, err := os.ReadDir(filepath.Join(proc, "fd"))
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range descriptors {
		target, _ := os.Readlink(filepath.Join(proc, "fd", fd.Name()))
		own := strings.HasPrefix(target, "anon_inode:") || strings.HasPrefix(target, "/sys/fs/cgroup/") // of the Go runtime
		if n, _ := strconv.Atoi(fd.Name()); n > 2 && !own {
			t.Errorf("descriptor %s is %s", fd.Name(), target)
		}
	}
	limits, err := os.ReadFile(filepath.Join(proc, "limits"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"Max data size", "Max core file size", "Max file size", "Max open files"} {
		_, rest, _ := strings.Cut(string(limits), want)
		if fields := strings.Fields(rest); len(fields) < 2 || fields[0] == "unlimited" || fields[0] != fields[1] {
			t.Errorf("%s: %.60q", want, rest)
		}
	}
}

// A worker ends with its server, even if that is killed while a module spins.
func TestWorkerEndsWithServer(t *testing.T) {
	c := exec.Command(os.Args[0], parentArgument, t.TempDir())
	out, err := c.StdoutPipe()
	if err == nil {
		err = c.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	pid, _ := strconv.Atoi(strings.TrimSpace(line))
	if err != nil || pid == 0 {
		t.Fatalf("%q, %v", line, err)
	}
	_ = c.Process.Kill()
	_ = c.Wait()
	ticker := time.NewTicker(time.Millisecond)
	defer ticker.Stop()
	for start := time.Now(); ; <-ticker.C {
		state, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
		if err != nil || strings.Contains(string(state), ") Z ") { // nobody may wait for it in a container
			return
		}
		if time.Since(start) > 10*time.Second {
			_ = syscall.Kill(pid, syscall.SIGKILL)
			t.Fatalf("the worker lives: %s", state)
		}
	}
}

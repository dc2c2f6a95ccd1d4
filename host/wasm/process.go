// SPDX-License-Identifier: Apache-2.0

package wasm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/internal/invariant"
)

// errorHeadBytes is the beginning of the standard error of a worker that is kept. A worker prints there
// only as it dies.
const errorHeadBytes = 2 << 10

// failure is the error of a module. The worker can be used further.
type failure struct{ text string }

func (f *failure) Error() string { return f.text }

// process is a worker.
type process struct {
	key   string // of its module and its grants
	cmd   *exec.Cmd
	in    *os.File
	out   *os.File
	errs  head
	ended chan struct{} // closed once the process has ended
	state string        // such as "signal: killed"; valid once ended is closed
	since time.Time     // of its last call
}

// startProcess starts a worker with a module and waits until it can be called, or until ctx ends. A
// *failure is the mistake of the module.
func startProcess(ctx context.Context, command []string, key string, s *start, module []byte) (*process, error) {
	p := &process{key: key, cmd: exec.Command(command[0], command[1:]...), ended: make(chan struct{})}
	p.cmd.Env = []string{} // nil means all variables
	p.cmd.Dir = "/"
	p.cmd.SysProcAttr = attributes()
	p.cmd.Stderr = &p.errs
	var err error
	if p.cmd.Stdin, p.in, err = os.Pipe(); err != nil {
		return nil, err
	}
	var stdout *os.File
	if p.out, stdout, err = os.Pipe(); err != nil {
		return nil, errors.Join(err, p.in.Close(), p.cmd.Stdin.(*os.File).Close())
	}
	p.cmd.Stdout = stdout
	err = p.cmd.Start()
	_, _ = p.cmd.Stdin.(*os.File).Close(), stdout.Close()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start a worker: %w", err), p.in.Close(), p.out.Close())
	}
	go p.wait()
	_, err = p.exchange(ctx, frameReady, func(to io.Writer) error {
		if err := writeFrame(to, frameStart, invariant.Must(json.Marshal(s))); err != nil {
			return err
		}
		return writeFrame(to, frameModule, module)
	})
	if err != nil {
		p.kill()
		return nil, err
	}
	return p, nil
}

func (p *process) wait() {
	_ = p.cmd.Wait()
	p.state = p.cmd.ProcessState.String()
	_ = p.in.Close() // its last answer can still be read
	close(p.ended)
}

// kill ends the process at once, and returns when it has ended.
func (p *process) kill() {
	_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
	<-p.ended
	_ = p.out.Close()
}

// call performs a call. When ctx ends first, so does the process. Any error but a *failure means that the
// process can no longer be used.
func (p *process) call(ctx context.Context, seed [seedBytes]byte, input []byte) ([]byte, error) {
	return p.exchange(ctx, frameOutput, func(to io.Writer) error { return writeFrame(to, frameCall, seed[:], input) })
}

// exchange sends something and returns the answer.
func (p *process) exchange(ctx context.Context, want byte, send func(io.Writer) error) ([]byte, error) {
	var kind byte
	var body []byte
	var err error
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err = send(p.in); err == nil {
			kind, body, err = readFrame(p.out, OutputBytesMax)
		}
	}()
	select {
	case <-done:
	case <-ctx.Done():
		p.kill()
		<-done
		return nil, ctx.Err()
	}
	switch {
	case err != nil:
		p.kill()
		return nil, fmt.Errorf("the process of the module ended: %s%s", p.state, p.errs.quoted())
	case kind == frameFailed:
		return nil, &failure{actor.FitText(strings.ToValidUTF8(string(body), "\uFFFD"), 3*errorBytesMax)}
	case kind != want:
		p.kill()
		return nil, fmt.Errorf("the process of the module sent a frame %q", kind)
	}
	return body, nil
}

// head is the beginning of a text.
type head struct {
	mu sync.Mutex
	b  []byte
}

func (h *head) Write(b []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.b = append(h.b, b[:min(len(b), errorHeadBytes-len(h.b))]...)
	return len(b), nil
}

// quoted returns the first line for the end of an error.
func (h *head) quoted() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	line, _, _ := strings.Cut(strings.TrimSpace(strings.ToValidUTF8(string(h.b), "\uFFFD")), "\n")
	if line == "" {
		return ""
	}
	if strings.Contains(line, "out of memory") || strings.Contains(line, "cannot allocate") {
		return fmt.Sprintf("; it needs more than the memory that it may have, %d MiB", processBytesMax>>20)
	}
	return "; " + actor.FitText(line, 200)
}

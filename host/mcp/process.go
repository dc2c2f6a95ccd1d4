// SPDX-License-Identifier: Apache-2.0

package mcp

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/troupe-run/troupe/actor"
)

// Bounds of the output of a process.
const (
	messageBytesMax  = 8 << 20
	garbageMax       = 1000 // lines on standard output that are no messages
	garbageLogged    = 5
	errorLineBytes   = 1 << 10
	errorLinesMax    = 100 // lines of standard error in the log per errorLinesTime
	errorLinesTime   = time.Minute
	readAfterEndTime = time.Second // for output that a process left in its pipes
	skippedMax       = 64 << 20    // bytes of a line above messageBytesMax
	skippedTail      = 4 << 10     // of them in which the ID of a response is looked for
	openMax          = 4096        // requests without an answer
)

// process is a running server that exchanges messages over its standard streams.
type process struct {
	cmd       *exec.Cmd
	stdin     io.WriteCloser
	out       *io.PipeReader // its messages, one per line
	grace     time.Duration
	log       *slog.Logger
	ended     chan struct{} // closed once the process and its group have ended
	silent    chan struct{} // closed once it has no further messages
	quiet     chan struct{} // closed once its standard error is read
	why       error         // io.EOF, or the mistake in its output; valid once silent is closed
	flow      flow
	work      sync.WaitGroup
	ending    sync.Once
	sandboxed bool // it is a module, which has nothing to end in order
	// release gives the place of the process back; stop calls it
	release func()

	mu       sync.Mutex
	head     []byte             // written before the first message
	open     map[string]request // sent and not answered, by ID; at most openMax
	lastLine string             // of standard error
	state    string             // such as "exit status 1"; valid once ended is closed
}

// startProcess starts the command of a configuration. The caller MUST stop it.
func startProcess(c *Config, env func(string) (string, bool), grace time.Duration, log *slog.Logger) (*process, error) {
	p := &process{cmd: exec.Command(c.Command, c.Args...), grace: grace, log: log, ended: make(chan struct{}), silent: make(chan struct{}), quiet: make(chan struct{}), release: func() {}, open: map[string]request{}}
	p.cmd.Env = []string{} // nil means all variables
	for _, name := range c.Env {
		value, ok := env(name)
		if !ok {
			return nil, fmt.Errorf("the environment variable %s, which env names, is not set: set it and restart", name)
		}
		p.cmd.Env = append(p.cmd.Env, name+"="+value)
	}
	p.cmd.SysProcAttr = attributes()
	var parents, children []*os.File
	closeAll := func(files []*os.File) {
		for _, f := range files {
			_ = f.Close()
		}
	}
	for range 3 {
		r, w, err := os.Pipe()
		if err != nil {
			closeAll(append(parents, children...))
			return nil, err
		}
		if len(parents) == 0 { // standard input
			r, w = w, r
		}
		parents, children = append(parents, r), append(children, w)
	}
	p.cmd.Stdin, p.cmd.Stdout, p.cmd.Stderr = children[0], children[1], children[2]
	err := p.cmd.Start()
	closeAll(children)
	if err != nil {
		closeAll(parents)
		return nil, fmt.Errorf("command: %w", err)
	}
	p.stdin = parents[0]
	out, w := io.Pipe()
	p.out = out
	p.work.Go(func() { p.filter(parents[1], w) })
	p.work.Go(func() { p.logErrors(parents[2]) })
	p.work.Go(func() { p.reap(parents[1], parents[2]) })
	return p, nil
}

// reap waits for the end of the process, and ends what it started.
func (p *process) reap(outputs ...*os.File) {
	state, err := p.cmd.Process.Wait()
	p.signal(syscall.SIGKILL) // the rest of its group
	p.mu.Lock()
	if p.state = "ended"; err == nil {
		p.state = state.String()
	}
	p.mu.Unlock()
	for _, f := range outputs { // a process outside of the group may hold them open
		_ = f.SetReadDeadline(time.Now().Add(readAfterEndTime))
	}
	close(p.ended)
}

// signal sends a signal to the group of the process. It may have ended.
func (p *process) signal(s syscall.Signal) { _ = syscall.Kill(-p.cmd.Process.Pid, s) }

// stop ends the process: it closes its input, and after each grace period sends a stronger
// signal. It returns once nothing of it remains.
func (p *process) stop() {
	p.ending.Do(func() {
		_ = p.stdin.Close()
		_ = p.out.Close()
		if p.sandboxed {
			p.signal(syscall.SIGKILL)
		}
		for _, s := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
			timer := time.NewTimer(p.grace)
			select {
			case <-p.ended:
			case <-timer.C:
				p.signal(s)
			}
			timer.Stop()
		}
		p.work.Wait()
		p.release()
	})
}

// Read and Write carry the messages.
func (p *process) Read(b []byte) (int, error) { return p.out.Read(b) }
func (p *process) Write(b []byte) (int, error) {
	p.mu.Lock()
	switch r := requestOf(b); {
	case r.cancel != "":
		delete(p.open, r.cancel)
	case r.ID != "" && len(p.open) < openMax:
		p.open[r.ID] = r
	}
	head := p.head
	p.head = nil
	p.mu.Unlock()
	if len(head) > 0 {
		if _, err := p.stdin.Write(head); err != nil {
			return 0, err
		}
	}
	return p.stdin.Write(b)
}

// sent returns the open request with an ID.
func (p *process) sent(id string) (request, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	r, ok := p.open[id]
	return r, ok
}

// Close closes the streams; stop ends the process.
func (p *process) Close() error {
	_ = p.out.Close()
	_ = p.stdin.Close()
	return nil
}

// cause returns why the process cannot be used, with its last line of standard error.
func (p *process) cause(err error) error {
	select {
	case <-p.silent:
	default:
		return err
	}
	if !errors.Is(p.why, io.EOF) {
		return p.why
	}
	timer := time.NewTimer(p.grace) // it closed its output, and so is about to end
	defer timer.Stop()
	select {
	case <-p.ended:
	case <-timer.C:
		return errors.New("the process closed its standard output")
	}
	select {
	case <-p.quiet:
	case <-timer.C:
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	text := "the process ended: " + p.state
	if p.lastLine != "" {
		text += "; its last line of output: " + p.lastLine
	}
	return errors.New(text)
}

// filter passes the messages of the process on, one per line, and drops other lines.
func (p *process) filter(from *os.File, to *io.PipeWriter) {
	defer from.Close()
	in := bufio.NewReaderSize(from, 64<<10)
	p.why = p.pass(in, to)
	close(p.silent)
	_ = to.CloseWithError(p.why)
	_, _ = io.Copy(io.Discard, in) // so that the process can end
}

// pass returns why it ended.
func (p *process) pass(in *bufio.Reader, to io.Writer) error {
	for garbage := 0; ; {
		line, whole, err := readLine(in, messageBytesMax)
		var all []received
		if whole {
			line = bytes.TrimSpace(line)
			all = p.receive(line)
		} else if all, err = p.skip(in, line); err != nil {
			return err
		}
		for _, m := range all {
			if m.line == nil {
				continue
			}
			if m.id == "" {
				p.flow.wait(p.ended)
			}
			if _, err := to.Write(append(m.line, '\n')); err != nil {
				return err
			}
			p.mu.Lock()
			delete(p.open, m.id)
			p.mu.Unlock()
		}
		if len(line) > 0 && len(all) == 0 {
			if garbage++; garbage <= garbageLogged {
				p.log.Warn("MCP server printed a line that is no message; standard output is for messages only", "line", actor.FitText(string(line), 200), "count", garbage)
			}
			if garbage == garbageMax {
				return fmt.Errorf("printed %d lines that are no messages", garbageMax)
			}
		}
		if err != nil {
			return io.EOF
		}
	}
}

// readLine returns the next line without its end, or the part up to the limit.
func readLine(in *bufio.Reader, limit int) (line []byte, whole bool, err error) {
	for {
		part, err := in.ReadSlice('\n')
		line = append(line, part...)
		switch {
		case len(line) > limit:
			return line, false, err
		case !errors.Is(err, bufio.ErrBufferFull):
			return line, true, err
		}
	}
}

// receive returns the messages of a line. A line that is not JSON, and begins as a response, is one
// that cannot be read.
func (p *process) receive(line []byte) []received {
	if len(line) == 0 {
		return nil
	}
	all, err := receive(line, "", p.sent)
	if r, ok := p.sent(idOfHead(line)); err != nil && ok {
		return p.unread(r, unreadable("answered with what is no JSON: %s", actor.FitText(string(line), quoteMax)))
	}
	return all
}

// skip reads the rest of a line that is too long. The response in it, if any, cannot be read.
func (p *process) skip(in *bufio.Reader, head []byte) ([]received, error) {
	tail := slices.Clone(head[max(len(head)-skippedTail, 0):])
	for skipped := 0; !bytes.HasSuffix(head, []byte("\n")); {
		part, err := in.ReadSlice('\n')
		tail = append(tail, part...)
		tail = tail[max(len(tail)-skippedTail, 0):]
		if skipped += len(part); skipped > skippedMax {
			return nil, fmt.Errorf("printed a line of more than %d bytes", skippedMax)
		}
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return nil, io.EOF
		}
		if err == nil {
			break
		}
	}
	r, ok := p.sent(idOfHead(head))
	if m := endOfResponse.FindSubmatch(tail); m != nil && !ok {
		r, ok = p.sent(string(m[1]))
	}
	if !ok {
		return nil, nil
	}
	return p.unread(r, unreadable("answered with a line of more than %d bytes", messageBytesMax)), nil
}

func (p *process) unread(r request, f *failure) []received {
	return []received{{r.ID, failureMessage(r, f, statusCode(200))}}
}

// logErrors logs the standard error of the process.
func (p *process) logErrors(from *os.File) {
	defer close(p.quiet)
	defer from.Close()
	in := bufio.NewReaderSize(from, errorLineBytes+1)
	start, lines := time.Now(), 0
	for {
		line, _, err := readLine(in, errorLineBytes)
		text := strings.TrimSpace(actor.FitText(string(line), errorLineBytes))
		if now := time.Now(); now.Sub(start) >= errorLinesTime {
			start, lines = now, 0
		}
		if text != "" {
			p.mu.Lock()
			p.lastLine = actor.FitText(text, 256)
			p.mu.Unlock()
			switch lines++; {
			case lines < errorLinesMax:
				p.log.Info("MCP server wrote to standard error", "line", text)
			case lines == errorLinesMax:
				p.log.Warn("MCP server wrote many lines to standard error; those of the next minute are dropped")
			}
		}
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return
		}
	}
}

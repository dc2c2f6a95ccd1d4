// SPDX-License-Identifier: Apache-2.0

package wasm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/tools"
)

// workerArgument makes the test binary a worker.
const workerArgument = "wasm-worker"

func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == workerArgument {
		if err := Serve(os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if len(os.Args) == 3 && os.Args[1] == parentArgument {
		parent(os.Args[2])
	}
	os.Exit(m.Run())
}

func newWorkers(t testing.TB) *Workers {
	t.Helper()
	w := New(Options{Command: []string{os.Args[0], workerArgument}, Dir: t.TempDir(), Max: 4})
	t.Cleanup(w.Close)
	return w
}

// install returns a tool with a module.
func install(t testing.TB, w *Workers, name string, m *binaryModule) *tools.Declared {
	t.Helper()
	module := m.bytes()
	sum := Sum(module)
	if err := w.Install(sum, module); err != nil {
		t.Fatal(err)
	}
	return &tools.Declared{Name: name, Kind: tools.KindServer, Via: tools.ViaWasm, SHA256: sum}
}

// startTime is enough for the start of a worker on a busy machine.
const startTime = 2 * time.Minute

// perform performs a call in a time, and returns the answer as a text.
func perform(w *Workers, d *tools.Declared, limit time.Duration, input string) string {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	a := w.Perform(ctx, d, "anna", "run.1.0", []byte(input))
	if a.Refusal != nil {
		return fmt.Sprintf("%v %s", a.Refusal.Reason, a.Refusal.Detail)
	}
	return string(a.Parts[0].Media) + " " + string(a.Parts[0].Bytes)
}

func TestResults(t *testing.T) {
	w := newWorkers(t)
	exits := func(code int64, text string) *binaryModule {
		return &binaryModule{data: vector + strings.Repeat("\x00", 56) + text, code: [][]byte{bytesTo(2, len(text), constant(code), op(opCall, procExit))}}
	}
	for name, c := range map[string]struct {
		module *binaryModule
		input  string
		want   string
	}{
		"JSON":           {echo, `{"a": [1, "ä"]}`, `application/json {"a": [1, "ä"]}`},
		"text":           {echo, `no JSON`, `text/plain no JSON`},
		"half character": {echo, "x\xffy", "text/plain x\uFFFDy"},
		"exit 0":         {exits(0, ""), "{}", "Unavailable tool exit 0: the module printed nothing on standard output; want a JSON value"},
		"exit 3":         {exits(3, "no such city\n"), "{}", "Unavailable tool exit 3: the module ended with exit code 3; standard error: no such city"},
		"trap":           {&binaryModule{code: [][]byte{op(opUnreachable)}}, "{}", "Unavailable tool trap: the module trapped: wasm error: unreachable"},
		"million calls":  {million, "{}", "application/json 1"},
		"import":         {&binaryModule{from: "env", code: [][]byte{op()}}, "{}", `imports "fd_write" of "env", which it is not given`},
		"fill of 2 GiB": {&binaryModule{code: [][]byte{code(constant(0), constant(1), constant(1<<31-1), op(0xfc, 11, 0))}}, "{}",
			"the module trapped: wasm error: out of bounds memory access"},
		"memory above the limit": {&binaryModule{pages: MemoryBytesMax/pageBytes + 1, code: [][]byte{op()}}, "{}", "is no valid module: "},
	} {
		d := install(t, w, name, c.module)
		for range 2 { // a failure leaves a worker that can be used
			if got := perform(w, d, startTime, c.input); !strings.Contains(got, c.want) {
				t.Errorf("%s: got %q, want %q", name, got, c.want)
			}
		}
	}
}

// bytesTo returns code that prints n bytes at address 64 to a descriptor, and goes on with other code.
func bytesTo(fd int64, n int, after ...[]byte) []byte {
	return code(append([][]byte{constant(4), constant(int64(n)), op(opStore, 2, 0), constant(fd), constant(0), constant(1), constant(8), op(opCall, fdWrite, opDrop)}, after...)...)
}

func TestUnreadableModules(t *testing.T) {
	w := newWorkers(t)
	garbage := append(bytes.Clone(magic), "no sections"...)
	if err := w.Install(Sum(garbage), garbage); err != nil {
		t.Fatal(err)
	}
	d := &tools.Declared{Name: "garbage", SHA256: Sum(garbage)}
	if got := perform(w, d, startTime, "{}"); !strings.Contains(got, "Unavailable tool garbage: the module is no valid module: ") {
		t.Error(got)
	}
	absent := &tools.Declared{Name: "absent", SHA256: Sum([]byte("x"))}
	if got := perform(w, absent, startTime, "{}"); !strings.Contains(got, "the module cannot be read") {
		t.Error(got)
	}
	if err := w.Permit(absent); err == nil || !strings.Contains(err.Error(), "this server has no module "+absent.SHA256) {
		t.Error(err)
	}
	if err := w.Install(absent.SHA256, echo.bytes()); err == nil {
		t.Error("a module was kept under the sum of another one")
	}
}

// Each module that does not end is ended at its deadline. The calls of another tool go on.
func TestHostileModules(t *testing.T) {
	w := newWorkers(t)
	other := install(t, w, "echo", echo)
	if got := perform(w, other, startTime, "{}"); got != "application/json {}" {
		t.Fatal(got)
	}
	fill := code(constant(0), constant(1), constant(MemoryBytesMax), op(0xfc, 11, 0))
	hostile := map[string]*binaryModule{
		"spin":              {code: [][]byte{loops()}},
		"exponential calls": {code: doubles(60, op())},
		"long fills":        {pages: MemoryBytesMax / pageBytes, code: doubles(40, fill)},
		"growing loop":      {code: [][]byte{loops(opConst, 1, opGrow, 0, opDrop)}},
		"table of 4 GiB":    {table: 1 << 29, code: [][]byte{loops()}},
		"deep recursion":    {code: [][]byte{op(opCall, own)}},
		"start function":    {start: true, code: [][]byte{loops()}},
		"host calls":        {code: [][]byte{loops(code(constant(0), op(opConst64, 0), constant(16), op(opCall, clockTimeGet, opDrop))...)}},
		"flood":             {data: vector, code: [][]byte{loops(writes...)}},
	}
	const limit = 300 * time.Millisecond
	var stop atomic.Bool
	var undisturbed sync.WaitGroup
	undisturbed.Go(func() {
		n := 0
		for ; !stop.Load(); n++ {
			if got := perform(w, other, startTime, "{}"); got != "application/json {}" {
				t.Errorf("another tool was disturbed: %s", got)
				return
			}
		}
		t.Logf("%d calls of another tool meanwhile", n)
	})
	for name, m := range hostile {
		d := install(t, w, name, m)
		over, got := time.Hour, ""
		for try := 0; try < 10 && over > 50*time.Millisecond; try++ { // the machine may be busy
			begin := time.Now()
			got = perform(w, d, limit, "{}")
			over = min(over, max(0, time.Since(begin)-limit))
		}
		t.Logf("%-18s ended %6.1f ms after its deadline: %.150s", name, float64(over.Microseconds())/1000, got)
		if over > 50*time.Millisecond || !strings.HasPrefix(got, actor.Deadline.String()) && !strings.HasPrefix(got, actor.Unavailable.String()) {
			t.Errorf("%s: %v after its deadline: %s", name, over, got)
		}
	}
	stop.Store(true)
	undisturbed.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.running) > w.options.Max {
		t.Errorf("%d workers, want at most %d", len(w.running), w.options.Max)
	}
}

// A call whose time ends while its module is compiled leaves a worker for the next one.
func TestStartOutlivesItsCall(t *testing.T) {
	w := newWorkers(t)
	d := install(t, w, "echo", echo)
	if got := perform(w, d, time.Nanosecond, "{}"); !strings.HasPrefix(got, actor.Deadline.String()) {
		t.Error(got)
	}
	p := waitForWorker(w)
	if got := perform(w, d, startTime, "{}"); got != "application/json {}" {
		t.Error(got)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.running) != 1 || len(w.idle) != 1 || w.idle[0] != p || w.pending != 0 {
		t.Errorf("%d workers, %d starts", len(w.running), w.pending)
	}
}

func TestRandomnessAndClockAreThoseOfTheCall(t *testing.T) {
	w := newWorkers(t)
	random := install(t, w, "random", &binaryModule{data: vector, code: [][]byte{code(constant(64), constant(16), op(opCall, randomGet, opDrop), prints(16))}})
	clock := install(t, w, "clock", &binaryModule{data: vector, code: [][]byte{code(constant(0), op(opConst64, 0), constant(64), op(opCall, clockTimeGet, opDrop), prints(8))}})
	call := func(d *tools.Declared, id, input string) string {
		ctx, cancel := context.WithTimeout(context.Background(), startTime)
		defer cancel()
		a := w.Perform(ctx, d, "anna", id, []byte(input))
		if a.Refusal != nil {
			t.Fatal(a.Refusal)
		}
		return string(a.Parts[0].Bytes)
	}
	for _, d := range []*tools.Declared{random, clock} {
		first := call(d, "run.1.0", "{}")
		if again := call(d, "run.1.0", "{}"); again != first {
			t.Errorf("%s: a repetition got %q, and the call %q", d.Name, again, first)
		}
		granted := *d
		granted.Grant = []string{tools.GrantClock, tools.GrantRandom}
		if a, b := call(&granted, "run.1.0", "{}"), call(&granted, "run.1.0", "{}"); a == b || a == first {
			t.Errorf("%s: with the grant got %q and %q", d.Name, a, b)
		}
	}
	if call(random, "run.1.0", "{}") == call(random, "run.1.1", "{}") {
		t.Error("two calls have the same randomness")
	}
}

func TestWorkersEnd(t *testing.T) {
	w := newWorkers(t)
	d := install(t, w, "spin", &binaryModule{code: [][]byte{loops()}})
	ended := make(chan string)
	go func() { ended <- perform(w, d, startTime, "{}") }()
	p := waitForWorker(w)
	w.Close()
	if got := <-ended; got != "Unavailable tool spin: the server stops" {
		t.Error(got)
	}
	<-p.ended
	if got := perform(w, d, startTime, "{}"); got != "Unavailable tool spin: the server stops" {
		t.Error(got)
	}
}

// waitForWorker returns the first worker that runs.
func waitForWorker(w *Workers) *process {
	ticker := time.NewTicker(time.Millisecond)
	defer ticker.Stop()
	for range ticker.C {
		w.mu.Lock()
		for p := range w.running {
			w.mu.Unlock()
			return p
		}
		w.mu.Unlock()
	}
	return nil
}

// Calls wait when all workers are in use, and idle workers of other modules make room.
func TestWorkersAreBounded(t *testing.T) {
	w := newWorkers(t)
	var calls sync.WaitGroup
	for i := range 12 {
		m := *echo
		m.data = vector + strings.Repeat("\x00", i+1)
		d := install(t, w, "echo", &m)
		calls.Go(func() {
			if got := perform(w, d, startTime, "{}"); got != "application/json {}" {
				t.Error(got)
			}
		})
	}
	calls.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.running) > w.options.Max || len(w.running) != len(w.idle) {
		t.Errorf("%d workers, %d of them idle, want at most %d", len(w.running), len(w.idle), w.options.Max)
	}
}

func TestServeRefusesOtherInput(t *testing.T) {
	c := exec.Command(os.Args[0], workerArgument)
	var frames bytes.Buffer
	_ = errors.Join(writeFrame(&frames, frameCall, []byte("x")), writeFrame(&frames, frameCall, []byte("y")))
	c.Stdin = &frames
	out, err := c.CombinedOutput()
	if err != nil || len(out) > 0 { // its input ends at once, and so does it
		if !strings.Contains(string(out), "the command troupe wasm-worker is for troupe serve") {
			t.Errorf("%v: %s", err, out)
		}
	}
}

// The example is compiled by the Go command, and performed cold, with a cache, and warm.
func TestGoModule(t *testing.T) {
	if testing.Short() {
		t.Skip("compiles the standard library")
	}
	path := filepath.Join(t.TempDir(), "slug.wasm")
	build := exec.Command("go", "build", "-o", path, "../../examples/wasm")
	build.Env = append(os.Environ(), "GOOS=wasip1", "GOARCH=wasm")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	module, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	w := newWorkers(t)
	d := &tools.Declared{Name: "text.slug", SHA256: Sum(module)}
	if err := w.Install(d.SHA256, module); err != nil {
		t.Fatal(err)
	}
	timed := func(what string, n int) {
		begin := time.Now()
		for range n {
			if got := perform(w, d, startTime, `{"text": "Hello, World"}`); got != `application/json {"slug":"hello-world"}` {
				t.Fatal(got)
			}
		}
		t.Logf("a Go module of %d KiB: %-22s %8.2f ms a call", len(module)>>10, what, float64(time.Since(begin).Microseconds())/1000/float64(n))
	}
	timed("cold", 1)
	timed("warm", 50)
	w.mu.Lock()
	p := w.idle[0]
	w.mu.Unlock()
	p.kill()
	if got := perform(w, d, startTime, `{}`); !strings.HasPrefix(got, actor.Unavailable.String()) { // it finds the process gone
		t.Error(got)
	}
	timed("cold, with the cache", 1)
	if got := perform(w, d, startTime, `{"text": 5}`); !strings.Contains(got, "exit code 1; standard error: ") {
		t.Error(got)
	}
}

// SPDX-License-Identifier: Apache-2.0

package wasm

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	mathrand "math/rand/v2"
	"os"
	goruntime "runtime"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/imports/wasi_snapshot_preview1"
	"github.com/tetratelabs/wazero/sys"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/tools"
)

// Bounds of a worker.
const (
	MemoryBytesMax  = 64 << 20 // linear memory of a module
	OutputBytesMax  = 1 << 20  // its standard output
	errorBytesMax   = 1 << 10  // its standard error that a failure shows
	pageBytes       = 64 << 10
	processBytesMax = 512 << 20 // writable memory of the process: the compiler, the instance, and its stack
	heapBytesGoal   = 256 << 20 // from which on the collector works harder
	processors      = 2         // one for the module, and one that notices the end of the server
)

// start is the first message to a worker.
type start struct {
	Cache  string   `json:"cache,omitzero"` // folder of compiled modules
	Grants []string `json:"grants,omitzero"`
}

// guest is a compiled module.
type guest struct {
	runtime  wazero.Runtime
	compiled wazero.CompiledModule
	grants   []string
}

// Serve makes this process a worker of the server at the other end of its standard streams. It returns
// once there is no server, or an error if the server cannot be understood.
func Serve(in io.Reader, out io.Writer) error {
	closeInherited()
	goruntime.GOMAXPROCS(processors)
	debug.SetMemoryLimit(heapBytesGoal)
	if err := limitMemory(); err != nil {
		return fmt.Errorf("limit memory: %w", err)
	}
	frames := make(chan received)
	go receive(in, frames)
	first, module := <-frames, <-frames
	var s start
	if first.kind != frameStart || module.kind != frameModule || json.Unmarshal(first.body, &s) != nil {
		return errors.New("standard input is not that of a server: the command troupe wasm-worker is for troupe serve")
	}
	ctx := context.Background()
	g, err := compile(ctx, &s, module.body)
	if err != nil {
		return writeFrame(out, frameFailed, []byte(err.Error()))
	}
	if err := limitFiles(); err != nil {
		return fmt.Errorf("limit files: %w", err)
	}
	if err := writeFrame(out, frameReady); err != nil {
		return err
	}
	for f := range frames {
		if f.kind != frameCall || len(f.body) < seedBytes {
			return fmt.Errorf("unexpected frame %q", f.kind)
		}
		kind, body := byte(frameOutput), []byte(nil)
		output, err := g.call(ctx, [seedBytes]byte(f.body), f.body[seedBytes:])
		if body = output; err != nil {
			kind, body = frameFailed, []byte(err.Error())
		}
		if err := writeFrame(out, kind, body); err != nil {
			return err
		}
	}
	return nil
}

// received is a frame of the server.
type received struct {
	kind byte
	body []byte
}

// receive passes the frames of the server on. At its end the process ends as well, whatever a module does.
func receive(in io.Reader, frames chan<- received) {
	for {
		kind, body, err := readFrame(in, max(ModuleBytesMax, tools.InputBytesMax+seedBytes))
		if err != nil {
			os.Exit(0)
		}
		frames <- received{kind, body}
	}
}

// compile returns a module that can be called.
func compile(ctx context.Context, s *start, module []byte) (*guest, error) {
	config := wazero.NewRuntimeConfig().WithMemoryLimitPages(MemoryBytesMax / pageBytes).WithDebugInfoEnabled(false)
	if s.Cache != "" {
		if cache, err := wazero.NewCompilationCacheWithDir(s.Cache); err == nil { // without it, each start compiles
			config = config.WithCompilationCache(cache)
		}
	}
	g := &guest{runtime: wazero.NewRuntimeWithConfig(ctx, config), grants: s.Grants}
	if _, err := wasi_snapshot_preview1.Instantiate(ctx, g.runtime); err != nil {
		return nil, err
	}
	var err error
	if g.compiled, err = g.runtime.CompileModule(ctx, module); err != nil {
		return nil, fmt.Errorf("is no valid module: %w", err)
	}
	for _, f := range g.compiled.ImportedFunctions() {
		if from, name, _ := f.Import(); from != wasi_snapshot_preview1.ModuleName {
			return nil, fmt.Errorf("imports %.40q of %.40q, which it is not given: only functions of %s are", name, from, wasi_snapshot_preview1.ModuleName)
		}
	}
	if len(g.compiled.ImportedMemories()) > 0 {
		return nil, errors.New("imports a memory, which it is not given")
	}
	if _, ok := g.compiled.ExportedFunctions()["_start"]; !ok {
		return nil, errors.New("has no function _start: compile it as a command of WASI preview 1, such as with GOOS=wasip1 GOARCH=wasm go build")
	}
	return g, nil
}

// call performs a call in a fresh instance.
func (g *guest) call(ctx context.Context, seed [seedBytes]byte, input []byte) ([]byte, error) {
	out, errs := &output{}, &tail{}
	config := wazero.NewModuleConfig().WithName("").WithArgs("tool").WithStdin(bytes.NewReader(input)).WithStdout(out).WithStderr(errs).
		WithRandSource(mathrand.NewChaCha8(seed))
	if slices.Contains(g.grants, tools.GrantRandom) {
		config = config.WithRandSource(rand.Reader)
	}
	if slices.Contains(g.grants, tools.GrantClock) {
		config = config.WithSysWalltime().WithSysNanotime().WithSysNanosleep()
	}
	instance, err := g.runtime.InstantiateModule(ctx, g.compiled, config)
	if instance != nil {
		defer func() { _ = instance.Close(ctx) }()
	}
	var exit *sys.ExitError
	switch {
	case out.over:
		return nil, fmt.Errorf("printed more than %d bytes", OutputBytesMax)
	case errors.As(err, &exit) && exit.ExitCode() == 0, err == nil:
		return out.Bytes(), nil
	case exit != nil:
		return nil, fmt.Errorf("ended with exit code %d%s", exit.ExitCode(), errs.quoted())
	}
	text, _, _ := strings.Cut(err.Error(), "\nwasm stack trace:")
	if _, cause, ok := strings.Cut(text, "] failed: "); ok {
		text = cause
	}
	return nil, fmt.Errorf("trapped: %s%s", actor.FitText(strings.ToValidUTF8(text, "\uFFFD"), errorBytesMax), errs.quoted())
}

// output is the standard output of a module.
type output struct {
	bytes.Buffer
	over bool
}

// errOutput ends a module that prints too much. wazero returns it as the error of the call.
var errOutput = errors.New("too much output")

func (o *output) Write(b []byte) (int, error) {
	if o.Len()+len(b) > OutputBytesMax {
		o.over = true
		panic(errOutput)
	}
	return o.Buffer.Write(b)
}

// tail is the end of the standard error of a module.
type tail struct{ b []byte }

func (t *tail) Write(b []byte) (int, error) {
	t.b = append(t.b, b[max(0, len(b)-errorBytesMax):]...)
	t.b = append(t.b[:0], t.b[max(0, len(t.b)-errorBytesMax):]...)
	return len(b), nil
}

// quoted returns the text for the end of an error.
func (t *tail) quoted() string {
	text := strings.TrimSpace(strings.ToValidUTF8(string(t.b), "\uFFFD"))
	if text == "" {
		return ""
	}
	return "; standard error: " + text
}

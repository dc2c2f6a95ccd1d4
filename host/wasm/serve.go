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
	startBytesMax   = 64 << 10
	processBytesMax = 512 << 20 // writable memory of the process: the compiler, the instance, and its stack
	heapBytesGoal   = 256 << 20 // from which on the collector works harder
	processors      = 2         // one for the module, and one that notices the end of the server
)

// start is the first message to a worker.
type start struct {
	Cache  string   `json:"cache,omitzero"` // folder of compiled modules
	Grants []string `json:"grants,omitzero"`
	Stream bool     `json:"stream,omitzero"` // the module gets the rest of standard input, and writes standard output; see Stream
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
	s, module, err := readStart(in)
	if err != nil {
		return err
	}
	ctx := context.Background()
	g, err := compile(ctx, s, module)
	if err != nil && s.Stream {
		return fmt.Errorf("the module %w", err)
	}
	if err != nil {
		return writeFrame(out, frameFailed, []byte(err.Error()))
	}
	polled := uint64(0)
	if s.Stream {
		polled = 1
	}
	if err := limitFiles(polled); err != nil {
		return fmt.Errorf("limit files: %w", err)
	}
	if s.Stream {
		return g.stream(ctx, in, out)
	}
	if err := writeFrame(out, frameReady); err != nil {
		return err
	}
	frames := make(chan received)
	go receive(in, frames)
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

// readStart reads the first two frames: the start and the module.
func readStart(in io.Reader) (*start, []byte, error) {
	var s start
	kind, body, err := readFrame(in, startBytesMax)
	if err == nil && kind == frameStart && json.Unmarshal(body, &s) == nil {
		if kind, body, err = readFrame(in, ModuleBytesMax); err == nil && kind == frameModule {
			return &s, body, nil
		}
	}
	return nil, nil, errors.New("standard input is not that of a server: the command troupe wasm-worker is for troupe serve")
}

// received is a frame of the server.
type received struct {
	kind byte
	body []byte
}

// receive passes the frames of the server on. At its end the process ends as well, whatever a module does.
func receive(in io.Reader, frames chan<- received) {
	for {
		kind, body, err := readFrame(in, tools.InputBytesMax+seedBytes)
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

// instance returns the configuration of an instance, with what is granted.
func (g *guest) instance(seed [seedBytes]byte) wazero.ModuleConfig {
	config := wazero.NewModuleConfig().WithName("").WithArgs("tool").WithRandSource(mathrand.NewChaCha8(seed))
	if slices.Contains(g.grants, tools.GrantRandom) {
		config = config.WithRandSource(rand.Reader)
	}
	if slices.Contains(g.grants, tools.GrantClock) {
		config = config.WithSysWalltime().WithSysNanotime().WithSysNanosleep()
	}
	return config
}

// stream runs one instance until it ends. A file as standard input can be polled, so that the goroutines of a
// module continue while one of them reads.
func (g *guest) stream(ctx context.Context, in io.Reader, out io.Writer) error {
	config := g.instance([seedBytes]byte{}).WithStdin(in).WithStdout(out).WithStderr(os.Stderr)
	_, err := g.runtime.InstantiateModule(ctx, g.compiled, config)
	var exit *sys.ExitError
	switch {
	case err == nil, errors.As(err, &exit) && exit.ExitCode() == 0:
		return nil
	case exit != nil:
		return fmt.Errorf("the module ended with exit code %d", exit.ExitCode())
	}
	return fmt.Errorf("the module trapped: %s", trapOf(err))
}

// trapOf returns the cause of a trap.
func trapOf(err error) string {
	text, _, _ := strings.Cut(err.Error(), "\nwasm stack trace:")
	if _, cause, ok := strings.Cut(text, "] failed: "); ok {
		text = cause
	}
	return actor.FitText(strings.ToValidUTF8(text, "\uFFFD"), errorBytesMax)
}

// call performs a call in a fresh instance.
func (g *guest) call(ctx context.Context, seed [seedBytes]byte, input []byte) ([]byte, error) {
	out, errs := &output{}, &tail{}
	config := g.instance(seed).WithStdin(bytes.NewReader(input)).WithStdout(out).WithStderr(errs)
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
	return nil, fmt.Errorf("trapped: %s%s", trapOf(err), errs.quoted())
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

// SPDX-License-Identifier: Apache-2.0

package wasm

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Instructions of WebAssembly that the modules of the tests use.
const (
	opUnreachable = 0x00
	opLoop        = 0x03
	opEnd         = 0x0b
	opBr          = 0x0c
	opBrIf        = 0x0d
	opCall        = 0x10
	opDrop        = 0x1a
	opLocalGet    = 0x20
	opLocalTee    = 0x22
	opLoad        = 0x28
	opStore       = 0x36
	opGrow        = 0x40
	opConst       = 0x41
	opConst64     = 0x42
	opAdd         = 0x6a
	opLess        = 0x49 // i32.lt_u
	void          = 0x40
)

// Functions that the modules import, by their index. Their own functions follow.
const (
	fdWrite = iota
	fdRead
	procExit
	randomGet
	clockTimeGet
	own
)

// binaryModule describes a module. Function i of code has the index own+i; the last one is _start.
type binaryModule struct {
	code   [][]byte // without local variables and end
	locals int      // of type i32, of each function
	pages  uint64   // of memory
	table  uint64   // elements
	start  bool     // the last function runs before _start as well
	data   string   // at address 0
	from   string   // module of the imports; "": that of WASI
}

func uleb(n uint64) []byte { return binary.AppendUvarint(nil, n) }

func sleb(n int64) (b []byte) {
	for {
		c := byte(n & 0x7f)
		n >>= 7
		if n == 0 && c&0x40 == 0 || n == -1 && c&0x40 != 0 {
			return append(b, c)
		}
		b = append(b, c|0x80)
	}
}

func text(s string) []byte { return append(uleb(uint64(len(s))), s...) }

func section(id byte, items ...[]byte) []byte {
	body := uleb(uint64(len(items)))
	for _, item := range items {
		body = append(body, item...)
	}
	return append(append([]byte{id}, uleb(uint64(len(body)))...), body...)
}

// constant pushes a number.
func constant(n int64) []byte { return append([]byte{opConst}, sleb(n)...) }

func code(parts ...[]byte) []byte { return bytes.Join(parts, nil) }

func op(b ...byte) []byte { return b }

// bytes returns the binary form.
func (m *binaryModule) bytes() []byte {
	const i32, i64, function = 0x7f, 0x7e, 0x60
	b := bytes.Clone(magic)
	b = append(b, section(1, op(function, 0, 0), op(function, 4, i32, i32, i32, i32, 1, i32), op(function, 1, i32, 0),
		op(function, 2, i32, i32, 1, i32), op(function, 3, i32, i64, i32, 1, i32))...)
	from := m.from
	if from == "" {
		from = "wasi_snapshot_preview1"
	}
	imported := func(name string, kind byte) []byte { return code(text(from), text(name), op(0, kind)) }
	b = append(b, section(2, imported("fd_write", 1), imported("fd_read", 1), imported("proc_exit", 2), imported("random_get", 3), imported("clock_time_get", 4))...)
	var kinds, bodies [][]byte
	for _, c := range m.code {
		kinds = append(kinds, op(0))
		locals := op(0)
		if m.locals > 0 {
			locals = op(1, byte(m.locals), i32)
		}
		body := code(locals, c, op(opEnd))
		bodies = append(bodies, append(uleb(uint64(len(body))), body...))
	}
	b = append(b, section(3, kinds...)...)
	if m.table > 0 {
		b = append(b, section(4, code(op(0x70, 0), uleb(m.table)))...)
	}
	b = append(b, section(5, code(op(0), uleb(max(m.pages, 1))))...)
	last := uleb(uint64(own + len(m.code) - 1))
	b = append(b, section(7, code(text("memory"), op(2, 0)), code(text("_start"), op(0), last))...)
	if m.start {
		b = append(b, 8, byte(len(last)))
		b = append(b, last...)
	}
	b = append(b, section(10, bodies...)...)
	return append(b, section(11, code(op(0), constant(0), op(opEnd), text(m.data)))...)
}

// vector is an entry of the list that fd_read and fd_write take, at address 0: 60,000 bytes at address 64. The
// number of bytes that they report is at address 8.
const vector = "\x40\x00\x00\x00\x60\xea\x00\x00"

// writes prints the bytes of the vector.
var writes = code(constant(1), constant(0), constant(1), constant(8), op(opCall, fdWrite, opDrop))

// prints returns code that prints the first n bytes at address 64.
func prints(n int64) []byte {
	return code(constant(4), constant(n), op(opStore, 2, 0), writes)
}

// loops returns an endless loop.
func loops(body ...byte) []byte { return code(op(opLoop, void), body, op(opBr, 0, opEnd)) }

// doubles returns functions that each call the next one twice: 2^levels calls of the last one, without a loop.
func doubles(levels int, last []byte) [][]byte {
	all := [][]byte{last}
	for i := range levels {
		next := byte(own + i)
		all = append(all, op(opCall, next, opCall, next))
	}
	return all
}

// echo prints its arguments.
var echo = &binaryModule{data: vector, code: [][]byte{code(constant(0), constant(0), constant(1), constant(8), op(opCall, fdRead, opDrop),
	constant(4), constant(8), op(opLoad, 2, 0, opStore, 2, 0), writes)}}

// million asks for the time a million times, and prints 1.
var million = &binaryModule{data: vector + strings.Repeat("\x00", 56) + "1", locals: 1, code: [][]byte{code(op(opLoop, void),
	constant(0), op(opConst64, 0), constant(16), op(opCall, clockTimeGet, opDrop),
	op(opLocalGet, 0), constant(1), op(opAdd, opLocalTee, 0), constant(1_000_000), op(opLess, opBrIf, 0, opEnd), prints(1))}}

func TestCheckModule(t *testing.T) {
	module := echo.bytes()
	sum := Sum(module)
	for _, c := range []struct {
		module    []byte
		sum, want string
	}{
		{module, sum, ""},
		{[]byte("(module)"), Sum([]byte("(module)")), "is no module of WebAssembly"},
		{nil, sum, "is no module of WebAssembly"},
		{[]byte("\x00asm\x0d\x00\x01\x00"), sum, "is no module of WebAssembly"}, // a component
		{append(bytes.Clone(module), 0), sum, "the definition names " + fmt.Sprintf("%q", sum)},
		{append(bytes.Clone(magic), make([]byte, ModuleBytesMax)...), sum, "at most 33554432 allowed"},
	} {
		if err := CheckModule(c.module, c.sum); (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%.20q: got %v, want %q", c.module, err, c.want)
		}
	}
}

func TestModulesAreKeptBySum(t *testing.T) {
	m := modules{filepath.Join(t.TempDir(), "wasm")}
	module := echo.bytes()
	sum := Sum(module)
	if m.has(sum) {
		t.Error("an empty folder has a module")
	}
	for range 2 {
		if err := m.put(sum, module); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := m.get(sum); err != nil || !bytes.Equal(got, module) || !m.has(sum) {
		t.Errorf("got %d bytes, %v", len(got), err)
	}
	if err := os.WriteFile(m.path(sum), append(module, 0), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := m.get(sum); err == nil {
		t.Error("a changed file is taken for the module")
	}
}

func TestCacheIsBounded(t *testing.T) {
	dir := t.TempDir()
	for i := range 4 {
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprint(i)), make([]byte, 100), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	pruneCache(dir, 250)
	left, err := os.ReadDir(dir)
	if err != nil || len(left) != 2 {
		t.Errorf("%d files are left, want 2: %v", len(left), err)
	}
}

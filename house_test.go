// SPDX-License-Identifier: Apache-2.0

package troupe

// The house keeps itself. This file holds the table of rooms and the list of rules that
// a reader would otherwise have to remember; each message says what to write
// instead. TestHouse asks every rule of the tree as it is, TestEachRuleBites
// shows each of them a small breach that it must find.
//
// What needs types (ranging over a map) is the second net's: the purity
// analyzer in internal/tools, which `make lint` runs.

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/troupe-run/troupe"

// A room is a folder with all that lies below it, but for what has a row of its own.
type room struct {
	floor  int
	ours   []string // the rooms it may import
	theirs []string // the modules of others it may import
	std    []string // below floor 3: standard packages it may import besides pureStd
}

var (
	floor0 = []string{"actor"}
	floor1 = []string{"dispatcher", "history", "runs", "store", "upstream", "tools"}
	floor2 = []string{"runtime", "agents", "ingress", "specs", "specs/linear"}

	below2 = slices.Concat(floor0, floor1)
	below3 = slices.Concat(below2, floor2)
	every  = slices.Concat(below3, []string{"sim", "host", "host/engine", "host/disk", "host/gateway", "host/outbound"})
	// Hosts perform; only the simulator and those who wire it judge by specs.
	host = slices.DeleteFunc(slices.Clone(every), func(r string) bool {
		return r == "sim" || strings.HasPrefix(r, "specs")
	})
	// Programs that measure write what they find into a page, and draw it.
	writers = slices.Concat(every, []string{"internal/mdsection", "internal/svgplot"})
)

const (
	porcupine  = "github.com/anishathalye/porcupine"
	protoactor = "github.com/asynkron/protoactor-go"
	pebble     = "github.com/cockroachdb/pebble/v2"
)

// rooms is the map of the house: a room may import the rooms of its row and
// what stands under everything (internal/invariant, internal/mutant, internal/failpoint). Floors 0 to 2
// are pure. A row whose folder has not been built yet waits for it.
var rooms = map[string]room{
	".": {floor: 4},

	"actor": {floor: 0},

	"dispatcher": {floor: 1, ours: floor0},
	"history":    {floor: 1, ours: floor0},
	"runs":       {floor: 1, ours: floor0},
	"store":      {floor: 1, ours: floor0},
	"upstream":   {floor: 1, ours: []string{"actor", "runs"}},
	"tools":      {floor: 1, ours: []string{"actor", "runs"}},

	"runtime":      {floor: 2, ours: below2},
	"agents":       {floor: 2, ours: []string{"actor", "tools", "runs", "upstream"}, std: []string{"iter"}},
	"ingress":      {floor: 2, ours: []string{"actor", "runs", "history"}},
	"specs":        {floor: 2, ours: []string{"actor", "history", "runs", "specs/linear"}},
	"specs/linear": {floor: 2, ours: []string{"actor", "history", "runs"}, theirs: []string{porcupine}},

	"sim":           {floor: 3, ours: below3, theirs: []string{"github.com/cespare/xxhash/v2"}},
	"host":          {floor: 3, ours: host},
	"host/engine":   {floor: 3, ours: host, theirs: []string{protoactor}},
	"host/disk":     {floor: 3, ours: host, theirs: []string{pebble}},
	"host/outbound": {floor: 3, ours: host},
	"host/gateway": {floor: 3, ours: host, theirs: []string{
		"github.com/valyala/fasthttp", "github.com/fasthttp/router", "github.com/fasthttp/websocket",
		"github.com/prometheus/client_golang", "github.com/prometheus/common"}},

	"simulate":   {floor: 4, ours: every},
	"cmd/troupe": {floor: 4, ours: slices.Concat(writers, []string{"internal/load", "simulate"}), theirs: []string{"github.com/alecthomas/kong", "github.com/schollz/progressbar/v3"}},
	"examples":   {floor: 4, ours: every},

	"internal/invariant":  {floor: 0},
	"internal/failpoint":  {floor: 0},
	"internal/mutant":     {floor: 0, std: []string{"os"}}, // os in the mutants build alone
	"test/demo":           {floor: 4, ours: every},
	"test/crash":          {floor: 4, ours: every},
	"test/clients":        {floor: 4, ours: every},
	"tla/tlc":             {floor: 4, ours: []string{"internal/mdsection", "internal/servertest"}},
	"test/corruption":     {floor: 4, ours: slices.Concat(writers, []string{"internal/servertest"}), theirs: []string{pebble}},
	"internal/mdsection":  {floor: 4},
	"internal/servertest": {floor: 4},
	"internal/svgplot":    {floor: 4},
	"test/scaling":        {floor: 4, ours: writers, theirs: []string{pebble}},
	"test/bench":          {floor: 4, ours: writers, theirs: []string{pebble, "github.com/valyala/fasthttp"}},
	"internal/load":       {floor: 4, ours: writers, theirs: []string{"github.com/HdrHistogram/hdrhistogram-go", "github.com/valyala/fasthttp"}},
	"internal/tools":      {floor: 4, theirs: []string{"golang.org/x/tools", "honnef.co/go/tools"}}, // a module of its own
}

// Every room stands on these.
var underAll = []string{"internal/invariant", "internal/mutant", "internal/failpoint"}

// pureModules of others are functions of bytes: same bytes in, same value out.
// Any room may import them. A new one answers a question in docs/RATIONALE.md.
var pureModules = []string{
	"github.com/BurntSushi/toml",
	"github.com/go-json-experiment/json",
	"github.com/santhosh-tekuri/jsonschema/v6",
}

// testModules may be imported by the tests of any room.
var testModules = []string{"pgregory.net/rapid", porcupine}

// pureStd are the standard packages of the pure floors: each is a function of
// its arguments, or (time, math/rand/v2, context, fmt) so far as pureNames says.
var pureStd = strings.Fields(`bytes cmp container/heap container/list context crypto/hmac crypto/sha256 crypto/subtle
	encoding encoding/base64 encoding/binary encoding/hex encoding/json errors fmt hash hash/crc32 hash/fnv
	hash/maphash html io maps math math/big math/bits math/rand/v2 net/netip net/url reflect regexp slices sort strconv
	strings text/tabwriter text/template time unicode unicode/utf8 unicode/utf16`)

// pureNames are the only names that the pure floors may use of a package that
// also has a clock, a generator of its own or a goroutine.
var pureNames = map[string][]string{
	"time":         strings.Fields("Duration Nanosecond Microsecond Millisecond Second Minute Hour ParseDuration"),
	"math/rand/v2": strings.Fields("New NewPCG NewChaCha8 Rand PCG ChaCha8 Source"),
	"context":      {"Context"},
	"hash/maphash": nil,
}

// insteadOf says what to write where an impure package was reached for.
var insteadOf = map[string]string{
	"time":         "time arrives as an argument: Step(now, input); only Duration and its units are used here",
	"math/rand":    "draw from the cell's own stream, which arrives with its seed",
	"math/rand/v2": "draw from the cell's own stream, which arrives with its seed",
	"crypto/rand":  "draw from the cell's own stream, which arrives with its seed",
	"context":      "return an Ask or an Effect, and let a host give up on it",
	"hash/maphash": "its seed differs in each process: use hash/fnv or crypto/sha256",
	"sync":         "a cell is stepped by one goroutine at a time: a plain field will do",
	"sync/atomic":  "a cell is stepped by one goroutine at a time: a plain field will do",
	"os":           "return an Effect, and let host perform it",
	"net":          "return an Effect, and let host perform it",
	"net/http":     "return an Effect, and let host perform it",
	"log/slog":     "return a history event; host logs it",
	"log":          "return a history event; host logs it",
	"iter":         "coroutines belong to agents, where a turn is one; return a slice",
	"runtime":      "nothing here may depend on the process it runs in",
}

// A house is the tree, read once.
type house struct {
	tree  fs.FS
	files []*file
}

// A file is one text of the tree; Go files are parsed.
type file struct {
	path string
	text string
	fset *token.FileSet
	ast  *ast.File // nil unless Go
}

func (f *file) dir() string  { return path.Dir(f.path) }
func (f *file) isTest() bool { return strings.HasSuffix(f.path, "_test.go") }
func (f *file) room() string { return roomOf(f.dir()) }
func (f *file) pure() bool   { r, ok := rooms[f.room()]; return ok && r.floor < 3 && !f.isTest() }
func (f *file) at(p token.Pos) string {
	return fmt.Sprintf("%s:%d", f.path, f.fset.Position(p).Line)
}

// roomOf finds the row that dir belongs to, or "".
func roomOf(dir string) string {
	for d := dir; d != "."; d = path.Dir(d) {
		if _, ok := rooms[d]; ok {
			return d
		}
	}
	if dir == "." {
		return "."
	}
	return ""
}

// open reads the tree: all that a rule may speak about, and nothing that was
// built or left behind.
func open(tree fs.FS) (*house, error) {
	h := &house{tree: tree}
	err := fs.WalkDir(tree, ".", func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if p != "." && (slices.Contains(leftBehind, p) || d.Name() == "testdata" || d.Name() == ".git") {
				return fs.SkipDir
			}
			return nil
		}
		if !slices.Contains([]string{".go", ".md", ".tla", ".cfg"}, path.Ext(p)) && p != "Makefile" && path.Dir(p) != ".ci" {
			return nil
		}
		b, err := fs.ReadFile(tree, p)
		if err != nil {
			return err
		}
		f := &file{path: p, text: string(b), fset: token.NewFileSet()}
		if path.Ext(p) == ".go" {
			if f.ast, err = parser.ParseFile(f.fset, p, b, parser.ParseComments|parser.SkipObjectResolution); err != nil {
				return err
			}
		}
		h.files = append(h.files, f)
		return nil
	})
	return h, err
}

// leftBehind are the folders of .gitignore.
var leftBehind = []string{"bin", ".cache", "data", "sim-out"}

func (h *house) goFiles() []*file {
	return slices.DeleteFunc(slices.Clone(h.files), func(f *file) bool { return f.ast == nil })
}

// docs are the pages that speak of the tree as it is now.
func (h *house) docs() []*file {
	return slices.DeleteFunc(slices.Clone(h.files), func(f *file) bool {
		return path.Ext(f.path) != ".md" || f.path == "CHANGELOG.md"
	})
}

func (h *house) text(p string) string {
	b, _ := fs.ReadFile(h.tree, p)
	return string(b)
}

func (h *house) has(p string) bool { _, err := fs.Stat(h.tree, p); return err == nil }

// A rule finds its breaches, each as "path:line: what is wrong; what to do instead".
type rule struct {
	name string
	find func(*house) []string
}

var rules = []rule{
	{"every package stands in a room", everyPackageHasARoom},
	{"rooms import what their row allows", importsFollowTheTable},
	{"every dependency answers a question", everyDependencyAnswersAQuestion},
	{"pure floors use pure names", pureFloorsUsePureNames},
	{"pure floors have one thread", pureFloorsHaveOneThread},
	{"every package has its sentence", everyPackageHasItsSentence},
	{"every Go file names its licence", everyFileNamesItsLicence},
	{"nothing is left for later", nothingIsLeftForLater},
	{"tests do not sleep", testsDoNotSleep},
	{"only the engine makes Props", onlyTheEngineMakesProps},
	{"paths in docs exist", pathsInDocsExist},
	{"names of rooms in docs exist", namesInDocsExist},
	{"targets in docs exist", targetsInDocsExist},
	{"outside names stand where docs say", outsideNamesStandWhereDocsSay},
	{"errors.md has the table of refusals", errorsHasTheTableOfRefusals},
	{"the architecture names every room", architectureNamesEveryRoom},
	{"the analyzer knows the pure rooms", analyzerKnowsThePureRooms},
}

func TestHouse(t *testing.T) {
	h, err := open(os.DirFS("."))
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range rules {
		t.Run(r.name, func(t *testing.T) {
			for _, breach := range r.find(h) {
				t.Error(breach)
			}
		})
	}
}

// SPDX-License-Identifier: Apache-2.0

package arch

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

// A pkg is a folder and everything below it, except folders with a row of their own.
type pkg struct {
	layer  int
	ours   []string // packages of this module it may import
	theirs []string // external modules it may import
	std    []string // below layer 3: standard packages it may import in addition to pureStd
	tests  []string // packages of this module that its tests may import in addition
}

var (
	layer0 = []string{"actor"}
	layer1 = []string{"contract", "dispatcher", "history", "memory", "placement", "runs", "signals", "store", "upstream", "tools"}
	layer2 = []string{"runtime", "agents", "ingress", "specs", "specs/linear"}

	below2 = slices.Concat(layer0, layer1)
	below3 = slices.Concat(below2, layer2)
	every  = slices.Concat(below3, []string{"sim", "host", "host/engine", "host/logs", "host/disk", "host/postgres", "host/gateway", "host/outbound", "host/devices", "host/mcp", "host/wasm", "host/webhooks", "host/prompts", "host/traces"})
	// host are the packages that host packages may import: all but the simulator and the specs.
	host = slices.DeleteFunc(slices.Clone(every), func(r string) bool {
		return r == "sim" || strings.HasPrefix(r, "specs")
	})
	// A node wires the host packages together. It does not import the gateway: a
	// node without one listens on no socket.
	wired = slices.Concat(slices.DeleteFunc(slices.Clone(host), func(r string) bool { return r == "host/gateway" }), []string{"internal/command", "internal/shares"})
	// Programs open nodes and send them commands.
	nodes = []string{"internal/command", "internal/node"}
	// writers are the packages for programs that write tables into a page.
	writers  = slices.Concat(every, nodes, []string{"internal/mdsection"})
	programs = slices.Concat(every, []string{"internal/servertest"})
)

const (
	porcupine  = "github.com/anishathalye/porcupine"
	protoactor = "github.com/asynkron/protoactor-go"
	pebble     = "github.com/cockroachdb/pebble/v2"
	pgx        = "github.com/jackc/pgx/v5"
	unix       = "golang.org/x/sys/unix"
	mcpSDK     = "github.com/modelcontextprotocol/go-sdk"
)

// packages is the import table: a package may import the packages of its row and
// those of common. Layers 0 to 2 are pure.
var packages = map[string]pkg{
	".": {layer: 4, ours: []string{"actor", "agents", "dispatcher", "ingress", "runs", "signals", "host/disk", "host/gateway", "host/outbound", "internal/client", "internal/command", "internal/emitter", "internal/node", "internal/program", "internal/service", "tools"},
		theirs: []string{"github.com/valyala/fasthttp", "github.com/google/jsonschema-go"}},

	"actor": {layer: 0},

	"docs":   {layer: 0, std: []string{"embed"}},
	"sdk/js": {layer: 0, std: []string{"embed"}},

	"contract":   {layer: 1, ours: []string{"actor", "tools"}, std: []string{"embed"}},
	"dispatcher": {layer: 1, ours: layer0},
	"history":    {layer: 1, ours: layer0},
	"memory":     {layer: 1, ours: []string{"actor", "runs"}},
	"placement":  {layer: 1, ours: layer0},
	"runs":       {layer: 1, ours: layer0},
	"signals":    {layer: 1, ours: layer0},
	"store":      {layer: 1, ours: []string{"actor", "runs", "upstream"}, tests: []string{"store/storetest"}},
	"upstream":   {layer: 1, ours: []string{"actor", "runs", "dispatcher"}, std: []string{"embed"}},
	"tools":      {layer: 1, ours: []string{"actor", "runs"}},

	"runtime":      {layer: 2, ours: below2},
	"agents":       {layer: 2, ours: []string{"actor", "contract", "memory", "tools", "runs", "upstream"}, std: []string{"embed", "iter"}},
	"ingress":      {layer: 2, ours: []string{"actor", "memory", "runs", "history", "signals"}},
	"specs":        {layer: 2, ours: []string{"actor", "history", "runs", "specs/linear"}},
	"specs/linear": {layer: 2, ours: []string{"actor", "history", "runs"}, theirs: []string{porcupine}},

	"sim":           {layer: 3, ours: slices.Concat(below3, []string{"internal/emitter"}), theirs: []string{"github.com/cespare/xxhash/v2"}, tests: []string{"placement/placementtest"}},
	"host":          {layer: 3, ours: host},
	"host/engine":   {layer: 3, ours: slices.Concat(host, []string{"internal/command", "internal/emitter"}), theirs: []string{protoactor}},
	"host/logs":     {layer: 3, ours: host},
	"host/disk":     {layer: 3, ours: slices.Concat(host, []string{"host/logs"}), theirs: []string{pebble}, tests: []string{"store/storetest"}},
	"host/postgres": {layer: 3, ours: slices.Concat(host, []string{"host/logs"}), theirs: []string{pgx, unix}, tests: []string{"placement/placementtest", "store/storetest", "internal/postgrestest"}},
	"host/outbound": {layer: 3, ours: slices.Concat(host, []string{"internal/shares"})},
	"host/devices":  {layer: 3, ours: host},
	"host/webhooks": {layer: 3, ours: host},
	"host/prompts":  {layer: 3, ours: host},
	"host/traces":   {layer: 3, ours: host},
	"host/mcp":      {layer: 3, ours: slices.Concat(host, []string{"internal/shares"}), theirs: []string{mcpSDK}},
	"host/wasm":     {layer: 3, ours: slices.Concat(host, []string{"internal/shares"}), theirs: []string{"github.com/tetratelabs/wazero"}},
	// The gateway reaches a node by commands only, so that it can run apart from it.
	"host/gateway": {layer: 3, ours: []string{"actor", "agents", "contract", "docs", "history", "ingress", "memory", "runs", "signals", "internal/client", "internal/command", "internal/shares", "sdk/js"}, theirs: []string{
		"github.com/valyala/fasthttp", "github.com/fasthttp/router", "github.com/fasthttp/websocket",
		"github.com/prometheus/client_golang", "github.com/prometheus/common"},
		tests: slices.Concat(host, []string{"internal/node"})},

	"simulate":   {layer: 4, ours: every},
	"cmd/troupe": {layer: 4, ours: slices.Concat(writers, []string{"internal/link", "internal/load", "internal/mutant", "internal/servertest", "internal/service", "simulate"}), theirs: []string{"github.com/alecthomas/kong", "github.com/fasthttp/websocket", "github.com/schollz/progressbar/v3", "golang.org/x/term", mcpSDK}},
	"troupetest": {layer: 4, ours: []string{".", "actor", "agents", "internal/emitter", "internal/program", "simulate", "tools", "upstream"}},
	"examples":   {layer: 4, ours: []string{"."}, theirs: []string{mcpSDK}},

	"placement/placementtest": {layer: 3, ours: []string{"actor", "placement"}, theirs: []string{"pgregory.net/rapid"}},
	"store/storetest":         {layer: 3, ours: []string{"actor", "runs", "store"}, theirs: []string{"pgregory.net/rapid"}},
	"internal/apitest":        {layer: 4, tests: []string{"."}},
	"internal/arch":           {layer: 4},
	"internal/invariant":      {layer: 0},
	"internal/nearest":        {layer: 0},
	"internal/failpoint":      {layer: 0},
	"internal/client":         {layer: 3, ours: []string{"actor", "agents", "contract", "ingress", "memory", "runs", "signals", "internal/command"}},
	"internal/command":        {layer: 3, ours: []string{"actor", "history", "runs"}}, // it knows neither the engine nor a store
	"internal/emitter":        {layer: 3},
	"internal/shares":         {layer: 3, ours: []string{"actor"}},
	"internal/postgrestest":   {layer: 3, theirs: []string{pgx}},
	"internal/program":        {layer: 4, ours: []string{"actor", "tools"}},
	"internal/node":           {layer: 3, ours: wired, tests: []string{"internal/postgrestest"}},
	"internal/link":           {layer: 4, ours: []string{"actor", "host/gateway", "ingress", "internal/command"}, tests: slices.Concat(wired, []string{"internal/node", "internal/postgrestest"})},
	"internal/service":        {layer: 4, ours: slices.Concat(wired, []string{"host/gateway", "internal/link", "internal/node"}), theirs: []string{"github.com/fsnotify/fsnotify"}},
	"internal/mutant":         {layer: 4},
	"test/demo":               {layer: 4, ours: programs},
	"test/crash":              {layer: 4, ours: programs, tests: []string{"internal/postgrestest"}, theirs: []string{pgx}},
	"test/clients":            {layer: 4, ours: programs, tests: []string{"."}, theirs: []string{"github.com/fasthttp/websocket"}},
	"tla/tlc":                 {layer: 4, ours: []string{"internal/servertest"}},
	"test/corruption":         {layer: 4, ours: slices.Concat(writers, []string{"internal/servertest"}), theirs: []string{pebble}},
	"internal/mdsection":      {layer: 4},
	"internal/servertest":     {layer: 4},
	"test/bench":              {layer: 4, ours: writers, theirs: []string{pebble, "github.com/valyala/fasthttp"}},
	"test/bench/peers": {layer: 4, ours: slices.Concat(writers, []string{"internal/mdsection"}), // a module of its own
		theirs: []string{"github.com/anthdm/hollywood", protoactor, "github.com/tochemey/goakt"}},
	"internal/load":        {layer: 4, ours: writers, theirs: []string{"github.com/HdrHistogram/hdrhistogram-go", "github.com/valyala/fasthttp"}},
	"test/internal/gotest": {layer: 4},
	"test/internal/change": {layer: 4},
	"internal/tools":       {layer: 4, theirs: []string{"golang.org/x/tools", "honnef.co/go/tools"}}, // a module of its own

	"test/internal/commits": {layer: 4},
	"test/internal/overlay": {layer: 4},
}

// common packages may be imported by every package.
var common = []string{"internal/invariant", "internal/failpoint", "internal/nearest"}

// pureModules are external modules whose results depend on their arguments only. Any package
// may import them. A new module needs an entry in docs/RATIONALE.md.
var pureModules = []string{
	"github.com/BurntSushi/toml",
	"github.com/go-json-experiment/json",
	"github.com/santhosh-tekuri/jsonschema/v6",
	"golang.org/x/text",
}

// testModules may be imported by the tests of any package.
var testModules = []string{"pgregory.net/rapid", porcupine, mcpSDK}

// pureStd are the standard packages allowed in the pure layers: their results
// depend on their arguments only, or pureNames restricts the names that may be used.
var pureStd = strings.Fields(`bytes cmp container/heap container/list context crypto/aes crypto/cipher crypto/ed25519 crypto/hmac crypto/sha256 crypto/subtle
	encoding encoding/base64 encoding/binary encoding/hex encoding/json errors fmt hash hash/crc32 hash/fnv
	hash/maphash html io maps math math/big math/bits math/rand/v2 net/netip net/url reflect regexp regexp/syntax slices sort
	strconv strings text/tabwriter text/template time unicode unicode/utf8 unicode/utf16`)

// pureNames are the only names the pure layers may use of a package that also
// offers a clock, a random generator or goroutines.
var pureNames = map[string][]string{
	"time":         strings.Fields("Duration Nanosecond Microsecond Millisecond Second Minute Hour ParseDuration"),
	"math/rand/v2": strings.Fields("New NewPCG NewChaCha8 Rand PCG ChaCha8 Source"),
	"context":      {"Context"},
	"hash/maphash": nil,

	"crypto/ed25519": strings.Fields("NewKeyFromSeed Sign PrivateKey PublicKey"),
}

// insteadOf maps an impure package to the remedy.
var insteadOf = map[string]string{
	"time":         "time is an argument: Step(now, input); only Duration and its units are used here",
	"math/rand":    "draw from the cell's own stream, which is seeded by an input",
	"math/rand/v2": "draw from the cell's own stream, which is seeded by an input",
	"crypto/rand":  "draw from the cell's own stream, which is seeded by an input",
	"context":      "return an Ask or an Effect, and let host cancel it",
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

// A checkout is the repository, read once.
type checkout struct {
	tree  fs.FS
	files []*file
}

// A file is one text file of the checkout; Go files are parsed.
type file struct {
	path string
	text string
	fset *token.FileSet
	ast  *ast.File // nil unless Go
}

func (f *file) dir() string  { return path.Dir(f.path) }
func (f *file) isTest() bool { return strings.HasSuffix(f.path, "_test.go") }
func (f *file) row() string  { return rowOf(f.dir()) }
func (f *file) pure() bool   { r, ok := packages[f.row()]; return ok && r.layer < 3 && !f.isTest() }
func (f *file) at(p token.Pos) string {
	return fmt.Sprintf("%s:%d", f.path, f.fset.Position(p).Line)
}

// rowOf returns the name of the row that dir belongs to, or "".
func rowOf(dir string) string {
	for d := dir; d != "."; d = path.Dir(d) {
		if _, ok := packages[d]; ok {
			return d
		}
	}
	if dir == "." {
		return "."
	}
	return ""
}

// open reads all files that rules apply to. Build products and folders listed
// in .gitignore are omitted.
func open(tree fs.FS) (*checkout, error) {
	c := &checkout{tree: tree}
	err := fs.WalkDir(tree, ".", func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if p != "." && (slices.Contains(ignored, p) || d.Name() == "testdata" || d.Name() == ".git") {
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
		c.files = append(c.files, f)
		return nil
	})
	return c, err
}

// ignored lists the folders of .gitignore.
var ignored = []string{"bin", ".cache", "data", "sim-out"}

func (c *checkout) goFiles() []*file {
	return slices.DeleteFunc(slices.Clone(c.files), func(f *file) bool { return f.ast == nil })
}

// docs returns the pages that describe the current state, all but the changelog.
func (c *checkout) docs() []*file {
	return slices.DeleteFunc(slices.Clone(c.files), func(f *file) bool {
		return path.Ext(f.path) != ".md" || f.path == "CHANGELOG.md"
	})
}

func (c *checkout) text(p string) string {
	b, _ := fs.ReadFile(c.tree, p)
	return string(b)
}

func (c *checkout) has(p string) bool { _, err := fs.Stat(c.tree, p); return err == nil }

// A rule returns its breaches, each as "path:line: problem; remedy".
type rule struct {
	name string
	find func(*checkout) []string
}

var rules = []rule{
	{"every package has a row in the table", everyPackageHasARow},
	{"packages import what their row allows", importsFollowTheTable},
	{"every dependency has a rationale", everyDependencyHasARationale},
	{"pure layers use pure names", pureLayersUsePureNames},
	{"pure layers have no concurrency", pureLayersHaveNoConcurrency},
	{"every package has a package comment", everyPackageHasAComment},
	{"importable packages name their promise", everyPackageNamesItsPromise},
	{"every Go file has the licence line", everyFileHasTheLicenceLine},
	{"no file has an open task mark", noOpenTaskMarks},
	{"tests do not sleep", testsDoNotSleep},
	{"only the engine makes Props", onlyTheEngineMakesProps},
	{"large types do not grow", typesDoNotGrow},
	{"machinery does not grow", machineryDoesNotGrow},
	{"rows are known behind the seam only", rowsAreBehindTheSeam},
	{"paths in docs exist", pathsInDocsExist},
	{"exported names in docs exist", exportedNamesInDocsExist},
	{"make targets in docs exist", targetsInDocsExist},
	{"tests that the Makefile runs by name exist", testsInMakefileExist},
	{"the stages of CI end in time", stagesEndInTime},
	{"external names are found where docs/NAMES.md says", externalNamesAreFound},
	{"requirements in docs/NAMES.md are met", requirementsAreMet},
	{"docs/errors.md matches the table of refusals", errorsPageMatchesRefusals},
	{"docs/ARCHITECTURE.md names every package", architectureNamesEveryPackage},
	{"the analyzer knows the pure packages", analyzerKnowsThePurePackages},
	{"a list of files is complete", fileListsAreComplete},
	{"the list of routes equals the table", routeListIsComplete},
	{"records in docs exist", recordsInDocsExist},
	{"closed sets are in one file", closedSetsAreInOneFile},
}

func TestArchitecture(t *testing.T) {
	c, err := open(os.DirFS("../.."))
	if err != nil {
		t.Fatal(err)
	}
	t.Log("lines by purpose:", c.linesByPurpose())
	for _, r := range rules {
		t.Run(r.name, func(t *testing.T) {
			for _, breach := range r.find(c) {
				t.Error(breach)
			}
		})
	}
}

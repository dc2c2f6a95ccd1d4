// SPDX-License-Identifier: Apache-2.0

package troupe

// The house keeps itself. This file holds the table of rooms, and the rules that
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
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"
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
	writers = slices.Concat(every, []string{"internal/section", "internal/plot"})
)

const (
	porcupine  = "github.com/anishathalye/porcupine"
	protoactor = "github.com/asynkron/protoactor-go"
	pebble     = "github.com/cockroachdb/pebble/v2"
)

// rooms is the map of the house: a room may import the rooms of its row and
// what stands under everything (internal/must, internal/mutant, internal/buggify). Floors 0 to 2
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

	"internal/must":    {floor: 0},
	"internal/buggify": {floor: 0},
	"internal/mutant":  {floor: 0, std: []string{"os"}}, // os in the mutants build alone
	"internal/demo":    {floor: 4, ours: every},
	"internal/crash":   {floor: 4, ours: every},
	"internal/clients": {floor: 4, ours: every},
	"internal/tlc":     {floor: 4, ours: []string{"internal/section", "internal/served"}},
	"internal/rot":     {floor: 4, ours: slices.Concat(writers, []string{"internal/served"}), theirs: []string{pebble}},
	"internal/section": {floor: 4},
	"internal/served":  {floor: 4},
	"internal/plot":    {floor: 4},
	"internal/growth":  {floor: 4, ours: writers, theirs: []string{pebble}},
	"internal/bench":   {floor: 4, ours: writers, theirs: []string{pebble, "github.com/valyala/fasthttp"}},
	"internal/load":    {floor: 4, ours: writers, theirs: []string{"github.com/HdrHistogram/hdrhistogram-go", "github.com/valyala/fasthttp"}},
	"internal/tools":   {floor: 4, theirs: []string{"golang.org/x/tools", "honnef.co/go/tools"}}, // a module of its own
}

// Every room stands on these.
var underAll = []string{"internal/must", "internal/mutant", "internal/buggify"}

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

func everyPackageHasARoom(h *house) (found []string) {
	for _, f := range h.goFiles() {
		if f.room() == "" {
			found = append(found, f.path+": this folder has no row in the table of rooms; move the file, or add a row to house_test.go")
		}
	}
	return found
}

func importsFollowTheTable(h *house) (found []string) {
	for _, f := range h.goFiles() {
		for _, spec := range f.ast.Imports {
			p, _ := strconv.Unquote(spec.Path.Value)
			if why := mayNotImport(f, p); why != "" {
				found = append(found, fmt.Sprintf("%s: %s may not import %s; %s", f.at(spec.Pos()), f.room(), p, why))
			}
		}
	}
	return found
}

// mayNotImport says why f may not import p, or "".
func mayNotImport(f *file, p string) string {
	r := rooms[f.room()]
	under := func(roots []string) bool {
		return slices.ContainsFunc(roots, func(root string) bool { return p == root || strings.HasPrefix(p, root+"/") })
	}
	switch {
	case p == module || strings.HasPrefix(p, module+"/"):
		to := roomOf(strings.TrimPrefix(strings.TrimPrefix(p, module), "/"))
		if to == f.room() || slices.Contains(r.ours, to) || slices.Contains(underAll, to) {
			return ""
		}
		if floor := rooms[to].floor; f.isTest() && to != "" && floor <= r.floor && floor < 3 {
			return "" // a test may look at any pure room that stands no higher
		}
		if len(r.ours) == 0 {
			return "it stands on nothing of ours: move the line to a room above"
		}
		return "it may import " + strings.Join(r.ours, ", ") + ": move the line to a room above, or pass a value in"
	case strings.Contains(strings.Split(p, "/")[0], "."):
		if under(r.theirs) || under(pureModules) || f.isTest() && under(testModules) {
			return ""
		}
		return "a module of others enters through the table in house_test.go and a question in docs/RATIONALE.md"
	case !f.pure() || slices.Contains(pureStd, p) || slices.Contains(r.std, p):
		return ""
	default:
		if why, ok := insteadOf[p]; ok {
			return why
		}
		return "floors 0-2 are pure: if the package is a function of its arguments, add it to pureStd in house_test.go; else return an Effect"
	}
}

// everyDependencyAnswersAQuestion looks for the name of each module that go.mod
// requires directly in a heading or a paragraph of docs/RATIONALE.md.
func everyDependencyAnswersAQuestion(h *house) (found []string) {
	const page = "docs/RATIONALE.md"
	for i, line := range strings.Split(h.text("go.mod"), "\n") {
		m := regexp.MustCompile(`^(?:require )?\s*([a-z0-9.-]+\.[a-z]+/\S+) v\S+$`).FindStringSubmatch(line)
		if m == nil {
			continue
		}
		name := path.Base(regexp.MustCompile(`/v[0-9]+$`).ReplaceAllString(m[1], ""))
		if !strings.Contains(strings.ToLower(h.text(page)), name) {
			found = append(found, fmt.Sprintf("go.mod:%d: why %s? Answer in %s, or do without it", i+1, m[1], page))
		}
	}
	return found
}

func pureFloorsUsePureNames(h *house) (found []string) {
	for _, f := range h.goFiles() {
		if !f.pure() {
			continue
		}
		imported := map[string]string{} // name in this file to path
		for _, spec := range f.ast.Imports {
			p, _ := strconv.Unquote(spec.Path.Value)
			if _, ok := pureNames[p]; !ok {
				continue
			}
			name := path.Base(strings.TrimSuffix(p, "/v2"))
			if spec.Name != nil {
				name = spec.Name.Name
			}
			imported[name] = p
		}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.SelectorExpr:
				if x, ok := n.X.(*ast.Ident); ok && imported[x.Name] != "" && !slices.Contains(pureNames[imported[x.Name]], n.Sel.Name) {
					found = append(found, fmt.Sprintf("%s: %s.%s is not pure; %s", f.at(n.Pos()), x.Name, n.Sel.Name, insteadOf[imported[x.Name]]))
				}
			case *ast.BasicLit:
				if n.Kind == token.STRING && strings.Contains(n.Value, "%"+"p") {
					found = append(found, f.at(n.Pos())+": an address differs in each process; print the ID")
				}
			}
			return true
		})
	}
	return found
}

func pureFloorsHaveOneThread(h *house) (found []string) {
	for _, f := range h.goFiles() {
		if !f.pure() {
			continue
		}
		say := func(n ast.Node, what string) {
			found = append(found, f.at(n.Pos())+": "+what+" below floor 3; a world turns the crank: return an Effect, and take its outcome as an Input")
		}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.GoStmt:
				say(n, "a goroutine")
			case *ast.SelectStmt:
				say(n, "a select")
			case *ast.ChanType:
				say(n, "a channel")
			case *ast.SendStmt:
				say(n, "a send")
			case *ast.UnaryExpr:
				if n.Op == token.ARROW {
					say(n, "a receive")
				}
			}
			return true
		})
	}
	return found
}

func everyPackageHasItsSentence(h *house) (found []string) {
	sentence := map[string]string{} // by folder
	name := map[string]string{}
	for _, f := range h.goFiles() {
		if f.isTest() {
			continue
		}
		name[f.dir()] = f.ast.Name.Name
		if f.ast.Doc == nil {
			continue
		}
		if sentence[f.dir()] != "" {
			found = append(found, f.path+": a second package doc; keep one, in the file a reader opens first")
		}
		sentence[f.dir()] = f.ast.Doc.Text()
	}
	for _, dir := range sorted(name) {
		want := "Package " + name[dir] + " "
		if name[dir] == "main" {
			want = "Command " + path.Base(dir) + " "
		}
		first, _, _ := strings.Cut(sentence[dir], "\n\n")
		if !strings.HasPrefix(first, want) || !strings.Contains(first, ".") {
			found = append(found, fmt.Sprintf("%s: no sentence of its own; begin its doc with %q and say in one sentence what it is for", dir, want+"…"))
		}
	}
	return found
}

func everyFileNamesItsLicence(h *house) (found []string) {
	for _, f := range h.goFiles() {
		const line = "// SPDX-License-Identifier: Apache-2.0\n"
		if !strings.HasPrefix(f.text, line) {
			found = append(found, f.path+":1: the first line of a Go file is "+strings.TrimSpace(line))
		}
	}
	return found
}

func nothingIsLeftForLater(h *house) (found []string) {
	marks := regexp.MustCompile(`\b(TO` + `DO|FIX` + `ME)\b`)
	for _, f := range h.files {
		for i, line := range strings.Split(f.text, "\n") {
			if mark := marks.FindString(line); mark != "" {
				found = append(found, fmt.Sprintf("%s:%d: %s; code says what is: do it now, or open an issue", f.path, i+1, mark))
			}
		}
	}
	return found
}

func testsDoNotSleep(h *house) (found []string) {
	return h.selectors(func(f *file, x, sel string) string {
		if f.isTest() && x == "time" && sel == "Sleep" {
			return "a test that sleeps is slow or flaky; wait for a signal, or use testing/synctest"
		}
		return ""
	})
}

func onlyTheEngineMakesProps(h *house) (found []string) {
	return h.selectors(func(f *file, _, sel string) string {
		if strings.HasPrefix(sel, "Props"+"From") && f.room() != "host/engine" {
			return "an actor without our Mailbox and Dispatcher would run on threads of its own; spawn it through host/engine"
		}
		return ""
	})
}

// selectors collects what judge says of each x.sel in the tree.
func (h *house) selectors(judge func(f *file, x, sel string) string) (found []string) {
	for _, f := range h.goFiles() {
		ast.Inspect(f.ast, func(n ast.Node) bool {
			if s, ok := n.(*ast.SelectorExpr); ok {
				x, _ := s.X.(*ast.Ident)
				if x == nil {
					x = &ast.Ident{}
				}
				if why := judge(f, x.Name, s.Sel.Name); why != "" {
					found = append(found, fmt.Sprintf("%s: %s.%s; %s", f.at(s.Pos()), x.Name, s.Sel.Name, why))
				}
			}
			return true
		})
	}
	return found
}

var (
	quoted     = regexp.MustCompile("`([^`\n]+)`")
	plainPath  = regexp.MustCompile(`^(\./)?[A-Za-z0-9._*-]+(/[A-Za-z0-9._*-]+)*/?$`)
	link       = regexp.MustCompile(`\]\(([^)#\s]+)[^)]*\)`)
	qualified  = regexp.MustCompile(`^([a-z]+)\.([A-Z][A-Za-z0-9]*)(\.[A-Za-z0-9]+)?$`)
	makeTarget = regexp.MustCompile(`(?:^|[\s$(;&|])make ([a-z]+(?:-[a-z]+)*)\b`)
	fences     = regexp.MustCompile("(?ms)^ *```.*?^ *```")
)

// quotes yields what stands between backticks in prose, with its line.
func (f *file) quotes(each func(line int, text string)) {
	fenced := false
	for i, line := range strings.Split(f.text, "\n") {
		if strings.HasPrefix(strings.TrimSpace(line), "```") {
			fenced = !fenced
		}
		if fenced {
			continue
		}
		for _, m := range quoted.FindAllStringSubmatch(line, -1) {
			each(i+1, m[1])
		}
	}
}

// isPath tells a path of ours from other words between backticks: it ends like
// a file or a folder, or begins with a folder of ours.
func (h *house) isPath(s string) bool {
	if !plainPath.MatchString(s) {
		return false
	}
	s = strings.TrimPrefix(s, "./")
	first, _, deep := strings.Cut(s, "/")
	if slices.Contains(leftBehind, first) {
		return false
	}
	if _, isRoom := rooms[first]; deep && (isRoom || h.has(first) || slices.Contains([]string{"host", "cmd", "internal", "docs"}, first)) {
		return true
	}
	return strings.HasSuffix(s, "/") || slices.Contains([]string{".go", ".md", ".tla", ".cfg", ".mod", ".txt"}, path.Ext(s)) && !strings.HasPrefix(s, "*")
}

// exists tells whether a path written in a doc, perhaps with a star, is there.
func (h *house) exists(p string) bool {
	hits, err := fs.Glob(h.tree, strings.TrimSuffix(strings.TrimPrefix(p, "./"), "/"))
	return err == nil && len(hits) > 0
}

func pathsInDocsExist(h *house) (found []string) {
	for _, f := range h.docs() {
		f.quotes(func(line int, s string) {
			if h.isPath(s) && !h.exists(s) && !h.exists(path.Join(f.dir(), s)) {
				found = append(found, fmt.Sprintf("%s:%d: there is no %s; name what is there, or leave the backticks off a room that is still to come", f.path, line, s))
			}
		})
		for _, m := range link.FindAllStringSubmatch(f.text, -1) {
			if to := path.Join(f.dir(), m[1]); !strings.Contains(m[1], ":") && !h.exists(to) {
				found = append(found, fmt.Sprintf("%s: a link leads to %s, which is not there; correct it", f.path, to))
			}
		}
	}
	return found
}

func namesInDocsExist(h *house) (found []string) {
	exported := map[string]map[string]bool{} // by room, then name
	for _, f := range h.goFiles() {
		if f.isTest() || f.dir() != f.room() {
			continue
		}
		if exported[f.room()] == nil {
			exported[f.room()] = map[string]bool{}
		}
		for _, d := range f.ast.Decls {
			for _, name := range declared(d) {
				exported[f.room()][name] = true
			}
		}
	}
	for _, f := range h.docs() {
		f.quotes(func(line int, s string) {
			m := qualified.FindStringSubmatch(s)
			if m != nil && exported[m[1]] != nil && !exported[m[1]][m[2]] {
				found = append(found, fmt.Sprintf("%s:%d: %s has no %s; write the name it has now", f.path, line, m[1], m[2]))
			}
		})
	}
	return found
}

// declared are the names that a declaration adds to its package.
func declared(d ast.Decl) (names []string) {
	switch d := d.(type) {
	case *ast.FuncDecl:
		if d.Recv == nil {
			names = append(names, d.Name.Name)
		}
	case *ast.GenDecl:
		for _, s := range d.Specs {
			switch s := s.(type) {
			case *ast.TypeSpec:
				names = append(names, s.Name.Name)
			case *ast.ValueSpec:
				for _, n := range s.Names {
					names = append(names, n.Name)
				}
			}
		}
	}
	return names
}

func targetsInDocsExist(h *house) (found []string) {
	targets := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^([a-z]+(?:-[a-z]+)*):`).FindAllStringSubmatch(h.text("Makefile"), -1) {
		targets[m[1]] = true
	}
	for _, f := range h.docs() {
		check := func(text string) {
			for _, m := range makeTarget.FindAllStringSubmatch(text, -1) {
				if !targets[m[1]] {
					found = append(found, fmt.Sprintf("%s: the Makefile has no target %s; write one that `make` prints", f.path, m[1]))
				}
			}
		}
		f.quotes(func(_ int, s string) { check(s) })
		for _, block := range fences.FindAllString(f.text, -1) {
			check(block)
		}
	}
	return found
}

// outsideNamesStandWhereDocsSay reads the tables of docs/NAMES.md: each name in
// backticks in the first column is found in one of the paths in backticks in
// the second, unless that says `later`.
func outsideNamesStandWhereDocsSay(h *house) (found []string) {
	for i, line := range strings.Split(h.text("docs/NAMES.md"), "\n") {
		cells := strings.Split(line, "|")
		if !strings.HasPrefix(line, "|") || len(cells) < 4 || strings.Contains(cells[2], "`later`") {
			continue
		}
		var places []string
		for _, m := range quoted.FindAllStringSubmatch(cells[2], -1) {
			places = append(places, m[1])
		}
		names := quoted.FindAllStringSubmatch(cells[1], -1)
		if len(names) > 0 && len(places) == 0 {
			found = append(found, fmt.Sprintf("docs/NAMES.md:%d: the second column names no place; put the path in backticks, or `later`", i+1))
			continue
		}
		for _, m := range names {
			if !slices.ContainsFunc(places, func(p string) bool { return h.contains(p, m[1]) }) {
				found = append(found, fmt.Sprintf("docs/NAMES.md:%d: %s does not stand in %s; correct the place, or mark the row `later`", i+1, m[1], strings.Join(places, ", ")))
			}
		}
	}
	return found
}

// contains tells whether a file, or a file anywhere in a folder, holds the words
// with nothing joined to them.
func (h *house) contains(p, words string) bool {
	whole := regexp.MustCompile(`(^|\W)` + regexp.QuoteMeta(words) + `(\W|$)`)
	hit := false
	fs.WalkDir(h.tree, strings.TrimSuffix(p, "/"), func(p string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() && whole.MatchString(h.text(p)) {
			hit = true
		}
		if hit || err != nil {
			return fs.SkipAll
		}
		return nil
	})
	return hit
}

// errorsHasTheTableOfRefusals reads the table of reasons in actor/refusal.go:
// all that its row says of a reason stands in the row of docs/errors.md.
func errorsHasTheTableOfRefusals(h *house) (found []string) {
	const code, page = "actor/refusal.go", "docs/errors.md"
	i := slices.IndexFunc(h.files, func(f *file) bool { return f.path == code })
	if i < 0 {
		return nil
	}
	rows := map[string][]string{} // cells by the reason in backticks
	for _, line := range strings.Split(h.text(page), "\n") {
		if m := regexp.MustCompile("^\\| `([A-Za-z]+)` (\\|.*)").FindStringSubmatch(line); m != nil {
			rows[m[1]] = strings.Split(m[2], "|")
		}
	}
	f := h.files[i]
	ast.Inspect(f.ast, func(n ast.Node) bool {
		pair, ok := n.(*ast.KeyValueExpr)
		if !ok {
			return true
		}
		reason, isName := pair.Key.(*ast.Ident)
		row, isRow := pair.Value.(*ast.CompositeLit)
		if !isName || !isRow {
			return true
		}
		for _, e := range row.Elts {
			lit, ok := e.(*ast.BasicLit)
			if !ok {
				continue
			}
			word := strings.Trim(lit.Value, `"`)
			if word != reason.Name && !slices.ContainsFunc(rows[reason.Name], func(cell string) bool {
				return strings.TrimSpace(cell) == word || strings.HasPrefix(strings.TrimSpace(cell), word+" (")
			}) {
				found = append(found, fmt.Sprintf("%s: the row of %s does not say %s, as %s does; make them alike", page, reason.Name, word, f.at(lit.Pos())))
			}
		}
		return false
	})
	return found
}

func architectureNamesEveryRoom(h *house) (found []string) {
	const page = "docs/ARCHITECTURE.md"
	seen := map[string]bool{}
	for _, f := range h.goFiles() {
		r := f.room()
		if seen[r] || r == "" || r == "." {
			continue
		}
		seen[r] = true
		if !regexp.MustCompile(`(?m)(^|[^\w/])` + regexp.QuoteMeta(r) + `([^\w/]|$)`).MatchString(h.text(page)) {
			found = append(found, fmt.Sprintf("%s: the room %s is not on the map; give it a line", page, r))
		}
	}
	return found
}

func analyzerKnowsThePureRooms(h *house) (found []string) {
	const page = "internal/tools/purity/purity.go"
	text := h.text(page)
	if text == "" {
		return nil
	}
	for _, r := range below3 {
		if !strings.Contains(r, "/") && !strings.Contains(text, strconv.Quote(r)+":") {
			found = append(found, fmt.Sprintf("%s: %q is missing from its pure rooms; add it", page, r))
		}
	}
	return found
}

func sorted(m map[string]string) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// TestEachRuleBites shows each rule at least one small house in which it must
// find the breach, and a good house in which no rule may find anything.
func TestEachRuleBites(t *testing.T) {
	bitten := map[string]bool{}
	for _, b := range breaches {
		t.Run(b.rule+"/"+b.want, func(t *testing.T) {
			i := slices.IndexFunc(rules, func(r rule) bool { return r.name == b.rule })
			if i < 0 {
				t.Fatalf("there is no rule %q", b.rule)
			}
			bitten[b.rule] = true
			found := rules[i].find(build(t, b.files))
			if len(found) != 1 || !strings.Contains(found[0], b.want) || !strings.HasPrefix(found[0], b.at) {
				t.Errorf("found %q, want one breach that begins with %q and says %q", found, b.at, b.want)
			}
		})
	}
	for _, r := range rules {
		if !bitten[r.name] {
			t.Errorf("no breach shows that the rule %q bites", r.name)
		}
		for _, breach := range r.find(build(t, goodHouse)) {
			t.Errorf("the good house breaches %q: %s", r.name, breach)
		}
	}
}

// A tiny is a house of a few files: path to text. A Go text gets its licence
// line here, unless it begins with an empty one.
type tiny map[string]string

func build(t *testing.T, files tiny) *house {
	t.Helper()
	tree := fstest.MapFS{}
	for p, text := range files {
		if path.Ext(p) == ".go" && !strings.HasPrefix(text, "\n") {
			text = "// SPDX-License-Identifier: Apache-2.0\n\n" + text
		}
		tree[p] = &fstest.MapFile{Data: []byte(text)}
	}
	h, err := open(tree)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

var breaches = []struct {
	rule  string
	files tiny
	at    string // where the message must point
	want  string // what it must say
}{
	{"every package stands in a room", tiny{"utils/x.go": "package utils"}, "utils/x.go", "no row"},

	{"rooms import what their row allows", tiny{"actor/x.go": "package actor\nimport _ \"" + module + "/store\""}, "actor/x.go:4", "stands on nothing"},
	{"rooms import what their row allows", tiny{"sim/x.go": "package sim\nimport _ \"" + module + "/host/disk\""}, "sim/x.go:4", "sim may not import"},
	{"rooms import what their row allows", tiny{"host/x_test.go": "package host\nimport _ \"" + module + "/sim\""}, "host/x_test.go:4", "host may not import"},
	{"rooms import what their row allows", tiny{"host/disk/x.go": "package disk\nimport _ \"" + module + "/specs\""}, "host/disk/x.go:4", "troupe/specs"},
	{"rooms import what their row allows", tiny{"runtime/x_test.go": "package runtime\nimport _ \"" + module + "/sim\""}, "runtime/x_test.go:4", "troupe/sim"},
	{"rooms import what their row allows", tiny{"agents/x.go": "package agents\nimport _ \"" + module + "/runtime\""}, "agents/x.go:4", "it may import actor, tools"},
	{"rooms import what their row allows", tiny{"sim/x.go": "package sim\nimport _ \"" + pebble + "\""}, "sim/x.go:4", "docs/RATIONALE.md"},
	{"rooms import what their row allows", tiny{"specs/x.go": "package specs\nimport _ \"" + porcupine + "\""}, "specs/x.go:4", "porcupine"},
	{"rooms import what their row allows", tiny{"store/x.go": "package store\nimport _ \"pgregory.net/rapid\""}, "store/x.go:4", "rapid"},
	{"rooms import what their row allows", tiny{"store/x.go": "package store\nimport _ \"os\""}, "store/x.go:4", "let host perform it"},
	{"rooms import what their row allows", tiny{"store/x.go": "package store\nimport _ \"sync\""}, "store/x.go:4", "a plain field"},
	{"rooms import what their row allows", tiny{"store/x.go": "package store\nimport _ \"math/rand\""}, "store/x.go:4", "own stream"},
	{"rooms import what their row allows", tiny{"runtime/x.go": "package runtime\nimport _ \"iter\""}, "runtime/x.go:4", "coroutines belong to agents"},
	{"rooms import what their row allows", tiny{"runtime/x.go": "package runtime\nimport _ \"unique\""}, "runtime/x.go:4", "floors 0-2 are pure"},

	{"every dependency answers a question", tiny{"docs/RATIONALE.md": "### Why Pebble?",
		"go.mod": "require (\n\tgithub.com/x/pebble/v2 v2.1.7\n\tgithub.com/x/badger/v4 v4.0.0\n\tgithub.com/x/y v1.0.0 // indirect\n)"},
		"go.mod:3", "why github.com/x/badger"},

	{"pure floors use pure names", tiny{"runtime/x.go": "package runtime\nimport \"time\"\nvar x = time.Now()"}, "runtime/x.go:5", "Step(now, input)"},
	{"pure floors use pure names", tiny{"runtime/x.go": "package runtime\nimport t \"time\"\nvar x = t.After(1)"}, "runtime/x.go:5", "t.After"},
	{"pure floors use pure names", tiny{"runtime/x.go": "package runtime\nimport \"math/rand/v2\"\nvar x = rand.IntN(7)"}, "runtime/x.go:5", "own stream"},
	{"pure floors use pure names", tiny{"agents/x.go": "package agents\nimport \"context\"\nvar x = context.Background()"}, "agents/x.go:5", "context.Background"},
	{"pure floors use pure names", tiny{"actor/x.go": "package actor\nvar x = \"at %" + "p\""}, "actor/x.go:4", "print the ID"},

	{"pure floors have one thread", tiny{"store/x.go": "package store\nfunc f() {\n go f() }"}, "store/x.go:5", "a goroutine"},
	{"pure floors have one thread", tiny{"store/x.go": "package store\nfunc f() {\n select {} }"}, "store/x.go:5", "a select"},
	{"pure floors have one thread", tiny{"store/x.go": "package store\nvar c chan int"}, "store/x.go:4", "a channel"},
	{"pure floors have one thread", tiny{"store/x.go": "package store\nfunc f() {\n c <- 1 }"}, "store/x.go:5", "a send"},
	{"pure floors have one thread", tiny{"store/x.go": "package store\nfunc f() {\n _ = <-c }"}, "store/x.go:5", "a receive"},

	{"every package has its sentence", tiny{"store/x.go": "package store"}, "store:", "Package store …"},
	{"every package has its sentence", tiny{"store/x.go": "// Stores things.\npackage store"}, "store:", "Package store …"},
	{"every package has its sentence", tiny{"cmd/troupe/x.go": "// Package main runs it.\npackage main"}, "cmd/troupe:", "Command troupe …"},
	{"every package has its sentence", tiny{
		"store/x.go": "// Package store decides.\npackage store", "store/y.go": "// Package store decides.\npackage store"},
		"store/y.go", "a second package doc"},

	{"every Go file names its licence", tiny{"store/x.go": "\n// Package store decides.\npackage store"}, "store/x.go:1", "SPDX"},

	{"nothing is left for later", tiny{"store/x.go": "package store\n// TO" + "DO: more"}, "store/x.go:4", "do it now"},
	{"nothing is left for later", tiny{"tla/X.tla": "\\* FIX" + "ME"}, "tla/X.tla:1", "do it now"},
	{"nothing is left for later", tiny{".ci/run": "# TO" + "DO"}, ".ci/run:1", "do it now"},

	{"tests do not sleep", tiny{"host/x_test.go": "package host\nfunc f() { time.Sleep(1) }"}, "host/x_test.go:4", "wait for a signal"},

	{"only the engine makes Props", tiny{"host/x.go": "package host\nvar p = actor.Props" + "FromFunc(nil)"}, "host/x.go:4", "host/engine"},

	{"paths in docs exist", tiny{"docs/A.md": "see `sim/net.go`"}, "docs/A.md:1", "sim/net.go"},
	{"paths in docs exist", tiny{"README.md": "\nsee `LICENSE.md`"}, "README.md:2", "LICENSE.md"},
	{"paths in docs exist", tiny{"AGENTS.md": "see `docs/`"}, "AGENTS.md:1", "docs/"},
	{"paths in docs exist", tiny{"docs/A.md": "see `host/engine`", "host/x.go": "package host"}, "docs/A.md:1", "host/engine"},
	{"paths in docs exist", tiny{"docs/A.md": "see `tla/*_broken.cfg`", "tla/X.cfg": ""}, "docs/A.md:1", "_broken"},

	{"paths in docs exist", tiny{"docs/A.md": "see [B](B.md) and [C](https://c.example)"}, "docs/A.md", "docs/B.md"},

	{"names of rooms in docs exist", tiny{"docs/A.md": "an `actor.Foo`", "actor/x.go": "package actor\ntype Bar int"}, "docs/A.md:1", "has no Foo"},

	{"targets in docs exist", tiny{"Makefile": "test:\n", "README.md": "type `make tset`"}, "README.md", "no target tset"},
	{"targets in docs exist", tiny{"Makefile": "test:\n", "README.md": "```\n$ make sim SEED=7\n```"}, "README.md", "no target sim"},

	{"outside names stand where docs say", tiny{"docs/NAMES.md": "| `call_agent` | `tools` | x |", "tools/x.go": "package tools"},
		"docs/NAMES.md:1", "does not stand in tools"},
	{"outside names stand where docs say", tiny{"docs/NAMES.md": "| `Result` | `tools` | x |", "tools/x.go": "package tools\ntype Results int"},
		"docs/NAMES.md:1", "Result does not stand in tools"},
	{"outside names stand where docs say", tiny{"docs/NAMES.md": "| `call_agent` | the tools | x |"}, "docs/NAMES.md:1", "names no place"},

	{"errors.md has the table of refusals", tiny{"actor/refusal.go": "package actor\nvar t = [...]row{Busy: {\"Busy\", \"agent_busy\", 429}}",
		"docs/errors.md": "| `Busy` | agent_busy | 428 |"}, "docs/errors.md", "does not say 429"},

	{"the architecture names every room", tiny{"docs/ARCHITECTURE.md": "`actor`", "actor/x.go": "package actor", "host/disk/x.go": "package disk"},
		"docs/ARCHITECTURE.md", "the room host/disk is not"},

	{"the analyzer knows the pure rooms", tiny{"internal/tools/purity/purity.go": "package purity\nvar rooms = map[string]string{" +
		`"actor":"","dispatcher":"","history":"","runs":"","store":"","upstream":"","runtime":"","agents":"","ingress":"","specs":""}`},
		"internal/tools/purity/purity.go", `"tools" is missing`},
}

// goodHouse comes close to the rules without breaking one.
var goodHouse = tiny{
	"Makefile": "test: ## run\nhelp:\n",
	"docs/ARCHITECTURE.md": "Rooms: `actor`, `agents`, `runtime`, `host/engine`, `internal/mutant`, internal/tlc. See `actor/doc.go`, `bin/troupe`, `planner/s-42`, " +
		"`net/http`, `/v1/agents`, `*.md`, `actor.ID`, `time.Now`. We make do; `make test`.\n",
	"docs/NAMES.md":     "| name | where | inside |\n|---|---|---|\n| `call_depth` | `actor` | Call |\n| `agent_call` | `later` | |\n",
	"CHANGELOG.md":      "gone: `actor/old.go`",
	"actor/doc.go":      "// Package actor holds the words: call_depth.\npackage actor\n\nimport \"time\"\n\ntype ID struct{}\n\nconst Limit = time.Second\n",
	"actor/doc_test.go": "package actor_test\n\nimport (\n_ \"os\"\n_ \"pgregory.net/rapid\"\n)\n\nvar c = make(chan int)\n",
	"agents/doc.go": "// Package agents decides.\npackage agents\n\nimport (\n\"context\"\n\"iter\"\n\"" + module + "/actor\"\n" +
		"\"" + module + "/internal/mutant\"\n\"github.com/go-json-experiment/json/jsontext\"\n)\n\nfunc f(context.Context, iter.Seq[int]) {}\n",
	"runtime/doc.go":         "// Package runtime steps.\npackage runtime\n\nimport \"math/rand/v2\"\n\nvar r = rand.New(rand.NewPCG(1, 2))\n",
	"internal/tlc/x_test.go": "package main\n\nimport _ \"" + module + "/history\"\n",
	"runtime/doc_test.go":    "package runtime\n\nimport _ \"" + module + "/agents\"\n",
	"host/engine/doc.go": "// Package engine runs.\npackage engine\n\nimport (\n\"time\"\n\"" + protoactor + "/actor\"\n)\n\nfunc f() {\n" +
		"go f()\ntime.Sleep(1)\nactor.Props" + "FromFunc(nil)\n}\n",
	"internal/mutant/on.go": "// Package mutant removes.\npackage mutant\n\nimport _ \"os\"\n",
}

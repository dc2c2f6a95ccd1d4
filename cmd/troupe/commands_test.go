// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/alecthomas/kong"
)

// shownCommand is a command line that a document, a help text or a message shows.
type shownCommand struct {
	place string
	words []string // after troupe
}

const exampleRun = "0190d5b2-7c3e-7a41-8f10-2b6f0c9d4e55"

var (
	commandStart = regexp.MustCompile(`(?:^|[\s("])(?:bin/)?troupe (-{0,2}[a-z])`)
	inlineCode   = regexp.MustCompile("`(?:[A-Z_]+=\\S+ )?(?:bin/)?troupe [^`]+`")
	formatVerb   = regexp.MustCompile(`%(?:\[\d\])?[a-z]`)
)

// commandsInShell returns the words of each troupe command in a line of a shell.
func commandsInShell(line string) (all [][]string) {
	for _, at := range commandStart.FindAllStringSubmatchIndex(line, -1) {
		if words := wordsUntilOperator(line[at[2]:]); len(words) > 0 {
			all = append(all, words)
		}
	}
	return all
}

// wordsUntilOperator splits shell words up to an operator or a comment.
func wordsUntilOperator(text string) (words []string) {
	word, quote, inWord := "", rune(0), false
	for _, r := range text + " " {
		switch {
		case quote != 0 && r == quote:
			quote = 0
		case quote != 0:
			word += string(r)
		case r == '\'' || r == '"':
			quote, inWord = r, true
		case r == '|' || r == ';' || r == '>' || r == '<' || r == '&' || r == ')' || r == '`' || r == '#' && !inWord || r == '…':
			if inWord {
				words = append(words, word)
			}
			return words
		case r == ' ' || r == '\n':
			if inWord {
				words = append(words, word)
			}
			word, inWord = "", false
		default:
			word, inWord = word+string(r), true
		}
	}
	return words
}

// commandsInDocs returns the commands in code blocks and inline code of all pages.
func commandsInDocs(t *testing.T) (all []shownCommand) {
	t.Helper()
	root := filepath.Join("..", "..")
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() && strings.HasPrefix(d.Name(), ".") && len(d.Name()) > 2 {
			return fs.SkipDir
		}
		if filepath.Ext(path) != ".md" || d.Name() == "BUGS.md" || d.Name() == "CHANGELOG.md" { // both are history
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		fenced := false
		for i, line := range strings.Split(string(text), "\n") {
			place := strings.TrimPrefix(path, root+"/") + ":" + strconv.Itoa(i+1)
			if strings.HasPrefix(strings.TrimSpace(line), "```") {
				fenced = !fenced
				continue
			}
			var found [][]string
			if fenced || strings.HasPrefix(line, "    ") {
				if regexp.MustCompile(`^\s*(\$ )?([A-Z_]+=\S+ )?(bin/)?troupe `).MatchString(line) {
					found = commandsInShell(line)
				}
			} else {
				for _, code := range inlineCode.FindAllString(line, -1) {
					found = append(found, commandsInShell(strings.Trim(code, "`"))...)
				}
			}
			for _, words := range found {
				all = append(all, shownCommand{place, words})
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// commandsInHelp returns the commands in the texts below the flags.
func commandsInHelp() (all []shownCommand) {
	var visit func(*kong.Node)
	visit = func(n *kong.Node) {
		for line := range strings.Lines(n.Detail) {
			if strings.HasPrefix(line, "  ") {
				for _, words := range commandsInShell(line) {
					all = append(all, shownCommand{n.FullPath() + " --help", words})
				}
			}
			for _, code := range inlineCode.FindAllString(line, -1) {
				for _, words := range commandsInShell(strings.Trim(code, "`")) {
					all = append(all, shownCommand{n.FullPath() + " --help", words})
				}
			}
		}
		for _, child := range n.Children {
			visit(child)
		}
	}
	visit(newParser(&CLI{}, streams{io.Discard, io.Discard}).Model.Node)
	return all
}

// commandsInMessages returns the commands in string literals of the program and of
// the packages whose errors it prints, and those that the function hint builds.
func commandsInMessages(t *testing.T) (all []shownCommand) {
	t.Helper()
	for _, dir := range []string{".", "../../host", "../../internal", "../../agents", "../../runtime", "../../ingress", "../../dispatcher", "../../store", "../../upstream", "../../tools"} {
		err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go") {
				return err
			}
			fset := token.NewFileSet()
			file, err := parser.ParseFile(fset, path, nil, 0)
			if err != nil {
				return err
			}
			ast.Inspect(file, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.BasicLit:
					text, err := strconv.Unquote(n.Value)
					if n.Kind != token.STRING || err != nil || strings.Contains(text, "Examples:\n") {
						return true
					}
					text = strings.NewReplacer("--scope %[1]s", "--scope read", "--scope %[2]s", "--scope read").Replace(text)
					text = formatVerb.ReplaceAllString(text, exampleRun)
					for _, code := range inlineCode.FindAllString(text, -1) {
						for _, words := range commandsInShell(strings.Trim(code, "`")) {
							all = append(all, shownCommand{fset.Position(n.Pos()).String(), words})
						}
					}
					for line := range strings.Lines(text) {
						if command, ok := strings.CutPrefix(line, "  troupe "); ok {
							all = append(all, shownCommand{fset.Position(n.Pos()).String(), wordsUntilOperator(command)})
						}
					}
				case *ast.CallExpr:
					if words := hintWords(n); words != nil {
						all = append(all, shownCommand{fset.Position(n.Pos()).String(), words})
					}
				}
				return true
			})
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return all
}

// hintWords returns the words of a call of hint. A word that is no literal becomes a
// run ID or the number 7.
func hintWords(call *ast.CallExpr) (words []string) {
	isMethod := false
	switch f := call.Fun.(type) {
	case *ast.SelectorExpr:
		isMethod = f.Sel.Name == "hint"
	case *ast.Ident:
		if f.Name != "hint" {
			return nil
		}
	}
	if len(call.Args) < 2 {
		return nil
	}
	literal := func(e ast.Expr, otherwise string) string {
		if lit, ok := e.(*ast.BasicLit); ok {
			text, _ := strconv.Unquote(lit.Value)
			return text
		}
		return otherwise
	}
	command := literal(call.Args[0], "")
	if _, ok := call.Fun.(*ast.SelectorExpr); command == "" || ok && !isMethod {
		return nil
	}
	words = strings.Fields(command)
	list := func(e ast.Expr) {
		switch e := e.(type) {
		case *ast.CompositeLit:
			for _, element := range e.Elts {
				words = append(words, literal(element, exampleRun))
			}
		case *ast.Ident:
			if e.Name != "nil" {
				words = append(words, exampleRun)
			}
		}
	}
	list(call.Args[1])
	if !isMethod {
		list(call.Args[2])
		return words
	}
	for _, flag := range call.Args[2:] {
		words = append(words, literal(flag, "7"))
	}
	return append(words, "--server", "http://127.0.0.1:8283")
}

// newExampleFolder returns a folder with the files that commands of the docs name.
func newExampleFolder(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	examples, err := filepath.Abs("../../examples")
	if err != nil {
		t.Fatal(err)
	}
	for from, to := range map[string]string{"team": "agents", "project": "project", "": "examples"} {
		if err := os.Symlink(filepath.Join(examples, from), filepath.Join(dir, to)); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"sim-out/seed-7-9f86d081", "2026-11-21", "data-backups/2026-11-21", "troupe", "DIR", "bin/wasm", "old", exampleRun} {
		if err := os.MkdirAll(filepath.Join(dir, name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	certFile, keyFile := writeCertificate(t)
	for _, path := range []string{certFile, keyFile} {
		if err := os.Symlink(path, filepath.Join(dir, filepath.Base(path))); err != nil {
			t.Fatal(err)
		}
	}
	for name, text := range map[string]string{"old/forgets.jsonl": "", "troupe.toml": "agents = \"examples/team\"\n", "bin/wasm/writer.toml": "name = \"writer\"\n", "scout.json": `{"prompt": "Look around."}`, "doc.json": `{"capability_code": "DOC_GENERATE", "description": "Writes a document."}`,
		"weather.toml": "[tool]\ntool_name = \"weather.get\"\nurl = \"http://127.0.0.1:9000/w\"\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// inFolder replaces the absolute paths of the docs by paths in a test's folder.
func inFolder(dir string, words []string) []string {
	out := append([]string(nil), words...)
	for i, w := range out {
		if i > 0 && out[i-1] == "--scope" && w == exampleRun { // of a message that names one
			out[i] = "operator"
		}
		for _, prefix := range []string{"/var/lib/troupe", "/backups/", "/etc/troupe.toml"} {
			if strings.HasPrefix(w, prefix) {
				out[i] = filepath.Join(dir, filepath.Base(w))
			}
		}
	}
	return out
}

// parsedOnly holds the commands that are parsed and not executed, with the reason.
var parsedOnly = map[string]string{
	"approvals":     "the tests of approvals have some",
	"load":          "runs for minutes",
	"memory":        "the tests of memory have a server that remembers",
	"replay":        "needs the folder of a failed seed",
	"runs repeat":   "TestRunsRepeat has runs that failed",
	"sim":           "runs for minutes; the tests of sim run it",
	"keys revoke":   "the tests of keys revoke a key that exists",
	"tools call":    "needs the server of the tool; the tests of tools have one",
	"tools show":    "the tests of tools show one that exists",
	"tools delete":  "the tests of tools delete one that exists",
	"tokens create": "needs an operator's key, which TestTokensCreate has",

	"capabilities delete": "the tests of capabilities delete one that exists",

	"tools accept": "the tests of tools accept a list that exists",
}

// Every command in docs, help texts and messages is one that the program accepts.
// Those against a server are executed.
func TestShownCommandsAreAccepted(t *testing.T) {
	dir := newExampleFolder(t)
	data := filepath.Join(dir, "data")
	team := startServer(t, data, "--agents", "../../examples/team")
	team.putAgent(`{"name":"scout"}`)
	team.putAgent(`{"name":"documenter","provides":[{"code":"DOC_GENERATE","description":"Writes a document."}]}`)
	for _, name := range []string{"planner", "cashier", "concierge", "secretary", "graph", "treasurer", "writer", "orc", "clerk"} {
		team.putAgent(`{"name":"` + name + `"}`)
	}
	_, reply := team.call("helper", "say hi")
	if code, _, stderr := runProgram(t, "backup", "intact", "--data", data); code != 0 {
		t.Fatal(stderr)
	}
	builtin := startServerWithBuiltins(t, filepath.Join(t.TempDir(), "data"))
	all := append(append(commandsInDocs(t), commandsInHelp()...), commandsInMessages(t)...)
	if len(all) < 90 {
		t.Errorf("want at least 90 commands, found %d: is one of the places empty?", len(all))
	}
	t.Chdir(dir)
	executed := map[string]bool{}
	for _, c := range all {
		words := inFolder(dir, c.words)
		cli := &CLI{}
		ctx, err := parseShown(cli, words)
		if err != nil {
			t.Errorf("%s: troupe %s: %v", c.place, strings.Join(c.words, " "), err)
			continue
		}
		if ctx == nil || !strings.HasSuffix(c.place, "--help") && !strings.Contains(c.place, ".md:") {
			continue // --help or --version, or a message, whose words are placeholders
		}
		command := ctx.Command()
		for name := range parsedOnly {
			if strings.HasPrefix(command, name) {
				command = ""
			}
		}
		line := strings.Join(words, " ")
		if command == "" || executed[line] || strings.Contains(line, "DIR") || strings.Contains(line, "postgres://") || len(words) < 2 && words[0] != "serve" || strings.HasPrefix(line, "serve --trace") || strings.Contains(line, "--swap") {
			continue // a name in a sentence, or a database or the call of a tool that is not here
		}
		executed[line] = true
		server, run := team, reply.Run
		if strings.HasPrefix(line, "tasks cancel") || words[0] == "runs" && (words[1] == "signal" || words[1] == "cancel" || words[1] == "retry") {
			var held messageReply
			server = builtin
			if status, err := builtin.request("POST", "/v1/agents/coordinator/messages", `{"content":"x","session":"s`+strconv.Itoa(len(executed))+`"}`, "", &held); status != 202 {
				t.Fatal(status, err)
			}
			run = held.Run
		}
		if words[0] == "sessions" && len(words) > 2 && !strings.HasPrefix(words[2], "-") {
			words[2] += strconv.Itoa(len(executed)) // the name of a session that an example deleted cannot be used again
			agent := "helper"
			if i := slices.Index(words, "--agent"); i > 0 {
				agent = words[i+1]
			}
			if status, err := team.request("POST", "/v1/agents/"+agent+"/messages", `{"content":"x","session":"`+words[2]+`"}`, "", nil); status != 200 {
				t.Fatal(line, status, err)
			}
		}
		for i, w := range words {
			words[i] = strings.ReplaceAll(w, exampleRun, run)
		}
		executeShown(t, c, words, server, filepath.Join(data+"-backups", "intact"))
	}
	for _, want := range []string{"call", "runs show", "runs signal", "agents", "keys create", "check", "serve", "completion", "backup", "restore", "doctor"} {
		found := false
		for line := range executed {
			found = found || strings.HasPrefix(line, want)
		}
		if !found {
			t.Errorf("no example of %s was executed", want)
		}
	}
}

// parseShown parses a command line. It returns nil if the line ends while it is
// parsed, as --help does.
func parseShown(cli *CLI, words []string) (ctx *kong.Context, err error) {
	defer func() {
		if p := recover(); p != nil {
			if _, ok := p.(exitCode); !ok {
				panic(p)
			}
		}
	}()
	ctx, err = newParser(cli, streams{io.Discard, io.Discard}).Parse(words)
	if err != nil && (strings.HasSuffix(err.Error(), `"EOL" (<EOL>)`) || strings.Contains(err.Error(), "expected one of") || strings.Contains(err.Error(), "expected \"<") || strings.Contains(err.Error(), "missing flags")) {
		// A sentence names a command without its arguments.
		return nil, nil
	}
	return ctx, err
}

// executeShown runs a command of the docs against a server. A command that starts a
// server is stopped once that is ready. A command that reads a folder reads intact,
// which no server uses.
func executeShown(t *testing.T, c shownCommand, words []string, s *server, intact string) {
	t.Helper()
	value := func(flag string) *string { // the word after a flag
		for i := range words[:len(words)-1] {
			if words[i] == flag {
				return &words[i+1]
			}
		}
		return new(string)
	}
	switch {
	case words[0] == "serve" && slices.Contains(words, "--link-cert"):
		return // the tests of the link have certificates
	case words[0] == "serve":
		if slices.Contains(words, "ingress") {
			*value("--orchestrator") = startServerAt(t, filepath.Join(t.TempDir(), "data"), "", "--role", "orchestrator").url
		}
		data := filepath.Join(t.TempDir(), "data")
		args := append(words[1:len(words):len(words)], "--data", data)
		if slices.Contains(words, "orchestrator") {
			startServerAt(t, data, "", args...).stop(syscall.SIGKILL)
			return
		}
		startServer(t, data, append(args, "--listen", "127.0.0.1:0")...).stop(syscall.SIGKILL)
		return
	case words[0] == "call" && (words[1] == "echo" || strings.Contains(strings.Join(words, " "), "scribe")):
		return // an agent that the reader writes, and one in Python
	}
	switch words[0] {
	case "doctor":
		words[1] = intact
	case "runs", "usage":
		*value("--data") = intact
	case "restore":
		words[1], *value("--data") = intact, filepath.Join(t.TempDir(), "data")
	case "backup":
		words[1] = fmt.Sprint("copy-", time.Now().UnixNano())
	}
	cmd := programCmd(words...)
	cmd.Env = append(cmd.Env, "TROUPE_SERVER="+s.url)
	cmd.Stdin = strings.NewReader("a message") // of `call helper -`
	if words[0] == "mcp" {
		cmd.Stdin = nil // it ends with its input
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%s: troupe %s: %v\n%s", c.place, strings.Join(words, " "), err, out)
	}
}

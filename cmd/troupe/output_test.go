// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/go-json-experiment/json"

	"github.com/troupe-run/troupe/runs"
)

// newScreen returns an output that behaves as on a terminal.
func newScreen() (*output, *bytes.Buffer) {
	b := new(bytes.Buffer)
	return &output{w: b, terminal: true}, b
}

func TestOutputEscapes(t *testing.T) {
	for text, want := range map[string]string{
		"plain\ttext\n":                  "plain\ttext\n",
		"Grüße, 世界 ❤️ é":                 "Grüße, 世界 ❤️ é",
		"\x1b[31m\x07\x00\r\n\x7f":       `\u001b[31m\u0007\u0000\u000d` + "\n" + `\u007f`,
		"\u0080\u009b\u009f":             `\u0080\u009b\u009f`,
		"\u202a\u202e\u2066\u2069\u200f": `\u202a\u202e\u2066\u2069\u200f`,
		"\u061c\u200e":                   `\u061c\u200e`,
		"\u200b\u2060\ufeff\u00ad":       `\u200b\u2060\ufeff\u00ad`,
		"\u2028\u2029\u3164":             `\u2028\u2029\u3164`,
		"\U000e0041":                     `\udb40\udc41`,
		"\x9b\xff\xc3(":                  `\x9b\xff\xc3(`,
		"\xed\xa0\x80":                   `\xed\xa0\x80`,
		"a\u200db\u200c":                 `a\u200db\u200c`,
		"👩\u200d💻 می\u200cخواهم":         "👩\u200d💻 می\u200cخواهم",
		"a\ufe0f\u2800❤\ufe0f\ufe0f":     `a\ufe0f\u2800` + "❤\ufe0f" + `\ufe0f`,
		"\xe2\x80":                       `\xe2\x80`,
	} {
		for cut := 0; cut <= len(text); cut++ {
			o, screen := newScreen()
			for _, part := range []string{text[:cut], text[cut:]} {
				if n, err := o.Write([]byte(part)); n != len(part) || err != nil {
					t.Fatal(n, err)
				}
			}
			o.flush()
			if screen.String() != want {
				t.Errorf("%q cut at %d: want %q, got %q", text, cut, want, screen.String())
			}
			var file bytes.Buffer
			fmt.Fprint(newOutput(&file), text)
			if file.String() != text {
				t.Errorf("to a file: want %q, got %q", text, file.String())
			}
		}
	}
}

// The bytes of a cut character are written before a sequence of this program, and do
// not become part of a character after it.
func TestCutCharacterPrecedesControls(t *testing.T) {
	o, screen := newScreen()
	fmt.Fprint(o, "a\xe2\x80")
	fmt.Fprint(controls(o), "\x1b[0m")
	fmt.Fprint(o, "\xaeb")
	if want := "a\\xe2\\x80\x1b[0m\\xaeb"; screen.String() != want {
		t.Errorf("got %q, want %q", screen, want)
	}
}

func FuzzOutput(f *testing.F) {
	f.Add([]byte("a\x1b[2J\u202e"), 2)
	f.Fuzz(func(t *testing.T, text []byte, cut int) {
		o, screen := newScreen()
		cut = max(0, min(cut, len(text)))
		_, _ = o.Write(text[:cut])
		_, _ = o.Write(text[cut:])
		o.flush()
		if !utf8.Valid(screen.Bytes()) {
			t.Fatalf("%q: not UTF-8: %q", text, screen.Bytes())
		}
		for _, r := range screen.String() {
			if unicode.IsControl(r) && r != '\n' && r != '\t' || unicode.Is(unicode.Bidi_Control, r) {
				t.Fatalf("%q: %U on the screen", text, r)
			}
		}
	})
}

// hostileServer answers every request with words that control a terminal in each field.
func hostileServer(t *testing.T) *httptest.Server {
	const bad = `\u001b]0;x\u0007\u009b\u202e`
	run := fmt.Sprintf(`{"run_id":"%s","actor":"%[1]s","status":"%[1]s","created_at":"%[1]s","ended_at":"%[1]s","call_chain":["%[1]s"],"text":"%[1]s",`+
		`"waiting_for":[{"name":"%[1]s"}],"error":{"message":"%[1]s"},"children":[{"target":"%[1]s","error":{"message":"%[1]s"}}]}`, bad)
	approval := fmt.Sprintf(`{"approval_id":"%s","status":"%[1]s","tool_call_id":"x","tool_name":"%[1]s","args":{"%[1]s":"%[1]s"},"args_summary":"%[1]s","run_id":"%[1]s","agent_id":"%[1]s",`+
		`"session_id":"%[1]s","principal":"%[1]s","created_at":"%[1]s","expires_at":"%[1]s","decided_by":"%[1]s","reason":"%[1]s"}`, bad)
	tool := fmt.Sprintf(`{"tool_name":"%s","kind":"%[1]s","via":"%[1]s","policy":"%[1]s","description":"%[1]s","owner":"%[1]s","url":"%[1]s","headers":{"%[1]s":{"env":"%[1]s"}},"metadata":{"x":"%[1]s"}}`, bad)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body := run
		switch path := r.URL.Path; {
		case path == "/v1/runs":
			body = `{"runs":[` + run + `]}`
		case path == "/v1/tools":
			body = `{"tools":[` + tool + `]}`
		case strings.HasPrefix(path, "/v1/tools/"):
			body = tool
		case path == "/v1/approvals":
			body = `{"approvals":[` + approval + `]}`
		case strings.HasPrefix(path, "/v1/approvals/"):
			body = approval
		case strings.HasPrefix(path, "/v1/tool_calls/"):
			body = fmt.Sprintf(`{"tool_name":"%s","state":"%[1]s","error":{"message":"%[1]s"}}`, bad)
		case path == "/v1/agents":
			body = fmt.Sprintf(`{"agents":[{"agent_id":"%s","kind":"%[1]s","doc":"%[1]s"}]}`, bad)
		case path == "/v1/agents/x":
			body = fmt.Sprintf(`{"agent_id":"%s","kind":"%[1]s","doc":"%[1]s","name":"%[1]s","definition":"%[1]s","spec":{"x":"%[1]s"},`+
				`"actors":[{"session_id":"%[1]s","mailbox":["%[1]s"],"turns":[{"run_id":"%[1]s","status":"%[1]s","started_at":"%[1]s","waits_for":[{"target":"%[1]s"}]}]}]}`, bad)
		case path == "/v1/keys" && r.Method == http.MethodGet:
			body = fmt.Sprintf(`{"keys":[{"key_id":"%s","name":"%[1]s","scopes":["%[1]s"]}]}`, bad)
		case path == "/v1/keys":
			body = fmt.Sprintf(`{"key_id":"%s","key":"%[1]s","scopes":["%[1]s"],"warnings":["%[1]s"]}`, bad)
		case strings.Contains(path, "/events"):
			body = fmt.Sprintf(`{"events":[%s],"ended":true}`, runs.Encode(numberEvents(streamDelta(1, "\x1b[2J\u009b\u202e"))[0]))
		case strings.HasSuffix(path, "problem/messages"):
			w.WriteHeader(http.StatusConflict)
			body = fmt.Sprintf(`{"code":"%s","detail":"%[1]s","run_id":"%[1]s"}`, bad)
		case strings.HasSuffix(path, "raw/messages"):
			w.WriteHeader(http.StatusBadGateway)
			body = "\x1b]0;x\x07\x9b\u202e"
		case strings.HasSuffix(path, "signal/messages"):
			w.WriteHeader(http.StatusAccepted)
			body = fmt.Sprintf(`{"run_id":"`+exampleRun+`","signal":{"run_id":"%s","name":"%[1]s"}}`, bad)
		case strings.HasSuffix(path, "approval/messages"):
			w.WriteHeader(http.StatusAccepted)
			body = `{"run_id":"` + exampleRun + `","approvals":[` + approval + `]}`
		case strings.HasSuffix(path, "stream/messages"):
			w.Header().Set("Content-Type", "text/event-stream")
			events := numberEvents(llmCallStarted(1), streamDelta(1, "\x1b"), streamDelta(1, "[2J\u009b"), streamDelta(1, "\u202e"),
				runs.Event{Type: runs.WaitOpened, Name: "\x1b[2J", Step: 2, Until: 9}, runDone("\x1b[2J", "\x1b[2J"))
			for _, e := range events {
				_, _ = w.Write(runs.Frame{Name: e.Type.String(), ID: fmt.Sprint(e.Seq), Data: string(runs.Encode(e))}.Append(nil))
			}
			return
		case strings.HasSuffix(path, "/messages"):
			body = fmt.Sprintf(`{"run_id":"%s","content":"%[1]s","warnings":["%[1]s"]}`, bad)
		}
		_, _ = w.Write([]byte(body))
	}))
	t.Cleanup(s.Close)
	return s
}

func TestNoCommandWritesControlCharacters(t *testing.T) {
	s := hostileServer(t)
	const id, approval = exampleRun, "ap_" + exampleRun + ".1.0"
	t.Setenv("NO_COLOR", "1")
	for _, args := range [][]string{
		{"call", "x", "hi"}, {"call", "x", "hi", "--json"}, {"call", "problem", "hi"}, {"call", "problem", "hi", "--json"}, {"call", "raw", "hi"}, {"call", "signal", "hi"}, {"call", "approval", "hi"},
		{"call", "stream", "hi", "--stream"}, {"call", "stream", "hi", "--stream", "--json"}, {"call", "\x1b\u202e", "hi"},
		{"runs", "list"}, {"runs", "list", "--json"}, {"runs", "show", id}, {"runs", "show", id, "--tree"}, {"runs", "events", id}, {"runs", "events", id, "--json"},
		{"runs", "signal", id, "\x1b\u202e"}, {"runs", "cancel", id},
		{"agents", "list"}, {"agents", "show", "x"}, {"agents", "show", "x", "--json"},
		{"tools", "list"}, {"tools", "show", "x"}, {"tools", "show", "x", "--json"}, {"approvals", "list"}, {"approvals", "list", "--json"}, {"approvals", "show", approval},
		{"approvals", "approve", approval}, {"approvals", "reject", approval},
		{"keys", "list"}, {"keys", "create"}, {"keys", "revoke", "\x1b\u202e"}, {"backup", "\x1b\u202e"}, {"check", "\x1b\u202e"}, {"frob\x1b\u202e"},
	} {
		stdout, screen := newScreen()
		stderr := &output{w: screen, terminal: true}
		run(append(args, "--server", s.URL), streams{stdout, stderr})
		if i := strings.IndexFunc(screen.String(), func(r rune) bool {
			return unicode.IsControl(r) && r != '\n' && r != '\t' || unicode.Is(unicode.Cf, r) || r == utf8.RuneError
		}); i >= 0 || screen.Len() == 0 {
			t.Errorf("%q: %q on the screen", args, screen.String())
		}
	}
}

// JSON stays JSON when it is printed on a terminal.
func TestEscapedJSONIsValid(t *testing.T) {
	s := hostileServer(t)
	stdout, screen := newScreen()
	if code := run([]string{"agents", "show", "x", "--json", "--server", s.URL}, streams{stdout, stdout}); code != 0 {
		t.Fatal(screen)
	}
	var a agentView
	if err := json.Unmarshal(screen.Bytes(), &a); err != nil || a.Doc != "\x1b]0;x\a\u009b\u202e" {
		t.Errorf("%v, description %q", err, a.Doc)
	}
}

// Every command writes to the streams that it receives. Only the named functions
// write terminal sequences.
func TestCommandsWriteToOutputOnly(t *testing.T) {
	files, err := filepath.Glob("*.go")
	if err != nil || len(files) < 20 {
		t.Fatal(files, err)
	}
	banned := map[string][]string{"os": {"Stdout", "Stderr"}, "fmt": {"Print", "Printf", "Println"},
		"log":     {"Print", "Printf", "Println", "Fatal", "Fatalf", "Fatalln", "Panic", "Panicf", "Default"},
		"slog":    {"Default", "Debug", "Info", "Warn", "Error", "Log"},
		"syscall": {"Stdout", "Stderr", "Write"}}
	mayControl := []string{"writeStatus", "scanProgress", "newProgressBar", "reportFailure", "update", "clear", "runProject", "ring"}
	for _, path := range files {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		fset := token.NewFileSet()
		file, err := parser.ParseFile(fset, path, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, decl := range file.Decls {
			f, isFunc := decl.(*ast.FuncDecl)
			ast.Inspect(decl, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.SelectorExpr:
					if x, ok := n.X.(*ast.Ident); ok && slices.Contains(banned[x.Name], n.Sel.Name) && !(isFunc && f.Name.Name == "main") {
						t.Errorf("%s: %s.%s writes around the output of the command", fset.Position(n.Pos()), x.Name, n.Sel.Name)
					}
				case *ast.CallExpr:
					x, ok := n.Fun.(*ast.Ident)
					if ok && (x.Name == "print" || x.Name == "println") {
						t.Errorf("%s: %s writes around the output of the command", fset.Position(n.Pos()), x.Name)
					}
					if ok && x.Name == "controls" && (!isFunc || !slices.Contains(mayControl, f.Name.Name)) {
						t.Errorf("%s: only %v may write terminal sequences", fset.Position(n.Pos()), mayControl)
					}
				}
				return true
			})
		}
	}
}

// fullDisk is a file that takes no bytes.
type fullDisk struct{}

func (fullDisk) Write([]byte) (int, error) { return 0, syscall.ENOSPC }

// A command whose output is lost fails with the reason.
func TestLostOutputIsAFailure(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	s := startServerWithBuiltins(t, dir)
	var called struct {
		Run string `json:"run_id"`
	}
	if status, err := s.request("POST", "/v1/agents/helper/messages", `{"content":"hi"}`, "", &called); status != 200 || err != nil {
		t.Fatal(status, err)
	}
	for _, args := range [][]string{
		{"call", "helper", "hi"}, {"call", "helper", "hi", "--json"}, {"call", "helper", "hi", "--stream"}, {"call", "helper", "hi", "--stream", "--json"}, {"call", "helper", "hi", "--tree"}, {"call", "helper", "hi", "--async"},
		{"runs", "list"}, {"runs", "show", called.Run}, {"runs", "show", called.Run, "--tree"}, {"runs", "events", called.Run, "--follow"}, {"agents", "list"}, {"agents", "show", "helper"}, {"keys", "create", "--data", dir}, {"backup", "one", "--data", dir},
		{"init", filepath.Join(t.TempDir(), "new")}, {"completion", "bash"}, {"--help"}, {"--version"},
	} {
		line := args
		if !slices.Contains([]string{"init", "completion", "--help", "--version", "keys", "backup"}, args[0]) {
			line = append(args, "--server", s.url)
		}
		var stderr bytes.Buffer
		if code := run(line, streams{fullDisk{}, &stderr}); code != exitFailed || strings.Count(stderr.String(), syscall.ENOSPC.Error()) != 1 {
			t.Errorf("%q: exit code %d, %s", args, code, &stderr)
		}
	}
}

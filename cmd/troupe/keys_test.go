// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/hex"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/go-json-experiment/json"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/host/disk"
	"github.com/troupe-run/troupe/ingress"
)

// A key is created in a data folder, used at a server, and revoked. Its text MUST
// NOT appear in the store, in the log or in a response.
func TestKeyLifecycle(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	check := func(wantCode int, wantOut, wantErr string, args ...string) string {
		t.Helper()
		code, out, err := runProgram(t, args...)
		if code != wantCode || !strings.Contains(out, wantOut) || !strings.Contains(err, wantErr) || wantOut == "" && out != "" || wantErr == "" && err != "" {
			t.Errorf("troupe %s: exit code %d\nstdout: %s\nstderr: %s\nwant %d, %q, %q", strings.Join(args, " "), code, out, err, wantCode, wantOut, wantErr)
		}
		return strings.TrimSpace(out)
	}
	check(0, "troupe_", "the namespace default and sees the runs and sessions of all such keys\nkey ", "keys", "create", "--data", dir, "--scope", "admin")
	if _, _, stderr := runProgram(t, "keys", "create", "--data", dir, "--user", "alice"); strings.Contains(stderr, "namespace") || !strings.Contains(stderr, "\nkey ") {
		t.Errorf("key of a user: %s", stderr)
	}
	channel := check(0, "troupe_", "requests that name no user act in the namespace default", "keys", "create", "--data", dir, "--act-as-user", "--scope", "call", "--scope", "read")
	channelID, _ := ingress.KeyID(channel)
	check(0, "key:"+channelID+", any user", "", "keys", "list", "--data", dir)
	admin := check(0, "troupe_", "for admin; it is shown only once", "keys", "create", "--data", dir, "--name", "operator", "--scope", "admin")
	adminID, _ := ingress.KeyID(admin)
	check(0, adminID+"  admin  ", "", "keys", "list", "--data", dir)
	check(0, "operator", "", "keys", "list", "--data", dir)
	standard := check(0, "troupe_", "for call, read", "keys", "create", "--data", dir)
	shortID, _ := ingress.KeyID(standard)
	check(0, "", "key "+shortID+" is revoked", "keys", "revoke", shortID, "--data", dir)
	check(1, "", "key_not_found: no key is named "+shortID, "keys", "revoke", shortID, "--data", dir)
	for _, key := range []string{"sk-123", "troupe.x"} { // a server on loopback would ignore it
		check(2, "", "--key: want one of `troupe keys create`, which begins with troupe_", "agents", "list", "--key", key)
		check(2, "", "--key: want one of", "load", "--url", "http://127.0.0.1:9", "--rate", "1", "--key", key)
	}
	check(1, "", "only letters", "keys", "revoke", "a/b")
	check(1, "", "a positive duration", "keys", "create", "--data", dir, "--expires=-1h")
	check(1, "", "printable ASCII", "keys", "create", "--data", dir, "--name", "gr\u00fcn")
	check(1, "", `user: "local" is reserved`, "keys", "create", "--data", dir, "--user", "local")
	check(1, "", `choose another name, such as "team.alice"`, "keys", "create", "--data", dir, "--user", "troupe.alice")
	check(1, "", "has 10240 bytes, want 1 to 256", "keys", "create", "--data", dir, "--user", strings.Repeat("u", 10<<10))
	check(2, "", "must be one of", "keys", "create", "--data", dir, "--scope", "root")
	check(1, "", "belongs to node n1, not n2", "keys", "list", "--data", dir, "--node", "n2")

	s := startServerWithBuiltins(t, dir, "--log-level", "debug", "--ready")
	at := []string{"--server", s.url}
	with := func(args ...string) []string { return append(args, at...) }
	made := check(0, `"act_as_user": true`, "", "keys", "create", "--data", dir, "--act-as-user", "--user", "alice", "--json")
	if !strings.Contains(made, `"user": "alice"`) {
		t.Errorf("got %s", made)
	}
	check(0, adminID, "", "keys", "list", "--data", dir)
	check(1, "", "over TCP this request needs an API key with the scope admin", with("keys", "list")...)
	check(1, "", "over TCP this request needs an API key with the scope admin", with("keys", "create")...)
	check(0, adminID, "", with("keys", "list", "--key", admin)...)
	reader := check(0, "troupe_", "for read", with("keys", "create", "--scope", "read", "--expires", "1h", "--key", admin)...)
	readerID, _ := ingress.KeyID(reader)
	check(0, `"expires_at": "2`, "", "keys", "list", "--json", "--data", dir)
	check(0, "helper", "", with("agents", "list", "--key", reader)...)
	check(1, "", "forbidden_scope: the API key "+readerID+" lacks the scope call", with("call", "helper", "hello", "--key", reader)...)
	check(1, "", `user: "default" is reserved`, with("keys", "create", "--user", "default", "--key", admin)...)
	check(1, "", `name: "troupe.session" is reserved`, with("agents", "create", "troupe.session", "--key", admin)...)
	check(1, "", "forbidden_scope", with("keys", "create", "--key", reader)...)
	for scope, args := range map[string][]string{"admin": {"keys", "list"}, "call": {"call", "helper", "hello"}, "agents": {"agents", "create", "scout"}} { // with a key that the advice makes
		_, _, stderr := runProgram(t, with(append(args, "--key", reader)...)...)
		_, advice, _ := strings.Cut(stderr, "`troupe ")
		advice, _, _ = strings.Cut(advice, "`")
		if !strings.Contains(advice, "--scope "+scope+" --data DIR") {
			t.Errorf("%q: %s\nwant a command for the scope %s", args, stderr, scope)
			continue
		}
		made := strings.TrimSpace(check(0, "troupe_", "for "+scope, strings.Fields(strings.Replace(advice, "DIR", dir, 1))...))
		if code, _, stderr := runProgram(t, with(append(args, "--key", made)...)...); code != 0 {
			t.Errorf("%q with the key of %q: exit code %d, %s", args, advice, code, stderr)
		}
	}
	wrong := reader[:len(reader)-1] + "g"
	check(1, "", "unauthorized: invalid API key", with("agents", "list", "--key", wrong)...)
	check(1, "", "unauthorized", with("agents", "list", "--key", standard)...)
	check(0, "", "is revoked", with("keys", "revoke", readerID, "--key", admin)...)
	check(1, "", "unauthorized", with("agents", "list", "--key", reader)...)
	created := check(0, `"key": "troupe_`, "", "keys", "create", "--json", "--scope", "agents", "--data", dir)
	_, created, _ = strings.Cut(created, `"key": "`)
	created, _, _ = strings.Cut(created, `"`)

	// Keys and tokens in the right and in wrong headers.
	token := ingress.MintToken(nodeSecret(t, dir), actor.NewCallID(1, 2, 3), actor.NewID("helper", "main"))
	for _, secret := range []string{admin, reader, wrong, token, token + "x"} {
		for _, r := range [][2]string{{"GET", "/v1/runs"}, {"GET", "/v1/keys"}, {"POST", "/v1/keys"}, {"POST", "/v1/agents/helper:invoke"}, {"POST", "/v1/agents/helper/messages"}, {"PUT", "/v1/agents"}, {"GET", "/nothing"}, {"GET", "/v1/%00"}} {
			for _, header := range []string{"Authorization: Bearer ", "Authorization: Basic ", "Authorization: ", "X-Run-Token: ", "Idempotency-Key: ", "Cookie: key="} {
				answer := requestWithHeader(t, s.url, r[0], r[1], header+secret)
				if strings.Contains(answer, secretTail(secret)) {
					t.Errorf("%s %s with header %s: the response contains the secret: %s", r[0], r[1], header, answer)
				}
			}
		}
	}
	message := "coordinator waits"
	check(3, "", "waits for the signal go", with("call", "coordinator", message, "--session", "s-1")...)
	if code := s.stop(syscall.SIGTERM); code != 0 {
		t.Errorf("exit code after SIGTERM: want 0, got %d", code)
	}
	// A key is made without the server, and the open run is left as it is.
	check(0, "troupe_", "for call, read", "keys", "create", "--data", dir)
	check(0, "PAUSED_WAITING_APPROVAL", "", "runs", "list", "--data", dir)

	log, err := os.ReadFile(filepath.Join(filepath.Dir(dir), "server.log"))
	if err != nil || !strings.Contains(string(log), `"path":"/v1/keys"`) {
		t.Fatalf("server log: want the request for /v1/keys, got error %v", err)
	}
	for _, secret := range []string{admin, standard, reader, created, wrong, token} {
		if secretTail(secret) == "" || strings.Contains(string(log), secretTail(secret)) {
			t.Errorf("the server log contains %s", secret)
		}
	}
	found := 0
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := os.ReadFile(path)
		for _, secret := range []string{admin, standard, reader, created} {
			raw, _ := hex.DecodeString(secretTail(secret))
			if strings.Contains(string(b), secretTail(secret)) || strings.Contains(string(b), string(raw)) {
				t.Errorf("%s contains %s", path, secret)
			}
		}
		found += strings.Count(string(b), adminID)
		return err
	})
	if err != nil || found == 0 {
		t.Errorf("data folder: want the ID of the admin key in a file, found none, error %v", err)
	}
}

// The first key is an administrator's unless it is that of a user.
// A person at the data folder is the same user, whether a server uses the folder or not.
func TestChangesAtDataFolderAreLocal(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	create := func(name string) {
		if code, _, stderr := runProgram(t, "keys", "create", "--data", dir, "--name", name, "--scope", "read"); code != 0 {
			t.Fatal(stderr)
		}
	}
	create("before")
	s := startServer(t, dir, "--agents", writeFiles(t, ">> filed.toml\nname = \"filed\""))
	create("during")
	s.useAdminKey(dir)
	s.putAgent(`{"name":"posted"}`)
	s.stop(syscall.SIGTERM)
	if code, _, stderr := runProgram(t, "agents", "delete", "filed", "--data", dir); code != 0 {
		t.Fatal(stderr)
	}
	_, out, _ := runProgram(t, "keys", "list", "--data", dir, "--json")
	var list struct {
		Keys []key `json:"keys"`
	}
	if err := json.Unmarshal([]byte(out), &list); err != nil || len(list.Keys) != 3 {
		t.Fatal(err, out)
	}
	admin := ""
	for _, k := range list.Keys {
		if k.By != "local" || k.ByKey != "" {
			t.Errorf("key %s is created by %q with key %q, want local", k.Name, k.By, k.ByKey)
		}
		if k.Name != "before" && k.Name != "during" {
			admin = k.User
		}
	}
	s = startServer(t, dir)
	s.useAdminKey(dir)
	var found struct {
		Runs []struct {
			User string `json:"principal"`
		} `json:"runs"`
	}
	if status, err := s.request("GET", "/v1/runs?system=true&agent_id=troupe", "", s.apiKey, &found); status != 200 || err != nil {
		t.Fatal(status, err)
	}
	made := map[string]int{}
	for _, r := range found.Runs {
		made[r.User]++
	}
	if want := map[string]int{"local": 5, "operator": 1, admin: 1}; !maps.Equal(made, want) {
		t.Errorf("changes are made by %v, want %v: keys and the deletion by local, the file by operator, the agent by the key", made, want)
	}
}

func TestFirstKeyOfUserIsNotForAdmin(t *testing.T) {
	folder, served := filepath.Join(t.TempDir(), "data"), filepath.Join(t.TempDir(), "data")
	startServer(t, served)
	for _, dir := range []string{folder, served} {
		if code, _, stderr := runProgram(t, "keys", "create", "--data", dir, "--user", "alice"); code != 0 || !strings.Contains(stderr, "for call, read; it") {
			t.Errorf("%s: exit code %d, %s", dir, code, stderr)
		}
	}
	other := filepath.Join(t.TempDir(), "data")
	if code, _, stderr := runProgram(t, "keys", "create", "--data", other); code != 0 || !strings.Contains(stderr, "for admin, as the first key;") {
		t.Errorf("without a user: exit code %d, %s", code, stderr)
	}
}

// secretTail returns the second half of a secret's random part, which occurs nowhere
// else.
func secretTail(secret string) string { return secret[len(secret)-33 : len(secret)-1] }

func nodeSecret(t *testing.T, dir string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(dir, "SECRET"))
	if err != nil {
		t.Fatal(err)
	}
	return b[:ingress.SecretBytes] // a checksum follows
}

// requestWithHeader sends a request with one header and returns the headers and body
// of the response.
func requestWithHeader(t *testing.T, url, method, path, header string) string {
	t.Helper()
	r, err := http.NewRequest(method, url, strings.NewReader(`{"unknown":1}`))
	if err != nil {
		t.Fatal(err)
	}
	r.URL.Opaque = path
	r.Header.Set("Content-Type", "application/json")
	if method == http.MethodGet {
		r.Body, r.ContentLength = nil, 0
	}
	name, value, _ := strings.Cut(header, ": ")
	r.Header.Set(name, value)
	response, err := http.DefaultTransport.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	b, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	var head strings.Builder
	if err := response.Header.Write(&head); err != nil {
		t.Fatal(err)
	}
	return head.String() + string(b)
}

// Where an ingress runs, no store is created for a key, because nothing would use it. Elsewhere a new store is made beside a
// server with a warning.
func TestKeyForFolderOfIngress(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	cmd := programCmd("keys", "create", "--data", dir)
	cmd.Env = append(cmd.Env, "TROUPE_ROLE=ingress")
	out, err := cmd.CombinedOutput()
	if _, stat := os.Stat(dir); err == nil || stat == nil || !strings.Contains(string(out), "its keys are those of the orchestrator") ||
		!strings.Contains(string(out), "troupe keys create --data FOLDER-OF-THE-ORCHESTRATOR") || !strings.Contains(string(out), "troupe keys create --server http://") {
		t.Errorf("%v, %v: %s", err, stat, out)
	}
	s := startServer(t, filepath.Join(t.TempDir(), "data"))
	code, key, stderr := runProgram(t, "keys", "create", "--data", dir, "--server", s.url)
	if code != 0 || !strings.HasPrefix(key, "troupe_") || !strings.Contains(stderr, "is a new store; the server at "+s.url+" uses another one") {
		t.Errorf("%d %s%s", code, key, stderr)
	}
	if code, _, stderr := runProgram(t, "keys", "create", "--data", dir, "--server", s.url); code != 0 || strings.Contains(stderr, "new store") {
		t.Errorf("the second key: %d %s", code, stderr)
	}
}

// A data folder whose store is in a database is for one process.
func TestFolderOfDatabaseIsForOneProcess(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	lock, err := disk.LockFolder(dir)
	if err != nil {
		t.Fatal(err)
	}
	serve := func() string {
		_, _, stderr := runProgram(t, "serve", "--data", dir, "--store", "postgres://nobody@127.0.0.1:1/none?connect_timeout=1", "--listen", "127.0.0.1:0")
		return stderr
	}
	if got, want := serve(), fmt.Sprintf("is in use by process %d: stop that process, or choose another --data; each process of a cluster has its own", os.Getpid()); !strings.Contains(got, want) {
		t.Errorf("got %s, want %s", got, want)
	}
	if err := lock.Close(); err != nil {
		t.Fatal(err)
	}
	if got := serve(); strings.Contains(got, "in use") || !strings.Contains(got, "127.0.0.1:1") || strings.Contains(got, "closed file") {
		t.Errorf("got %s", got)
	}
}

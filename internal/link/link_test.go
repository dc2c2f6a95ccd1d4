// SPDX-License-Identifier: Apache-2.0

package link

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/host/gateway"
	"github.com/troupe-run/troupe/ingress"
	"github.com/troupe-run/troupe/internal/command"
)

var quietly = slog.New(slog.DiscardHandler)

// authority signs certificates for 127.0.0.1.
type authority struct {
	*testing.T
	dir  string
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
	made int64
}

func newAuthority(t *testing.T) *authority {
	a := &authority{T: t, dir: t.TempDir()}
	a.key, _ = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	a.cert = a.sign(template, template, a.key, "ca.pem")
	return a
}

// sign writes a certificate to a file.
func (a *authority) sign(template, parent *x509.Certificate, key *ecdsa.PrivateKey, name string) *x509.Certificate {
	a.Helper()
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, a.key)
	if err != nil {
		a.Fatal(err)
	}
	a.write(name, "CERTIFICATE", der)
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		a.Fatal(err)
	}
	return cert
}

func (a *authority) write(name, kind string, der []byte) {
	a.Helper()
	if err := os.WriteFile(filepath.Join(a.dir, name), pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		a.Fatal(err)
	}
}

// files returns the files of a certificate with some usages.
func (a *authority) files(name string, usages ...x509.ExtKeyUsage) Files {
	a.Helper()
	a.made++
	key, _ := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	a.sign(&x509.Certificate{SerialNumber: big.NewInt(a.made + 1), NotAfter: time.Now().Add(time.Hour), ExtKeyUsage: usages, IPAddresses: []net.IP{{127, 0, 0, 1}}}, a.cert, key, name+".pem")
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		a.Fatal(err)
	}
	a.write(name+"-key.pem", "EC PRIVATE KEY", der)
	return Files{filepath.Join(a.dir, name+".pem"), filepath.Join(a.dir, name+"-key.pem"), filepath.Join(a.dir, "ca.pem")}
}

// testNode is a node whose agents list has one agent. A follower gets one update.
type testNode struct {
	command.Node
	stopped  bool
	followed chan struct{} // receives for each Follow; may be nil
}

func (n *testNode) Lookup(context.Context, command.Lookup) (command.Result, error) {
	if n.stopped {
		return nil, command.ErrClosed
	}
	return command.Agents{All: []command.Agent{{Name: "helper"}}}, nil
}

func (n *testNode) Follow(context.Context, command.Follow) (<-chan struct{}, func(), error) {
	updates := make(chan struct{}, 1)
	updates <- struct{}{}
	if n.followed != nil {
		n.followed <- struct{}{}
	}
	return updates, func() {}, nil
}

// testExternal knows the agent scribe.
type testExternal struct{ gateway.External }

func (testExternal) Heartbeat(name string) bool     { return name == "scribe" }
func (testExternal) Healthy(name string) bool       { return name == "scribe" }
func (testExternal) LastSeen(string) actor.Time     { return 7 }
func (testExternal) Circuit(string) string          { return "half_open" }
func (testExternal) Permit(_, authEnv string) error { return errors.New(authEnv + " is not permitted") }
func (testExternal) PermitDefinition(def []byte) error {
	return errors.New(string(def) + " is not permitted")
}

// serve serves an orchestrator at an address until the returned function is called.
func serve(t *testing.T, a *Address, node command.Node) (*Keys, func()) {
	t.Helper()
	l, err := Listen(*a)
	if err != nil {
		t.Fatal(err)
	}
	if a.Path == "" {
		a.Host = l.Addr().String()
	}
	keys := &Keys{To: new(gateway.Keys)}
	keys.Set(nil)
	failures := map[string]error{"a": fs.ErrExist, "b": syscall.EROFS, "c": syscall.EDQUOT, "d": actor.RefuseBusy(actor.ScopeNode, time.Second, "another backup")}
	s := NewServer(*a, l, &Orchestrator{Node: node, Keys: keys, Secret: []byte("secret"), ApprovalScope: "operator", External: testExternal{}, Backup: func(name string) (string, error) {
		return "/backups/" + name, failures[name]
	}}, nil, quietly)
	ended := make(chan error, 1)
	go func() { ended <- s.Serve() }()
	stopped := false
	stop := func() {
		if stopped {
			return
		}
		stopped = true
		if err := errors.Join(s.Close(), <-ended); err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(stop)
	return keys, stop
}

func agentsOf(t *testing.T, n command.Node) (int, error) {
	found, err := command.Find(t.Context(), n, self, command.AgentsQuery{})
	return len(found.All), err
}

// Only a process with a certificate of the authority, and for this purpose, can act as an ingress.
func TestPeersOverTCPNeedCertificates(t *testing.T) {
	ours, foreign := newAuthority(t), newAuthority(t)
	server := Address{Host: "127.0.0.1:0", Files: ours.files("server", x509.ExtKeyUsageServerAuth)}
	serve(t, &server, &testNode{})
	client := ours.files("client", x509.ExtKeyUsageClientAuth)
	stranger := foreign.files("client", x509.ExtKeyUsageClientAuth)
	n, err := Connect(t.Context(), []Address{{Host: server.Host, Files: client}}, new(gateway.Keys), quietly)
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	if agents, err := agentsOf(t, n); agents != 1 || err != nil {
		t.Errorf("%d agents, %v", agents, err)
	}
	stranger.Authority = client.Authority
	for name, files := range map[string]Files{
		"certificate of another authority": stranger,
		"certificate of an orchestrator":   server.Files,
		"authority of another one":         {client.Certificate, client.Key, filepath.Join(foreign.dir, "ca.pem")},
	} {
		_, err := Connect(t.Context(), []Address{{Host: server.Host, Files: files}}, new(gateway.Keys), quietly)
		var refused *RefusedError
		if !errors.As(err, &refused) || !strings.Contains(err.Error(), "certificate") && !strings.Contains(err.Error(), "--link-cert") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if c, err := tls.Dial("tcp", server.Host, &tls.Config{InsecureSkipVerify: true}); err == nil { // TLS 1.3 shows it at the first read
		_, _ = c.Write([]byte(greeting + "\n"))
		if b, err := io.ReadAll(c); err == nil || len(b) > 0 {
			t.Errorf("without a certificate: %q %v", b, err)
		}
	}
	if answer, err := http.Get("http://" + server.Host + "/v1/agents"); err == nil {
		t.Errorf("without TLS: %s", answer.Status)
	}
	if _, err := ParseAddress("--orchestrator", server.Host, Files{}); err == nil || !strings.Contains(err.Error(), "also on loopback") {
		t.Errorf("loopback without certificates: %v", err)
	}
}

// A socket in a folder that others may enter is refused by both sides, as is a peer that speaks
// another protocol or version.
func TestPeersOverSocketAreChecked(t *testing.T) {
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	a := Address{Path: filepath.Join(dir, SocketName)}
	var refused *RefusedError
	if _, err := Listen(a); !errors.As(err, &refused) || !strings.Contains(err.Error(), "chmod 700 "+dir) {
		t.Errorf("an open folder: %v", err)
	}
	if _, err := Connect(t.Context(), []Address{a}, new(gateway.Keys), quietly); !errors.As(err, &refused) {
		t.Errorf("an open folder: %v", err)
	}
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	serve(t, &a, &testNode{})
	if info, err := os.Lstat(a.Path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v %v", info, err)
	}
	if _, err := Listen(a); err == nil || !strings.Contains(err.Error(), "in use") {
		t.Errorf("a second orchestrator: %v", err)
	}
	for _, hello := range []string{"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "troupe link 1\n"} {
		c, err := net.Dial("unix", a.Path)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.WriteString(c, hello)
		if b, err := io.ReadAll(c); err != nil || !strings.HasPrefix(string(b), refusedPrefix+"got the greeting") || !strings.Contains(string(b), greeting) {
			t.Errorf("%q: %q %v", hello, b, err)
		}
		_ = c.Close()
	}
	other := Address{Path: filepath.Join(dir, "OTHER")}
	l, err := Listen(other)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for _, answer := range []string{"HTTP/1.1 400 Bad Request\r\n", "troupe link 1\n"} {
			if c, err := l.Accept(); err == nil {
				_, _ = io.WriteString(c, answer)
				_, _ = readLine(c)
				_ = c.Close()
			}
		}
	}()
	for range 2 {
		if _, err := Connect(t.Context(), []Address{other}, new(gateway.Keys), quietly); !errors.As(err, &refused) || !strings.Contains(err.Error(), "another version") {
			t.Errorf("another server: %v", err)
		}
	}
}

// While the orchestrator is away commands are refused at once. A subscription lasts: it receives an
// update after the connection is back. Keys are those of the orchestrator.
func TestLinkReconnects(t *testing.T) {
	a := Address{Path: filepath.Join(privateDir(t), SocketName)}
	source, stop := serve(t, &a, &testNode{})
	keys := new(gateway.Keys)
	n, err := Connect(t.Context(), []Address{a}, keys, quietly)
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	updates, unfollow, err := n.Follow(t.Context(), command.Follow{By: self, Session: "s"})
	if err != nil {
		t.Fatal(err)
	}
	<-updates
	key, _, r := ingress.NewKey([ingress.KeyRandomBytes]byte{1}, "", "", []ingress.Scope{ingress.ScopeAdmin}, 1, 0)
	if r != nil {
		t.Fatal(r)
	}
	source.Set([]ingress.Key{key})
	for !keys.Valid(key.ID) {
		runtime.Gosched()
	}
	stop()
	for {
		if _, err = agentsOf(t, n); err != nil {
			break
		}
	}
	var away *command.AwayError
	refusal := (*actor.Refusal)(nil)
	if !errors.As(err, &away) || !errors.Is(err, command.ErrClosed) || !errors.As(err, &refusal) || refusal.Reason != actor.Unavailable {
		t.Fatalf("while the orchestrator is away: %v", err)
	}
	if _, _, err := n.Follow(t.Context(), command.Follow{By: self, Session: "s"}); !errors.As(err, &away) {
		t.Errorf("follow: %v", err)
	}
	stopped := &testNode{stopped: true}
	_, stop = serve(t, &a, stopped)
	<-away.Back
	if keys.Valid(key.ID) {
		t.Error("a key that the orchestrator does not have is valid after its return")
	}
	if _, err := agentsOf(t, n); !errors.As(err, &away) {
		t.Errorf("a node that has stopped: %v", err)
	}
	stop()
	back := &testNode{followed: make(chan struct{}, 1)}
	serve(t, &a, back)
	<-back.followed
	<-updates
	unfollow()
	for range updates { // closed
	}
	if agents, err := agentsOf(t, n); agents != 1 || err != nil {
		t.Errorf("%d agents, %v", agents, err)
	}
}

// An ingress ends if its orchestrator returns with another secret: its run tokens and cursors are
// worthless.
func TestOtherStoreEndsIngress(t *testing.T) {
	a := Address{Path: filepath.Join(privateDir(t), SocketName)}
	_, stop := serve(t, &a, &testNode{})
	n, err := Connect(t.Context(), []Address{a}, new(gateway.Keys), quietly)
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	stop()
	n.first.Secret = []byte("former") // as if this one were another
	serve(t, &a, &testNode{})
	<-n.Done()
	if err := n.Err(); err == nil || !strings.Contains(err.Error(), "another store") {
		t.Error(err)
	}
}

// Keys, health, permissions and backups cross the link with their types of errors.
func TestGatewayNeedsCrossLink(t *testing.T) {
	a := Address{Path: filepath.Join(privateDir(t), SocketName)}
	serve(t, &a, &testNode{})
	n, err := Connect(t.Context(), []Address{a}, new(gateway.Keys), quietly)
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	var c gateway.Config
	n.Gateway(&c)
	if string(c.Secret) != "secret" || c.ApprovalScope != "operator" {
		t.Errorf("%+v", c)
	}
	x := c.External
	if !x.Heartbeat("scribe") || x.Heartbeat("other") || !x.Healthy("scribe") || x.Healthy("other") || x.LastSeen("scribe") != 7 || x.Circuit("scribe") != "half_open" {
		t.Error("wrong health")
	}
	if err := x.Permit("http://x", "TROUPE_AUTH_A"); err == nil || err.Error() != "TROUPE_AUTH_A is not permitted" {
		t.Error(err)
	}
	if err := x.PermitDefinition([]byte("{}")); err == nil || err.Error() != "{} is not permitted" {
		t.Error(err)
	}
	for name, want := range map[string]error{"a": fs.ErrExist, "b": fs.ErrPermission, "c": syscall.ENOSPC, "e": nil} {
		dir, err := c.Backup(name)
		if !errors.Is(err, want) || want == nil && dir != "/backups/e" {
			t.Errorf("backup %s: %q %v", name, dir, err)
		}
	}
	if _, err := c.Backup("d"); !strings.Contains(err.Error(), "another backup") {
		t.Error(err)
	}
}

func privateDir(t *testing.T) string {
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	return dir
}

// Connections that send nothing are closed in time, also while the files of TLS cannot be read.
func TestSilentStrangersAreClosed(t *testing.T) {
	t.Parallel()
	ours := newAuthority(t)
	a := Address{Host: "127.0.0.1:0", Files: ours.files("server", x509.ExtKeyUsageServerAuth)}
	serve(t, &a, &testNode{})
	ca := a.Files.Authority
	if err := os.Rename(ca, ca+".off"); err != nil {
		t.Fatal(err)
	}
	strangers := make([]net.Conn, greetingsMax)
	for i := range strangers {
		c, err := net.Dial("tcp", a.Host)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		strangers[i] = c
	}
	for _, c := range strangers { // closed for writing by the server: each was refused
		if b, err := io.ReadAll(c); len(b) > 0 {
			t.Fatalf("%q %v", b, err)
		}
	}
	if err := os.Rename(ca+".off", ca); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 4*greetingTimeout)
	defer cancel()
	n, err := Connect(ctx, []Address{{Host: a.Host, Files: ours.files("client", x509.ExtKeyUsageClientAuth)}}, new(gateway.Keys), quietly)
	if err != nil {
		t.Fatal(err)
	}
	n.Close()
}

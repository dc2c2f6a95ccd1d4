// SPDX-License-Identifier: Apache-2.0

package main

import (
	"crypto/x509"
	"encoding/pem"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// writeCertificate writes a certificate for 127.0.0.1 and its key.
func writeCertificate(t *testing.T) (certFile, keyFile string) {
	t.Helper()
	other := httptest.NewTLSServer(http.NotFoundHandler())
	defer other.Close()
	pair := other.TLS.Certificates[0]
	key, err := x509.MarshalPKCS8PrivateKey(pair.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	certFile, keyFile = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	for path, block := range map[string]*pem.Block{certFile: {Type: "CERTIFICATE", Bytes: pair.Certificate[0]}, keyFile: {Type: "PRIVATE KEY", Bytes: key}} {
		if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return certFile, keyFile
}

// Commands reach a server over TLS: single answers, streams and the channel. They name what is
// missing if the certificate is unknown or TLS is not used.
func TestCommandsOverTLS(t *testing.T) {
	certFile, keyFile := writeCertificate(t)
	s := startServerWithBuiltins(t, filepath.Join(t.TempDir(), "data"), "--tls-cert", certFile, "--tls-key", keyFile)
	if !strings.HasPrefix(s.url, "https://127.0.0.1:") {
		t.Fatal(s.url)
	}
	for _, c := range []struct {
		code int
		want string
		args []string
	}{
		{0, "response from helper: hello", []string{"call", "helper", "hello", "--ca", certFile}},
		{0, "response from helper: hello", []string{"call", "helper", "hello", "--stream", "--ca", certFile}},
		{0, "helper ", []string{"agents", "list", "--ca", certFile}},
		{exitWaiting, " --ca " + certFile, []string{"call", "coordinator", "hello", "--ca", certFile}},
		{exitFailed, "name the file of its certificate authority with --ca", []string{"call", "helper", "hello"}},
		{exitFailed, "want certificates in PEM", []string{"call", "helper", "hello", "--ca", keyFile}},
		{exitFailed, "--ca: ", []string{"call", "helper", "hello", "--ca", certFile + "x"}},
		{exitFailed, "this server speaks TLS: use https://", []string{"call", "helper", "hello", "--server", strings.Replace(s.url, "https", "http", 1)}},
	} {
		args := c.args
		if !strings.Contains(strings.Join(args, " "), "--server") {
			args = append(args, "--server", s.url)
		}
		if code, out, stderr := runProgram(t, args...); code != c.code || !strings.Contains(out+stderr, c.want) {
			t.Errorf("%q: exit code %d, %s%s", args, code, out, stderr)
		}
	}
	chat := programCmd("chat", "helper", "--server", s.url, "--ca", certFile)
	chat.Stdin = strings.NewReader("hello\n")
	if out, err := chat.CombinedOutput(); err != nil || !strings.Contains(string(out), "response from helper: hello") {
		t.Errorf("chat: %v %s", err, out)
	}
	if code := s.stop(syscall.SIGTERM); code != 0 {
		t.Errorf("exit code after SIGTERM: %d", code)
	}
	for want, args := range map[string][]string{
		"want both, or none":     {"--tls-cert", certFile},
		"--tls-cert, --tls-key:": {"--tls-cert", keyFile, "--tls-key", keyFile},
	} {
		if code, _, stderr := runProgram(t, append([]string{"serve", "--data", filepath.Join(t.TempDir(), "data"), "--listen", "127.0.0.1:0"}, args...)...); code == 0 || !strings.Contains(stderr, want) {
			t.Errorf("%q: exit code %d, %s", args, code, stderr)
		}
	}
}

// A server that listens off loopback without TLS warns that keys cross the network; one with
// TLS, or on loopback, does not.
func TestWarningWithoutTLS(t *testing.T) {
	certFile, keyFile := writeCertificate(t)
	for i, c := range []struct {
		address string
		warns   bool
		args    []string
	}{{"0.0.0.0:0", true, nil}, {"0.0.0.0:0", false, []string{"--tls-cert", certFile, "--tls-key", keyFile}}, {"127.0.0.1:0", false, nil}} {
		dir := filepath.Join(t.TempDir(), "data")
		if code, _, stderr := runProgram(t, "keys", "create", "--data", dir); code != 0 {
			t.Fatal(stderr)
		}
		s := startServerAt(t, dir, c.address, c.args...)
		if _, port, err := net.SplitHostPort(strings.TrimPrefix(strings.TrimPrefix(s.url, "https://"), "http://")); err != nil || port == "" {
			t.Error(s.url)
		}
		s.stop(syscall.SIGTERM)
		log, err := os.ReadFile(s.log)
		if err != nil || strings.Contains(string(log), "cross the network unencrypted") != c.warns {
			t.Errorf("%d: %v, log\n%s", i, err, log)
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// testCertificate makes gateways of tests serve over TLS, and testRoots makes their clients
// use it. Both are nil otherwise.
var (
	testCertificate *Certificate
	testRoots       *x509.CertPool
)

// overTLS returns the connection of a client, with TLS if its gateway has it.
func overTLS(c net.Conn) net.Conn {
	if testRoots == nil {
		return c
	}
	return tls.Client(c, &tls.Config{RootCAs: testRoots, ServerName: "127.0.0.1"})
}

// dialMaybeTLS dials a gateway for a client of HTTP. URLs keep the scheme http.
func dialMaybeTLS(ctx context.Context, network, address string) (net.Conn, error) {
	c, err := new(net.Dialer).DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	return overTLS(c), nil
}

// writeCertificate writes a new certificate for 127.0.0.1 and its key, and returns their paths
// and the certificate.
func writeCertificate(t *testing.T, dir string) (certFile, keyFile string, cert *x509.Certificate) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: serial, Subject: pkix.Name{CommonName: "test"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, DNSNames: []string{"localhost"}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	if cert, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	certFile, keyFile = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	for path, block := range map[string]*pem.Block{certFile: {Type: "CERTIFICATE", Bytes: der}, keyFile: {Type: "PRIVATE KEY", Bytes: secret}} {
		if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return certFile, keyFile, cert
}

// useTLS makes the gateways of a test serve over TLS.
func useTLS(t *testing.T) {
	certFile, keyFile, cert := writeCertificate(t, t.TempDir())
	c, err := LoadCertificate(certFile, keyFile, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	testCertificate, testRoots = c, x509.NewCertPool()
	testRoots.AddCert(cert)
	t.Cleanup(func() { testCertificate, testRoots = nil, nil })
}

// A gateway with TLS behaves like one without: streams resume, sockets work, and departed
// clients are noticed.
func TestOverTLS(t *testing.T) {
	useTLS(t)
	for name, test := range map[string]func(*testing.T){
		"MessageReturnsAnswer":               TestMessageReturnsAnswer,
		"SignalResumesWaitingRun":            TestSignalResumesWaitingRun,
		"IdempotencyKeyDeduplicatesMessages": TestIdempotencyKeyDeduplicatesMessages,
		"SlowRunIsAcceptedAfterTimeout":      TestSlowRunIsAcceptedAfterTimeout,
		"KeyRevokedDuringLongPoll":           TestKeyRevokedDuringLongPoll,
		"StreamResumesAfterAnyEvent":         TestStreamResumesAfterAnyEvent,
		"StreamFollowsLiveRun":               TestStreamFollowsLiveRun,
		"ClientDisconnectKeepsRun":           TestClientDisconnectKeepsRun,
		"ShutdownEndsStreams":                TestShutdownEndsStreams,
		"PipelinedStream":                    TestPipelinedStream,
		"ChannelResumesBehindEveryCursor":    TestChannelResumesBehindEveryCursor,
		"ChannelRefusesBadInput":             TestChannelRefusesBadInput,
		"SessionEventsAreReadInOrder":        TestSessionEventsAreReadInOrder,
	} {
		t.Run(name, test)
	}
}

// A client without TLS gets the advice to use it. Pages of the server's own origin are those of https.
func TestClientWithoutTLS(t *testing.T) {
	useTLS(t)
	d := startGateway(t)
	if status, _, body := d.do("GET", "/v1/agents", "", "Origin", "https://"+d.address); status != 200 {
		t.Errorf("own origin: %d %s", status, body)
	}
	if status, _, body := d.do("GET", "/v1/agents", "", "Origin", "http://"+d.address); status != 403 {
		t.Errorf("origin without TLS: %d %s", status, body)
	}
	plain := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 30 * time.Second}
	response, err := plain.Get("http://" + d.address + "/healthz")
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if body, err := io.ReadAll(response.Body); err != nil || response.StatusCode != 400 || !strings.Contains(string(body), "this server speaks TLS: use https://") {
		t.Errorf("%d %s %v", response.StatusCode, body, err)
	}
}

// All bytes of large requests and answers pass, also while a client sends and reads at once.
func TestLargeBodiesOverTLS(t *testing.T) {
	useTLS(t)
	d := startGateway(t)
	text := strings.Repeat("x", 900_000)
	var m messageResponse
	if status := d.doJSON(&m, "POST", "/v1/agents/helper/messages", `{"content":"`+text+`"}`); status != 200 || m.Content != "response from helper: "+text {
		t.Errorf("%d, %d bytes", status, len(m.Content))
	}
	if status, _, body := d.do("POST", "/v1/agents/helper/messages", `{"content":"`+strings.Repeat("x", BodyBytesMax)+`"}`); status != http.StatusRequestEntityTooLarge {
		t.Errorf("body over the limit: %d %.100s", status, body)
	}
}

// New files are used by the next handshake. Files that do not fit are not, and are named.
func TestCertificateIsReadAgain(t *testing.T) {
	dir := t.TempDir()
	certFile, keyFile, first := writeCertificate(t, dir)
	var log bytes.Buffer
	c, err := LoadCertificate(certFile, keyFile, slog.New(slog.NewJSONHandler(&log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	// used returns the certificate that a handshake uses after the files have changed.
	used := func(change int) *x509.Certificate {
		t.Helper()
		later := time.Now().Add(time.Duration(change) * time.Minute)
		for _, path := range []string{certFile, keyFile} { // files of one test may have the same time
			if err := os.Chtimes(path, later, later); err != nil {
				t.Fatal(err)
			}
		}
		c.checked = time.Time{}
		pair, err := c.get(nil)
		if err != nil {
			t.Fatal(err)
		}
		leaf, err := x509.ParseCertificate(pair.Certificate[0])
		if err != nil {
			t.Fatal(err)
		}
		return leaf
	}
	if !used(1).Equal(first) {
		t.Error("unchanged files: another certificate")
	}
	_, _, second := writeCertificate(t, dir)
	if !used(2).Equal(second) {
		t.Error("changed files: the former certificate")
	}
	other, _, _ := writeCertificate(t, t.TempDir())
	foreign, err := os.ReadFile(other)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(certFile, foreign, 0o600); err != nil {
		t.Fatal(err)
	}
	log.Reset()
	if !used(3).Equal(second) || !strings.Contains(log.String(), "the former one still is") {
		t.Errorf("a certificate of another key: log %s", log.String())
	}
	_, _, fourth := writeCertificate(t, dir)
	if !used(4).Equal(fourth) {
		t.Error("repaired files: the former certificate")
	}
	if _, err := LoadCertificate(filepath.Join(dir, "absent"), keyFile, nil); err == nil || !strings.Contains(err.Error(), "--tls-cert") {
		t.Errorf("absent file: %v", err)
	}
}

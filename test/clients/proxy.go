// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/troupe-run/troupe/internal/servertest"
)

// proxy is a reverse proxy on this machine.
type proxy struct {
	name    string
	known   bool // the server recognizes it: it adds X-Forwarded-For or speaks HTTP/1.0
	command func(dir, listen, server string) (config, file string, args []string)
}

var proxies = []proxy{
	{"haproxy with option forwardfor", true, haproxy("option forwardfor")},
	{"haproxy as installed", false, haproxy("")},
	{"nginx with X-Forwarded-For", true, nginx("proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;")},
	{"nginx in HTTP/1.0", true, nginx("proxy_http_version 1.0;")},
	{"nginx in HTTP/1.1", false, nginx("proxy_http_version 1.1;")},
}

func haproxy(option string) func(dir, listen, server string) (string, string, []string) {
	return func(dir, listen, server string) (string, string, []string) {
		file := filepath.Join(dir, "haproxy.cfg")
		return fmt.Sprintf("defaults\n mode http\n timeout connect 5s\n timeout client 10s\n timeout server 10s\n %s\nfrontend f\n bind %s\n default_backend b\nbackend b\n server s %s\n",
			option, listen, server), file, []string{"haproxy", "-db", "-q", "-f", file}
	}
}

func nginx(directive string) func(dir, listen, server string) (string, string, []string) {
	return func(dir, listen, server string) (string, string, []string) {
		file := filepath.Join(dir, "nginx.conf")
		paths := "access_log off;"
		for _, name := range []string{"client_body", "proxy", "fastcgi", "uwsgi", "scgi"} {
			paths += fmt.Sprintf(" %s_temp_path %s;", name, filepath.Join(dir, name))
		}
		return fmt.Sprintf("daemon off;\nmaster_process off;\npid %s;\nevents {}\nhttp { %s server { listen %s; location / { proxy_pass http://%s; %s } } }\n",
			filepath.Join(dir, "pid"), paths, listen, server, directive), file, []string{"nginx", "-e", "stderr", "-c", file}
	}
}

// disguises are header lines with which a client tries to hide the header that a
// proxy adds. HOST is replaced.
var disguises = [][]string{
	{},
	{"X-Forwarded-For:"},
	{"X-Forwarded-For: "},
	{"X-Forwarded-For: 127.0.0.1"},
	{"X-Forwarded-For:", "X-Forwarded-For:"},
	{"X-Forwarded-For: 127.0.0.1", "X-Forwarded-For:", "X-Forwarded-For: ::1"},
	{"x-FORWARDED-for:"},
	{"X_Forwarded_For:"},
	{"X_Forwarded_For: 127.0.0.1", "X-Forwarded-For:"},
	{"Connection: X-Forwarded-For"},
	{"Connection: close, X-Forwarded-For", "X-Forwarded-For:"},
	{"Connection: keep-alive, x-forwarded-for, X-Real-IP", "X-Real-IP: 127.0.0.1"},
	{"Forwarded: for=127.0.0.1"},
	{"X-Real-IP: 127.0.0.1", "X-Client-IP: 127.0.0.1", "True-Client-IP: 127.0.0.1"},
	{"Via:"},
	{"Authorization:"},
	{"Authorization: Bearer sk-stock"},
	{"Authorization: Bearer troupe_wrong"},
	{"Origin: http://HOST"},
	{"X-Forwarded-Host: HOST", "X-Forwarded-Proto: http"},
}

// checkProxies puts haproxy and nginx before a server on loopback. A client of a
// recognized proxy never passes for a process of this machine. For a proxy that is
// not recognized the server requires keys of everyone. A key works through each.
func (h *harness) checkProxies() error {
	for _, keyless := range []string{"on", "off"} {
		dir := filepath.Join(h.dir, "keyless-"+keyless)
		cmd := exec.CommandContext(h.ctx, h.bin, "serve", "--data", dir, "--listen", "127.0.0.1:0", "--log-level", "error", "--keyless="+keyless)
		cmd.Stderr = os.Stderr
		server, err := servertest.Start(cmd)
		if err != nil {
			return err
		}
		err = h.checkProxiesOf(strings.TrimPrefix(server.Line, "http://"), dir, keyless == "on")
		if stopErr := server.Stop(syscall.SIGTERM); err == nil {
			err = stopErr
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (h *harness) checkProxiesOf(server, dir string, keyless bool) error {
	key, err := exec.CommandContext(h.ctx, h.bin, "keys", "create", "--data", dir).Output()
	if err != nil {
		return fmt.Errorf("keys create: %w", err)
	}
	if status, err := h.statusAt(server, server, nil); err != nil || (status == http.StatusOK) != keyless {
		return fmt.Errorf("without a proxy: %d, %v", status, err)
	}
	for i, p := range proxies {
		if keyless && !p.known {
			continue // not recognized: serve warns of it
		}
		if err := h.checkProxy(p, filepath.Join(dir+"-proxy", fmt.Sprint(i)), server, strings.TrimSpace(string(key))); err != nil {
			return fmt.Errorf("%s, keyless %v: %w", p.name, keyless, err)
		}
		fmt.Printf("  %-31s %d disguised requests without a key refused\n", p.name, len(disguises))
	}
	return nil
}

// checkProxy runs one proxy and sends requests through it.
func (h *harness) checkProxy(p proxy, dir, server, key string) (err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	listen := free.Addr().String()
	_ = free.Close()
	config, file, args := p.command(dir, listen, server)
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		return err
	}
	path, err := findProxy(args[0])
	if err != nil {
		return err
	}
	c := exec.CommandContext(h.ctx, path, args[1:]...)
	c.Stderr = os.Stderr
	if err := c.Start(); err != nil {
		return err
	}
	exited := make(chan struct{})
	go func() { _ = c.Wait(); close(exited) }()
	defer func() {
		_ = c.Process.Signal(syscall.SIGTERM)
		<-exited
	}()
	for {
		conn, err := net.Dial("tcp", listen)
		if err == nil {
			_ = conn.Close()
			break
		}
		select {
		case <-exited:
			return fmt.Errorf("%s exited", args[0])
		case <-h.ctx.Done():
			return h.ctx.Err()
		case <-time.After(10 * time.Millisecond):
		}
	}
	for _, lines := range disguises {
		for _, host := range []string{server, listen} {
			status, err := h.statusAt(listen, host, lines)
			if err != nil {
				return fmt.Errorf("%q: %w", lines, err)
			}
			if status != http.StatusUnauthorized && (len(lines) == 0 || status != http.StatusBadRequest && status != http.StatusForbidden) {
				return fmt.Errorf("%q with Host %s: %d, want 401", lines, host, status)
			}
		}
	}
	if status, err := h.statusAt(listen, server, []string{"Authorization: Bearer " + key}); err != nil || status != http.StatusOK {
		return fmt.Errorf("with a key: %d, %v", status, err)
	}
	return nil
}

// findProxy returns the path of a proxy, which Debian installs outside the PATH of
// users.
func findProxy(name string) (string, error) {
	if path, err := exec.LookPath(name); err == nil {
		return path, nil
	}
	return exec.LookPath("/usr/sbin/" + name)
}

// statusAt sends a request of the given header lines and returns the status.
func (h *harness) statusAt(address, host string, lines []string) (int, error) {
	conn, err := net.DialTimeout("tcp", address, 10*time.Second)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		return 0, err
	}
	head := "GET /v1/agents HTTP/1.1\r\nHost: " + host + "\r\n"
	for _, l := range lines {
		head += strings.ReplaceAll(l, "HOST", host) + "\r\n"
	}
	if _, err := io.WriteString(conn, head+"\r\n"); err != nil {
		return 0, err
	}
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return 0, err
	}
	_ = response.Body.Close()
	return response.StatusCode, nil
}

// SPDX-License-Identifier: Apache-2.0

package service

import (
	"net"
	"testing"
)

func TestURLOfListenerCanBeDialed(t *testing.T) {
	for listen, want := range map[string]string{
		"0.0.0.0:8290":     "http://127.0.0.1:8290",
		"[::]:8290":        "http://127.0.0.1:8290",
		"127.0.0.1:8290":   "http://127.0.0.1:8290",
		"[::1]:8290":       "http://[::1]:8290",
		"192.0.2.1:8290":   "http://192.0.2.1:8290",
		"[2001:db8::1]:80": "http://[2001:db8::1]:80",
	} {
		addr, err := net.ResolveTCPAddr("tcp", listen)
		if err != nil {
			t.Fatal(err)
		}
		if got := "http://" + hostOf(addr); got != want {
			t.Errorf("%s: got %s, want %s", listen, got, want)
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"
)

// A client that closes its half of the connection while its request waits has gone. It may still read,
// and reads nothing: no status reports that it has gone.
func TestAbandonedRequestIsNotAnswered(t *testing.T) {
	d := startGateway(t)
	var m messageResponse
	d.doJSON(&m, "POST", "/v1/agents/coordinator/messages", `{"content":"x"}`)
	_, _, all := d.do("GET", "/v1/runs/"+m.Run+"/events", "")
	after := fmt.Sprint(strings.Count(all, `"seq":`))
	for _, request := range []string{
		"GET /v1/runs/" + m.Run + "/events?after=" + after + "&wait_ms=60000 HTTP/1.1\r\nHost: " + d.address + "\r\n\r\n",
		"POST /v1/agents/coordinator/messages HTTP/1.1\r\nHost: " + d.address + "\r\nContent-Type: application/json\r\nPrefer: wait=9\r\nContent-Length: 36\r\n\r\n" + `{"content":"x","session_id":"held"}` + " ",
	} {
		c, err := net.Dial("tcp", d.address)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if _, err := io.WriteString(c, request); err != nil {
			t.Fatal(err)
		}
		_ = c.SetReadDeadline(time.Now().Add(20 * time.Second))
		if err := c.(*net.TCPConn).CloseWrite(); err != nil {
			t.Fatal(err)
		}
		answer, err := io.ReadAll(c)
		if err != nil || strings.Contains(string(answer), " 499 ") || strings.HasPrefix(request, "GET") && len(answer) > 0 {
			t.Errorf("%.40s: got %q, %v", request, answer, err)
		}
	}
}

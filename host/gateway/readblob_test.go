// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"fmt"
	"strings"
	"testing"

	"github.com/troupe-run/troupe/tools"
)

// TestAgentReadsOnInLongResult follows an agent that reads the end of a result of which it was given the head.
func TestAgentReadsOnInLongResult(t *testing.T) {
	d := startGateway(t)
	s := newToolServer(t)
	d.declare(s, "large", "/large", `"max_result_bytes":100`)
	if status, _, body := d.do("POST", "/v1/agents", `{"name":"reader","tools":["large","read_blob"]}`); status != 201 {
		t.Fatal(status, body)
	}
	ref := tools.BlobRef(fmt.Appendf(nil, `{"text":%q}`, strings.Repeat("x", 30_000)))
	ask := func(offset int) string {
		return fmt.Sprintf(`{"content":"use large {}\nthen\nuse read_blob {\"ref\":\"%s\",\"offset\":%d}"}`, ref, offset)
	}
	status, _, body := d.do("POST", "/v1/agents/reader/messages", ask(30_005))
	if want := "the ref " + ref + " has the rest from offset 97 on"; status != 200 || !strings.Contains(body, want) || !strings.Contains(body, `{\"text\":\"xxxx\\\"}\",\"offset\":30005,\"size\":30011}`) {
		t.Errorf("%d %s", status, body)
	}
	// An agent without the tool cannot, and another run does not see the result.
	d.createAgent("other")
	if _, _, body := d.do("POST", "/v1/agents/other/messages", `{"content":"use read_blob {}"}`); !strings.Contains(body, "I was not given the tool read_blob") {
		t.Error(body)
	}
	if _, _, body := d.do("POST", "/v1/agents/reader/messages", `{"content":"use read_blob {\"ref\":\"`+ref+`\"}"}`); !strings.Contains(body, "no result of this run that was cut has the ref") {
		t.Error(body)
	}
}

// SPDX-License-Identifier: Apache-2.0

package mcp

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/troupe-run/troupe/tools"
)

// restless is a server in memory, whose list differs at each request and has an entry that is no tool.
type restless struct {
	lists    atomic.Int64
	announce *io.PipeReader
	same     bool   // its list never differs
	listed   func() // called with each list; may be nil
}

func (r *restless) RoundTrip(q *http.Request) (*http.Response, error) {
	answer := func(status int, media string, body io.ReadCloser) *http.Response {
		return &http.Response{StatusCode: status, Header: http.Header{"Content-Type": {media}}, Body: body, Request: q}
	}
	if q.Method == http.MethodGet {
		context.AfterFunc(q.Context(), func() { _ = r.announce.CloseWithError(q.Context().Err()) })
		return answer(http.StatusOK, "text/event-stream", r.announce), nil
	}
	var in struct {
		ID     jsontext.Value `json:"id"`
		Method string         `json:"method"`
		Params struct {
			Version string `json:"protocolVersion"`
		} `json:"params"`
	}
	if q.Body != nil {
		b, _ := io.ReadAll(q.Body)
		_ = json.Unmarshal(b, &in)
	}
	result := ""
	switch in.Method {
	case "initialize":
		result = fmt.Sprintf(`{"protocolVersion":%q,"capabilities":{"tools":{"listChanged":true}},"serverInfo":{"name":"restless","version":"1"}}`, in.Params.Version)
	case "tools/list":
		n := r.lists.Add(1)
		if r.listed != nil {
			r.listed()
		}
		if r.same {
			n = 1
		}
		result = fmt.Sprintf(`{"tools":[{"name":"t","description":"version %d","inputSchema":{"type":"object"}},%d]}`, n, n) + strings.Repeat(" ", int(n%3))
	default:
		return answer(http.StatusAccepted, "", http.NoBody), nil
	}
	return answer(http.StatusOK, "application/json", io.NopCloser(strings.NewReader(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":%s}`, in.ID, result)))), nil
}

// A server that announces changed lists without end is listed once in 5 s, with the last
// announcement, and causes one line of the log in a minute. One whose list is the same causes none.
func TestStormOfChangedLists(t *testing.T) {
	for name, same := range map[string]bool{"changed": false, "the same": true} {
		t.Run(name, func(t *testing.T) { stormOfLists(t, same) })
	}
}

// A server that announces a change whenever it is listed is listed once in 5 s, and not for ever faster.
func TestListThatAnnouncesAChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		read, announce := io.Pipe()
		web := &restless{announce: read, listed: func() {
			go func() {
				_, _ = io.WriteString(announce, "data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/tools/list_changed\"}\n\n")
			}()
		}}
		times := defaultTimes
		times.relist = 24 * time.Hour
		s, err := Open(Options{Servers: map[string]Config{"s": {URL: "http://restless.example"}}, Dir: t.TempDir(), Transport: web, times: times})
		if err != nil {
			t.Fatal(err)
		}
		s.Start(func(context.Context, []tools.Tool) error { return nil })
		<-time.After(time.Minute + time.Second)
		if n := web.lists.Load(); n < 11 || n > 14 {
			t.Errorf("%d lists in a minute", n)
		}
		s.Close()
		_ = read.Close()
		synctest.Wait()
	})
}

func stormOfLists(t *testing.T, same bool) {
	synctest.Test(t, func(t *testing.T) {
		read, announce := io.Pipe()
		web, log := &restless{announce: read, same: same}, new(bytes.Buffer)
		times := defaultTimes
		times.relist = 24 * time.Hour
		s, err := Open(Options{Servers: map[string]Config{"s": {URL: "http://restless.example"}}, Dir: t.TempDir(), Transport: web,
			Logger: slog.New(slog.NewTextHandler(log, nil)), times: times})
		if err != nil {
			t.Fatal(err)
		}
		s.Start(func(context.Context, []tools.Tool) error { return nil })
		synctest.Wait()
		const minutes = 10
		storm := time.Now()
		for time.Since(storm) < minutes*time.Minute+2*time.Second { // ends between two lists
			for range 3 {
				if _, err := io.WriteString(announce, "data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/tools/list_changed\"}\n\n"); err != nil {
					t.Fatal(err)
				}
			}
			<-time.After(300 * time.Millisecond)
		}
		before := web.lists.Load()
		if most := int64(minutes*60/5 + 1); before > most || before < most-2 {
			t.Errorf("%d lists, want about %d", before, most)
		}
		<-time.After(time.Minute)
		if after := web.lists.Load(); after != before+1 {
			t.Errorf("%d lists after the last announcement, want 1", after-before)
		}
		s.Close()
		synctest.Wait()
		if lines := strings.Count(log.String(), "\n"); lines > 2*minutes+10 {
			t.Errorf("%d lines in the log in %d minutes:\n%s", lines, minutes, log)
		}
		if n := strings.Count(log.String(), "has changed its tools"); same && n > 0 || !same && (n > minutes+1 || n < minutes-1) {
			t.Errorf("%d lines about changed tools in %d minutes", n, minutes)
		}
	})
}

// Messages that a server sends by itself are read at a bounded rate.
func TestFloodOfUnaskedMessages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var f flow
		begin, done := time.Now(), make(chan struct{})
		for range 10 * unaskedMax {
			f.wait(done)
		}
		if took := time.Since(begin); took < 9*time.Second || took > 11*time.Second {
			t.Errorf("took %v", took)
		}
		close(done)
		begin = time.Now()
		for range 10 * unaskedMax {
			f.wait(done)
		}
		if took := time.Since(begin); took != 0 {
			t.Errorf("at its end: took %v", took)
		}
	})
}

// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/fasthttp/websocket"

	"github.com/troupe-run/troupe/agents"
)

// startBrowser starts a gateway with an agent that uses the client tool browser.open.
func startBrowser(t *testing.T, fields string) *testGateway {
	t.Helper()
	d := startGatewayWith(t, Config{}, newBuyer())
	if status, _, body := d.do("POST", "/v1/tools", `{"tool_name":"browser.open","kind":"client_tool","on_failure":"return_error"`+fields+`}`); status != 201 {
		t.Fatal(status, body)
	}
	return d
}

const openPage = `{"type":"agent_invoke","request_id":%q,"session_id":%q,"agent_id":"buyer","message":{"role":"user","content":"browser.open {\"url\":\"https://a.example\"}"}}`

// A client tool is performed by the device that began the run. Without a device, it fails at
// once.
func TestDevicePerformsClientTools(t *testing.T) {
	d := startBrowser(t, "")
	if status, _, body := d.do("POST", "/v1/agents/buyer/messages", `{"content":"browser.open {}","session_id":"s0"}`); status == 200 || !strings.Contains(body, "client_offline") || !strings.Contains(body, "no active client") {
		t.Errorf("%d %s", status, body)
	}
	phone := d.channel(`{"type":"hello","user_id":"ann","device_id":"phone"}`, nil)
	phone.until("state", "READY")
	tablet := d.channel(`{"type":"hello","user_id":"ann","client_meta":{"device_id":"tablet"}}`, nil)
	tablet.until("state", "READY")
	d.channel(`{"type":"hello","user_id":"bob","device_id":"other"}`, nil).until("state", "READY")

	phone.send(fmt.Sprintf(openPage, "r1", "s1"))
	asked := phone.until("tool_request", "")
	if asked.Tool != "browser.open" || asked.Args["url"] != "https://a.example" || asked.Session != "s1" || asked.Deadline < asked.TS || !strings.HasPrefix(asked.ToolCall, "tc_") {
		t.Errorf("%+v", asked)
	}
	var view struct {
		State string `json:"state"`
		Kind  string `json:"kind"`
		Code  string `json:"code"`
	}
	if status := d.doJSON(&view, "GET", "/v1/tool_calls/"+asked.ToolCall, "", userHeader, "ann"); status != 200 || view.State != "WAITING_CLIENT" || view.Kind != "client_tool" {
		t.Errorf("%d %+v", status, view)
	}
	list := func(user string) string {
		t.Helper()
		status, _, body := d.do("GET", "/v1/tool_calls?user="+user, "")
		if status != 200 {
			t.Errorf("%s: %d %s", user, status, body)
		}
		return body
	}
	for _, user := range []string{"ann", "*"} {
		if body := list(user); !strings.Contains(body, `"tool_call_id":"`+asked.ToolCall+`","state":"WAITING_CLIENT","kind":"client_tool","tool_name":"browser.open","args":{"url":"https://a.example"}`) || !strings.Contains(body, `"principal":"ann"`) {
			t.Errorf("the calls of %s that wait: %s", user, body)
		}
	}
	if body := list("bob"); body != `{"tool_calls":[]}` {
		t.Errorf("the calls of bob that wait: %s", body)
	}
	result := fmt.Sprintf(`{"type":"tool_result","request_id":"x","run_id":%q,"tool_call_id":%q,"ok":true,"result":{"x":1}}`, asked.Run, asked.ToolCall)
	tablet.send(result)
	if m := tablet.until("error", ""); m.Code != "tool_call_ended" || !strings.Contains(fmt.Sprint(m.Message), "another device") {
		t.Errorf("%+v", m)
	}
	if status := d.doJSON(&view, "POST", "/v1/tool_calls/"+asked.ToolCall+":result", `{"ok":true}`, userHeader, "bob", deviceHeader, "phone"); status != 404 {
		t.Errorf("a foreign user: %d %+v", status, view)
	}
	phone.send(result)
	phone.send(result) // repeated: the same answer
	phone.send(strings.Replace(result, `"request_id":"x",`, "", 1))
	done := phone.until("done", "")
	if text := phone.text(done.Run); text != `{"x":1}` {
		t.Errorf("answer %q", text)
	}
	accepted, ended := 0, 0 // before or after done
	for i := 0; accepted+ended < 3; i++ {
		if i == len(phone.got) {
			phone.next()
		}
		switch m := phone.got[i]; {
		case m.State == "ACCEPTED" && m.Request == "x":
			accepted++
		case m.Type == "error" && m.Code == "tool_call_ended":
			ended++
		}
	}
	if accepted != 2 || ended != 1 {
		t.Errorf("%d of 2 repeated results accepted, %d of 1 second result refused: %+v", accepted, ended, phone.got)
	}

	if body := list("*"); body != `{"tool_calls":[]}` {
		t.Errorf("calls wait after the answer: %s", body)
	}
	_ = phone.conn.Close() // the last one connected
	tablet.send(`{"type":"agent_invoke","session_id":"s2","agent_id":"buyer","message":{"role":"user","content":"browser.open {}"}}`)
	asked = tablet.until("tool_request", "")
	tablet.send(fmt.Sprintf(`{"type":"tool_result","tool_call_id":%q,"ok":false,"error":{"code":"denied","message":"the person refused"}}`, asked.ToolCall))
	if m := tablet.until("error", ""); !strings.Contains(fmt.Sprint(m.Message), "denied: the person refused") {
		t.Errorf("%+v", m)
	}
	var failed toolCallResponse
	if d.doJSON(&failed, "GET", "/v1/tool_calls/"+asked.ToolCall, "", userHeader, "ann"); failed.Error.Code != "denied" {
		t.Errorf("%+v, want the code of the device", failed)
	}
}

// A device that reconnects gets its open calls again, also after a restart of the node.
func TestDeviceGetsItsOpenCallsAgain(t *testing.T) {
	dir := t.TempDir()
	var call string
	t.Run("before", func(t *testing.T) {
		d := startGatewayOn(t, dir, Config{}, newBuyer())
		if status, _, body := d.do("POST", "/v1/tools", `{"tool_name":"browser.open","kind":"client_tool"}`); status != 201 {
			t.Fatal(status, body)
		}
		phone := d.channel(`{"type":"hello","device_id":"phone"}`, nil)
		phone.send(fmt.Sprintf(openPage, "r1", "s1"))
		call = phone.until("tool_request", "").ToolCall
		_ = phone.conn.Close()
		again := d.channel(`{"type":"hello","device_id":"phone"}`, nil)
		if m := again.until("tool_request", ""); m.ToolCall != call {
			t.Errorf("%+v, want %s", m, call)
		}
	})
	d := startGatewayOn(t, dir, Config{}, newBuyer())
	phone := d.channel(`{"type":"hello","device_id":"phone","resume":{"session_id":"s1"}}`, nil)
	m := phone.until("tool_request", "")
	if m.ToolCall != call {
		t.Errorf("%+v, want %s", m, call)
	}
	phone.send(fmt.Sprintf(`{"type":"tool_result","tool_call_id":%q,"ok":true,"result":"page"}`, call))
	if done := phone.until("done", ""); phone.text(done.Run) != "page" {
		t.Errorf("%+v", phone.got)
	}
}

// A device that has closed its connection gets no more calls: those of its runs go to another device.
func TestClosedDeviceGetsNoCalls(t *testing.T) {
	d := startBrowser(t, "")
	tablet := d.channel(`{"type":"hello","device_id":"tablet"}`, nil)
	tablet.until("state", "READY")
	phone := d.channel(`{"type":"hello","device_id":"phone"}`, nil)
	phone.until("state", "READY")
	if err := phone.conn.WriteControl(websocket.CloseMessage, websocket.FormatCloseMessage(1000, ""), time.Now().Add(20*time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, code := phone.next(); code != 1000 {
		t.Errorf("closed with %d", code)
	}
	if status, _, body := d.do("POST", "/v1/agents/buyer/messages", `{"content":"browser.open {}","session_id":"s1"}`, deviceHeader, "phone", preferHeader, respondAsync); status != 202 {
		t.Fatal(status, body)
	}
	asked := tablet.until("tool_request", "")
	tablet.send(fmt.Sprintf(`{"type":"tool_result","tool_call_id":%q,"ok":true,"result":"page"}`, asked.ToolCall))
	tablet.until("state", "ACCEPTED")
}

// A device of a key or a token that is limited to agents gets and answers calls in trees of these agents
// only, also if it has the name of the device that began the run.
func TestLimitedDevices(t *testing.T) {
	caller := agents.Define("front", "1", "test agent", agents.Blocking(agents.Func(func(turn *agents.Turn) (string, error) { return turn.Call("buyer", turn.Message()) })))
	d := startGatewayWith(t, Config{}, newBuyer(), caller)
	if status, _, body := d.do("POST", "/v1/tools", `{"tool_name":"browser.open","kind":"client_tool","on_failure":"return_error"}`); status != 201 {
		t.Fatal(status, body)
	}
	all := d.createLimitedKey(`{"user":"ann"}`)
	page := func(name, agent string) string {
		return strings.Replace(fmt.Sprintf(openPage, name, "s-"+agent), `"buyer"`, `"`+agent+`"`, 1)
	}
	for name, text := range map[string]string{"token": d.issue(d.createKey("operator"), `{"user":"ann","agents":["front"]}`), "key": d.createLimitedKey(`{"user":"ann","agents":["front"]}`)} {
		limited := d.channel(`{"type":"hello","api_key":"`+text+`","device_id":"phone"}`, nil)
		limited.until("state", "READY")
		if status, answer := d.doAs(all, "POST", "/v1/agents/buyer/messages", `{"content":"browser.open {}"}`); !strings.Contains(answer, "client_offline") {
			t.Errorf("%s: the call of another agent: %d %s", name, status, answer)
		}
		phone := d.channel(`{"type":"hello","api_key":"`+all+`","device_id":"phone"}`, nil)
		phone.until("state", "READY")
		phone.send(page(name, "buyer"))
		asked := phone.until("tool_request", "")
		result := fmt.Sprintf(`{"type":"tool_result","request_id":"x","run_id":%q,"tool_call_id":%q,"ok":true,"result":{"x":1}}`, asked.Run, asked.ToolCall)
		limited.send(result)
		if m, _ := limited.next(); m.Code != "tool_call_not_found" {
			t.Errorf("%s: the result of another agent's call: %+v", name, m)
		}
		if status, _, answer := d.do("POST", "/v1/tool_calls/"+asked.ToolCall+":result", `{"ok":true}`, "Authorization", "Bearer "+text, deviceHeader, "phone"); status != 404 {
			t.Errorf("%s: over HTTP: %d %s", name, status, answer)
		}
		phone.send(result)
		phone.until("done", "")

		limited.send(page(name, "front")) // its own, made by another agent
		own := limited.until("tool_request", "")
		limited.send(fmt.Sprintf(`{"type":"tool_result","request_id":"x","tool_call_id":%q,"ok":true,"result":{"x":2}}`, own.ToolCall))
		limited.until("done", "")
		_, _ = phone.conn.Close(), limited.conn.Close()
		for range 100 { // until the server has seen that they have gone
			if _, answer := d.doAs(all, "POST", "/v1/agents/buyer/messages", `{"content":"browser.open {}","timeout_ms":200}`); strings.Contains(answer, "client_offline") {
				break
			}
		}
	}
}

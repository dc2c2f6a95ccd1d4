// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/troupe-run/troupe/contract"
	"github.com/troupe-run/troupe/ingress"
)

// analyst is an external agent that provides capabilities, and answers with what is set.
type analyst struct {
	*testGateway
	got     chan string // messages
	answers chan string // texts of answers
}

const npvInputs = `"inputs_json":{"cash_flows":[-100000,25000,35000,45000,55000],"discount_rate":0.12,"periods":"annual"}`

func startAnalyst(t *testing.T) *analyst {
	a := &analyst{startGateway(t), make(chan string, 10), make(chan string, 10)}
	served := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/invoke" {
			return
		}
		var in struct {
			Input struct {
				Content string `json:"content"`
			} `json:"input_message"`
		}
		_ = json.NewDecoder(r.Body).Decode(&in)
		a.got <- in.Input.Content
		w.Header().Set("Content-Type", "text/event-stream")
		var text string
		select {
		case text = <-a.answers:
		case <-r.Context().Done(): // a request that was not expected
			return
		}
		if failure, fails := strings.CutPrefix(text, "error: "); fails {
			_, _ = fmt.Fprintf(w, "event: error\ndata: %s\n\n", failure)
			return
		}
		text, hangs := strings.CutSuffix(text, "…")
		answer, _ := json.Marshal(map[string]string{"text": text})
		_, _ = fmt.Fprintf(w, "event: delta\ndata: %s\n\n", answer)
		if hangs {
			w.(http.Flusher).Flush()
			<-r.Context().Done()
			return
		}
		_, _ = fmt.Fprint(w, "event: done\ndata: {}\n\n")
	}))
	t.Cleanup(served.Close)
	a.register("analyst", served.URL, `,"code":"ANL","provides":[{"code":"ANL_NPV","description":"Computes a net present value.","version":"1.0","timeout_ms":15000,
		"input_schema":{"type":"object","required":["cash_flows","discount_rate"],"properties":{"discount_rate":{"type":"number"},
			"cash_flows":{"type":"array","minItems":2,"x-error-message":"Cash flows array must contain at least two values (initial investment and one return period)"}}},
		"output_schema":{"type":"object","required":["npv"],"properties":{"npv":{"type":"number"}}}}]`)
	return a
}

func (a *analyst) register(name, url, more string) {
	a.Helper()
	if status, _, body := a.do("POST", "/v1/agents/register", fmt.Sprintf(`{"agent_id":%q,"endpoint":%q%s}`, name, url, more)); status != 201 {
		a.Fatalf("%d %s", status, body)
	}
}

// ask sends a request of the contract with status 200, and returns its response.
func (a *analyst) ask(to, envelope string, headers ...string) (response map[string]any) {
	a.Helper()
	if status := a.doJSON(&response, "POST", "/v1/agents/"+to+":invoke", envelope, headers...); status != 200 {
		a.Fatalf("%s: %d %v", envelope, status, response)
	}
	return response
}

func npvRequest(id string, more string) string {
	return fmt.Sprintf(`{"source_agent":"CST","target_agent":"ANL","capability_code":"ANL_NPV","request_id":%q,"priority":"NORMAL","timeout_ms":15000,%s%s}`, id, npvInputs, more)
}

// The examples of the contract, as the agent and the caller see them.
func TestCapabilityRequest(t *testing.T) {
	a := startAnalyst(t)
	const id = "sess-789-20250118-143022"
	a.answers <- `{"request_id":"` + id + `","status":"SUCCESS","confidence_level":"HIGH","result_json":{"npv":24156.72,"currency":"USD","discount_rate":0.12,"periods":5},"metadata":{"processing_time_ms":245,"capability_version":"1.0"}}`
	status, head, body := a.do("POST", "/v1/agents/ANL:invoke", npvRequest(id, `,"context":{"session_id":"sess-789","user_id":"user-456","engagement_type":"business_case"}`))
	const want = `{"request_id":"` + id + `","status":"SUCCESS","confidence_level":"HIGH","result_json":{"npv":24156.72,"currency":"USD","discount_rate":0.12,"periods":5},"metadata":{"processing_time_ms":245,"capability_version":"1.0"}}`
	if status != 200 || body != want {
		t.Errorf("%d\n%s, want\n%s", status, body, want)
	}
	if head.Get(sessionHeader) != "sess-789" || head.Get(runHeader) == "" {
		t.Errorf("%v", head)
	}
	var got map[string]any
	if len(a.got) != 1 || json.Unmarshal([]byte(<-a.got), &got) != nil {
		t.Fatal("the agent gets no request")
	}
	if got["source_agent"] != "CST" || got["capability_code"] != "ANL_NPV" || got["context"].(map[string]any)["engagement_type"] != "business_case" || len(got["inputs_json"].(map[string]any)["cash_flows"].([]any)) != 5 {
		t.Errorf("the agent gets %v", got)
	}
	if status, _, run := a.do("GET", "/v1/runs/"+head.Get(runHeader), "", userHeader, "user-456"); status != 200 || !strings.Contains(run, "sess-789") {
		t.Errorf("the run is not that of the user and session of the context: %d %s", status, run)
	}

	a.answers <- `{"npv":1}`
	if response := a.ask("ANL", npvRequest("sess-789-20250118-143023", `,"correlation_id":"wf-1"`)); response["status"] != "SUCCESS" || !strings.Contains(<-a.got, `"correlation_id":"wf-1"`) {
		t.Errorf("%v", response)
	}
	a.answers <- `{"npv":1}`
	if response := a.ask("ANL", npvRequest("sess-789-20250118-143024", `,"correlation_id":"wf-2"`)); response["status"] != "SUCCESS" || !strings.Contains(<-a.got, `"correlation_id":"wf-2"`) {
		t.Errorf("%v", response)
	}
	if _, _, list := a.do("GET", "/v1/runs?correlation_id=wf-1", ""); strings.Count(list, `"run_id"`) != 1 || !strings.Contains(list, `"workflow_id":"wf-1"`) {
		t.Errorf("%s", list)
	}

	// The same request again has the same response, and no second run.
	_, again, repeated := a.do("POST", "/v1/agents/ANL:invoke", npvRequest(id, ` ,"context":{"session_id":"sess-789","user_id":"user-456","engagement_type":"business_case"}`))
	if repeated != want || again.Get(runHeader) != head.Get(runHeader) || len(a.got) != 0 {
		t.Errorf("%s", repeated)
	}
}

func TestCapabilityResponses(t *testing.T) {
	a := startAnalyst(t)
	for name, c := range map[string]struct{ answer, status, code, want string }{
		"partial":        {`{"status":"PARTIAL","confidence_level":"MEDIUM","result_json":{"npv":1},"warnings":["Growth rate based on 2023 data"]}`, "PARTIAL", "", `"warnings":["Growth rate based on 2023 data"]`},
		"error":          {`{"status":"ERROR","error_code":"DATA_MISSING_REQUIRED_INPUT","error_message":"The market is unknown.","result_json":null}`, "ERROR", "DATA_MISSING_REQUIRED_INPUT", `"result_json":null`},
		"own code":       {`error: {"code":"DATA_MARKET_UNKNOWN","message":"no such market"}`, "ERROR", "DATA_MARKET_UNKNOWN", `no such market`},
		"free code":      {`error: {"code":"quota/market-data","message":"no more"}`, "ERROR", "QUOTA_MARKET_DATA", `no more`},
		"no code":        {`error: {"code":"oops","message":"no"}`, "ERROR", "ROUTING_CALL_REJECTED", `oops: no`},
		"no envelope":    {`{"npv":2}`, "SUCCESS", "", `"confidence_level":"MEDIUM"`},
		"in a block":     {"Here:\n```json\n{\"status\":\"SUCCESS\",\"confidence_level\":\"LOW\",\"result_json\":{\"npv\":3}}\n```", "SUCCESS", "", `"npv":3`},
		"foreign id":     {`{"request_id":"other","status":"SUCCESS","confidence_level":"LOW","result_json":{"npv":3}}`, "ERROR", "OUTPUT_SCHEMA_VIOLATION", `"field":"request_id"`},
		"against schema": {`{"status":"SUCCESS","confidence_level":"LOW","result_json":{"npv":"much"}}`, "ERROR", "OUTPUT_SCHEMA_VIOLATION", `"field":"result_json/npv"`},
		"text":           {`I do not know.`, "ERROR", "OUTPUT_SCHEMA_VIOLATION", `npv`},
		"no confidence":  {`{"status":"SUCCESS","result_json":{"npv":1}}`, "ERROR", "OUTPUT_SCHEMA_VIOLATION", `confidence_level`},
	} {
		a.answers <- c.answer
		id := fmt.Sprintf("00000000-0000-4000-8000-%012d", len(c.answer))
		_, _, body := a.do("POST", "/v1/agents/analyst:invoke", strings.Replace(npvRequest(id, ""), `"ANL"`, `"analyst"`, 1))
		var response map[string]any
		_ = json.Unmarshal([]byte(body), &response)
		if response["status"] != c.status || response["error_code"] != nilIfEmpty(c.code) || response["request_id"] != id || !strings.Contains(body, c.want) {
			t.Errorf("%s: got %s, want %s %s with %s", name, body, c.status, c.code, c.want)
		}
		select {
		case <-a.got:
		default:
			t.Fatal("the request has not reached the agent")
		}
	}
}

func nilIfEmpty(text string) any {
	if text == "" {
		return nil
	}
	return text
}

// A request that breaks a rule is refused in its response, and reaches no agent.
func TestInvalidCapabilityRequests(t *testing.T) {
	a := startAnalyst(t)
	const id = "sess-789-20250118-143105"
	valid := npvRequest(id, "")
	for name, c := range map[string]struct{ envelope, code, field, want string }{
		"inputs":             {strings.Replace(valid, `[-100000,25000,35000,45000,55000]`, `[-100000]`, 1), "INPUT_VALIDATION_FAILED", "inputs_json/cash_flows", "Cash flows array must contain at least two values (initial investment and one return period)"},
		"missing input":      {strings.Replace(valid, `"discount_rate":0.12,`, ``, 1), "DATA_MISSING_REQUIRED_INPUT", "inputs_json/discount_rate", "is missing"},
		"missing member":     {strings.Replace(valid, `"source_agent":"CST",`, ``, 1), "DATA_MISSING_REQUIRED_INPUT", "source_agent", "is missing"},
		"unknown member":     {strings.Replace(valid, `"priority"`, `"prority"`, 1), "INPUT_VALIDATION_FAILED", "prority", "did you mean priority?"},
		"unknown capability": {strings.Replace(valid, `"ANL_NPV"`, `"ANL_NPW"`, 1), "INPUT_VALIDATION_FAILED", "capability_code", "did you mean ANL_NPV?"},
		"unknown source":     {strings.Replace(valid, `"CST"`, `"XYZ"`, 1), "INPUT_VALIDATION_FAILED", "source_agent", "no agent is named XYZ"},
		"another target":     {strings.Replace(valid, `"target_agent":"ANL"`, `"target_agent":"DOC"`, 1), "INPUT_VALIDATION_FAILED", "target_agent", "want ANL"},
		"priority":           {strings.Replace(valid, `NORMAL`, `URGENT`, 1), "INPUT_VALIDATION_FAILED", "priority", "HIGH, NORMAL or LOW"},
		"session":            {npvRequest(id, `,"context":{"session_id":"a/b"}`), "INPUT_VALIDATION_FAILED", "context/session_id", "letters"},
	} {
		response := a.ask("ANL", c.envelope)
		metadata, _ := response["metadata"].(map[string]any)
		if response["status"] != "ERROR" || response["error_code"] != c.code || metadata["field"] != c.field || !strings.Contains(fmt.Sprint(response["error_message"]), c.want) || response["result_json"] != nil {
			t.Errorf("%s: %v, want %s of %s with %s", name, response, c.code, c.field, c.want)
		}
	}
	if status, _, body := a.do("POST", "/v1/agents/ANL:invoke", strings.Replace(valid, id, "7", 1)); status != 400 || !strings.Contains(body, `"field":"request_id"`) {
		t.Errorf("a request without a readable request_id: %d %s", status, body)
	}
	if len(a.got) != 0 {
		t.Error("an invalid request has reached the agent")
	}
}

// The rights of a request are those of its key: see the requests of other routes.
func TestCapabilityRequestRights(t *testing.T) {
	a := startAnalyst(t)
	const scopes = `"scopes":["call","read","agents"]`
	olga, mallory, reader := a.newUser(`"user":"olga",`+scopes), a.newUser(`"user":"mallory",`+scopes), a.newUser(`"scopes":["read"]`)
	if status, body := olga.do("POST", "/v1/agents/register", `{"agent_id":"costs","code":"CST","endpoint":"http://127.0.0.1:1"}`); status != 201 {
		t.Fatalf("%d %s", status, body)
	}
	a.answers <- `{"npv":1}`
	if _, body := olga.do("POST", "/v1/agents/ANL:invoke", npvRequest("s-20250118-143022", "")); !strings.Contains(body, `"SUCCESS"`) {
		t.Errorf("%s", body)
	}
	if _, body := mallory.do("POST", "/v1/agents/ANL:invoke", npvRequest("s-20250118-143022", "")); !strings.Contains(body, `"field":"source_agent"`) {
		t.Errorf("another principal asks as the agent of olga: %s", body)
	}
	if status, body := mallory.do("POST", "/v1/agents/ANL:invoke", npvRequest("s-20250118-143022", `,"context":{"user_id":"olga"}`)); status != 403 {
		t.Errorf("a request for another user: %d %s", status, body)
	}
	if status, body := reader.do("POST", "/v1/agents/ANL:invoke", npvRequest("s-20250118-143022", "")); status != 401 {
		t.Errorf("a key without the scope call: %d %s", status, body)
	}
}

// A capability may have several owners: one of those that can be reached gets the request.
func TestCapabilityHasOwners(t *testing.T) {
	a := startAnalyst(t)
	for _, name := range []string{"writer-1", "writer-2"} {
		if status, _, body := a.do("POST", "/v1/agents", fmt.Sprintf(`{"name":%q,"provides":[{"code":"DOC_GENERATE","description":"Writes a document."}]}`, name)); status != 201 {
			t.Fatalf("%d %s", status, body)
		}
	}
	request := `{"source_agent":"ORC","target_agent":"DOC_GENERATE","capability_code":"DOC_GENERATE","request_id":"s-20250118-143022","inputs_json":{"title":"say x"}}`
	if response := a.ask("DOC_GENERATE", request); response["status"] != "SUCCESS" {
		t.Errorf("%v", response)
	}
	if response := a.ask("DOC_GENERATE", strings.Replace(request, `"target_agent":"DOC_GENERATE"`, `"target_agent":"writer-2"`, 1)); response["status"] != "SUCCESS" {
		t.Errorf("%v", response)
	}
	response := a.ask("ANL", strings.Replace(request, `"target_agent":"DOC_GENERATE"`, `"target_agent":"ANL"`, 1))
	if !strings.Contains(fmt.Sprint(response["error_message"]), "its owners are writer-1, writer-2") {
		t.Errorf("%v", response)
	}
	if _, _, list := a.do("GET", "/v1/agents", ""); !strings.Contains(list, `"agent_id":"analyst","name":"analyst","code":"ANL"`) {
		t.Errorf("%s", list)
	}
	_, _, list := a.do("GET", "/v1/capabilities", "")
	if !strings.Contains(list, `"capability_code":"ANL_NPV","owner_agents":["analyst"],"description":"Computes a net present value.","version":"1.0","timeout_ms":15000`) ||
		!strings.Contains(list, `"capability_code":"DOC_GENERATE","owner_agents":["writer-1","writer-2"],"description":"Writes a document.","timeout_ms":30000`) {
		t.Errorf("%s", list)
	}
	if status, _, body := a.do("GET", "/v1/capabilities/DOC_GENERAT", ""); status != 404 || !strings.Contains(body, "did you mean DOC_GENERATE?") {
		t.Errorf("%d %s", status, body)
	}
	if status, head, body := a.do("GET", "/v1/schemas/request", ""); status != 200 || head.Get("Content-Type") != "application/schema+json" || !strings.Contains(body, "inputs_json") {
		t.Errorf("%d %v %.100s", status, head, body)
	}
}

// An owner that does not answer gets no request while there is another one, and one whose circuit breaker
// is open gets none at all.
func TestCapabilityAvoidsOwnersWithoutAnswer(t *testing.T) {
	a := startAnalyst(t)
	const provides = `,"retry":"never","provides":[{"code":"DOC_GENERATE","description":"Writes a document."}]`
	served := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/failing/") {
			w.WriteHeader(500)
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = fmt.Fprint(w, "event: delta\ndata: {\"text\":\"{}\"}\n\nevent: done\ndata: {}\n\n")
	}))
	t.Cleanup(served.Close)
	gone := httptest.NewServer(nil)
	gone.Close()
	a.register("gone", gone.URL, provides)
	a.register("there", served.URL, provides)
	a.register("failing", served.URL+"/failing", provides)
	send := func(agent string) string {
		_, _, body := a.do("POST", "/v1/agents/"+agent+"/messages", `{"content":"x","timeout_ms":200}`)
		return body
	}
	if body := send("gone"); a.server.config.External.Circuit("gone") != "closed" || a.server.config.External.Healthy("gone") {
		t.Errorf("an agent without a server: %s", body)
	}
	for i := 0; a.server.config.External.Circuit("failing") != "open"; i++ {
		if body := send("failing"); i == 20 {
			t.Fatal(body)
		}
	}
	const request = `{"source_agent":"ORC","target_agent":"DOC_GENERATE","capability_code":"DOC_GENERATE","request_id":"s%d-20250118-143022","inputs_json":{},"context":{"session_id":"s%[1]d"}}`
	for i := range 20 { // among owners that answer, the session decides
		if response := a.ask("DOC_GENERATE", fmt.Sprintf(request, i)); response["status"] != "SUCCESS" {
			t.Errorf("%v", response)
		}
	}
	named := strings.Replace(fmt.Sprintf(request, 20), `"target_agent":"DOC_GENERATE"`, `"target_agent":"failing"`, 1)
	_, head, body := a.do("POST", "/v1/agents/failing:invoke", named)
	if !strings.Contains(body, "its circuit breaker is open; DOC_GENERATE is available from there") || !strings.Contains(body, `"retry_after_ms":`) ||
		!strings.Contains(body, `"alternatives":["there"]`) || head.Get(runHeader) != "" {
		t.Errorf("%v %s", head, body)
	}
	if status, _, body := a.do("POST", "/v1/agents", `{"name":"planner","tools":["request_capability"]}`); status != 201 {
		t.Fatalf("%d %s", status, body)
	}
	_, _, body = a.do("POST", "/v1/agents/planner/messages", fmt.Sprintf(`{"content":%q}`, `use request_capability {"capability_code":"DOC_GENERATE","inputs_json":{},"target_agent":"failing"}`))
	if !strings.Contains(body, "gone, there own DOC_GENERATE too: name one as target_agent") {
		t.Errorf("the model is not told who else may be asked: %s", body)
	}
}

// The request of an agent during its run is a call of that run: it has its chain, and its user.
func TestCapabilityRequestOfRun(t *testing.T) {
	a := startAnalyst(t)
	token, ended := make(chan [2]string, 1), make(chan struct{})
	served := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/invoke" {
			token <- [2]string{r.Header.Get(RunToken), r.Header.Get(runHeader)}
			<-ended
		}
	}))
	t.Cleanup(served.Close)
	defer close(ended)
	a.register("costs", served.URL, `,"code":"CST"`)
	a.openStream("POST", "/v1/agents/costs/messages", `{"content":"x","session_id":"s-7"}`, userHeader, "alice")
	invoked := <-token
	own, run := invoked[0], invoked[1]
	a.answers <- `{"npv":1}`
	if response := a.ask("ANL", npvRequest("s-20250118-143022", ""), RunToken, own); response["status"] != "SUCCESS" {
		t.Errorf("%v", response)
	}
	if response := a.ask("ANL", strings.Replace(npvRequest("s-20250118-143023", ""), "CST", "ORC", 1), RunToken, own); response["status"] != "ERROR" || !strings.Contains(fmt.Sprint(response), "source_agent") {
		t.Errorf("%v", response)
	}
	for field, context := range map[string]string{"context/session_id": `{"session_id":"s-8"}`, "context/user_id": `{"user_id":"bob"}`} { // of others
		response := a.ask("ANL", npvRequest("s-20250118-143024", `,"context":`+context), RunToken, own)
		if metadata, _ := response["metadata"].(map[string]any); response["status"] != "ERROR" || metadata["field"] != field {
			t.Errorf("%s: %v, want an error of %s", context, response, field)
		}
	}
	// Without the token of its run, the request would begin a run that has no limits of its caller.
	if status, _, body := a.do("POST", "/v1/agents/ANL:invoke", npvRequest("s-20250118-143025", ""), egressHeader, ingress.ServerMark(a.server.config.Secret)); status != 403 || !strings.Contains(body, "it begins no run") {
		t.Errorf("%d %s", status, body)
	}
	_, _, tree := a.do("GET", "/v1/runs/"+run+"?tree=1", "", userHeader, "alice")
	if !strings.Contains(tree, `alice/analyst/s-7`) {
		t.Errorf("the call is not one of the run: %s", tree)
	}
}

// The model of a declared agent asks for a capability with a tool, and gets the response as its result.
func TestCapabilityRequestOfModel(t *testing.T) {
	a := startAnalyst(t)
	if status, _, body := a.do("POST", "/v1/agents", `{"name":"planner","tools":["request_capability"]}`); status != 201 {
		t.Fatalf("%d %s", status, body)
	}
	use := func(arguments string) string {
		a.Helper()
		_, _, body := a.do("POST", "/v1/agents/planner/messages", fmt.Sprintf(`{"content":%q,"session_id":"s-7"}`, "use request_capability "+arguments))
		return body
	}
	a.answers <- `{"npv":24156.72}`
	if body := use(`{"capability_code":"ANL_NPV",` + npvInputs + `,"context":{"budget":"low","session_id":"forged","user_id":"bob"}}`); !strings.Contains(body, `\"status\":\"SUCCESS\"`) || !strings.Contains(body, "24156.72") {
		t.Errorf("%s", body)
	}
	message := <-a.got
	r, broken := contract.DecodeRequest([]byte(message))
	if broken != nil || r.Source != "planner" || r.Target != "analyst" || r.Session != "s-7" || r.User == "bob" || !strings.Contains(string(r.Context), `"budget":"low"`) {
		t.Errorf("%v: the agent gets %s", broken, message)
	}
	// What breaks the schema of the result is a failure, as over HTTP.
	a.answers <- `{"npv":"much"}`
	body := use(`{"capability_code":"ANL_NPV",` + npvInputs + `}`)
	if <-a.got; !strings.Contains(body, `\"status\":\"ERROR\",\"error_code\":\"OUTPUT_SCHEMA_VIOLATION\"`) || !strings.Contains(body, "result_json/npv: want number") || strings.Contains(body, "much") {
		t.Errorf("%s", body)
	}
	for arguments, want := range map[string]string{
		`{"capability_code":"ANL_NPW","inputs_json":{}}`:                        "did you mean ANL_NPV?",
		`{"capability_code":"ANL_NPV","inputs_json":{},"target_agent":"other"}`: "its owners are analyst",
		`{"capability_code":"ANL_NPV","inputs_json":{"cash_flows":[1,2]}}`:      "discount_rate",
	} {
		if body := use(arguments); !strings.Contains(body, want) || !strings.Contains(body, `\"status\":\"ERROR\"`) {
			t.Errorf("%s: %s, want %s", arguments, body, want)
		}
	}
	// An agent with a list of agents asks no others.
	if status, _, body := a.do("POST", "/v1/agents", `{"name":"narrow","tools":["request_capability"],"agents":["planner"]}`); status != 201 {
		t.Fatalf("%d %s", status, body)
	}
	if _, _, body := a.do("POST", "/v1/agents/narrow/messages", fmt.Sprintf(`{"content":%q}`, `use request_capability {"capability_code":"ANL_NPV",`+npvInputs+`}`)); !strings.Contains(body, "ANL_NPV is a capability of no agent that narrow may call") {
		t.Errorf("%s", body)
	}
	if len(a.got) != 0 {
		t.Error("a refused request has reached the agent")
	}
}

// A response after the time of a request has what the agent had produced, if it is a result of the
// capability. So has the 504 of a message.
func TestTimeoutHasPartialAnswer(t *testing.T) {
	a := startAnalyst(t)
	request := strings.Replace(npvRequest("s-20250118-143022", ""), "15000", "300", 1)
	a.answers <- `{"status":"PARTIAL","confidence_level":"LOW","result_json":{"npv":7},"warnings":[]}…`
	if response := a.ask("ANL", request); response["status"] != "TIMEOUT" || fmt.Sprint(response["result_json"]) != "map[npv:7]" || response["error_code"] != "EXECUTION_TIMEOUT" {
		t.Errorf("%v", response)
	}
	a.answers <- `{"status":"PARTIAL","confidence_level":"LOW","result_json":{"npv":"much"},"warnings":[]}…`
	if response := a.ask("ANL", strings.Replace(request, "143022", "143024", 1)); response["status"] != "TIMEOUT" || response["result_json"] != nil {
		t.Errorf("a part that is no result of the capability: %v", response)
	}
	a.answers <- `The value is …`
	if response := a.ask("ANL", strings.Replace(request, "143022", "143023", 1)); response["status"] != "TIMEOUT" || response["result_json"] != nil || !strings.Contains(fmt.Sprint(response["warnings"]), "cut after 13 bytes") {
		t.Errorf("%v", response)
	}
	a.answers <- `The value is …`
	first := ""
	for range 2 { // the repeat is about the run of the first message
		var timedOut struct {
			Run     string          `json:"run_id"`
			Partial json.RawMessage `json:"partial"`
		}
		status, head, body := a.do("POST", "/v1/agents/analyst/messages", `{"content":"x","timeout_ms":300}`, ingress.IdempotencyKey, "k")
		if err := json.Unmarshal([]byte(body), &timedOut); err != nil || status != 504 || head.Get(runHeader) != timedOut.Run || string(timedOut.Partial) != `{"text":"The value is "}` || first != "" && timedOut.Run != first {
			t.Errorf("%d %+v, first run %s", status, timedOut, first)
		}
		first = timedOut.Run
		if status, _, body := a.do("GET", "/v1/runs/"+first, ""); status != 200 {
			t.Errorf("the run of the answer: %d %s", status, body)
		}
	}
}

// A step whose owner breaks the schema of the result, or the contract, has failed. The user reads no detail of that.
func TestStepOfOrchestratorWithABrokenAnswer(t *testing.T) {
	a := startAnalyst(t)
	desk := func(name, policy string) string {
		return `{"name":"` + name + `","kind":"orchestrator","prompt":"on value say {\"primary_intent\":\"value\",\"intent_confidence\":1,\"workflow\":\"value\",\"inputs\":{\"cash_flows\":[-1,2],\"discount_rate\":0.1}}",` +
			`"workflow":{"value":{"description":"a value","on_step_failure":"` + policy + `","steps":[{"title":"Present value","capability":"ANL_NPV"}]}}}`
	}
	for _, policy := range []string{"partial", "fail"} {
		if status, _, body := a.do("POST", "/v1/agents", desk(policy, policy)); status != 201 {
			t.Fatalf("%d %s", status, body)
		}
	}
	for answer, detail := range map[string]string{
		`{"npv":"much"}`:         "result_json/npv: want number",
		`{"npv":1,"x":1e400000}`: "result_json/x: 1e400000 is out of the range of a float",
		`{"request_id":"another","status":"SUCCESS","confidence_level":"HIGH","result_json":{"npv":1}}`: "request_id: want that of the request",
	} {
		for policy, want := range map[string]string{
			"partial": `"Present value: Could not be completed: the answer to it could not be used."`,
			"fail":    "Present value could not be completed: the answer to it could not be used",
		} {
			a.answers <- answer
			_, headers, body := a.do("POST", "/v1/agents/"+policy+"/messages", `{"content":"value"}`)
			if <-a.got; !strings.Contains(body, want) {
				t.Errorf("%s %s: %s, want %s", policy, answer, body, want)
			}
			if _, _, events := a.do("GET", "/v1/runs/"+headers.Get("X-Run-Id")+"/events", ""); !strings.Contains(events, detail) {
				t.Errorf("%s: no event has %s: %s", answer, detail, events)
			}
		}
	}
}

// A user reads the sentence that a schema has for inputs, and no code, also where a step has no title.
func TestInputsThatAUserCanMend(t *testing.T) {
	a := startAnalyst(t)
	desk := `{"name":"desk","kind":"orchestrator","prompt":"on value say {\"primary_intent\":\"value\",\"intent_confidence\":1,\"workflow\":\"value\",\"inputs\":{\"cash_flows\":[1],\"discount_rate\":0.1}}\n` +
		`on direct say {\"primary_intent\":\"anl_npv\",\"intent_confidence\":1,\"target_capability\":\"ANL_NPV\",\"inputs\":{\"cash_flows\":[1,2]}}",` +
		`"workflow":{"value":{"description":"a value","steps":[{"capability":"ANL_NPV"}]}}}`
	if status, _, body := a.do("POST", "/v1/agents", desk); status != 201 {
		t.Fatalf("%d %s", status, body)
	}
	for message, want := range map[string]string{
		"value":  "Part 1: Could not be completed: Cash flows array must contain at least two values (initial investment and one return period).",
		"direct": "Part 1: Could not be completed: the discount rate is missing or not usable.",
	} {
		if _, _, body := a.do("POST", "/v1/agents/desk/messages", `{"content":"`+message+`"}`); !strings.Contains(body, `"content":"`+want+`"`) {
			t.Errorf("%s: %s, want %s", message, body, want)
		}
	}
}

// Decisions of orchestrators are counted by intent and course, also those that an owner calls misrouted.
func TestRoutingIsCounted(t *testing.T) {
	a := startAnalyst(t)
	if status, _, body := a.do("POST", "/v1/agents", `{"name":"front","kind":"orchestrator","prompt":"on value say {\"primary_intent\":\"value\",\"intent_confidence\":1,\"target_capability\":\"ANL_NPV\",\"inputs\":{\"cash_flows\":[-1,2],\"discount_rate\":0.1}}\n`+
		`on hello say {\"primary_intent\":\"a greeting of Ann\",\"intent_confidence\":1,\"reply\":\"Hello.\"}"}`); status != 201 {
		t.Fatalf("%d %s", status, body)
	}
	a.answers <- `{"misrouted":{"suggested":"CHA_SIZE"}}`
	_, headers, body := a.do("POST", "/v1/agents/front/messages", `{"content":"value"}`)
	if <-a.got; !strings.Contains(body, "Could not be completed: the request is not for this capability") {
		t.Error(body)
	}
	if _, _, events := a.do("GET", "/v1/runs/"+headers.Get("X-Run-Id")+"/events", ""); !strings.Contains(events, `"course\":\"misrouted\",\"primary_intent\":\"value\",\"target_capability\":\"ANL_NPV\",\"suggested\":\"CHA_SIZE\"`) && !strings.Contains(events, `"course":"misrouted","primary_intent":"value","target_capability":"ANL_NPV","suggested":"CHA_SIZE"`) {
		t.Errorf("no event has it: %s", events)
	}
	for range 2 {
		a.do("POST", "/v1/agents/front/messages", `{"content":"hello"}`)
	}
	counted := a.scrape()
	for series, want := range map[string]float64{
		"troupe_orchestrator_decisions_total{agent=front,course=plan,intent=value}":      1,
		"troupe_orchestrator_decisions_total{agent=front,course=misrouted,intent=value}": 1,
		"troupe_orchestrator_decisions_total{agent=front,course=reply,intent=other}":     2, // a sentence of a model is no label
	} {
		if counted[series] != want {
			t.Errorf("%s: got %g, want %g", series, counted[series], want)
		}
	}
	a.answers <- `{"misrouted":{"suggested":"CHA_SIZE"}}`
	response := a.ask("ANL", npvRequest("s-20250118-143022", ""))
	if got := fmt.Sprint(response["status"], response["error_code"], response["metadata"].(map[string]any)["misrouted"]); got != "ERRORREQUEST_MISROUTEDmap[suggested:CHA_SIZE]" {
		t.Errorf("%s: %v", got, response)
	}
}

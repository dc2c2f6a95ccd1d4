// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

const maskedKey = "sk-Masked0123456789abcdef"

// answerOf returns the deltas and the completion that a decoder makes of a stream.
func maskedAnswer(t *testing.T, key string, body []byte) (deltas string, c Completion) {
	t.Helper()
	m := Model{URL: "http://models.example/v1", Key: Secret(key)}
	request, refusal := m.post([]byte("{}"))
	if refusal != nil {
		t.Fatal(refusal)
	}
	d, failure := NewModelDecoder("model m", &Prompt{}, request.secrets(), "text/event-stream")
	if failure != nil {
		t.Fatal(failure)
	}
	take := func(all []Delta, failure *Failure) {
		t.Helper()
		if failure != nil {
			t.Fatal(failure.Refusal)
		}
		for _, delta := range all {
			deltas += delta.Text
		}
	}
	take(d.Decode(body))
	if !d.Done() {
		take(d.End())
	}
	return deltas, d.Completion()
}

// A model that repeats its key shows it in no text and no tool call, however the answer is cut into
// pieces and whatever the case of the letters is.
func TestKeyOfModelIsMaskedInAnswers(t *testing.T) {
	for name, key := range map[string]string{"same": maskedKey, "upper": strings.ToUpper(maskedKey)} {
		for _, text := range []string{"the key is " + key + ", is it?", key, key + key, "sk-" + key, "Bearer " + key, "ends with a begin: " + key[:20]} {
			for cut := 1; cut <= 30; cut++ {
				for _, before := range []string{"", "x", "sk-Mask"} {
					c := Completion{Model: "m", Text: before + text, Finish: FinishStop, Calls: []ToolCall{{ID: "1", Name: "t", Arguments: fmt.Sprintf(`{"a":%q}`, key)}}}
					want := strings.ReplaceAll(c.Text, key, "***")
					deltas, got := maskedAnswer(t, maskedKey, AppendStream(nil, c, cut))
					if deltas != want || got.Text != want || len(got.Calls) != 1 || got.Calls[0].Arguments != `{"a":"***"}` {
						t.Fatalf("%s, pieces of %d: %q, %q, %+v; want %q", name, cut, deltas, got.Text, got.Calls, want)
					}
				}
			}
		}
	}
	if deltas, _ := maskedAnswer(t, "none", AppendStream(nil, Completion{Text: "there are none", Finish: FinishStop}, 3)); deltas != "there are none" {
		t.Errorf("a short key: %q", deltas)
	}
	deltas, _ := maskedAnswer(t, maskedKey, []byte(`{"choices":[{"index":0,"message":{"content":"`+maskedKey+`"},"finish_reason":"stop"}]}`))
	if deltas != "***" {
		t.Errorf("one JSON value: %q", deltas)
	}
}

// A request that is passed on shows the events of the model as they are, and its key in none of them,
// however the answer is cut into pieces.
func TestKeyOfModelIsMaskedInPassedOnStreams(t *testing.T) {
	request, refusal := Model{URL: "http://models.example/v1", Key: maskedKey}.post([]byte("{}"))
	if refusal != nil {
		t.Fatal(refusal)
	}
	for _, text := range []string{"the key is " + maskedKey + ", is it?", maskedKey + maskedKey, "sk-" + maskedKey, "no key, but it begins so: " + maskedKey[:20] + " and ends otherwise", "ends so: sk-Mas"} {
		for cut := 1; cut <= 30; cut++ {
			body := AppendStream(nil, Completion{Model: "m", Text: text, Finish: FinishStop}, cut)
			for _, size := range []int{1, 7, len(body)} { // of what arrives at once
				r := &ChatReader{name: "model m", secrets: request.secrets()}
				if _, failure := r.restart("text/event-stream"); failure != nil {
					t.Fatal(failure.Refusal)
				}
				var passed []byte
				take := func(all []Delta, failure *Failure) {
					t.Helper()
					if failure != nil {
						t.Fatal(failure.Refusal)
					}
					for _, d := range all {
						passed = append(passed, d.Text...)
					}
				}
				for part := range slices.Chunk(body, size) {
					take(r.Decode(part))
				}
				take(r.End())
				passed = append(passed, r.Tail()...)
				if !strings.Contains(text, maskedKey) && string(passed) != string(body) {
					t.Fatalf("%q in pieces of %d: the stream has changed to\n%s", text, cut, passed)
				}
				d, failure := NewModelDecoder("model m", &Prompt{}, nil, "text/event-stream")
				if failure != nil {
					t.Fatal(failure.Refusal)
				}
				take(d.Decode(passed))
				if want := strings.ReplaceAll(text, maskedKey, "***"); d.Completion().Text != want || d.Completion().Finish != FinishStop {
					t.Fatalf("pieces of %d, %d bytes at once: %q, want %q", cut, size, d.Completion().Text, want)
				}
			}
		}
	}
}

// The rest of a key may come with the finish reason.
func TestKeyOfModelIsMaskedInItsLastEvent(t *testing.T) {
	r := &ChatReader{name: "model m", secrets: Secrets{maskedKey}}
	if _, failure := r.restart("text/event-stream"); failure != nil {
		t.Fatal(failure.Refusal)
	}
	event := func(content, finish string) string {
		return `data: {"choices":[{"index":0,"delta":{"content":"` + content + `"},"finish_reason":` + finish + "}]}\n\n"
	}
	all, failure := r.Decode([]byte(event("it is "+maskedKey[:10], "null") + event(maskedKey[10:]+".", `"stop"`) + "data: [DONE]\n\n"))
	shown := fmt.Sprint(all) + string(r.Tail())
	if failure != nil || !r.Done() || strings.Contains(shown, maskedKey[:10]) || strings.Contains(shown, maskedKey[10:]) || !strings.Contains(shown, "it is ***.") {
		t.Errorf("%v: %s", failure, shown)
	}
}

// A key is masked in each choice, and in each text of its deltas, also if they come in turns.
func TestKeyOfModelIsMaskedInEveryTextOfStreams(t *testing.T) {
	deltas := map[string]string{
		"content":              `{"content":%q}`,
		"another choice":       `{"content":%q}`,
		"refusal":              `{"refusal":%q}`,
		"thought":              `{"reasoning_content":%q}`,
		"arguments":            `{"tool_calls":[{"index":0,"function":{"arguments":%q}}]}`,
		"second call":          `{"tool_calls":[{"function":{"arguments":%q},"index":1}]}`,
		"call without index":   `{"tool_calls":[{"function":{"arguments":%q}}]}`,
		"arguments before all": `{"function_call":{"arguments":%q}}`,
	}
	for name, delta := range deltas {
		choice := map[bool]int{true: 1}[name == "another choice"]
		event := func(text string) string {
			return fmt.Sprintf(`data: {"id":"x","choices":[{"index":%d,"delta":`+delta+`,"finish_reason":null}]}`+"\n\n", choice, text)
		}
		const other = `data: {"id":"x","choices":[{"index":7,"delta":{"role":"assistant","content":"b"}}]}` + "\n\n"
		const end = `data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}` + "\n\ndata: [DONE]\n\n"
		show := func(body string) string {
			r := &ChatReader{name: "model m", secrets: Secrets{maskedKey}}
			if _, failure := r.restart("text/event-stream"); failure != nil {
				t.Fatal(failure.Refusal)
			}
			all, failure := r.Decode([]byte(body))
			if failure != nil || !r.Done() {
				t.Fatalf("%s: %v", name, failure)
			}
			passed := ""
			for _, d := range all {
				passed += d.Text
			}
			return passed + string(r.Tail())
		}
		texts := func(passed string) (text string) {
			for line := range strings.Lines(passed) {
				for _, p := range eventPieces([]byte(strings.TrimPrefix(line, "data: "))) {
					if strings.Contains(line, fmt.Sprintf(`"index":%d,"delta"`, choice)) {
						text += p.text
					}
				}
			}
			return text
		}
		for cut := 1; cut < len(maskedKey); cut++ {
			passed := show(event("it is "+maskedKey[:cut]) + other + event(maskedKey[cut:]+maskedKey[:3]) + other + event("."+maskedKey[:2]) + end)
			if got, want := texts(passed), "it is ***"+maskedKey[:3]+"."+maskedKey[:2]; got != want || strings.Count(passed, `"content":"b"`) != 2 {
				t.Fatalf("%s, cut at %d: got %q, want %q, in\n%s", name, cut, got, want, passed)
			}
		}
		if body := event("no key "+maskedKey[:5]) + other + event(" of it") + end; show(body) != body {
			t.Errorf("%s: a stream without a key has changed to\n%s", name, show(body))
		}
	}
}

// The same holds for requests that are passed on, and for a key in the URL of a model.
func TestKeyOfModelIsMaskedInChats(t *testing.T) {
	inURL := "http://models.example/v1?api-version=1&key=" + maskedKey + "+b"
	for name, m := range map[string]Model{"header": {URL: "http://models.example/v1", Key: maskedKey}, "query": {URL: inURL}} {
		request, refusal := m.post([]byte("{}"))
		if refusal != nil {
			t.Fatal(refusal)
		}
		secret := maskedKey
		if name == "query" {
			if strings.Contains(request.String(), maskedKey) {
				t.Errorf("the request shows %s", request)
			}
			if got := request.secrets().quote("cannot dial "+inURL, 500); strings.Contains(got, maskedKey) {
				t.Errorf("an error shows %s", got)
			}
			secret = maskedKey + " b" // as it is decoded
		}
		r := &ChatReader{name: "model m", secrets: request.secrets()}
		if _, failure := r.restart("text/event-stream"); failure != nil {
			t.Fatal(failure.Refusal)
		}
		shown := ""
		all, failure := r.Decode([]byte("data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"it is " + secret + "\"}}]}\n\ndata: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n"))
		if failure != nil {
			t.Fatal(failure.Refusal)
		}
		for _, d := range all {
			shown += d.Text
		}
		if !strings.Contains(shown, "it is ***") || strings.Contains(shown+string(r.Tail()), maskedKey) || r.Completion().Finish != FinishStop {
			t.Errorf("%s: %s%s", name, shown, r.Tail())
		}
	}
}

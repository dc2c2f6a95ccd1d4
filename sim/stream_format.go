// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"bytes"
	"encoding/json"
	"strings"
)

// streamFormat writes the frames of an event stream in one of the forms that the HTML
// standard allows, and JSON in one of the forms that a server may choose. All forms mean
// the same, so the judge of the exchange knows the answer.
type streamFormat struct {
	picker  *picker
	lineEnd string
	begun   bool
	pinged  bool // the stream has an event that the API does not define
}

// newStreamFormat draws a format. Half of the streams have the plain one.
func (w *Simulation) newStreamFormat() *streamFormat {
	f := &streamFormat{picker: &picker{seed: uint64(w.entropy.Int(2) * (1 + w.entropy.Int(1<<24)))}}
	f.lineEnd = [...]string{"\n", "\r\n", "\r"}[f.picker.Int(3)]
	return f
}

// restart returns a format that draws the same choices again.
func (f *streamFormat) restart() *streamFormat {
	return &streamFormat{picker: &picker{seed: f.picker.seed, drawn: 1}, lineEnd: f.lineEnd}
}

// frame formats a frame.
func (f *streamFormat) frame(plain []byte) []byte {
	p := f.picker
	if p.seed == 0 {
		return plain
	}
	var b strings.Builder
	line := func(text string) { b.WriteString(text + f.lineEnd) }
	if !f.begun && p.Int(2) == 1 {
		b.WriteString("\uFEFF")
	}
	f.begun = true
	for _, extra := range [...]string{":", ": keep-alive", "retry: 1000", "id: 7", "note: ignored", "retry: soon", "id", "event"} {
		if p.Int(16) == 15 {
			line(extra)
		}
	}
	if p.Int(8) == 7 {
		f.pinged = true
		line("event: ping")
		line("data: {}")
		line("")
	}
	named := false
	for text := range strings.Lines(strings.TrimSuffix(string(plain), "\n")) {
		name, value, _ := strings.Cut(strings.TrimSuffix(text, "\n"), ": ")
		space := [...]string{" ", ""}[p.Int(2)]
		if name == "event" {
			named = true
			line("event:" + space + value)
			continue
		}
		if !named && p.Int(8) == 7 {
			line("event: message")
		}
		for _, part := range f.lines(value, named) {
			line("data:" + space + part)
		}
	}
	line("")
	return []byte(b.String())
}

// lines returns the lines of data, which is JSON or a word.
func (f *streamFormat) lines(data string, named bool) []string {
	p := f.picker
	if !strings.HasPrefix(data, "{") {
		return []string{data + " "[:p.Int(2)]}
	}
	if !named {
		data = f.chunk(data)
	}
	if data != "{}" && p.Int(4) == 3 {
		data = `{"added_later":{"a":[1,null,"}"]},` + data[1:]
	}
	switch p.Int(4) {
	case 2:
		return []string{"{", data[1:]}
	case 3:
		return []string{data[:len(data)-1], "", "}"}
	}
	return []string{data}
}

// chunk formats the text of a model's chunk.
func (f *streamFormat) chunk(data string) string {
	var chunk struct {
		Choices []struct {
			Delta struct {
				Content json.RawMessage `json:"content"`
			} `json:"delta"`
		} `json:"choices"`
	}
	if json.Unmarshal([]byte(data), &chunk) != nil || len(chunk.Choices) == 0 {
		return data
	}
	content := string(chunk.Choices[0].Delta.Content)
	if content == "" {
		empty := [...]string{"", `"content":null,`, `"content":"",`, `"content":[],`, `"refusal":null,`}[f.picker.Int(5)]
		return strings.Replace(strings.Replace(data, `"delta":{`, `"delta":{`+empty, 1), ",}", "}", 1)
	}
	forms := [...]string{`"content":TEXT`, `"refusal":TEXT`, `"content":[{"type":"text","text":TEXT}]`, `"content":null,"refusal":TEXT`,
		`"content":[{"type":"thinking","text":"hidden"},{"type":"text","text":TEXT},{"type":"image"}]`, `"content":[{"type":"text","text":""},{"text":TEXT,"type":"text"}],"refusal":""`}
	form := strings.Replace(forms[f.picker.Int(len(forms))], "TEXT", content, 1)
	data = strings.Replace(data, `"content":`+content, form, 1)
	if f.picker.Int(4) == 3 {
		data = `{"error":null,` + data[1:]
	}
	return strings.Replace(data, `"index":0,"delta"`, [...]string{`"index":0,"delta"`, `"delta"`, `"index":0,"logprobs":null,"delta"`}[f.picker.Int(3)], 1)
}

// stream formats the stream of a model, and marks the frames for the judge.
func (s *served) stream(f *streamFormat, plain []byte) (frames [][]byte) {
	text, size := 0, 0
	for len(plain) > 0 {
		n := firstFrameLen(plain)
		var chunk struct {
			Choices []struct {
				Delta struct {
					Content string `json:"content"`
				} `json:"delta"`
			} `json:"choices"`
		}
		if json.Unmarshal(bytes.TrimPrefix(plain[:n], []byte("data: ")), &chunk) == nil && len(chunk.Choices) > 0 {
			text += len(chunk.Choices[0].Delta.Content)
		}
		frame := f.frame(plain[:n])
		plain = plain[n:]
		size += len(frame)
		frames = append(frames, frame)
		s.marks = append(s.marks, mark{size, text})
	}
	return frames
}

// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"encoding/json"
	"strings"
	"testing"
)

// rendered is a text as the chat page shows it, and the time that it took.
type rendered struct {
	HTML string  `json:"html"`
	MS   float64 `json:"ms"`
}

// renderMarkdown renders texts with the module of the chat page.
func renderMarkdown(t *testing.T, texts []string) (all []rendered) {
	t.Helper()
	in, err := json.Marshal(texts)
	if err != nil {
		t.Fatal(err)
	}
	out := runScript(t, "markdown", "markdown.js", string(in))
	if err := json.Unmarshal([]byte(out), &all); err != nil || len(all) != len(texts) {
		t.Fatalf("%v: %s", err, out)
	}
	return all
}

// The chat page renders a subset of Markdown, and no text becomes an element that it does not list.
func TestMarkdownOfThePage(t *testing.T) {
	cases := [][2]string{
		{"plain", "<p>plain</p>"},
		{"a `b` ``c`` ` d ` ````e```` `f", "<p>a <code>b</code> <code>c</code> <code>d</code> ````e```` `f</p>"},
		{"**b** *i* _u_ a_b_c ** x ** *x **y** ***z***", "<p><strong>b</strong> <em>i</em> <em>u</em> a_b_c ** x ** *x <strong>y</strong> *<strong>z</strong>*</p>"},
		{"**a `b` _c_**", "<p><strong>a <code>b</code> <em>c</em></strong></p>"},
		{"[t](https://a.example/x) [n](javascript:alert(1)) [t](http://)", "<p><a https://a.example/x>t</a> [n](javascript:alert(1)) [t](http://)</p>"},
		{"see https://a.example/b?c=d. (http://e.example)", "<p>see <a https://a.example/b?c=d>https://a.example/b?c=d</a>. (<a http://e.example>http://e.example</a>)</p>"},
		{"<img src=x onerror=alert(1)>", "<p><img src=x onerror=alert(1)></p>"},
		{"# A #\n#### B\n#c", "<h2>A</h2><h4>B</h4><p>#c</p>"},
		{"```go\nx := `a`\n```\nafter", "<div><div><span>go</span><button>Copy</button></div><pre><code>x := `a`</code></pre></div><p>after</p>"},
		{"~~~\na\n~~~~", "<div><div><span></span><button>Copy</button></div><pre><code>a</code></pre></div>"},
		{"a\n\n- - -\n***", "<p>a</p><hr></hr><hr></hr>"},
		{"> a\n> b\nc", "<blockquote><p>a\nb</p></blockquote><p>c</p>"},
		{"a | b\n--|:-:\n1 | **2**", "<table><thead><tr><th>a</th><th align-center>b</th></tr></thead><tbody><tr><td>1</td><td align-center><strong>2</strong></td></tr></tbody></table>"},
		{"|a|b|c|\n|:-|--:|:-:|\n|1|2|3|4|\n|5|", "<table><thead><tr><th>a</th><th align-right>b</th><th align-center>c</th></tr></thead>" +
			"<tbody><tr><td>1</td><td align-right>2</td><td align-center>3</td><td>4</td></tr><tr><td>5</td></tr></tbody></table>"},
		{"- a\n  more\n  - b\n2. c", "<ul><li>a\nmore<ul><li>b</li></ul></li><li>c</li></ul>"},
		{"1) a", "<ol><li>a</li></ol>"},
	}
	var texts []string
	for _, c := range cases {
		texts = append(texts, c[0])
	}
	for i, got := range renderMarkdown(t, texts) {
		if got.HTML != cases[i][1] {
			t.Errorf("%q: got %s, want %s", cases[i][0], got.HTML, cases[i][1])
		}
	}
}

// 100 kB of each construct, complete or broken off, in one line and in many, take under a second also on a slow machine;
// cubic code took longer for the last text, which is short. A text that an agent chooses does not stop the page.
func TestMarkdownIsLinear(t *testing.T) {
	const size = 100_000
	var texts, shown []string
	for _, unit := range []string{"`", "``a", "`a", "`a ", "*", "**", "*a", "**a", "* a", "**a ", "*a ", "_", "_a", " _a", "_ a ", "[", "[a", "[a]", "[a](", "[a](http://", "[a](http://b",
		"http://", "https://a", "http://a ", "http://.", "http://)", "#", "# ", "# a #", "```", "~~~", "``` a", "-", "- ", "1. ", "|", "| ", "a|", "|-", "|:-", ":-|", "---", "- - ", ">", "> ", " ", "\t", "a",
		"*_`[", "**a*_b_`c`[d](http://e)", "\u2028", "- \u2028", "&", "<a"} {
		one, lines := strings.Repeat(unit, size/len(unit)), strings.Repeat(strings.Repeat(unit, 4000/len(unit))+"\n", size/4000)
		for _, text := range []string{one, lines, strings.Repeat(unit+"\n", size/(len(unit)+1))} {
			texts, shown = append(texts, text), append(shown, text[:min(len(text), 40)])
		}
	}
	texts = append(texts, strings.Repeat("# "+strings.Repeat(" ", 900)+"a"+strings.Repeat("#", 3000)+"x\n", 25), strings.Repeat("- "+strings.Repeat(" ", 4000)+"a\u2028\n", 25),
		"# "+strings.Repeat(" ", 1500)+"x\u2028y")
	shown = append(shown, "headings", "items", "a heading of two lines")
	for i, got := range renderMarkdown(t, texts) {
		if got.MS > 1000 {
			t.Errorf("%q…: %.0f ms", shown[i], got.MS)
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"bytes"
	"context"
	"image/color"
	"image/png"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/history"
	"github.com/troupe-run/troupe/runtime"
	"github.com/troupe-run/troupe/specs"
)

// renderPage runs the options and returns the page of the run.
func renderPage(t *testing.T, o Options) ([]byte, Result) {
	t.Helper()
	o.Page = NewPage()
	r := RunSeed(o)
	var out bytes.Buffer
	if err := o.Page.WriteTo(&out, r); err != nil {
		t.Fatal(err)
	}
	return out.Bytes(), r
}

// violatingOptions returns the options of the first seed in which three things happen:
// a message is lost; a node is down, paused or cut off; and a spec is violated. The spec
// is stricter than the guarantee of the code.
func violatingOptions(t *testing.T) Options {
	t.Helper()
	for seed := range uint64(500) {
		o := Options{Seed: seed, adjustLimits: func(l *specs.Limits) { l.AgentCallDepthMax = 2 }}
		page, r := renderPage(t, o)
		if r.Violation != nil && r.Stats.Steps > 100 && r.Stats.Steps < 800 && r.Stats.TotalFaults() > 0 &&
			bytes.Contains(page, []byte(`"lost":true`)) && bytes.Contains(page, []byte(`"why":"`)) {
			return o
		}
	}
	t.Fatal("no seed has a lost message, a fault and a violation")
	return Options{}
}

// A page of an overlong run shows its end, and invalid UTF-8 in a text does not prevent
// the page from being written.
func TestPageKeepsLastRows(t *testing.T) {
	o := Options{Seed: 3, Long: true, Page: NewPage()}
	r := RunSeed(o)
	if o.Page.dropped == 0 {
		t.Fatalf("no rows were dropped in a run of %d steps", r.Stats.Steps)
	}
	rows := o.Page.rows
	last := rows[len(rows)-1]
	if len(rows) > PageRowsMax || last.Step < r.Stats.Steps-r.Stats.Steps/100 { // the last steps may print nothing
		t.Errorf("got %d rows, the last of step %d of %d", len(rows), last.Step, r.Stats.Steps)
	}
	arrows := 0
	for i, row := range rows {
		if row.To > 0 {
			if to := rows[row.To-1]; row.To-1 <= i || row.Kind != "Send" || to.Kind != "Deliver" || to.Call != row.Call {
				t.Fatalf("row %d points to row %d: %+v, %+v", i, row.To-1, row, to)
			}
			arrows++
		}
		if row.State > len(o.Page.states) {
			t.Fatalf("row %d has state %d of %d", i, row.State, len(o.Page.states))
		}
	}
	if arrows < 100 {
		t.Errorf("got %d arrows, want at least 100", arrows)
	}
	var out bytes.Buffer
	r.Violation = &Violation{Spec: CellNeverPanics, Detail: "invalid \xff"}
	if err := o.Page.WriteTo(&out, r); err != nil || !bytes.Contains(out.Bytes(), []byte("invalid ")) {
		t.Errorf("%v", err)
	}
}

var pageDataPattern = regexp.MustCompile(`(?s)<script type="application/json" id="data">(.*?)</script>`)

// pageContent is the data in a page.
type pageContent struct {
	Lanes    []pageLane
	Rows     []pageRow
	Bands    []pageBand
	States   []string
	Spec     string
	Revealed int
}

func pageData(t *testing.T, page []byte) (data pageContent) {
	t.Helper()
	found := pageDataPattern.FindSubmatch(page)
	if found == nil {
		t.Fatal("the page has no data")
	}
	if err := json.Unmarshal(found[1], &data, json.MatchCaseInsensitiveNames(true)); err != nil {
		t.Fatal(err)
	}
	return data
}

func TestPageContainsEventsAndViolation(t *testing.T) {
	page, r := renderPage(t, violatingOptions(t))
	if r.Violation == nil {
		t.Fatal("no violation")
	}
	data := pageData(t, page)
	arrows, lost, states, faults := 0, 0, 0, 0
	for i, row := range data.Rows {
		switch {
		case row.To > 0:
			arrows++
			if to := data.Rows[row.To-1]; row.To-1 <= i || to.Kind != "Deliver" || to.Call != row.Call {
				t.Errorf("row %d %q points to row %d %q", i, row.Line, row.To-1, to.Line)
			}
		case row.Lost:
			lost++
		}
		if row.State > 0 {
			states++
		}
		if row.Kind == "Fault" {
			faults++
		}
	}
	if data.Spec != r.Violation.Spec || arrows == 0 || lost == 0 || states == 0 || faults == 0 || len(data.Lanes) < 4 || len(data.States) == 0 {
		t.Errorf("violated spec %s, %d arrows, %d lost messages, %d states, %d faults, %d lanes", data.Spec, arrows, lost, states, faults, len(data.Lanes))
	}
	if second, _ := renderPage(t, violatingOptions(t)); !bytes.Equal(second, page) {
		t.Error("two pages of one seed differ")
	}
}

// TestPageMarksRevealingEvent checks that the page marks the event that revealed a
// violation, not the last one of its step, also if that event has no row of its own.
func TestPageMarksRevealingEvent(t *testing.T) {
	for _, reveals := range []func(*history.Event) bool{
		func(e *history.Event) bool { return e.Kind == history.Start && e.Durable },
		func(e *history.Event) bool { return e.Kind == history.Perform && e.What == "send" },
	} {
		var found string // the event that the rule reports
		o := Options{Seed: 3, rule: func(_ actor.Duration, e *history.Event) string {
			if found == "" && reveals(e) {
				found = e.String()
				return "Revealed"
			}
			return ""
		}}
		page, r := renderPage(t, o)
		data := pageData(t, page)
		if r.Violation == nil || found == "" || data.Revealed == 0 {
			t.Fatalf("violation %v, event %q, row %d", r.Violation, found, data.Revealed)
		}
		if row := data.Rows[data.Revealed-1]; row.Line != found || row.Text == "" || row.Step != r.Violation.Step {
			t.Errorf("marked row is %+v, want the event %q of step %d", row, found, r.Violation.Step)
		}
	}
}

// TestPageShowsOpenMessages follows a request from one node to another. At each stage
// the page shows where it is. It is lost only if the receiving node crashes.
func TestPageShowsOpenMessages(t *testing.T) {
	sentRow := func(w *Simulation, p *Page) *pageRow {
		for i := range p.rows {
			if p.rows[i].Kind == "Send" && strings.Contains(p.rows[i].Text, "request #2") {
				return &p.rows[i]
			}
		}
		return nil
	}
	stages := []struct {
		where string
		at    func(w *Simulation) bool
		crash bool
	}{
		{"waits until the log is durable", func(w *Simulation) bool { return len(w.nodes[0].gated)+len(w.nodes[1].gated) > 0 }, false},
		{"in flight", func(w *Simulation) bool { return len(w.net.flights) > 0 }, false},
		{"in the queue of its cell", func(w *Simulation) bool {
			return slices.ContainsFunc(w.nodes, func(n *node) bool {
				return slices.ContainsFunc(n.cells[0].inputs, func(in input) bool { _, ok := in.in.(runtime.Deliver); return ok })
			})
		}, false},
		{"", func(w *Simulation) bool { return len(w.net.flights) > 0 }, true},
	}
	for _, stage := range stages {
		p := NewPage()
		w := New(Options{Seed: 1, Entropy: NewReplayedEntropy(nil), Page: p,
			Plan: &Plan{Cells: []int{1, 1}, Groups: 4, Agents: []actor.Definition{{Name: "ana", Behavior: ScriptAgent()}, {Name: "dee", Behavior: ScriptAgent()}}}})
		w.Submit("ana/main", "call dee {sleep 20}", 10*time.Second, "")
		if v := w.RunUntil(time.Second, func() bool { return sentRow(w, p) != nil && stage.at(w) }); v != nil {
			t.Fatalf("%s: %v", stage.where, v)
		}
		if stage.crash {
			w.CrashNode(string(w.net.flights[0].message.to.id))
		}
		w.Close()
		if err := p.WriteTo(io.Discard, Result{}); err != nil {
			t.Fatal(err)
		}
		if row := sentRow(w, p); row.Open != stage.where || row.Lost != stage.crash || row.To != 0 {
			t.Errorf("want %q, lost %v, got row %+v", stage.where, stage.crash, row)
		}
	}
}

func TestPageEscapesHTML(t *testing.T) {
	p := NewPage()
	w := New(Options{Seed: 1, Page: p})
	p.fault(w.now, NodeCrash, `</script><b onclick="x">`)
	var out bytes.Buffer
	if err := p.WriteTo(&out, Result{Violation: &Violation{Spec: `<i>`, Detail: "</script>"}}); err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(out.String(), "</script>"); n != 2 || strings.Contains(out.String(), "<i>") || strings.Contains(out.String(), "<b on") {
		t.Errorf("got %d </script> tags, want 2 and no injected tag", n)
	}
}

// cutLabels is a script that reports the labels that are not shown in full: those that
// differ from their text, or reach into the next lane or beyond the picture.
const cutLabels = `<script>
const shown = [...document.querySelectorAll("svg .row")].map((g, i) => [g.querySelector("text:not(.time)"), data.rows[i]]);
const edge = r => r.lane < 0 ? svg.width.baseVal.value : Math.min(...data.lanes.map((_, i) => x(i)).filter(at => at > x(r.lane)), svg.width.baseVal.value);
const cut = shown.filter(([e, r]) => !e.textContent.endsWith(r.text) || +e.getAttribute("x") + e.getComputedTextLength() > edge(r));
const heads2 = [...document.querySelectorAll("#heads div")].filter(d => d.scrollWidth > d.clientWidth);
document.body.append("cut labels: " + (cut.length + heads2.length ? cut.map(([e]) => e.textContent).concat(heads2.map(d => d.textContent)).join(" | ") : "none of " + shown.length));
</script>`

// TestBrowserRendersPage loads the page in a real browser, in light and dark mode.
// TROUPE_BROWSER names the browser. It is set on machines that must have a browser.
func TestBrowserRendersPage(t *testing.T) {
	browser := os.Getenv("TROUPE_BROWSER")
	if browser == "" {
		var err error
		if browser, err = exec.LookPath("chromium"); err != nil {
			t.Skip("chromium not found: apt-get install chromium on Debian, or set TROUPE_BROWSER")
		}
	}
	page, r := renderPage(t, violatingOptions(t))
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'") // the page loads nothing else
		w.Header().Set("Content-Type", "text/html")
		w.Write(bytes.Replace(page, []byte("</html>"), []byte(cutLabels+"</html>"), 1)) //nolint:errcheck // the browser reports incomplete pages
	}))
	defer server.Close()
	browse := func(args ...string) string {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
		defer cancel()
		args = append([]string{"--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--window-size=1400,900", "--user-data-dir=" + t.TempDir()}, args...)
		out, err := exec.CommandContext(ctx, browser, append(args, server.URL)...).Output()
		if err != nil {
			t.Fatalf("%s: %v", browser, err)
		}
		return string(out)
	}
	html := browse("--dump-dom")
	if drawn, want := strings.Count(html, `<g class="row `), bytes.Count(pageDataPattern.FindSubmatch(page)[1], []byte(`"step":`)); drawn != want {
		t.Errorf("got %d rows in the page, want %d", drawn, want)
	}
	for _, want := range []string{r.Violation.Spec + " broken", `class="msg"`, `class="cross"`, `class="band"`, "The event"} {
		if !strings.Contains(html, want) {
			t.Errorf("page does not contain %s", want)
		}
	}
	if at := strings.LastIndex(html, "cut labels: "); !strings.HasPrefix(html[at:], "cut labels: none of") {
		t.Error(html[at:])
	}
	for name, light := range map[string]bool{"light": true, "dark": false} {
		shot := filepath.Join(t.TempDir(), name+".png")
		args := []string{"--screenshot=" + shot}
		if !light {
			args = append(args, "--blink-settings=preferredColorScheme=0")
		}
		browse(args...)
		f, err := os.Open(shot)
		if err != nil {
			t.Fatal(err)
		}
		picture, err := png.Decode(f)
		f.Close() //nolint:errcheck // opened for reading
		if err != nil {
			t.Fatal(err)
		}
		colors := map[color.Color]int{}
		for x := range picture.Bounds().Dx() {
			for y := range picture.Bounds().Dy() {
				colors[picture.At(x, y)]++
			}
		}
		background := slices.MaxFunc(slices.Collect(maps.Keys(colors)), func(a, b color.Color) int { return colors[a] - colors[b] })
		if bright := color.GrayModel.Convert(background).(color.Gray).Y > 128; bright != light || len(colors) < 20 {
			t.Errorf("%s mode: background is %v, page has %d colors", name, background, len(colors))
		}
	}
}

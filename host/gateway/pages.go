// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"fmt"
	"io/fs"
	"net/http"
	"path"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/valyala/fasthttp"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/docs"
	"github.com/troupe-run/troupe/internal/invariant"
	"github.com/troupe-run/troupe/sdk/js"
)

// webFiles are the pages for browsers and the scripts and styles that they load, besides the modules of the client. They contain
// no secrets: a page asks for an API key if the requests that it sends need one.
//
//go:embed web
var webFiles embed.FS

// pagePolicy permits a page to load scripts and styles of this server and to send requests to
// it, and nothing else: no inline scripts, no frames, no HTML made of texts.
const pagePolicy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"

// webPages are the paths of pages to which a final slash leads too, as people type it.
var webPages = []string{"/docs", "/chat", "/console"}

// pageOf returns the name of the page for a path that is its own with a final slash, or "".
func pageOf(target []byte) string {
	if len(target) < 2 || target[len(target)-1] != '/' {
		return ""
	}
	page := string(target[:len(target)-1])
	if !slices.Contains(webPages, page) {
		return ""
	}
	return page[1:]
}

// webTypes are the media types of the files by their extensions.
var webTypes = map[string]string{".html": "text/html; charset=utf-8", ".css": "text/css; charset=utf-8",
	".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml"}

// webFile is a file with the entity tag of its content.
type webFile struct {
	content   []byte
	mediaType string
	tag       string
}

// webTable holds all files by name.
var webTable = newWebTable()

func newWebTable() map[string]webFile {
	table := map[string]webFile{}
	add := func(files fs.FS, folder string) {
		for _, e := range invariant.Must(fs.ReadDir(files, folder)) {
			_, twice := table[e.Name()]
			invariant.Check(!twice, "two files for browsers are named %s", e.Name())
			table[e.Name()] = newWebFile(invariant.Must(fs.ReadFile(files, path.Join(folder, e.Name()))), webTypes[path.Ext(e.Name())])
		}
	}
	add(webFiles, "web")
	add(js.Modules, "src")
	return table
}

func newWebFile(content []byte, mediaType string) webFile {
	sum := sha256.Sum256(content)
	return webFile{content, mediaType, `"` + base64.RawURLEncoding.EncodeToString(sum[:12]) + `"`}
}

// Bounds of the settings of the chat page.
const (
	chatAgentsMax = 100
	chatTitleMax  = 60 // characters
)

// ChatPage has the settings of the chat page, the table [chat] of the configuration. They are no permissions: a
// client calls any agent that its key permits.
type ChatPage struct {
	// agents that the page offers, in this order, at most 100; all if empty
	Agents []string `toml:"agents" json:"agents,omitzero"`
	// agent of a new conversation, until the person chooses another
	Default string `toml:"default" json:"default,omitzero"`
	// name of the page, at most 60 characters; Troupe if empty
	Title string `toml:"title" json:"title,omitzero"`
	// whether answers show their tokens; nil means true
	Tokens *bool `toml:"tokens" json:"tokens,omitzero"`
}

// Check returns an error for the first invalid setting.
func (p *ChatPage) Check() error {
	if len(p.Agents) > chatAgentsMax {
		return fmt.Errorf("agents: %d names, at most %d allowed", len(p.Agents), chatAgentsMax)
	}
	for _, name := range p.Agents {
		if err := actor.CheckName(name); err != nil {
			return fmt.Errorf("agents: %w", err)
		}
	}
	if p.Default != "" {
		if err := actor.CheckName(p.Default); err != nil {
			return fmt.Errorf("default: %w", err)
		}
		if len(p.Agents) > 0 && !slices.Contains(p.Agents, p.Default) {
			return fmt.Errorf("default: %s is none of agents", p.Default)
		}
	}
	if utf8.RuneCountInString(p.Title) > chatTitleMax || strings.ContainsFunc(p.Title, func(c rune) bool { return unicode.IsControl(c) || actor.IsInvisible(c) }) {
		return fmt.Errorf("title: want at most %d visible characters", chatTitleMax)
	}
	return nil
}

// docsTable holds the pages of the documentation by name. They are sent as plain text.
var docsTable = newDocsTable()

func newDocsTable() map[string]webFile {
	table := map[string]webFile{}
	for _, e := range invariant.Must(docs.Pages.ReadDir(".")) {
		table[e.Name()] = newWebFile(invariant.Must(docs.Pages.ReadFile(e.Name())), "text/plain; charset=utf-8")
	}
	return table
}

// frontPage answers with the page that names the others.
func frontPage(ctx *fasthttp.RequestCtx) { webTable["front.html"].write(ctx) }

// docsPage answers with the list of the pages of the documentation.
func docsPage(ctx *fasthttp.RequestCtx) { webTable["docs.html"].write(ctx) }

// docsText answers with a page of the documentation.
func docsText(ctx *fasthttp.RequestCtx) {
	f, ok := docsTable[pathParam(ctx, "id")]
	if !ok {
		newProblem(http.StatusNotFound, "not_found", "no such path", "no page of the documentation has this name; GET /docs lists them").write(ctx)
		return
	}
	f.write(ctx)
}

// chatPage answers with the chat page.
func chatPage(ctx *fasthttp.RequestCtx) { webTable["chat.html"].write(ctx) }

// consolePage answers with the console. The page has no contents of its own: the requests that it sends need the
// scope operator.
func consolePage(ctx *fasthttp.RequestCtx) { webTable["console.html"].write(ctx) }

// webAsset answers with a script, a style or an image of a page.
func webAsset(ctx *fasthttp.RequestCtx) {
	f, ok := webTable[pathParam(ctx, "id")]
	if !ok || path.Ext(pathParam(ctx, "id")) == ".html" {
		newProblem(http.StatusNotFound, "not_found", "no such path", "no file of a page has this name").write(ctx)
		return
	}
	f.write(ctx)
}

// write answers with the file. Browsers ask each time whether it has changed, so that a page
// and its scripts are those of the same version.
func (f webFile) write(ctx *fasthttp.RequestCtx) {
	h := &ctx.Response.Header
	h.Set("Content-Security-Policy", pagePolicy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Cache-Control", "no-cache")
	h.Set("ETag", f.tag)
	if header(ctx, fasthttp.HeaderIfNoneMatch) == f.tag {
		ctx.SetStatusCode(http.StatusNotModified)
		return
	}
	h.SetContentType(f.mediaType)
	ctx.Response.SetBodyRaw(f.content) // all answers share it
}

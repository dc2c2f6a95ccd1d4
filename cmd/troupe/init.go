// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"text/template"

	"github.com/troupe-run/troupe/host/outbound"
)

// InitCmd creates the folder of a new project.
type InitCmd struct {
	Dir       string `arg:"" type:"path" help:"Folder to create, or an empty one."`
	Model     string `placeholder:"URL" help:"Base URL of a model with chat completions, such as https://api.example.com/v1. Default: the built-in model scripted, which needs no network."`
	KeyEnv    string `placeholder:"NAME" help:"With --model: environment variable that holds its API key."`
	ModelName string `placeholder:"NAME" help:"With --model: name of the model at the provider."`
}

// Help returns the text shown below the flags.
func (InitCmd) Help() string {
	return `Writes a team of two agents, the configuration of a server, a test under faults and a README, and prints what to
type next. It changes no file: a folder with files is refused. A folder with nothing but .git is empty.
With --model both agents use that model. The key itself is never written; the server reads it from the environment.

Examples:
  troupe init team
  troupe init team-big --model https://api.example.com/v1 --key-env EXAMPLE_API_KEY --model-name big-2
  troupe init team-local --model http://127.0.0.1:11434/v1 --model-name small`
}

// newProject holds the files of a new project. Those named *.toml are templates.
//
//go:embed newproject
var newProject embed.FS

// projectModel is the model that the files of a new project name. With the URL "" they
// name none.
type projectModel struct {
	Table             string // key in the table models
	URL, KeyEnv, Name string
}

// Validate implements kong's validation.
func (c *InitCmd) Validate() error {
	switch {
	case c.Model == "" && c.KeyEnv != "":
		return errors.New("--key-env requires --model URL")
	case c.Model == "" && c.ModelName != "":
		return errors.New("--model-name requires --model URL")
	case c.Model == "":
		return nil
	}
	m := c.model()
	config := outbound.Config{Models: map[string]outbound.Model{m.Table: {URL: m.URL, KeyEnv: m.KeyEnv, Model: m.Name}}}
	if err := config.Validate(); err != nil {
		return fmt.Errorf("--model: %s", strings.TrimPrefix(err.Error(), "models."+m.Table+"."))
	}
	for _, text := range []string{m.URL, m.KeyEnv, m.Name} {
		if strings.ContainsFunc(text, func(r rune) bool { return !strconv.IsPrint(r) }) {
			return fmt.Errorf("--model, --key-env, --model-name: %q has a character that cannot be printed", text)
		}
	}
	return nil
}

func (c *InitCmd) model() projectModel {
	return projectModel{Table: "main", URL: c.Model, KeyEnv: c.KeyEnv, Name: c.ModelName}
}

// Run executes the command.
func (c *InitCmd) Run(s streams) error {
	if err := checkEmpty(c.Dir); err != nil {
		return err
	}
	files, err := projectFiles(c.model())
	if err != nil {
		return err
	}
	for _, f := range files {
		if err := f.create(c.Dir); err != nil {
			return fmt.Errorf("init: %w", err)
		}
		fmt.Fprintln(s.out, filepath.Join(c.Dir, f.path))
	}
	troupe, cd := shellQuote(programName()), ""
	if working, err := os.Getwd(); err != nil || working != filepath.Clean(c.Dir) {
		cd = "  cd " + shellQuote(c.Dir) + "\n"
	}
	key := ""
	if c.KeyEnv != "" && os.Getenv(c.KeyEnv) == "" {
		key = "  export " + c.KeyEnv + "=…   # the key of the model\n"
	}
	fmt.Fprintf(s.err, "\nNext, start the server:\n%s%s  %s serve --config troupe.toml --watch\n\nIn another terminal, send a message:\n  %[3]s call coordinator \"Ask the helper agent to say hello\" --tree\n\nTest the team under faults, without server and model:\n%[1]s  %[3]s sim --project . --seeds 20\n",
		cd, key, troupe)
	return nil
}

// checkEmpty returns an error if a folder has files, or if a path is no folder.
func checkEmpty(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		if info, statErr := os.Stat(dir); statErr == nil && !info.IsDir() {
			return fmt.Errorf("init: %s is a file; want the name of a new folder", dir)
		}
		return fmt.Errorf("init: %w", err)
	}
	for _, e := range entries {
		if e.Name() != ".git" {
			return fmt.Errorf("init: %s has files, such as %s; want the name of a new folder", dir, e.Name())
		}
	}
	return nil
}

// projectFile is a file of a new project.
type projectFile struct {
	path string // in its folder
	text []byte
}

// projectFiles returns the files of a new project, in the order of their names.
func projectFiles(m projectModel) (files []projectFile, err error) {
	const root = "newproject"
	err = fs.WalkDir(newProject, root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := newProject.ReadFile(path)
		if err != nil {
			return err
		}
		name := strings.TrimPrefix(path, root+"/")
		switch {
		case name == "gitignore": // under its own name it would apply to this repository
			name = ".gitignore"
		case filepath.Ext(name) == ".toml" || filepath.Ext(name) == ".md":
			t, err := template.New(name).Funcs(template.FuncMap{"quote": strconv.Quote}).Parse(string(text))
			if err != nil {
				return err
			}
			var out bytes.Buffer
			if err := t.Execute(&out, m); err != nil {
				return err
			}
			text = out.Bytes()
		}
		files = append(files, projectFile{filepath.FromSlash(name), text})
		return nil
	})
	return files, err
}

// create writes the file. It never replaces one.
func (f projectFile) create(dir string) error {
	path := filepath.Join(dir, f.path)
	if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
		return err
	}
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
	if err != nil {
		return err
	}
	_, err = file.Write(f.text)
	return errors.Join(err, file.Close())
}

// programName returns the name by which a shell finds this program: troupe, or its path if
// that name is not on the search path.
func programName() string {
	const name = "troupe"
	if _, err := exec.LookPath(name); err == nil {
		return name
	}
	if path, err := os.Executable(); err == nil {
		return path
	}
	return name
}

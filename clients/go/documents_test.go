package leasehold

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

const root = "../.."

func TestAllPartsHaveOneVersion(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join(root, "Cargo.toml"))
	must(t, err)
	found := regexp.MustCompile(`\[workspace\.package\]\nversion = "(.*?)"`).FindSubmatch(text)
	if found == nil || string(found[1]) != Version {
		t.Fatalf("%q instead of %s", found, Version)
	}
}

// program is around the examples: what they import, and the functions of the user's program that they call.
const program = `package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	leasehold "github.com/leasehold/leasehold/clients/go"
)

var rows = []int{1, 2}

func report(context.Context) error               { return nil }
func render(context.Context) error               { return nil }
func deploy(context.Context, int64) error        { return nil }
func save(context.Context, int, int64) error     { return nil }
func increment(content []byte) ([]byte, error)   { return content, nil }

var (
	_ = errors.New
	_ = fmt.Sprint
	_ = time.Second
)

func main() {
	client := leasehold.New("sqlite:locks.db")
	defer client.Close()
	for name, example := range examples {
		if err := example(context.Background(), client); err != nil {
			panic(fmt.Sprintf("%s: %v", name, err))
		}
	}
}

var examples = map[string]func(context.Context, *leasehold.Client) error{
`

// Compiles the examples of the documents in one program, and runs all except those that need a cloud.
func TestTheExamplesOfTheDocumentsRun(t *testing.T) {
	t.Parallel()
	folder, source, functions := t.TempDir(), program, ""
	for _, document := range []string{"docs/go.md", "clients/go/README.md"} {
		text, err := os.ReadFile(filepath.Join(root, document))
		must(t, err)
		blocks := regexp.MustCompile("(?s)```go( no-run)?\n(.*?)```").FindAllStringSubmatch(string(text), -1)
		if len(blocks) == 0 {
			t.Fatalf("%s has no examples", document)
		}
		for number, block := range blocks {
			name := fmt.Sprintf("%s%d", regexp.MustCompile(`\W`).ReplaceAllString(document, "_"), number)
			functions += fmt.Sprintf("\nfunc %s(ctx context.Context, client *leasehold.Client) (err error) {\n\t_ = client\n\t{\n%s\t}\n\treturn\n}\n", name, block[2])
			if block[1] == "" {
				source += fmt.Sprintf("\t%q: %s,\n", name, name)
			} else {
				functions += fmt.Sprintf("\nvar _ = %s\n", name)
			}
		}
	}
	here, err := filepath.Abs(".")
	must(t, err)
	module := "module example.com/program\n\ngo 1.23\n\nrequire github.com/leasehold/leasehold/clients/go v" + Version +
		"\n\nreplace github.com/leasehold/leasehold/clients/go => " + here + "\n"
	must(t, os.WriteFile(filepath.Join(folder, "go.mod"), []byte(module), 0o644))
	must(t, os.WriteFile(filepath.Join(folder, "main.go"), []byte(source+"}\n"+functions), 0o644))
	command := "go"
	if given := os.Getenv("GO"); given != "" {
		command = given
	}
	run := exec.Command(command, "run", "-race", ".")
	run.Dir = folder
	if output, err := run.CombinedOutput(); err != nil {
		t.Fatalf("%s\n%s", strings.TrimSpace(string(output)), err)
	}
}

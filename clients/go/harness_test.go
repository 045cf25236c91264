package leasehold

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/pprof"
	"strings"
	"syscall"
	"testing"
	"time"
)

// limit is the longest time that a test waits for an event.
const limit = time.Minute

const kit = "../conformance"

// hostVariable makes the test program a host that holds the lock `x`: see [startHost].
const hostVariable = "LEASEHOLD_TEST_GO_HOST"

// silent in place of the store makes the test program an agent that never responds.
const silent = "silent"

func TestMain(m *testing.M) {
	switch store := os.Getenv(hostVariable); store {
	case "":
	case silent:
		_, _ = io.Copy(io.Discard, os.Stdin)
		return
	default:
		beHost(store)
		return
	}
	if os.Getenv("LEASEHOLD_COMMAND") == "" {
		fmt.Fprintln(os.Stderr, "set LEASEHOLD_COMMAND to the command under test")
		os.Exit(2)
	}
	_ = os.Unsetenv("LEASEHOLD_STORE")
	folder, err := os.MkdirTemp("", "leasehold-go-")
	if err != nil {
		panic(err)
	}
	_ = os.Setenv("XDG_CONFIG_HOME", filepath.Join(folder, "config"))
	_ = os.Setenv("XDG_STATE_HOME", filepath.Join(folder, "state"))
	before := runtime.NumGoroutine()
	code := m.Run()
	if code == 0 && leaks(before) {
		code = 1
	}
	_ = os.RemoveAll(folder)
	os.Exit(code)
}

// leaks reports whether goroutines or agents are left after all clients were closed.
func leaks(before int) bool {
	// Goroutines that have closed a channel as their last step may not have ended yet.
	for end := time.Now().Add(5 * time.Second); runtime.NumGoroutine() > before; runtime.Gosched() {
		if time.Now().After(end) {
			fmt.Println("goroutines are left:")
			_ = pprof.Lookup("goroutine").WriteTo(os.Stdout, 1)
			return true
		}
	}
	children, _ := os.ReadFile(fmt.Sprintf("/proc/self/task/%d/children", os.Getpid()))
	if len(children) > 0 {
		fmt.Printf("processes are left: %s\n", children)
	}
	return len(children) > 0
}

func newURL(t *testing.T) string { return "sqlite:" + filepath.Join(t.TempDir(), "locks.db") }

// open returns a client that is closed at the end of the test.
func open(t *testing.T, url string) *Client {
	c := New(url)
	t.Cleanup(func() { must(t, c.Close()) })
	return c
}

// within returns a context that ends before the test hangs.
func within(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	t.Cleanup(cancel)
	return ctx
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func acquire(t *testing.T, lock *Lock) *Guard {
	t.Helper()
	guard, err := lock.Acquire(within(t))
	must(t, err)
	return guard
}

func release(t *testing.T, guard *Guard) {
	t.Helper()
	must(t, guard.Release(within(t)))
}

// expect checks the kind of an error.
func expect(t *testing.T, err error, kind Kind) {
	t.Helper()
	if !errors.Is(err, kind) {
		t.Fatalf("%v instead of %v", err, kind)
	}
}

// expectLoss checks the reason of a loss.
func expectLoss(t *testing.T, err error, reason LossReason) {
	t.Helper()
	var loss *LostError
	if !errors.As(err, &loss) || loss.Reason != reason {
		t.Fatalf("%v instead of a loss for the reason %s", err, reason)
	}
}

func expectText(t *testing.T, err error, text string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), text) {
		t.Fatalf("%v instead of an error with %q", err, text)
	}
}

// waitFor waits for the end of a channel.
func waitFor(t *testing.T, done <-chan struct{}) {
	t.Helper()
	select {
	case <-done:
	case <-time.After(limit):
		t.Fatal("it did not happen")
	}
}

// isFree checks that another client gets the lock.
func isFree(t *testing.T, url, name string) {
	t.Helper()
	other := New(url)
	defer other.Close()
	release(t, acquire(t, other.Lock(name, Wait(limit))))
}

// current returns the agent of a client.
func current(t *testing.T, c *Client) *agent {
	t.Helper()
	a, err := c.running(within(t))
	must(t, err)
	return a
}

type step = map[string]any

// grant is a response to an acquisition, as a step of a script.
func grant(changes step) step {
	message := step{"to": "acquire", "ev": "held", "hold": 1, "lock": "x", "token": 41, "span_us": 29_550_000, "clocks": step{}}
	for field, value := range changes {
		message[field] = value
	}
	return step{"send": []any{message}}
}

func wants(op string) step { return step{"expect": step{"op": op}} }

// scripted returns a client of the agent of clients/conformance, which follows the steps of a script.
func scripted(t *testing.T, steps ...any) *Client {
	folder := t.TempDir()
	// A copy could not be started while a fork in another goroutine has it open for writing.
	program, err := filepath.Abs(filepath.Join(kit, "agent.py"))
	must(t, err)
	must(t, os.Symlink(program, filepath.Join(folder, "agent.py")))
	scenarios, err := json.Marshal([]any{step{"name": "scripted", "script": steps}})
	must(t, err)
	must(t, os.WriteFile(filepath.Join(folder, "scenarios.json"), scenarios, 0o644))
	c := open(t, "")
	c.command = filepath.Join(folder, "agent.py")
	c.env = []string{"LEASEHOLD_SCENARIO=scripted", "LEASEHOLD_SCENARIO_LOG=" + filepath.Join(folder, "log")}
	return c
}

// host is another process, which holds the lock `x`.
type host struct {
	t       *testing.T
	process *exec.Cmd
	stdin   io.Writer
	lines   *bufio.Scanner
	agent   int
}

func startHost(t *testing.T, url string, ttl time.Duration) *host {
	h := &host{t: t, process: exec.Command(os.Args[0])}
	h.process.Env = append(os.Environ(), hostVariable+"="+url, "LEASEHOLD_TEST_GO_TTL="+ttl.String())
	h.process.Stderr = os.Stderr
	stdin, err := h.process.StdinPipe()
	must(t, err)
	stdout, err := h.process.StdoutPipe()
	must(t, err)
	h.stdin, h.lines = stdin, bufio.NewScanner(stdout)
	must(t, h.process.Start())
	t.Cleanup(func() {
		_ = h.process.Process.Kill()
		_ = h.process.Wait()
	})
	_, err = fmt.Sscanf(h.line(), "held %d", &h.agent)
	must(t, err)
	t.Cleanup(func() { _ = syscall.Kill(h.agent, syscall.SIGCONT) }) // An agent that is stopped does not end.
	return h
}

func (h *host) line() string {
	h.lines.Scan()
	return h.lines.Text()
}

// check returns the result of a check in the host.
func (h *host) check() string {
	_, err := io.WriteString(h.stdin, "check\n")
	must(h.t, err)
	return h.line()
}

func beHost(store string) {
	ttl, _ := time.ParseDuration(os.Getenv("LEASEHOLD_TEST_GO_TTL"))
	c := New(store)
	guard, err := c.Lock("x", TTL(ttl)).Acquire(context.Background())
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("held", c.agent.process.Process.Pid)
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		var loss *LostError
		switch err := guard.Err(); {
		case err == nil:
			fmt.Println("held")
		case errors.As(err, &loss):
			fmt.Println("lost", loss.Reason)
		}
	}
}

package leasehold

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"time"
)

const (
	protocol = 1
	// startTimeout is how long the agent may take to start.
	startTimeout = 10 * time.Second
	find         = "install the leasehold command, or set LEASEHOLD_COMMAND to its path"
)

// findCommand returns the leasehold command from the environment variable or from PATH.
func findCommand() (string, error) {
	if given := os.Getenv("LEASEHOLD_COMMAND"); given != "" {
		return given, nil
	}
	path, err := exec.LookPath("leasehold")
	if err != nil {
		return "", failed(ErrAgent, "the leasehold command was not found", find)
	}
	return path, nil
}

// start starts the command as an agent, and compares its clocks with those of this process. env is added to its
// environment.
func start(ctx context.Context, path string, env []string) (*agent, error) {
	// Go sets close-on-exec on all four ends.
	theirIn, stdin, err := os.Pipe()
	if err != nil {
		return nil, failed(ErrAgent, err.Error())
	}
	defer theirIn.Close()
	stdout, theirOut, err := os.Pipe()
	if err != nil {
		_ = stdin.Close()
		return nil, failed(ErrAgent, err.Error())
	}
	defer theirOut.Close()
	command := exec.Command(path, "agent")
	command.Stdin, command.Stdout, command.Stderr = theirIn, theirOut, os.Stderr
	command.Env = append(command.Environ(), env...)
	command.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	a := &agent{
		process: command,
		stdin:   stdin,
		stdout:  stdout,
		buffer:  make([]byte, 1<<16),
		written: make(chan struct{}),
		clocks:  now,
		pending: map[int64]*call{},
		holds:   map[int64]*hold{},
		ended:   make(chan struct{}),
	}
	a.wake.L = &a.mu
	if a.reading, err = stdout.SyscallConn(); err == nil {
		err = command.Start()
	}
	if err != nil {
		_ = stdin.Close()
		_ = stdout.Close()
		return nil, failed(ErrAgent, fmt.Sprintf("cannot start %s: %s", path, err), find)
	}
	_ = theirOut.Close() // So that the end of the agent is the end of the file.
	if err := a.greet(ctx, path); err != nil {
		_ = command.Process.Kill()
		_ = command.Wait()
		_ = stdin.Close()
		_ = stdout.Close()
		return nil, err
	}
	go a.write()
	go a.read()
	return a, nil
}

type helloMessage struct {
	momentMessage
	Protocol int `json:"protocol"`
}

// greet sends `hello` and compares the clocks.
func (a *agent) greet(ctx context.Context, path string) error {
	hello := fields{"op": "hello", "protocol": protocol, "pid": os.Getpid(), "client": "leasehold-go/" + Version}
	request, err := hello.line(0)
	if err != nil {
		return err
	}
	before := now()
	if _, err := a.stdin.Write(request); err != nil {
		// The end of its output says why.
		_ = a.stdin.Close()
	}
	line, err := a.firstLine(ctx, path)
	if err != nil {
		return err
	}
	after := now()
	head, err := readEnvelope(line)
	if err == nil && *head.Event == "error" {
		var refusal errorMessage
		if err = json.Unmarshal(line, &refusal); err == nil {
			return refusal.err()
		}
	}
	var answer helloMessage
	var theirs moment
	if err == nil {
		err = json.Unmarshal(line, &answer)
	}
	if err == nil {
		theirs, err = answer.moment()
	}
	if err != nil || *head.Event != "hello" || answer.Protocol != protocol {
		return failed(ErrAgent, path+" is not the leasehold command, or has another version", find)
	}
	if !between(before.boot, theirs.boot, after.boot) || !between(before.wall, theirs.wall, after.wall) {
		return failed(ErrAgent, "the agent and this process have different clocks, so deadlines would be wrong",
			"do not use faketime, time namespaces or a virtualized /proc/uptime for only one of the two",
			"if the clock was just set, try again")
	}
	return nil
}

func between(early, time, late int64) bool {
	return early-toleranceUs <= time && time <= late+toleranceUs
}

// firstLine waits for the first message. What follows it stays unread.
func (a *agent) firstLine(ctx context.Context, path string) ([]byte, error) {
	_ = a.stdout.SetReadDeadline(time.Now().Add(startTimeout))
	stop := context.AfterFunc(ctx, func() { _ = a.stdout.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	for !bytes.Contains(a.unread, []byte("\n")) {
		count, err := a.stdout.Read(a.buffer)
		a.unread = append(a.unread, a.buffer[:count]...)
		switch {
		case ctx.Err() != nil:
			return nil, interrupted(ctx, "start the agent")
		case errors.Is(err, os.ErrDeadlineExceeded):
			return nil, failed(ErrAgent, path+" does not respond as an agent", find)
		case err != nil:
			return nil, failed(ErrAgent, path+" exited instead of starting an agent", find)
		case len(a.unread) > maxLine:
			return nil, failed(ErrAgent, path+" is not the leasehold command", find)
		}
	}
	if !stop() {
		return nil, interrupted(ctx, "start the agent")
	}
	_ = a.stdout.SetReadDeadline(time.Time{})
	line, rest, _ := bytes.Cut(a.unread, []byte("\n"))
	a.unread = bytes.Clone(rest)
	return line, nil
}

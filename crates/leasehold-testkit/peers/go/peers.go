// Package peers contains the common part of the programs that acquire locks with another client: their command line and
// their output. Options have the form --name VALUE, or --name alone where a program allows that.
//
//	PROGRAM hold --lock LOCK ...                        prints "granted", and "released" at the end of its input
//	PROGRAM try --lock LOCK ...                         prints "granted" and releases; or prints "held" and exits with 1
//	PROGRAM increment --lock LOCK --file FILE --times N ...
//
// increment adds one to the number in a plain file N times, each time under the lock. It prints the times between which
// it held the lock, in nanoseconds since boot. contender.go describes the commands after the word `bench`.
package peers

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// ErrHeld means that another client holds the lock.
var ErrHeld = errors.New("held")

// Lock is a lock of the client under test.
type Lock interface {
	// Acquire waits for the lock.
	Acquire() error
	// Try acquires the lock, or returns ErrHeld at once.
	Try() error
	// Release fails if the lock is no longer held.
	Release() error
}

// Options are the options of the command line after the verb.
type Options map[string]string

// Text returns a required option.
func (o Options) Text(name string) string {
	value, there := o[name]
	if !there {
		fail(fmt.Errorf("--%s is missing", name))
	}
	return value
}

// TTL returns the lease duration, which is given in seconds, or in milliseconds for the benchmark.
func (o Options) TTL() time.Duration {
	if _, fine := o["ttl-ms"]; fine {
		return time.Duration(o.number("ttl-ms")) * time.Millisecond
	}
	return time.Duration(o.number("ttl")) * time.Second
}

func (o Options) number(name string) int {
	number, err := strconv.Atoi(o.Text(name))
	fail(err)
	return number
}

// Run runs the command line. The commands of the tests use open, and those of the benchmark use connect.
func Run(open func(Options) (Lock, error), connect func(Options) (Client, error)) {
	if len(os.Args) < 2 {
		fail(errors.New("there is no verb"))
	}
	if os.Args[1] == "bench" {
		failure = 1
		fail(bench(os.Args[2:], connect))
		return
	}
	options := read(os.Args[2:])
	lock, err := open(options)
	fail(err)
	switch os.Args[1] {
	case "hold":
		hold(lock)
	case "try":
		try(lock)
	case "increment":
		increment(lock, options.Text("file"), options.number("times"))
	default:
		fail(fmt.Errorf("there is no verb %q", os.Args[1]))
	}
}

func read(arguments []string) Options {
	options := Options{}
	for i := 0; i < len(arguments); i++ {
		name, isOption := strings.CutPrefix(arguments[i], "--")
		if !isOption {
			fail(fmt.Errorf("%q is not an option", arguments[i]))
		}
		options[name] = ""
		if i+1 < len(arguments) && !strings.HasPrefix(arguments[i+1], "--") {
			i++
			options[name] = arguments[i]
		}
	}
	return options
}

func hold(lock Lock) {
	fail(lock.Acquire())
	fmt.Println("granted")
	_, err := io.Copy(io.Discard, os.Stdin)
	fail(err)
	fail(lock.Release())
	fmt.Println("released")
}

func try(lock Lock) {
	err := lock.Try()
	if errors.Is(err, ErrHeld) {
		fmt.Println("held")
		os.Exit(1)
	}
	fail(err)
	fmt.Println("granted")
	fail(lock.Release())
}

func increment(lock Lock, file string, times int) {
	for range times {
		fail(lock.Acquire())
		from := sinceBoot()
		text, err := os.ReadFile(file)
		fail(err)
		number, err := strconv.Atoi(strings.TrimSpace(string(text)))
		fail(err)
		// This is neither atomic nor locked. Two processes at once would lose an addition or read half a number.
		fail(os.WriteFile(file, []byte(strconv.Itoa(number+1)), 0o600))
		until := sinceBoot()
		fail(lock.Release())
		fmt.Println(from, until)
	}
}

func sinceBoot() int64 {
	var now unix.Timespec
	fail(unix.ClockGettime(unix.CLOCK_BOOTTIME, &now))
	return now.Nano()
}

// failure is the exit code of errors. Outside the benchmark, 1 means that a lock is held.
var failure = 2

func fail(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "peer:", err)
		os.Exit(failure)
	}
}

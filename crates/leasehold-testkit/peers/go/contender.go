package peers

// The commands of a contender of the benchmark, which are the verbs after the word `bench`.
//
//	PROGRAM bench contend --lock LOCK --tasks N (--count C | --seconds S) --ttl-ms T --hold-us H ...
//	PROGRAM bench hold    --lock LOCK --ttl-ms T ...
//	PROGRAM bench many    --lock PREFIX --locks N --seconds S --ttl-ms T ...
//
// Each command first acquires and releases a separate lock, LOCK-warm-PROCESS, to open its connections. `contend` does so
// several times. Then the command prints "ready" and waits for the line "go".
//
//   - contend: runs N tasks in one process. Each task acquires the lock, holds it for H microseconds and releases it, C
//     times or until S seconds have passed. Acquisitions that still wait at that time are cancelled. Then prints a line
//     `E TASK ASKED GRANTED RELEASING RELEASED` for each acquisition, with the times before and after the call that
//     acquires and before and after the call that releases, in microseconds on the wall clock. Then prints "done".
//   - hold: prints `granted MICROSECONDS`, and releases the lock when its input ends.
//   - many: acquires PREFIX0, PREFIX1, ..., prints "held", holds them for S seconds, prints `lost K` if K of them were lost,
//     prints "done", and releases them.

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// Client is the part of the client under test that the tasks of a process share.
type Client interface {
	// Contender returns the lock for one task. The locks of different tasks exclude each other.
	Contender(lock string) (Contender, error)
	// Holder returns one of many locks. Different locks may share a session.
	Holder(lock string) (Contender, error)
	// Close frees the resources that holders share.
	Close() error
}

// Contender acquires one lock repeatedly.
type Contender interface {
	// Acquire waits for the lock, until the context is cancelled.
	Acquire(context.Context) error
	Release() error
	// Lost reports whether the client has lost the lock that it acquired, as far as it knows.
	Lost() bool
	// Close frees the contender's own resources.
	Close() error
}

const (
	warmCycles = 50              // how often `contend` acquires the lock LOCK-warm-PROCESS at most
	warmTime   = 2 * time.Second // the time limit for that
	atOnce     = 64              // how many locks `many` acquires or releases concurrently
)

// bench runs the command line after the word `bench`.
func bench(arguments []string, connect func(Options) (Client, error)) error {
	if len(arguments) == 0 {
		return errors.New("there is no verb after bench")
	}
	verb, options := arguments[0], read(arguments[1:])
	client, err := connect(options)
	if err != nil {
		return err
	}
	input := bufio.NewReader(os.Stdin)
	switch verb {
	case "contend":
		err = contend(client, options, input)
	case "hold":
		err = benchHold(client, options, input)
	case "many":
		err = many(client, options, input)
	default:
		err = fmt.Errorf("there is no verb %q", verb)
	}
	if err != nil {
		return err
	}
	return client.Close()
}

// ready acquires another lock at most the given number of times, prints "ready", and waits for the start.
func ready(client Client, options Options, input *bufio.Reader, cycles int) error {
	lock, err := client.Contender(fmt.Sprint(options.Text("lock"), "-warm-", os.Getpid()))
	if err != nil {
		return err
	}
	began := time.Now()
	for cycle := 0; cycle < cycles && time.Since(began) < warmTime; cycle++ {
		if err := lock.Acquire(context.Background()); err != nil {
			return err
		}
		if err := lock.Release(); err != nil {
			return err
		}
	}
	if err := lock.Close(); err != nil {
		return err
	}
	fmt.Println("ready")
	line, err := input.ReadString('\n')
	if err != nil || line != "go\n" {
		return fmt.Errorf("%q came instead of the line go", line)
	}
	return nil
}

// event contains the times of one acquisition, in microseconds on the wall clock.
type event struct{ asked, granted, releasing, released int64 }

func contend(client Client, options Options, input *bufio.Reader) error {
	tasks := make([]Contender, options.number("tasks"))
	hold := time.Duration(options.number("hold-us")) * time.Microsecond
	count := -1
	if _, counted := options["count"]; counted {
		count = options.number("count")
	}
	err := together(len(tasks), func(i int) (err error) {
		tasks[i], err = client.Contender(options.Text("lock"))
		return err
	})
	if err != nil {
		return err
	}
	if err := ready(client, options, input, warmCycles); err != nil {
		return err
	}
	until, cancel := context.WithCancel(context.Background())
	if count < 0 {
		until, cancel = context.WithTimeout(context.Background(), time.Duration(options.number("seconds"))*time.Second)
	}
	defer cancel()
	events := make([][]event, len(tasks))
	err = together(len(tasks), func(i int) (err error) {
		events[i], err = cycles(until, tasks[i], count, hold)
		return err
	})
	if err != nil {
		return err
	}
	output := bufio.NewWriter(os.Stdout)
	for task, events := range events {
		for _, e := range events {
			fmt.Fprintln(output, "E", task, e.asked, e.granted, e.releasing, e.released)
		}
	}
	fmt.Fprintln(output, "done")
	if err := output.Flush(); err != nil {
		return err
	}
	return together(len(tasks), func(i int) error { return tasks[i].Close() })
}

// cycles runs the loop of a task. A negative count means no limit.
func cycles(until context.Context, lock Contender, count int, hold time.Duration) (events []event, err error) {
	for ; count != 0 && until.Err() == nil; count-- {
		var e event
		e.asked = now()
		if err := lock.Acquire(until); err != nil {
			if until.Err() != nil {
				break
			}
			return nil, err
		}
		e.granted = now()
		if hold > 0 {
			time.Sleep(hold)
		}
		e.releasing = now()
		if err := lock.Release(); err != nil {
			return nil, err
		}
		e.released = now()
		events = append(events, e)
	}
	return events, nil
}

func benchHold(client Client, options Options, input *bufio.Reader) error {
	lock, err := client.Contender(options.Text("lock"))
	if err != nil {
		return err
	}
	if err := ready(client, options, input, 1); err != nil {
		return err
	}
	if err := lock.Acquire(context.Background()); err != nil {
		return err
	}
	fmt.Println("granted", now())
	for {
		if _, err := input.ReadByte(); err != nil {
			return errors.Join(lock.Release(), lock.Close())
		}
	}
}

func many(client Client, options Options, input *bufio.Reader) error {
	locks := make([]Contender, options.number("locks"))
	if err := ready(client, options, input, 1); err != nil {
		return err
	}
	err := limited(len(locks), func(i int) (err error) {
		if locks[i], err = client.Holder(options.Text("lock") + strconv.Itoa(i)); err != nil {
			return err
		}
		return locks[i].Acquire(context.Background())
	})
	if err != nil {
		return err
	}
	fmt.Println("held")
	time.Sleep(time.Duration(options.number("seconds")) * time.Second)
	lost := 0
	for i, lock := range locks {
		if lock.Lost() {
			lost++
			locks[i] = nil
		}
	}
	if lost > 0 {
		fmt.Println("lost", lost)
	}
	fmt.Println("done")
	return limited(len(locks), func(i int) error {
		if locks[i] == nil {
			return nil
		}
		return locks[i].Release()
	})
}

// together runs a function N times concurrently, and returns the first error.
func together(times int, do func(int) error) error {
	failed := make(chan error, times)
	for i := range times {
		go func() { failed <- do(i) }()
	}
	for range times {
		if err := <-failed; err != nil {
			return err
		}
	}
	return nil
}

// limited runs a function N times, a few at a time, and returns one of its errors.
func limited(times int, do func(int) error) error {
	var next atomic.Int64
	var first error
	var once sync.Once
	_ = together(min(times, atOnce), func(int) error {
		for {
			i := int(next.Add(1)) - 1
			if i >= times {
				return nil
			}
			if err := do(i); err != nil {
				once.Do(func() { first = err })
				return nil
			}
		}
	})
	return first
}

func now() int64 { return time.Now().UnixMicro() }

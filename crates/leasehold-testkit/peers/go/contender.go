package peers

// What a contender of the benchmark does: the verbs after the word `bench`.
//
//	PROGRAM bench contend --lock LOCK --tasks N (--count C | --seconds S) --ttl-ms T --hold-us H ...
//	PROGRAM bench hold    --lock LOCK --ttl-ms T ...
//	PROGRAM bench many    --lock PREFIX --locks N --seconds S --ttl-ms T ...
//
// Each takes and releases a lock of its own, LOCK-warm-PROCESS, so that connections are open, those that contend several
// times, says "ready", and waits for the line "go".
//
//   - contend: N tasks of one process, each in a loop: acquire, hold for H microseconds, release; C times each, or until S
//     seconds have passed, when acquisitions that still wait are given up. Then a line `E TASK ASKED GRANTED RELEASING
//     RELEASED` for each acquisition, in microseconds on the wall clock: before and after the call that acquires, before and
//     after the one that releases. Then "done".
//   - hold: says `granted MICROSECONDS`, and releases the lock when its input ends.
//   - many: acquires PREFIX0, PREFIX1, ..., says "held", holds them for S seconds, says `lost K` if K of them were lost, then
//     "done", and releases them.

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

// Client is the client under test, as a process has it.
type Client interface {
	// Contender returns what one task takes the lock with. Those of different tasks exclude each other.
	Contender(lock string) (Contender, error)
	// Holder returns what one lock of many is taken with. Those of different locks may share a session.
	Holder(lock string) (Contender, error)
	// Close gives back what holders share.
	Close() error
}

// Contender takes one lock, again and again.
type Contender interface {
	// Acquire waits for the lock, until the context is cancelled.
	Acquire(context.Context) error
	Release() error
	// Lost says whether the lock, which was acquired, is not held any more as far as the client knows.
	Lost() bool
	// Close gives back what it has for itself.
	Close() error
}

const (
	warmCycles = 50              // how often those that contend take a lock before the start,
	warmTime   = 2 * time.Second // unless that takes longer
	atOnce     = 64              // acquisitions under way of many locks
)

// bench does what the command line says after the word `bench`.
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

// ready takes another lock so many times, says that it has, and waits for the start.
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

// event is one acquisition: microseconds on the wall clock.
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

// cycles is what a task does. A count below zero is none.
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

// together does something N times at once, and returns the first error.
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

// limited does something N times, a few at once, and returns an error of it.
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

package leasehold

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

func TestALockIsHeldUntilItsRelease(t *testing.T) {
	t.Parallel()
	ctx, c := within(t), open(t, newURL(t))
	lock := c.Lock("x", Note("nightly"), Owner("ci"), TTL(10*time.Second))
	guard := acquire(t, lock)
	must(t, guard.Err())
	if guard.Name() != "x" || guard.Tokens()["x"] != guard.Token() || GuardFrom(guard.Context()) != guard {
		t.Fatalf("%+v", guard)
	}
	if left := guard.Remaining(); left <= 5*time.Second || left > 10*time.Second {
		t.Fatal(left)
	}
	_, err := lock.TryAcquire(ctx)
	var held *HeldError
	if !errors.As(err, &held) || held.HeldBy.Token != guard.Token() || held.HeldBy.Holder.Note != "nightly" || held.HeldBy.Holder.Name != "ci" {
		t.Fatalf("%+v", err)
	}
	expect(t, err, ErrHeld)
	_, err = c.Lock("x", Wait(10*time.Millisecond)).Acquire(ctx)
	expect(t, err, ErrHeld)
	release(t, guard)
	for _, err := range []error{guard.Err(), guard.Release(ctx), guard.Renew(ctx), context.Cause(guard.Context())} {
		expect(t, err, ErrReleased)
	}
	select {
	case <-guard.Lost():
		t.Fatal("a release is not a loss")
	default:
	}
	next := acquire(t, lock)
	if next.Token() <= guard.Token() {
		t.Fatal("the token did not rise")
	}
	must(t, next.ReleaseWithCooldown(ctx, time.Hour))
	status, err := c.Status(ctx, "x")
	must(t, err)
	if status.State != StateCooldown || status.History[0].Token != next.Token() || status.History[0].Until.IsZero() {
		t.Fatalf("%+v", status)
	}
}

func TestACancelledAcquisitionHoldsNothing(t *testing.T) {
	t.Parallel()
	url := newURL(t)
	c := open(t, url)
	lock := c.Lock("x")
	release(t, acquire(t, lock))
	granted := 0
	for range 200 {
		ctx, cancel := context.WithTimeout(context.Background(), time.Duration(rand.IntN(4_000))*time.Microsecond)
		guard, err := lock.Acquire(ctx)
		if err == nil {
			granted++
			release(t, guard)
		} else {
			expectTimeout(t, err)
		}
		cancel()
	}
	guard := acquire(t, lock)
	ctx, cancel := context.WithCancelCause(within(t))
	stop := errors.New("stop")
	waiting := c.Lock("x", OnWaiting(func(by HolderInfo) {
		if by.Token == guard.Token() {
			cancel(stop)
		}
	}))
	if _, err := waiting.Acquire(ctx); !errors.Is(err, context.Canceled) || !errors.Is(err, stop) {
		t.Fatal(err)
	}
	release(t, guard)
	isFree(t, url, "x")
	t.Logf("%d of 200 were granted", granted)
}

// The context of an acquisition can end after its grant has arrived.
func TestAGrantThatNobodyReadsIsReleased(t *testing.T) {
	t.Parallel()
	url := newURL(t)
	c := open(t, url)
	call, err := current(t, c).send(fields{"op": "acquire", "store": url, "lock": "x", "ttl_ms": 3_600_000})
	must(t, err)
	waitFor(t, call.arrived)
	call.abandon()
	isFree(t, url, "x")
}

func TestAStartThatIsCancelledLeavesNothing(t *testing.T) {
	t.Parallel()
	c := open(t, newURL(t))
	c.command, c.env = os.Args[0], []string{hostVariable + "=" + silent}
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	var done sync.WaitGroup
	for range 2 {
		done.Add(1)
		go func() {
			defer done.Done()
			_, err := c.Lock("x").Acquire(ctx)
			expectTimeout(t, err)
		}()
	}
	done.Wait()
	c.command = filepath.Join(t.TempDir(), "missing")
	_, err := c.Lock("x").Acquire(within(t))
	expect(t, err, ErrAgent)
	c.command, c.env = "", nil // The next request finds the command.
	release(t, acquire(t, c.Lock("x")))
}

func expectTimeout(t *testing.T, err error) {
	t.Helper()
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
}

func TestSemaphoresReadersAndSeveralLocks(t *testing.T) {
	t.Parallel()
	ctx, c := within(t), open(t, newURL(t))
	two := c.Semaphore("two", 2)
	one, other := acquire(t, two), acquire(t, two)
	_, err := two.TryAcquire(ctx)
	expect(t, err, ErrHeld)
	release(t, one)
	release(t, acquire(t, two))
	release(t, other)

	index := c.RWLock("index")
	one, other = acquire(t, index.Shared), acquire(t, index.Shared)
	_, err = index.Exclusive.TryAcquire(ctx)
	expect(t, err, ErrHeld)
	release(t, one)
	release(t, other)
	release(t, acquire(t, index.Exclusive))

	both := acquire(t, c.LockAll([]string{"b", "a"}))
	tokens := both.Tokens()
	if both.Name() != "a, b" || both.Token() != 0 || len(tokens) != 2 || tokens["a"] == 0 || tokens["b"] == 0 {
		t.Fatalf("%+v", both.hold)
	}
	_, err = c.Lock("b").TryAcquire(ctx)
	expect(t, err, ErrHeld)
	release(t, both)
	var names []string
	for name, err := range c.List(ctx, "") {
		must(t, err)
		names = append(names, name)
	}
	if len(names) < 4 {
		t.Fatal(names)
	}
}

func TestAnotherNumberOfPermitsIsAnErrorWithBoth(t *testing.T) {
	t.Parallel()
	ctx, c := within(t), open(t, newURL(t))
	expectSizes := func(err error, asked, stored int) {
		t.Helper()
		expect(t, err, ErrInvalid)
		var sizes *SizeError
		if !errors.As(err, &sizes) || sizes.Asked != asked || sizes.Stored != stored || len(sizes.Err.Help) == 0 {
			t.Fatalf("%+v", err)
		}
	}
	one := acquire(t, c.Semaphore("pool", 2))
	_, err := c.Semaphore("pool", 3).Acquire(ctx)
	expectSizes(err, 3, 2)
	_, err = c.ResizeSemaphore(ctx, "pool", 3)
	expect(t, err, ErrHeld)
	release(t, one)
	before, err := c.ResizeSemaphore(ctx, "pool", 3, TTL(time.Minute))
	if must(t, err); before != 2 {
		t.Fatal(before)
	}
	release(t, acquire(t, c.Semaphore("pool", 3)))

	release(t, acquire(t, c.RWLock("index", Readers(12)).Shared))
	_, err = c.RWLock("index").Exclusive.Acquire(ctx)
	expectSizes(err, 8, 12)
	before, err = c.ResizeRWLock(ctx, "index", 8)
	if must(t, err); before != 12 {
		t.Fatal(before)
	}
	release(t, acquire(t, c.RWLock("index").Exclusive))
	_, err = c.ResizeRWLock(ctx, "index", 65)
	expect(t, err, ErrInvalid)
}

func TestElections(t *testing.T) {
	t.Parallel()
	c := open(t, newURL(t))
	election := c.Election("scheduler", Value("http://10.0.0.7"), TTL(10*time.Second))
	leader, err := election.Leader(within(t))
	if must(t, err); leader != nil {
		t.Fatalf("%+v", leader)
	}
	var leadership *Guard
	seen := 0
	for leader, err := range election.Observe(within(t)) {
		must(t, err)
		switch seen++; {
		case seen == 1 && leader == nil:
			leadership = acquire(t, election.Lock)
		case seen == 2 && leader.Value == "http://10.0.0.7" && leader.Term == leadership.Token():
			release(t, leadership)
		case seen == 3 && leader == nil:
			return
		default:
			t.Fatalf("%d: %+v", seen, leader)
		}
	}
}

func TestAJobRunsOncePerPeriod(t *testing.T) {
	t.Parallel()
	ctx, c := within(t), open(t, newURL(t))
	runs, broken := 0, errors.New("broken")
	job := func(ctx context.Context) error {
		runs++
		must(t, GuardFrom(ctx).Err())
		if runs == 1 {
			return broken
		}
		return nil
	}
	if _, err := c.Once(ctx, "nightly", time.Hour, job); err != broken {
		t.Fatal(err)
	}
	earlier, err := c.Once(ctx, "nightly", time.Hour, job)
	if must(t, err); earlier != nil {
		t.Fatalf("%+v", earlier)
	}
	earlier, err = c.Once(ctx, "nightly", time.Hour, job)
	if must(t, err); runs != 2 || earlier.By == nil || earlier.Token == 0 || earlier.AgainWithin > time.Hour {
		t.Fatalf("%d, %+v", runs, earlier)
	}
	_, err = c.Once(ctx, "endless", time.Hour, func(ctx context.Context) error {
		_, err := c.Once(ctx, "endless", time.Hour, job)
		return err
	})
	expect(t, err, ErrDeadlock)
}

func TestWorkUnderALock(t *testing.T) {
	t.Parallel()
	url := newURL(t)
	ctx, c := within(t), open(t, url)
	lock, failure := c.Lock("x", TTL(5*time.Second)), errors.New("failure")
	if err := lock.Do(ctx, func(context.Context) error { return failure }); err != failure {
		t.Fatal(err)
	}
	func() {
		defer func() { _ = recover() }()
		_ = lock.Do(ctx, func(context.Context) error { panic("at the work") })
	}()
	isFree(t, url, "x")
	must(t, lock.Do(ctx, func(ctx context.Context) error { return GuardFrom(ctx).Release(ctx) }))
	// The work of a caller that gives up ends, and then its lock is free.
	giving, cancel := context.WithCancel(ctx)
	err := lock.Do(giving, func(ctx context.Context) error {
		cancel()
		<-ctx.Done()
		return ctx.Err()
	})
	if err != context.Canceled {
		t.Fatal(err)
	}
	isFree(t, url, "x")
	// A loss ends the context of the work, and is the result.
	for _, result := range []error{failure, nil} {
		err = lock.Do(ctx, func(ctx context.Context) error {
			token := GuardFrom(ctx).Token()
			if evicted, err := c.Evict(within(t), "x", token, Reason("it hangs")); !evicted {
				return err
			}
			waitFor(t, ctx.Done())
			expectLoss(t, context.Cause(ctx), LossEnded)
			return result
		})
		if expectLoss(t, err, LossEnded); result != nil && !errors.Is(err, result) {
			t.Fatal(err)
		}
	}
	status, err := c.Status(ctx, "x")
	if must(t, err); status.History[0].Evicted == nil || status.History[0].Evicted.Reason != "it hangs" {
		t.Fatalf("%+v", status)
	}
}

func TestAWaitForOneselfIsADeadlock(t *testing.T) {
	t.Parallel()
	c := open(t, newURL(t))
	guard := acquire(t, c.Lock("x"))
	again := guard.Context()
	for _, lock := range []*Lock{c.Lock("x"), c.LockAll([]string{"a", "x"}), c.Lock("x", Wait(limit)), c.Election("x").Lock} {
		_, err := lock.Acquire(again)
		expect(t, err, ErrDeadlock)
	}
	for _, lock := range []*Lock{c.Lock("x", Wait(0), StoreTimeout(limit)), open(t, c.store).Lock("x", Wait(0))} {
		_, err := lock.Acquire(again)
		expect(t, err, ErrHeld)
	}
	_, err := open(t, c.store).Lock("x").Acquire(again)
	expect(t, err, ErrDeadlock)
	inner, err := c.Lock("y").Acquire(again)
	must(t, err)
	release(t, guard)
	_, err = c.Lock("z").Acquire(inner.Context())
	expect(t, err, ErrReleased) // The context has ended.
	second, err := c.Lock("x").Acquire(context.WithoutCancel(inner.Context()))
	must(t, err)
	release(t, second)

	rw, two := c.RWLock("rw"), c.Semaphore("two", 2)
	reader := acquire(t, rw.Shared)
	nested, err := rw.Shared.Acquire(reader.Context())
	must(t, err)
	_, err = rw.Exclusive.Acquire(nested.Context())
	expect(t, err, ErrDeadlock)
	first := acquire(t, two)
	nested, err = two.Acquire(first.Context())
	must(t, err)
	_, err = two.Acquire(nested.Context())
	expect(t, err, ErrDeadlock)
}

func TestWaitersThatWaitForEachOtherAreTold(t *testing.T) {
	t.Parallel()
	ctx, c := within(t), open(t, newURL(t))
	var both, done sync.WaitGroup
	both.Add(2)
	results := make([]error, 2)
	for i, names := range [][2]string{{"a", "b"}, {"b", "a"}} {
		done.Add(1)
		go func() {
			defer done.Done()
			results[i] = c.Lock(names[0]).Do(ctx, func(ctx context.Context) error {
				both.Done()
				both.Wait()
				return c.Lock(names[1]).Do(ctx, func(context.Context) error { return nil })
			})
		}()
	}
	done.Wait()
	if errors.Is(results[0], ErrDeadlock) == errors.Is(results[1], ErrDeadlock) || results[0] != nil && results[1] != nil {
		t.Fatal(results)
	}
}

func TestTickets(t *testing.T) {
	t.Parallel()
	url := newURL(t)
	ctx, c, other := within(t), open(t, url), open(t, url)
	guard := acquire(t, c.Lock("x", ForTicket()))
	ticket, err := guard.Ticket(ctx)
	must(t, err)
	expect(t, guard.Err(), ErrReleased)
	left, err := other.RenewTicket(ctx, ticket)
	if must(t, err); left <= 0 {
		t.Fatal(left)
	}
	resumed, err := other.Resume(ctx, ticket)
	must(t, err)
	if must(t, resumed.Err()); resumed.Token() != guard.Token() {
		t.Fatal(resumed.Token())
	}
	ticket, err = resumed.Ticket(ctx)
	must(t, err)
	if held, err := c.ReleaseTicket(ctx, ticket); !held {
		t.Fatal(err)
	}
	_, err = c.Resume(ctx, ticket)
	expect(t, err, ErrLost)
}

func TestOtherOperations(t *testing.T) {
	t.Parallel()
	ctx, c := within(t), open(t, newURL(t))
	must(t, c.Init(ctx))
	found, err := c.Capabilities(ctx)
	if must(t, err); found.Store != "SQLite" || !found.Tokens {
		t.Fatalf("%+v", found)
	}
	report, err := c.Doctor(ctx, TTL(time.Second))
	if must(t, err); !report.Safe || len(report.Findings) == 0 {
		t.Fatalf("%+v", report)
	}
	guard := acquire(t, c.Lock("x"))
	expect(t, c.WaitFree(ctx, "x", Wait(10*time.Millisecond)), ErrHeld)
	release(t, guard)
	must(t, c.WaitFree(ctx, "x"))
	if swept, err := c.Sweep(ctx, "x", 0, DryRun()); err != nil || !swept {
		t.Fatal(swept, err)
	}
}

func TestInvalidRequestsNameTheCause(t *testing.T) {
	t.Parallel()
	ctx, c := within(t), open(t, newURL(t))
	guard := acquire(t, c.Lock("kept"))
	for text, lock := range map[string]*Lock{
		"TTL is -1s":        c.Lock("x", TTL(-time.Second)),
		"`ttl` is not from": c.Lock("x", TTL(time.Millisecond)),
		"fence":             c.Lock("x", Fence(1)),
		"not valid UTF-8":   c.Lock("x\xff"),
		"longer than":       c.Lock("x", Note(string(make([]byte, maxLine)))),
		"not_a_store":       open(t, "not_a_store").Lock("x"),
		"`permits`":         c.Semaphore("x", 65),
		"a hold of 0 locks": c.LockAll(nil),
		"MaxHold is 9000h0": c.Lock("x", MaxHold(9_000*time.Hour)),
	} {
		_, err := lock.Acquire(ctx)
		expectText(t, err, text)
	}
	expectText(t, c.Object("s3://b/x").Put(ctx, nil, 0), "token is 0")
	expect(t, guard.ReleaseWithCooldown(ctx, 9_000*time.Hour), ErrInvalid)
	must(t, guard.Err())
	release(t, guard)
}

// Without String, fmt would print kilobytes of the buffers of the agent, and the URL of the store.
func TestNothingPrintsTheStoreOrBuffers(t *testing.T) {
	t.Parallel()
	c := open(t, newURL(t))
	guard := acquire(t, c.Lock("x"))
	want := fmt.Sprintf("leasehold.Guard(x, token %d, held)", guard.Token())
	for _, verb := range []string{"%v", "%+v", "%#v", "%s"} {
		for value, expected := range map[any]string{
			c: "leasehold.Client", c.Lock("x"): "leasehold.Lock(x)", c.Election("e"): "leasehold.Lock(e)",
			guard: want, c.Object("s3://id:secret@bucket/x"): "leasehold.Object",
		} {
			if got := fmt.Sprintf(verb, value); got != expected {
				t.Errorf("%s: %s", verb, got)
			}
		}
		if all := fmt.Sprintf(verb, *c.RWLock("r")); strings.Contains(all, c.store) || len(all) > 200 {
			t.Errorf("%s: %s", verb, all)
		}
	}
	release(t, guard)
	if got := fmt.Sprint(guard); !strings.HasSuffix(got, "over)") {
		t.Error(got)
	}
}

// The locks are taken by many goroutines of two clients, each with its agent.
func TestManyAcquisitions(t *testing.T) {
	t.Parallel()
	url := newURL(t)
	clients := [2]*Client{open(t, url), open(t, url)}
	var latest, inside atomic.Int64
	var done sync.WaitGroup
	for worker := range 20 {
		done.Add(1)
		go func() {
			defer done.Done()
			lock := clients[worker%2].Lock("x")
			for range 20 {
				err := lock.Do(context.Background(), func(ctx context.Context) error {
					token := GuardFrom(ctx).Token()
					if inside.Add(1) != 1 || latest.Swap(token) >= token {
						return fmt.Errorf("token %d: another holder, or a higher token", token)
					}
					defer inside.Add(-1)
					return GuardFrom(ctx).Err()
				})
				if err != nil {
					t.Error(err)
					return
				}
			}
		}()
	}
	done.Wait()
}

func TestAClosedClientHoldsNothing(t *testing.T) {
	t.Parallel()
	url := newURL(t)
	c := open(t, url)
	guard := acquire(t, c.Lock("x", TTL(time.Hour)))
	waiting := make(chan error)
	go func() {
		_, err := c.Lock("x").Acquire(context.Background())
		waiting <- err
	}()
	for a := current(t, c); a.isQuiet(); {
	}
	must(t, c.Close())
	expect(t, <-waiting, ErrClosed)
	waitFor(t, guard.Lost())
	expectLoss(t, guard.Err(), LossClosed)
	expectLoss(t, guard.Release(within(t)), LossClosed)
	_, err := c.Lock("y").Acquire(within(t))
	expect(t, err, ErrClosed)
	must(t, c.Close())
	isFree(t, url, "x")
}

func TestOtherChildrenDoNotInheritThePipes(t *testing.T) {
	t.Parallel()
	if _, err := os.Stat("/proc/self/fd"); err != nil {
		t.Skip("there is no /proc")
	}
	a := acquire(t, open(t, newURL(t)).Lock("x")).agent
	files, err := exec.Command("ls", "-l", "/proc/self/fd").Output()
	must(t, err)
	for _, end := range []*os.File{a.stdin, a.stdout} {
		own, err := end.Stat()
		must(t, err)
		pipe := fmt.Sprintf("pipe:[%d]", own.Sys().(*syscall.Stat_t).Ino)
		if strings.Contains(string(files), pipe) {
			t.Fatalf("%s is in\n%s", pipe, files)
		}
	}
}

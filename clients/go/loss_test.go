package leasehold

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

func (a *agent) signal(t *testing.T, signal syscall.Signal) {
	t.Helper()
	must(t, a.process.Process.Signal(signal))
}

func TestAHoldEndsAtItsLimit(t *testing.T) {
	t.Parallel()
	ctx, c := within(t), open(t, newURL(t))
	guard := acquire(t, c.Lock("x", MaxHold(time.Second), TTL(5*time.Second)))
	waitFor(t, guard.Lost())
	expectLoss(t, guard.Err(), LossLimit)
	expectLoss(t, context.Cause(guard.Context()), LossLimit)
	release(t, acquire(t, c.Lock("x")))
	status, err := c.Status(ctx, "x")
	if must(t, err); status.History[1].End != "limit" || status.History[1].Holder.MaxHold != time.Second {
		t.Fatalf("%+v", status)
	}
}

func TestTheDeathOfTheAgentIsALossAtOnce(t *testing.T) {
	t.Parallel()
	ctx, c := within(t), open(t, newURL(t))
	guard := acquire(t, c.Lock("x", TTL(time.Hour)))
	waiting := make(chan error)
	go func() {
		_, err := c.Lock("x").Acquire(context.Background())
		waiting <- err
	}()
	a := current(t, c)
	for a.isQuiet() {
	}
	a.signal(t, syscall.SIGKILL)
	waitFor(t, guard.Lost())
	expectLoss(t, guard.Err(), LossAgent)
	expectLoss(t, guard.Release(ctx), LossAgent)
	expect(t, <-waiting, ErrAgent)
	// This process may still be in a step that it began after a check, so others do not get the lock. A new agent
	// serves the next request.
	_, err := c.Lock("x").TryAcquire(ctx)
	expect(t, err, ErrHeld)
	release(t, acquire(t, c.Lock("y")))
}

// While agents die at random moments, at most one goroutine has the lock, and tokens rise.
func TestAgentsThatAreKilled(t *testing.T) {
	t.Parallel()
	url := newURL(t)
	clients := [2]*Client{open(t, url), open(t, url)}
	var inside, latest, granted atomic.Int64
	ctx, stop := context.WithTimeout(context.Background(), 5*time.Second)
	defer stop()
	var done sync.WaitGroup
	for worker := range 6 {
		done.Add(1)
		go func() {
			defer done.Done()
			lock := clients[worker%2].Lock("x", TTL(500*time.Millisecond))
			for ctx.Err() == nil {
				guard, err := lock.Acquire(ctx)
				if err != nil {
					if !errors.Is(err, ErrAgent) && ctx.Err() == nil {
						t.Error(err)
					}
					continue
				}
				if inside.Add(1) != 1 {
					t.Error("there is another holder")
				}
				if token := guard.Token(); guard.Err() == nil && latest.Swap(token) >= token {
					t.Error("a higher token was granted before")
				}
				granted.Add(1)
				inside.Add(-1)
				_ = guard.Release(ctx)
			}
		}()
	}
	for ctx.Err() == nil {
		time.Sleep(time.Duration(rand.IntN(400)) * time.Millisecond)
		if a, err := clients[rand.IntN(2)].current(); err == nil && a != nil {
			a.kill()
		}
	}
	done.Wait()
	t.Logf("%d grants", granted.Load())
}

func TestAStoppedAgentIsALossAtTheDeadline(t *testing.T) {
	t.Parallel()
	url := newURL(t)
	ctx, c := within(t), open(t, url)
	guard := acquire(t, c.Lock("x", TTL(2*time.Second)))
	a := current(t, c)
	a.signal(t, syscall.SIGSTOP)
	renewing := make(chan error)
	go func() { renewing <- guard.Renew(ctx) }()
	// No message can come, so this process finds the loss by itself.
	waitFor(t, guard.Lost())
	expectLoss(t, guard.Err(), LossExpired)
	expectLoss(t, <-renewing, LossExpired)
	a.signal(t, syscall.SIGCONT)
	// The agent continues and reads the release. The lock is free, and the loss is final.
	isFree(t, url, "x")
	expectLoss(t, guard.Release(ctx), LossExpired)
}

func TestAnAgentThatDoesNotRespondIsKilled(t *testing.T) {
	t.Parallel()
	c := open(t, newURL(t))
	guard := acquire(t, c.Lock("x"))
	a := current(t, c)
	a.signal(t, syscall.SIGSTOP)
	call, err := a.send(fields{"op": "status", "store": c.store, "lock": "x"})
	must(t, err)
	_, err = call.next(within(t), time.Millisecond)
	expectText(t, err, "does not respond")
	expectLoss(t, guard.Err(), LossAgent)
}

// The work under a lost lock may still run, so an agent that is given up must not release its locks.
func TestAnAgentThatIsGivenUpReleasesNothing(t *testing.T) {
	t.Parallel()
	c := open(t, newURL(t))
	guard := acquire(t, c.Lock("x", TTL(time.Hour)))
	guard.agent.fail("a test")
	waitFor(t, guard.agent.ended)
	expectLoss(t, guard.Err(), LossAgent)
	_, err := c.Lock("x").TryAcquire(within(t))
	expect(t, err, ErrHeld)
}

// Simulates a machine that has just woken from sleep, when no timer has fired yet.
func TestACheckReadsBothClocks(t *testing.T) {
	t.Parallel()
	url := newURL(t)
	c := open(t, url)
	for _, jump := range []moment{{boot: 3_600_000_000}, {wall: 3_600_000_000}} {
		guard := acquire(t, c.Lock("x", TTL(time.Hour)))
		a := guard.agent
		a.mu.Lock()
		a.clocks = func() moment { at := now(); return moment{at.boot + jump.boot, at.wall + jump.wall} }
		err := a.check(guard.hold)
		a.clocks = now
		a.mu.Unlock()
		expectLoss(t, err, LossExpired)
		expectLoss(t, guard.Err(), LossExpired)
		isFree(t, url, "x")
	}
}

func TestAnUnreadRenewalIsNoLoss(t *testing.T) {
	t.Parallel()
	guard := acquire(t, open(t, newURL(t)).Lock("x", TTL(3*time.Second)))
	a, h := guard.agent, guard.hold
	// The goroutine that reads waits for the mutex, while the agent renews.
	a.mu.Lock()
	for first := h.deadline; first.left(now()) > -100_000; time.Sleep(50 * time.Millisecond) {
		if h.deadline != first {
			t.Error("it was read")
			break
		}
	}
	err := a.check(h)
	a.mu.Unlock()
	must(t, err)
	release(t, guard)
}

func TestARenewalThatTheAgentRefusesEndsTheHold(t *testing.T) {
	t.Parallel()
	// The agent sends no event about the loss.
	refusal := step{"to": "renew", "ev": "error", "kind": "lost", "message": "evicted", "help": []any{}}
	c := scripted(t, wants("acquire"), grant(nil), wants("renew"), step{"send": []any{refusal}}, step{"end": []any{}})
	guard := acquire(t, c.Lock("x"))
	for _, err := range []error{guard.Renew(within(t)), guard.Err(), context.Cause(guard.Context())} {
		expectText(t, err, "evicted")
	}
}

func TestAHolderThatViolatesTheProtocolIsTheDeathOfTheAgent(t *testing.T) {
	t.Parallel()
	for _, heldBy := range []any{"x", []any{1}, step{"holder": "x"}, step{"token": "x"}, step{"held_ms": 1.5}} {
		refusal := step{"to": "acquire", "ev": "error", "kind": "held", "message": "held", "held_by": heldBy}
		c := scripted(t, wants("acquire"), step{"send": []any{refusal}}, step{"end": []any{}})
		_, err := c.Lock("x").Acquire(within(t))
		expectText(t, err, "violates the protocol")
	}
}

// A loss that arrives with the grant, before there is a guard, ends the context of the guard.
func TestALossThatArrivesWithTheGrant(t *testing.T) {
	t.Parallel()
	both := grant(nil)
	both["send"] = append(both["send"].([]any), step{"hold": 1, "ev": "lost", "reason": "ended", "message": "evicted"})
	guard := acquire(t, scripted(t, wants("acquire"), both, step{"end": []any{}}).Lock("x"))
	waitFor(t, guard.Context().Done())
	expectLoss(t, context.Cause(guard.Context()), LossEnded)
	waitFor(t, guard.Lost())
}

// If this process was stopped before it read the grant, no work begins under it.
func TestAGrantThatHasPassed(t *testing.T) {
	t.Parallel()
	c := scripted(t, wants("acquire"), grant(step{"clocks": step{"ago_us": 60_000_000}}), step{"end": []any{"release"}})
	err := c.Lock("x").Do(within(t), func(context.Context) error {
		t.Error("the work began")
		return nil
	})
	expectLoss(t, err, LossExpired)
}

func TestAStoppedHostKeepsItsLock(t *testing.T) {
	t.Parallel()
	h := startHost(t, newURL(t), 2*time.Second)
	must(t, h.process.Process.Signal(syscall.SIGSTOP))
	time.Sleep(3 * time.Second) // Longer than the lease.
	must(t, h.process.Process.Signal(syscall.SIGCONT))
	if found := h.check(); found != "held" {
		t.Fatal(found)
	}
}

func TestAStopOfBothIsALoss(t *testing.T) {
	t.Parallel()
	url := newURL(t)
	c := open(t, url)
	h := startHost(t, url, 2*time.Second)
	stopAgent(t, h.agent, c)
	must(t, h.process.Process.Signal(syscall.SIGSTOP))
	other := acquire(t, c.Lock("x")) // When the lease has ended.
	// Continues the host first, so that its agent cannot notify it.
	must(t, h.process.Process.Signal(syscall.SIGCONT))
	if found := h.check(); found != "lost expired" {
		t.Fatal(found)
	}
	must(t, syscall.Kill(h.agent, syscall.SIGCONT))
	if found := h.check(); found != "lost expired" {
		t.Fatal(found)
	}
	must(t, other.Err())
}

// stopAgent stops an agent, but not while it writes, because no other process could write to the file until it
// continues.
func stopAgent(t *testing.T, pid int, c *Client) {
	for {
		must(t, syscall.Kill(pid, syscall.SIGSTOP))
		guard, err := c.Lock("probe", StoreTimeout(2*time.Second)).TryAcquire(within(t))
		if err == nil {
			release(t, guard)
			return
		}
		must(t, syscall.Kill(pid, syscall.SIGCONT))
	}
}

func TestAKilledHostFreesItsLock(t *testing.T) {
	t.Parallel()
	url := newURL(t)
	h := startHost(t, url, time.Hour)
	must(t, h.process.Process.Kill())
	isFree(t, url, "x")
}

package leasehold

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"time"
)

// releaseTimeout is how long [Lock.Do] waits for the response to a release if its context has ended.
const releaseTimeout = 5 * time.Second

// Guard is a lock that is held. The agent renews it until it is released. Several goroutines may use a guard. A guard
// that is never released is held until its client is closed or the process ends.
type Guard struct {
	agent *agent
	hold  *hold
	lock  *Lock // nil for a lock that was resumed
	ctx   context.Context
	outer *Guard // the guard to which the context of the acquisition belongs
}

type guardKey struct{}

// GuardFrom returns the guard that ctx belongs to: the innermost one, if there are several. It returns nil if ctx
// belongs to none.
func GuardFrom(ctx context.Context) *Guard {
	guard, _ := ctx.Value(guardKey{}).(*Guard)
	return guard
}

// guard returns the guard of the lock that the request was granted.
func (c *call) guard(ctx context.Context, answer message, lock *Lock) (*Guard, error) {
	if err := c.read(answer, "held", &nothing{}); err != nil {
		return nil, err
	}
	g := &Guard{agent: c.agent, hold: c.hold, lock: lock, outer: GuardFrom(ctx)}
	ending, cancel := context.WithCancelCause(ctx)
	g.ctx = context.WithValue(ending, guardKey{}, g)
	g.agent.mu.Lock()
	defer g.agent.mu.Unlock()
	if err := g.agent.check(g.hold); err != nil { // The deadline may have passed before the grant was read.
		cancel(err)
	}
	g.hold.cancel = cancel
	return g, nil
}

// String returns the name of the lock, its token, and whether it is held. It reads no clock.
func (g *Guard) String() string {
	g.agent.mu.Lock()
	defer g.agent.mu.Unlock()
	state := "held"
	if g.hold.over != nil {
		state = "over"
	}
	return fmt.Sprintf("leasehold.Guard(%s, token %d, %s)", g.hold.name, g.hold.token, state)
}

// GoString is [Guard.String].
func (g *Guard) GoString() string { return g.String() }

// Name returns the name of the lock. For a semaphore and a shared lock, it is the name of the permit. For several
// locks, it has their names, separated by commas.
func (g *Guard) Name() string { return g.hold.name }

// Token returns the fencing token: it is greater than the token of every earlier grant of this lock. Send it with every
// write, and let the resource refuse lower tokens. It is 0 if the store has no tokens, and for several locks: see
// [Guard.Tokens]. No token is 0.
func (g *Guard) Token() int64 { return g.hold.token }

// Tokens returns the token of each lock, by its name. It is empty if the store has no tokens.
func (g *Guard) Tokens() map[string]int64 {
	tokens := maps.Clone(g.hold.tokens)
	if len(tokens) == 0 && g.hold.token != 0 {
		tokens = map[string]int64{g.hold.name: g.hold.token}
	}
	return tokens
}

// Context returns a context for the work under the lock. It is derived from the context of the acquisition, and also
// ends when the lock is lost, before its lease ends, with the [*LostError] as its cause (see [context.Cause]), and when
// the guard is released.
//
// An acquisition with this context tells the agent that it waits while it has this lock, so that deadlocks are found.
func (g *Guard) Context() context.Context { return g.ctx }

// Lost returns a channel that is closed when the lock is lost, before its lease ends. It stays open if the guard is
// released.
func (g *Guard) Lost() <-chan struct{} { return g.hold.lost }

// Err checks that the lock is still held. It returns nil, a [*LostError], or [ErrReleased]. It is local and takes some
// microseconds. Call it before each step that must not be done twice: it also detects a loss if the machine has just
// woken from sleep and no timer has run yet.
func (g *Guard) Err() error {
	g.agent.mu.Lock()
	defer g.agent.mu.Unlock()
	return g.agent.check(g.hold)
}

// Remaining returns how long the lock is certain to be held without another renewal, or 0 if it is not held.
func (g *Guard) Remaining() time.Duration {
	g.agent.mu.Lock()
	defer g.agent.mu.Unlock()
	return g.remaining()
}

func (g *Guard) remaining() time.Duration {
	if g.agent.check(g.hold) != nil {
		return 0
	}
	return microseconds(max(0, g.hold.deadline.left(g.agent.clocks())))
}

// Renew renews the lease now, and waits for the response. It is correct even if both clocks of the machine have stopped
// in the meantime, as in a serverless function that was frozen. It returns a [*LostError] if the lock was lost.
func (g *Guard) Renew(ctx context.Context) error {
	call, err := g.begin(fields{"op": "renew"}, func() error { return g.agent.check(g.hold) })
	if err != nil {
		return err
	}
	call.lost = g.hold
	answer, err := call.next(ctx, 0)
	if err == nil {
		err = call.read(answer, "renewed", &nothing{})
	}
	if err != nil {
		var loss *LostError
		if errors.As(err, &loss) {
			// The agent may not report the loss.
			g.agent.mu.Lock()
			defer g.agent.mu.Unlock()
			g.agent.lose(g.hold, loss)
		}
		return err
	}
	return g.Err()
}

// begin sends a request about the hold, if allowed returns nil.
func (g *Guard) begin(request fields, allowed func() error) (*call, error) {
	g.agent.mu.Lock()
	defer g.agent.mu.Unlock()
	if err := allowed(); err != nil {
		return nil, err
	}
	request["hold"] = g.hold.number
	return g.agent.begin(request)
}

// Release releases the lock. It returns nil if the lock was held until now, a [*LostError] if it was lost before, and
// [ErrReleased] if it was released before. The guard is over in any case, except after [ErrInvalid]. If ctx ends before the response, the release
// continues. After an error of the store, the agent retries, or the lease ends.
func (g *Guard) Release(ctx context.Context) error { return g.release(ctx, 0) }

// ReleaseWithCooldown releases the lock like [Guard.Release]. The lock is not granted again until this time has passed
// since its grant.
func (g *Guard) ReleaseWithCooldown(ctx context.Context, cooldown time.Duration) error {
	return g.release(ctx, cooldown)
}

func (g *Guard) release(ctx context.Context, cooldown time.Duration) error {
	request := fields{"op": "release"}
	if cooldown < 0 || cooldown > longestDuration {
		return outOfRange("the cooldown", cooldown)
	}
	if cooldown > 0 {
		request["cooldown_ms"] = milliseconds(cooldown)
	}
	var left time.Duration
	call, err := g.begin(request, func() error {
		left = g.remaining() // Detects a loss that was not noticed yet.
		if g.hold.over == nil {
			g.agent.end(g.hold)
			return nil
		}
		return g.hold.over
	})
	if err != nil {
		return err
	}
	ctx, cancel := g.outlasting(ctx)
	defer cancel()
	// The agent tries to record a cooldown until the lease ends.
	answer, err := call.next(ctx, left+answerTimeout)
	if err != nil {
		return err
	}
	var released wasHeld
	if err := call.read(answer, "released", &released); err != nil {
		return err
	}
	if !released.WasHeld {
		return newLost(LossEnded, fmt.Sprintf("lock `%s` was lost before it was released", g.Name()))
	}
	return nil
}

// Ticket ends this guard, and returns its lock as a ticket, which another process can [Client.Resume]. A ticket is a
// secret. Use the option [ForTicket] for such a lock. If ctx ends first, the lock is released.
func (g *Guard) Ticket(ctx context.Context) (string, error) {
	call, err := g.begin(fields{"op": "ticket"}, func() error {
		if err := g.agent.check(g.hold); err != nil {
			return err
		}
		g.agent.end(g.hold)
		return nil
	})
	if err != nil {
		return "", err
	}
	ctx, cancel := g.outlasting(ctx)
	defer cancel()
	answer, err := call.next(ctx, answerTimeout)
	if err != nil {
		return "", err
	}
	var passed struct {
		Ticket string `json:"ticket"`
	}
	err = call.read(answer, "ticket", &passed)
	return passed.Ticket, err
}

// outlasting returns a context with the deadline of ctx that does not end with the guard.
func (g *Guard) outlasting(ctx context.Context) (context.Context, context.CancelFunc) {
	for guard := GuardFrom(ctx); guard != nil; guard = guard.outer {
		if guard == g {
			if deadline, limited := ctx.Deadline(); limited {
				return context.WithDeadline(context.WithoutCancel(ctx), deadline)
			}
			return context.WithoutCancel(ctx), func() {}
		}
	}
	return ctx, func() {}
}

// do calls work under the lock, and releases the lock, with a cooldown if work returned nil.
func (g *Guard) do(work func(context.Context) error, cooldown time.Duration) error {
	if err := g.Err(); err != nil {
		return err
	}
	completed := false
	defer func() {
		if !completed { // work panicked, or ended its goroutine.
			_ = g.conclude(errors.New("work did not return"), 0)
		}
	}()
	err := work(g.ctx)
	completed = true
	return g.conclude(err, cooldown)
}

// conclude releases the lock after the work has returned an error or nil. It returns the error of the whole.
func (g *Guard) conclude(worked error, cooldown time.Duration) error {
	if worked != nil {
		cooldown = 0 // Another process may run the job in this period.
	}
	ctx := context.WithoutCancel(g.ctx)
	if g.ctx.Err() != nil {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, releaseTimeout)
		defer cancel()
	}
	err := g.release(ctx, cooldown)
	switch {
	case err == nil, errors.Is(err, ErrReleased), errors.Is(worked, ErrLost):
		return worked
	case errors.Is(err, ErrLost) && worked == nil:
		return err
	case errors.Is(err, ErrLost):
		return fmt.Errorf("%w; the work under it returned: %w", err, worked)
	case worked == nil && cooldown > 0:
		return err // The run could not be recorded.
	}
	slog.Warn("a lock was not released and stays held until its lease ends", "lock", g.Name(), "error", err)
	return worked
}

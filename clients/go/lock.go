package leasehold

import (
	"context"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"time"
)

// maxHolding is how many holds a request names.
const maxHolding = 8

// Lock is a named lock, with the settings for acquiring it. Several goroutines may use it.
type Lock struct {
	client   *Client
	names    []string
	settings settings
}

// Name returns the name of the lock. For several locks, it returns their names, separated by commas.
func (l *Lock) Name() string { return strings.Join(l.names, ", ") }

// String returns the name in a form for logs.
func (l *Lock) String() string { return fmt.Sprintf("leasehold.Lock(%s)", l.Name()) }

// GoString is [Lock.String].
func (l *Lock) GoString() string { return l.String() }

// Acquire waits for the lock. Release the guard when the work is done:
//
//	guard, err := lock.Acquire(ctx)
//	if err != nil {
//		return err
//	}
//	defer guard.Release(context.WithoutCancel(ctx))
//
// If ctx ends first, Acquire returns an error that wraps ctx.Err(), and the lock is not held afterwards. After [Wait],
// it returns [ErrHeld]. The context of the guard is derived from ctx: so limit the wait with [Wait], and not with a
// deadline of ctx, unless the deadline also applies to the work.
//
// If ctx belongs to a guard that has this lock (see [Guard.Context]), Acquire returns [ErrDeadlock]: a lock is not
// reentrant.
func (l *Lock) Acquire(ctx context.Context) (*Guard, error) {
	return l.acquire(ctx, l.settings)
}

// TryAcquire acquires the lock if it is free now. Otherwise it returns [ErrHeld].
func (l *Lock) TryAcquire(ctx context.Context) (*Guard, error) {
	s := l.settings
	s.fields = maps.Clone(s.fields)
	s.fields["wait_ms"] = int64(0)
	return l.acquire(ctx, s)
}

// Do acquires the lock, calls work, and releases the lock. It returns the error of work.
//
// If the lock is lost, the context of work ends, with the [*LostError] as its cause. Do waits until work returns, and
// then returns an error that wraps [ErrLost], even if work returned nil. [GuardFrom] returns the guard:
//
//	err := lock.Do(ctx, func(ctx context.Context) error {
//		return save(ctx, leasehold.GuardFrom(ctx).Token())
//	})
func (l *Lock) Do(ctx context.Context, work func(context.Context) error) error {
	guard, err := l.Acquire(ctx)
	if err != nil {
		return err
	}
	return guard.do(work, 0)
}

func (l *Lock) acquire(ctx context.Context, s settings) (*Guard, error) {
	call, answer, err := l.ask(ctx, "acquire", s)
	if err != nil {
		return nil, err
	}
	return call.guard(ctx, answer, l)
}

// ask sends a request for the lock, and waits for its response.
func (l *Lock) ask(ctx context.Context, op string, s settings) (*call, message, error) {
	if s.err != nil {
		return nil, message{}, s.err
	}
	wait, limited := s.duration("wait_ms")
	if !limited || wait > 0 {
		if err := l.forbidNested(ctx); err != nil {
			return nil, message{}, err
		}
	}
	agent, err := l.client.running(ctx)
	if err != nil {
		return nil, message{}, err
	}
	request := l.client.request(op, "")
	maps.Copy(request, s.fields)
	if holding := holdingFor(ctx, agent); len(holding) > 0 {
		request["holding"] = holding
	}
	call, err := agent.send(request)
	if err != nil {
		return nil, message{}, err
	}
	// The agent enforces the time limit, and tries to reach the store for as long as the request allows.
	var limit time.Duration
	if limited {
		timeout, _ := s.duration("store_timeout_ms")
		limit = wait + timeout + answerTimeout
	}
	answer, err := call.final(ctx, limit, s.onWaiting)
	return call, answer, err
}

// forbidNested refuses a wait that cannot end: ctx belongs to guards that have the lock, and ends with them.
func (l *Lock) forbidNested(ctx context.Context) error {
	permits, limited := l.settings.fields["permits"].(int)
	if !limited {
		permits = 1
	}
	held := 0
	for guard := GuardFrom(ctx); guard != nil; guard = guard.outer {
		if guard.lock != nil && guard.lock.excludes(l) && guard.Err() == nil {
			held++
		}
	}
	if held == 0 || held < permits {
		return nil
	}
	return failed(ErrDeadlock, fmt.Sprintf("this context holds `%s` and would wait for itself", l.Name()),
		"a lock is not reentrant: pass the guard to the inner function instead")
}

// excludes reports whether a hold of this lock uses up what the other one needs.
func (l *Lock) excludes(other *Lock) bool {
	shared := l.settings.fields["mode"] == "shared" && other.settings.fields["mode"] == "shared"
	return !shared && l.client.store == other.client.store &&
		slices.ContainsFunc(l.names, func(name string) bool { return slices.Contains(other.names, name) })
}

// holdingFor returns the numbers of the holds that ctx belongs to, which the caller keeps while it waits. The innermost
// one comes first.
func holdingFor(ctx context.Context, agent *agent) []int64 {
	var numbers []int64
	for guard := GuardFrom(ctx); guard != nil && len(numbers) < maxHolding; guard = guard.outer {
		if guard.agent == agent && guard.Err() == nil {
			numbers = append(numbers, guard.hold.number)
		}
	}
	return numbers
}

// RWLock is a lock with either several shared holders or one exclusive holder.
type RWLock struct {
	// Shared is held together with other shared holders.
	Shared *Lock
	// Exclusive is held alone.
	Exclusive *Lock
}

// Election is a lock whose holder is the leader, and whose token is the term. To campaign, use [Lock.Acquire] or
// [Lock.Do].
type Election struct{ *Lock }

// Leader reads the leader from the store. It returns nil if there is none. The result may be outdated.
func (e *Election) Leader(ctx context.Context) (*Leader, error) {
	var found leaderWire
	err := e.client.ask(ctx, e.client.request("leader", e.Name()), nil, answerTimeout, "leader", &found)
	if err != nil {
		return nil, err
	}
	return found.leader(), nil
}

// Observe returns the current leader, and then every change, until the loop or ctx ends. It skips leaders that were
// replaced in the meantime. The leader is nil if there is none.
func (e *Election) Observe(ctx context.Context) iter.Seq2[*Leader, error] {
	return func(yield func(*Leader, error) bool) {
		err := e.client.each(ctx, e.client.request("observe", e.Name()), 0, func(call *call, answer message) (bool, error) {
			var found leaderWire
			if err := call.read(answer, "leader", &found); err != nil {
				return false, err
			}
			return yield(found.leader(), nil), nil
		})
		if err != nil {
			yield(nil, err)
		}
	}
}

// Once runs job, unless it already ran in this period, on any machine. It returns the earlier run, or nil if the job ran
// now. If another process runs the job, Once waits for it: limit this with [Wait].
//
//	earlier, err := client.Once(ctx, "nightly", 12*time.Hour, report)
//
// If the job returns an error, it may run again in the same period. So may a job that succeeds, if Once then returns an
// error because the lock was lost or the run could not be recorded. The period begins when the job starts.
func (c *Client) Once(
	ctx context.Context, name string, per time.Duration, job func(context.Context) error, options ...Option,
) (*EarlierRun, error) {
	lock := c.Lock(name, append(slices.Clone(options), setDuration("period", "per", per))...)
	call, answer, err := lock.ask(ctx, "once", lock.settings)
	if err != nil {
		return nil, err
	}
	if answer.event == "already_ran" {
		var earlier earlierRunWire
		if err := call.read(answer, "already_ran", &earlier); err != nil {
			return nil, err
		}
		return earlier.run(), nil
	}
	guard, err := call.guard(ctx, answer, lock)
	if err != nil {
		return nil, err
	}
	return nil, guard.do(job, per)
}

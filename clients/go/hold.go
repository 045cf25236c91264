package leasehold

import (
	"context"
	"fmt"
	"strings"
)

// hold is a lock that the agent holds for this process. The agent's mutex guards it.
type hold struct {
	number   int64
	name     string
	token    int64
	tokens   map[string]int64
	deadline deadline
	over     error // a *LostError, or ErrReleased; nil while the lock is held
	lost     chan struct{}
	cancel   context.CancelCauseFunc // of the guard's context; nil if there is no guard yet
}

func newHold(held *heldMessage, now moment) (*hold, error) {
	until, err := held.deadline(now)
	if err != nil || held.Hold == nil || held.Lock == nil {
		return nil, errGarbage
	}
	h := &hold{number: int64(*held.Hold), name: *held.Lock, deadline: until, lost: make(chan struct{})}
	if len(held.Locks) > 1 {
		h.name = strings.Join(held.Locks, ", ")
	}
	if held.Token != nil {
		h.token = int64(*held.Token)
	}
	h.tokens = make(map[string]int64, len(held.Tokens))
	for lock, token := range held.Tokens {
		h.tokens[lock] = int64(token)
	}
	return h, nil
}

// renewed applies a renewal that was read. A late message about an earlier renewal changes nothing.
func (h *hold) renewed(until deadline) {
	if until.start.boot >= h.deadline.start.boot {
		h.deadline = until
	}
}

// expired returns the loss of a hold whose deadline has passed.
func (h *hold) expired() *LostError {
	if h.deadline.atLimit {
		return newLost(LossLimit, fmt.Sprintf("lock `%s` was lost: it was held for as long as its limit allows", h.name))
	}
	return newLost(LossExpired, fmt.Sprintf("lock `%s` was lost: its lease was not renewed in time", h.name))
}

// finish ends the hold for good. It reports whether the lock was held until now.
func (h *hold) finish(over error) bool {
	if h.over != nil {
		return false
	}
	h.over = over
	if h.cancel != nil {
		h.cancel(over)
	}
	return true
}

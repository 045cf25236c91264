package leasehold

import (
	"context"
	"encoding/json"
	"fmt"
	"time"
	"unicode/utf8"
)

// answerTimeout is how long an agent may take to respond to a request that does not wait for other holders. This is
// longer than a store may take.
const answerTimeout = 2 * time.Minute

// fields are the fields of a request.
type fields map[string]any

// line returns the request as a line.
func (f fields) line(id int64) ([]byte, error) {
	for _, value := range f {
		// JSON replaces other bytes, so that a name would become another one.
		if text, ok := value.(string); ok && !utf8.ValidString(text) {
			return nil, failed(ErrInvalid, fmt.Sprintf("%q is not valid UTF-8", text))
		}
		if texts, ok := value.([]string); ok {
			for _, text := range texts {
				if !utf8.ValidString(text) {
					return nil, failed(ErrInvalid, fmt.Sprintf("%q is not valid UTF-8", text))
				}
			}
		}
	}
	f["id"] = id
	line, err := json.Marshal(f)
	if err != nil {
		return nil, failed(ErrInvalid, err.Error())
	}
	// The agent would exit, and release all locks.
	if len(line) >= maxLine {
		return nil, failed(ErrLimit, fmt.Sprintf("the request is longer than %d bytes", maxLine))
	}
	return append(line, '\n'), nil
}

// what says what the request asks for.
func (f fields) what() string {
	for _, target := range []string{"lock", "locks", "object"} {
		if value, ok := f[target]; ok {
			return fmt.Sprintf("%s %q", f["op"], value)
		}
	}
	return fmt.Sprint(f["op"])
}

// outcome is a message for a request, or its error.
type outcome struct {
	message message
	err     error
}

// call is a request. The agent's mutex guards it.
type call struct {
	agent     *agent
	id        int64
	op        string
	what      string    // for errors
	outcomes  []outcome // what was not returned yet
	arrived   chan struct{}
	hold      *hold // the lock that was granted
	lost      *hold // a hold whose loss ends the wait
	abandoned bool
}

// deliver passes an outcome on. The caller has the agent's mutex.
func (c *call) deliver(arrived outcome) {
	if c.abandoned {
		return
	}
	c.outcomes = append(c.outcomes, arrived)
	select {
	case c.arrived <- struct{}{}:
	default:
	}
}

func (c *call) pop() (outcome, bool) {
	c.agent.mu.Lock()
	defer c.agent.mu.Unlock()
	if len(c.outcomes) == 0 {
		return outcome{}, false
	}
	first := c.outcomes[0]
	c.outcomes = c.outcomes[1:]
	return first, true
}

// next waits for the next message. It kills an agent that does not respond within the limit; 0 is no limit. If ctx ends
// first, the request is abandoned.
func (c *call) next(ctx context.Context, limit time.Duration) (message, error) {
	var late <-chan time.Time
	if limit > 0 {
		timer := time.NewTimer(limit)
		defer timer.Stop()
		late = timer.C
	}
	var lost <-chan struct{}
	if c.lost != nil {
		lost = c.lost.lost
	}
	for {
		if arrived, ok := c.pop(); ok {
			return arrived.message, arrived.err
		}
		select {
		case <-c.arrived:
		case <-ctx.Done():
			c.abandon()
			return message{}, interrupted(ctx, c.what)
		case <-lost:
			c.abandon()
			return message{}, c.lost.over
		case <-late:
			c.giveUp()
		}
	}
}

// giveUp kills an agent that does not respond.
func (c *call) giveUp() {
	c.agent.mu.Lock()
	defer c.agent.mu.Unlock()
	// This process may have been stopped in the meantime.
	c.agent.drain()
	if len(c.outcomes) == 0 {
		c.agent.die(failed(ErrAgent, "the agent does not respond"), LossAgent)
	}
}

// abandon abandons the request. If it was granted a lock, or is granted one later, the lock is released.
func (c *call) abandon() {
	a := c.agent
	a.mu.Lock()
	defer a.mu.Unlock()
	if c.abandoned {
		return
	}
	c.abandoned = true
	if c.hold != nil {
		a.release(c.hold)
	} else if a.pending[c.id] != nil && c.op != "release" {
		a.post(fields{"op": "cancel", "request": c.id})
	}
}

// final waits for the final response. It calls seen with each `waiting` message before it.
func (c *call) final(ctx context.Context, limit time.Duration, seen func(HolderInfo)) (message, error) {
	for {
		answer, err := c.next(ctx, limit)
		if err != nil || answer.event != "waiting" {
			return answer, err
		}
		var waiting struct {
			HeldBy holderInfoWire `json:"held_by"`
		}
		if err := c.read(answer, "waiting", &waiting); err != nil {
			return answer, err
		}
		if seen != nil {
			c.protect(func() { seen(waiting.HeldBy.info()) })
		}
	}
}

// protect calls a function of the user. If it panics, the request is abandoned.
func (c *call) protect(function func()) {
	completed := false
	defer func() {
		if !completed {
			c.abandon()
		}
	}()
	function()
	completed = true
}

// read decodes a message, which must have the expected event.
func (c *call) read(answer message, event string, into any) error {
	if answer.event == event && json.Unmarshal(answer.text, into) == nil {
		return nil
	}
	c.abandon()
	return failed(ErrAgent, fmt.Sprintf("the agent's response to %s violates the protocol", c.what))
}

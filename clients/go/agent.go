package leasehold

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"
)

const (
	// tick is the longest pause between two checks of the deadlines. Timers stop while the machine sleeps.
	tick = time.Second
	// maxUnsent is how much unsent data may wait for an agent that does not read, in bytes.
	maxUnsent = 16 << 20
	// exitTimeout is how long an agent may take to release its locks and exit.
	exitTimeout = 10 * time.Second
)

// agent is a running `leasehold agent`: docs/agent.md describes the protocol. One goroutine reads its messages, another
// one writes requests, and a timer watches the deadlines. mu guards all state. Code under mu never blocks.
type agent struct {
	mu      sync.Mutex
	process *exec.Cmd
	stdin   *os.File
	stdout  *os.File
	reading syscall.RawConn // of stdout
	buffer  []byte
	unread  []byte

	unsent  []byte
	writing int // the length of what is being written
	wake    sync.Cond
	written chan struct{} // closed when the goroutine that writes has ended

	lastID  int64
	pending map[int64]*call
	holds   map[int64]*hold
	watch   *time.Timer
	watchAt time.Time

	clocks func() moment // now, except in tests

	death  *Error        // nil while the agent is alive
	killer *time.Timer   // kills an agent that does not exit after its client was closed
	ended  chan struct{} // closed when the process and the goroutines have ended
}

// --- end -------------------------------------------------------------------------------------------------------------

// die marks the agent as dead: all holds are lost, and all requests fail. The caller has mu.
func (a *agent) die(death *Error, reason LossReason) {
	if a.death != nil {
		return
	}
	a.death = death
	if a.watch != nil {
		a.watch.Stop()
	}
	for _, h := range a.holds {
		a.lose(h, newLost(reason, fmt.Sprintf("lock `%s` was lost: %s", h.name, death.Message)))
	}
	for id, c := range a.pending {
		delete(a.pending, id)
		failure := *death
		failure.MaybeApplied = c.op == "put" || c.op == "update" || c.op == "answer"
		c.deliver(outcome{err: &failure})
	}
	// The goroutines end. Files are not closed here, because that would wait for the goroutines.
	now := time.Now()
	_ = a.stdout.SetReadDeadline(now)
	if death.Kind == ErrClosed {
		// Releases that were not written yet are written.
		_ = a.stdin.SetWriteDeadline(now.Add(exitTimeout))
		a.killer = time.AfterFunc(exitTimeout, a.kill)
	} else {
		// Before its stdin is closed: the work under a lost lock may still run, so the agent must not release its locks.
		a.kill()
		a.unsent = nil
		_ = a.stdin.SetWriteDeadline(now)
	}
	a.wake.Broadcast()
}

func (a *agent) kill() { _ = a.process.Process.Kill() }

// fail kills the agent.
func (a *agent) fail(reason string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.die(failed(ErrAgent, reason), LossAgent)
}

// close ends the agent, which releases all locks, and waits until it has ended.
func (a *agent) close() {
	a.mu.Lock()
	a.die(failed(ErrClosed, "the client was closed"), LossClosed)
	a.mu.Unlock()
	<-a.ended
}

func (a *agent) alive() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.death == nil
}

// --- requests --------------------------------------------------------------------------------------------------------

// send sends a request.
func (a *agent) send(fields fields) (*call, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.begin(fields)
}

// begin sends a request. The caller has mu.
func (a *agent) begin(fields fields) (*call, error) {
	if a.death != nil {
		failure := *a.death
		return nil, &failure
	}
	c := &call{agent: a, id: a.lastID + 1, op: fields["op"].(string), what: fields.what(), arrived: make(chan struct{}, 1)}
	line, err := fields.line(c.id)
	if err != nil {
		return nil, err
	}
	if len(a.unsent)+a.writing+len(line) > maxUnsent && c.op != "release" && c.op != "cancel" {
		return nil, failed(ErrLimit, "too many requests wait until the agent reads them")
	}
	a.lastID = c.id
	a.pending[c.id] = c
	a.unsent = append(a.unsent, line...)
	a.wake.Signal()
	return c, nil
}

// post sends a request whose response is ignored. The caller has mu.
func (a *agent) post(fields fields) {
	// The agent may be dead, and then its locks end with their leases.
	if c, err := a.begin(fields); err == nil {
		c.abandoned = true
	}
}

// write writes requests. Only this goroutine may block on the agent's stdin.
func (a *agent) write() {
	defer close(a.written)
	a.mu.Lock()
	defer a.mu.Unlock()
	for {
		for len(a.unsent) == 0 && a.death == nil {
			a.wake.Wait()
		}
		if len(a.unsent) == 0 {
			return
		}
		batch := a.unsent
		a.unsent, a.writing = nil, len(batch)
		a.mu.Unlock()
		_, err := a.stdin.Write(batch)
		a.mu.Lock()
		a.writing = 0
		if err != nil {
			a.unsent = nil
			a.drain() // The agent may have sent messages before its end.
			a.die(failed(ErrAgent, "the agent has ended"), LossAgent)
		}
	}
}

// --- messages --------------------------------------------------------------------------------------------------------

// read processes messages as they arrive.
func (a *agent) read() {
	_ = a.reading.Read(func(stdout uintptr) bool {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.drainFrom(stdout)
		return a.death != nil
	})
	a.fail("its messages cannot be read") // No effect, except if the file cannot be waited for.
	a.bury()
}

// bury closes the pipes, which ends the agent, and waits for its process.
func (a *agent) bury() {
	<-a.written
	_ = a.stdin.Close()
	_ = a.stdout.Close()
	_ = a.process.Wait()
	if a.killer != nil {
		a.killer.Stop()
	}
	close(a.ended)
}

// drain reads all messages that have arrived, without waiting for more. The caller has mu.
func (a *agent) drain() {
	if a.death != nil {
		return
	}
	// Unlike Read, Control does not wait for the goroutine that reads.
	if err := a.reading.Control(a.drainFrom); err != nil {
		a.die(failed(ErrAgent, "the agent's messages cannot be read"), LossAgent)
	}
}

func (a *agent) drainFrom(stdout uintptr) {
	a.takeLines()
	for a.death == nil {
		count, err := syscall.Read(int(stdout), a.buffer)
		switch {
		case err == syscall.EINTR:
			continue
		case err == syscall.EAGAIN:
			return
		case err != nil || count == 0:
			a.die(failed(ErrAgent, "the agent has ended"), LossAgent)
			return
		}
		a.unread = append(a.unread, a.buffer[:count]...)
		a.takeLines()
	}
}

func (a *agent) takeLines() {
	for a.death == nil {
		line, rest, found := bytes.Cut(a.unread, []byte("\n"))
		garbage := len(line) > maxLine
		if found && !garbage {
			a.unread = rest
			garbage = a.take(line) != nil
		}
		if garbage {
			a.die(failed(ErrAgent, "the agent sent a message that violates the protocol"), LossAgent)
		}
		if !found {
			return
		}
	}
}

// take processes a message.
func (a *agent) take(line []byte) error {
	head, err := readEnvelope(line)
	if err != nil {
		return err
	}
	if head.ID != nil {
		return a.takeResponse(head, line)
	}
	if *head.Event != "renewed" && *head.Event != "lost" {
		return nil // A later agent may send it.
	}
	if head.Hold == nil {
		return errGarbage
	}
	if *head.Event == "renewed" {
		return a.renewed(*head.Hold, line)
	}
	var news lostMessage
	if err := json.Unmarshal(line, &news); err != nil {
		return err
	}
	if h := a.holds[int64(*head.Hold)]; h != nil {
		a.lose(h, newLost(news.Reason, news.Message))
	}
	return nil
}

func (a *agent) renewed(number integer, line []byte) error {
	var news deadlineMessage
	if err := json.Unmarshal(line, &news); err != nil {
		return err
	}
	until, err := news.deadline(a.clocks())
	if h := a.holds[int64(number)]; err == nil && h != nil {
		h.renewed(until)
	}
	return err
}

func (a *agent) takeResponse(head envelope, line []byte) error {
	if string(head.ID) == "null" {
		var refusal errorMessage
		_ = json.Unmarshal(line, &refusal)
		a.die(failed(ErrAgent, "the agent rejected a message of this client: "+refusal.Message), LossAgent)
		return nil
	}
	var id integer
	if err := json.Unmarshal(head.ID, &id); err != nil {
		return err
	}
	c := a.pending[int64(id)]
	if c == nil {
		return errGarbage
	}
	arrived := outcome{message: message{*head.Event, bytes.Clone(line)}}
	switch event := *head.Event; {
	case event == "waiting", event == "names", event == "content", event == "leader" && c.op == "observe":
		c.deliver(arrived)
		return nil
	case event == "held":
		h, err := a.hold(line)
		if err != nil {
			return err
		}
		c.hold = h
	case event == "renewed" && head.Hold != nil:
		if err := a.renewed(*head.Hold, line); err != nil {
			return err
		}
	case event == "error":
		var refusal errorMessage
		if err := json.Unmarshal(line, &refusal); err != nil {
			return err
		}
		arrived.err = refusal.err()
	}
	delete(a.pending, c.id)
	c.deliver(arrived)
	if c.abandoned && c.hold != nil {
		a.release(c.hold)
	}
	return nil
}

// --- holds -----------------------------------------------------------------------------------------------------------

// hold registers a grant at once, because the next line may contain news about it.
func (a *agent) hold(line []byte) (*hold, error) {
	var held heldMessage
	if err := json.Unmarshal(line, &held); err != nil {
		return nil, err
	}
	now := a.clocks()
	h, err := newHold(&held, now)
	if err != nil || a.holds[h.number] != nil {
		return nil, errGarbage
	}
	a.holds[h.number] = h
	a.watchWithin(microseconds(h.deadline.left(now)))
	return h, nil
}

// check reads all messages that have arrived, because an unread renewal is not a loss, but the end of the agent is one.
// Then it compares the clocks with the deadline. It returns nil if the lock is certain to be held. The caller has mu.
func (a *agent) check(h *hold) error {
	a.drain()
	a.expire(h, a.clocks())
	return h.over
}

// expire marks the hold as lost if its deadline has passed.
func (a *agent) expire(h *hold, now moment) {
	if h.over != nil || h.deadline.left(now) > 0 {
		return
	}
	loss := h.expired()
	a.lose(h, loss)
	// The agent may be late too. It must not keep a lock that this process gave up. It does not renew it beyond the
	// limit, and the work may still run.
	if loss.Reason != LossLimit {
		a.post(fields{"op": "release", "hold": h.number})
	}
}

// lose marks a hold as lost. The caller has mu.
func (a *agent) lose(h *hold, loss *LostError) {
	delete(a.holds, h.number)
	if h.finish(loss) {
		close(h.lost)
	}
}

// end ends a hold before its release is sent. It reports whether the lock was held until now. The caller has mu.
func (a *agent) end(h *hold) bool {
	delete(a.holds, h.number)
	return h.finish(failed(ErrReleased, fmt.Sprintf("lock `%s` was released", h.name)))
}

// release releases a hold without waiting for the response. The caller has mu.
func (a *agent) release(h *hold) {
	if a.end(h) {
		a.post(fields{"op": "release", "hold": h.number})
	}
}

// watchWithin makes the timer check the deadlines within a duration. The caller has mu.
func (a *agent) watchWithin(pause time.Duration) {
	pause = max(0, min(tick, pause))
	at := time.Now().Add(pause)
	switch {
	case a.watch == nil:
		a.watch = time.AfterFunc(pause, a.look)
	case a.watchAt.IsZero() || at.Before(a.watchAt):
		a.watch.Reset(pause)
	default:
		return
	}
	a.watchAt = at
}

// look checks all deadlines.
func (a *agent) look() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.watchAt = time.Time{}
	a.drain()
	now := a.clocks()
	for _, h := range a.holds {
		a.expire(h, now)
	}
	if a.death != nil || len(a.holds) == 0 {
		return
	}
	next := int64(tick / time.Microsecond)
	for _, h := range a.holds {
		next = min(next, h.deadline.left(now))
	}
	a.watchWithin(microseconds(next))
}

package leasehold

import (
	"fmt"
	"time"
)

// longestDuration is the longest duration that the agent accepts.
const longestDuration = 366 * 24 * time.Hour

// Option is a setting of a lock or of a request. The error of a request names an option that does not apply to it.
type Option func(*settings)

// settings are the fields that options add to a request.
type settings struct {
	fields    fields
	onWaiting func(HolderInfo)
	err       error
}

// duration returns the duration that an option has set, and whether there is one.
func (s settings) duration(field string) (time.Duration, bool) {
	value, there := s.fields[field].(int64)
	return time.Duration(value) * time.Millisecond, there
}

func collect(options []Option) settings {
	s := settings{fields: fields{}}
	for _, option := range options {
		option(&s)
	}
	return s
}

func set(field string, value any) Option {
	return func(s *settings) { s.fields[field] = value }
}

func setDuration(field, name string, duration time.Duration) Option {
	return func(s *settings) {
		if duration < 0 || duration > longestDuration {
			s.err = outOfRange(name, duration)
		}
		s.fields[field+"_ms"] = milliseconds(duration)
	}
}

func outOfRange(name string, duration time.Duration) error {
	return failed(ErrInvalid, fmt.Sprintf("%s is %s: choose a duration from 0 to 366 days", name, duration))
}

// milliseconds rounds up.
func milliseconds(duration time.Duration) int64 {
	return int64((duration + time.Millisecond - 1) / time.Millisecond)
}

// TTL is how long others wait if this process dies: from 500 ms to 24 h. The default is 30 s.
func TTL(ttl time.Duration) Option { return setDuration("ttl", "TTL", ttl) }

// Wait is how long [Lock.Acquire], [Client.Once] and [Client.WaitFree] wait at most while another holder has the lock.
// After it, they return [ErrHeld]. 0 is one try. Without it, only the context limits the wait.
func Wait(limit time.Duration) Option { return setDuration("wait", "Wait", limit) }

// MaxHold is how long the lock is held at most. Then it is lost, with [LossLimit], and others get it when its lease has
// ended.
func MaxHold(limit time.Duration) Option { return setDuration("max_hold", "MaxHold", limit) }

// LockDelay is how much longer others wait after the lease of a dead holder has lapsed.
func LockDelay(delay time.Duration) Option { return setDuration("lock_delay", "LockDelay", delay) }

// StoreTimeout is how long the agent tries to reach a store that does not respond.
func StoreTimeout(limit time.Duration) Option {
	return setDuration("store_timeout", "StoreTimeout", limit)
}

// Note says to others what the holder does. leasehold keeps 200 characters.
func Note(note string) Option { return set("note", note) }

// Owner is the name of the holder for others. leasehold keeps 200 characters.
func Owner(owner string) Option { return set("owner", owner) }

// Barge lets an acquisition overtake earlier waiters.
func Barge() Option { return set("barge", true) }

// ForTicket is for a lock that is passed on with [Guard.Ticket]. The lease then does not end with the processes that
// acquired it.
func ForTicket() Option { return set("for_ticket", true) }

// Readers is how many shared holders a [RWLock] has at most: from 1 to 64. The default is 8. The first acquisition
// records the number in the store. One with another number returns a [*SizeError].
func Readers(readers int) Option { return set("readers", readers) }

// Value is what the leader of an election advertises, at most 1,024 characters.
func Value(value string) Option { return set("value", value) }

// OnWaiting calls seen while an acquisition waits: when the wait begins, and when the holder changes. It is called by
// the goroutine that waits.
func OnWaiting(seen func(HolderInfo)) Option {
	return func(s *settings) {
		s.onWaiting = seen
		s.fields["report_waiting"] = true
	}
}

// Reason is why [Client.Evict] evicts the holder. The history of the lock keeps it.
func Reason(reason string) Option { return set("reason", reason) }

// DryRun makes [Client.Sweep] only report what it would do.
func DryRun() Option { return set("dry_run", true) }

// Thorough makes [Client.Doctor] ask more questions.
func Thorough() Option { return set("thorough", true) }

// Fence is the token under which an object is read or updated. Later writes with lower tokens are refused.
func Fence(token int64) Option { return set("fence", token) }

// ContentType is the media type of an object that is written.
func ContentType(mediaType string) Option { return set("content_type", mediaType) }

// Attempts is how often [Object.Update] tries at most.
func Attempts(attempts int) Option { return set("attempts", attempts) }

// Within is how long [Object.Update] tries at most.
func Within(limit time.Duration) Option { return setDuration("within", "Within", limit) }

package leasehold

import "time"

// Holder is a process that holds, held or waits for a lock, by its own description. Another machine wrote these texts:
// check them before you print or use them.
type Holder struct {
	Name string
	Host string
	// PID is the process id: 0 for a ticket, and that of the agent for a program that uses a client.
	PID  int
	Note string
	// Value is what a leader advertises.
	Value string
	// MaxHold is the limit of the hold, from the grant on; 0 without one.
	MaxHold time.Duration
}

// HolderInfo describes the holder of a lock, according to the store. What is unknown is zero.
type HolderInfo struct {
	Holder *Holder
	Token  int64
	// HeldFor is how long the holder has had the lock.
	HeldFor time.Duration
	// FreeFor is how long a reserved lock has been free.
	FreeFor time.Duration
	// LapsesWithin is the time within which the lease ends, if the holder is dead.
	LapsesWithin time.Duration
	// InCooldown: no process holds the lock, it is in its cooldown.
	InCooldown bool
	// Reserved: no process holds the lock, it is reserved for the first in line.
	Reserved bool
	// Foreign describes a holder that leasehold did not write.
	Foreign string
	// Ahead is how many others wait before this process.
	Ahead int
	// WaiterAhead waits directly before this process.
	WaiterAhead *Holder
}

// State is the state of a lock.
type State string

// The states of a lock.
const (
	StateFree     State = "free"
	StateHeld     State = "held"
	StateReserved State = "reserved"
	StateCooldown State = "cooldown"
	StateLapsed   State = "lapsed"
)

// Status is a lock in the store.
type Status struct {
	Name  string
	State State
	// HeldBy is nil if the lock is free.
	HeldBy *HolderInfo
	// Token is that of the current grant or of the latest one.
	Token int64
	// Waiters are the line, first to last.
	Waiters []Waiter
	// History has the latest grants that have ended, newest first.
	History []PastGrant
}

// Waiter is a process in the line.
type Waiter struct {
	Holder *Holder
	Waited time.Duration
}

// PastGrant is a grant that has ended.
type PastGrant struct {
	Token  int64
	Holder *Holder
	// End is released, lapsed, evicted or limit.
	End string
	// From and Until are by the clock of the store or of the holder's machine; zero if unknown.
	From, Until time.Time
	// Evicted says who evicted the holder; nil if it was not evicted, or if the store does not know.
	Evicted *Eviction
}

// Eviction says who evicted a holder, and why.
type Eviction struct {
	By     string `json:"by"`
	Reason string `json:"reason"`
}

// Leader is the leader of an election.
type Leader struct {
	// Value is what the leader advertises. Another machine wrote it: check it before you use it.
	Value string
	// Term is the token of the leader.
	Term   int64
	Holder *Holder
}

// EarlierRun is a run of a job of [Client.Once] in the same period. What is unknown is zero.
type EarlierRun struct {
	By    *Holder
	Token int64
	// Ago is how long ago that run was granted the lock.
	Ago time.Duration
	// AgainWithin is the time after which the job may run again, at the latest.
	AgainWithin time.Duration
}

// Capabilities are what a store can do.
type Capabilities struct {
	// Store is the kind of the store.
	Store             string `json:"store"`
	Tokens            bool   `json:"tokens"`
	Cooldowns         bool   `json:"cooldowns"`
	FIFO              bool   `json:"fifo"`
	Watches           bool   `json:"watches"`
	SeesDeadProcesses bool   `json:"sees_dead_processes"`
}

// Report is the result of [Client.Doctor].
type Report struct {
	// Safe: the store is safe for locks.
	Safe     bool      `json:"safe"`
	Findings []Finding `json:"findings"`
}

// Finding is a check of the doctor.
type Finding struct {
	Check   string   `json:"check"`
	Verdict string   `json:"verdict"`
	Seen    string   `json:"seen"`
	Help    []string `json:"help"`
}

// The same as JSON. A field that is null is zero.

type holderWire struct {
	Name      string `json:"name"`
	Host      string `json:"host"`
	PID       int    `json:"pid"`
	Note      string `json:"note"`
	Value     string `json:"value"`
	MaxHoldMs millis `json:"max_hold_ms"`
}

func (w *holderWire) holder() *Holder {
	if w == nil {
		return nil
	}
	return &Holder{w.Name, w.Host, w.PID, w.Note, w.Value, w.MaxHoldMs.duration()}
}

type holderInfoWire struct {
	Holder         *holderWire `json:"holder"`
	Token          integer     `json:"token"`
	HeldMs         millis      `json:"held_ms"`
	FreeMs         millis      `json:"free_ms"`
	LapsesWithinMs millis      `json:"lapses_within_ms"`
	InCooldown     bool        `json:"in_cooldown"`
	Reserved       bool        `json:"reserved"`
	Foreign        string      `json:"foreign"`
	Ahead          int         `json:"ahead"`
	WaiterAhead    *holderWire `json:"waiter_ahead"`
}

func (w *holderInfoWire) info() HolderInfo {
	return HolderInfo{
		Holder:       w.Holder.holder(),
		Token:        int64(w.Token),
		HeldFor:      w.HeldMs.duration(),
		FreeFor:      w.FreeMs.duration(),
		LapsesWithin: w.LapsesWithinMs.duration(),
		InCooldown:   w.InCooldown,
		Reserved:     w.Reserved,
		Foreign:      w.Foreign,
		Ahead:        w.Ahead,
		WaiterAhead:  w.WaiterAhead.holder(),
	}
}

type statusWire struct {
	Lock    string          `json:"lock"`
	State   State           `json:"state"`
	HeldBy  *holderInfoWire `json:"held_by"`
	Token   integer         `json:"token"`
	Waiters []struct {
		Holder   *holderWire `json:"holder"`
		WaitedMs millis      `json:"waited_ms"`
	} `json:"waiters"`
	History []struct {
		Token   integer     `json:"token"`
		Holder  *holderWire `json:"holder"`
		End     string      `json:"end"`
		FromUs  *integer    `json:"from_us"`
		UntilUs *integer    `json:"until_us"`
		Evicted *Eviction   `json:"evicted"`
	} `json:"history"`
}

func (w *statusWire) status() *Status {
	status := &Status{Name: w.Lock, State: w.State, Token: int64(w.Token)}
	if w.HeldBy != nil {
		info := w.HeldBy.info()
		status.HeldBy = &info
	}
	for _, waiter := range w.Waiters {
		status.Waiters = append(status.Waiters, Waiter{waiter.Holder.holder(), waiter.WaitedMs.duration()})
	}
	for _, past := range w.History {
		status.History = append(status.History, PastGrant{
			Token:   int64(past.Token),
			Holder:  past.Holder.holder(),
			End:     past.End,
			From:    wallTime(past.FromUs),
			Until:   wallTime(past.UntilUs),
			Evicted: past.Evicted,
		})
	}
	return status
}

func wallTime(us *integer) time.Time {
	if us == nil {
		return time.Time{}
	}
	return time.UnixMicro(int64(*us))
}

type leaderWire struct {
	Leader *struct {
		Value  string      `json:"value"`
		Term   integer     `json:"term"`
		Holder *holderWire `json:"holder"`
	} `json:"leader"`
}

func (w *leaderWire) leader() *Leader {
	if w.Leader == nil {
		return nil
	}
	return &Leader{w.Leader.Value, int64(w.Leader.Term), w.Leader.Holder.holder()}
}

type earlierRunWire struct {
	Holder        *holderWire `json:"holder"`
	Token         integer     `json:"token"`
	AgoMs         millis      `json:"ago_ms"`
	AgainWithinMs millis      `json:"again_within_ms"`
}

func (w *earlierRunWire) run() *EarlierRun {
	return &EarlierRun{w.Holder.holder(), int64(w.Token), w.AgoMs.duration(), w.AgainWithinMs.duration()}
}

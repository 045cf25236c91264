package leasehold

import (
	"context"
	"errors"
	"fmt"
	"strings"
)

// Kind is the kind of an error. Compare it with [errors.Is]:
//
//	if errors.Is(err, leasehold.ErrHeld) { ... }
type Kind string

// The kinds of errors.
const (
	// ErrHeld: another holder has the lock, and still had it at the end of the [Wait]. The error is a [*HeldError].
	ErrHeld Kind = "held"
	// ErrLost: the lock was lost, or a higher token has written the object. The error is a [*LostError].
	ErrLost Kind = "lost"
	// ErrReleased: the guard was released, or its lock was passed on as a ticket.
	ErrReleased Kind = "released"
	// ErrDeadlock: the caller would wait for itself, or is in a cycle of waiters.
	ErrDeadlock Kind = "deadlock"
	// ErrUnavailable: the store cannot be reached, or did not respond in time. Try again later.
	ErrUnavailable Kind = "unavailable"
	// ErrDenied: credentials or permissions are missing or wrong.
	ErrDenied Kind = "denied"
	// ErrInvalid: a URL, a name, a number or an option is invalid. Nothing was done. If the store has another number of
	// permits or readers, the error is a [*SizeError].
	ErrInvalid Kind = "invalid"
	// ErrUnsupported: the store or the leasehold command cannot do it.
	ErrUnsupported Kind = "unsupported"
	// ErrCorrupt: a record in the store cannot be parsed. Nothing was overwritten.
	ErrCorrupt Kind = "corrupt"
	// ErrConflict: other writers of the object were faster at each attempt.
	ErrConflict Kind = "conflict"
	// ErrLimit: there are too many requests or locks, or a content is too large.
	ErrLimit Kind = "limit"
	// ErrAgent: the agent could not be started, has ended, or does not respond.
	ErrAgent Kind = "agent"
	// ErrClosed: the [Client] is closed.
	ErrClosed Kind = "closed"
)

// Error returns the name of the kind.
func (k Kind) Error() string { return "leasehold: " + string(k) }

// Error is an error of this package. [HeldError], [LostError] and [SizeError] contain one.
type Error struct {
	Kind    Kind
	Message string
	// Help says what to do, one line per item.
	Help []string
	// MaybeApplied reports whether the write of an object that failed may have been applied, or may be applied later.
	MaybeApplied bool
}

// Error returns the message and the help.
func (e *Error) Error() string {
	text := "leasehold: " + e.Message
	if len(e.Help) > 0 {
		text += " (" + strings.Join(e.Help, "; ") + ")"
	}
	return text
}

// Unwrap returns the kind.
func (e *Error) Unwrap() error { return e.Kind }

// HeldError says who has the lock.
type HeldError struct {
	Err Error
	// HeldBy describes the holder. Another machine wrote its texts: check them before you print them.
	HeldBy HolderInfo
}

// Error returns the message and the help.
func (e *HeldError) Error() string { return e.Err.Error() }

// Unwrap returns the [*Error].
func (e *HeldError) Unwrap() error { return &e.Err }

// LossReason is the reason of a loss.
type LossReason string

// The reasons of losses. A later version may have more.
const (
	// LossExpired: the lease was not renewed in time.
	LossExpired LossReason = "expired"
	// LossLimit: the lock was held for as long as [MaxHold] allows.
	LossLimit LossReason = "limit"
	// LossTakenOver: another process has the lock.
	LossTakenOver LossReason = "taken_over"
	// LossEnded: the holder was evicted, or the lock was released through a ticket.
	LossEnded LossReason = "ended"
	// LossDeleted: the record was deleted.
	LossDeleted LossReason = "deleted"
	// LossRenewedElsewhere: another process renewed the lease.
	LossRenewedElsewhere LossReason = "renewed_elsewhere"
	// LossAgent: the agent ended.
	LossAgent LossReason = "agent"
	// LossClosed: the [Client] was closed.
	LossClosed LossReason = "closed"
	// LossRefused: a fenced write was refused, because a higher token has written the object.
	LossRefused LossReason = "refused"
)

// LostError says why a lock was lost. A loss is final: acquire the lock again.
type LostError struct {
	Err    Error
	Reason LossReason
	// RefusedBy is the higher token of an earlier write, if a fenced write was refused.
	RefusedBy int64
}

// Error returns the message and the help.
func (e *LostError) Error() string { return e.Err.Error() }

// Unwrap returns the [*Error].
func (e *LostError) Unwrap() error { return &e.Err }

// SizeError says that the store has another number of permits or readers for this name. [Client.ResizeSemaphore] and
// [Client.ResizeRWLock] change it while nobody holds the lock.
type SizeError struct {
	Err Error
	// Asked is the number that the acquisition asked for.
	Asked int
	// Stored is the number in the store.
	Stored int
}

// Error returns the message and the help.
func (e *SizeError) Error() string { return e.Err.Error() }

// Unwrap returns the [*Error].
func (e *SizeError) Unwrap() error { return &e.Err }

func newLost(reason LossReason, message string, help ...string) *LostError {
	return &LostError{Err: Error{Kind: ErrLost, Message: message, Help: help}, Reason: reason}
}

func failed(kind Kind, message string, help ...string) *Error {
	return &Error{Kind: kind, Message: message, Help: help}
}

// interrupted returns the error of a request whose context has ended.
func interrupted(ctx context.Context, what string) error {
	err := ctx.Err()
	if cause := context.Cause(ctx); !errors.Is(cause, err) {
		return fmt.Errorf("leasehold: %s: %w: %w", what, err, cause)
	}
	return fmt.Errorf("leasehold: %s: %w", what, err)
}

// errorMessage is an error response of the agent.
type errorMessage struct {
	Kind         string         `json:"kind"`
	Message      string         `json:"message"`
	Help         []string       `json:"help"`
	HeldBy       holderInfoWire `json:"held_by"`
	RefusedBy    *integer       `json:"refused_by"`
	MaybeApplied bool           `json:"maybe_applied"`
	Sizes        *struct {
		Asked  int `json:"asked"`
		Stored int `json:"stored"`
	} `json:"sizes"`
}

func (m *errorMessage) err() error {
	err := Error{Message: m.Message, Help: m.Help, MaybeApplied: m.MaybeApplied}
	switch err.Kind = Kind(m.Kind); err.Kind {
	case ErrHeld:
		return &HeldError{err, m.HeldBy.info()}
	case ErrLost:
		if m.RefusedBy != nil {
			return &LostError{err, LossRefused, int64(*m.RefusedBy)}
		}
		return &LostError{err, LossExpired, 0}
	case ErrInvalid:
		if m.Sizes != nil {
			return &SizeError{err, m.Sizes.Asked, m.Sizes.Stored}
		}
	case ErrDeadlock, ErrDenied, ErrUnsupported, ErrCorrupt, ErrConflict, ErrLimit:
	default: // A kind that a later agent may send.
		err.Kind = ErrUnavailable
	}
	return &err
}

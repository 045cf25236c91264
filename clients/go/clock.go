package leasehold

import (
	"math"
	"time"
)

// toleranceUs is how much the clocks of an agent may differ from those of this process, in microseconds.
const toleranceUs = 50_000

// moment is a reading of both clocks, in microseconds.
type moment struct{ boot, wall int64 }

// now reads the boot clock, which counts while the machine sleeps, and the wall clock.
func now() moment {
	boot, ok := bootMicroseconds()
	if !ok {
		boot = math.MaxInt64 / 2 // All deadlines have passed.
	}
	return moment{boot, time.Now().UnixMicro()}
}

// deadline is a moment, and the span after it for which a lock is certain to be held.
type deadline struct {
	start   moment
	spanUs  int64
	atLimit bool // it is the limit of the hold
}

// left returns the time until the deadline in microseconds. It is zero or negative if the deadline has passed.
func (d deadline) left(at moment) int64 {
	// The longer of the two elapsed times, rounded up.
	return d.spanUs - max(at.boot-d.start.boot, at.wall-d.start.wall) - 1
}

func microseconds(us int64) time.Duration {
	return time.Duration(min(us, math.MaxInt64/1_000)) * time.Microsecond
}

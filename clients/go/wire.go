package leasehold

import (
	"encoding/json"
	"errors"
	"math"
	"strconv"
	"time"
)

// maxLine is the length of the longest line, in both directions.
const maxLine = 1 << 20

// errGarbage: the agent sent something that violates the protocol.
var errGarbage = errors.New("a message violates the protocol")

// integer is a number of the protocol: from 0 to 2^53 - 1.
type integer int64

func (i *integer) UnmarshalJSON(text []byte) error {
	if string(text) == "null" {
		return nil
	}
	value, err := strconv.ParseInt(string(text), 10, 64)
	if err != nil || value < 0 || value >= 1<<53 {
		return errGarbage
	}
	*i = integer(value)
	return nil
}

// millis is a number of milliseconds of the protocol.
type millis integer

func (m *millis) UnmarshalJSON(text []byte) error { return (*integer)(m).UnmarshalJSON(text) }

func (m millis) duration() time.Duration {
	return time.Duration(min(int64(m), math.MaxInt64/1_000_000)) * time.Millisecond
}

// message is a message of the agent.
type message struct {
	event string
	text  []byte
}

// envelope has the fields that say what a message is about.
type envelope struct {
	ID    json.RawMessage `json:"id"`
	Event *string         `json:"ev"`
	Hold  *integer        `json:"hold"`
}

func readEnvelope(line []byte) (envelope, error) {
	var head envelope
	if err := json.Unmarshal(line, &head); err != nil {
		return head, err
	}
	if head.Event == nil {
		return head, errGarbage
	}
	return head, nil
}

// momentMessage has the readings of both clocks.
type momentMessage struct {
	BootUs *integer `json:"boot_us"`
	WallUs *integer `json:"wall_us"`
}

func (m *momentMessage) moment() (moment, error) {
	if m.BootUs == nil || m.WallUs == nil {
		return moment{}, errGarbage
	}
	return moment{int64(*m.BootUs), int64(*m.WallUs)}, nil
}

// deadlineMessage has the fields of a deadline.
type deadlineMessage struct {
	momentMessage
	SpanUs  *integer `json:"span_us"`
	AtLimit bool     `json:"at_limit"`
}

func (m *deadlineMessage) deadline(now moment) (deadline, error) {
	start, err := m.moment()
	if err != nil || m.SpanUs == nil {
		return deadline{}, errGarbage
	}
	// A span that begins in the future would be measured wrong. The boot clock is never set back, but the wall clock
	// may be.
	if start.boot > now.boot+toleranceUs {
		return deadline{}, errGarbage
	}
	return deadline{start, int64(*m.SpanUs), m.AtLimit}, nil
}

// heldMessage is a grant.
type heldMessage struct {
	deadlineMessage
	Hold   *integer           `json:"hold"`
	Lock   *string            `json:"lock"`
	Locks  []string           `json:"locks"`
	Token  *integer           `json:"token"`
	Tokens map[string]integer `json:"tokens"`
}

// lostMessage is a loss that the agent reports.
type lostMessage struct {
	Reason  LossReason `json:"reason"`
	Message string     `json:"message"`
}

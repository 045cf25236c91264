package leasehold

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"testing"
)

type scenario struct {
	Name    string      `json:"name"`
	Greets  *bool       `json:"greets"`
	Actions [][2]string `json:"actions"`
}

// outcomeOf returns the result of an action in the terms of the kit.
func outcomeOf(err error, success string) string {
	switch {
	case err == nil:
		return success
	case errors.Is(err, ErrLost):
		return "lost"
	case errors.Is(err, ErrHeld):
		return "refused"
	case errors.Is(err, ErrAgent):
		return "agent"
	case errors.Is(err, context.Canceled):
		return "cancelled"
	default:
		return "error"
	}
}

// Runs the scenarios of clients/conformance, in which the agent misbehaves.
func TestConformance(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(kit, "scenarios.json"))
	must(t, err)
	var scenarios []scenario
	must(t, json.Unmarshal(text, &scenarios))
	if len(scenarios) == 0 {
		t.Fatal("there are no scenarios")
	}
	for _, scenario := range scenarios {
		t.Run(scenario.Name, func(t *testing.T) {
			t.Parallel()
			scenario.run(t)
		})
	}
}

func (s *scenario) run(t *testing.T) {
	log := filepath.Join(t.TempDir(), "log")
	c := open(t, "")
	c.command = filepath.Join(kit, "agent.py")
	c.env = []string{"LEASEHOLD_SCENARIO=" + s.Name, "LEASEHOLD_SCENARIO_LOG=" + log}
	ctx, lock := within(t), c.Lock("x")
	var guard *Guard
	mayBeKilled := s.Greets != nil && !*s.Greets
	for _, action := range s.Actions {
		var found string
		switch action[0] {
		case "acquire":
			acquiring, cancel := context.WithCancel(ctx)
			if action[1] == "cancelled" {
				a := current(t, c)
				go func() {
					defer cancel()
					for a.isQuiet() {
					}
				}()
			}
			var err error
			guard, err = lock.Acquire(acquiring)
			found = outcomeOf(err, "held")
			if err != nil {
				cancel()
			} else {
				t.Cleanup(cancel) // The context of the guard ends with it.
			}
		case "status":
			_, err := c.Status(ctx, "x")
			found = outcomeOf(err, "ok")
		case "check":
			found = outcomeOf(guard.Err(), "held")
		case "release":
			found = outcomeOf(guard.Release(ctx), "held")
		default:
			t.Fatalf("an action that this test does not know: %s", action[0])
		}
		if found != action[1] {
			t.Fatalf("%s: %s instead of %s", action[0], found, action[1])
		}
		mayBeKilled = mayBeKilled || found == "agent"
	}
	must(t, c.Close())
	text, err := os.ReadFile(log)
	if err != nil && mayBeKilled {
		return
	}
	if must(t, err); string(text) != "done" {
		t.Fatalf("%s", text)
	}
}

// isQuiet reports whether no request is pending.
func (a *agent) isQuiet() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.pending) == 0
}

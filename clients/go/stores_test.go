package leasehold

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// servers returns the URLs that ./test sets, except those of servers that leasehold must refuse.
func servers() map[string]string {
	found := map[string]string{}
	for _, variable := range os.Environ() {
		name, value, _ := strings.Cut(variable, "=")
		name, ours := strings.CutPrefix(name, "LEASEHOLD_TEST_")
		if ours && strings.Contains(value, "://") && !strings.HasPrefix(name, "BAD_") {
			found[name] = value
		}
	}
	return found
}

// isGrantedToAnother reports whether another process gets the lock without waiting.
func isGrantedToAnother(t *testing.T, url, name string) bool {
	t.Helper()
	err := exec.Command(os.Getenv("LEASEHOLD_COMMAND"), "run", "--try", "--store", url, name, "--", "true").Run()
	var exited *exec.ExitError
	if errors.As(err, &exited) && exited.ExitCode() == 123 {
		return false
	}
	must(t, err)
	return true
}

func TestStores(t *testing.T) {
	stores := servers()
	stores["SQLITE"] = "sqlite:" + filepath.Join(t.TempDir(), "locks.db")
	number := 0
	for store, url := range stores {
		number++
		// Two URLs may lead to the same store.
		name := fmt.Sprintf("clients/go-%d-%d", os.Getpid(), number)
		t.Run(store, func(t *testing.T) {
			t.Parallel()
			holdALock(t, url, name)
		})
	}
}

func holdALock(t *testing.T, url, name string) {
	ctx, c := within(t), open(t, url)
	must(t, c.Init(ctx))
	lock := c.Lock(name, TTL(30*time.Second), Wait(limit))
	first := acquire(t, lock)
	must(t, first.Err())
	_, err := lock.TryAcquire(ctx)
	expect(t, err, ErrHeld)
	if isGrantedToAnother(t, url, name) {
		t.Fatal("another process got the lock")
	}
	must(t, first.Renew(ctx))
	status, err := c.Status(ctx, name)
	if must(t, err); status.State != StateHeld {
		t.Fatalf("%+v", status)
	}
	release(t, first)
	if !isGrantedToAnother(t, url, name) {
		t.Fatal("the lock is not free")
	}
	next, err := lock.TryAcquire(ctx)
	if must(t, err); next.Token() <= first.Token() {
		t.Fatal("the token did not rise")
	}
	listed := 0
	for found, err := range c.List(ctx, "clients/go-") {
		if must(t, err); found == name {
			listed++
		}
	}
	if listed != 1 {
		t.Fatalf("listed %d times", listed)
	}
	release(t, next)
}

func TestObjectsOnS3(t *testing.T) {
	t.Parallel()
	server := servers()["S3_MINIO"]
	if server == "" {
		t.Skip("no such server: ./test --with-servers")
	}
	// Each run uses another object.
	place, options, _ := strings.Cut(server, "?")
	ctx, c := within(t), open(t, "")
	state := c.Object(fmt.Sprintf("%s/go-%d.json?%s", place, os.Getpid(), options))
	is := func(want string) {
		t.Helper()
		if content, err := state.Get(ctx); err != nil || string(content) != want || (content == nil) != (want == "") {
			t.Fatalf("%q, %v", content, err)
		}
	}
	is("")
	add := func(text string) func([]byte) ([]byte, error) {
		return func(content []byte) ([]byte, error) { return append(content, text...), nil }
	}
	written, err := state.Update(ctx, add("1"), ContentType("application/json"))
	if must(t, err); !written {
		t.Fatal("it was not written")
	}
	written, err = state.Update(ctx, func([]byte) ([]byte, error) { return nil, nil })
	if must(t, err); written {
		t.Fatal("it was written")
	}
	must(t, state.Put(ctx, []byte("fenced 8"), 8))
	err = state.Put(ctx, []byte("fenced 7"), 7)
	expectLoss(t, err, LossRefused)
	var refused *LostError
	if errors.As(err, &refused); refused.RefusedBy != 8 {
		t.Fatalf("%+v", refused)
	}
	calls, failure := 0, errors.New("failure")
	_, err = state.Update(ctx, func(content []byte) ([]byte, error) {
		if calls++; calls == 1 {
			_, err := state.Update(ctx, add(" faster"))
			must(t, err)
		}
		return append(content, " later"...), nil
	})
	if must(t, err); calls != 2 {
		t.Fatal(calls)
	}
	if _, err = state.Update(ctx, func([]byte) ([]byte, error) { return nil, failure }); err != failure {
		t.Fatal(err)
	}
	is("fenced 8 faster later")
	expect(t, state.Put(ctx, make([]byte, maxLine), 9), ErrLimit)
}

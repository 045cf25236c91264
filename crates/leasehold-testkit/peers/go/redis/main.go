// Acquires locks in Redis with redsync, on one server.
//
//	--address HOST:PORT --lock KEY --ttl SECONDS
//	bench ... --address HOST:PORT --lock KEY --ttl-ms MILLISECONDS
//
// redsync does not renew locks by itself. This program renews only the locks that the benchmark holds for long.
package main

import (
	"context"
	"errors"
	"math"
	"sync/atomic"
	"time"

	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"

	"leasehold/peers"
)

func main() {
	peers.Run(open, connect)
}

type lock struct{ *redsync.Mutex }

func open(options peers.Options) (peers.Lock, error) {
	// By default, an attempt may take a twentieth of the ttl, including the time to open its connection.
	mutex := newMutex(dial(options), options.Text("lock"), options.TTL(),
		redsync.WithRetryDelay(50*time.Millisecond), redsync.WithTimeoutFactor(0.5))
	return lock{mutex}, nil
}

func (l lock) Acquire() error { return l.Lock() }

func (l lock) Try() error {
	err := l.TryLock()
	var taken *redsync.ErrTaken
	if errors.As(err, &taken) {
		return peers.ErrHeld
	}
	return err
}

func (l lock) Release() error { return release(l.Mutex) }

func dial(options peers.Options) *redis.Client {
	return redis.NewClient(&redis.Options{Addr: options.Text("address")})
}

// newMutex returns a mutex that waits for as long as it has to.
func newMutex(client *redis.Client, name string, ttl time.Duration, more ...redsync.Option) *redsync.Mutex {
	waits := []redsync.Option{redsync.WithExpiry(ttl), redsync.WithTries(math.MaxInt)}
	return redsync.New(goredis.NewPool(client)).NewMutex(name, append(waits, more...)...)
}

func release(mutex *redsync.Mutex) error {
	released, err := mutex.Unlock()
	if err == nil && !released {
		return errors.New("the lock was not held any more")
	}
	return err
}

// process is the client of a contender of the benchmark. It has the default settings, except for the ttl and the time
// that it waits for a lock.
type process struct {
	client *redis.Client
	ttl    time.Duration
}

func connect(options peers.Options) (peers.Client, error) {
	return process{dial(options), options.TTL()}, nil
}

func (p process) Contender(name string) (peers.Contender, error) {
	return contender{newMutex(p.client, name, p.ttl)}, nil
}

func (p process) Holder(name string) (peers.Contender, error) {
	return &holder{mutex: newMutex(p.client, name, p.ttl), every: p.ttl / 3}, nil
}

func (p process) Close() error { return p.client.Close() }

type contender struct{ mutex *redsync.Mutex }

func (c contender) Acquire(until context.Context) error { return c.mutex.LockContext(until) }

func (c contender) Release() error { return release(c.mutex) }

func (c contender) Lost() bool { return time.Now().After(c.mutex.Until()) }

func (c contender) Close() error { return nil }

// holder renews its lock until it releases it.
type holder struct {
	mutex *redsync.Mutex
	every time.Duration

	lost  atomic.Bool
	stop  context.CancelFunc
	ended chan struct{}
}

func (h *holder) Acquire(until context.Context) error {
	if err := h.mutex.LockContext(until); err != nil {
		return err
	}
	var held context.Context
	held, h.stop = context.WithCancel(context.Background())
	h.ended = make(chan struct{})
	go h.renew(held)
	return nil
}

func (h *holder) renew(held context.Context) {
	defer close(h.ended)
	for {
		select {
		case <-held.Done():
			return
		case <-time.After(h.every):
		}
		extended, err := h.mutex.ExtendContext(held)
		var taken *redsync.ErrTaken
		if !extended && held.Err() == nil && (errors.As(err, &taken) || time.Now().After(h.mutex.Until())) {
			h.lost.Store(true)
			return
		}
	}
}

func (h *holder) Release() error {
	h.stop()
	<-h.ended
	return release(h.mutex)
}

func (h *holder) Lost() bool { return h.lost.Load() }

func (h *holder) Close() error { return nil }

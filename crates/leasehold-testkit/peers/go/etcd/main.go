// Acquires locks in etcd with the mutex of etcd's Go client.
//
//	--endpoint HOST:PORT --lock PREFIX --ttl SECONDS
//	bench ... --endpoint HOST:PORT --lock PREFIX --ttl-ms MILLISECONDS
//
// A key of the mutex is PREFIX/ and the id of a lease.
package main

import (
	"context"
	"errors"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.uber.org/zap"

	"leasehold/peers"
)

func main() {
	peers.Run(open, connect)
}

type lock struct {
	session *concurrency.Session
	mutex   *concurrency.Mutex
}

func open(options peers.Options) (peers.Lock, error) {
	client, err := dial(options)
	if err != nil {
		return nil, err
	}
	session, err := newSession(client, options.TTL())
	if err != nil {
		return nil, err
	}
	return &lock{session: session, mutex: concurrency.NewMutex(session, options.Text("lock"))}, nil
}

func (l *lock) Acquire() error {
	return l.mutex.Lock(context.Background())
}

func (l *lock) Try() error {
	err := l.mutex.TryLock(context.Background())
	if errors.Is(err, concurrency.ErrLocked) {
		return peers.ErrHeld
	}
	return err
}

func (l *lock) Release() error {
	select {
	case <-l.session.Done():
		return errors.New("the session has ended")
	default:
		return l.mutex.Unlock(context.Background())
	}
}

// dial returns a client that does not log. Errors are returned anyway, and a cancelled acquisition is not an error.
func dial(options peers.Options) (*clientv3.Client, error) {
	return clientv3.New(clientv3.Config{Endpoints: []string{options.Text("endpoint")}, Logger: zap.NewNop()})
}

// newSession rounds the ttl up, because etcd counts whole seconds.
func newSession(client *clientv3.Client, ttl time.Duration) (*concurrency.Session, error) {
	return concurrency.NewSession(client, concurrency.WithTTL(int((ttl+time.Second-1)/time.Second)))
}

// process is the connection of a contender of the benchmark. The lease of a session names the key of its mutex, so
// tasks that compete for one lock need a session each. Different locks share a session.
type process struct {
	client *clientv3.Client
	ttl    time.Duration

	once   sync.Once
	shared *concurrency.Session
	failed error
}

func connect(options peers.Options) (peers.Client, error) {
	client, err := dial(options)
	return &process{client: client, ttl: options.TTL()}, err
}

func (p *process) Contender(name string) (peers.Contender, error) {
	session, err := newSession(p.client, p.ttl)
	return contender{session, concurrency.NewMutex(session, name)}, err
}

func (p *process) Holder(name string) (peers.Contender, error) {
	p.once.Do(func() { p.shared, p.failed = newSession(p.client, p.ttl) })
	return contender{p.shared, concurrency.NewMutex(p.shared, name)}, p.failed
}

func (p *process) Close() error {
	if p.shared != nil {
		// The lease may have ended already.
		_ = p.shared.Close()
	}
	return p.client.Close()
}

type contender struct {
	session *concurrency.Session
	mutex   *concurrency.Mutex
}

func (c contender) Acquire(until context.Context) error { return c.mutex.Lock(until) }

func (c contender) Release() error { return c.mutex.Unlock(context.Background()) }

func (c contender) Lost() bool {
	select {
	case <-c.session.Done():
		return true
	default:
		return false
	}
}

func (c contender) Close() error { return c.session.Close() }

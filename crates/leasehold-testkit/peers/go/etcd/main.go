// Takes locks in etcd with the mutex of its own client.
//
//	--endpoint HOST:PORT --lock PREFIX --ttl SECONDS
//
// The mutex's keys are PREFIX/ and the id of the lease.
package main

import (
	"context"
	"errors"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	"leasehold/peers"
)

func main() {
	peers.Run(open)
}

type lock struct {
	session *concurrency.Session
	mutex   *concurrency.Mutex
}

func open(options peers.Options) (peers.Lock, error) {
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{options.Text("endpoint")}})
	if err != nil {
		return nil, err
	}
	session, err := concurrency.NewSession(client, concurrency.WithTTL(int(options.TTL().Seconds())))
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

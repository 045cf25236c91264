// Acquires locks on Kubernetes' Leases with client-go's leader election.
//
//	--server URL --namespace NAME --lock NAME --ttl SECONDS
//	bench ... --server URL --namespace NAME --lock NAME --ttl-ms MILLISECONDS
//
// A lock is an election of one leader. Its lease duration is the ttl. As in client-go's defaults (15, 10 and 2 seconds), a
// leader gives up after two thirds of the ttl, and tries every two fifteenths.
//
// This is a separate module, so that its dependencies do not determine those of the other clients.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"leasehold/peers"
)

func main() {
	peers.Run(open, connect)
}

// process contains what the locks of a process share.
type process struct {
	client    *kubernetes.Clientset
	namespace string
	ttl       time.Duration
	next      atomic.Int64
}

func dial(options peers.Options) (*process, error) {
	config := &rest.Config{Host: options.Text("server"), QPS: -1}
	client, err := kubernetes.NewForConfig(config)
	return &process{client: client, namespace: options.Text("namespace"), ttl: options.TTL()}, err
}

func (p *process) lock(name string) *lock {
	host, _ := os.Hostname()
	identity := fmt.Sprintf("%s_client-go_%d_%d", host, os.Getpid(), p.next.Add(1))
	return &lock{process: p, resource: &resourcelock.LeaseLock{
		LeaseMeta:  metav1.ObjectMeta{Name: name, Namespace: p.namespace},
		Client:     p.client.CoordinationV1(),
		LockConfig: resourcelock.ResourceLockConfig{Identity: identity},
	}}
}

// lock is an election that runs from Acquire to Release.
type lock struct {
	process  *process
	resource resourcelock.Interface
	stop     context.CancelFunc
	ended    chan struct{}
	lost     atomic.Bool
}

func (l *lock) acquire(until context.Context) error {
	ctx, stop := context.WithCancel(context.Background())
	led, ended := make(chan struct{}), make(chan struct{})
	l.stop, l.ended = stop, ended
	l.lost.Store(false)
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock:          l.resource,
		LeaseDuration: l.process.ttl, RenewDeadline: l.process.ttl * 2 / 3, RetryPeriod: l.process.ttl * 2 / 15,
		ReleaseOnCancel: true,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(context.Context) { close(led) },
			OnStoppedLeading: func() {},
		},
	})
	if err != nil {
		return err
	}
	go func() {
		elector.Run(ctx)
		l.lost.Store(ctx.Err() == nil)
		close(ended)
	}()
	select {
	case <-led:
		return nil
	case <-until.Done():
		return errors.Join(until.Err(), l.Release())
	case <-ended:
		return errors.New("the election ended")
	}
}

func (l *lock) Acquire() error { return l.acquire(context.Background()) }

// Try returns ErrHeld if the second attempt has not acquired the lock either.
func (l *lock) Try() error {
	until, cancel := context.WithTimeout(context.Background(), l.process.ttl/5)
	defer cancel()
	err := l.acquire(until)
	if errors.Is(err, context.DeadlineExceeded) {
		return peers.ErrHeld
	}
	return err
}

func (l *lock) Release() error {
	l.stop()
	<-l.ended
	if l.lost.Load() {
		return errors.New("the lock was not held any more")
	}
	return nil
}

func open(options peers.Options) (peers.Lock, error) {
	process, err := dial(options)
	if err != nil {
		return nil, err
	}
	return process.lock(options.Text("lock")), nil
}

// contender is a lock of the benchmark.
type contender struct{ *lock }

func (c contender) Acquire(until context.Context) error { return c.acquire(until) }
func (c contender) Lost() bool                          { return c.lost.Load() }
func (c contender) Close() error                        { return nil }

func connect(options peers.Options) (peers.Client, error) { return dial(options) }

func (p *process) Contender(name string) (peers.Contender, error) {
	return contender{p.lock(name)}, nil
}
func (p *process) Holder(name string) (peers.Contender, error) { return contender{p.lock(name)}, nil }
func (p *process) Close() error                                { return nil }

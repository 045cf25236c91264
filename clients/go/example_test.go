package leasehold_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	leasehold "github.com/leasehold/leasehold/clients/go"
)

func Example() {
	client := leasehold.New("mem:") // for tests; else s3://bucket/locks, sqlite:locks.db, ...
	defer client.Close()

	err := client.Lock("deploy/prod", leasehold.Wait(time.Minute)).Do(context.Background(), func(ctx context.Context) error {
		guard := leasehold.GuardFrom(ctx)
		if err := guard.Err(); err != nil { // before each step that must not be done twice
			return err
		}
		fmt.Println("deploys under a token:", guard.Token() > 0)
		return nil
	})
	fmt.Println(err)
	// Output:
	// deploys under a token: true
	// <nil>
}

func ExampleLock_Acquire() {
	ctx, client := context.Background(), leasehold.New("mem:")
	defer client.Close()

	lock := client.Lock("report", leasehold.TTL(time.Minute), leasehold.Note("nightly report"))
	guard, err := lock.Acquire(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer guard.Release(context.WithoutCancel(ctx))

	_, err = lock.TryAcquire(ctx)
	var held *leasehold.HeldError
	fmt.Println(errors.As(err, &held), held.HeldBy.Holder.Note)
	// Output: true nightly report
}

func ExampleGuard_Context() {
	client := leasehold.New("mem:")
	defer client.Close()

	guard, err := client.Lock("import", leasehold.MaxHold(500*time.Millisecond)).Acquire(context.Background())
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx := guard.Context() // for the calls of the work
	<-ctx.Done()
	var lost *leasehold.LostError
	fmt.Println(errors.As(context.Cause(ctx), &lost), lost.Reason)
	// Output: true limit
}

func ExampleClient_Once() {
	client := leasehold.New("mem:")
	defer client.Close()

	for range 2 {
		earlier, err := client.Once(context.Background(), "nightly", 12*time.Hour, func(ctx context.Context) error {
			fmt.Println("runs")
			return nil
		})
		fmt.Println("ran already:", earlier != nil, err)
	}
	// Output:
	// runs
	// ran already: false <nil>
	// ran already: true <nil>
}

func ExampleElection() {
	ctx, client := context.Background(), leasehold.New("mem:")
	defer client.Close()

	election := client.Election("scheduler", leasehold.Value("http://10.0.0.7:8080"))
	err := election.Do(ctx, func(ctx context.Context) error {
		leader, err := election.Leader(ctx)
		if err == nil {
			fmt.Println(leader.Value)
		}
		return err
	})
	fmt.Println(err)
	// Output:
	// http://10.0.0.7:8080
	// <nil>
}

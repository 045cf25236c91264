// Package leasehold holds distributed locks on storage you already have: a local file, a bucket, a database, etcd or
// Kubernetes.
//
//	client := leasehold.New("s3://bucket/locks?region=eu-west-1")
//	defer client.Close()
//
//	err := client.Lock("deploy/prod", leasehold.Wait(time.Minute)).Do(ctx, func(ctx context.Context) error {
//		return deploy(ctx, leasehold.GuardFrom(ctx).Token())
//	})
//
// At any time, at most one process holds a lock. Each grant has a fencing token that is greater than all earlier ones
// of its lock. A holder detects a loss before another process can get the lock, except after an eviction: the context
// of the work ends, and [Guard.Err] returns the reason.
//
// A [Client] starts the command `leasehold agent` as a child process. The agent acquires, renews and releases locks.
// This package compares its own clocks with their deadlines, so it detects a loss even if the agent hangs or was
// killed. It finds the command by the environment variable LEASEHOLD_COMMAND or in PATH.
//
// Each context governs the call that it is passed to. If it ends while a lock is acquired, the lock is not held
// afterwards.
package leasehold

// Takes locks in DynamoDB with dynamolock, the port of AWS's lock client to Go.
//
//	--endpoint URL --table TABLE --lock KEY --ttl SECONDS [--delete]
//
// It keeps released items, unless --delete is given. AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY have to be set.
package main

import (
	"context"
	"errors"
	"os"
	"time"

	"cirello.io/dynamolock/v2"
	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"

	"leasehold/peers"
)

func main() {
	peers.Run(open)
}

type lock struct {
	client  *dynamolock.Client
	key     string
	options []dynamolock.AcquireLockOption
	held    *dynamolock.Lock
}

func open(options peers.Options) (peers.Lock, error) {
	api := dynamodb.New(dynamodb.Options{
		BaseEndpoint: aws.String(options.Text("endpoint")),
		Region:       "us-east-1",
		Credentials: credentials.NewStaticCredentialsProvider(
			os.Getenv("AWS_ACCESS_KEY_ID"), os.Getenv("AWS_SECRET_ACCESS_KEY"), ""),
	})
	client, err := dynamolock.New(api, options.Text("table"),
		dynamolock.WithLeaseDuration(options.TTL()), dynamolock.WithHeartbeatPeriod(options.TTL()/3))
	acquire := []dynamolock.AcquireLockOption{
		dynamolock.WithAdditionalTimeToWaitForLock(time.Hour),
		dynamolock.WithRefreshPeriod(50 * time.Millisecond),
	}
	if _, deletes := options["delete"]; deletes {
		acquire = append(acquire, dynamolock.WithDeleteLockOnRelease())
	}
	return &lock{client: client, key: options.Text("lock"), options: acquire}, err
}

func (l *lock) Acquire() error {
	held, err := l.client.AcquireLock(l.key, l.options...)
	l.held = held
	return err
}

func (l *lock) Try() error {
	held, err := l.client.AcquireLock(l.key, append(l.options, dynamolock.FailIfLocked())...)
	var refused *dynamolock.LockNotGrantedError
	if errors.As(err, &refused) {
		return peers.ErrHeld
	}
	l.held = held
	return err
}

func (l *lock) Release() error {
	_, err := l.client.ReleaseLockWithContext(context.Background(), l.held)
	return err
}

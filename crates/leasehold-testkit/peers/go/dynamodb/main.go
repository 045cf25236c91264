// Acquires locks in DynamoDB with dynamolock, the Go port of AWS's lock client.
//
//	--endpoint URL --table TABLE --lock KEY --ttl SECONDS [--delete]
//	bench ... --endpoint URL --table TABLE --lock KEY --ttl-ms MILLISECONDS
//
// It keeps released items, unless --delete is given. AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY must be set.
package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"time"

	"cirello.io/dynamolock/v2"
	"github.com/aws/aws-sdk-go-v2/aws"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"

	"leasehold/peers"
)

func main() {
	peers.Run(open, connect)
}

type lock struct {
	client  *dynamolock.Client
	key     string
	options []dynamolock.AcquireLockOption
	held    *dynamolock.Lock
}

func open(options peers.Options) (peers.Lock, error) {
	client, err := newClient(options)
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

func newClient(options peers.Options) (*dynamolock.Client, error) {
	api := dynamodb.New(dynamodb.Options{
		BaseEndpoint: aws.String(options.Text("endpoint")),
		HTTPClient:   client{awshttp.NewBuildableClient()},
		Region:       "us-east-1",
		Credentials: credentials.NewStaticCredentialsProvider(
			os.Getenv("AWS_ACCESS_KEY_ID"), os.Getenv("AWS_SECRET_ACCESS_KEY"), ""),
	})
	return dynamolock.New(api, options.Text("table"),
		dynamolock.WithLeaseDuration(options.TTL()), dynamolock.WithHeartbeatPeriod(options.TTL()/3))
}

// client sends request bodies that the SDK cannot close early. The SDK (safeWriteToReadCloser in smithy-go 1.20 to 1.28)
// closes a request's body once it has the head of the response. If net/http is still looking for the end of the body at
// that moment, it takes the body for truncated and closes the connection, and a response with status 200 is lost.
type client struct{ *awshttp.BuildableClient }

func (c client) Do(request *http.Request) (*http.Response, error) {
	if request.Body != nil {
		body, err := io.ReadAll(request.Body)
		if err != nil {
			return nil, err
		}
		request.Body = io.NopCloser(bytes.NewReader(body))
	}
	return c.BuildableClient.Do(request)
}

// process is the client of a contender of the benchmark. It has the default settings, except for the lease duration, the
// heartbeat period and the time that it waits for a lock.
type process struct{ client *dynamolock.Client }

func connect(options peers.Options) (peers.Client, error) {
	client, err := newClient(options)
	return process{client}, err
}

func (p process) Contender(name string) (peers.Contender, error) {
	return &contender{client: p.client, key: name}, nil
}

func (p process) Holder(name string) (peers.Contender, error) { return p.Contender(name) }

// Close does not close the client, because that would wait for the heartbeats.
func (p process) Close() error { return nil }

type contender struct {
	client *dynamolock.Client
	key    string
	held   *dynamolock.Lock
}

func (c *contender) Acquire(until context.Context) (err error) {
	c.held, err = c.client.AcquireLockWithContext(until, c.key, dynamolock.WithAdditionalTimeToWaitForLock(time.Hour))
	return err
}

func (c *contender) Release() error {
	_, err := c.client.ReleaseLockWithContext(context.Background(), c.held)
	return err
}

func (c *contender) Lost() bool { return c.held.IsExpired() }

func (c *contender) Close() error { return nil }

package leasehold

import (
	"context"
	"time"
)

// Object is an object in a bucket that several writers may change. It has at most about 767 KiB.
//
// If the context of a write ends before its response, the write may have been applied.
type Object struct {
	client *Client
	url    string
}

// String returns no URL, because a URL may contain a password.
func (o *Object) String() string { return "leasehold.Object" }

// GoString is [Object.String].
func (o *Object) GoString() string { return o.String() }

// contentMessage is the content of an object; nil if there is none.
type contentMessage struct {
	Content []byte `json:"content"`
}

// Get returns the content, or nil if there is no object. With [Fence], later writes with lower tokens are refused.
func (o *Object) Get(ctx context.Context, options ...Option) ([]byte, error) {
	var found contentMessage
	err := o.client.ask(ctx, o.request("get"), options, 0, "object", &found)
	return found.Content, err
}

// Put writes the object under a fencing token. If a higher token has written it before, Put returns a [*LostError] with
// [LossRefused]. See [ContentType].
func (o *Object) Put(ctx context.Context, content []byte, token int64, options ...Option) error {
	if token == 0 {
		return failed(ErrInvalid, "the fencing token is 0",
			"use a lock in a store with tokens, and of several locks, one token")
	}
	if content == nil {
		content = []byte{}
	}
	request := o.request("put")
	request["content"], request["fence"] = content, token
	// The store of the object may have to be examined first.
	return o.client.ask(ctx, request, options, answerTimeout+2*time.Minute, "done", &nothing{})
}

// Update replaces the content with the result of change, which gets nil if there is no object, and returns nil to leave
// the object as it is. If another writer was faster, change is called again. If change returns an error, Update returns
// it, and changes nothing.
//
// It reports whether the object was written. See [Fence], [ContentType], [Attempts] and [Within].
func (o *Object) Update(
	ctx context.Context, change func(content []byte) ([]byte, error), options ...Option,
) (bool, error) {
	call, err := o.client.begin(ctx, o.request("update"), collect(options))
	if err != nil {
		return false, err
	}
	defer call.abandon()
	for {
		// Has no limit: the agent runs only some updates at a time.
		answer, err := call.next(ctx, 0)
		if err != nil {
			return false, err
		}
		if answer.event != "content" {
			var updated struct {
				Written bool `json:"written"`
			}
			err := call.read(answer, "updated", &updated)
			return updated.Written, err
		}
		var current contentMessage
		if err := call.read(answer, "content", &current); err != nil {
			return false, err
		}
		changed, err := change(current.Content)
		if err != nil {
			return false, err
		}
		if err := call.answer(ctx, changed); err != nil {
			return false, err
		}
	}
}

// answer sends the new content of an update.
func (c *call) answer(ctx context.Context, content []byte) error {
	request := fields{"op": "answer", "request": c.id}
	if content != nil {
		request["content"] = content
	}
	sent, err := c.agent.send(request)
	if err != nil {
		return err
	}
	answer, err := sent.next(ctx, answerTimeout)
	if err != nil {
		return err
	}
	return sent.read(answer, "done", &nothing{})
}

func (o *Object) request(op string) fields { return fields{"op": op, "object": o.url} }

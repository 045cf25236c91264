package leasehold

import (
	"context"
	"fmt"
	"iter"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

// Version is the version of this module. Use a leasehold command of the same version.
const Version = "0.1.0"

// Client is a store of locks. It starts the agent with its first request. Several goroutines may use a client.
type Client struct {
	store    string
	err      error
	command  string   // for tests: the command, instead of findCommand
	env      []string // for tests: added to the environment of the agent
	starting chan struct{}

	mu     sync.Mutex
	agent  *agent // the latest one; nil before the first request
	closed bool
}

// New returns a client of a store: a URL such as sqlite:locks.db or s3://bucket/locks, or an alias of config.toml. The
// empty string is the default store of the leasehold command (LEASEHOLD_STORE, config.toml, a SQLite file). It sends no
// request.
//
// Each client has a separate agent, so use one client for each store, and share it.
func New(store string) *Client {
	c := &Client{starting: make(chan struct{}, 1)}
	c.store, c.err = storeURL(store)
	return c
}

// storeURL returns the URL of a store. A relative SQLite path is relative to this process's folder, not to the agent's.
func storeURL(given string) (string, error) {
	if given == "" {
		given = os.Getenv("LEASEHOLD_STORE")
	}
	scheme, path, _ := strings.Cut(given, ":")
	if !strings.EqualFold(scheme, "sqlite") || path == "" || strings.ContainsAny(path[:1], "/?:") {
		return given, nil
	}
	folder, err := os.Getwd()
	if err != nil {
		return "", failed(ErrInvalid, fmt.Sprintf("the store is a relative path, and this process has no folder: %s", err))
	}
	folder = strings.NewReplacer("%", "%25", "?", "%3F").Replace(folder)
	return "sqlite:" + strings.TrimSuffix(folder, string(filepath.Separator)) + "/" + path, nil
}

// String returns no URL, because a URL may contain a password.
func (c *Client) String() string { return "leasehold.Client" }

// GoString is [Client.String].
func (c *Client) GoString() string { return c.String() }

// Close ends the agent. It releases all locks, and waits until the agent has ended, which takes at most a few seconds.
// Guards are lost with [LossClosed], and requests fail with [ErrClosed]. Later calls have no effect.
func (c *Client) Close() error {
	c.starting <- struct{}{}
	defer func() { <-c.starting }()
	c.mu.Lock()
	c.closed = true
	agent := c.agent
	c.mu.Unlock()
	if agent != nil {
		agent.close()
	}
	return nil
}

// running returns the agent for the next request. It starts one if there is none.
func (c *Client) running(ctx context.Context) (*agent, error) {
	if ctx.Err() != nil {
		return nil, interrupted(ctx, "start the agent")
	}
	if agent, err := c.current(); agent != nil || err != nil {
		return agent, err
	}
	select {
	case c.starting <- struct{}{}:
		defer func() { <-c.starting }()
	case <-ctx.Done():
		return nil, interrupted(ctx, "start the agent")
	}
	if agent, err := c.current(); agent != nil || err != nil {
		return agent, err
	}
	path := c.command
	if path == "" {
		var err error
		if path, err = findCommand(); err != nil {
			return nil, err
		}
	}
	agent, err := start(ctx, path, c.env)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.agent = agent
	return agent, nil
}

// current returns the agent if it is alive.
func (c *Client) current() (*agent, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.err != nil:
		return nil, c.err
	case c.closed:
		return nil, failed(ErrClosed, "the client is closed")
	case c.agent != nil && c.agent.alive():
		return c.agent, nil
	default:
		return nil, nil
	}
}

// request returns the fields of a request about a lock of this store, or about the store if the name is empty.
func (c *Client) request(op, lock string) fields {
	request := fields{"op": op}
	if c.store != "" {
		request["store"] = c.store
	}
	if lock != "" {
		request["lock"] = lock
	}
	return request
}

// begin sends a request with the fields of options.
func (c *Client) begin(ctx context.Context, request fields, s settings) (*call, error) {
	if s.err != nil {
		return nil, s.err
	}
	maps.Copy(request, s.fields)
	agent, err := c.running(ctx)
	if err != nil {
		return nil, err
	}
	return agent.send(request)
}

// ask sends a request, and reads its response.
func (c *Client) ask(
	ctx context.Context, request fields, options []Option, limit time.Duration, event string, into any,
) error {
	s := collect(options)
	call, err := c.begin(ctx, request, s)
	if err != nil {
		return err
	}
	answer, err := call.final(ctx, limit, s.onWaiting)
	if err != nil {
		return err
	}
	return call.read(answer, event, into)
}

// nothing is a response without fields of interest.
type nothing struct{}

// wasHeld is the response to the end of a hold.
type wasHeld struct {
	WasHeld bool `json:"was_held"`
}

// Lock returns the lock with this name. It sends no request.
func (c *Client) Lock(name string, options ...Option) *Lock {
	return c.lock([]string{name}, fields{"lock": name}, options)
}

// LockAll returns several locks, at most 64, that are acquired together: all or none. A loss of one is the loss of all.
// Each has its own token: see [Guard.Tokens].
//
// They are acquired in the order of the bytes of their names, so such acquisitions never wait for each other for ever.
func (c *Client) LockAll(names []string, options ...Option) *Lock {
	names = slices.Sorted(slices.Values(names))
	if names == nil { // The agent would see no names, and ask for one.
		names = []string{}
	}
	return c.lock(names, fields{"locks": names}, options)
}

// Semaphore returns a lock with up to this number of holders, at most 64. The first acquisition records the number in
// the store. One with another number returns a [*SizeError].
func (c *Client) Semaphore(name string, permits int, options ...Option) *Lock {
	return c.lock([]string{name}, fields{"lock": name, "mode": "permit", "permits": permits}, options)
}

// RWLock returns a readers-writer lock. See [Readers].
func (c *Client) RWLock(name string, options ...Option) *RWLock {
	return &RWLock{
		Shared:    c.lock([]string{name}, fields{"lock": name, "mode": "shared"}, options),
		Exclusive: c.lock([]string{name}, fields{"lock": name, "mode": "exclusive"}, options),
	}
}

// Election returns the election with this name. With [Value], this candidate advertises a value while it leads.
func (c *Client) Election(name string, options ...Option) *Election {
	return &Election{c.lock([]string{name}, fields{"lock": name, "mode": "leader"}, options)}
}

func (c *Client) lock(names []string, target fields, options []Option) *Lock {
	s := collect(options)
	maps.Copy(s.fields, target)
	return &Lock{client: c, names: names, settings: s}
}

// Object returns an object with several writers, by its URL, such as s3://bucket/state.json. It need not be in the
// store of the client.
func (c *Client) Object(url string) *Object { return &Object{c, url} }

// Status returns the state of a lock.
func (c *Client) Status(ctx context.Context, name string) (*Status, error) {
	var status statusWire
	if err := c.ask(ctx, c.request("status", name), nil, answerTimeout, "status", &status); err != nil {
		return nil, err
	}
	return status.status(), nil
}

// List returns the names of all locks that have a record and whose name begins with the prefix.
func (c *Client) List(ctx context.Context, prefix string) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		request := c.request("list", "")
		request["prefix"] = prefix
		err := c.each(ctx, request, answerTimeout, func(call *call, answer message) (bool, error) {
			if answer.event == "done" {
				return false, nil
			}
			var page struct {
				Names []string `json:"names"`
			}
			if err := call.read(answer, "names", &page); err != nil {
				return false, err
			}
			for _, name := range page.Names {
				if !yield(name, nil) {
					return false, nil
				}
			}
			return true, nil
		})
		if err != nil {
			yield("", err)
		}
	}
}

// each sends a request with several responses, and calls next with each one, until it returns false. limit is that of each
// response.
func (c *Client) each(ctx context.Context, request fields, limit time.Duration, next func(*call, message) (bool, error)) error {
	call, err := c.begin(ctx, request, settings{})
	if err != nil {
		return err
	}
	defer call.abandon()
	for {
		answer, err := call.next(ctx, limit)
		if err != nil {
			return err
		}
		if more, err := next(call, answer); !more {
			return err
		}
	}
}

// WaitFree waits until the lock is free, without acquiring it. It returns [ErrHeld] after [Wait].
func (c *Client) WaitFree(ctx context.Context, name string, options ...Option) error {
	return c.ask(ctx, c.request("wait_free", name), options, 0, "done", &nothing{})
}

// Evict ends the grant with this token. Make sure first that its holder has stopped; the holder may be any process. It
// reports whether that token still had the lock. See [Reason].
func (c *Client) Evict(ctx context.Context, name string, token int64, options ...Option) (bool, error) {
	request := c.request("evict", name)
	request["token"] = token
	var evicted wasHeld
	err := c.ask(ctx, request, options, answerTimeout, "evicted", &evicted)
	return evicted.WasHeld, err
}

// Sweep deletes the record of a lock that has been free for this long. It reports whether it did, or with [DryRun]
// would.
func (c *Client) Sweep(ctx context.Context, name string, olderThan time.Duration, options ...Option) (bool, error) {
	options = append(slices.Clone(options), setDuration("older_than", "olderThan", olderThan))
	var swept struct {
		Deleted bool `json:"deleted"`
	}
	err := c.ask(ctx, c.request("sweep", name), options, answerTimeout, "swept", &swept)
	return swept.Deleted, err
}

// ResizeSemaphore changes the number of permits of a semaphore in the store, and returns the number before. It returns
// [ErrHeld] if somebody holds a permit. The process must not be paused for longer than the [TTL] meanwhile.
func (c *Client) ResizeSemaphore(ctx context.Context, name string, permits int, options ...Option) (int, error) {
	return c.resize(ctx, name, "permit", append(slices.Clone(options), set("permits", permits)))
}

// ResizeRWLock changes the number of [Readers] of a readers-writer lock in the store, like [Client.ResizeSemaphore].
func (c *Client) ResizeRWLock(ctx context.Context, name string, readers int, options ...Option) (int, error) {
	return c.resize(ctx, name, "shared", append(slices.Clone(options), Readers(readers)))
}

func (c *Client) resize(ctx context.Context, name, mode string, options []Option) (int, error) {
	request := c.request("resize", name)
	request["mode"] = mode
	var resized struct {
		Before int `json:"before"`
	}
	err := c.ask(ctx, request, options, 0, "resized", &resized)
	return resized.Before, err
}

// Init creates what the store needs, such as a file or a table.
func (c *Client) Init(ctx context.Context) error {
	return c.ask(ctx, c.request("init", ""), nil, answerTimeout, "done", &nothing{})
}

// Capabilities returns what the store can do.
func (c *Client) Capabilities(ctx context.Context) (*Capabilities, error) {
	var found Capabilities
	if err := c.ask(ctx, c.request("capabilities", ""), nil, answerTimeout, "capabilities", &found); err != nil {
		return nil, err
	}
	return &found, nil
}

// Doctor checks whether the store is safe for locks. It takes seconds, and up to about 1,700 requests to a bucket. See
// [TTL] and [Thorough].
func (c *Client) Doctor(ctx context.Context, options ...Option) (*Report, error) {
	var report Report
	if err := c.ask(ctx, c.request("doctor", ""), options, 0, "report", &report); err != nil {
		return nil, err
	}
	return &report, nil
}

// Resume takes over the lock of a ticket: it renews the lock now, and keeps it.
func (c *Client) Resume(ctx context.Context, ticket string) (*Guard, error) {
	call, err := c.begin(ctx, c.ticketRequest("resume", ticket), settings{})
	if err != nil {
		return nil, err
	}
	answer, err := call.next(ctx, answerTimeout)
	if err != nil {
		return nil, err
	}
	return call.guard(ctx, answer, nil)
}

// RenewTicket renews the lock of a ticket once. It returns how long the lock is certain to be held.
func (c *Client) RenewTicket(ctx context.Context, ticket string) (time.Duration, error) {
	var renewed struct {
		RemainingMs millis `json:"remaining_ms"`
	}
	err := c.ask(ctx, c.ticketRequest("renew_ticket", ticket), nil, answerTimeout, "ticket_renewed", &renewed)
	return renewed.RemainingMs.duration(), err
}

// ReleaseTicket releases the lock of a ticket. It reports whether the lock was held until now.
func (c *Client) ReleaseTicket(ctx context.Context, ticket string) (bool, error) {
	var released wasHeld
	err := c.ask(ctx, c.ticketRequest("release_ticket", ticket), nil, answerTimeout, "released", &released)
	return released.WasHeld, err
}

func (c *Client) ticketRequest(op, ticket string) fields {
	request := c.request(op, "")
	request["ticket"] = ticket
	return request
}

# frozen_string_literal: true

require_relative "call"
require_relative "duration"
require_relative "lock"
require_relative "nested"
require_relative "settings"
require_relative "values"

module Leasehold
  # A store of locks: a URL such as "sqlite:locks.db" or "s3://bucket/locks", or an alias of config.toml. Without one,
  # it is the default store of the `leasehold` command (LEASEHOLD_STORE, config.toml, a SQLite file). It sends no
  # request when it is created. Several threads can use it, and forked children.
  #
  #   locker = Leasehold::Locker.new("sqlite:locks.db")
  #   locker.lock("deploy/prod", ttl: 30, wait: 60) do |guard|
  #     guard.check!
  #     deploy(fence: guard.token)
  #   end
  #
  # Durations are seconds, texts such as "1h 30m", or anything with `to_f`. The methods that return or acquire locks
  # have these settings: `ttl`, how long others wait if this process dies (30 s by default); `note` and `owner`, which
  # describe the holder to others; `lock_delay`, how much longer others wait after a holder's lease has lapsed;
  # `max_hold`, how long the lock is held at most; `store_timeout`, how long the store may take to respond; `barge:
  # true`, so that earlier waiters have no precedence; `for_ticket: true`, if the lock will be passed on with
  # Guard#ticket.
  class Locker
    def initialize(store = nil)
      @store = Settings.url(store)
    end

    # Acquires a lock, runs the block with the guard, and releases the lock. Without a block, returns the guard. For
    # `wait`, `context` and `on_lost`, see Lock#lock.
    def lock(name, wait: nil, context: nil, on_lost: nil, **settings, &block)
      mutex(name, **settings).lock(wait: wait, context: context, on_lost: on_lost, &block)
    end

    # Acquires a lock if it is free now. Returns nil if another holder has it. Otherwise like #lock.
    def try_lock(name, on_lost: nil, **settings, &block)
      mutex(name, **settings).try_lock(on_lost: on_lost, &block)
    end

    # Returns the lock called `name`, which can be acquired several times with the same settings.
    def mutex(name, **settings)
      Lock.new(Settings.new(@store, name, **settings))
    end

    # Returns the locks called `names`, at most 64, which are acquired together: all or none, in the order of their
    # bytes, so that acquisitions with names in common never wait for each other for ever. A loss of one is the loss of
    # all.
    def lock_all(names, **settings)
      several = names.map(&:to_s).sort_by(&:b)
      Lock.new(Settings.new(@store, several.join(", "), { locks: several }, **settings))
    end

    # Returns a lock with up to `permits` holders, at most 64. The first acquisition records the number in the store.
    # One with another number raises SizeError.
    def semaphore(name, permits, **settings)
      Lock.new(Settings.new(@store, name, { mode: "permit", permits: permits }, **settings))
    end

    # Returns a readers-writer lock. It has two locks, `shared` and `exclusive`, and up to `readers` shared holders: 8
    # by default, and at most 64. The first acquisition records the number in the store. One with another number raises
    # SizeError.
    def rw_lock(name, readers: nil, **settings)
      RwLock.new(*%w[shared exclusive].map do |mode|
        Lock.new(Settings.new(@store, name, { mode: mode, readers: readers }.compact, **settings))
      end)
    end

    # Returns the election called `name`. This candidate advertises `value` while it leads.
    def election(name, value: nil, **settings)
      Election.new(Settings.new(@store, name, { mode: "leader", value: value }.compact, **settings))
    end

    # Runs the block once per period, on one of several machines. Returns Ran with its value, or AlreadyRan.
    #
    #   result = locker.once("nightly", per: "12h") { report }
    #   puts result.value if result.ran?
    #
    # While another process runs the job, this method waits for at most `wait`; with `nowait: true`, it raises LockHeld
    # instead. If the block raises an error or is left with `break` or `return`, the job may run again in the same
    # period. If the lock was lost, or the run could not be recorded, this method raises an error.
    def once(name, per:, wait: nil, nowait: false, **settings, &block)
      block or raise ArgumentError, "no block given"
      settings = Settings.new(@store, name, **settings)
      more = { period_ms: Duration.milliseconds(per, "per"), **(nowait ? { nowait: true } : {}) }
      fields = settings.request("once", wait: wait, **more)
      Nested.forbid(settings) unless nowait || fields[:wait_ms]&.zero?
      call = Call.new(fields, limit: nil) { |agent| Nested.holding(agent) }
      Holding.acquire(call, settings, cooldown: per) { |guard| Ran.new(value: block.call(guard)).freeze }
    end

    # Returns the state of a lock.
    def status(name)
      run("status", "status", lock: name) { |message| Status.of(message) }
    end

    # Returns the names of all locks that have a record and whose name begins with `prefix`.
    def list(prefix = "")
      call = Call.new(request("list", prefix: prefix)).start
      names = []
      while (message = call.next)["ev"] == "names"
        names.concat(message["names"])
      end
      names
    ensure
      call&.abandon
    end

    # Waits until the lock is free, without acquiring it. Raises LockHeld after `wait`.
    def wait_free(name, wait: nil)
      run("wait_free", "done", lock: name, wait_ms: Settings.wait_ms(wait, nil), limit: nil)
      nil
    end

    # Ends the grant with this token. Make sure first that its holder has stopped; the holder may be any process. The
    # history of the lock keeps the `reason`. Returns whether that token still held the lock.
    def evict(name, token, reason: nil)
      run("evict", "evicted", lock: name, token: token, reason: reason)["was_held"] == true
    end

    # Deletes the record of a lock that has been free for `older_than`. Returns whether it did, or with `dry_run` would.
    def sweep(name, older_than:, dry_run: false)
      older_than_ms = Duration.milliseconds(older_than, "older_than")
      run("sweep", "swept", lock: name, older_than_ms: older_than_ms, dry_run: dry_run)["deleted"] == true
    end

    # Changes the number of permits of a semaphore, or of readers of a readers-writer lock, in the store. Returns the
    # number before. Raises LockHeld if somebody holds the lock. The process must not be paused for longer than `ttl`
    # meanwhile.
    def resize(name, permits: nil, readers: nil, ttl: nil)
      raise ArgumentError, "resize takes either permits or readers" if permits.nil? == readers.nil?

      size = permits ? { mode: "permit", permits: permits } : { mode: "shared", readers: readers }
      ttl_ms = Duration.optional(ttl, "ttl")
      run("resize", "resized", lock: name, **size, ttl_ms: ttl_ms, limit: nil) do |message|
        Wire.integer(message, "before")
      end
    end

    # Creates what the store needs, such as a file or a table.
    def init
      run("init", "done")
      nil
    end

    # Returns what the store can do.
    def capabilities
      run("capabilities", "capabilities") { |message| Capabilities.of(message) }
    end

    # Checks whether the store is safe for locks. Takes seconds, and up to about 1,700 requests to a bucket.
    def doctor(ttl: nil, thorough: false)
      ttl_ms = Duration.optional(ttl, "ttl")
      run("doctor", "report", ttl_ms: ttl_ms, thorough: thorough, limit: nil) { |message| Report.of(message) }
    end

    # Takes over the lock of a ticket: renews it now and keeps it. Like #lock, with a block or without.
    def resume(ticket, on_lost: nil, &block)
      call = Call.new(request("resume", ticket: ticket))
      # No lock of this name can be acquired while this one is held, so nobody waits for it with the same settings.
      Holding.acquire(call, Settings.new(@store, ""), on_lost: on_lost, &block)
    end

    # Renews the lock of a ticket once. Returns for how many seconds it is certain to be held.
    def renew_ticket(ticket)
      run("renew_ticket", "ticket_renewed", ticket: ticket) { |message| Values.seconds(message["remaining_ms"]) }
    end

    # Releases the lock of a ticket. Returns whether it was held until now.
    def release_ticket(ticket)
      run("release_ticket", "released", ticket: ticket)["was_held"] == true
    end

    # A URL may contain a password.
    def inspect
      "#<#{self.class}>"
    end

    private

    def run(operation, event, limit: Pending::ANSWER_LIMIT, **fields, &read)
      Call.run(request(operation, **fields), event, limit: limit, &read)
    end

    def request(operation, **fields)
      fields[:lock] = fields[:lock].to_s if fields.key?(:lock)
      { op: operation, **Settings.store(@store), **fields.compact }
    end
  end
end

# frozen_string_literal: true

require_relative "call"
require_relative "guard"
require_relative "nested"
require_relative "settings"
require_relative "values"

module Leasehold
  # Acquires locks, with and without a block.
  module Holding
    # Runs the block with the guard, and then releases the lock. Without a block, returns the guard. If the job of
    # `once` ran already, returns AlreadyRan. With `if_free`, returns nil if another holder has the lock.
    #
    # An exception can interrupt this method at any point. Whatever was granted by then is released.
    def self.acquire(call, settings, if_free: false, on_lost: nil, cooldown: nil, &block)
      forbid_raise(on_lost, block)
      handed = completed = failed = false
      begin
        message = first_message(call, if_free)
        return message && Call.read(message) { AlreadyRan.of(message) } unless message && message["ev"] == "held"

        guard = Guard.new(call)
        Nested.remember(settings, guard)
        guard.on_lost(&on_lost.method(:call)) if on_lost && on_lost != :raise
        return guard.tap { handed = true } unless block

        guard.in_block = true
        result = on_lost == :raise ? interrupted_by_loss(guard, &block) : yield(guard)
        completed = true
        result
      rescue Exception
        failed = true
        raise
      ensure
        begin
          # Also a `return` from the block gets here. A thread that is killed gets no error.
          unharmed = !failed && Thread.current.status != "aborting"
          guard.leave(unharmed, completed ? cooldown : nil) if guard && !handed
        ensure
          # The first step of the release may have been interrupted.
          Thread.handle_interrupt(Object => :never) { call.abandon } unless handed
        end
      end
    end

    class << self
      private

      def forbid_raise(on_lost, block)
        return if on_lost.nil? || on_lost.respond_to?(:call)
        raise ArgumentError, "on_lost must be :raise, or respond to `call`" unless on_lost == :raise
        raise ArgumentError, "on_lost: :raise needs a block" unless block
        return unless Nested.blocks_only_the_fiber?

        raise ArgumentError, "on_lost: :raise could interrupt another fiber: use check!, or a callable"
      end

      def first_message(call, if_free)
        message = call.start.next
        return message if %w[held already_ran].include?(message["ev"])

        raise AgentError.new("the agent responded with #{message["ev"].inspect}")
      rescue LockHeld
        raise unless if_free
      end

      # Raises LockLost in this thread if the lock is lost during the block, and never after it.
      def interrupted_by_loss(guard)
        thread = Thread.current
        gate = Mutex.new
        open = true
        guard.on_lost { |loss| gate.synchronize { thread.raise(loss) if open } }
        Thread.handle_interrupt(LockLost => :never) do
          Thread.handle_interrupt(LockLost => :immediate) { yield guard }
        ensure
          Thread.handle_interrupt(Object => :never) { gate.synchronize { open = false } }
        end
      end
    end
  end

  # A named lock, with the settings for acquiring it: see Locker#mutex. It is not reentrant. Several threads can use it.
  # It has the methods of Ruby's Mutex, except sleep.
  class Lock
    def initialize(settings)
      @settings = settings
      # The fiber of each guard that this object has acquired, like the owner of a Mutex.
      @held = {}.compare_by_identity
    end

    def name
      @settings.name
    end

    # Acquires the lock, runs the block with the guard, and releases the lock. Returns the block's value. Without a
    # block, returns the guard: release it in an `ensure`, by Guard#release or #unlock.
    #
    # Waits for at most `wait`, or without a limit if it is nil, and then raises LockHeld. With the `context` of an AWS
    # Lambda function, the wait ends a second before the invocation does. If the lock is lost during the block,
    # `on_lost` is called in a new thread with the LockLost; with `on_lost: :raise`, it is raised in the block. If the
    # lock was lost and the block raised no error, the end of the block raises LockLost, so that unprotected work does
    # not look successful.
    def lock(wait: nil, context: nil, on_lost: nil, &block)
      fields = @settings.request("acquire", wait: wait, context: context)
      Nested.forbid(@settings) unless fields[:wait_ms]&.zero?
      acquire(fields, on_lost: on_lost, &block)
    end

    # Acquires the lock if it is free now, as #lock does. Returns nil if another holder has it.
    def try_lock(on_lost: nil, &block)
      acquire(@settings.request("try"), if_free: true, on_lost: on_lost, &block)
    end

    # Does what #lock does with a block.
    def synchronize(**options, &block)
      block or raise ThreadError, "must be called with a block"
      lock(**options, &block)
    end

    # Releases the lock that the current fiber has acquired by this object. Raises ThreadError if it has acquired none,
    # and LockLost if the lock was lost.
    def unlock
      guard = guards(Fiber.current).reverse.find { |one| one.held? || one.lost? }
      guard or raise ThreadError, "the current fiber has not acquired `#{name}` by this object"
      @held.delete(guard)
      guard.leave(true)
      self
    end

    # Whether this process holds the lock by this object. Locker#status tells whether anybody holds it.
    def locked?
      guards.any?(&:held?)
    end

    # Whether the current fiber holds the lock by this object.
    def owned?
      guards(Fiber.current).any?(&:held?)
    end

    def inspect
      "#<#{self.class} #{name}>"
    end

    private

    def acquire(fields, **options, &block)
      # The agent enforces the time limit. A wait for another holder may take until then.
      allowed = fields.fetch(:wait_ms) { fields[:op] == "try" ? 0 : nil }
      limit = allowed && (allowed + fields.fetch(:store_timeout_ms, 0)) / 1_000.0 + Pending::ANSWER_LIMIT
      call = Call.new(fields, limit: limit) { |agent| Nested.holding(agent) }
      return Holding.acquire(call, @settings, **options)&.tap { |guard| keep(guard) } unless block

      Holding.acquire(call, @settings, **options) do |guard|
        keep(guard)
        block.call(guard)
      ensure
        @held.delete(guard)
      end
    end

    def keep(guard)
      guards.each { |one| @held.delete(one) unless one.held? }
      @held[guard] = Fiber.current
    end

    # The guards of this process, without those of its parent.
    def guards(of = nil)
      @held.to_a.filter_map { |guard, fiber| guard if (of.nil? || fiber.equal?(of)) && !guard.forked? }
    end
  end

  # A lock with either several shared holders or one exclusive holder. Both are Locks.
  RwLock = Struct.new(:shared, :exclusive)

  # An election: one of several candidates leads. The holder of the lock is the leader, and its token is the term.
  class Election < Lock
    # Reads the leader from the store. Returns nil if there is none. The result may be outdated.
    def leader
      Call.run({ op: "leader", **target }, "leader") { |message| Leader.of(message) }
    end

    # Calls the block with the leader, which is nil if there is none, and then after every change, until the block is
    # left with `break`. Without a block, returns an Enumerator.
    def observe
      return to_enum(:observe) unless block_given?

      call = Call.new({ op: "observe", **target }, limit: nil)
      begin
        call.start
        loop { yield Call.read(call.expect("leader")) { |message| Leader.of(message) } }
      ensure
        call.abandon
      end
    end

    private

    def target
      { **Settings.store(@settings.store), lock: name }
    end
  end
end

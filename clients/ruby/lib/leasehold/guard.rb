# frozen_string_literal: true

require_relative "call"
require_relative "clock"
require_relative "duration"
require_relative "errors"
require_relative "log"

module Leasehold
  # A lock that is held. The agent renews it until it is released.
  #
  # All methods may be called by any thread, and by the handler of a signal. In a forked child, they raise ForkedError.
  class Guard
    # Whether the thread that acquired the lock is in a block that ends with the hold.
    attr_accessor :in_block

    # The call that was granted the lock releases it if this guard is garbage collected.
    def initialize(call)
      @call = call
      @agent = call.agent
      @hold = call.hold
      @in_block = false
    end

    # The name of the lock. For a semaphore or a shared hold, the name of the permit. For several locks, their names,
    # separated by commas.
    def name
      @hold.name
    end

    # The fencing token: greater than the token of every earlier grant of this lock. Send it with every write, and let
    # the resource refuse lower tokens.
    def token
      return @hold.token if @hold.token

      tokens.size > 1 or raise StoreError.new("locks in this store have no fencing tokens", kind: "unsupported")
      raise StoreError.new("a hold of #{tokens.size} locks has no single token: use tokens", kind: "unsupported")
    end

    # The fencing token of each lock, by its name. There is one, except for Locker#lock_all.
    def tokens
      @hold.tokens or raise StoreError.new("locks in this store have no fencing tokens", kind: "unsupported")
    end

    # Checks that the lock is still held. Sends no request. Raises LockLost if it was lost or released.
    def check!
      error = @agent.error_of(@hold)
      raise error if error
    end

    # Whether the lock was lost, as in #check!. A lock that was released is not lost.
    def lost?
      @agent.error_of(@hold)
      !@hold.loss.nil?
    end

    # Whether the lock is still held, as in #check!.
    def held?
      @agent.error_of(@hold).nil?
    end

    # For how many seconds the lock is certain to be held without another renewal, or 0 if the hold is over.
    def remaining
      return 0.0 if @agent.error_of(@hold)

      [@hold.left_us(Clock.now), 0].max / 1_000_000.0
    end

    # Calls the block with the LockLost in a new thread if the lock is lost.
    def on_lost(&block)
      block or raise ArgumentError, "no block given"
      @agent.forbid_forked
      @agent.listen(@hold, lambda do |loss|
        Thread.new(loss, &block).name = "leasehold-on-lost"
      rescue ThreadError
        # The process is ending.
      end)
      self
    end

    # Renews the lease now and waits for the response. Correct even after a pause in which both clocks stopped.
    # Raises LockLost if the lock was lost, and StoreError if the store has not responded after `timeout`.
    def renew(timeout: nil)
      check!
      limit = Duration.optional(timeout, "timeout")&.fdiv(1_000)
      begin
        Call.run({ op: "renew", hold: @hold.number }, "renewed", limit: limit, patient: true, agent: @agent)
      rescue LockLost => error
        @agent.lose(@hold, @hold.lost(error.summary, error.reason, help: error.help))
      end
      check!
    end

    # Releases the lock. Returns whether it was held until now. With `cooldown`, the lock is not granted again before
    # this time has passed since it was granted.
    def release(cooldown: nil)
      @agent.forbid_forked
      cooldown_ms = Duration.optional(cooldown, "cooldown")
      # The agent refuses a cooldown of zero, which means none.
      more = cooldown_ms&.positive? ? { cooldown_ms: cooldown_ms } : {}
      !@hold.over? && over("release", "released", more)["was_held"] == true
    rescue AgentError
      raise unless @hold.loss # It was lost with the agent, before the release.

      false
    end

    # Ends this hold and returns the lock as a ticket, which another process can resume. A ticket is a secret.
    def ticket
      check!
      over("ticket", "ticket")["ticket"]
    end

    # Ends the block that holds the lock. `completed`: it raised no error, so a loss becomes one.
    def leave(completed, cooldown = nil)
      return if @agent.forked? # The lock is the parent's.

      error = @agent.error_of(@hold)
      return if error && @hold.loss.nil? # The block has released it.
      raise error if error && completed

      released = release(cooldown: cooldown)
      raise @hold.lost("lock `#{name}` was lost before it was released", "ended") if completed && !released
    rescue StoreError => error
      raise if completed && cooldown

      Leasehold.log("lock `#{name}` was not released and stays held until its lease ends: #{error.message}")
    end

    # The number of the hold if it belongs to this agent.
    def number_for(agent)
      @hold.number if agent.equal?(@agent)
    end

    def forked?
      @agent.forked?
    end

    def inspect
      "#<#{self.class} #{name} token=#{@hold.token.inspect} #{@hold.over? ? "over" : "held"}>"
    end

    private

    def over(op, event, more = {})
      Call.new({ op: op, hold: @hold.number, **more }, agent: @agent, ends: @hold).start.expect(event)
    end
  end
end

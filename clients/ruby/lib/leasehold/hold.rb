# frozen_string_literal: true

require_relative "clock"
require_relative "errors"

module Leasehold
  # A held lock, from the messages that this process has read. Only the agent's thread changes it.
  class Hold
    attr_reader :number, :name, :token, :tokens, :loss, :deadline

    def initialize(number, name, token, tokens, deadline)
      @number = number
      @name = name
      @token = token
      # The token of each lock. An agent of an earlier version sends none.
      @tokens = tokens || (token && { name => token })
      @deadline = deadline
      @listeners = []
      @loss = nil
      @over = false
    end

    # Whether the lock is known to be lost or released. Does not read the clocks.
    def over?
      @over
    end

    # Returns the error of a use of a hold that is over. A new one each time, because an error collects a backtrace.
    def error
      @loss&.dup || lost("lock `#{name}` was released", "over")
    end

    def left_us(now)
      @deadline.remaining_us(now)
    end

    # Applies a renewal. A late message about an earlier renewal changes nothing.
    def renewed(deadline)
      @deadline = deadline if deadline.start.boot_us >= @deadline.start.boot_us
    end

    # Returns the loss of a hold whose deadline has passed.
    def expired
      if @deadline.at_limit
        lost("lock `#{name}` was lost: it was held for as long as its limit allows", "limit")
      else
        lost("lock `#{name}` was lost: its lease was not renewed in time", "expired")
      end
    end

    def lost(summary, reason, help: [])
      LockLost.new(summary, reason: reason, name: name, token: token, help: help)
    end

    # Calls `listener` with the loss if the lock is lost. It must not block.
    def listen(listener)
      if @loss
        listener.call(@loss.dup)
      elsif !@over
        @listeners << listener
      end
    end

    def lose(loss)
      return if @over

      @loss = loss
      @over = true
      @listeners.each { |listener| listener.call(loss.dup) }
      @listeners.clear
    end

    def end
      @over = true
      @listeners.clear
    end
  end

  # A request. Its caller takes the outcomes, which the agent's thread delivers: messages or errors.
  class Pending
    # The outcome of a request that was not sent because the agent ended for want of work.
    RETRY = Object.new.freeze
    # The requests that write an object.
    WRITES = %w[put update answer].freeze
    # How long an agent may take to respond to a request that does not wait for other holders, in seconds. This is
    # longer than a store may take.
    ANSWER_LIMIT = 120

    attr_reader :op, :limit, :ends
    # Set when the request is sent: its id, and when its response is late.
    attr_accessor :agent, :id, :due
    # The hold of the final response.
    attr_accessor :hold
    attr_writer :abandoned

    # `limit`: for how many seconds the agent may be silent. `patient`: then only this request fails, instead of all.
    # `ends`: the hold that the request ends.
    def initialize(op, limit: nil, patient: false, ends: nil)
      @op = op
      @limit = limit
      @patient = patient
      @ends = ends
      @outcomes = Thread::Queue.new
      @concluded = false
      @abandoned = false
    end

    # Extends the limit by some seconds.
    def allow(seconds)
      @limit &&= @limit + seconds
    end

    def patient?
      @patient
    end

    def abandoned?
      @abandoned
    end

    def writes?
      WRITES.include?(op)
    end

    # Waits for the next outcome.
    def take
      @outcomes.pop
    end

    def deliver(outcome)
      @outcomes << outcome unless @abandoned
    end

    def conclude(outcome)
      @concluded = true
      deliver(outcome)
    end

    # Whether the agent would still have to do something if nobody wanted the request any more.
    def open?
      @concluded ? !(hold.nil? || hold.over?) : !agent.nil?
    end
  end
end

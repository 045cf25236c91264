# frozen_string_literal: true

require_relative "errors"
require_relative "hold"
require_relative "shared"
require_relative "wire"

module Leasehold
  # One request and its messages, for the thread that sends it.
  class Call
    attr_reader :agent

    # Sends a request with one response, and returns what the block makes of it.
    def self.run(fields, event, limit: Pending::ANSWER_LIMIT, agent: nil, **options)
      call = new(fields, limit: limit, agent: agent, **options)
      begin
        message = call.start.expect(event)
        block_given? ? read(message) { |fields_read| yield fields_read } : message
      ensure
        call.abandon
      end
    end

    # Returns what the block makes of a message of the agent.
    def self.read(message)
      yield message
    rescue TypeError, ArgumentError, NoMethodError, FloatDomainError
      raise AgentError.new("the agent sent a message that violates the protocol")
    end

    # Without `agent`, the request goes to the agent of this process. `more`, if given, returns further fields for it.
    def initialize(fields, limit: Pending::ANSWER_LIMIT, agent: nil, patient: false, ends: nil, &more)
      @fields = fields
      @given = agent
      @more = more
      @pending = Pending.new(fields.fetch(:op), limit: limit, patient: patient, ends: ends)
      ObjectSpace.define_finalizer(self, self.class.finalizer(@pending))
    end

    # Releases the lock of a guard that is garbage collected, and cancels a request that nobody waits for.
    def self.finalizer(pending)
      ->(_) { pending.agent&.abandon(pending, collected: true) }
    end

    # Sends the request. Starts the agent if there is none.
    def start
      loop do
        @agent = @given || Shared.agent
        body = Wire.body(@more ? @fields.merge(@more.call(@agent)) : @fields)
        return self if @agent.submit(@pending, body)
        raise AgentError.new("the agent has ended") if @given
        raise @agent.failure if @agent.failure
      end
    end

    # Waits for the next message.
    def next
      outcome = @pending.take
      while outcome.equal?(Pending::RETRY)
        start
        outcome = @pending.take
      end
      outcome.is_a?(Hash) ? outcome : raise(outcome)
    end

    # Waits for the next message, which must be `event`.
    def expect(event)
      message = self.next
      return message if message["ev"] == event

      raise AgentError.new("the agent responded with #{message["ev"].inspect}")
    end

    # The lock that was granted. Available after the message `held`.
    def hold
      @pending.hold
    end

    # The id of the request.
    def id
      @pending.id
    end

    # Abandons the request. If it was granted a lock, or is granted one later, the lock is released. Does not wait.
    def abandon
      @pending.agent&.abandon(@pending)
    end

    def inspect
      "#<#{self.class} #{@pending.op}>"
    end
  end
end

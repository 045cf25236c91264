# frozen_string_literal: true

require_relative "values"

module Leasehold
  # The base of all errors of this gem. `message` contains the advice of `help`.
  class Error < StandardError
    # What to do about the error, one line per item.
    attr_reader :help
    # The message without the advice.
    attr_reader :summary

    def initialize(summary = nil, help: [])
      @summary = summary || self.class.name
      @help = help
      super([@summary, *help].join("\n  help: "))
    end

    # Returns the error for an `error` message of the agent.
    def self.of(message)
      text = message["message"].to_s
      help = Array(message["help"]).map(&:to_s)
      case kind = message["kind"].to_s
      when "held" then LockHeld.new(text, held_by: HolderInfo.of(message["held_by"] || {}), help: help)
      when "lost"
        refused_by = Values.integer(message["refused_by"])
        LockLost.new(text, reason: refused_by ? "refused" : "expired", refused_by: refused_by, help: help)
      when "invalid"
        sizes = message["sizes"] or return StoreError.new(text, kind: kind, help: help)
        SizeError.new(text, asked: Values.integer(sizes["asked"]), stored: Values.integer(sizes["stored"]), help: help)
      when "deadlock" then DeadlockError.new(text, help: help)
      else StoreError.new(text, kind: kind, maybe_applied: message["maybe_applied"] == true, help: help)
      end
    end
  end

  # Another holder has the lock, and still had it at the end of the wait.
  class LockHeld < Error
    # What the store says about the holder.
    attr_reader :held_by

    def initialize(summary = nil, held_by: HolderInfo.of({}), help: [])
      super(summary, help: help)
      @held_by = held_by
    end

    # The process that has the lock; nil if it is unknown.
    def holder
      held_by.holder
    end

    # The holder's fencing token; nil if it is unknown.
    def token
      held_by.token
    end

    # The holder's note; nil if it has none.
    def note
      holder&.note
    end
  end

  # The lock was lost. Stop the work that it protected. A loss is final: acquire the lock again.
  class LockLost < Error
    # "expired", "limit", "taken_over", "ended", "deleted", "renewed_elsewhere", "agent", "refused" or "over".
    attr_reader :reason
    # The name and the fencing token of the lock; nil if they are unknown.
    attr_reader :name, :token
    # If a fenced write was refused: the higher token of an earlier write.
    attr_reader :refused_by

    def initialize(summary = nil, reason: "expired", name: nil, token: nil, refused_by: nil, help: [])
      super(summary, help: help)
      @reason = reason
      @name = name
      @token = token
      @refused_by = refused_by
    end
  end

  # A problem with the store, its URL, its permissions or an argument.
  class StoreError < Error
    # "unavailable", "denied", "invalid", "unsupported", "corrupt", "conflict", "limit", "agent", ...
    attr_reader :kind
    attr_writer :maybe_applied

    def initialize(summary = nil, kind: "unavailable", maybe_applied: false, help: [])
      super(summary, help: help)
      @kind = kind
      @maybe_applied = maybe_applied
    end

    # Whether the write of an object that failed may have been applied, or may be applied later.
    def maybe_applied?
      @maybe_applied
    end
  end

  # The agent (the command `leasehold agent`) could not be started, has ended, or does not respond.
  class AgentError < StoreError
    def initialize(summary = nil, maybe_applied: false, help: [])
      super(summary, kind: "agent", maybe_applied: maybe_applied, help: help)
    end
  end

  # The store has another number of permits or readers for this name. Locker#resize changes it while nobody holds the
  # lock.
  class SizeError < StoreError
    # The number that the acquisition asked for, and the number in the store.
    attr_reader :asked, :stored

    def initialize(summary = nil, asked: nil, stored: nil, help: [])
      super(summary, kind: "invalid", help: help)
      @asked = asked
      @stored = stored
    end
  end

  # The thread would wait for ever: for a lock that it holds itself in a block, or for another waiter that waits for a
  # lock that this one holds.
  class DeadlockError < Error; end

  # A guard was used in a forked child. It belongs to the process that acquired the lock.
  class ForkedError < Error; end

  # A block of Leasehold.serverless ended while locks were held.
  class LockLeftOpen < Error
    # The names of these locks.
    attr_reader :names

    def initialize(names)
      super("the handler returned while it held #{names.map { |name| "`#{name}`" }.join(", ")}",
            help: ["hold a lock in a block, which ends before the handler returns"])
      @names = names
    end
  end
end

# frozen_string_literal: true

require_relative "duration"

module Leasehold
  # The lock to acquire, and the settings for acquiring it.
  class Settings
    attr_reader :store, :name, :fields

    # `kind` has the fields for the kind of lock. The agent chooses the settings that are nil.
    def initialize(store, name, kind = {}, ttl: nil, note: nil, owner: nil, lock_delay: nil, max_hold: nil,
                   store_timeout: nil, barge: nil, for_ticket: nil)
      @store = store
      @name = name.to_s
      durations = { ttl_ms: ttl, lock_delay_ms: lock_delay, max_hold_ms: max_hold, store_timeout_ms: store_timeout }
      durations = durations.compact.to_h do |field, value|
        [field, Duration.milliseconds(value, field.to_s.delete_suffix("_ms"))]
      end
      others = { note: note, owner: owner, barge: barge || nil, for_ticket: for_ticket || nil }.compact
      @fields = { **kind, **durations, **others }.freeze
    end

    # The names of the locks.
    def names
      fields[:locks] || [name]
    end

    # Returns the fields of a request to acquire the lock.
    def request(op, wait: nil, context: nil, **more)
      target = fields.key?(:locks) ? {} : { lock: name }
      wait_ms = Settings.wait_ms(wait, context)
      { op: op, **Settings.store(store), **target, **fields, **(wait_ms ? { wait_ms: wait_ms } : {}), **more }
    end

    # How much of an invocation's time a wait leaves, so that the function can report that the lock is held.
    RESERVED_MS = 1_000

    # Returns the longest wait. It ends before the invocation with this context, as AWS Lambda passes it to a function.
    def self.wait_ms(wait, context)
      wait_ms = Duration.optional(wait, "wait")
      return wait_ms unless context

      [wait_ms, [context.get_remaining_time_in_millis - RESERVED_MS, 0].max].compact.min
    end

    def self.store(url)
      url ? { store: url } : {}
    end

    # Returns the URL of a store. A relative path of SQLite is relative to the folder of this process, not the agent's.
    def self.url(given)
      given ||= ENV.fetch("LEASEHOLD_STORE", "")
      given = given.to_s
      return if given.empty?

      scheme, colon, path = given.partition(":")
      return given unless colon == ":" && scheme.casecmp?("sqlite") && path.match?(%r{\A[^/?:]})

      folder = Dir.pwd.gsub("%", "%25").gsub("?", "%3F")
      "sqlite:#{folder.delete_suffix("/")}/#{path}"
    end

    def inspect
      "#<#{self.class} #{name}>"
    end
  end
end

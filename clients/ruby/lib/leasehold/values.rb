# frozen_string_literal: true

module Leasehold
  # A process that holds, held or waits for a lock, by its own description. `pid` is 0 for a ticket, and that of the
  # agent for a Ruby program. `value` is what a leader advertises. `max_hold` is the limit of the hold in seconds. Other
  # machines wrote these texts: validate them before use.
  Holder = Struct.new(:name, :host, :pid, :note, :value, :max_hold, keyword_init: true) do
    def self.of(fields)
      fields && Values.object(fields) && new(
        name: fields["name"].to_s, host: fields["host"].to_s, pid: Integer(fields["pid"] || 0), note: fields["note"],
        value: fields["value"], max_hold: Values.seconds(fields["max_hold_ms"])
      ).freeze
    end
  end

  # The holder of a lock, according to the store. Times are in seconds: `held_for` since the grant, `free_for` since the
  # lock is reserved, `lapses_within` until the lease ends if the holder is dead. `in_cooldown` and `reserved`: no
  # process holds the lock. `foreign` describes a holder that leasehold did not write. `ahead` and `waiter_ahead` say
  # who waits before this process.
  HolderInfo = Struct.new(
    :holder, :token, :held_for, :free_for, :lapses_within, :in_cooldown, :reserved, :foreign, :ahead, :waiter_ahead,
    keyword_init: true
  ) do
    def self.of(fields)
      Values.object(fields)
      new(
        holder: Holder.of(fields["holder"]), token: Values.integer(fields["token"]),
        held_for: Values.seconds(fields["held_ms"]), free_for: Values.seconds(fields["free_ms"]),
        lapses_within: Values.seconds(fields["lapses_within_ms"]), in_cooldown: fields["in_cooldown"] == true,
        reserved: fields["reserved"] == true, foreign: fields["foreign"], ahead: Values.integer(fields["ahead"]),
        waiter_ahead: Holder.of(fields["waiter_ahead"])
      ).freeze
    end
  end

  # A process in the line of waiters. `waited` is in seconds.
  Waiter = Struct.new(:holder, :waited, keyword_init: true)

  # Who evicted a holder, and why. Another machine wrote these texts.
  Eviction = Struct.new(:by, :reason, keyword_init: true)

  # A grant that has ended: how (`end`), and from when until when, in microseconds since 1970 by the clock of the store
  # or of the holder's machine.
  PastGrant = Struct.new(:token, :end, :from_us, :until_us, :holder, :evicted, keyword_init: true) do
    def self.of(fields)
      evicted = fields["evicted"]
      new(
        token: Values.integer(fields["token"]), end: fields["end"].to_s, from_us: Values.integer(fields["from_us"]),
        until_us: Values.integer(fields["until_us"]), holder: Holder.of(fields["holder"]),
        evicted: evicted && Eviction.new(by: evicted["by"].to_s, reason: evicted["reason"].to_s).freeze
      ).freeze
    end
  end

  # The state of a lock: "free", "held", "reserved", "cooldown" or "lapsed". `token` is that of the latest grant.
  Status = Struct.new(:name, :state, :held_by, :token, :waiters, :history, keyword_init: true) do
    def self.of(fields)
      new(
        name: fields["lock"].to_s, state: fields["state"].to_s,
        held_by: fields["held_by"] && HolderInfo.of(fields["held_by"]), token: Values.integer(fields["token"]),
        waiters: (fields["waiters"] || []).map do |one|
          Waiter.new(holder: Holder.of(one["holder"]), waited: Values.seconds(one["waited_ms"])).freeze
        end,
        history: (fields["history"] || []).map { |one| PastGrant.of(one) }
      ).freeze
    end

    def free?
      state == "free"
    end

    def held?
      state == "held"
    end
  end

  # The leader of an election. Another machine wrote the `value` that it advertises: validate it before use. `term` is
  # the leader's fencing token.
  Leader = Struct.new(:value, :term, :holder, keyword_init: true) do
    def self.of(message)
      fields = message["leader"]
      fields && new(
        value: fields["value"], term: Values.integer(fields["term"]), holder: Holder.of(fields["holder"])
      ).freeze
    end
  end

  # The job ran now.
  Ran = Struct.new(:value, keyword_init: true) do
    def ran?
      true
    end
  end

  # The job already ran in this period: run `by` a process, `ago` seconds ago. It may run again after at most
  # `again_within` seconds.
  AlreadyRan = Struct.new(:by, :token, :ago, :again_within, keyword_init: true) do
    def self.of(fields)
      new(
        by: Holder.of(fields["holder"]), token: Values.integer(fields["token"]),
        ago: Values.seconds(fields["ago_ms"]), again_within: Values.seconds(fields["again_within_ms"])
      ).freeze
    end

    def ran?
      false
    end
  end

  # What a store can do.
  Capabilities = Struct.new(:store, :tokens, :cooldowns, :fifo, :watches, :sees_dead_processes, keyword_init: true) do
    def self.of(fields)
      new(store: fields["store"].to_s, **(members - [:store]).to_h { |name| [name, fields[name.to_s] == true] }).freeze
    end
  end

  # One check of the doctor.
  Finding = Struct.new(:check, :verdict, :seen, :help, keyword_init: true)

  # The result of the doctor: whether a store is safe for locks.
  Report = Struct.new(:safe, :findings, keyword_init: true) do
    def self.of(fields)
      findings = (fields["findings"] || []).map do |found|
        Finding.new(**Finding.members.to_h { |name| [name, found[name.to_s]&.to_s] }).freeze
      end
      new(safe: fields["safe"] == true, findings: findings).freeze
    end

    def safe?
      safe
    end
  end

  # Reads single values of messages. A value of another type raises TypeError or ArgumentError.
  module Values
    def self.object(value)
      value.is_a?(Hash) ? value : raise(TypeError, "not an object of JSON")
    end

    def self.integer(value)
      value && Integer(value)
    end

    def self.seconds(milliseconds)
      milliseconds && Integer(milliseconds) / 1_000.0
    end
  end
end

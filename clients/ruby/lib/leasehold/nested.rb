# frozen_string_literal: true

require_relative "errors"
require_relative "log"
require "fiber"
require "weakref"

module Leasehold
  # Detects a thread that waits for a lock that it holds itself, and tells the agent what it holds meanwhile.
  module Nested
    Entry = Struct.new(:fiber, :settings, :guard)
    KEY = :leasehold_guards
    # The agent counts only so many.
    MOST = 8

    # Notes that the current thread and fiber have acquired this lock.
    def self.remember(settings, guard)
      entries = entries().select { |entry| held?(entry) }
      entries << Entry.new(Fiber.current, settings, WeakRef.new(guard))
      Thread.current.thread_variable_set(KEY, entries)
    end

    # Refuses a wait that cannot end, because the thread holds the lock in a block that it can leave only after the
    # wait. Warns if it holds it with a guard, which another thread could release.
    def self.forbid(settings)
      own = waiting.select { |entry| excludes?(entry.settings, settings) && held?(entry) }
      return if own.empty? # Also for a number of permits below 1, which the agent refuses.

      permits = settings.fields.fetch(:permits, 1)
      if own.count { |entry| guard(entry)&.in_block } >= permits
        raise DeadlockError.new("this thread holds `#{settings.name}` and would wait for itself",
                                help: ["a lock is not reentrant: pass the guard to the inner method instead"])
      end
      return if own.size < permits

      Leasehold.log("this thread holds `#{settings.name}` and waits for itself, unless another releases the guard")
    end

    # Returns the field with the numbers of the holds that the thread has in blocks, which it can leave only after the
    # wait. The innermost one comes first.
    def self.holding(agent)
      guards = waiting.reverse.filter_map { |entry| guard(entry) }
      numbers = guards.filter_map { |one| one.number_for(agent) if one.in_block && held_by_this_process?(one) }
      numbers.empty? ? {} : { holding: numbers.first(MOST) }
    end

    # Whether a wait blocks only the current fiber, and others of the thread continue.
    def self.blocks_only_the_fiber?
      !Fiber.scheduler.nil? && !Fiber.current.blocking?
    end

    class << self
      private

      def entries
        Thread.current.thread_variable_get(KEY) || []
      end

      # The entries of what stops during a wait: the thread, or with a scheduler of fibers, the fiber.
      def waiting
        return entries unless Nested.blocks_only_the_fiber?

        entries.select { |entry| entry.fiber.equal?(Fiber.current) }
      end

      # Whether a hold of `held` uses up what `wanted` needs.
      def excludes?(held, wanted)
        held.store == wanted.store && (held.names & wanted.names).any? &&
          [held, wanted].any? { |one| one.fields[:mode] != "shared" }
      end

      def guard(entry)
        entry.guard.__getobj__ if entry.guard.weakref_alive?
      rescue WeakRef::RefError
        nil
      end

      def held?(entry)
        one = guard(entry)
        !one.nil? && held_by_this_process?(one)
      end

      # The guards of a parent process are not held here.
      def held_by_this_process?(guard)
        !guard.forked? && guard.held?
      end
    end
  end
end

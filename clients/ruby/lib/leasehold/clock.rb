# frozen_string_literal: true

module Leasehold
  # The two clocks of a deadline. See "Clocks and deadlines" in docs/agent.md.
  module Clock
    # The clock that also counts while the machine sleeps. On macOS, CLOCK_MONOTONIC does.
    BOOT = defined?(Process::CLOCK_BOOTTIME) ? Process::CLOCK_BOOTTIME : Process::CLOCK_MONOTONIC
    # How much the clocks of an agent may differ from those of its host, in microseconds.
    TOLERANCE_US = 50_000

    # A reading of both clocks, in microseconds.
    Moment = Struct.new(:boot_us, :wall_us)

    # A moment and the span after it for which a lock is certain to be held. `at_limit`: it is the limit of the hold.
    Deadline = Struct.new(:start, :span_us, :at_limit) do
      # Returns the time that is left. It is zero or negative if the deadline has passed.
      def remaining_us(now)
        # The longer of the two elapsed times, rounded up.
        span_us - [now.boot_us - start.boot_us, now.wall_us - start.wall_us].max - 1
      end
    end

    # Reads both clocks.
    def self.now
      Moment.new(*[BOOT, Process::CLOCK_REALTIME].map { |clock| Process.clock_gettime(clock, :microsecond) })
    end

    # Reads the clock for time limits of this process, in seconds.
    def self.monotonic
      Process.clock_gettime(Process::CLOCK_MONOTONIC)
    end
  end
end

# frozen_string_literal: true

require_relative "helper"

# Tests fibers with a scheduler: a wait blocks only its fiber.
class TestFibers < LeaseholdTest
  # The smallest scheduler that waits for sleeps, and for what other threads do.
  class Scheduler
    def initialize
      @ready = Thread::Queue.new
      @sleeping = {}
      @blocked = {} # Nothing else keeps these fibers from being garbage collected.
    end

    def close
      until @ready.empty? && @sleeping.empty? && @blocked.empty?
        @ready.pop.resume until @ready.empty?
        @sleeping.select { |_, moment| moment <= now }.each_key(&:resume)
        Thread.pass
      end
    end

    def now
      Process.clock_gettime(Process::CLOCK_MONOTONIC)
    end

    def fiber(&block)
      Fiber.new(blocking: false, &block).tap(&:resume)
    end

    def block(_, timeout = nil)
      return kernel_sleep(timeout) if timeout

      @blocked[Fiber.current] = true
      Fiber.yield
      @blocked.delete(Fiber.current)
    end

    def unblock(_, fiber)
      @ready << fiber
    end

    def kernel_sleep(seconds)
      @sleeping[Fiber.current] = now + seconds
      Fiber.yield
      @sleeping.delete(Fiber.current)
    end

    def io_wait(*)
      raise "no fiber waits for a file"
    end
  end

  def test_a_wait_blocks_only_its_fiber
    events = []
    thread do
      Fiber.set_scheduler(Scheduler.new)
      Fiber.schedule do
        locker.lock("x") do |guard|
          events << :holds
          sleep 0.01 until events.include?(:waits)
          assert_raises(DeadlockError) { locker.lock("x", wait: LIMIT) }
          guard.check!
          events << :released
        end
      end
      Fiber.schedule do
        sleep 0.01 until events.include?(:holds)
        events << :waits
        locker.lock("x", wait: LIMIT) { events << :held }
        # An exception could interrupt another fiber.
        assert_raises(ArgumentError) { locker.lock("x", on_lost: :raise) { flunk } }
      end
    end.join
    assert_equal %i[holds waits released held], events
  end
end

# frozen_string_literal: true

require_relative "helper"

# Tests exceptions that interrupt a thread: Timeout.timeout, Thread#raise, Thread#kill, signals. None leaves a lock
# held.
class TestInterrupts < LeaseholdTest
  def test_a_timeout_during_an_acquisition_withdraws_it
    locker.lock("x") do
      assert_raises(Timeout::Error) { thread { Timeout.timeout(0.2) { locker.lock("x") } }.value }
      await("the withdrawal") { !sent?("acquire") }
    end
    assert_free
  end

  # Whether a request has been sent that has no response yet.
  def sent?(operation)
    agent.instance_variable_get(:@pending).values.any? { |request| request.op == operation }
  end

  # The interruption comes at any point of the acquisition, of the block and of the release.
  def test_a_timeout_at_any_moment_leaves_nothing_held
    locker.lock("x", &:check!)
    20.times do |n|
      thread do
        Timeout.timeout(0.001 * (n + 1)) { locker.lock("x", ttl: 3_600, wait: LIMIT, &:check!) while true }
      rescue Timeout::Error
        # Expected.
      end.join
      assert_free
    end
  end

  def test_a_grant_that_comes_after_the_interruption_is_released
    script({ expect: { op: "acquire" } }, { expect: { op: "cancel" } }, { send: [{ to: "acquire", **GRANT }] },
           { expect: { op: "release", hold: 1 } }, { end: [] })
    waiting = thread { Locker.new.lock("x") { flunk } }
    await("the request") { sent?("acquire") }
    waiting.raise(KeyError)
    assert_raises(KeyError) { waiting.value }
    await("the release") { sent?("release") }
    Shared.stop
    assert_equal "done", File.read("#{folder}/log")
  end

  # A signal can raise anywhere. Here, an exception comes at each line of the client in turn.
  def test_an_exception_at_every_line_leaves_nothing_held
    locker.lock("x", &:check!)
    source = "#{ROOT}/clients/ruby/lib"
    caller = Thread.current
    GC.disable # Nothing is left to finalizers.
    places = (1..).take_while do |at|
      place = nil
      trace = TracePoint.new(:line) do |point|
        next unless Thread.current == caller && point.path.start_with?(source) && (at -= 1).zero?

        place = "#{point.path}:#{point.lineno}"
        raise Interrupt
      end
      begin
        trace.enable { locker.lock("x", ttl: 3_600, wait: LIMIT, &:check!) }
      rescue Interrupt
        # Expected.
      end
      assert free_within?(10), "the lock is held after an exception at #{place}"
      place
    end
    assert_operator places.size, :>, 60
  ensure
    GC.enable
  end

  def free_within?(wait)
    thread { locker.lock("x", wait: wait) { true } }.value
  rescue LockHeld
    false
  end

  def test_a_thread_that_is_killed_releases
    entered = Thread::Queue.new
    held = thread { locker.lock("x", ttl: 3_600) { (entered << 1) && sleep } }
    entered.pop
    waiting = thread { locker.lock("x", ttl: 3_600) { flunk } }
    await("the waiter") { sent?("acquire") }
    waiting.kill.join
    await("the withdrawal") { !sent?("acquire") }
    held.kill.join
    assert_free
  end

  def test_a_loss_is_raised_in_the_block_if_asked
    slept = nil
    error = assert_raises(LockLost) do
      locker.lock("x", ttl: "3s", on_lost: :raise) do |guard|
        locker.evict("x", guard.token)
        sleep LIMIT
        slept = true
      end
    end
    assert_equal ["ended", nil], [error.reason, slept]
    assert_raises(ArgumentError) { locker.lock("x", on_lost: :raise) }
    assert_raises(ArgumentError) { locker.lock("x", on_lost: 5) { flunk } }
    assert_free
  end

  def test_a_loss_is_never_raised_after_the_block
    20.times do |n|
      begin
        locker.lock("x", on_lost: :raise) do |guard|
          # The agent's thread reports the loss while the block ends.
          hold = guard.instance_variable_get(:@hold)
          agent.send(:post) do
            agent.send(:send_unawaited, op: "release", hold: hold.number)
            agent.send(:end_hold, hold)&.lose(hold.lost("gone", "ended"))
          end
          sleep(n * 0.000_1)
        end
      rescue LockLost
        # Raised in the block or at its end.
      end
      sleep 0.02 # An exception here would fail the test.
    end
    assert_free
  end

  def test_on_lost_is_called_once_in_another_thread
    losses = Thread::Queue.new
    assert_raises(LockLost) do
      locker.lock("x", on_lost: ->(loss) { losses << [Thread.current, loss] }) do |guard|
        locker.evict("x", guard.token)
        assert_raises(LockLost) { guard.renew }
        other, loss = losses.pop
        refute_equal Thread.current, other
        assert_equal ["x", guard.token], [loss.name, loss.token]
      end
    end
    assert_empty losses
    released = locker.lock("y").on_lost { |loss| losses << loss }
    assert released.release
    assert_empty losses
  end

  HANDLER = <<~RUBY
    locker = Leasehold::Locker.new(ARGV[0])
    guard = locker.lock("x", ttl: "1h")
    trap("USR1") { $stdout.syswrite("\#{guard.held?} \#{guard.release} \#{guard.lost?}\\n") }
    trap("USR2") { locker.lock("y", &:check!); $stdout.syswrite("nested\\n") }
    trap("TERM") { raise "interrupted" }
    puts "ready"
    $stdout.flush
    begin
      loop { locker.lock("z", &:check!) }
    rescue RuntimeError => error
      puts error.message
    end
    puts locker.lock("z", wait: 30) { "free" }
  RUBY

  def test_handlers_of_signals_can_use_guards_and_raise
    host = program(HANDLER, url)
    assert_equal "ready", host.line
    host.signal(:USR1)
    assert_equal "true true false", host.line
    host.signal(:USR2)
    assert_equal "nested", host.line
    host.signal(:TERM)
    assert_ends host, "interrupted", "free"
    assert_free("z")
  end

  SLEEPS = <<~RUBY
    trap("INT", "DEFAULT") # A program in the background of a shell ignores it.
    Leasehold::Locker.new(ARGV[0]).lock("x", ttl: "1h") do
      puts "held"
      $stdout.flush
      sleep
    end
  RUBY

  def test_a_signal_that_ends_the_program_releases
    { TERM: 15, INT: 2 }.each do |name, number|
      host = program(SLEEPS, url)
      assert_equal "held", host.line
      host.signal(name)
      assert_equal number, host.wait.termsig
      assert_equal "released", locker.status("x").history.first.end
      assert_free
    end
  end

  def test_a_mask_of_the_caller_stays
    Thread.handle_interrupt(KeyError => :never) do
      locker.lock("x") do
        Thread.current.raise(KeyError)
        locker.lock("y", on_lost: :raise, &:check!)
      end
      assert Thread.pending_interrupt?
      assert_raises(KeyError) { Thread.handle_interrupt(KeyError => :immediate) { Thread.pass } }
    end
    assert_free
  end
end

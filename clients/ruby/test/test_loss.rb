# frozen_string_literal: true

require_relative "helper"

# Tests losses: what the holder notices, and when. The tests stop and kill the agent and the program.
class TestLoss < LeaseholdTest
  HOLDS = <<~RUBY
    guard = Leasehold::Locker.new(ARGV[0]).lock("x", ttl: ARGV[1])
    puts Leasehold::Shared.agent.pid
    $stdout.flush
    while $stdin.gets
      begin
        guard.check!
        puts "held"
      rescue Leasehold::LockLost => error
        puts "lost \#{error.reason}"
      end
      $stdout.flush
    end
  RUBY

  def lost(guard)
    Thread::Queue.new.tap { |losses| guard.on_lost { |loss| losses << loss } }
  end

  def reason(guard)
    assert_raises(LockLost) { guard.check! }.reason
  end

  # Stops an agent, but not while it writes, because no other process could write to the file until it continues.
  def stop_agent(pid)
    loop do
      Process.kill(:STOP, pid)
      command = [ENV.fetch("LEASEHOLD_COMMAND"), "run", "--store", url, "--wait", "5s", "probe", "--", "true"]
      _, status = Open3.capture2e(*command)
      return if status.success?

      Process.kill(:CONT, pid)
    end
  end

  def test_an_eviction_is_reported
    guard = locker.lock("x", ttl: "3s")
    losses = lost(guard)
    locker.evict("x", guard.token)
    assert_equal "ended", losses.pop.reason
    assert guard.lost? && !guard.held? && guard.remaining.zero? && !guard.release
  end

  def test_a_hold_ends_at_its_limit
    error = assert_raises(LockLost) { locker.lock("x", max_hold: "1s", ttl: "5s") { |guard| lost(guard).pop } }
    assert_equal "limit", error.reason
    assert_free
    ended = locker.status("x").history.find { |grant| grant.end == "limit" }
    assert_equal 1, ended.holder.max_hold
  end

  def test_the_end_of_the_agent_is_a_loss_at_once
    guard = locker.lock("x", ttl: 3_600)
    losses = lost(guard)
    dead = agent.pid
    Process.kill(:KILL, dead)
    assert_equal "agent", losses.pop.reason
    assert_equal "agent", reason(guard)
    refute guard.release
    # This program may still be in a step that it began after a check.
    assert_nil locker.try_lock("x")
    refute_equal dead, agent.pid
    await("the burial") { !alive?(dead) }
  end

  def test_an_unread_end_of_the_agent_is_a_loss
    guard = locker.lock("x", ttl: 3_600)
    here = agent
    stopped(here) do
      Process.kill(:KILL, here.pid)
      await("the end of the file") { !here.instance_variable_get(:@process).silent? }
    end
    assert_equal "agent", reason(guard)
  end

  def test_a_loss_that_was_read_counts_before_it_is_applied
    guard = locker.lock("x")
    hold = guard.instance_variable_get(:@hold)
    reached = Thread::Queue.new
    go_on = Thread::Queue.new
    agent.send(:post) do
      (reached << 1) && go_on.pop
      agent.send(:end_hold, hold).lose(hold.lost("evicted", "ended"))
    end
    reached.pop
    checked = thread { guard.check! }
    await("the check") { checked.stop? }
    go_on << 1
    assert_equal "ended", assert_raises(LockLost) { checked.value }.reason
  end

  # Runs the block while the agent's thread waits.
  def stopped(agent)
    reached = Thread::Queue.new
    go_on = Thread::Queue.new
    agent.send(:post) { (reached << 1) && go_on.pop }
    reached.pop
    yield
  ensure
    go_on << 1
  end

  def alive?(pid)
    Process.kill(0, pid)
    true
  rescue Errno::ESRCH
    false
  end

  def test_an_agent_killed_at_each_step_is_replaced
    12.times do |n|
      killer = thread do
        sleep(n * 0.002)
        Process.kill(:KILL, await("the start") { Shared.running&.pid })
      end
      begin
        10.times { |m| locker.lock("x#{n}/#{m}", wait: LIMIT, &:check!) }
      rescue LockLost, AgentError
        # Expected.
      end
      # The loop may end before the killer finds an agent, because the death of the last one shows only now.
      holds_y? until killer.join(0.01)
    end
    await("a living agent") { holds_y? }
    await("the burials") { Thread.list.count { |one| one.name == "leasehold-agent" } == 1 }
    assert_equal 1, Dir["/proc/#{Process.pid}/task/*/children"].sum { |file| File.read(file).split.size }
  end

  def holds_y?
    locker.lock("y", wait: LIMIT) { true }
  rescue AgentError, LockLost
    false # The last agent died meanwhile.
  end

  def test_a_stopped_agent_is_a_loss_at_the_deadline
    guard = locker.lock("x", ttl: "3s")
    first = agent
    losses = lost(guard)
    stop_agent(first.pid)
    begin
      # No message can come, so this process finds the loss by itself.
      assert_equal "expired", losses.pop.reason
      assert_equal "expired", reason(guard)
    ensure
      Process.kill(:CONT, first.pid)
    end
    # The agent continues and reads the release. The lock is free, and the loss is final.
    assert_free
    assert guard.lost? && !guard.release
  end

  def test_a_check_reads_both_clocks
    2.times do |clock|
      guard = locker.lock("x", ttl: 3_600)
      now = Leasehold::Clock.now
      now[clock] += 3_600_000_000
      # As on a machine that has just woken from sleep, when no timer has fired yet.
      Leasehold::Clock.stub(:now, now) { assert_equal "expired", reason(guard) }
      assert_equal "expired", reason(guard)
      assert_free
    end
  end

  def test_an_unread_renewal_is_not_a_loss
    guard = locker.lock("x", ttl: "3s")
    hold = guard.instance_variable_get(:@hold)
    checked = nil
    stopped(agent) do
      sleep 0.05 while hold.left_us(Leasehold::Clock.now) > -100_000
      checked = thread { guard.check! || :held }
      await("the check") { checked.stop? }
    end
    assert_equal :held, checked.value
    assert guard.release
  end

  def test_a_release_that_was_begun_ends_the_hold
    guard = locker.lock("x")
    hold = guard.instance_variable_get(:@hold)
    await("its thread") { !agent.instance_variable_get(:@busy) }
    # The agent's thread does not know of it yet, as after an exception in `release`.
    agent.instance_variable_get(:@inbox) << -> { agent.send(:release, hold) }
    assert_equal "over", reason(guard)
    assert_free
  end

  def test_a_loss_is_final_although_a_renewal_follows
    script({ expect: { op: "acquire" } }, { send: [{ to: "acquire", **GRANT, clocks: { ago_us: 60_000_000 } }] },
           { expect: { op: "release" } }, { send: [{ hold: 1, ev: "renewed", span_us: 29_550_000, clocks: {} }] },
           { end: [] })
    guard = Locker.new.lock("x")
    2.times { assert_equal "expired", reason(guard) }
  end

  def test_a_stopped_program_keeps_its_lock
    host = program(HOLDS, url, "2s")
    assert host.line
    host.signal(:STOP)
    sleep 3 # Longer than the lease.
    host.signal(:CONT)
    host.say("check")
    assert_equal "held", host.line
  end

  def test_a_stop_of_both_is_a_loss
    host = program(HOLDS, url, "3s")
    child = Integer(host.line)
    stop_agent(child)
    host.signal(:STOP)
    # Others get the lock when the lease has ended.
    other = locker.lock("x", wait: LIMIT)
    # Continues the program first, so that its agent cannot notify it.
    host.signal(:CONT)
    host.say("check")
    assert_equal "lost expired", host.line
    Process.kill(:CONT, child)
    host.say("check")
    assert_equal "lost expired", host.line
    other.check!
    assert other.release
  end

  def test_a_killed_program_frees_its_lock_and_leaves_no_agent
    host = program(HOLDS, url, "1h")
    child = Integer(host.line)
    host.stop
    assert_free
    await("the end of the agent") { !alive?(child) }
  end

  # At the end of the program, threads still acquire locks, also in their `ensure`.
  def test_an_exit_with_busy_threads_ends
    code = <<~RUBY
      locker = Leasehold::Locker.new(ARGV[0])
      at_exit { locker.lock("x") { puts "at exit" } }
      Leasehold.logger = Class.new { def warn(_) = nil }.new
      4.times do |n|
        Thread.new do
          Thread.current.report_on_exception = false
          begin
            loop do
              locker.lock("x", &:check!)
            rescue Leasehold::Error
              # The agent has ended.
            end
          ensure
            locker.lock("y\#{n}", &:check!)
          end
        end
      end
      sleep 0.3
    RUBY
    assert_ends program(code, url), "at exit"
  end

  def test_an_exit_with_a_lock_waits_until_it_is_released
    code = <<~RUBY
      locker = Leasehold::Locker.new(ARGV[0])
      at_exit do # Runs after the handler of the gem, which is registered later.
        locker.lock("late") { puts "at exit" }
        Thread.new { locker.lock("z", ttl: "1h") { sleep } }
        sleep 0.01 until locker.status("z").held?
      end
      Thread.new { locker.lock("y") { sleep } }
      sleep 0.01 until locker.status("y").held?
      $guard = locker.lock("x", ttl: "1h")
      at_exit { puts $guard.held? }
      puts Leasehold::Shared.agent.pid
    RUBY
    host = program(code, url)
    child = Integer(host.line)
    assert_equal %w[true at\ exit], [host.line, host.line]
    assert host.wait.success?
    refute alive?(child)
    await("the release of z") { locker.status("z").history.any? }
    assert_equal ["released"] * 4, (%w[x y z late].map { |name| locker.status(name).history.first.end })
  end
end

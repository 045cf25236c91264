# frozen_string_literal: true

require_relative "helper"

# Tests forks: a guard belongs to the process that acquired it, and a locker works in both processes.
class TestFork < LeaseholdTest
  # Runs the block in a forked child, which ends without exit handlers.
  def in_child
    pid = fork do
      code = 1
      begin
        Timeout.timeout(LIMIT) { yield }
        code = 0
      rescue Exception => error
        $stderr.puts error.full_message
      ensure
        exit!(code)
      end
    end
    assert Process.wait2(pid)[1].success?
  end

  def test_a_guard_belongs_to_the_process_that_acquired_it
    locker.lock("x", ttl: 3_600) do |guard|
      in_child do
        %i[check! release renew ticket remaining held? lost?].each do |use|
          assert_raises(ForkedError) { guard.public_send(use) }
        end
        assert_raises(ForkedError) { guard.on_lost { flunk } }
      end
      guard.check!
      assert_nil locker.try_lock("x")
    end
    assert_free
  end

  def test_the_end_of_a_block_in_a_child_releases_nothing
    locker.lock("x", ttl: 3_600) do |guard|
      child = fork
      if child
        assert Process.wait2(child)[1].success?
        guard.check!
        assert_nil locker.try_lock("x")
      else
        at_exit { exit!(0) } # Before the handler of Minitest.
        next
      end
    end
    exit unless locker.status("x").free?
  end

  def test_a_child_that_exits_normally_leaves_the_parents_lock
    code = <<~RUBY
      locker = Leasehold::Locker.new(ARGV[0])
      $guard = locker.lock("x", ttl: "1h")
      child = fork { locker.lock("y", wait: 30) { puts "child" } }
      Process.wait(child)
      puts [$?.success?, $guard.held?, locker.try_lock("x").nil?].inspect
      Process.wait(fork { $guard = nil; GC.start; exit })
      puts $guard.held?
    RUBY
    assert_ends program(code, url), "child", "[true, true, true]", "true"
  end

  def test_a_locker_starts_another_agent_in_a_child
    locker.lock("x") do |guard|
      parents = agent.pid
      in_child do
        assert_nil locker.try_lock("x")
        # The thread of the child holds nothing, so this is no deadlock with itself.
        assert_raises(LockHeld) { locker.lock("x", wait: 0.1) }
        locker.lock("y", wait: LIMIT) do |mine|
          mine.check!
          refute_equal parents, agent.pid
        end
        Shared.stop
      end
      guard.check!
    end
  end

  def test_an_id_that_is_used_again_does_not_deceive
    guard = locker.lock("x")
    host = Process.pid
    in_child { Process.stub(:pid, host) { assert_raises(ForkedError) { guard.check! } } }
    assert guard.release
  end

  def test_a_fork_without_the_hook_is_noticed
    guard = locker.lock("x")
    # A child that a C library forked sees another id.
    Process.stub(:pid, 1) { assert_raises(ForkedError) { guard.check! } }
    # Before Ruby 3.1, there is no hook. Even with the id of its parent, the child finds that the thread is missing.
    forks = Leasehold::Fork.process.last
    host = Process.pid
    in_child do
      Leasehold::Fork.instance_variable_set(:@forks, forks)
      Process.stub(:pid, host) { assert_equal "agent", assert_raises(LockLost) { guard.check! }.reason }
    end
    assert guard.release
  end

  def test_forks_while_other_threads_use_the_agent
    done = false
    threads = Array.new(3) { thread { locker.lock("busy", wait: LIMIT, &:check!) until done } }
    5.times do
      in_child do
        locker.lock("mine", wait: LIMIT, &:check!)
        Shared.stop
      end
    end
    done = true
    threads.each(&:value)
  end

  def test_a_child_does_not_keep_the_agent_of_its_parent
    locker.lock("x", &:check!)
    here = agent.pid
    reads, writes = IO.pipe
    child = fork do
      writes.close
      reads.read
      exit!
    end
    # The agent ends if no other process has its pipe open. Otherwise it would be killed after a while.
    started = Process.clock_gettime(Process::CLOCK_MONOTONIC)
    Shared.stop
    assert_operator Process.clock_gettime(Process::CLOCK_MONOTONIC) - started, :<, AgentProcess::END_LIMIT
    assert_raises(Errno::ESRCH) { Process.kill(0, here) }
  ensure
    writes.close
    Process.wait(child)
  end

  def test_programs_that_this_one_starts_inherit_no_pipe
    locker.lock("x") do
      pipes = Dir["/proc/#{agent.pid}/fd/{0,1}"].map { |file| File.readlink(file) }
      assert_equal 2, pipes.size
      listed, = Open3.capture2("ls -l /proc/self/fd", close_others: false)
      pipes.each { |pipe| refute_includes listed, pipe }
      # Nor does the agent, except for its own two.
      ours, theirs = [Process.pid, agent.pid].map do |pid|
        Dir["/proc/#{pid}/fd/*"].reject { |file| file.match?(%r{/[012]\z}) }.filter_map { |file| link(file) }
      end
      assert_empty (ours & theirs).grep(/pipe|socket/)
    end
  end

  def link(file)
    File.readlink(file)
  rescue Errno::ENOENT
    nil # It was the file of the folder.
  end

  def test_a_daemon_starts_its_own_agent
    code = <<~RUBY
      locker = Leasehold::Locker.new(ARGV[0])
      guard = locker.lock("x", ttl: "1h")
      Process.daemon(true, true)
      begin
        guard.check!
      rescue Leasehold::ForkedError, Leasehold::LockLost => error
        puts error.class
      end
      locker.lock("y", wait: 30) { puts "daemon" }
    RUBY
    host = program(code, url)
    assert_equal ["Leasehold::ForkedError", "daemon"], [host.line, host.line]
    assert_free
  end
end

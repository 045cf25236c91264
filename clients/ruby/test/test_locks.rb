# frozen_string_literal: true

require_relative "helper"

# Tests locks with the real agent and SQLite.
class TestLocks < LeaseholdTest
  def test_a_lock_is_held_and_released
    first = nil
    value = locker.lock("deploy/prod", ttl: 30, wait: 60) do |guard|
      guard.check!
      assert guard.held? && !guard.lost? && guard.remaining.between?(1, 30)
      assert_equal "deploy/prod", guard.name
      first = guard
      :value
    end
    assert_equal :value, value
    locker.lock("deploy/prod") { |guard| assert_operator guard.token, :>, first.token }
    assert locker.status("deploy/prod").free?
    assert_match(/released/, assert_raises(LockLost) { first.check! }.message)
    assert !first.held? && !first.lost? && first.remaining.zero? && !first.release
  end

  def test_a_guard_without_a_block
    guard = locker.lock("x")
    assert_nil locker.try_lock("x")
    assert_nil(locker.try_lock("x") { flunk "the lock is held" })
    assert_equal [true, false], [guard.release, guard.release]
    assert_equal 5, locker.try_lock("x") { 5 }
    assert locker.try_lock("x").release
  end

  def test_a_held_lock_names_its_holder
    locker.lock("x", note: "make deploy", owner: "alice") do |guard|
      held = assert_raises(LockHeld) { thread { locker.lock("x", wait: 0.1) }.value }
      assert_equal ["alice", "make deploy", agent.pid], [held.holder.name, held.note, held.holder.pid]
      assert_equal guard.token, held.token
      assert_includes held.message, "alice"
      refute_empty held.help
      assert_raises(LockHeld) { locker.lock("x", wait: 0) }
    end
  end

  def test_a_refusal_inside_the_block_of_try_lock_is_not_that_of_the_lock
    assert_raises(LockHeld) { locker.try_lock("x") { raise LockHeld } }
    assert_free
  end

  def test_every_way_out_of_a_block_releases
    assert_raises(KeyError) { locker.lock("x") { raise KeyError } }
    assert_equal(1, locker.lock("x") { break 1 })
    assert_equal 2, returns
    assert_equal 3, catch(:out) { locker.lock("x") { throw :out, 3 } }
    assert_raises(SystemExit) { locker.lock("x") { exit } }
    assert_equal(4, locker.lock("x") { |guard| guard.release && 4 })
    assert locker.status("x").free?
  end

  def returns
    locker.lock("x") { return 2 }
  end

  def test_an_error_in_the_block_is_not_replaced
    assert_raises(KeyError) do
      locker.lock("x") do |guard|
        locker.evict("x", guard.token)
        raise KeyError
      end
    end
    assert locker.status("x").free?
  end

  def test_threads_take_turns
    lock = locker.mutex("x")
    inside = most = 0
    threads = Array.new(8) do
      thread do
        5.times do
          lock.lock(wait: LIMIT) do
            most = [most, inside += 1].max
            Thread.pass
            inside -= 1
          end
        end
      end
    end
    threads.each(&:join)
    assert_equal 1, most
  end

  def test_a_lock_has_the_methods_of_a_mutex
    mutex = locker.mutex("x", ttl: 3_600)
    assert_empty Mutex.instance_methods(false) - mutex.methods - %i[sleep]
    refute mutex.locked?
    assert mutex.lock
    GC.start # The lock keeps its guard.
    assert mutex.locked? && mutex.owned? && locker.status("x").held?
    assert_equal [true, false], thread { [mutex.locked?, mutex.owned?] }.value
    assert_raises(ThreadError) { thread { mutex.unlock }.value }
    refute mutex.try_lock
    assert_equal mutex, mutex.unlock
    refute mutex.locked? || mutex.owned?
    assert_raises(ThreadError) { mutex.unlock }
    assert_equal 7, mutex.synchronize(wait: LIMIT) { mutex.owned? && 7 }
    assert_equal 8, mutex.synchronize { break 8 }
    refute mutex.locked?
    locker.evict("x", mutex.lock.tap { |guard| @guard = guard }.token)
    assert_raises(LockLost) { @guard.renew }
    assert_raises(LockLost) { mutex.unlock }
    assert_free
  end

  def test_synchronize_without_a_block
    assert_raises(ThreadError) { locker.mutex("x").synchronize }
    assert_free
  end

  def test_a_guard_that_is_collected_releases_its_lock
    thread { locker.lock("x", ttl: 3_600) && nil }.join
    free = thread { locker.lock("x", wait: LIMIT, &:check!) }
    GC.start while free.join(0.05).nil?
    assert_match(/lock `x` is released/, @log.first)
  end

  def test_a_lock_is_renewed_with_a_request
    error = assert_raises(LockLost) do
      locker.lock("x") do |guard|
        guard.renew
        locker.evict("x", guard.token, reason: "it hangs")
        guard.check! # The eviction is not noticed yet.
        evicted = locker.status("x").history.first.evicted
        assert_equal "it hangs", evicted.reason
        guard.renew(timeout: LIMIT)
      end
    end
    assert_match(/it was evicted by .*: it hangs/, error.message)
    assert_equal "x", error.name
  end

  def test_semaphores_and_readers_writer_locks
    semaphore = locker.semaphore("pool", 2)
    semaphore.lock do |one|
      semaphore.lock do |two|
        refute_equal one.name, two.name
        assert_nil semaphore.try_lock
      end
    end
    index = locker.rw_lock("index")
    index.shared.lock { index.shared.lock { assert_nil index.exclusive.try_lock } }
    index.exclusive.lock(wait: LIMIT) { assert_nil index.shared.try_lock }
  end

  def test_another_number_of_permits_is_an_error_with_both
    locker.semaphore("pool", 2).lock do
      refused = assert_raises(SizeError) { locker.semaphore("pool", 3).lock }
      assert_equal [3, 2, "invalid"], [refused.asked, refused.stored, refused.kind]
      assert_match(/has 2 permits/, refused.message)
      assert_raises(LockHeld) { locker.resize("pool", permits: 3) }
    end
    assert_equal 2, locker.resize("pool", permits: 3, ttl: "1m")
    locker.semaphore("pool", 3).lock.release
    locker.rw_lock("index", readers: 12).shared.lock.release
    assert_raises(SizeError) { locker.rw_lock("index").exclusive.lock }
    assert_equal 12, locker.resize("index", readers: 8)
    [{}, { permits: 1, readers: 1 }].each { |size| assert_raises(ArgumentError) { locker.resize("index", **size) } }
    refused = assert_raises(StoreError) { locker.resize("index", readers: 65) }
    assert_equal ["invalid", StoreError], [refused.kind, refused.class]
  end

  def test_an_election_has_one_leader
    election = locker.election("scheduler", value: "http://10.0.0.7:8080")
    seen = Thread::Queue.new
    observer = thread { election.observe { |leader| seen << leader } }
    assert_nil seen.pop
    election.lock do |leadership|
      leader = seen.pop
      assert_equal ["http://10.0.0.7:8080", leadership.token], [leader.value, leader.term]
      assert_equal leader, election.leader
      assert_equal leader, election.observe.first
      assert_nil election.try_lock
    end
    assert_nil seen.pop
    observer.kill.join
  end

  def test_a_job_runs_once_per_period
    days = []
    job = lambda do |day|
      locker.once("nightly", per: "23h", owner: "ci-7") do
        days << day
        raise KeyError if day == :sunday

        days.size
      end
    end
    assert_raises(KeyError) { job.call(:sunday) }
    ran = job.call(:monday)
    again = job.call(:tuesday)
    assert_equal [true, 2, false], [ran.ran?, ran.value, again.ran?]
    assert_equal "ci-7", again.by.name
    assert again.again_within.between?(1, 23 * 3_600)
    assert_equal %i[sunday monday], days
  end

  def test_a_job_that_does_not_end_may_run_again
    locker.once("job", per: "1h") { break }
    assert_raises(Timeout::Error) { Timeout.timeout(0.5) { locker.once("job", per: "1h") { sleep } } }
    killed = thread { locker.once("job", per: "1h") { Thread.exit } }
    killed.join
    assert_predicate locker.once("job", per: "1h") { 1 }, :ran?
  end

  def test_a_job_that_lost_its_lock_raises
    assert_raises(Leasehold::Error) { locker.once("job", per: 60) { |guard| locker.evict("job", guard.token) } }
  end

  def test_a_lock_is_passed_on_as_a_ticket
    guard = locker.lock("x", for_ticket: true)
    ticket = guard.ticket
    assert_raises(LockLost) { guard.check! }
    assert_operator locker.renew_ticket(ticket), :>, 0
    locker.resume(ticket) { |resumed| assert_operator resumed.token, :>=, guard.token }
    refute locker.release_ticket(ticket)
    [ticket[0..-4], "lh2_hunter2"].each do |spoiled|
      error = assert_raises(StoreError) { locker.release_ticket(spoiled) }
      assert_equal "invalid", error.kind
      refute_includes error.message, spoiled[4..]
    end
  end

  def test_several_locks_are_held_and_released_together
    locker.lock_all(%w[b a], ttl: 30).lock(wait: LIMIT) do |guard|
      assert_equal(%w[a b].to_h { |name| [name, locker.status(name).token] }, guard.tokens)
      assert_match(/2 locks/, assert_raises(StoreError) { guard.token }.message)
      assert_nil locker.try_lock("a")
      assert_nil locker.lock_all(%w[b c]).try_lock
      assert locker.status("c").free?
    end
    assert(%w[a b].all? { |name| locker.status(name).free? })
    assert_match(/named twice/, assert_raises(StoreError) { locker.lock_all(%w[a a]).lock }.message)
    assert_raises(StoreError) { locker.lock_all([]).lock }
  end

  def test_a_thread_that_waits_for_itself_is_refused
    outer = [locker.mutex("x"), locker.election("x"), locker.lock_all(%w[x y])]
    outer.each do |lock|
      lock.lock do
        error = assert_raises(DeadlockError) { locker.lock("x", wait: LIMIT) }
        assert_match(/this thread holds `x`/, error.message)
        assert_raises(DeadlockError) { locker.once("x", per: 60) { flunk } }
        assert_raises(DeadlockError) { Enumerator.new { |y| locker.lock("x") { y << 1 } }.next }
        assert_nil locker.try_lock("x")
      end
    end
    rw = locker.rw_lock("rw")
    rw.shared.lock { rw.shared.lock { assert_raises(DeadlockError) { rw.exclusive.lock } } }
    two = locker.semaphore("two", 2)
    two.lock { two.lock { assert_raises(DeadlockError) { two.lock } } }
    assert_empty @log
  end

  def test_a_guard_that_another_thread_may_release_is_a_warning
    guard = locker.lock("x")
    other = thread { guard.release if await("the warning") { @log.any? } }
    assert locker.lock("x", wait: LIMIT).release
    other.value
    assert_match(/waits for itself/, @log.first)
  end

  def test_threads_that_wait_for_each_other_are_told
    ready = Thread::Queue.new
    outcomes = [%w[a b], %w[b a]].map do |outer, inner|
      thread do
        locker.lock(outer) do
          ready << 1
          await("the other") { ready.size == 2 }
          locker.lock(inner) { "held" }
        rescue DeadlockError => error
          error.message
        end
      end
    end.map(&:value)
    deadlock, held = outcomes.sort_by { |one| one == "held" ? 1 : 0 }
    assert_equal "held", held
    assert_match(/waits for `[ab]`/, deadlock)
  end

  def test_a_wait_that_an_invocation_bounds
    context = Struct.new(:get_remaining_time_in_millis)
    assert_equal 4_000, Settings.wait_ms(nil, context.new(5_000))
    assert_equal 2_000, Settings.wait_ms(2, context.new(5_000))
    assert_equal 0, Settings.wait_ms("1m", context.new(500))
    assert_equal 6, Leasehold.serverless { locker.lock("x", context: context.new(60_000)) { 6 } }
    error = assert_raises(LockLeftOpen) { Leasehold.serverless { [@one = locker.lock("x"), @two = locker.lock("y")] } }
    assert_equal %w[x y], error.names
    assert_raises(KeyError) { Leasehold.serverless { (@one = locker.lock("x")) && raise(KeyError) } }
    assert locker.status("x").free?
  end

  def test_durations
    good, bad = JSON.parse(File.read("#{KIT}/durations.json")).partition(&:last)
    others = { 30 => 30_000, 2.007 => 2_007, Rational(1, 3) => 334, Struct.new(:to_f).new(2.0) => 2_000, 0 => 0 }
    [*good, *others].each { |given, expected| assert_equal expected, Leasehold::Duration.milliseconds(given, "ttl") }
    [*bad.map(&:first), nil, false, :x, [], -1, Float::NAN, Float::INFINITY, 1e300].each do |given|
      assert_match(/\Attl /, assert_raises(ArgumentError) { Leasehold::Duration.milliseconds(given, "ttl") }.message)
    end
    assert_match(/`ttl` is not from 500ms to /, assert_raises(StoreError) { locker.lock("x", ttl: 0.1) }.message)
  end

  def test_a_number_of_permits_below_one_is_refused
    [0, -1].each do |permits|
      refused = assert_raises(StoreError) { locker.semaphore("x", permits).lock }
      assert_match(/permits` is not an integer from 1 to 64/, refused.message)
    end
  end

  def test_an_unknown_setting_is_refused
    assert_match(/tll/, assert_raises(ArgumentError) { locker.lock("x", tll: 5) }.message)
  end

  def test_other_operations
    locker.init
    capabilities = locker.capabilities
    assert_equal ["SQLite", true], [capabilities.store, capabilities.tokens]
    locker.lock("deploy/a") { locker.lock("deploy/b") { assert_equal %w[deploy/a deploy/b], locker.list("deploy/") } }
    assert_equal [], locker.list("none")
    locker.wait_free("deploy/a")
    locker.lock("deploy/a") { assert_raises(LockHeld) { locker.wait_free("deploy/a", wait: 0.1) } }
    assert locker.sweep("deploy/a", older_than: 0, dry_run: true)
    report = locker.doctor
    assert report.safe?
    assert(report.findings.all?(&:verdict))
  end

  def test_a_relative_path_is_that_of_this_process
    Dir.chdir(folder) do
      Locker.new("sqlite:here.db").lock("x", &:check!)
      assert_path_exists "#{folder}/here.db"
      ENV["LEASEHOLD_STORE"] = "sqlite:there.db"
      Locker.new.lock("x", &:check!)
      assert_path_exists "#{folder}/there.db"
    end
    assert_equal "mem:", Settings.url("mem:")
    assert_equal "sqlite:/a.db", Settings.url("sqlite:/a.db")
  end

  def test_what_inspect_shows_contains_no_secret
    secret = Locker.new("redis://user:hunter2@host")
    shown = [secret, secret.mutex("x"), secret.rw_lock("x"), secret.election("x"), agent,
             Leasehold.object("s3://key:hunter2@host/x"), Call.new({ op: "x", ticket: "hunter2" })].map(&:inspect).join
    refute_includes shown, "hunter2"
    assert_match(/Guard x token=\d+ held/, locker.lock("x", &:inspect))
  end
end

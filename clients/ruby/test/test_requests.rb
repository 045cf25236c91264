# frozen_string_literal: true

require_relative "helper"

# Tests that a request that is invalid, too large or late costs no lock, and what messages of the agent can cause.
class TestRequests < LeaseholdTest
  ACQUIRE = { expect: { op: "acquire" } }.freeze
  GRANTED = { send: [{ to: "acquire", **GRANT }] }.freeze
  RELEASED = [
    { expect: { op: "release", hold: 1 } }, { send: [{ to: "release", ev: "released", was_held: true }] }
  ].freeze
  STORED = Leasehold.object("s3://bucket/x")

  def assert_script_done
    Shared.stop
    assert_equal "done", File.read("#{folder}/log")
  end

  def with_constant(owner, name, value)
    before = owner.const_get(name)
    owner.send(:remove_const, name)
    owner.const_set(name, value)
    yield
  ensure
    owner.send(:remove_const, name)
    owner.const_set(name, before)
  end

  def test_text_that_is_not_unicode_and_infinite_numbers_are_refused
    guard = locker.lock("x")
    [
      -> { locker.lock("a\xFF") }, -> { locker.lock("a\xFF".b) }, -> { locker.lock("y", note: "\xED\xA0\x80") },
      -> { locker.lock_all(["a", "\xFF"]).lock }, -> { locker.lock("y", note: Object.new) },
      -> { STORED.update(attempts: Float::INFINITY) { "" } }, -> { STORED.update(attempts: 10**400) { "" } }
    ].each do |attempt|
      assert_equal "invalid", assert_raises(StoreError, &attempt).kind
      guard.check!
    end
    locker.lock("été \u{1F512}".encode("UTF-16LE")) { |other| assert_equal "été \u{1F512}", other.name }
    locker.lock(:symbol) { |other| assert_equal "symbol", other.name }
    assert guard.release
  end

  def test_a_request_that_does_not_fit_costs_no_lock
    script(ACQUIRE, GRANTED, { expect: { op: "update" } }, { send: [{ to: "update", ev: "content", content: nil }] },
           { expect: { op: "cancel" } }, *RELEASED, { end: [] })
    guard = Locker.new.lock("x")
    large = "x" * (1 << 20)
    [-> { STORED.put(large, fence: 41) }, -> { STORED.update { large } }].each do |attempt|
      error = assert_raises(StoreError, &attempt)
      assert_equal ["limit", true], [error.kind, error.message.include?("longer than")]
      guard.check!
    end
    assert guard.release
    assert_script_done
  end

  def test_a_request_that_the_agent_does_not_read_in_time_is_refused
    guard = locker.lock("x")
    with_constant(Agent, :MAX_UNSENT, 0) do
      assert_equal "limit", assert_raises(StoreError) { locker.status("x") }.kind
      guard.check!
      assert guard.release
    end
  end

  def test_a_cooldown
    assert locker.lock("x").release(cooldown: 0)
    assert_free
    assert locker.lock("x").release(cooldown: "1h")
    assert_equal "cooldown", locker.status("x").state
  end

  def test_the_death_of_the_agent_leaves_the_effect_of_a_write_unknown
    { "put" => true, "get" => false }.each do |operation, effect|
      script({ expect: { op: operation } }, { exit: true })
      error = assert_raises(AgentError) { operation == "put" ? STORED.put("", fence: 1) : STORED.get }
      assert_equal effect, error.maybe_applied?
    end
  end

  def test_an_update_that_fails_is_cancelled
    script({ expect: { op: "update" } }, { send: [{ to: "update", ev: "content", content: "eA==" }] },
           { expect: { op: "cancel" } }, { end: [] })
    assert_raises(KeyError) { STORED.update { |content| raise KeyError, content } }
    assert_script_done
  end

  def test_a_late_response_ends_the_agent
    script(ACQUIRE, GRANTED, { expect: { op: "status" } }, { end: %w[release cancel] })
    guard = Locker.new.lock("x")
    error = assert_raises(AgentError) { Call.run({ op: "status", lock: "x" }, "status", limit: 0.2) }
    assert_match(/does not respond/, error.message)
    assert_equal "agent", assert_raises(LockLost) { guard.check! }.reason
  end

  def test_a_late_renewal_costs_no_lock
    script(ACQUIRE, GRANTED, { expect: { op: "renew" } }, { expect: { op: "cancel" } },
           { send: [{ to: "renew", ev: "error", kind: "cancelled", message: "m" }, { to: "cancel", ev: "done" }] },
           *RELEASED, { end: [] })
    guard = Locker.new.lock("x")
    assert_equal "unavailable", assert_raises(StoreError) { guard.renew(timeout: 0.1) }.kind
    guard.check!
    assert guard.release
    assert_script_done
  end

  def test_a_renewal_that_the_agent_refuses_ends_the_hold
    # The agent sends no event about the loss.
    script(ACQUIRE, GRANTED, { expect: { op: "renew" } },
           { send: [{ to: "renew", ev: "error", kind: "lost", message: "evicted" }] }, { end: [] })
    guard = Locker.new.lock("x")
    2.times { assert_match(/evicted/, assert_raises(LockLost) { guard.renew }.message) }
    assert guard.lost? && !guard.release
    assert_script_done
  end

  def test_the_agent_may_retry_for_as_long_as_the_request_allows
    script({ expect: { op: "try" } }, { send: [{ to: "try", **GRANT }] }, *RELEASED, { end: [] })
    with_constant(Pending, :ANSWER_LIMIT, 0.0) do
      assert Locker.new.try_lock("x", store_timeout: 30).release(cooldown: 60)
    end
  end

  def test_a_holder_that_violates_the_protocol_is_the_death_of_the_agent
    ["x", [1], { holder: "x" }, { waiter_ahead: 5 }, { token: "x" }, { held_ms: "x" }].each do |held_by|
      refusal = { to: "acquire", ev: "error", kind: "held", message: "held", held_by: held_by }
      script(ACQUIRE, { send: [refusal] }, { end: [] })
      error = assert_raises(AgentError, held_by.inspect) { Locker.new.lock("x") }
      assert_match(/violates the protocol/, error.message)
    end
  end

  def test_a_value_that_violates_the_protocol_is_an_error
    script({ expect: { op: "status" } }, { send: [{ to: "status", ev: "status", lock: "x", waiters: 5 }] }, { end: [] })
    assert_match(/violates the protocol/, assert_raises(AgentError) { Locker.new.status("x") }.message)
  end

  def test_an_error_in_the_agents_thread_is_the_death_of_the_agent
    guard = locker.lock("x")
    waiting = thread { locker.lock("x") }
    await("the request") { agent.instance_variable_get(:@pending).any? }
    here = agent.instance_variable_get(:@thread)
    here.report_on_exception = false
    agent.send(:post) { raise ZeroDivisionError }
    assert_match(/could not be processed/, assert_raises(AgentError) { waiting.value }.message)
    assert_equal "agent", assert_raises(LockLost) { guard.check! }.reason
    assert_raises(ZeroDivisionError) { here.value }
    # The next request starts another agent.
    locker.lock("y", &:check!)
  end

  def test_a_killed_thread_of_the_agent_is_the_death_of_the_agent
    guard = locker.lock("x")
    child = agent.pid
    agent.instance_variable_get(:@thread).kill.join
    assert_equal "agent", assert_raises(LockLost) { guard.check! }.reason
    assert_raises(Errno::ESRCH) { Process.kill(0, child) }
    assert_free("y")
  end

  def test_a_thread_of_the_agent_that_is_killed_answers_each_request
    lines = (1..).take_while do |line|
      locker.status("x")
      here = agent.instance_variable_get(:@thread)
      trace = TracePoint.new(:line) { Thread.new { here.kill }.join if (line -= 1).zero? }
      trace.enable(target: Agent.instance_method(:dispatch)) do
        asking = thread { locker.status("x") }
        asking.join(LIMIT) or flunk "no answer"
      rescue AgentError
        # Also an answer.
      end
      line <= 0 && here.join
    end
    assert_operator lines.size, :>, 3
  end

  def test_an_agent_without_work_ends_and_loses_no_request
    first = second = nil
    with_constant(Agent, :IDLE, 0) do
      locker.lock("x", &:check!)
      first = Shared.running
      20.times { locker.status("x") }
      await("the end") { Shared.running.nil? }
      second = agent
    end
    refute_equal first, second
  end

  # The request goes to a second agent. It can be interrupted like any other.
  def test_a_request_that_crosses_the_end_of_an_idle_agent_can_be_withdrawn
    other = program('Leasehold::Locker.new(ARGV[0]).lock("x") { puts "held"; $stdout.flush; $stdin.gets }', url)
    assert_equal "held", other.line
    first = agent
    waiting = nil
    first.send(:post) do
      await("the request") { first.instance_variable_get(:@inbox).size.positive? }
      first.send(:retire)
    end
    waiting = thread { locker.lock("x", ttl: 3_600) }
    await("the second agent") { Shared.running && !agent.equal?(first) && agent.instance_variable_get(:@pending).any? }
    waiting.kill.join
    await("the withdrawal") { agent.instance_variable_get(:@pending).empty? }
    other.say("end")
    assert_free
  end

  def test_a_command_that_cannot_be_used
    { "/none" => /cannot start/, "/bin/true" => /ended/, "#{KIT}/README.md" => /cannot start/ }.each do |path, said|
      ENV["LEASEHOLD_COMMAND"] = path
      error = assert_raises(AgentError) { locker.lock("x") }
      assert_match said, error.message
      refute_empty error.help
    end
    ENV.update("LEASEHOLD_COMMAND" => nil, "PATH" => folder)
    assert_match(/not found/, assert_raises(AgentError) { locker.lock("x") }.message)
  end

  def test_a_thread_with_all_interrupts_deferred_can_start_the_agent
    code = <<~RUBY
      locker = Leasehold::Locker.new(ARGV[0])
      Thread.handle_interrupt(Object => :never) { $guard = locker.lock("x") }
      puts "held"
    RUBY
    host = program(code, url)
    assert_equal "held", host.line
    assert host.wait.success?
    assert_free
  end
end

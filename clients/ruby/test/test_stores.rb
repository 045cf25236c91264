# frozen_string_literal: true

require_relative "helper"

# Tests locks on each store. `./test` starts the servers.
class TestStores < LeaseholdTest
  PREFIX = "LEASEHOLD_TEST_"
  # The URLs that ./test sets, except those of servers that leasehold must refuse.
  SERVERS = ENV.select do |name, value|
    name.start_with?(PREFIX) && !name.start_with?("#{PREFIX}BAD_") && value.include?("://")
  end.transform_keys { |name| name.delete_prefix(PREFIX) }.freeze

  ["SQLITE", *SERVERS.keys].each do |store|
    define_method("test_a_lock_on_#{store.downcase}") { hold_on(SERVERS.fetch(store, url)) }
  end

  def hold_on(url)
    locker = Locker.new(url)
    locker.init
    name = "clients/ruby-#{Process.pid}"
    lock = locker.mutex(name, ttl: 30)
    first = lock.lock(wait: 60) do |guard|
      guard.check!
      assert_nil lock.try_lock
      refute granted_to_another?(url, name)
      guard.renew
      assert_equal "held", locker.status(name).state
      guard.token
    end
    assert granted_to_another?(url, name)
    guard = lock.try_lock
    assert_operator guard.token, :>, first
    assert_equal 1, locker.list("clients/ruby-").count(name)
    assert guard.release
  end

  # Returns whether another process gets the lock without waiting.
  def granted_to_another?(url, name)
    _, status = Open3.capture2e(ENV.fetch("LEASEHOLD_COMMAND"), "run", "--try", "--store", url, name, "--", "true")
    assert_includes [0, 123], status.exitstatus
    status.success?
  end

  def test_objects_on_s3
    skip "no such server: ./test --with-servers" unless SERVERS.key?("S3_MINIO")
    place, _, options = SERVERS["S3_MINIO"].partition("?")
    # Each run uses another object.
    state = Leasehold.object("#{place}/ruby-#{Process.pid}.json?#{options}", content_type: "application/json")
    assert_nil state.get
    assert state.update { |content| "#{content}1" }
    refute(state.update { nil })
    state.put("fenced 8\xFF".b, fence: 8)
    assert_equal 8, assert_raises(LockLost) { state.put("fenced 7", fence: 7) }.refused_by
    assert_equal "fenced 8\xFF".b, state.get
    calls = 0
    updated = state.update do |content|
      state.update { "faster" } if (calls += 1) == 1
      "#{content} and later"
    end
    assert_equal [true, 2, "faster and later"], [updated, calls, state.get]
    assert_raises(KeyError) { state.update { raise KeyError } }
    assert_equal "faster and later", state.get
  end
end

# frozen_string_literal: true

require_relative "helper"

# Runs the scenarios of clients/conformance, in which the agent misbehaves.
class TestConformance < LeaseholdTest
  SCENARIOS = JSON.parse(File.read("#{KIT}/scenarios.json"))

  SCENARIOS.each do |scenario|
    define_method("test_#{scenario["name"].tr(" ", "_")}") { follow(scenario) }
  end

  def follow(scenario)
    play("#{KIT}/agent.py", scenario["name"])
    scenario["actions"].each do |action, expected|
      assert_equal [action, expected], [action, outcome(action, expected)]
    end
    Shared.stop
    results = scenario["actions"].map(&:last)
    return if results.include?("agent") || scenario["greets"] == false

    assert_equal "done", File.read("#{folder}/log")
  end

  def outcome(action, expected)
    case action
    when "acquire" then expected == "cancelled" ? cancel : acquire
    when "status" then Locker.new.status("x") && "ok"
    when "check" then @guard.check! || "held"
    when "release" then @guard.release ? "held" : "lost"
    end
  rescue LockHeld then "refused"
  rescue LockLost then "lost"
  rescue AgentError then "agent"
  rescue Leasehold::Error then "error"
  end

  def acquire
    @guard = Locker.new.lock("x")
    "held"
  end

  def cancel
    call = Call.new({ op: "acquire", lock: "x" }).start
    call.abandon
    "cancelled"
  end
end

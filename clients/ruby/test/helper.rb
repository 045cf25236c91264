# frozen_string_literal: true

require "minitest/autorun"
require "fileutils"
require "json"
require "open3"
require "rbconfig"
require "timeout"
require "tmpdir"
require "leasehold"

ROOT = File.expand_path("../../..", __dir__)
KIT = File.join(ROOT, "clients/conformance")
# The longest time that a test waits for an event, in seconds.
LIMIT = Float(ENV.fetch("LEASEHOLD_TEST_LIMIT", "60"))

# Each test has its own agent, its own folder and its own store.
class LeaseholdTest < Minitest::Test
  include Leasehold

  attr_reader :folder, :url, :locker

  def setup
    raise "set LEASEHOLD_COMMAND to the command under test" unless ENV["LEASEHOLD_COMMAND"]

    @folder = Dir.mktmpdir("leasehold-ruby")
    @variables = ENV.to_h
    ENV.update("XDG_CONFIG_HOME" => "#{folder}/config", "XDG_STATE_HOME" => "#{folder}/state", "LEASEHOLD_STORE" => nil)
    @url = "sqlite:#{folder}/locks.db"
    @locker = Locker.new(url)
    @programs = []
    Leasehold.logger = self
    @log = []
  end

  def teardown
    Shared.stop
    @programs.each(&:stop)
    Leasehold.logger = nil
    ENV.replace(@variables)
    FileUtils.rm_rf(folder)
  end

  # The logger of the gem.
  def warn(text)
    @log << text
  end

  def agent
    Shared.agent
  end

  # Waits until the block returns something.
  def await(what = "the event")
    end_at = Process.clock_gettime(Process::CLOCK_MONOTONIC) + LIMIT
    until (found = yield)
      flunk "waited too long for #{what}" if Process.clock_gettime(Process::CLOCK_MONOTONIC) > end_at
      sleep 0.01
    end
    found
  end

  # A thread that raises its error in `value`, without printing it.
  def thread(&block)
    Thread.new(&block).tap { |one| one.report_on_exception = false }
  end

  # Checks that others get the lock.
  def assert_free(name = "x", of: locker)
    thread { of.lock(name, wait: LIMIT, &:check!) }.value
  end

  # Replaces the command with the agent of clients/conformance, which follows the steps of a script.
  def script(*steps, greets: true)
    FileUtils.cp("#{KIT}/agent.py", folder)
    File.write("#{folder}/scenarios.json", JSON.generate([{ name: "scripted", greets: greets, script: steps }]))
    play("#{folder}/agent.py", "scripted")
  end

  def play(command, scenario)
    ENV.update("LEASEHOLD_COMMAND" => command, "LEASEHOLD_SCENARIO" => scenario,
               "LEASEHOLD_SCENARIO_LOG" => "#{folder}/log")
  end

  GRANT = { ev: "held", hold: 1, lock: "x", token: 41, span_us: 29_550_000, clocks: {} }.freeze

  # Starts another Ruby process.
  def program(code, *arguments)
    Program.new(code, *arguments).tap { |one| @programs << one }
  end

  # Checks the last lines of a program, that it succeeds, and that others then get its lock.
  def assert_ends(program, *lines)
    assert_equal lines, (lines.map { program.line })
    assert program.wait.success?
    assert_free
  end

  # Another Ruby process. Tests wait for its lines of output.
  class Program
    attr_reader :pid

    def initialize(code, *arguments)
      ours, @input = IO.pipe
      @output, theirs = IO.pipe
      @pid = spawn(RbConfig.ruby, "-I", "#{ROOT}/clients/ruby/lib", "-r", "leasehold", "-e", code, *arguments,
                   in: ours, out: theirs)
      [ours, theirs].each(&:close)
    end

    def line
      Timeout.timeout(LIMIT) { @output.gets }&.strip
    end

    def say(text)
      @input.puts(text)
      @input.flush
    end

    def signal(name)
      Process.kill(name, pid)
    end

    def wait
      Timeout.timeout(LIMIT) { Process.wait2(pid)[1] }.tap { @pid = nil }
    end

    def stop
      return unless pid

      signal(:KILL)
      wait
    end
  end
end

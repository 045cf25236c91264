# frozen_string_literal: true

require_relative "clock"
require_relative "command"
require_relative "errors"
require_relative "version"
require_relative "wire"

module Leasehold
  # The process `leasehold agent` and the pipes to it. Only the agent's thread uses it, except #silent?.
  class AgentProcess
    PROTOCOL = 1
    CLIENT = "leasehold-ruby/#{VERSION}"
    # How long the agent may take to start, in seconds.
    START_LIMIT = 10
    # How long the agent may take to release its locks and to end, in seconds.
    END_LIMIT = 10

    attr_reader :pid, :to, :from

    # Starts the command, and compares the clocks.
    def initialize(command)
      @command = command
      @unread = String.new(encoding: Encoding::BINARY)
      start
      begin
        greet
      rescue Exception
        kill
        bury
        raise
      end
    end

    # Returns the lines that have arrived, without waiting: `:none` if nothing has arrived, nil at the end of the file.
    def lines
      chunk = @from.read_nonblock(1 << 16, exception: false)
      return :none if chunk == :wait_readable
      return if chunk.nil?

      *lines, @unread = (@unread << chunk).split("\n", -1)
      raise Wire::Garbage if @unread.bytesize > Wire::MAX_LINE

      lines
    rescue SystemCallError, IOError
      nil
    end

    # Writes as much of `text` as the pipe takes. Returns the rest.
    def write(text)
      until text.empty?
        written = @to.write_nonblock(text, exception: false)
        break if written == :wait_writable

        text = text.byteslice(written..)
      end
      text
    rescue SystemCallError, IOError
      # Messages that the agent wrote before its end may still be unread. The end of the file follows them.
      String.new
    end

    # Returns whether no message has arrived that was not read.
    def silent?
      IO.select([@from], nil, nil, 0).nil?
    rescue IOError, SystemCallError
      false # The agent's thread has closed it.
    end

    def kill
      Process.kill(:KILL, @pid)
    rescue SystemCallError
      # It has ended.
    end

    # Closes the pipes, which ends the agent, and waits for its end.
    def bury
      close
      # A separate thread, so that Process.wait needs no time limit.
      waiter = Process.detach(@pid)
      return if waiter.join(END_LIMIT)

      kill
      waiter.join
    end

    def close
      [@to, @from].each { |pipe| pipe&.close }
    end

    private

    def start
      input, @to = IO.pipe
      @from, output = IO.pipe
      [@to, @from].each(&:binmode)
      @pid = Process.spawn([@command, @command], "agent", in: input, out: output, close_others: true)
    rescue SystemCallError => error
      close
      raise AgentError.new("cannot start #{@command}: #{error.message}", help: [Command::FIND])
    ensure
      [input, output].each { |pipe| pipe&.close }
    end

    def greet
      before = Clock.now
      hello = { op: "hello", protocol: PROTOCOL, pid: Process.pid, client: CLIENT }
      write(Wire.line(0, Wire.body(hello)))
      answer = first_line
      after = Clock.now
      compare(before, clocks(answer), after)
    end

    def clocks(answer)
      hello = Wire.parse(answer)
      raise Error.of(hello) if hello["ev"] == "error"
      raise Wire::Garbage unless hello["ev"] == "hello" && hello["protocol"] == PROTOCOL

      Clock::Moment.new(Wire.integer(hello, "boot_us"), Wire.integer(hello, "wall_us"))
    rescue Wire::Garbage, TypeError, ArgumentError, NoMethodError
      raise AgentError.new("#{@command} is not the leasehold command, or has another version", help: [Command::FIND])
    end

    def compare(before, between, after)
      same = before.to_a.zip(between.to_a, after.to_a).all? do |early, theirs, late|
        theirs.between?(early - Clock::TOLERANCE_US, late + Clock::TOLERANCE_US)
      end
      return if same

      raise AgentError.new(
        "the agent and this process have different clocks, so deadlines would be wrong",
        help: [
          "do not use faketime, time namespaces or a virtualized /proc/uptime for only one of the two",
          "if the clock was just set, try again"
        ]
      )
    end

    def first_line
      limit = Clock.monotonic + START_LIMIT
      loop do
        left = limit - Clock.monotonic
        raise AgentError.new("#{@command} does not respond as an agent", help: [Command::FIND]) if left <= 0

        IO.select([@from], nil, nil, left)
        got = lines
        raise AgentError.new("#{@command} ended instead of starting an agent", help: [Command::FIND]) if got.nil?
        # The agent sends nothing else before the first request.
        return got.first unless got == :none || got.empty?
      end
    rescue Wire::Garbage
      raise AgentError.new("#{@command} is not the leasehold command", help: [Command::FIND])
    end
  end
end

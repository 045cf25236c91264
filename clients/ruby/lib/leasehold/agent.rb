# frozen_string_literal: true

require_relative "agent_process"
require_relative "clock"
require_relative "errors"
require_relative "fork"
require_relative "hold"
require_relative "wire"

module Leasehold
  # The agent: the child process `leasehold agent`, which acquires, renews and releases locks for this process.
  #
  # A thread owns the process and all state. It starts the process, reads its messages, writes the requests, and watches
  # the deadlines; it never blocks on the pipes. Other threads put blocks of code into its inbox, which it runs. So an
  # exception that interrupts another thread (`Timeout.timeout`, `Thread#raise`, a signal) can interrupt only the wait
  # for an outcome, and no lock is needed, which a signal handler could not take.
  class Agent
    # How long an agent without work is kept, in seconds.
    IDLE = 60
    # The longest pause between two checks of the deadlines, in seconds. Timers stop while the machine sleeps.
    TICK = 1
    # How much unsent data may wait for an agent that does not read, in bytes.
    MAX_UNSENT = 16 << 20
    INTERIM = %w[waiting names content].freeze
    # What a message that violates the protocol can cause.
    VIOLATIONS = [Wire::Garbage, ArgumentError, FloatDomainError, NoMethodError, TypeError].freeze

    def initialize(command)
      @command = command
      @host = Fork.process
      @inbox = Thread::Queue.new
      @bell, @rope = IO.pipe
      @unsent = String.new
      @ids = 0
      @pending = {}
      @holds = {}
      # The names of the latest locks whose guards were garbage collected while the locks were held.
      @collected = []
      @death = nil
      @busy = true
      @used = Clock.monotonic
      @look = Float::INFINITY
      # A program can kill this thread only while it waits. A request that was begun gets its outcome.
      @thread = Thread.new { Thread.handle_interrupt(Object => :never) { run } }
      @thread.name = "leasehold-agent"
    end

    # --- for all threads ----------------------------------------------------------------------------------------------

    def forked?
      @host != Fork.process
    end

    def forbid_forked
      return unless forked?

      raise ForkedError.new("this lock was acquired by another process, before a fork",
                            help: ["acquire it again in this process; a Locker works in both"])
    end

    # Returns the error of an agent that could not be started.
    def failure
      @death.dup if @death && @process.nil?
    end

    def alive?
      @death.nil? && !forked? && @thread.alive?
    end

    # Sends a request. Returns false if the agent has ended.
    def submit(request, body)
      request.agent = self
      post { dispatch(request, body) }
    end

    # Abandons a request. If it was granted a lock, or is granted one later, the lock is released. Does not wait.
    def abandon(request, collected: false)
      return if forked? || !request.open?

      post do
        @collected = [*@collected, request.hold.name].last(100) if collected && request.hold
        give_up(request)
      end
      return unless collected && request.hold

      Leasehold.log("lock `#{request.hold.name}` is released, because nothing refers to its guard any more")
    end

    # Returns the error of a hold that is over, or nil if the lock is certain to be held now.
    def error_of(hold)
      forbid_forked
      # All messages must be read first: an unread renewal prevents a loss, and the end of the agent is one. The order
      # matters: what was read before the pipe was found empty is applied when the thread is not busy. The same holds
      # for the inbox, which may contain the release.
      current = @process.silent? && @inbox.empty? && !@busy
      settle(hold) unless current && (hold.over? || hold.left_us(Clock.now).positive?)
      hold.error if hold.over?
    end

    # Calls `listener` with the loss if the lock is lost. It must not block.
    def listen(hold, listener)
      post { hold.listen(listener) } or hold.listen(listener)
    end

    # Marks a hold as lost whose renewal was refused, before the agent reports the loss.
    def lose(hold, loss)
      call { end_hold(hold) && hold.lose(loss) }
    end

    # Releases all locks. Returns the names of those that were held, and the requests.
    def release_all
      call do
        names = @collected + @holds.each_value.map(&:name)
        @collected = []
        requests = @holds.values.map do |hold|
          Pending.new("release", limit: Pending::ANSWER_LIMIT, ends: hold).tap do |request|
            dispatch(request, Wire.body(op: "release", hold: hold.number))
          end
        end
        [names, requests]
      end || [[], []]
    end

    # Forgets the locks of guards that were garbage collected.
    def forget_collected
      post { @collected = [] }
    end

    # Ends the agent, which releases all locks, and waits until it has ended.
    def stop
      post do
        flush unless @death
        die(AgentError.new("this process ends"), kill: false)
      end
      @thread.join(AgentProcess::END_LIMIT + 1)
    end

    # Gives up the agent in a forked child, because it is the parent's.
    def abandon_in_child
      @process&.close
      [@bell, @rope].each(&:close)
    end

    # The id of the agent's process.
    def pid
      @process&.pid
    end

    def inspect
      "#<#{self.class}>"
    end

    private

    # Makes the agent's thread run the block. Returns false if it has ended. The block must not raise.
    def post(&block)
      # A thread that ended without closing its inbox ended by a fork.
      return false unless @thread.alive?

      @inbox << block
      ring
      true
    rescue ClosedQueueError
      false
    end

    # Runs the block in the agent's thread, and returns its result. Returns nil if the agent has ended.
    def call
      results = Thread::Queue.new
      done = post do
        results << yield
      ensure
        results.close
      end
      results.pop if done
    end

    def settle(hold)
      call do
        drain
        expire(hold, Clock.now)
      end or hold.over? || hold.lose(hold.lost("lock `#{hold.name}` was lost: the agent has ended", "agent"))
    end

    def ring
      @rope.write_nonblock("x", exception: false)
    rescue IOError, SystemCallError
      # The thread has ended.
    end

    # --- only for the agent's thread ----------------------------------------------------------------------------------

    def run
      @process = AgentProcess.new(@command)
      until @death
        wait
        @busy = true
        turn
        @busy = false
      end
    rescue Error => error
      error.set_backtrace(nil)
      die(error)
    rescue Exception
      die(AgentError.new("the agent's messages could not be processed"))
      raise
    ensure
      # If this thread was killed, as at the end of the program, the agent releases its locks.
      die(AgentError.new("the agent has ended"), kill: false)
      bury
    end

    def wait
      writes = @unsent.empty? ? nil : [@process.to]
      limit = pause
      Thread.handle_interrupt(Object => :immediate) { IO.select([@process.from, @bell], writes, nil, limit) }
    end

    def pause
      now = Clock.monotonic
      if idle?
        [@used + IDLE - now, 0].max
      elsif @look.finite?
        (@look - now).clamp(0, TICK)
      end
    end

    def turn
      @bell.read_nonblock(4_096, exception: false)
      @inbox.pop.call until @inbox.empty?
      flush
      drain
      look if Clock.monotonic >= @look
      retire if idle? && Clock.monotonic - @used >= IDLE
    end

    # Checks the deadlines of holds and requests.
    def look
      now = Clock.now
      @look = Float::INFINITY
      @holds.values.each { |hold| look_within(expire(hold, now) / 1_000_000.0) }
      late = @pending.values.select { |request| request.due && request.due <= Clock.monotonic }
      late.each { |request| too_late(request) }
      @pending.each_value { |request| look_at(request.due) if request.due }
    end

    def too_late(request)
      return die(AgentError.new("the agent does not respond")) unless request.patient?

      request.due = nil
      request.conclude(StoreError.new("the store did not respond before the time limit"))
      give_up(request) # Its response is ignored.
    end

    def look_within(seconds)
      look_at(Clock.monotonic + seconds.clamp(0, TICK))
    end

    def look_at(moment)
      @look = [@look, moment].min
    end

    def idle?
      @holds.empty? && @pending.empty? && @unsent.empty?
    end

    def retire
      die(Pending::RETRY, kill: false)
    end

    # Marks the agent as dead: all holds are lost, and all requests fail.
    def die(reason, kill: true)
      return if @death

      @death = reason
      @process&.kill if kill
      lose_all(reason)
      @inbox.close
      # These find the agent dead.
      @inbox.pop.call until @inbox.empty?
    end

    def lose_all(reason)
      @holds.each_value do |hold|
        hold.lose(hold.lost("lock `#{hold.name}` was lost: #{reason.summary}", "agent", help: reason.help))
      end
      @holds.clear
      @pending.each_value { |request| refuse(request) }
      @pending.clear
    end

    def refuse(request)
      return request.deliver(@death) if @death.equal?(Pending::RETRY) # The caller sends it to another agent.

      outcome = @death.dup
      outcome.maybe_applied = true if request.writes? && outcome.is_a?(AgentError)
      request.conclude(outcome)
    end

    def bury
      @process&.bury
      [@bell, @rope].each(&:close)
    end

    # Sends a request.
    def dispatch(request, body)
      return refuse(request) if @death
      return if request.ends && !end_for(request)

      if @unsent.bytesize + body.bytesize > MAX_UNSENT && !%w[release cancel].include?(request.op)
        return request.conclude(StoreError.new("too many requests wait until the agent reads them", kind: "limit"))
      end
      @pending[request.id = @ids += 1] = request
      expect_within(request)
      @used = Clock.monotonic
      @unsent << Wire.line(request.id, body)
    end

    # Ends the hold of a release or a ticket. If it is over already, concludes the request.
    def end_for(request)
      hold = request.ends
      drain
      left = expire(hold, Clock.now)
      # The agent tries to record a cooldown until the lease ends.
      request.allow([left, 0].max / 1_000_000.0)
      held = end_hold(hold)
      if held
        hold.end
      else
        request.conclude(request.op == "release" ? { "ev" => "released", "was_held" => false } : hold.error)
      end
      held
    end

    # Returns the hold if it was not over.
    def end_hold(hold)
      @holds.delete(hold.number) { nil }
    end

    def expect_within(request)
      look_at(request.due = Clock.monotonic + request.limit) if request.limit
    end

    # Sends a request whose response is ignored.
    def send_unawaited(fields)
      dispatch(Pending.new(fields.fetch(:op)), Wire.body(fields)) unless @death
    end

    def give_up(request)
      return if @death

      request.abandoned = true
      if request.hold
        release(request.hold)
      elsif @pending.key?(request.id)
        send_unawaited(op: "cancel", request: request.id)
      end
    end

    # Releases a hold without waiting, unless it is over.
    def release(hold)
      return unless end_hold(hold)

      hold.end
      send_unawaited(op: "release", hold: hold.number)
    end

    def flush
      @unsent = @process.write(@unsent)
    end

    # Reads all messages that have arrived.
    def drain
      until @death
        lines = @process.lines
        return if lines == :none
        return die(AgentError.new("the agent has ended")) if lines.nil?

        lines.each { |line| take(Wire.parse(line)) unless @death }
      end
    rescue *VIOLATIONS
      die(AgentError.new("the agent sent a message that violates the protocol"))
    end

    def take(message)
      raise Wire::Garbage unless message["ev"].is_a?(String)
      return take_answer(message) if message.key?("id")

      case message["ev"]
      when "renewed"
        deadline = Wire.deadline(message)
        @holds[Wire.integer(message, "hold")]&.renewed(deadline)
      when "lost"
        hold = @holds.delete(Wire.integer(message, "hold"))
        hold&.lose(hold.lost(message["message"].to_s, message["reason"].to_s))
      end
    end

    def take_answer(message)
      if message["id"].nil?
        return die(AgentError.new("the agent rejected a message of this client: #{message["message"]}"))
      end

      request = @pending[Wire.integer(message, "id")] or raise Wire::Garbage
      event = message["ev"]
      if INTERIM.include?(event) || (event == "leader" && request.op == "observe")
        expect_within(request)
        return request.deliver(message)
      end
      conclude(request, message)
    end

    def conclude(request, message)
      case message["ev"]
      when "held" then request.hold = begin_hold(message)
      when "renewed" then @holds[Wire.integer(message, "hold")]&.renewed(Wire.deadline(message))
      end
      # Converts the message before the request counts as answered. If that fails, the agent dies, and the request
      # still gets an error.
      outcome = message["ev"] == "error" ? Error.of(message) : message
      @used = Clock.monotonic
      @pending.delete(request.id)
      request.conclude(outcome)
      give_up(request) if request.abandoned?
    end

    def begin_hold(message)
      number = Wire.integer(message, "hold")
      raise Wire::Garbage if @holds.key?(number)

      token = message["token"] && Wire.integer(message, "token")
      tokens = message["tokens"] && Wire.hash(message["tokens"])
      tokens&.each_key { |name| Wire.integer(tokens, name) }
      raise Wire::Garbage unless message["lock"].is_a?(String)

      names = message["locks"] || [message["lock"]]
      name = names.size > 1 ? names.join(", ") : message["lock"]
      deadline = Wire.deadline(message)
      look_within(deadline.remaining_us(Clock.now) / 1_000_000.0)
      @holds[number] = Hold.new(number, name, token, tokens&.freeze, deadline)
    end

    # Marks the hold as lost if its deadline has passed. Returns the time that is left, in microseconds.
    def expire(hold, now)
      left = hold.left_us(now)
      if left <= 0 && end_hold(hold)
        loss = hold.expired
        hold.lose(loss)
        # The agent may be late too. It must not keep a lock that this process gave up. It does not renew it beyond the
        # limit, and the work may still run.
        send_unawaited(op: "release", hold: hold.number) unless loss.reason == "limit"
      end
      left
    end
  end
end

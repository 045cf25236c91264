# frozen_string_literal: true

require_relative "agent"
require_relative "command"
require_relative "fork"

module Leasehold
  # The agent of this process.
  module Shared
    @agent = nil
    @starting = Mutex.new
    @ends_at_exit = false

    # Returns the agent of this process if it is running.
    def self.running
      agent = @agent
      agent if agent&.alive?
    end

    # Returns the agent of this process. Starts it if there is none.
    def self.agent
      running || @starting.synchronize do
        running || begin
          end_at_exit
          @agent = Agent.new(Command.find)
        end
      end
    rescue SystemCallError, ThreadError => error
      raise AgentError.new("cannot start the agent: #{error.message}")
    end

    # Ends the agent, which releases all locks, and waits until it has ended.
    def self.stop
      running&.stop
    end

    def self.in_child
      @starting = Mutex.new
      agent = @agent
      @agent = nil
      agent&.abandon_in_child
    end

    # Registers an exit handler when the first agent starts. If other threads or handlers start one later, it ends with
    # its thread. To register again would never end.
    def self.end_at_exit
      return if @ends_at_exit

      @ends_at_exit = true
      at_exit { stop }
    end
    private_class_method :end_at_exit

    Fork.in_child { in_child }
  end
end

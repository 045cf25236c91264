# frozen_string_literal: true

module Leasehold
  # Detects forks, so that a child does not use the agent of its parent.
  module Fork
    @forks = 0
    @in_child = []

    # Identifies this process by its id and by the number of forks before it, because ids are reused.
    def self.process
      [Process.pid, @forks]
    end

    # Calls the block in each forked child.
    def self.in_child(&block)
      @in_child << block
    end

    def self.forked
      @forks += 1
      @in_child.each(&:call)
    end

    # All forks of Ruby code call this from Ruby 3.1 on. Before, only the id of the process shows a fork.
    module Hook
      def _fork
        super.tap { |pid| Fork.forked if pid.zero? }
      end
    end
    Process.singleton_class.prepend(Hook) if Process.respond_to?(:_fork)
  end
end

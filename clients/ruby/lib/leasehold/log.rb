# frozen_string_literal: true

module Leasehold
  class << self
    # What receives the few warnings of this gem, with a method `warn`, such as a Logger. Without one, they go to
    # stderr.
    attr_accessor :logger

    def log(text)
      logger ? logger.warn("leasehold: #{text}") : Kernel.warn("leasehold: #{text}")
    end
  end
end

# frozen_string_literal: true

module Leasehold
  # Durations in arguments: seconds, a text such as "1h 30m", or anything with `to_f`, such as an
  # ActiveSupport::Duration.
  module Duration
    UNITS = { "ms" => 1, "s" => 1_000, "m" => 60_000, "h" => 3_600_000, "d" => 86_400_000 }.freeze
    PART = /(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)\s*/.freeze
    TEXT = /\A\s*(?:#{PART})+\z/.freeze
    LONGEST_MS = 366 * 86_400_000

    # Like #milliseconds, but nil stays nil.
    def self.optional(duration, what)
      duration.nil? ? nil : milliseconds(duration, what)
    end

    # Returns the duration in whole milliseconds, rounded up. `what` names the argument in errors.
    def self.milliseconds(duration, what)
      milliseconds =
        if duration.is_a?(String)
          TEXT.match?(duration) or raise refusal(duration, what)
          duration.scan(PART).sum { |number, unit| number.to_f * UNITS.fetch(unit) }
        elsif !duration.nil? && duration.respond_to?(:to_f)
          duration.to_f * 1_000
        else
          raise refusal(duration, what)
        end
      # Without the first rounding, 2.007 s would be 2007.0000000000002 ms, and so 2008.
      return milliseconds.round(6).ceil if milliseconds.finite? && milliseconds.between?(0, LONGEST_MS)

      raise ArgumentError, "#{what} #{duration.inspect} is out of range: from 0 to 366 days"
    end

    def self.refusal(duration, what)
      ArgumentError.new("#{what} #{duration.inspect} is not a duration such as 30, \"30s\" or \"1h 30m\"")
    end
    private_class_method :refusal
  end
end

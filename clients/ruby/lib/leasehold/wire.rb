# frozen_string_literal: true

require "json"
require_relative "clock"
require_relative "errors"

module Leasehold
  # Writes requests, and reads the values of messages.
  module Wire
    # The longest line, in both directions, in bytes.
    MAX_LINE = 1 << 20

    # The agent sent something that violates the protocol.
    class Garbage < StandardError; end

    # Returns a request as JSON, without its id and the end of the line.
    def self.body(fields)
      fields.each_value { |value| check(value) }
      body = JSON.generate(fields)
      # The agent would exit, and release all locks. The id has at most 16 digits.
      return body if body.bytesize <= MAX_LINE - 32

      raise StoreError.new("the request is longer than #{MAX_LINE} bytes", kind: "limit")
    end

    # Returns the line of a request.
    def self.line(id, body)
      "{\"id\":#{id},#{body[1..]}\n".b
    end

    def self.parse(line)
      text = line.dup.force_encoding(Encoding::UTF_8)
      raise Garbage if text.bytesize > MAX_LINE || !text.valid_encoding?

      hash(JSON.parse(text))
    rescue JSON::ParserError
      raise Garbage
    end

    def self.hash(value)
      value.is_a?(Hash) ? value : raise(Garbage)
    end

    def self.integer(fields, name)
      value = fields[name]
      value.is_a?(Integer) && value.between?(0, (1 << 53) - 1) ? value : raise(Garbage)
    end

    def self.deadline(fields)
      start = Clock::Moment.new(integer(fields, "boot_us"), integer(fields, "wall_us"))
      # A span that begins in the future would be measured wrong. The boot clock is never set back, but the wall clock
      # may be.
      raise Garbage if start.boot_us > Clock.now.boot_us + Clock::TOLERANCE_US

      Clock::Deadline.new(start, integer(fields, "span_us"), fields["at_limit"] == true).freeze
    end

    # The agent would exit at a line that is not JSON in UTF-8.
    def self.check(value)
      valid =
        case value
        when Array then value.each { |one| check(one) }
        when String, Symbol then value.to_s.encode(Encoding::UTF_8).valid_encoding?
        when Integer then value.abs < 1 << 63
        when Float then value.finite?
        else [true, false].include?(value)
        end
      valid or raise EncodingError
    rescue EncodingError
      raise StoreError.new(
        "a text of the request is not valid Unicode, or a number is too large: #{value.class}", kind: "invalid"
      )
    end
    private_class_method :check
  end
end

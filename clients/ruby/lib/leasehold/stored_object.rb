# frozen_string_literal: true

require_relative "call"
require_relative "duration"

module Leasehold
  # An object in a bucket that several writers may change: see Leasehold.object.
  class StoredObject
    # How long a write may take, in seconds. Its store may have to be examined first.
    WRITE_LIMIT = Pending::ANSWER_LIMIT + 120

    def initialize(url, content_type: nil)
      @url = url.to_s
      @content_type = content_type
    end

    # Returns the content in the encoding BINARY, or nil if there is no object. With `fence`, later writes with lower
    # tokens are refused.
    def get(fence: nil)
      Call.run(request("get", fence), "object", limit: nil) { |message| decoded(message) }
    end

    # Writes the object. Raises LockLost if a higher token has written it before.
    def put(content, fence:)
      Call.run({ **request("put", fence), **type, content: encoded(content) }, "done", limit: WRITE_LIMIT)
      nil
    end

    # Replaces the content with the result of the block, which is called with the content, and again if another writer
    # was faster. It gets nil if there is no object, and returns nil to leave the object unchanged. Returns whether the
    # object was written.
    def update(fence: nil, attempts: nil, within: nil)
      limits = { attempts: attempts, within_ms: Duration.optional(within, "within") }.compact
      # Has no limit: the agent runs only some updates at a time, and the block may take long.
      call = Call.new({ **request("update", fence), **type, **limits }, limit: nil)
      begin
        call.start
        while (message = call.next)["ev"] == "content"
          content = encoded(yield(Call.read(message) { |read| decoded(read) }))
          Call.run({ op: "answer", request: call.id, content: content }.compact, "done", agent: call.agent)
        end
        message["written"] == true
      ensure
        call.abandon
      end
    end

    def inspect
      "#<#{self.class}>"
    end

    private

    def request(operation, fence)
      { op: operation, object: @url, fence: fence }.compact
    end

    def type
      @content_type ? { content_type: @content_type } : {}
    end

    def encoded(content)
      content && [content.to_s].pack("m0")
    end

    def decoded(message)
      message["content"]&.unpack1("m0")
    end
  end

  # Opens an object by its URL, such as "s3://bucket/counter.json". Sends no request.
  def self.object(url, content_type: nil)
    StoredObject.new(url, content_type: content_type)
  end
end

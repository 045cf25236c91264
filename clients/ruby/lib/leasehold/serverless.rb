# frozen_string_literal: true

require_relative "call"
require_relative "shared"

module Leasehold
  # Runs the handler of a function that the platform freezes after its response, as AWS Lambda does. A lock that is held
  # then is usually lost. If guards of this process are open at the end of the block, they are released, and
  # LockLeftOpen is raised; if the block raises an error, that error is raised.
  #
  #   def handler(event:, context:)
  #     Leasehold.serverless do
  #       LOCKER.lock("import", context: context) { |guard| save(event, fence: guard.token) }
  #     end
  #   end
  def self.serverless
    Shared.running&.forget_collected # Those that earlier invocations left open have been reported.
    completed = false
    result = yield
    completed = true
    result
  ensure
    names = release_all
    raise LockLeftOpen.new(names) if completed && names.any?
  end

  # Releases all locks of this process. Returns their names.
  def self.release_all
    names, requests = Shared.running&.release_all
    requests&.each(&:take)
    names.to_a.uniq.sort
  end
  private_class_method :release_all
end

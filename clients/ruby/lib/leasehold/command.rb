# frozen_string_literal: true

require_relative "errors"

module Leasehold
  # Finds the leasehold command.
  module Command
    FIND = "set LEASEHOLD_COMMAND to the path of the leasehold command, or install the gem that contains it"
    # The command in the gem for a platform.
    PACKAGED = File.expand_path("../../libexec/leasehold", __dir__)

    # Returns the command that the environment variable names, that is in this gem, or that is on the PATH.
    def self.find
      given = ENV.fetch("LEASEHOLD_COMMAND", "")
      return given unless given.empty?

      folders = ENV.fetch("PATH", "").split(File::PATH_SEPARATOR).reject(&:empty?)
      [PACKAGED, *folders.map { |folder| File.join(folder, "leasehold") }].find do |path|
        File.file?(path) && File.executable?(path)
      end or raise AgentError.new("the leasehold command was not found", help: [FIND])
    end
  end
end

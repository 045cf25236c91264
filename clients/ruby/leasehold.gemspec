# frozen_string_literal: true

require_relative "lib/leasehold/version"

Gem::Specification.new do |spec|
  spec.name = "leasehold"
  spec.version = Leasehold::VERSION
  spec.summary = "Distributed locks on storage you already have: a local file, a bucket, a database, etcd or Kubernetes"
  spec.description = "Locks with fencing tokens, semaphores, readers-writer locks, elections and jobs once per period. " \
                     "A holder detects a loss before another process gets the lock."
  spec.authors = ["The leasehold maintainers"]
  spec.homepage = "https://github.com/leasehold/leasehold"
  spec.licenses = ["MIT", "Apache-2.0"]
  spec.required_ruby_version = ">= 3.0"
  spec.metadata = { "rubygems_mfa_required" => "true" }
  spec.files = Dir.chdir(__dir__) { Dir["lib/**/*.rb", "sig/*.rbs", "libexec/*", "README.md", "LICENSE-*", "THIRD-PARTY.txt"] }
  # The gem for a platform contains the command (packaging/ruby.sh).
  if spec.files.include?("libexec/leasehold")
    local = Gem::Platform.local
    spec.platform = Gem::Platform.new([local.cpu, local.os, nil]) # Without the version of the system.
  end
end

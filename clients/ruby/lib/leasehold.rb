# frozen_string_literal: true

# Distributed locks on storage you already have. See Leasehold::Locker.
module Leasehold
end

require_relative "leasehold/errors"
require_relative "leasehold/guard"
require_relative "leasehold/lock"
require_relative "leasehold/locker"
require_relative "leasehold/log"
require_relative "leasehold/serverless"
require_relative "leasehold/stored_object"
require_relative "leasehold/version"

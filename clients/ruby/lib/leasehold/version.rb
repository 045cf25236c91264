# frozen_string_literal: true

module Leasehold
  VERSION = "0.1.0"
end

# frozen_string_literal: true

# Measures the lock of the Ruby client, and prints a line of JSON. `./bench-clients` runs it.
#
#     bench.rb leasehold SECONDS STORE

require "json"
require "leasehold"

contender, seconds, store = ARGV
abort "usage: bench.rb leasehold SECONDS STORE" unless contender == "leasehold" && store

def now = Process.clock_gettime(Process::CLOCK_MONOTONIC)

locker = Leasehold::Locker.new(store)
once = -> { locker.lock("bench") {} }
20.times { once.call }
times = []
finish = now + Float(seconds)
while (start = now) < finish
  once.call
  times << (now - start)
end
puts JSON.generate(times)

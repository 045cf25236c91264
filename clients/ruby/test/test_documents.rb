# frozen_string_literal: true

require_relative "helper"

# Runs the examples in docs/ruby.md and in the README, and compares the versions.
class TestDocuments < LeaseholdTest
  # The methods of the user's program that the examples call.
  class Program
    %i[deploy report save render search rebuild].each { |name| define_method(name) { |*_, **_| name } }

    def rows
      [1, 2]
    end

    def run(block, document)
      (@binding ||= binding).eval(block, document)
    end
  end

  %w[docs/ruby.md clients/ruby/README.md].each do |document|
    define_method("test_the_blocks_of_#{File.basename(document)}_run_in_their_order") do
      blocks = File.read("#{ROOT}/#{document}").scan(/^```ruby\n(.*?)^```/m).flatten
      refute_empty blocks
      Dir.chdir(folder) do
        program = Program.new
        capture_io { blocks.each { |block| program.run(block, document) } }
      end
    end
  end

  def test_all_parts_have_one_version
    workspace = File.read("#{ROOT}/Cargo.toml")[/^\[workspace\.package\]\nversion = "(.*?)"/, 1]
    assert_equal workspace, VERSION
  end
end
